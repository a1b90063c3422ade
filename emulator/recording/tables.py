"""The columns of the run directory's tables; they never change their names."""

from __future__ import annotations

VERSIONS = (
    "sim_time_s", "version", "cohort", "updates", "staleness_mean", "staleness_max",
    "round_duration_s", "bytes_down", "bytes_up",
)  # fmt: skip
UPDATES = (
    "client", "cohort", "version", "dispatched_s", "downloaded_s", "trained_s", "uploaded_s",
    "outcome", "staleness", "samples", "bytes_down", "bytes_up", "wasted_s",
)  # fmt: skip
METRICS = (
    "sim_time_s", "version", "cohort", "entity", "split", "metric", "value", "n",
)  # fmt: skip
CLIENTS = (
    "client", "participations", "reported", "accuracy", "online_s", "busy_s", "bytes",
)  # fmt: skip
