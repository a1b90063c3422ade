"""The page about runs: what is in it, what is not, and how a browser takes it."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from browser import Page, chromium
from commandline import Lab, buffered, digits, fedclock, links, synchronous, timed

HOSTILE = '<script>alert("1")</script>'
ELSEWHERE = "</pre><script>fetch('https://example.org')</script>"


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside of the style sheet."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.text += data

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag in tags]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two scenarios of two seeds that learn, one of them with a hostile name, and one of chains."""
    lab = Lab(tmp_path_factory.mktemp("report"))
    for name, pacing in (("rounds", synchronous(2)), ("other", buffered(2, 2))):
        for seed in (1, 2):
            config = digits(6, pacing, versions=6, training=[3, 4, 5, 6, 7, 8])
            run = lab.run(config, "--seed", seed, out=f"{name}-{seed}")
            if name == "other":
                manifest = run.manifest | {"name": HOSTILE}
                (run.path / "manifest.json").write_text(json.dumps(manifest))
                resolved = run.path / "resolved.yaml"
                text = resolved.read_text().replace(
                    "on_offline: drop", f'on_offline: "{ELSEWHERE}"'
                )
                assert ELSEWHERE in text
                resolved.write_text(text)
    chained = timed(
        6, [1, 2, 3, 4, 5, 6], synchronous(1), stop={"sim_time": 60},
        network=links(down="1 MB/s", up="0.5 MB/s"),
    )  # fmt: skip
    chained["federation"]["structure"] = {
        "kind": "superclients", "passes": 1, "hop": "p2p", "absent": {"kind": "wait"},
        "grouping": {"kind": "random", "min_samples": 30, "max_clients": 3},
    }  # fmt: skip
    lab.run(chained, out="chains")
    return lab


@pytest.fixture(scope="module")
def page(lab: Lab) -> Path:
    path = lab.folder / "report.html"
    runs = [lab.folder / f"{name}-{seed}" for name in ("rounds", "other") for seed in (1, 2)]
    said = fedclock("report", *runs, "--out", path, "--target", "0.3", "--sustain", "1")
    assert said.exit_code == 0, said
    assert "4 runs, 0." in said.out
    assert "has 2 seeds" in said.err  # the comparison's own warning
    return path


@pytest.fixture(scope="module")
def elements(page: Path) -> Elements:
    return Elements(page.read_text())


def test_the_page_has_what_the_runs_have(lab: Lab, elements: Elements) -> None:
    ids = [attributes["id"] for attributes in elements.of("section")]
    assert ids == ["summary", "accuracy", "rounds", "clients", "timelines", "scenarios", "runs"]
    with (lab.folder / "rounds-1" / "metrics.csv").open() as file:
        last = [r for r in csv.DictReader(file) if r["metric"] == "accuracy"][-1]
    with (lab.folder / "rounds-2" / "metrics.csv").open() as file:
        other = [r for r in csv.DictReader(file) if r["metric"] == "accuracy"][-1]
    mean = (float(last["value"]) + float(other["value"])) / 2
    assert f"{100 * mean:.1f} %" in elements.text
    for told in ("Time to accuracy", "Staleness", "federation.pacing.buffer", "to 70 %",
                 "Target: test accuracy 30 % (given)", "what clients did"):  # fmt: skip
        assert told in elements.text, told


def test_names_are_text_wherever_they_stand(page: Path, elements: Elements) -> None:
    assert elements.of("script", "iframe", "object", "img") == []
    # In the head, tables, captions, resolved scenario, and the texts of figures.
    assert elements.text.count(HOSTILE) > 10
    assert elements.text.count(ELSEWHERE) >= 2
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert "<script" not in page.read_text()


