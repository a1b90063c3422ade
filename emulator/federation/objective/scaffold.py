"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates travel beside the model.

Down: the model and c. Up: the delta and c_k⁺ − c_k. Option I computes c_k⁺ by one more pass over
the client's samples at the server's model.
"""

from __future__ import annotations

from emulator.federation.cost import Cost
from emulator.federation.objective import Options
from emulator.scenario.schema import Scaffold


def scaffold(section: Scaffold) -> tuple[Options, Cost]:
    """Options for the learning plane, and the cost."""
    extra = 1 if section.option == "I" else 0
    options = {"kind": "scaffold", "option": section.option}
    return options, Cost(vectors_down=1, vectors_up=1, training_passes=extra)
