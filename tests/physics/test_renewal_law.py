"""Availability as an alternating renewal process, observed through dispatches.

A client is online a share E[on] / (E[on] + E[off]) of the time. Seen at an instant that knows
nothing of it, an online client stays for a residual time R with the equilibrium law

    P(R > L) = (1 / E[on]) ∫_L^∞ (1 - F(x)) dx

so a task of L seconds is lost with probability 1 - P(R > L), not 1 - P(session > L): long sessions
are met more often. An asynchronous server asks clients at the instants at which others end, drawn
uniformly among those online and not at work. Being at work tilts the law a little (who is asked in
vain stays for less), by about the number of dispatches a session, here 2 %, times the covariance of
age and residual: 0.2 % of the share, a tenth of the interval that is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from laws import Document, Simulate, assert_agrees, batch_means, devices, scenario
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from emulator.assembly import build_world
from emulator.scenario import load_scenario

SEEDS = [1, 2]
OFF: Document = {"dist": "uniform", "low": 1.0, "high": 5.0}
OFF_MEAN_S = 3.0

# on-time: section, mean, P(on > x)
LAWS: dict[str, tuple[Document, float, Callable[[float], float]]] = {
    "exponential": ({"dist": "exponential", "mean": 2.0}, 2.0, lambda x: math.exp(-x / 2)),
    "lognormal": (
        {"dist": "lognormal", "median": 1.0, "sigma": 1.0},
        math.exp(0.5),
        lambda x: float(norm.sf(math.log(x))) if x > 0 else 1.0,
    ),
    "uniform": (
        {"dist": "uniform", "low": 1e-6, "high": 4.0},
        2.0,
        lambda x: max(0.0, 1 - x / 4),
    ),
    "fixed": ({"dist": "constant", "value": 2.0}, 2.0, lambda x: float(x < 2)),
}


def staying(law: str, beyond_s: float) -> float:
    """P(R > beyond_s)."""
    _, mean_s, survival = LAWS[law]
    before, _ = quad(survival, 0, beyond_s, points=[2.0], limit=200)
    return 1 - float(before) / mean_s


def test_equilibrium_law_in_closed_form() -> None:
    """The quadrature against the formulas that are known."""
    assert staying("exponential", 2.0) == pytest.approx(math.exp(-1), rel=1e-6)
    z = math.log(2.0)
    lognormal = norm.cdf(1 - z) - 2.0 / math.exp(0.5) * norm.cdf(-z)
    assert staying("lognormal", 2.0) == pytest.approx(lognormal, rel=1e-6)
    assert staying("uniform", 2.0) == pytest.approx(0.25, rel=1e-6)
    assert staying("fixed", 0.5) == pytest.approx(0.75, rel=1e-6)


def renewal(law: str, seed: int, clients: int, training_s: list[float], end_s: float) -> Document:
    return scenario(
        seed=seed,
        clients=clients,
        system={
            "devices": devices(training_s),
            "availability": {
                "kind": "renewal",
                "on": LAWS[law][0],
                "off": OFF,
                "horizon": end_s + 60.0,
                "at_end": "end",
            },
            "on_offline": "drop",
        },
        pacing={"kind": "buffered", "in_flight": 20, "buffer": 5},
        stop={"sim_time": end_s},
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("law", ["lognormal", "fixed"])
def test_tasks_lost_to_sessions_that_end(simulate: Simulate, law: str, seed: int) -> None:
    """Half of the clients work for 0.5 s, half for 1.5 s."""
    clients, end_s = 4096, 650.0
    training_s = [0.5, 1.5] * (clients // 2)
    run = simulate(renewal(law, seed, clients, training_s, end_s))

    mean_s = LAWS[law][1]
    online = run.clients["online_s"] / end_s
    assert_agrees(batch_means(online), mean_s / (mean_s + OFF_MEAN_S), "share of time online")

    updates = run.updates
    order = np.argsort(updates["dispatched_s"], kind="stable")
    lengths_s = np.array(training_s)[updates["client"][order].astype(int)]
    outcomes = updates["outcome"][order]
    over = updates["dispatched_s"][order] < end_s - max(training_s)
    assert set(outcomes[over].tolist()) == {"reported", "dropped_training"}
    for length_s in (0.5, 1.5):
        lost = outcomes[over & (lengths_s == length_s)] == "dropped_training"
        exact = staying(law, length_s)
        # The larger share of the two is known better with as many tasks.
        if exact > 0.5:
            assert_agrees(batch_means(~lost), exact, f"share of {length_s} s tasks reported")
        else:
            assert_agrees(batch_means(lost), 1 - exact, f"share of {length_s} s tasks lost")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("law", ["lognormal", "uniform"])
def test_population_at_instants(tmp_path: Path, law: str, seed: int) -> None:
    """The share online and what is left of their sessions, without any dispatch.

    At time 0 already: the process starts in its steady state.
    """
    clients, end_s = 20_000, 100.0
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(renewal(law, seed, clients, [1.0] * clients, end_s)))
    loaded, _ = load_scenario(path)
    availability = build_world(loaded, np.full(clients, 10, dtype=np.int64)).availability

    def residual_s(t_s: float, online: NDArray[np.bool_]) -> list[float]:
        clients_online = np.flatnonzero(online).tolist()
        return [availability.online_until(client, t_s) - t_s for client in clients_online]

    instants_s = np.linspace(0.0, end_s, 11).tolist()
    masks = [availability.online_mask(t_s) for t_s in instants_s]
    left_s = [residual_s(t_s, mask) for t_s, mask in zip(instants_s, masks, strict=True)]
    mean_s = LAWS[law][1]
    share = mean_s / (mean_s + OFF_MEAN_S)
    assert_agrees(batch_means(masks[0]), share, "share online at time 0")
    assert_agrees(batch_means(np.concatenate(masks)), share, "share online")
    assert_agrees(batch_means(np.array(left_s[0]) > 0.5), staying(law, 0.5), "P(R > 0.5) at time 0")
    for beyond_s in (0.5, 1.5):
        stays = np.concatenate(left_s) > beyond_s
        assert_agrees(batch_means(stays), staying(law, beyond_s), f"P(R > {beyond_s})")
