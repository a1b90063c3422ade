"""``federation.faults``: what goes wrong, on purpose, and what keeps updates private."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from emulator.scenario.schema.base import Count, Kind, Section
from emulator.scenario.units import PositiveSeconds

Share = Annotated[float, Field(ge=0, le=1)]
# Beyond, the noise or what is left of an update does not fit a 32-bit float beside the model.
Scale = Annotated[float, Field(gt=0, le=1e9)]


class MirroredLabels(Section):
    """Labels of a ``share`` of the clients are mirrored, y → C − 1 − y of C classes (Fang et al.
    2020), in all that they train on; what models are tested on stays as it is. The clients are
    floor(share × clients) of a random order: those of a smaller share are among those of a larger.
    ``claims: wrong``: they also ask for the other side of a cohort than the one that they know they
    are on (structure cohorts).
    """

    kind: Literal["mirrored"]
    share: Share
    claims: Literal["honest", "wrong"] = "honest"


class RandomLabels(Section):
    """The same with a random other class for each sample, the same one each time that it is trained
    on."""

    kind: Literal["random_class"]
    share: Share
    claims: Literal["honest", "wrong"] = "honest"


LabelFlips = Annotated[MirroredLabels | RandomLabels, Kind]


class LocalDp(Section):
    """Before an update leaves its client it is clipped to an L2 norm of ``clip``, and Gaussian
    noise of standard deviation ``sigma`` · clip is added to each trained parameter; sigma 0 only
    clips.

    In place of ``sigma``: (``epsilon``, ``delta``) over ``reports`` updates of a client, of which
    each is there or not; an RDP accountant then finds sigma (dp-accounting, the extra ``privacy``).
    ``sampling_rate`` below 1: each of the ``reports`` is one only with that probability, and nobody
    learns which (Poisson sampling, the accounting behind Auxo's figures). A client that sends more
    than ``reports`` updates is logged. How many samples it has, and that it reports, stay known. Of
    a superclient, what its last member sends is clipped and noised.
    """

    kind: Literal["gaussian"]
    clip: Scale
    sigma: Annotated[float, Field(ge=0, le=1e9)] | None = None
    epsilon: Annotated[float, Field(gt=0, le=1e3)] | None = None
    delta: Annotated[float, Field(ge=1e-30, lt=1)] | None = None
    reports: Annotated[Count, Field(le=1_000_000)] | None = None
    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> LocalDp:
        budget = {"epsilon": self.epsilon, "delta": self.delta, "reports": self.reports}
        given = [name for name, value in budget.items() if value is not None]
        if self.sigma is not None:
            if given or self.sampling_rate is not None:
                raise ValueError(
                    "say either sigma, or epsilon, delta and reports, from which it is computed"
                )
        elif len(given) < len(budget):
            missing = ", ".join(name for name in budget if name not in given)
            raise ValueError(
                f"say sigma, or epsilon, delta and reports, from which it is computed; {missing} "
                f"{'is' if len(given) == 2 else 'are'} missing"
            )
        return self


class LostRecords(Section):
    """At each check-in one of this ``share`` of the clients has, with this ``probability``, just
    lost all that it remembers of cohorts, and explores anew (structure cohorts); the other clients
    never do. Those of a smaller share are among those of a larger."""

    kind: Literal["at_check_in"]
    probability: Share
    share: Share = 1.0


class ScriptedFailures(Section):
    """Failures ``at`` these times (of cohorts: of all that train then), each over after
    ``restart``."""

    kind: Literal["scripted"]
    at: Annotated[tuple[PositiveSeconds, ...], Field(min_length=1, strict=False)]
    restart: PositiveSeconds

    @model_validator(mode="after")
    def _in_order(self) -> ScriptedFailures:
        for before, after in pairwise(self.at):
            if not after > before + self.restart:
                raise ValueError(
                    f"at: {after} s comes before the restart from the failure at {before} s "
                    f"({self.restart} s later); times must be in order, and further apart"
                )
        return self


class ExponentialFailures(Section):
    """The time from a start to the next failure is exponential with this ``mean``, and drawn for
    each process; each failure is over after ``restart``."""

    kind: Literal["exponential"]
    mean: PositiveSeconds
    restart: PositiveSeconds


Failures = Annotated[ScriptedFailures | ExponentialFailures, Kind]


class Faults(Section):
    """What goes wrong, on purpose; every occurrence is in the event log.

    ``cohort_failures``: the process of a cohort dies. What is under way to it or waits for its next
    version is lost (outcome ``server_failed``), its clients check in again, and after ``restart``
    it goes on from its last version. ``coordinator_failures``: cohorts go on with the clients that
    they have and tell them their rewards, but nobody's check-in is heard and no cohort splits; a
    client that was not heard checks in again at its next session, or the structure's ``retry``
    after the restart.
    """

    label_flips: LabelFlips | None = None
    local_dp: LocalDp | None = None
    lost_records: LostRecords | None = None
    cohort_failures: Failures | None = None
    coordinator_failures: Failures | None = None
