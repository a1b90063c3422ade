"""The learner: nothing runs before it must, nothing twice, and a killed run goes on from disk."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator.learning import learner as learner_module
from emulator.learning.executors.inline import Inline
from emulator.learning.learner import Learner, Learning
from emulator.learning.lineage import Handle, Tensors
from emulator.learning.memo import CacheLost, Memo
from emulator.learning.method import Method
from emulator.learning.models import build_model
from emulator.learning.operations import Workbench, one_thread, torch_stream
from emulator.learning.training import Layout, Recipe, evaluate

CLIENTS = 5
RECIPE = Recipe(
    epochs=1, steps=None, batch_size=4, lr=0.1, momentum=0.0, weight_decay=0.0, pad=False
)
PLAIN = Method(
    root="random data, logistic",
    seed=3,
    clients=CLIENTS,
    test_samples=40,
    recipe=RECIPE,
    objective={"kind": "plain"},
    server_optimizer={"kind": "average", "lr": 1.0},
    normalise="weights",
)
SCAFFOLD = replace(PLAIN, objective={"kind": "scaffold", "option": "II"})
YOGI = replace(
    SCAFFOLD,
    server_optimizer={
        "kind": "fedyogi",
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": 1e-3,
        "v0": 1e-6,
    },
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with one_thread():
        yield


def make_bench(spoiled: Sequence[int] = (), test_samples: int = 40) -> Workbench:
    """Ten samples a client; those of ``spoiled`` clients are infinite, so their updates are not
    finite."""
    rng = np.random.default_rng(0)
    n = CLIENTS * 10
    x = rng.random((n, 6), dtype=np.float32)
    parts = [np.arange(c * 10, (c + 1) * 10) for c in range(CLIENTS)]
    for client in spoiled:
        x[parts[client]] = np.inf
    with torch_stream(3, "initialization"):
        model = build_model("logistic", (6,), 3)
    return Workbench(
        Layout(model, torch.device("cpu")),
        torch.from_numpy(x),
        torch.from_numpy(rng.integers(0, 3, n)),
        torch.from_numpy(rng.random((test_samples, 6), dtype=np.float32)),
        torch.from_numpy(rng.integers(0, 3, test_samples)),
        parts,
    )


@dataclass
class Life:
    """One process's life with a run directory. ``position`` stands for the length of its log."""

    directory: Path
    method: Method = PLAIN
    bench: Workbench | None = None
    keep_versions: bool = False

    def __post_init__(self) -> None:
        bench = self.bench or make_bench()
        initial = bench.layout.flatten()
        self.memo = Memo(self.directory, {}, None, 1e9)
        self.learning = Learning(Inline(bench), self.memo, initial, self.keep_versions)
        self.start_over()

    def start_over(self) -> None:
        """Simulate from the start of the log, with the memo as it is."""
        self.position = 0
        self.learner = Learner(self.method, self.learning, lambda: self.position)

    @property
    def count(self) -> dict[str, int]:
        return self.learner.host.count

    def close(self) -> None:
        self.memo.close()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Makes lives, by default in one directory, and ends them."""
    begun: list[Life] = []

    def begin(method: Method = PLAIN, **options: Any) -> Life:
        name = options.pop("name", "run")
        life = Life(tmp_path / name, method, **options)
        begun.append(life)
        return life

    yield begin
    for life in begun:
        life.close()


def version(of: Learner, server: Handle, clients: Sequence[int], number: int) -> Handle:
    """One round of plain training."""
    updates = [of.train(server, None, client, (number, 0))[0] for client in clients]
    return of.aggregate(server, updates, [10.0] * len(updates), [1.0] * len(updates))


def model(of: Learner, server: Handle) -> Tensor:
    return of.tensors(server)["model"]


# --- laziness -----------------------------------------------------------------------------------


def test_nothing_runs_until_a_value_is_asked_for(lives: Callable[..., Life]) -> None:
    life = lives()
    server = life.learner.initial()
    for number in range(3):
        server = version(life.learner, server, range(CLIENTS), number)
    assert life.count == {}
    assert server.tensors is None
    values = life.learner.evaluate(server)
    assert values is not None
    assert life.count == {"initial": 1, "train": 15, "aggregate": 3, "evaluate": 1}
    assert set(life.learner.host.seconds) == set(life.count)
    assert all(seconds > 0 for seconds in life.learner.host.seconds.values())


def test_a_discarded_update_is_never_trained(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    server = of.initial()
    straggler, _ = of.train(server, None, 4, (0, 0))
    unheld = straggler.id
    server = version(of, server, (0, 1), 0)
    late, _ = of.train(server, None, 4, (1, 0))  # still under way, and held
    del straggler
    server = version(of, server, (0, 1), 1)
    of.evaluate(server)
    assert life.count["train"] == 4
    assert late.tensors is None
    assert life.memo.value(unheld.partition(".")[0]) is None


def test_every_value_is_computed_once(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    first = version(of, of.initial(), (0, 1), 0)
    one = of.evaluate(first)
    second = version(of, first, (0, 1), 1)
    two = of.evaluate(second)
    assert life.count == {"initial": 1, "train": 4, "aggregate": 2, "evaluate": 2}
    assert (of.evaluate(first), of.evaluate(second)) == (one, two)
    model(of, second)
    assert life.count == {"initial": 1, "train": 4, "aggregate": 2, "evaluate": 2}
    assert one != two


def test_equal_operations_share_one_handle(lives: Callable[..., Life]) -> None:
    life = lives(SCAFFOLD)
    of = life.learner
    server = of.initial()
    assert of.initial() is server
    update, state = of.train(server, None, 2, (0, 0))
    assert of.train(server, None, 2, (0, 0)) == (update, state)
    assert of.train(server, None, 2, (0, 1))[0] is not update
    merged = of.aggregate(server, [update], [1.0], [1.0])
    assert of.aggregate(server, [update], [1.0], [1.0]) is merged
    model(of, merged)
    assert life.count["train"] == 1
    assert of.train(server, None, 2, (0, 0))[0] is update
    assert update.tensors is not None


def test_shared_ancestors_run_once_in_one_forcing(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    base = version(of, of.initial(), (0, 1), 0)
    left, right = version(of, base, (2,), 1), version(of, base, (3,), 1)
    both = of.aggregate(
        base, [of.train(h, None, 4, (2, 0))[0] for h in (left, right)], [1, 1], [1, 1]
    )
    of.evaluate(both)
    assert life.count == {"initial": 1, "train": 6, "aggregate": 4, "evaluate": 1}


def test_a_forcing_runs_only_what_it_needs(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    first = version(of, of.initial(), (0, 1), 0)
    second = version(of, first, (2, 3), 1)
    of.evaluate(first)
    assert life.count["train"] == 2
    assert second.tensors is None
    of.evaluate(second)
    assert life.count["train"] == 4


def test_a_deep_history_needs_no_recursion(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    server = of.initial()
    for _ in range(3000):
        server = of.aggregate(server, [], [], [])
    assert of.evaluate(server) == of.evaluate(of.initial())
    assert life.count["aggregate"] == 3000


def test_the_past_is_let_go(lives: Callable[..., Life]) -> None:
    """Neither handles nor tensors of old versions stay once newer ones are computed."""
    of = lives().learner
    server = of.initial()
    past = [weakref.ref(server)]
    for number in range(4):
        update, _ = of.train(server, None, 0, (number, 0))
        server = of.aggregate(server, [update], [1.0], [1.0])
        past += [weakref.ref(update), weakref.ref(server)]
        of.evaluate(server)
    del update
    gc.collect()
    assert [ref() for ref in past if ref() is not None] == [server]


def test_a_frozen_base_does_not_move(lives: Callable[..., Life]) -> None:
    """An update rests on the model of its dispatch, whenever it is computed."""
    early, late = lives(name="early"), lives(name="late")
    deltas = []
    for life, at_once in ((early, True), (late, False)):
        of = life.learner
        base = of.initial()
        update, _ = of.train(base, None, 4, (0, 0))
        if at_once:
            of.tensors(update)
        newest = version(of, version(of, base, (0, 1), 0), (2, 3), 1)
        of.evaluate(newest)
        deltas.append(of.tensors(update)["delta"])
    assert torch.equal(deltas[0], deltas[1])


# --- values -------------------------------------------------------------------------------------


def test_evaluation_gives_the_values_of_the_model(lives: Callable[..., Life]) -> None:
    bench = make_bench()
    life = lives(bench=bench)
    server = version(life.learner, life.learner.initial(), (0, 1), 0)
    values = life.learner.evaluate(server)
    sums = evaluate(bench.layout, model(life.learner, server), bench.test_x, bench.test_y)
    assert values == {
        "accuracy": sums["correct"] / 40,
        "loss": sums["loss"] / 40,
        "n": 40,
    }


def test_a_large_test_set_is_evaluated_in_shards(lives: Callable[..., Life]) -> None:
    n = 2 * learner_module.EVALUATION_SHARD + 300
    bench = make_bench(test_samples=n)
    life = lives(replace(PLAIN, test_samples=n), bench=bench)
    values = life.learner.evaluate(life.learner.initial())
    assert life.count == {"initial": 1, "evaluate": 3}
    sums = evaluate(
        bench.layout, model(life.learner, life.learner.initial()), bench.test_x, bench.test_y
    )
    assert values is not None
    assert values["n"] == n
    assert values["accuracy"] == sums["correct"] / n
    assert values["loss"] == pytest.approx(sums["loss"] / n, rel=1e-12)


def test_a_training_leaves_its_loss(lives: Callable[..., Life]) -> None:
    life = lives()
    update, _ = life.learner.train(life.learner.initial(), None, 1, (0, 0))
    operation_id = update.id.partition(".")[0]
    with pytest.raises(CacheLost):
        life.learner.values(operation_id)
    life.learner.tensors(update)
    values = life.learner.values(operation_id)
    assert values["steps"] == 3  # ten samples in batches of four
    assert values["finite"] is True
    assert 0 < values["loss"] < 10


def test_a_timing_only_learner_has_no_values() -> None:
    of = Learner(SCAFFOLD, None, lambda: 0)
    server = of.initial()
    update, state = of.train(server, None, 0, (0, 0))
    server = of.aggregate(server, [update], [1.0], [1.0])
    assert state is not None
    assert not of.learns
    assert of.evaluate(server) is None
    of.checkpoint(force=True)


def test_operations_run_on_one_thread(lives: Callable[..., Life]) -> None:
    bench = make_bench()
    seen = set()
    bench.layout.model.register_forward_pre_hook(
        lambda _module, _args: seen.add(torch.get_num_threads())
    )
    life = lives(bench=bench)
    torch.set_num_threads(2)
    try:
        life.learner.evaluate(version(life.learner, life.learner.initial(), (0, 1), 0))
        assert seen == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# --- client state -------------------------------------------------------------------------------


def test_update_and_state_come_from_one_training(lives: Callable[..., Life]) -> None:
    life = lives(SCAFFOLD)
    of = life.learner
    server = of.initial()
    update, state = of.train(server, None, 0, (0, 0))
    assert state is not None
    server = of.aggregate(server, [update], [10.0], [1.0])
    of.evaluate(server)
    assert state.tensors is not None
    assert update.tensors is not None
    assert life.count["train"] == 1
    # c_k was zero, so the change that travels is the new control variate.
    assert torch.equal(state.tensors["control"], update.tensors["control_change"])
    assert torch.allclose(of.tensors(server)["control"], state.tensors["control"] / CLIENTS)
    of.tensors(state)
    assert life.count["train"] == 1


def test_a_state_alone_is_enough_to_need_its_training(lives: Callable[..., Life]) -> None:
    """The update was merged and evaluated in no version, yet the client's next visit needs it."""
    life = lives(SCAFFOLD)
    of = life.learner
    server = of.initial()
    _, state = of.train(server, None, 0, (0, 0))
    again, after = of.train(server, state, 0, (0, 1))
    assert after is not None
    del state
    of.tensors(again)
    assert life.count["train"] == 2
    assert after.tensors is not None


