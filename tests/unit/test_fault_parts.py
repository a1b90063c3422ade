"""Label flips, the Gaussian mechanism and its accountant, and server processes, without a run."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import kstest, norm
from test_learner import CLIENTS, PLAIN, Life, make_bench, replace
from test_setting import BASE, DIGITS
from torch import Tensor

from emulator.errors import ScenarioError
from emulator.federation.faults.local_dp import Reports, noise_multiplier
from emulator.federation.faults.server_processes import ServerProcess
from emulator.federation.structure.cohorts.affinity import Exploration
from emulator.federation.structure.cohorts.records import Records
from emulator.federation.structure.cohorts.tree import Tree
from emulator.federation.tasks import Tasks
from emulator.learning.methods.label_flips import corrupted, flipped
from emulator.learning.methods.local_dp import Privacy, local_dp
from emulator.learning.operations import one_thread
from emulator.learning.privacy import noised
from emulator.learning.setting import build
from emulator.random_streams import generator
from emulator.scenario.schema import ExponentialFailures, LocalDp, Scenario, ScriptedFailures
from emulator.simulation.clock import Clock
from emulator.simulation.participation import Outcome

# --- label flips ----------------------------------------------------------------------------------


def test_a_larger_share_corrupts_more_clients() -> None:
    few, many = corrupted(3, 40, 0.05), corrupted(3, 40, 0.15)
    assert (len(few), len(many), len(corrupted(3, 40, 0.3))) == (2, 6, 12)
    assert set(few) < set(many)
    assert list(many) == sorted(many)
    assert corrupted(3, 40, 0.0) == ()
    assert corrupted(3, 5, 1.0) == (0, 1, 2, 3, 4)
    assert corrupted(4, 40, 0.15) != many


def test_what_a_flipped_label_is() -> None:
    labels = np.arange(30) % 5
    held = [np.arange(10), np.arange(10, 20), np.arange(20, 30)]
    mirrored = flipped(labels, held, (1,), "mirrored", classes=5, root_seed=1)
    assert mirrored[10:20].tolist() == [4, 3, 2, 1, 0] * 2
    assert (mirrored[:10] == labels[:10]).all()
    assert (mirrored[20:] == labels[20:]).all()
    drawn = flipped(labels, held, (0, 2), "random_class", classes=5, root_seed=1)
    own = np.r_[held[0], held[2]]
    assert (drawn[own] != labels[own]).all()
    assert set(drawn[own].tolist()) == {0, 1, 2, 3, 4}
    assert (drawn[held[1]] == labels[held[1]]).all()
    alone = flipped(labels, held, (2,), "random_class", classes=5, root_seed=1)
    assert (alone[held[2]] == drawn[held[2]]).all()


def scenario(**faults: Any) -> Scenario:
    task = {**DIGITS, "client_test": 0.2}
    federation = {**BASE["federation"], "faults": faults}
    return Scenario.model_validate({**BASE, "task": task, "federation": federation})


def test_training_labels_are_flipped_and_test_labels_are_not() -> None:
    clean = build(scenario())
    setting = build(scenario(label_flips={"kind": "mirrored", "share": 0.1}))
    before, after = clean.dataset, setting.dataset
    assert before is not None
    assert after is not None
    bad = corrupted(3, 20, 0.1)
    own = np.concatenate([setting.partition[client] for client in bad])
    assert (after.train_y[own] == 9 - before.train_y[own]).all()
    rest = np.setdiff1d(np.arange(len(before.train_y)), own)
    assert (after.train_y[rest] == before.train_y[rest]).all()
    assert (after.test_y == before.test_y).all()
    # What clients are tested on lies in the training set, and is not theirs to train on.
    assert setting.client_test is not None
    assert not set(own) & set(np.concatenate(setting.client_test.indices))
    assert setting.root != clean.root
    assert build(scenario(label_flips={"kind": "mirrored", "share": 0.0})).root == clean.root


# --- the Gaussian mechanism -----------------------------------------------------------------------


def test_an_update_is_clipped_to_a_norm() -> None:
    long, short = torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4])
    only_clips = Privacy(clip=1.0, sigma=0.0)
    rng = generator(1, "noise")
    assert torch.allclose(local_dp(long, only_clips, rng), torch.tensor([0.6, 0.8]))
    assert torch.equal(local_dp(short, only_clips, rng), short)
    assert torch.equal(local_dp(torch.zeros(3), only_clips, rng), torch.zeros(3))
    # Squares that do not fit 32 bits.
    huge = local_dp(torch.tensor([3e38, 0.0]), only_clips, rng)
    assert torch.allclose(huge, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_stays_so(bad: float) -> None:
    update = torch.tensor([1.0, bad])
    found = local_dp(update, Privacy(1.0, 1.0), generator(1, "noise"))
    assert not torch.isfinite(found).all()


def test_the_noise_is_gaussian_of_sigma_times_clip() -> None:
    found = local_dp(torch.zeros(20_000), Privacy(clip=2.0, sigma=0.5), generator(2, "noise"))
    assert kstest(found.numpy().astype(np.float64), "norm").pvalue > 0.01
    where = torch.tensor([1, 3])
    some = local_dp(torch.zeros(5), Privacy(2.0, 0.5), generator(1, "noise"), where)
    assert (some != 0).tolist() == [False, True, False, True, False]


def test_the_noise_is_that_of_client_and_visit() -> None:
    layout, delta = make_bench().layout, torch.zeros(21)

    def noise(client: int, visit: tuple[int, ...], layers: Any = None, seed: int = 3) -> Tensor:
        return noised(layout, Privacy(1.0, 1.0), delta, layers, seed, client, visit)

    assert torch.equal(noise(1, (0, 0)), noise(1, (0, 0)))
    different = [noise(1, (0, 0)), noise(2, (0, 0)), noise(1, (1, 0)), noise(1, (0, 0), seed=4)]
    assert len({tuple(found.tolist()) for found in different}) == 4
    assert torch.equal(noise(1, (0, 0), layers=("nothing",)), delta)


def test_a_private_update_is_the_update_clipped_and_noised(tmp_path: Path) -> None:
    found = {}
    for name, privacy in (("plain", None), ("private", Privacy(0.01, 0.5))):
        with one_thread():
            life = Life(tmp_path / name, replace(PLAIN, privacy=privacy))
            update, _ = life.learner.train(life.learner.initial(), None, 2, (4, 1))
            found[name] = update.id, life.learner.tensors(update)["delta"]
            life.close()
    (plain_id, plain), (private_id, private) = found["plain"], found["private"]
    assert plain_id != private_id
    noise = torch.from_numpy(generator(3, "local dp", 2, 4, 1).normal(0.0, 0.005, len(plain)))
    assert float(plain.norm()) > 0.01
    assert torch.allclose(private, plain * (0.01 / plain.norm()) + noise.float(), atol=1e-7)


def test_of_a_chain_what_its_last_client_sends_is_noised(tmp_path: Path) -> None:
    with one_thread():
        life = Life(tmp_path, replace(PLAIN, chains=True, privacy=Privacy(0.01, 0.0)))
        of = life.learner
        server = of.initial()
        first, _ = of.train(server, None, 0, (0, 0, 0))
        last, _ = of.train(first, None, 1, (0, 0, 0))
        sent = of.leaving(server, last, 1, (0, 0))
        delta = of.tensors(of.chain_update(server, sent))["delta"]
        whole = of.tensors(of.chain_update(server, last))["delta"]
        life.close()
    assert float(whole.norm()) > 0.02
    assert float(delta.norm()) == pytest.approx(0.01, rel=1e-4)
    assert torch.allclose(delta / delta.norm(), whole / whole.norm(), atol=1e-4)


def test_without_privacy_a_model_leaves_as_it_is(tmp_path: Path) -> None:
    life = Life(tmp_path, replace(PLAIN, chains=True))
    server = life.learner.initial()
    last, _ = life.learner.train(server, None, CLIENTS - 1, (0, 0, 0))
    assert life.learner.leaving(server, last, CLIENTS - 1, (0, 0)) is last
    life.close()


# --- the accountant -------------------------------------------------------------------------------


def budget(epsilon: float, reports: int, rate: float | None = None) -> LocalDp:
    return LocalDp(
        kind="gaussian", clip=1.0, epsilon=epsilon, delta=1e-6, reports=reports, sampling_rate=rate
    )


def exact_sigma(epsilon: float, delta: float, reports: int) -> float:
    """Balle and Wang (2018), theorem 8; n Gaussian mechanisms are one of sigma / √n."""

    def excess(sigma: float) -> float:
        m = 1.0 / sigma
        above = norm.cdf(m / 2 - epsilon / m)
        return float(above - math.exp(epsilon) * norm.cdf(-m / 2 - epsilon / m) - delta)

    return math.sqrt(reports) * float(brentq(excess, 0.05, 50.0))


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("reports", [1, 50])
def test_sigma_is_enough_and_not_much_more(epsilon: float, reports: int) -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    found = noise_multiplier(budget(epsilon, reports))
    assert 1.0 <= found / exact_sigma(epsilon, 1e-6, reports) < 1.08


def test_auxos_figures_are_those_of_sampling() -> None:
    """sigma 1.0, 0.77 and 0.6 for epsilon 2, 4 and 8: 500 rounds that ask one client in 100."""
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    found = [noise_multiplier(budget(epsilon, 500, 0.01)) for epsilon in (2.0, 4.0, 8.0)]
    assert found == pytest.approx([1.0, 0.77, 0.6], rel=0.02)


def test_a_given_sigma_needs_no_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert noise_multiplier(LocalDp(kind="gaussian", clip=1.0, sigma=0.77)) == 0.77
    with pytest.raises(ScenarioError, match=r"pip install 'fedclock\[privacy\]', or say sigma"):
        noise_multiplier(budget(3.21, 7))


# --- processes that fail --------------------------------------------------------------------------


def failures_of(section: ScriptedFailures | ExponentialFailures, until_s: float) -> list[float]:
    """The instants of failures and restarts."""
    clock, found = Clock(), list[float]()
    process = ServerProcess(
        clock, section, 1, "somebody", lambda: found.append(clock.now),
        lambda: found.append(clock.now),
    )  # fmt: skip
    clock.at(until_s, 1, action=lambda: None)  # type: ignore[call-overload]
    clock.run_until(until_s)
    assert process.up == (len(found) % 2 == 0)
    return found


def test_scripted_failures() -> None:
    section = ScriptedFailures(kind="scripted", at=(5.0, 30.0), restart=10.0)
    assert failures_of(section, 100.0) == [5.0, 15.0, 30.0, 40.0]


def test_exponential_failures() -> None:
    section = ExponentialFailures(kind="exponential", mean=7.0, restart=2.0)
    found = np.array(failures_of(section, 9_000.0))
    up_s = np.diff(np.r_[0.0, found])[::2]
    down_s = np.diff(found)[::2]
    assert down_s == pytest.approx(2.0)
    assert len(up_s) > 900
    assert kstest(up_s, "expon", args=(0, 7.0)).pvalue > 0.01


def test_a_process_without_a_world_fails_no_more() -> None:
    clock, failed = Clock(), list[float]()
    ServerProcess(clock, ScriptedFailures(kind="scripted", at=(5.0,), restart=1.0), 1, "somebody",
                  lambda: failed.append(clock.now), lambda: None)  # fmt: skip
    assert not clock.run_until(100.0)
    assert failed == []


# --- records --------------------------------------------------------------------------------------


def test_liars_say_the_other_side_and_lost_records_say_nothing() -> None:
    lost: list[int] = []
    never = Exploration(0.0, 1.0, 0.0)

    def told(loss: float, liars: tuple[int, ...], share: float = 1.0) -> Any:
        records = Records(never, 1, loss, share, liars, lost.append)
        for client in (3, 4):
            records.write(
                client, lambda a: a.feedback("c0", 1.0, 1, ("c0.0", "c0.1", "c0"), predict="none")
            )
            records.deliver(client)
        return records

    honest, liar = (told(0.0, (4,)).request(client) for client in (3, 4))
    assert (honest.cohort, honest.side) == ("c0", 1)
    assert (liar.cohort, liar.side) == ("c0", 0)
    records = told(1.0, ())
    assert records.request(3).cohort is None
    assert records.request(3).cohort is None  # nothing is left to lose
    assert lost == [3]
    assert records.home(4, Tree()) == "c0"
    records = told(1.0, (), share=0.0)
    assert records.request(3).cohort == "c0"


# --- what is counted, and what is taken back ------------------------------------------------------


def test_a_report_is_what_has_left_its_client() -> None:
    named: list[tuple[str, int]] = []

    class Log:
        def event(self, t_s: float, event: str, entity: str, reports: int) -> None:
            named.append((entity, reports))

    def task(client: int, chain: int | None = None, **what: Any) -> Any:
        return SimpleNamespace(
            **{"client": client, "chain": chain, "outcome": None, "phase": "training",
               "ended_s": 1.0} | what
        )  # fmt: skip

    reports = Reports(2, Log())  # type: ignore[arg-type]
    for _ in range(2):
        reports.ended(task(0))
        reports.ended(task(1, outcome=Outcome.DROPPED_UPLOAD))
        reports.ended(task(2, chain=7))  # two turns of one chain
    reports.ended(task(2, chain=7, phase="delivery"))
    assert named == []
    for _ in range(2):
        reports.ended(task(0))
    for chain in (8, 9):
        reports.ended(task(2, chain=chain))
    assert named == [("client/0", 3), ("client/2", 3)]


def test_the_state_behind_a_report_that_is_lost_goes_back() -> None:
    def task(client: int, state: str | None, before: str | None) -> Any:
        return SimpleNamespace(client=client, state=state, state_before=before)

    tasks: Any = SimpleNamespace(states={1: "second", 2: "only", 3: "elsewhere"})
    Tasks.take_back(tasks, task(1, "second", "first"))
    Tasks.take_back(tasks, task(1, "first", None))
    Tasks.take_back(tasks, task(2, "only", "kept"))
    Tasks.take_back(tasks, task(3, "here", None))  # another cohort has had its report since
    Tasks.take_back(tasks, task(4, None, None))
    assert tasks.states == {2: "kept", 3: "elsewhere"}
