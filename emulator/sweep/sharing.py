"""Which runs train the same things, so that one can use the memo of another.

Any memo of the same software may be offered to any run: what it holds is found by identities that
are hashes of all that a result depends on, so a wrong value cannot be found. What remains is when
it is *useful*. A memo holds all small values of a run, but its tensors only as of the end (with
``memo: {keep: versions}`` also those of every version). So it saves trainings where another run

- makes the same versions from the same updates to its end, or
- begins with all that the first one did and goes on from there.

The first is so with the same seed, task, methods and evaluation, if the clock decides on nobody:
synchronous rounds that wait for all whom they ask, clients that are always online, evaluations and
stop by versions. Devices and links may then differ. The second is so where only the stop differs.

A run that has used a memo keeps what it used in its own. So one memo is enough for each run: that
of a run of its family which is finished, with the same stop or else with the latest before. It is
only read, and nobody writes to it any more.
"""

from __future__ import annotations

import hashlib
import json
import math

from emulator.scenario import Scenario
from emulator.scenario.schema import Cohorts, Synchronous
from emulator.scenario.schema.root import EveryVersions
from emulator.scenario.schema.system import Always


def family(scenario: Scenario) -> str:
    """Equal for two scenarios if one run's memo is useful to the other."""
    apart = {"name", "stop", "memo"}
    if not _clock_decides(scenario):
        apart.add("system")
    told = json.dumps(scenario.model_dump(mode="json", exclude=apart), sort_keys=True)
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def stop_order(scenario: Scenario) -> tuple[float, ...]:
    """A run that stops earlier is lower: by versions, simulated time, target accuracy."""
    stop = scenario.stop
    versions = math.inf if stop.versions is None else stop.versions
    return versions, stop.sim_time, math.inf if stop.target is None else stop.target.value


def _clock_decides(scenario: Scenario) -> bool:
    """Whether devices, links or sessions may change who trains what, and when it is measured."""
    pacing = scenario.federation.pacing
    everybody_counts = (
        isinstance(pacing, Synchronous)
        and pacing.deadline == "none"
        and pacing.over_commitment == 1.0
        and not scenario.federation.selection.rest
        and isinstance(scenario.system.availability, Always)
        and not isinstance(scenario.federation.structure, Cohorts)
    )
    # Where the simulated time at which versions end decides what is measured or saved, a run
    # needs tensors that the memo has only if it keeps all.
    keeps_all = scenario.memo.keep == "versions"
    by_versions = (
        isinstance(scenario.evaluation.every, EveryVersions) and scenario.stop.versions is not None
    )
    return not (everybody_counts and (keeps_all or by_versions))
