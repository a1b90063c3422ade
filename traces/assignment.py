"""Which row of a trace each client gets."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.statistics import mean_ranks

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


def couple_ranks(
    values: NDArray[np.float64],
    speeds: NDArray[np.float64],
    rho: float,
    uniforms: NDArray[np.float64],
) -> Ints:
    """Deal devices out again so that ``speeds`` go with ``values``; all arrays are [clients].

    The result, int64 [clients], is a permutation: client c gets the device that client result[c]
    had, and the devices as a whole stay what they were. A Gaussian copula with parameter
    r = 2 sin(π rho / 6), which is Spearman's correlation ``rho`` (Kruskal 1958): with s and e the
    normal scores of a client's value and of its own device's speed, the client whose
    r s + √(1 − r²) e is the k-th smallest gets the k-th slowest device. So ``rho`` 0 leaves every
    client its device, and ±1 sorts devices by value; ``uniforms`` order equal speeds. The more
    equal values there are, the closer to 0 the correlation stays.

    Raises TraceError when ``rho`` lies outside [-1, 1], or all values are equal.
    """
    if not -1.0 <= rho <= 1.0:
        raise TraceError(f"a correlation of {rho}; it must lie between -1 and 1")
    if values.min() == values.max():
        raise TraceError(f"all values are {values[0]}: nothing can be correlated with them")
    slowest_first = np.lexsort((uniforms, speeds))
    own = np.empty(len(speeds))
    own[slowest_first] = _normal_scores(np.arange(1.0, len(speeds) + 1.0))
    score = _normal_scores(mean_ranks(values))
    score -= score.mean()
    score *= own.std() / score.std()
    r = 2.0 * math.sin(math.pi * rho / 6.0)
    mixed = r * score + math.sqrt(max(0.0, 1.0 - r * r)) * own
    result = np.empty(len(speeds), np.int64)
    # Equal values under rho = ±1 leave the order of their clients to their own devices.
    result[np.lexsort((own, mixed))] = slowest_first
    return result


def _normal_scores(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtri

    scores: NDArray[np.float64] = ndtri((ranks - 0.5) / len(ranks))
    return scores


def _pick(uniforms: NDArray[np.float64], among: int | Ints) -> Ints:
    # u close to 1 times a large count can round up to the count itself.
    rows: Ints = np.minimum((uniforms * among).astype(np.int64), np.asarray(among) - 1)
    return rows
