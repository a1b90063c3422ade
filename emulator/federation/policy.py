"""The scenario's choices that the server itself follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Times in simulated seconds. ``evaluate_every_hops`` counts superclients that walkers have
    left behind; ``merged_by_superclients`` takes FedDyn's h as a mean over superclients and not
    over clients; ``personalizes``: clients fine-tune the last model once the run is over."""

    root_seed: int
    weights: str
    drop_notice: str
    drop_timeout_s: float | None
    task_failure: float
    on_nonfinite: str
    stop_versions: int | None
    target_value: float | None
    target_sustain: int
    evaluate_every_versions: int | None
    evaluate_every_s: float | None
    evaluate_every_hops: int | None
    evaluate_clients: str
    merged_by_superclients: bool
    personalizes: bool
