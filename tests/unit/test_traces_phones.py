import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from traces import (
    AtEnd,
    Availability,
    Draw,
    Sessions,
    TraceError,
    duty_cycle,
    online_share_by_hour,
    phone_devices,
    phone_sessions,
    renewal_sessions,
)

Floats = NDArray[np.float64]


def streams(clients: int, seed: int = 1) -> Draw:
    """Uniforms that depend on the stream, the draw and the client, and on nothing else."""

    def draw(name: str, n: int) -> Floats:
        key = [seed, n, *name.encode()]
        return np.random.default_rng(key).random(1000)[:clients]

    return draw


def wide_streams(clients: int, seed: int = 1) -> Draw:
    def draw(name: str, n: int) -> Floats:
        return np.random.default_rng([seed, n, *name.encode()]).random(clients)

    return draw


def test_quartiles_of_devices() -> None:
    u = (np.arange(40_000) + 0.5) / 40_000
    table = phone_devices(u, u[::-1])
    computation = np.quantile(table.computation_ms_per_sample, [0.25, 0.5, 0.75])
    communication = np.quantile(table.communication_kbps, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(computation, [24, 41, 148], rtol=0.02)
    np.testing.assert_allclose(communication, [2856, 6075, 13882], rtol=0.02)
    assert len(np.unique(table.computation_ms_per_sample)) == 72
    assert len(np.unique(table.communication_kbps)) == 468


def test_quartiles_of_sampled_devices() -> None:
    rng = np.random.default_rng(9)
    table = phone_devices(rng.random(100_000), rng.random(100_000))
    speed, bandwidth = table.computation_ms_per_sample, table.communication_kbps
    np.testing.assert_allclose(np.quantile(speed, [0.25, 0.5, 0.75]), [24, 41, 148], rtol=0.02)
    quartiles = np.quantile(bandwidth, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quartiles, [2856, 6075, 13882], rtol=0.02)
    assert abs(np.corrcoef(speed, bandwidth)[0, 1]) < 0.02


def test_the_ends_of_the_device_histograms() -> None:
    table = phone_devices(np.array([0.0, 1 - 2**-53]), np.array([0.0, 1 - 2**-53]))
    assert table.computation_ms_per_sample.tolist() == [15.0, 199.0]
    assert table.communication_kbps.round(1).tolist() == [1016.9, 204056.7]


@pytest.fixture(scope="module")
def phones() -> Sessions:
    return phone_sessions(6000, 6, wide_streams(6000))


def test_phones_are_as_available_as_published(phones: Sessions) -> None:
    duty = duty_cycle(phones)
    assert duty.mean() == pytest.approx(0.095, rel=0.06)
    quartiles = np.quantile(duty, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quartiles, [0.013, 0.055, 0.131], rtol=0.4)
    per_day = np.quantile(phones.counts / 6, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(per_day, [1, 3, 6], rtol=0.9)
    length = np.quantile(phones.ends_s - phones.starts_s, [0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose(length, [10, 138, 1066, 4178], rtol=0.5)
    assert (phones.ends_s > phones.starts_s).all()


def test_phones_know_day_and_night(phones: Sessions) -> None:
    share = online_share_by_hour(phones)
    published = [
        *(0.105, 0.116, 0.128, 0.135, 0.137, 0.135, 0.124, 0.111, 0.101, 0.090, 0.078, 0.069),
        *(0.069, 0.065, 0.067, 0.069, 0.076, 0.080, 0.090, 0.078, 0.070, 0.074, 0.086, 0.098),
    ]
    np.testing.assert_allclose(share, published, atol=0.017)
    assert share.max() / share.min() == pytest.approx(2.1, rel=0.2)
    inside = phones.starts_s[phones.starts_s > 0]
    hour = (inside % 86400 // 3600).astype(int)
    starts = np.bincount(hour, minlength=24) / len(hour)
    assert starts.argmax() == 18
    assert starts[18] == pytest.approx(0.082, rel=0.1)
    assert starts[4] == pytest.approx(0.013, rel=0.2)
    length = (phones.ends_s - phones.starts_s)[phones.starts_s > 0]
    assert length[hour >= 23].mean() > 2 * length[(hour >= 9) & (hour < 19)].mean()


def test_phones_are_in_their_steady_state_from_the_start(phones: Sessions) -> None:
    clients = Availability(phones, np.arange(len(phones)), "end")
    days = [clients.online_mask(day * 86400.0 + 600).mean() for day in range(6)]
    assert days[0] == pytest.approx(np.mean(days[1:]), rel=0.15)


@pytest.mark.parametrize("duty", [0.02, 0.3, 0.8])
def test_phones_take_a_duty_cycle(duty: float) -> None:
    sessions = phone_sessions(4000, 4, wide_streams(4000), duty)
    assert duty_cycle(sessions).mean() == pytest.approx(duty, rel=0.12)


def test_another_client_or_day_changes_nobodys_sessions() -> None:
    few = phone_sessions(30, 3, streams(30))
    more = phone_sessions(40, 3, streams(40))
    assert [few.row(c) for c in range(30)] == [more.row(c) for c in range(30)]
    longer = phone_sessions(30, 4, streams(30))
    cut = 3 * 86400.0
    for client in range(30):
        common = [(a, min(b, cut)) for a, b in longer.row(client) if a < cut]
        assert common == few.row(client)
    assert phone_sessions(30, 3, streams(30, seed=2)).row(0) != few.row(0)


def test_refusals() -> None:
    for clients, days in ((0, 1), (1, 0)):
        with pytest.raises(TraceError, match="both must be at least 1"):
            phone_sessions(clients, days, streams(clients))
    for duty in (0.0, 1.0, math.nan):
        with pytest.raises(TraceError, match=r"between 0\.001 and 0\.95"):
            phone_sessions(3, 1, streams(3), duty)


# ----------------------------------------------------------------------- renewal processes

CLIENTS = 12_000


def exponential(mean_s: float) -> Callable[[Floats], Floats]:
    return lambda u: -mean_s * np.log1p(-u)


def fixed(seconds: float) -> Callable[[Floats], Floats]:
    return lambda u: np.full(len(u), seconds)


def residual(
    on_ppf: Callable[[Floats], Floats],
    off_ppf: Callable[[Floats], Floats],
    at_s: float,
) -> tuple[float, Floats]:
    """(share online, what is left of the sessions then running) at one instant; means 2 and 3."""
    sessions = renewal_sessions(
        CLIENTS, at_s + 60.0, wide_streams(CLIENTS), on_ppf, off_ppf, 2.0, 3.0
    )
    clients = Availability(sessions, np.arange(CLIENTS), "end")
    online = clients.online_mask(at_s)
    left = [clients.online_until(int(c), at_s) - at_s for c in np.flatnonzero(online)]
    return float(online.mean()), np.array(left)


@pytest.mark.parametrize("at_s", [0.0, 17.0])
@pytest.mark.parametrize(
    ("on_ppf", "off_ppf", "beyond"),
    [
        (exponential(2.0), exponential(3.0), {0.5: 0.7788, 2.0: 0.3679, 5.0: 0.0821}),
        (lambda u: 4.0 * u + 1e-12, exponential(3.0), {0.5: 0.7656, 2.0: 0.25, 5.0: 0.0}),
        (fixed(2.0), exponential(3.0), {0.5: 0.75, 2.0: 0.0}),
        (fixed(2.0), fixed(3.0), {0.5: 0.75, 2.0: 0.0}),
    ],
    ids=["exponential", "uniform", "fixed", "fixed-fixed"],
)
def test_renewal_is_in_its_steady_state(
    on_ppf: Callable[[Floats], Floats],
    off_ppf: Callable[[Floats], Floats],
    beyond: dict[float, float],
    at_s: float,
) -> None:
    """Share E[on] / (E[on] + E[off]), and the equilibrium law of the residual: 4-sigma bands."""
    share, left = residual(on_ppf, off_ppf, at_s)
    exact = 2.0 / (2.0 + 3.0)
    assert abs(share - exact) < 4 * math.sqrt(exact * (1 - exact) / CLIENTS)
    for seconds, p in beyond.items():
        assert abs((left > seconds).mean() - p) < 4 * math.sqrt(p * (1 - p) / len(left)) + 1e-9


def test_renewal_refusals() -> None:
    def make(horizon_s: float = 10.0, on_s: float = 1.0, mean_s: float = 1.0) -> Sessions:
        def ppf(u: Floats) -> Floats:
            return np.full(len(u), on_s)

        return renewal_sessions(5, horizon_s, streams(5), ppf, ppf, mean_s, 1.0)

    assert len(make()) == 5
    with pytest.raises(TraceError, match="horizon_s is inf"):
        make(horizon_s=math.inf)
    with pytest.raises(TraceError, match="on_mean_s is 0"):
        make(mean_s=0)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(TraceError, match="an on-time is not finite and > 0"):
            make(on_s=bad)


@pytest.mark.parametrize("at_end", ["wrap", "hold", "end"])
def test_generated_sessions_are_fit_for_availability(at_end: AtEnd) -> None:
    sessions = phone_sessions(50, 2, streams(50))
    clients = Availability(sessions, np.arange(50), at_end)
    start = clients.next_online_many(5.3e5)
    for client in np.flatnonzero(np.isfinite(start)).tolist():
        assert clients.online(client, float(start[client]))
