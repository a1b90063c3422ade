"""Identity: an id depends on every ingredient of a result, and on nothing else."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.learning import setting
from emulator.learning.learner import Learner, Learning
from emulator.learning.lineage import Handle, Operation, canonical, identity
from emulator.learning.method import Method
from emulator.learning.training import Recipe
from emulator.scenario import load_scenario

RECIPE = Recipe(
    epochs=2, steps=None, batch_size=8, lr=0.1, momentum=0.0, weight_decay=0.0, pad=False
)
METHOD = Method(
    root="root",
    seed=7,
    clients=10,
    test_samples=30,
    recipe=RECIPE,
    objective={"kind": "fedprox", "mu": 0.1},
    server_optimizer={"kind": "average", "lr": 1.0},
    normalise="weights",
)
SCAFFOLD = replace(METHOD, objective={"kind": "scaffold", "option": "II"})


def learner(method: Method = METHOD, position: int = 0) -> Learner:
    """A learner that learns nothing: ids need no tensor."""
    return Learner(method, None, lambda: position)


def a_training(method: Method = METHOD, **changes: Any) -> str:
    """The id of one training, with one thing about it changed."""
    of = {"server": "s", "state": None, "client": 3, "visit": (4, 0), **changes}
    state = None if of["state"] is None else Handle(of["state"], None)
    update, _ = learner(method).train(Handle(of["server"], None), state, of["client"], of["visit"])
    return update.id


def an_aggregation(method: Method = METHOD, **changes: Any) -> str:
    of = {
        "server": "s",
        "updates": ("a", "b"),
        "weights": (1.0, 2.0),
        "discounts": (1.0, 0.5),
        **changes,
    }
    updates = [Handle(name, None) for name in of["updates"]]
    made = learner(method).aggregate(
        Handle(of["server"], None), updates, of["weights"], of["discounts"]
    )
    return made.id


# --- trainings ----------------------------------------------------------------------------------

OTHER_TRAININGS: dict[str, dict[str, Any]] = {
    "base": {"server": "other"},
    "state": {"state": "k"},
    "another state": {"state": "l"},
    "client": {"client": 4},
    "version of the visit": {"visit": (5, 0)},
    "repetition of the visit": {"visit": (4, 1)},
    "longer visit": {"visit": (4, 0, 0)},
    "seed": {"method": replace(METHOD, seed=8)},
    "epochs": {"method": replace(METHOD, recipe=replace(RECIPE, epochs=3))},
    "steps": {"method": replace(METHOD, recipe=replace(RECIPE, epochs=None, steps=2))},
    "batch size": {"method": replace(METHOD, recipe=replace(RECIPE, batch_size=9))},
    "rate": {"method": replace(METHOD, recipe=replace(RECIPE, lr=0.1 + 1e-17 + 1e-16))},
    "momentum": {"method": replace(METHOD, recipe=replace(RECIPE, momentum=0.9))},
    "weight decay": {"method": replace(METHOD, recipe=replace(RECIPE, weight_decay=1e-4))},
    "padding": {"method": replace(METHOD, recipe=replace(RECIPE, pad=True))},
    "mu": {"method": replace(METHOD, objective={"kind": "fedprox", "mu": 0.2})},
    "objective": {"method": replace(METHOD, objective={"kind": "plain"})},
    "scaffold": {"method": SCAFFOLD},
    "option": {"method": replace(METHOD, objective={"kind": "scaffold", "option": "I"})},
}


def test_a_training_depends_on_every_ingredient() -> None:
    ids = {name: a_training(**changes) for name, changes in OTHER_TRAININGS.items()}
    ids["unchanged"] = a_training()
    assert len(set(ids.values())) == len(ids), ids


def test_a_training_depends_on_nothing_else() -> None:
    # What concerns merging and measuring is no part of a training: these are shared by runs that
    # differ in it.
    for method in (
        replace(METHOD, server_optimizer={"kind": "fedyogi", "lr": 0.1}),
        replace(METHOD, normalise="discounted"),
        replace(METHOD, test_samples=99),
        replace(METHOD, objective={"mu": 0.1, "kind": "fedprox"}),
    ):
        assert a_training(method) == a_training()


def test_update_and_state_are_two_outputs_of_one_operation() -> None:
    update, state = learner(SCAFFOLD).train(Handle("s", None), None, 3, (4, 0))
    assert state is not None
    assert update.id != state.id
    assert update.id.partition(".")[0] == state.id.partition(".")[0]
    assert learner().train(Handle("s", None), None, 3, (4, 0))[1] is None


# --- aggregations and the root ------------------------------------------------------------------

OTHER_AGGREGATIONS: dict[str, dict[str, Any]] = {
    "base": {"server": "other"},
    "an update": {"updates": ("a", "c")},
    "one update fewer": {"updates": ("a",), "weights": (1.0,), "discounts": (1.0,)},
    "weights": {"weights": (1.0, 3.0)},
    "weights the other way round": {"weights": (2.0, 1.0)},
    "discounts": {"discounts": (1.0, 0.25)},
    "weights and discounts exchanged": {"weights": (1.0, 0.5), "discounts": (1.0, 2.0)},
    "normalise": {"method": replace(METHOD, normalise="discounted")},
    "server rate": {"method": replace(METHOD, server_optimizer={"kind": "average", "lr": 0.5})},
    "server optimizer": {
        "method": replace(METHOD, server_optimizer={"kind": "fedyogi", "lr": 1.0})
    },
    "population": {"method": replace(METHOD, clients=11)},
    # The caller puts updates in canonical order; sums in another order have other bits.
    "order": {"updates": ("b", "a"), "weights": (2.0, 1.0), "discounts": (0.5, 1.0)},
}


def test_an_aggregation_depends_on_every_ingredient() -> None:
    ids = {name: an_aggregation(**changes) for name, changes in OTHER_AGGREGATIONS.items()}
    ids["unchanged"] = an_aggregation()
    assert len(set(ids.values())) == len(ids), ids


def test_an_aggregation_depends_on_nothing_else() -> None:
    # How the updates came about is in their own ids.
    for method in (
        replace(METHOD, seed=8),
        replace(METHOD, recipe=replace(RECIPE, lr=0.5)),
        replace(METHOD, objective={"kind": "plain"}),
        replace(METHOD, test_samples=99),
        replace(METHOD, server_optimizer={"lr": 1.0, "kind": "average"}),
    ):
        assert an_aggregation(method) == an_aggregation()


def chain(of: Learner) -> list[str]:
    """The ids of two versions."""
    server, ids = of.initial(), []
    for version in range(2):
        updates = [of.train(server, None, client, (version, 0))[0] for client in (1, 2)]
        server = of.aggregate(server, updates, (1.0, 1.0), (1.0, 1.0))
        ids += [update.id for update in updates] + [server.id]
    return ids


def test_the_root_is_in_every_id_that_rests_on_it() -> None:
    one, other = chain(learner()), chain(learner(replace(METHOD, root="another data set")))
    assert set(one).isdisjoint(other)
    assert len(set(one)) == len(one)


def test_neither_position_nor_learner_nor_host_is_part_of_an_id() -> None:
    assert chain(learner(position=0)) == chain(learner(position=12345))


class NoMemo:
    """Nothing was ever computed."""

    sequence = 0
    pending: frozenset[str] = frozenset()

    def has(self, handle_id: str) -> bool:
        return False


def test_a_timing_only_run_has_the_ids_of_a_run_that_learns() -> None:
    learning = Learning(None, NoMemo(), torch.zeros(3), False)  # type: ignore[arg-type]
    for method in (METHOD, SCAFFOLD):
        assert chain(Learner(method, learning, lambda: 0)) == chain(learner(method))


SCENARIO = """
schema: 1
name: roots
seed: 1
stop: {sim_time: 1 h}
task:
  dataset: {kind: digits}
  clients: 5
  partition: {kind: dirichlet, alpha: 1.0}
  model: {kind: logistic}
