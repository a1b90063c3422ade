"""Figures as SVG inside a page: scaled by it, in its type, safe in whatever they are named."""

from __future__ import annotations

import io
import re
import textwrap
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots import style_legend_texts

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_LETTER_IN, _LINE_IN = 0.078, 0.19  # of a legend

ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def settle(axes: Axes) -> None:
    """Break long titles of a figure's only axes into lines, and move its legend below, where it
    covers nothing; the figure grows by as much."""
    legend, figure = axes.get_legend(), axes.figure
    assert isinstance(figure, Figure)
    wide_in = figure.get_figwidth()
    # Above all of the figure, as long names beside the axes leave little width above these.
    title = textwrap.fill(axes.get_title(loc="left"), int((wide_in - 0.2) / 0.088))
    axes.set_title("", loc="left")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    axes.set_xlabel(textwrap.fill(axes.get_xlabel(), int((wide_in - 1.2) / 0.08)))
    if legend is None:
        return
    labels = [" ".join(text.get_text().split()) for text in legend.get_texts()]
    handles = [handle for handle in legend.legend_handles if handle is not None]
    legend.remove()
    columns = max(1, int(wide_in / (0.7 + _LETTER_IN * max(map(len, labels)))))
    columns = min(columns, len(labels))
    letters = int((wide_in / columns - 0.6) / _LETTER_IN)
    below = figure.legend(
        handles, [str(i) for i in range(len(labels))], loc="outside lower left", ncols=columns,
        fontsize=9, frameon=False, alignment="left",
    )  # fmt: skip
    lines = style_legend_texts(below, labels, letters)
    grow_in = 0.1 + _LINE_IN * -(-lines // columns)
    figure.set_figheight(figure.get_figheight() + grow_in)


def inline_svg(figure: Figure, key: str, alt: str) -> Markup:
    """The figure as an ``svg`` element with an accessible name; ``key`` tells its ids from those of
    other figures.

    Texts are texts, so that they can be found and read; without a background, as the page has one.
    """
    stream = io.StringIO()
    # With a salt of its own the ids inside are the same for the same figure.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.attrib |= {"role": "img", "aria-label": alt, "style": f"max-width:{width * 4 / 3:.0f}px"}
    used = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == _LINK:
                used.add(value.removeprefix("#"))
            used.update(re.findall(r"url\(#([^)]+)\)", value))
    for element in root.iter():
        _adopt(element, key, used)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _adopt(element: ElementTree.Element, key: str, used: set[str]) -> None:
    """Ids that nothing refers to go; the others, and what refers to them, get the key in front."""
    found = element.attrib
    if "id" in found:
        name = found.pop("id")
        if name in used:
            found["id"] = f"{key}-{name}"
    for name, value in found.items():
        if name == _LINK:
            found[name] = f"#{key}-{value.removeprefix('#')}"
        elif "url(#" in value:
            found[name] = value.replace("url(#", f"url(#{key}-")
    if element.tag == f"{{{_SVG}}}text" and "style" in found:
        # The page's own type, at the figure's size.
        found["style"] = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", found["style"])