def test_nothing_is_fetched(elements: Elements) -> None:
    for tag, attributes in elements.found:
        for name in ("href", "src", "xlink:href", "srcset", "action"):
            target = attributes.get(name)
            assert not target or target.startswith(("#", "data:")), (tag, attributes)
    (policy,) = (a for a in elements.of("meta") if a.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")


def test_the_page_is_accessible(elements: Elements) -> None:
    levels = [int(tag[1]) for tag, _ in elements.found if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert elements.of("html") == [{"lang": "en"}]
    pictures = elements.of("svg")
    assert len(pictures) == len(elements.of("figure")) == len(elements.of("figcaption")) > 10
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    ids = Counter(a["id"] for _, a in elements.found if "id" in a)
    assert set(ids.values()) == {1}
    for attributes in (a for _, a in elements.found):
        for name in ("href", "xlink:href", "aria-labelledby"):
            target = attributes.get(name)
            if target and not target.startswith("data:"):
                assert target.removeprefix("#") in ids, target
    assert all(a.get("scope") for a in elements.of("th"))


def test_runs_without_evaluations_have_the_rest(lab: Lab) -> None:
    path = lab.folder / "chains.html"
    said = fedclock("report", lab.folder / "chains", "--out", path)
    assert said.exit_code == 0, said
    assert "no times to a target" in said.err
    elements = Elements(path.read_text())
    ids = [attributes["id"] for attributes in elements.of("section")]
    assert ids == ["summary", "accuracy", "rounds", "clients", "structure", "timelines",
                   "scenarios", "runs"]  # fmt: skip
    assert "Superclients: how many clients each has" in elements.text
    assert "Test accuracy over simulated time: nothing to plot" in elements.text


def test_too_few_evaluations_for_a_target_leave_the_rest(lab: Lab) -> None:
    path = lab.folder / "few.html"
    said = fedclock(
        "report", lab.folder / "rounds-1", lab.folder / "chains", "--sustain", "99", "--out", path
    )
    assert said.exit_code == 0, said
    assert "1 of 2 runs have no evaluation" in said.err
    assert "nothing is compared:" in said.err
    assert "not in" in Elements(path.read_text()).text


def test_what_cannot_be_reported(lab: Lab, tmp_path: Path) -> None:
    def refused(*args: object) -> str:
        said = fedclock("report", *args)
        assert said.exit_code == 2, said
        assert "Traceback" not in said.err
        return said.err

    run = lab.folder / "rounds-1"
    assert "target is 'much'; a number" in refused(run, "--target", "much", "--out", tmp_path / "r")
    assert "neither a run directory" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "none")
    shutil.copytree(run, tmp_path / "again")
    assert "and seed (1)" in refused(run, tmp_path / "again", "--out", tmp_path / "r.html")
    assert "is a folder" in refused(run, "--out", tmp_path)
    said = refused(run, "--out", tmp_path / "no" / "r.html")
    assert "no/r.html: cannot be written (there is no folder" in said


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with Page(program) as found:
        yield found


@pytest.mark.parametrize(
    ("width", "dark"), [(390, False), (1280, False), (390, True)], ids=["phone", "wide", "dark"]
)
def test_a_browser_shows_it(browser: Page, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    assert browser.evaluate("document.querySelectorAll('svg').length") > 10
    requests = [request["request"]["url"] for request in browser.of("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    for silent in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                   "Page.javascriptDialogOpening"):  # fmt: skip
        assert browser.of(silent) == []
    # Open, what was folded must fit too.
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    color = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert color == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.evaluate("document.title").startswith(f"digits, {HOSTILE}")


def test_the_keyboard_reaches_the_results_first(browser: Page, page: Path) -> None:
    browser.open(page, 1280)
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab",
                     windowsVirtualKeyCode=9)  # fmt: skip
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the results"


def test_a_log_line_and_a_request_would_be_seen(browser: Page, tmp_path: Path) -> None:
    """What the tests above find empty is not empty by itself."""
    loud = tmp_path / "loud.html"
    loud.write_text('<p style="width:900px">x</p><img src="gone.png"><script>console.error(1); x'
                    "</script>")  # fmt: skip
    browser.open(loud, 390)
    assert any("gone.png" in r["request"]["url"] for r in browser.of("Network.requestWillBeSent"))
    assert browser.of("Runtime.consoleAPICalled")
    assert browser.of("Runtime.exceptionThrown")
    assert browser.evaluate("document.documentElement.scrollWidth") > 390