system:
  devices: {kind: scripted, training: 10 s}
  availability: {kind: always}
  network: {kind: none}
local: {epochs: 1, batch_size: 16, optimizer: {kind: sgd, lr: 0.1}}
federation:
  pacing: {kind: synchronous, participants: 5, deadline: none}
evaluation: {every: {versions: 5}}
"""


def test_what_the_root_of_a_scenario_rests_on(tmp_path: Path) -> None:
    path = tmp_path / "roots.yaml"
    path.write_text(SCENARIO)

    def root(*overrides: str) -> str:
        return setting.build(load_scenario(path, overrides)[0]).root

    roots = [
        root(),
        root("seed=2"),
        root("task.clients=6", "federation.pacing.participants=6"),
        root("task.partition.alpha=2.0"),
        root("task.model={kind: mlp, hidden: [4]}"),
        root("task.model={kind: mlp, hidden: [5]}"),
    ]
    assert len(set(roots)) == len(roots)
    # The clock's inputs, and all that ids of operations name by themselves, are no part of it.
    same = (
        "name=other",
        "system.devices.training=99",
        "stop.sim_time=7200",
        "local.epochs=3",
        "federation.pacing.participants=2",
        "evaluation.every.versions=1",
        "execution.executor=processes",
    )
    assert {root(change) for change in same} == {roots[0]}


# --- identity and canonical text ----------------------------------------------------------------


def test_identity_keeps_parts_apart() -> None:
    ids = {
        identity("train", "a", "b"),
        identity("train", "ab"),
        identity("train", "b", "a"),
        identity("traina", "b"),
        identity("train", "a", "b", ""),
        identity("train", 1, 23),
        identity("train", 12, 3),
    }
    assert len(ids) == 7
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in ids)
    assert identity("train", "a", 1) == identity("train", "a", 1)


def test_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"a": 1, "b": {"c": 2, "d": 3}}) == canonical({"b": {"d": 3, "c": 2}, "a": 1})
    assert canonical({"a": 1}) != canonical({"a": 2})
    assert canonical({"a": 0.1}) != canonical({"a": 0.1 + 1e-16})


# --- handles ------------------------------------------------------------------------------------


def test_a_computed_handle_lets_its_past_go() -> None:
    base = Handle("base", None)
    operation = Operation("train", "t", (base,), None)
    handle = Handle("t.update", operation)
    assert repr(handle) == "<Handle t.update pending>"
    past = weakref.ref(base)
    del base, operation
    gc.collect()
    assert past() is not None

    handle.resolve({"delta": torch.zeros(1)})
    gc.collect()
    assert past() is None
    assert repr(handle) == "<Handle t.update computed>"
    assert repr(Handle("x", None)) == "<Handle x bare>"


@pytest.mark.parametrize("learns", [False, True])
def test_a_chain_of_ids_keeps_no_history_without_learning(learns: bool) -> None:
    """A timing-only run of a million versions must not hold a million handles."""
    learning = Learning(None, NoMemo(), torch.zeros(3), False) if learns else None  # type: ignore[arg-type]
    of = Learner(METHOD, learning, lambda: 0)
    server = of.initial()
    first = weakref.ref(server)
    for version in range(3):
        update, _ = of.train(server, None, 0, (version, 0))
        server = of.aggregate(server, [update], (1.0,), (1.0,))
    del update
    gc.collect()
    assert (first() is not None) == learns
