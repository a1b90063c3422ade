"""The columns of the run directory's tables; they never change their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

VERSIONS = (
    "sim_time_s", "version", "cohort", "updates", "staleness_mean", "staleness_max",
    "round_duration_s", "bytes_down", "bytes_up",
)  # fmt: skip
UPDATES = (
    "client", "cohort", "version", "dispatched_s", "downloaded_s", "trained_s", "uploaded_s",
    "outcome", "staleness", "samples", "bytes_down", "bytes_up", "wasted_s",
)  # fmt: skip
CHAIN_COLUMNS = ("phase", "chain", "ring_pass", "source")
"""What ``updates.csv`` has beside with superclients: the task's place in a chain, and the client
that its model came from (none: the server)."""
PART_COLUMNS = (
    "part", "cross_staleness", "header_bytes", "control_bytes", "a_bytes_down", "b_bytes_down",
    "ab_bytes_down", "a_bytes_up", "b_bytes_up", "ab_bytes_up",
)  # fmt: skip
"""What ``updates.csv`` has beside where a model travels in parts: the part that was trained,
staleness in versions of the other part, and what ``bytes_down`` and ``bytes_up`` are made of;
headers and control messages are those of both directions. A pre-pass trains and sends all of the
model (``ab``), which then has no parts yet."""
LAYERS = ("version", "layer", "name", "parameters", "size_bytes", "divergence", "part")
CHAINS = (
    "chain", "walker", "superclient", "version", "dispatched_s", "uploaded_s", "outcome",
    "staleness", "samples", "trainings", "left_out",
)  # fmt: skip
SUPERCLIENTS = (
    "superclient", "clients", "samples", "balance_ratio", "covered_classes", "intra_distance",
    "inter_distance", "members",
)  # fmt: skip
SIMILARITY = ("epoch", "client", "other", "cosine")
COHORTS = (
    "cohort", "parent", "born_s", "split_s", "first_version", "last_version", "side_0", "side_1",
)  # fmt: skip
AFFINITY = ("sim_time_s", "cohort", "version", "client", "reward", "side", "margin")
CLUSTERING = (
    "sim_time_s", "cohort", "version", "participants", "known", "side_0", "side_1", "spread",
    "spread_of_sides", "loss", "correlation", "agreement", "unmet",
)  # fmt: skip
METRICS = (
    "sim_time_s", "version", "cohort", "entity", "split", "metric", "value", "n",
)  # fmt: skip
CLIENTS = (
    "client", "participations", "reported", "accuracy", "online_s", "busy_s", "bytes",
)  # fmt: skip
ONLINE = ("sim_time_s", "online", "of")
"""How many clients were online, of how many that were counted."""
SESSIONS = ("client", "start_s", "end_s")


def encode_rows(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows of numbers and plain words as lines of CSV; None and NaN leave their cell empty.

    Rows come by the million. ``csv`` writes a float in a microsecond; orjson, which also writes the
    shortest digits that give the number back, takes a tenth. Words must not hold a quote, a comma,
    a bracket, a backslash or ``null``: the program writes all of them itself.
    """
    text = orjson.dumps(rows)[2:-2].replace(b"],[", b"\n")
    return text.replace(b"null", b"").replace(b'"', b"") + b"\n"


def encode_lines(lines: Sequence[str]) -> bytes:
    """Lines of text."""
    return ("\n".join(lines) + "\n").encode()
