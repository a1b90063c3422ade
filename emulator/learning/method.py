"""What a run trains and how it merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.learning.clustering import Sketching
from emulator.learning.methods.auxo import RewardRule
from emulator.learning.methods.local_dp import Privacy
from emulator.learning.pretraining import Pretraining
from emulator.learning.training import Recipe

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """What a run trains and how it merges: the constants of its operations.

    ``root`` is the identity of the initial model (specification and seed) and of the data set
    (content and partition); ``batch_norm`` as in :class:`TrainConfig`; ``tested_clients`` have
    samples of their own to be tested on. ``chains``: a trained model goes on to another client;
    ``pretraining`` is what superclients are formed by. ``recipes`` are those of parts, by name;
    ``layers`` the model's, in forward order. ``sketching`` and ``rewards`` are what cohorts go by.
    ``privacy`` is that of each update, of a chain's where there are ``chains``; ``fine_tuning`` is
    what makes the model a client's own once the run is over.
    """

    root: str
    seed: int
    clients: int
    test_samples: int
    recipe: Recipe
    objective: Options
    server_optimizer: Options
    normalise: str
    batch_norm: str | None = None
    tested_clients: tuple[int, ...] = ()
    chains: bool = False
    pretraining: Pretraining | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    sketching: Sketching | None = None
    rewards: RewardRule | None = None
    privacy: Privacy | None = None
    fine_tuning: Recipe | None = None
