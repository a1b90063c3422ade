"""The noise of local differential privacy, and who has sent more updates than it was made for.

The budget (epsilon, delta) is that of one client over its ``reports`` updates, where two worlds are
neighbours in which one of its updates is there, or is not: an L2 sensitivity of ``clip``. The
updates are composed as so many Gaussian mechanisms, each, where there is a ``sampling_rate``, of a
Poisson sample. The accountant goes by Rényi divergences (Mironov 2017; Mironov, Talwar, Zhang
2019), which are an upper bound: sigma is some per cent larger than it need be.
"""

from __future__ import annotations

from functools import cache

from emulator.errors import ScenarioError
from emulator.recording.recorder import Recorder
from emulator.scenario.schema import LocalDp
from emulator.simulation.participation import Participation

_WHERE = "federation.faults.local_dp"


def noise_multiplier(section: LocalDp) -> float:
    """``sigma``, given or computed.

    Raises ScenarioError where the accountant is not installed, or finds none.
    """
    if section.sigma is not None:
        return section.sigma
    assert section.epsilon is not None
    assert section.delta is not None
    assert section.reports is not None
    rate = 1.0 if section.sampling_rate is None else section.sampling_rate
    return _calibrated(section.epsilon, section.delta, section.reports, rate)


@cache
def _calibrated(epsilon: float, delta: float, reports: int, sampling_rate: float) -> float:
    try:  # loaded where it is used: it takes seconds, and is an extra
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        raise ScenarioError(
            f"{_WHERE}.epsilon: sigma is computed by dp-accounting, which is not installed; "
            "pip install 'fedclock[privacy]', or say sigma"
        ) from None

    def of_all(sigma: float) -> dp_accounting.DpEvent:
        one = dp_accounting.GaussianDpEvent(sigma)
        if sampling_rate < 1.0:
            one = dp_accounting.PoissonSampledDpEvent(sampling_rate, one)
        return dp_accounting.SelfComposedDpEvent(one, reports)

    try:
        found = dp_accounting.calibrate_dp_mechanism(RdpAccountant, of_all, epsilon, delta)
    except Exception as error:  # it has several ways to say that there is none
        raise ScenarioError(
            f"{_WHERE}: no sigma is found for epsilon {epsilon}, delta {delta} over {reports} "
            f"reports ({type(error).__name__}: {error}); take a larger epsilon or delta, or fewer "
            "reports"
        ) from None
    return float(found)


def note(section: LocalDp) -> str | None:
    """What a user should know of a sigma that was computed."""
    if section.sigma is not None:
        return None
    sampled = "" if section.sampling_rate is None else f", each with rate {section.sampling_rate}"
    return (
        f"{_WHERE}: epsilon {section.epsilon} and delta {section.delta} over {section.reports} "
        f"reports of a client{sampled}, take sigma {noise_multiplier(section):.6g}"
    )


class Reports:
    """Counts the updates that have left each client, of which ``most`` are in its budget; a chain
    has one of each member."""

    def __init__(self, most: int, recorder: Recorder) -> None:
        self._most = most
        self._recorder = recorder
        self._sent: dict[int, int] = {}
        self._last_chain: dict[int, int] = {}

    def ended(self, p: Participation) -> None:
        """A task is over: has its update left the client?"""
        if p.outcome is not None or p.phase == "delivery":
            return
        if p.chain is not None:
            if self._last_chain.get(p.client) == p.chain:
                return
            self._last_chain[p.client] = p.chain
        self._sent[p.client] = sent = self._sent.get(p.client, 0) + 1
        if sent == self._most + 1:
            self._recorder.event(
                p.ended_s, "privacy_exceeded", f"client/{p.client}", reports=sent
            )  # fmt: skip
