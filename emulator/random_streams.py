"""Named random streams: one for each purpose and entity, none of them global.

Two forms, one root. :func:`generator` gives a NumPy generator for long draws (a partition, a
permutation of batches). :func:`uniform` is counter-based: a draw is a pure function of (root,
purpose, entity, n), so that a million clients cost no state, and adding a client, a metric or a
log line moves nobody else's draws.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB


@lru_cache(maxsize=4096)
def purpose_key(root_seed: int, purpose: str) -> int:
    """The 64-bit key of a purpose under a root seed."""
    digest = hashlib.blake2b(f"{root_seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def bits(key: int, entity: int, n: int) -> int:
    """64 random bits for draw ``n`` of ``entity`` under the purpose ``key``.

    SplitMix64's finalizer (Steele, Lea, Flood 2014), a bijection on 64-bit integers, twice: over
    key and entity, then over that and n. Written out, since it is called for every task.
    """
    x = (key + (entity + 1) * _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _FACTOR_1) & _MASK
    x = ((x ^ (x >> 27)) * _FACTOR_2) & _MASK
    x = ((x ^ (x >> 31)) + (n + 1) * _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _FACTOR_1) & _MASK
    x = ((x ^ (x >> 27)) * _FACTOR_2) & _MASK
    return x ^ (x >> 31)


def uniform(key: int, entity: int, n: int) -> float:
    """A draw from the open interval (0, 1)."""
    return ((bits(key, entity, n) >> 11) + 0.5) * 2.0**-53


def uniforms(key: int, entities: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """:func:`uniform` for many entities at once, equal to it bit for bit."""
    x = bits_array(key, entities, np.int64(n))
    return ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def bits_array(
    key: int, entities: NDArray[np.int64], n: NDArray[np.int64] | np.int64
) -> NDArray[np.uint64]:
    """:func:`bits` for arrays of entities and draws, which are broadcast together."""
    golden, one = np.uint64(_GOLDEN), np.uint64(1)
    with np.errstate(over="ignore"):
        x = _mix_array(np.uint64(key) + (entities.astype(np.uint64) + one) * golden)
        return _mix_array(x + (np.asarray(n).astype(np.uint64) + one) * golden)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FACTOR_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_FACTOR_2)
    return x ^ (x >> np.uint64(31))


def generator(root_seed: int, purpose: str, *entity: int) -> np.random.Generator:
    """A NumPy generator for the stream named by the purpose and the entity.

    ``entity`` holds non-negative integers. The spawn key carries the purpose, as
    ``SeedSequence`` wants it: streams with other names are independent.
    """
    key = purpose_key(0, purpose)
    sequence = np.random.SeedSequence(root_seed, spawn_key=(key & 0xFFFFFFFF, key >> 32, *entity))
    return np.random.Generator(np.random.PCG64(sequence))