def test_a_dropped_state_does_not_make_a_second_training(lives: Callable[..., Life]) -> None:
    """Equal ids are one operation, even when one of its two handles was let go in between."""
    life = lives(SCAFFOLD)
    of = life.learner
    server = of.initial()
    update, state = of.train(server, None, 0, (0, 0))
    del state
    gc.collect()
    again, _ = of.train(server, None, 0, (0, 0))
    other, _ = of.train(server, None, 1, (0, 0))
    merged = of.aggregate(server, [update, other], [1.0, 3.0], [1.0, 1.0])
    of.tensors(again)
    model(of, merged)
    assert torch.equal(of.tensors(update)["delta"], of.tensors(again)["delta"])
    assert life.count["train"] == 2


# --- updates that are not finite ----------------------------------------------------------------


def merged_of(
    life: Life, clients: Sequence[int], weights: Sequence[float]
) -> tuple[Handle, list[Handle]]:
    of = life.learner
    server = of.initial()
    updates = [of.train(server, None, client, (0, 0))[0] for client in clients]
    return of.aggregate(server, updates, weights, [1.0] * len(clients)), updates


@pytest.mark.parametrize("method", [PLAIN, SCAFFOLD, YOGI])
def test_an_update_that_is_not_finite_is_left_out(
    lives: Callable[..., Life], method: Method
) -> None:
    """The weights of the others are renormalized: as if it had never come."""
    bench = make_bench(spoiled=[1])
    with_it, without = lives(method, bench=bench, name="a"), lives(method, bench=bench, name="b")
    merged, updates = merged_of(with_it, (0, 1, 2), (10.0, 20.0, 30.0))
    expected, _ = merged_of(without, (0, 2), (10.0, 30.0))
    got = with_it.learner.tensors(merged)
    wanted = without.learner.tensors(expected)
    assert set(got) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.isfinite(got[name]).all()
        assert torch.equal(got[name], tensor)
    assert with_it.learner.values(merged.id.partition(".")[0]) == {"nonfinite": [1]}
    assert without.learner.values(expected.id.partition(".")[0]) == {"nonfinite": []}
    finite = [with_it.learner.values(u.id.partition(".")[0])["finite"] for u in updates]
    assert finite == [True, False, True]


