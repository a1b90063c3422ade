"""From a study to its runs: what each one runs, what it is called and where it goes."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from emulator.errors import ScenarioError
from emulator.scenario import Scenario, validated
from emulator.scenario.overrides import assign
from emulator.scenario.source import Source
from emulator.sweep.sharing import family, stop_order
from emulator.sweep.study import MOST_RUNS, Axis, Study

_LONGEST_VALUE: Final = 40
_LONGEST_NAME: Final = 120
_MOST_ERRORS: Final = 40


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep. ``directory`` is relative, ``VARIANT/seed-N``; ``values`` are those that
    vary, by key. Runs of one ``family`` train the same things, the lower in ``stop`` first."""

    directory: str
    scenario_name: str
    seed: int
    values: Mapping[str, Any]
    scenario: Scenario
    source: Source
    family: str | None
    stop: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Variant:
    """A scenario with one combination of the values that vary."""

    scenario_name: str
    values: Mapping[str, Any]
    source: Source


def planned(study: Study) -> list[PlannedRun]:
    """All runs, seed by seed. Raises :class:`ScenarioError` with every fault of any of them."""
    variants, faults = list[_Variant](), list[str]()
    for source, name in zip(study.sources, study.names, strict=True):
        variants += _variants(source, name, study.axes, faults)
    _refuse(faults)
    if len(variants) * len(study.seeds) > MOST_RUNS:
        raise ScenarioError(
            f"{len(variants)} variants with {len(study.seeds)} seeds are more than {MOST_RUNS} runs"
        )
    _refuse_same_names(study.sources, variants)
    folders = _folders(variants, study.axes)
    runs = []
    for seed, (variant, folder) in itertools.product(
        study.seeds, zip(variants, folders, strict=True)
    ):
        source = variant.source
        if source.data["name"] != folder:
            source = assign(source, "name", folder, "the name that the sweep gives")
        source = assign(source, "seed", seed, f"seed {seed}")
        try:
            scenario = validated(source)
        except ScenarioError as error:
            faults += str(error).splitlines()
            continue
        runs.append(
            PlannedRun(
                f"{folder}/seed-{seed}", variant.scenario_name, seed, variant.values, scenario,
                source, None if study.timing_only else family(scenario), stop_order(scenario),
            )
        )  # fmt: skip
    _refuse(faults)
    return runs


def _variants(
    source: Source, name: str | None, axes: Sequence[Axis], faults: list[str]
) -> Iterator[_Variant]:
    for combination in itertools.product(*(axis.values for axis in axes)):
        varied, values = source, dict[str, Any]()
        try:
            for axis, (value, where) in zip(axes, combination, strict=True):
                varied = assign(varied, axis.key, value, where)
                values[axis.key] = value
            given = validated(varied).name
        except ScenarioError as error:
            faults += str(error).splitlines()
            continue
        yield _Variant(name or given, values, varied)


def _refuse(faults: Sequence[str]) -> None:
    told = list(dict.fromkeys(faults))
    if len(told) > _MOST_ERRORS:
        told[_MOST_ERRORS:] = [f"… and {len(told) - _MOST_ERRORS} more"]
    if told:
        raise ScenarioError("\n".join(told))


def _refuse_same_names(sources: Sequence[Source], variants: Sequence[_Variant]) -> None:
    """Two scenarios of one name would be one line in every table."""
    each = len(variants) // len(sources)
    count = Counter(variant.scenario_name.casefold() for variant in variants)
    for variant in variants:
        if count[variant.scenario_name.casefold()] > each:
            files = [
                str(other.source.path)
                for other in variants[::each]
                if other.scenario_name.casefold() == variant.scenario_name.casefold()
            ]
            raise ScenarioError(
                f"{' and '.join(files)} have one name, '{variant.scenario_name}'; give each one of "
                "its own, in its file or in a sweep file: {file: …, name: …}"
            )


# --- names of directories -------------------------------------------------------------------


def _folders(variants: Sequence[_Variant], axes: Sequence[Axis]) -> list[str]:
    """One readable name a variant, also for file systems that ignore case.

    Where it had to be cut, or two would be the same, an ending is added that depends on the values
    alone, so that a value more changes nobody's name.
    """
    labels = _labels([axis.key for axis in axes])
    names, cut = [], []
    for variant in variants:
        parts = [variant.scenario_name]
        texts = [_safe(value) for value in variant.values.values()]
        for label, text in zip(labels, texts, strict=True):
            parts += [label, text[:_LONGEST_VALUE].rstrip("-._")]
        name = "-".join(parts)
        cut.append(len(name) > _LONGEST_NAME or any(len(t) > _LONGEST_VALUE for t in texts))
        names.append(name[:_LONGEST_NAME].rstrip("-._"))
    count = Counter(name.casefold() for name in names)
    for at, variant in enumerate(variants):
        if cut[at] or count[names[at].casefold()] > 1:
            told = json.dumps([variant.scenario_name, variant.values], sort_keys=True)
            names[at] += "-" + hashlib.blake2b(told.encode(), digest_size=4).hexdigest()
    return names


def _labels(keys: Sequence[str]) -> list[str]:
    """The last parts of each key, as many as tell it apart from the others."""
    labels = []
    for key in keys:
        parts = key.split(".")
        others = [other.split(".") for other in keys if other != key]
        used = next(
            (n for n in range(1, len(parts)) if all(o[-n:] != parts[-n:] for o in others)),
            len(parts),
        )
        labels.append("-".join(_safe(part) for part in parts[-used:]))
    return labels


def _safe(value: Any) -> str:
    """A value in letters, digits, dots, hyphens and underscores."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float) and text.startswith("-"):
        text = f"minus{text}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "value"
