"""Which row of a trace each client gets."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError

Assignment = Literal["fedscale", "random", "stratified", "worst"]

Ints = NDArray[np.int64]

WORST_SHARE = 0.10


def assign_rows(
    kind: Assignment,
    uniforms: NDArray[np.float64],
    rows: int,
    duty: NDArray[np.float64] | None = None,
) -> Ints:
    """The row of each client, int64 [clients]; ``uniforms`` holds one draw in [0, 1) a client.

    - ``fedscale``: client c has row c. FedScale's behaviour file is sorted by falling total
      online time, so a small population sees the most available phones only.
    - ``random``: any row, drawn with replacement.
    - ``stratified``: rows sorted by duty cycle and cut into as many strata of equal size as there
      are clients, one client a stratum. Clients take the strata in the order of their draws, so
      a client's number says nothing about its duty cycle.
    - ``worst``: drawn with replacement from the tenth of the rows with the least duty cycle, as
      REFL does.

    ``duty`` (float64 [rows]) is needed by the last two, which make no sense for devices.
    Raises TraceError when ``fedscale`` or ``stratified`` have more clients than rows: FedScale's
    modulo would give two clients one row in silence.
    """
    clients = len(uniforms)
    if kind not in get_args(Assignment):
        raise TraceError(f"assign: {kind!r} is unknown; one of {', '.join(get_args(Assignment))}")
    if rows < 1:
        raise TraceError("the trace has no row to give to a client")
    if not ((uniforms >= 0) & (uniforms < 1)).all():
        raise TraceError("a draw for the assignment of rows lies outside [0, 1)")
    if kind in ("fedscale", "stratified") and clients > rows:
        raise TraceError(
            f"assign: {kind} gives each client its own row, but there are {clients} clients and "
            f"{rows} rows; use at most {rows} clients, or assign: random"
        )
    if kind == "fedscale":
        return np.arange(clients, dtype=np.int64)
    if kind == "random":
        return _pick(uniforms, rows)
    if duty is None:
        raise TraceError(
            f"assign: {kind} sorts rows by duty cycle, which devices do not have; "
            "use assign: fedscale or assign: random"
        )
    if len(duty) != rows:
        raise TraceError(f"{len(duty)} duty cycles for {rows} rows; one for each row")
    by_duty: Ints = np.argsort(duty, kind="stable").astype(np.int64)
    if kind == "worst":
        among = math.ceil(rows * WORST_SHARE)
        return np.take(by_duty, _pick(uniforms, among))
    stratum = np.empty(clients, np.int64)
    stratum[np.argsort(uniforms, kind="stable")] = np.arange(clients)
    # The low bits of a draw choose within the stratum: they are independent of its rank.
    within = np.mod(uniforms * 2.0**20, 1.0)
    low, high = stratum * rows // clients, (stratum + 1) * rows // clients
    return np.take(by_duty, low + _pick(within, high - low))


def _pick(uniforms: NDArray[np.float64], among: int | Ints) -> Ints:
    # u close to 1 times a large count can round up to the count itself.
    rows: Ints = np.minimum((uniforms * among).astype(np.int64), np.asarray(among) - 1)
    return rows