@pytest.mark.parametrize("method", [PLAIN, SCAFFOLD, YOGI])
def test_where_none_is_finite_the_model_stays(lives: Callable[..., Life], method: Method) -> None:
    life = lives(method, bench=make_bench(spoiled=[1, 2]))
    merged, _ = merged_of(life, (1, 2), (10.0, 20.0))
    of = life.learner
    before, after = of.tensors(of.initial()), of.tensors(merged)
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert of.values(merged.id.partition(".")[0]) == {"nonfinite": [0, 1]}
    assert of.evaluate(merged) == of.evaluate(of.initial())


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_client_whose_update_is_not_finite_keeps_its_control(
    lives: Callable[..., Life], option: str
) -> None:
    bench = make_bench()
    life = lives(replace(SCAFFOLD, objective={"kind": "scaffold", "option": option}), bench=bench)
    of = life.learner
    server = of.initial()
    update, state = of.train(server, None, 1, (0, 0))
    assert state is not None
    had = of.tensors(state)["control"].clone()
    assert torch.count_nonzero(had) > 0
    server = of.aggregate(server, [update], [10.0], [1.0])
    model(of, server)
    bench.train_x[bench.partition[1]] = torch.inf  # from now on its training diverges
    update, state = of.train(server, state, 1, (1, 0))
    assert state is not None
    assert torch.equal(of.tensors(state)["control"], had)
    control = of.tensors(server)["control"]
    after = of.aggregate(server, [update], [10.0], [1.0])
    assert torch.equal(of.tensors(after)["control"], control)


