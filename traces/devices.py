"""Speeds of devices: milliseconds a sample, and kilobits a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError

COLUMNS = ("computation_ms_per_sample", "communication_kbps")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """One device a row; both columns float64 [rows], finite and > 0.

    ``computation_ms_per_sample`` is FedScale's ``computation``: inference time of one sample.
    ``communication_kbps`` is its ``communication``: 1 kbit/s is 125 bytes per second, the same
    number for both directions. Raises TraceError that names the row and the column. The arrays
    become read-only.
    """

    computation_ms_per_sample: NDArray[np.float64]
    communication_kbps: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in COLUMNS:
            values = np.ascontiguousarray(getattr(self, name), dtype=np.float64).view()
            if len(values) != len(self.computation_ms_per_sample):
                raise TraceError(
                    f"{len(self.computation_ms_per_sample)} devices have a computation speed, "
                    f"{len(values)} a communication speed; each needs both"
                )
            bad = ~(np.isfinite(values) & (values > 0))
            if bad.any():
                row = int(np.argmax(bad))
                raise TraceError(
                    f"device row {row}: {name} is {values[row]}; it must be finite and > 0"
                )
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    def take(self, rows: NDArray[np.int64]) -> DeviceTable:
        """The devices of these rows, in this order."""
        return DeviceTable(self.computation_ms_per_sample[rows], self.communication_kbps[rows])

    def __len__(self) -> int:
        """Number of devices."""
        return len(self.computation_ms_per_sample)
