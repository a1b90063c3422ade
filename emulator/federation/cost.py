"""What a method costs a client beyond plain federated averaging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Beside the model in each direction and the training itself: model-sized vectors, single
    values (of 4 bytes), and passes over the client's samples, forward and backward or forward
    only. The costs of an objective and of a server optimizer add up."""

    vectors_down: int = 0
    vectors_up: int = 0
    values_up: int = 0
    training_passes: int = 0
    forward_passes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.vectors_down + other.vectors_down,
            self.vectors_up + other.vectors_up,
            self.values_up + other.values_up,
            self.training_passes + other.training_passes,
            self.forward_passes + other.forward_passes,
        )