# --- checkpoints --------------------------------------------------------------------------------


def story(life: Life, until: int) -> Iterator[tuple[int, Handle, dict[int, Handle]]]:
    """A buffered run with two updates a version, always one straggler from two versions ago, and
    an evaluation every third version. One position an operation, as a log would have it.

    Yields (version, server, client states) after each evaluation.
    """
    of = life.learner
    server = of.initial()
    states: dict[int, Handle] = {}
    flying: list[tuple[int, int, Handle, Handle | None]] = []
    turn = 0
    for number in range(until):
        while len(flying) < 3:
            client = turn % CLIENTS
            update, state = of.train(server, states.get(client), client, (number, 0))
            flying.append((client, number, update, state))
            turn += 1
            life.position += 1
        taken, flying = flying[:2], flying[2:]
        for client, _, _, state in taken:
            if state is not None:
                states[client] = state
        taken.sort(key=lambda t: t[0])
        server = of.aggregate(
            server,
            [t[2] for t in taken],
            [10.0 + t[0] for t in taken],
            [(1 + number - t[1]) ** -0.5 for t in taken],
        )
        del taken, update, state
        life.position += 1
        if number % 3 == 2:
            life.position += 1
            of.evaluate(server)
            yield number, server, states


def run_story(life: Life, until: int = 12, checkpoint_at: int | None = None) -> dict[str, Any]:
    """All that the run leaves: values by version, and the tensors at its end. A checkpoint is
    written after the evaluation of version ``checkpoint_at``."""
    metrics: dict[int, Any] = {}
    end: Handle | None = None
    states: dict[int, Handle] = {}
    for number, server, states_now in story(life, until):
        metrics[number] = life.learner.evaluate(server)
        end, states = server, states_now
        if number == checkpoint_at:
            life.learner.checkpoint(force=True)
    assert end is not None
    of = life.learner
    return {
        "metrics": metrics,
        "server": of.tensors(end),
        "states": {client: of.tensors(state) for client, state in sorted(states.items())},
    }


