"""Partitions that are given, by the data or by a file, and samples set aside for testing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ScenarioError
from emulator.learning.partitions import (
    from_file,
    natural,
    natural_test,
    partition,
    set_aside,
)
from emulator.random_streams import generator

GROUPS = np.array([2, 0, 1, 0, 2, 2])
LABELS = np.array([5, 6, 7, 8, 9, 5])


def lists(parts: list[np.ndarray]) -> list[list[int]]:
    assert all(part.dtype == np.int64 for part in parts)
    return [part.tolist() for part in parts]


def test_a_client_for_each_group() -> None:
    rng = generator(1, "partition")
    before = rng.bit_generator.state
    assert lists(natural(GROUPS, 3, rng)) == [[1, 3], [2], [0, 4, 5]]
    assert lists(natural(GROUPS, 2, rng)) == [[1, 3], [2]]
    assert rng.bit_generator.state == before


def test_a_random_choice_of_groups_is_stable() -> None:
    groups = np.repeat(np.arange(50), 2)
    chosen = {
        clients: lists(natural(groups, clients, generator(3, "partition"), order="random"))
        for clients in (10, 11, 50)
    }
    assert chosen[11][:10] == chosen[10]
    assert chosen[50][:11] == chosen[11]
    assert chosen[50] != sorted(chosen[50])
    assert sorted(chosen[50]) == [[2 * g, 2 * g + 1] for g in range(50)]
    other = lists(natural(groups, 10, generator(4, "partition"), order="random"))
    assert other != chosen[10]


def test_natural_among_the_holders() -> None:
    rng = generator(1, "partition")
    parts = partition("natural", LABELS, 5, rng, groups=GROUPS, holders=3)
    assert lists(parts) == [[1, 3], [2], [0, 4, 5], [], []]
    with pytest.raises(ScenarioError, match=r"4 clients, and the data set has 3 natural ones"):
        partition("natural", LABELS, 4, rng, groups=GROUPS)
    with pytest.raises(ScenarioError, match=r"'natural' needs a data set that says whose"):
        partition("natural", LABELS, 4, rng)
    with pytest.raises(ScenarioError, match=r"order: 'first' is not allowed"):
        natural(GROUPS, 2, rng, order="first")  # type: ignore[arg-type]


def test_natural_clients_have_their_groups_test_samples() -> None:
    parts = [np.array([2]), np.array([0, 4, 5]), np.empty(0, np.int64)]
    own = natural_test(parts, GROUPS, np.array([2, 2, 0, 1, 2]))
    assert lists(own) == [[3], [0, 1, 4], []]
    # A group without test samples, and no test samples at all.
    assert lists(natural_test(parts[:2], GROUPS, np.array([0, 1]))) == [[1], []]
    assert lists(natural_test(parts[:2], GROUPS, np.empty(0, np.int64))) == [[], []]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "who.csv"
    path.write_text(text)
    return path


RNG = generator(1, "partition")


def test_a_file_of_samples_and_clients(tmp_path: Path) -> None:
    path = write(tmp_path, "sample,client\n5,1\n0,1\n2,0\n\n1,1\n")
    assert lists(from_file(LABELS, 3, RNG, path=path)) == [[2], [0, 1, 5], []]
    windows = write(tmp_path, "\ufeffsample,client\r\n5,0\r\n")
    assert lists(from_file(LABELS, 1, RNG, path=windows)) == [[5]]


def test_fedscales_file(tmp_path: Path) -> None:
    rows = ["b7,x/0.png,five,5", "a1,x/1.png,six,6", "b7,2,seven,7", "c,3,,8", "a1,4,n,9", "b7,,,5"]
    header = "client_id,sample_path,label_name,label_id\n"
    path = write(tmp_path, header + "\n".join(rows))
    assert lists(from_file(LABELS, 3, RNG, path=path)) == [[0, 2, 5], [1, 4], [3]]
    with pytest.raises(ScenarioError, match=r"line 5, column client_id: 'c' is client number 3"):
        from_file(LABELS, 2, RNG, path=path)
    with pytest.raises(ScenarioError, match=r"line 7: a row for sample 5, .* has 5 samples"):
        from_file(LABELS[:5], 3, RNG, path=path)
    with pytest.raises(ScenarioError, match=r"6 rows, and the training set has 7 samples"):
        from_file(np.append(LABELS, 1), 3, RNG, path=path)
    with pytest.raises(ScenarioError, match=r"line 3, column label_id: 6, and training sample 1 h"):
        from_file(LABELS[::-1], 3, RNG, path=path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("6,0", "line 2, column sample: there is no sample 6.* 0 to 5"),
        ("0,0\n-1,0", "line 3, column sample: there is no sample -1"),
        ("0,2", "line 2, column client: there is no client 2; with task.clients 2 they are 0 to 1"),
        ("0,-1", "line 2, column client: there is no client -1"),
        ("3,1\n4,0\n3,0", "line 4, column sample: sample 3 is named twice; client 1 holds"),
        ("1.0,1", "line 2, column sample: '1.0' is not an integer"),
        ("1,x", "line 2, column client: 'x' is not an integer"),
        ("1", "line 2: 1 cells; 2 are expected: sample,client"),
        ("1,1,1", "line 2: 3 cells"),
        ("", "names no sample"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=rf"who\.csv.*{message}"):
        from_file(LABELS, 2, RNG, path=write(tmp_path, f"sample,client\n{rows}\n"))


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"line 1: the header is 'client,sample'; write samp"):
        from_file(LABELS, 2, RNG, path=write(tmp_path, "client,sample\n0,0\n"))
    with pytest.raises(ScenarioError, match=r"line 1: the header is ''"):
        from_file(LABELS, 2, RNG, path=write(tmp_path, ""))
    with pytest.raises(ScenarioError, match=r"cannot be read as a CSV file \(.*No such file"):
        from_file(LABELS, 2, RNG, path=tmp_path / "nowhere.csv")
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"sample,client\n\xff\xfe\n")
    with pytest.raises(ScenarioError, match=r"bytes\.csv: cannot be read as a CSV file"):
        from_file(LABELS, 2, RNG, path=path)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_samples_set_aside_are_the_clients_own(
    sizes: list[int], fraction: float, seed: int
) -> None:
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    train, test = set_aside(parts, fraction, seed)
    for part, kept, held_out in zip(parts, train, test, strict=True):
        assert sorted([*kept, *held_out]) == part.tolist()
        assert np.all(np.diff(kept) > 0)
        assert np.all(np.diff(held_out) > 0)
        assert len(kept) > 0 or len(part) == 0
    # One client more changes nobody's samples, nor does a client of another size.
    again, _ = set_aside([*parts[:-1], np.arange(1_000, 1_007), np.arange(5)], fraction, seed)
    assert lists(again[: len(parts) - 1]) == lists(train[:-1])


def test_how_many_are_set_aside() -> None:
    """The floor of the decimal product: 0.29 × 100 is 28.999999999999996 in binary."""
    sizes = [100, 4, 3, 1, 0]
    parts = [np.arange(size) for size in sizes]
    assert [len(part) for part in set_aside(parts, 0.29, 1)[1]] == [29, 1, 0, 0, 0]
    assert lists(set_aside(parts, 0.29, 1)[1]) != lists(set_aside(parts, 0.29, 2)[1])
