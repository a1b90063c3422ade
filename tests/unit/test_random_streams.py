"""Named streams: reproducible, independent, equal in both forms."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from emulator.random_streams import bits, generator, purpose_key, uniform, uniforms


@given(st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**31))
def test_scalar_and_array_form_agree_bit_for_bit(seed: int, entity: int, n: int) -> None:
    key = purpose_key(seed, "noise")
    many = uniforms(key, np.array([entity, entity + 1], dtype=np.int64), n)
    assert many.tolist() == [uniform(key, entity, n), uniform(key, entity + 1, n)]
    assert many.min() > 0.0
    assert many.max() < 1.0


def test_streams_are_uniform_and_independent() -> None:
    key = purpose_key(3, "noise")
    across_entities = uniforms(key, np.arange(20_000), 5)
    across_draws = np.array([uniform(key, 4, n) for n in range(20_000)])
    assert kstest(across_entities, "uniform").pvalue > 1e-3
    assert kstest(across_draws, "uniform").pvalue > 1e-3
    pairs = np.corrcoef(across_entities[:-1], across_entities[1:])[0, 1]
    assert abs(pairs) < 0.03
    assert abs(np.corrcoef(across_entities, across_draws)[0, 1]) < 0.03


def test_every_part_of_a_name_counts() -> None:
    values = {
        bits(purpose_key(seed, purpose), entity, n)
        for seed in (0, 1)
        for purpose in ("a", "b")
        for entity in (0, 1)
        for n in (0, 1)
    }
    assert len(values) == 16


def test_generators_are_named_streams() -> None:
    draws = [
        generator(*name).random()
        for name in ((1, "x"), (2, "x"), (1, "y"), (1, "x", 0), (1, "x", 1), (1, "x", 0, 0))
    ]  # type: ignore[arg-type]
    assert len(set(draws)) == len(draws)
    assert generator(1, "x", 3).random() == generator(1, "x", 3).random()