def assert_same_tensors(got: Tensors, expected: Tensors) -> None:
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor)


def assert_same_run(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got["metrics"] == expected["metrics"]
    assert_same_tensors(got["server"], expected["server"])
    assert set(got["states"]) == set(expected["states"])
    for client, tensors in expected["states"].items():
        assert_same_tensors(got["states"][client], tensors)


@pytest.mark.parametrize("method", [PLAIN, SCAFFOLD, YOGI], ids=["plain", "scaffold", "yogi"])
@pytest.mark.parametrize("at", [2, 5, 8])
def test_a_resumed_run_is_the_run(lives: Callable[..., Life], method: Method, at: int) -> None:
    whole = lives(method, name="whole")
    expected = run_story(whole)
    assert whole.count["aggregate"] == 12

    first = lives(method)
    run_story(first, until=at + 1, checkpoint_at=at)
    before = dict(first.count)
    first.close()
    second = lives(method)
    assert second.memo.sequence == first.position
    assert_same_run(run_story(second), expected)
    # Nothing is computed twice, and nothing is left out.
    for kind, total in whole.count.items():
        assert before.get(kind, 0) + second.count.get(kind, 0) == total


def test_a_run_killed_beyond_its_checkpoint_goes_on_from_there(
    lives: Callable[..., Life],
) -> None:
    whole, first = lives(SCAFFOLD, name="whole"), lives(SCAFFOLD)
    expected = run_story(whole)
    run_story(first, until=11, checkpoint_at=5)
    first.close()
    second = lives(SCAFFOLD)
    assert second.memo.sequence < first.position
    assert_same_run(run_story(second), expected)
    assert second.count["aggregate"] == 6
    assert second.count["evaluate"] == 2


def test_a_finished_run_is_replayed_without_training_and_can_be_extended(
    lives: Callable[..., Life],
) -> None:
    first = lives(SCAFFOLD)
    expected = run_story(first, checkpoint_at=11)
    first.close()
    again = lives(SCAFFOLD)
    assert_same_run(run_story(again), expected)
    assert again.count == {}
    again.close()
    whole = lives(SCAFFOLD, name="whole")
    longer = run_story(whole, until=15)
    extended = lives(SCAFFOLD)
    assert_same_run(run_story(extended, until=15), longer)
    assert extended.count["train"] == whole.count["train"] - first.count["train"]


def test_replay_gives_bare_handles_up_to_the_checkpoint(lives: Callable[..., Life]) -> None:
    """Parents come only with what was pending there: the history would fill the memory."""
    first = lives(SCAFFOLD)
    of = first.learner
    server = of.initial()
    merged = of.train(server, None, 0, (0, 0))
    newer = of.aggregate(server, [merged[0]], [1.0], [1.0])
    flying = of.train(server, None, 1, (0, 0))
    dropped = of.train(server, None, 2, (0, 0))[0].id
    first.position = 10
    values = of.evaluate(newer)
    of.checkpoint(force=True)
    first.close()

    second = lives(SCAFFOLD)
    of = second.learner
    assert second.memo.sequence == 10
    server = of.initial()
    assert server.operation is None
    again = of.train(server, None, 0, (0, 0))
    assert again[0].id == merged[0].id
    assert [h.operation for h in again if h is not None] == [None, None]
    newest = of.aggregate(server, [again[0]], [1.0], [1.0])
    assert newest.operation is None
    pending = of.train(server, None, 1, (0, 0))
    assert pending[0].id == flying[0].id
    assert pending[0].operation is not None
    assert pending[1] is not None
    assert pending[1].operation is pending[0].operation
    assert pending[0].operation.inputs[0] is server
    lost = of.train(server, None, 2, (0, 0))
    assert lost[0].id == dropped
    assert lost[0].operation is None
    # Values come from the memo, and tensors from the checkpoint.
    assert of.evaluate(newest) == values
    assert second.count == {}
    of.tensors(pending[0])
    assert second.count == {"train": 1}
    second.position = 10
    assert of.train(server, None, 3, (0, 0))[0].operation is not None


def test_a_value_asked_for_before_the_checkpoint_is_lost_if_no_memo_has_it(
    lives: Callable[..., Life],
) -> None:
    """A replay that needs what was never computed starts over, without the checkpoint."""
    first = lives()
    merged = version(first.learner, first.learner.initial(), (0, 1), 0)
    newest = version(first.learner, merged, (0, 1), 1)
    first.position = 10
    first.learner.evaluate(newest)
    del merged
    first.learner.checkpoint(force=True)
    first.close()

    second = lives()
    of = second.learner
    merged = version(of, of.initial(), (0, 1), 0)
    with pytest.raises(CacheLost):
        of.evaluate(merged)
    with pytest.raises(CacheLost):
        of.tensors(merged)
    with pytest.raises(CacheLost):
        of.values("unknown")
    assert second.count == {}


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"torn")])
def test_a_lost_tensor_is_computed_again_in_full_mode(
    lives: Callable[..., Life], harm: Callable[[Path], Any]
) -> None:
    expected = run_story(lives(SCAFFOLD, name="whole"))
    first = lives(SCAFFOLD)
    run_story(first, until=8, checkpoint_at=5)  # killed after two more versions
    first.close()
    for path in (first.directory / "checkpoints").iterdir():
        harm(path)

    second = lives(SCAFFOLD)
    with pytest.raises(CacheLost):
        run_story(second)
    second.memo.forget_tensors()
    second.start_over()
    assert_same_run(run_story(second), expected)
    # Evaluations are small values: they were not lost.
    assert second.count["evaluate"] == 2
    assert second.count["aggregate"] == 12


