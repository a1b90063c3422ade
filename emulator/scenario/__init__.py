"""From a YAML file to a :class:`~emulator.scenario.schema.Scenario`: read, override, validate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import ValidationError

from emulator.scenario.messages import explain
from emulator.scenario.overrides import apply_overrides
from emulator.scenario.schema import Scenario
from emulator.scenario.source import Source, read_yaml

__all__ = ["Scenario", "load_scenario", "resolved_yaml", "scenario_sha256", "validated"]


def load_scenario(
    path: Path, overrides: Iterable[str] = (), seed: int | None = None
) -> tuple[Scenario, Source]:
    """The scenario in a file, with ``--set`` and ``--seed`` applied on top.

    Raises :class:`emulator.errors.ScenarioError` that names file, line, value and what is
    allowed.
    """
    source = read_yaml(path)
    given = list(overrides)
    if seed is not None:
        given.append(f"seed={seed}")
    source = apply_overrides(source, given)
    return validated(source), source


def validated(source: Source) -> Scenario:
    """The scenario that a source holds; errors as :func:`load_scenario`."""
    base = source.path.resolve().parent
    try:
        return Scenario.model_validate(source.data, context={"base": base})
    except ValidationError as error:
        raise explain(error, source, Scenario) from None


def resolved_yaml(scenario: Scenario) -> str:
    """The scenario with every default, in seconds, bytes and bytes per second."""
    data = json.loads(scenario.model_dump_json(by_alias=True))
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def scenario_sha256(scenario: Scenario) -> str:
    """The hash by which a manifest names the scenario."""
    return hashlib.sha256(resolved_yaml(scenario).encode()).hexdigest()