def test_a_checkpoint_holds_what_is_alive_and_nothing_else(lives: Callable[..., Life]) -> None:
    life = lives(SCAFFOLD)
    of = life.learner
    server = of.initial()
    update, state = of.train(server, None, 0, (0, 0))
    assert state is not None
    newer = of.aggregate(server, [update], [1.0], [1.0])
    flying, _ = of.train(newer, state, 0, (1, 0))
    of.evaluate(newer)
    del server, update
    gc.collect()
    life.position = 4
    of.checkpoint(force=True)
    stored = {path.stem for path in (life.directory / "checkpoints").iterdir()}
    assert stored == {newer.id, state.id}
    life.close()
    again = Memo(life.directory, {})
    assert again.pending == {flying.id.partition(".")[0]}
    assert_same_tensors(again.load(state.id), of.tensors(state))
    again.close()


def test_checkpoints_come_when_due_and_never_during_replay(lives: Callable[..., Life]) -> None:
    life = lives()
    of = life.learner
    server = version(of, of.initial(), (0, 1), 0)
    of.evaluate(server)
    life.position = 5
    of.checkpoint()
    assert life.memo.sequence == 0
    assert list((life.directory / "checkpoints").iterdir()) == []
    life.memo.checkpoint_every_s = 0.0
    of.checkpoint()
    life.close()

    again = lives()
    again.memo.checkpoint_every_s = 0.0
    assert again.memo.sequence == 5
    server = version(again.learner, again.learner.initial(), (0, 1), 0)
    again.position = 4
    again.learner.checkpoint(force=True)
    again.close()
    last = lives()
    assert last.memo.sequence == 5
    assert last.memo.has(server.id)


def test_kept_versions_stay_when_nobody_holds_them(lives: Callable[..., Life]) -> None:
    life = lives(keep_versions=True)
    of = life.learner
    server, ids, models = of.initial(), [], []
    for number in range(3):
        server = version(of, server, (0, 1), number)
        ids.append(server.id)
        of.evaluate(server)
        models.append(model(of, server))
        life.position += 1
        of.checkpoint(force=True)
    life.close()
    memo = Memo(life.directory, {})
    for handle_id, expected in zip(ids, models, strict=True):
        assert torch.equal(memo.load(handle_id)["model"], expected)
    memo.close()


def test_another_run_reuses_what_a_memo_holds(lives: Callable[..., Life], tmp_path: Path) -> None:
    first = lives(keep_versions=True)
    of = first.learner
    server = version(of, version(of, of.initial(), (0, 1), 0), (2, 3), 1)
    values = of.evaluate(server)
    of.checkpoint(force=True)
    expected = model(of, server)
    first.close()

    memo = Memo(tmp_path / "other", {}, first.directory)
    bench = make_bench()
    other = Learner(PLAIN, Learning(Inline(bench), memo, bench.layout.flatten(), False), lambda: 0)
    one = version(other, other.initial(), (0, 1), 0)
    two = version(other, one, (2, 3), 1)
    assert other.evaluate(two) == values
    assert torch.equal(model(other, two), expected)
    assert other.host.count == {}
    # Where the runs part, only what is new is computed.
    other.evaluate(version(other, one, (4,), 1))
    assert other.host.count == {"train": 1, "aggregate": 1, "evaluate": 1}
