"""Planted clusters: samples are changed as their holder's cluster says, and by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from test_setting import DIGITS, hapt, setting

from emulator.errors import ScenarioError
from emulator.learning.datasets import Dataset
from emulator.learning.partitions import (
    Indices,
    by_label_group,
    partition,
    plant,
    planted_clusters,
)
from emulator.random_streams import generator
from emulator.scenario.schema import Task

SEED = 4
IMAGE = np.array([[1, 2], [3, 4]], dtype=np.float32)


def dataset(train_x: Any, train_y: Any, test_x: Any, test_y: Any, classes: int) -> Dataset:
    x, more_x = np.asarray(train_x, np.float32), np.asarray(test_x, np.float32)
    return Dataset("small", x, np.asarray(train_y), more_x, np.asarray(test_y), classes)


def images(image: NDArray[np.float32], train: int, test: int) -> Dataset:
    """The same image [height, width] again and again."""
    x = np.tile(image, (train + test, 1, 1, 1))
    return dataset(x[:train], [0, 1] * (train // 2), x[train:], [0, 1] * (test // 2), 2)


def one_each(planted: Indices) -> list[Indices]:
    """Client i holds sample i."""
    return [np.array([i]) for i in range(len(planted))]


# --- who is in which cluster ----------------------------------------------------------------------


@given(st.integers(2, 200), st.integers(2, 20), st.integers(0, 2**32))
def test_clusters_are_of_equal_sizes_but_for_one(clients: int, clusters: int, seed: int) -> None:
    clusters = min(clusters, clients)
    found = planted_clusters(clients, clusters, seed)
    sizes = np.bincount(found, minlength=clusters)
    assert len(sizes) == clusters
    assert sizes.sum() == clients
    assert sizes.max() - sizes.min() <= 1


def test_clusters_are_drawn_from_their_stream() -> None:
    found = planted_clusters(40, 4, SEED).tolist()
    assert found == planted_clusters(40, 4, SEED).tolist()
    assert found != planted_clusters(40, 4, SEED + 1).tolist()
    assert found != [client % 4 for client in range(40)]


# --- rotation -------------------------------------------------------------------------------------


def rotated(image: NDArray[np.float32], clusters: int) -> NDArray[Any]:
    """The image as each cluster's clients hold it [clusters, height, width]."""
    planted = np.arange(clusters)
    options = {"kind": "rotation", "clusters": clusters}
    found = plant(images(image, clusters * 2, 0), options, one_each(planted), planted, SEED)
    assert found.train_x.dtype == np.float32
    return found.train_x[:clusters, 0]


def test_quarter_turns_by_hand() -> None:
    """Counter-clockwise: the right column becomes the top row."""
    assert rotated(IMAGE, 4).tolist() == [
        [[1, 2], [3, 4]],
        [[2, 4], [1, 3]],
        [[4, 3], [2, 1]],
        [[3, 1], [4, 2]],
    ]


def test_half_a_turn_by_hand() -> None:
    assert rotated(IMAGE, 2).tolist() == [[[1, 2], [3, 4]], [[4, 3], [2, 1]]]


def test_a_third_of_a_turn_is_interpolated() -> None:
    """A spot three to the right of the middle of 9 × 9 goes to 120°, 2.6 up and 1.5 to the left,
    and then to as much below; the middle stays."""
    image = np.zeros((9, 9), np.float32)
    image[4, 4], image[4, 7] = 10.0, 1.0
    found = rotated(image, 3)
    np.testing.assert_array_equal(found[0], image)
    row, column = np.indices(image.shape)
    for c, expected in ((1, (4 - 2.598, 2.5)), (2, (4 + 2.598, 2.5))):
        turned = found[c].copy()
        assert turned[4, 4] == pytest.approx(10.0, abs=1e-5)
        turned[3:6, 3:6] = 0.0  # the spot in the middle, and what is spread around it
        assert turned.sum() == pytest.approx(1.0, abs=0.35)
        middle = ((row * turned).sum() / turned.sum(), (column * turned).sum() / turned.sum())
        assert middle == pytest.approx(expected, abs=0.25)


def test_what_comes_in_from_outside_is_zero() -> None:
    found = rotated(np.ones((8, 8), np.float32), 8)
    assert found[1][0, 0] == 0.0
    assert found[1][3:5, 3:5].tolist() == pytest.approx(np.ones((2, 2)))


def test_an_image_that_is_not_square_keeps_its_shape() -> None:
    """Upright, a row of 5 in a frame of 3 × 5: a quarter turn makes it a column of 3."""
    image = np.zeros((3, 5), np.float32)
    image[1] = 1.0
    turned = rotated(image, 4)[1]
    expected = np.zeros((3, 5))
    expected[:, 2] = 1.0
    np.testing.assert_allclose(turned, expected, atol=1e-6)


def test_each_sample_is_turned_as_its_holder_is() -> None:
    """Clients 0 and 2 are of cluster 0, client 1 is of cluster 1, and samples go about."""
    planted = np.array([0, 1, 0])
    parts = [np.array([3, 0]), np.array([1, 4]), np.array([2])]
    options = {"kind": "rotation", "clusters": 2}
    found = plant(images(IMAGE, 6, 0), options, parts, planted, SEED)
    upright = [bool((x[0] == IMAGE).all()) for x in found.train_x[:5]]
    assert upright == [True, False, True, True, False]


@pytest.mark.parametrize(("samples", "shares"), [(12, [3, 3, 3, 3]), (10, [2, 2, 3, 3])])
def test_every_cluster_has_an_equal_share_of_the_test_samples(
    samples: int, shares: list[int]
) -> None:
    planted = np.arange(4)
    options = {"kind": "rotation", "clusters": 4}
    found = plant(images(IMAGE, 4, samples), options, one_each(planted), planted, SEED)
    kinds = Counter(tuple(x.reshape(-1).tolist()) for x in found.test_x)
    assert sorted(kinds.values()) == shares
    assert kinds.keys() == {tuple(x.reshape(-1).tolist()) for x in found.train_x}
    again = plant(images(IMAGE, 4, samples), options, one_each(planted), planted, SEED)
    assert again.content_hash == found.content_hash


# --- permuted labels ------------------------------------------------------------------------------

CLASSES = 6


def permuted(clusters: int, seed: int = SEED) -> tuple[list[dict[int, int]], list[Counter[int]]]:
    """The new name of each class in each cluster; and of each class, how often test samples have
    which name, 5 · clusters of them."""
    y = np.tile(np.arange(CLASSES), clusters * 5)
    x = y[:, None]
    planted = np.arange(clusters)
    parts = np.array_split(np.arange(len(y)), clusters)
    options = {"kind": "label_permutation", "clusters": clusters}
    data = dataset(x, y, x, y, CLASSES)
    found = plant(data, options, parts, planted, seed)
    np.testing.assert_array_equal(found.train_x, x)
    names = []
    for part in parts:
        pairs = set(zip(y[part].tolist(), found.train_y[part].tolist(), strict=True))
        assert len(pairs) == CLASSES  # one name for each class
        names.append(dict(pairs))
    tested = [Counter(found.test_y[y == c].tolist()) for c in range(CLASSES)]
    return names, tested


def test_each_cluster_has_its_own_names_for_the_classes() -> None:
    names, _ = permuted(3)
    assert names[0] == {c: c for c in range(CLASSES)}
    for of_cluster in names:
        assert sorted(of_cluster.values()) == list(range(CLASSES))
    assert len({tuple(sorted(of_cluster.items())) for of_cluster in names}) == 3
    assert names == permuted(3)[0]
    assert names[1:] != permuted(3, SEED + 1)[0][1:]
    assert names[1] == permuted(2)[0][1]  # whatever other clusters there are


def test_test_samples_have_the_names_of_a_cluster() -> None:
    """Five test samples in six of a class would be few; here each cluster has an equal share of
    all 60, and of every class its names appear, and no others."""
    names, tested = permuted(2)
    for c, found in enumerate(tested):
        assert found.keys() == {of_cluster[c] for of_cluster in names}
    moved = [c for c in range(CLASSES) if names[1][c] != c]
    assert moved
    stays = sum(tested[c][c] for c in moved)
    assert 0 < stays < 10 * len(moved)


# --- affine shifts --------------------------------------------------------------------------------


def shifted(severity: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs of 0, 1 and 3 everywhere, 1,000 values each, as three clusters hold them [3, 3, 1000];
    and 60 test samples of 0."""
    x = np.tile(np.repeat([0.0, 1.0, 3.0], 1000).reshape(3, 1000), (3, 1))
    parts = [np.arange(3 * c, 3 * c + 3) for c in range(3)]
    options = {"kind": "affine_shift", "clusters": 3, "severity": severity}
    data = dataset(x, [0] * 9, np.zeros((60, 1000)), [0] * 60, 2)
    found = plant(data, options, parts, np.arange(3), SEED)
    assert found.train_x.dtype == np.float32
    np.testing.assert_array_equal(found.train_y, data.train_y)
    return found.train_x.reshape(3, 3, 1000).astype(np.float64), found.test_x.astype(np.float64)


def test_inputs_are_scaled_and_moved_value_by_value() -> None:
    """x = 0 becomes severity · δ and 1 becomes 1 + severity (λ + δ), which give λ and δ away."""
    found, _ = shifted(0.5)
    delta = found[:, 0] / 0.5
    slope = (found[:, 1] - found[:, 0] - 1.0) / 0.5
    np.testing.assert_allclose(found[:, 2], (1 + 0.5 * slope) * 3.0 + 0.5 * delta, atol=1e-5)
    drawn = np.concatenate([delta, slope])
    # Standard normal, 1,000 values each: four standard errors.
    np.testing.assert_allclose(drawn.mean(1), 0.0, atol=4 / 1000**0.5)
    np.testing.assert_allclose(drawn.std(1), 1.0, atol=4 / 2000**0.5)
    correlations = np.corrcoef(drawn)[np.triu_indices(6, 1)]
    np.testing.assert_allclose(correlations, 0.0, atol=4 / 1000**0.5)


def test_severity_scales_the_shift() -> None:
    one, two, none = (shifted(severity)[0] for severity in (0.5, 1.0, 0.0))
    np.testing.assert_allclose(two - none, 2 * (one - none), atol=1e-5)
    assert none[:, :, 0].tolist() == [[0, 1, 3]] * 3


def test_test_samples_are_shifted_as_training_samples() -> None:
    found, tested = shifted(0.5)
    of_cluster = [int((tested == found[c, 0]).all(1).sum()) for c in range(3)]
    assert of_cluster == [20, 20, 20]


# --- groups of classes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [("iid", {}), ("dirichlet", {"alpha": 0.5})])
@pytest.mark.parametrize(("clients", "clusters"), [(12, 3), (7, 2), (6, 6)])
def test_clients_of_a_cluster_hold_its_classes_only(
    kind: tuple[str, dict[str, Any]], clients: int, clusters: int
) -> None:
    y = np.tile(np.arange(6), 40)
    data = dataset(y[:, None], y, y[:, None], y, 6)
    planted = planted_clusters(clients, clusters, SEED)

    def split(labels: NDArray[np.int64], n: int, cluster: int) -> list[Indices]:
        rng = generator(SEED, "partition", cluster)
        return partition(kind[0], labels, n, rng, **kind[1])

    parts = by_label_group(split, data, planted, clusters)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    for client, part in enumerate(parts):
        assert (np.diff(part) > 0).all()
        assert (y[part] % clusters == planted[client]).all()
    options = {"kind": "label_groups", "clusters": clusters}
    assert plant(data, options, parts, planted, SEED).content_hash == data.content_hash


def test_groups_by_hand() -> None:
    """Classes 0 and 2 are cluster 0's, 1 is cluster 1's; each client has its half."""
    y = np.array([2, 1, 0, 1, 2, 0])
    data = dataset(y[:, None], y, y[:, None], y, 3)

    def halves(labels: NDArray[np.int64], n: int, cluster: int) -> list[Indices]:
        assert labels.tolist() == [[2, 0, 2, 0], [1, 1]][cluster]
        return np.array_split(np.arange(len(labels)), n)

    parts = by_label_group(halves, data, np.array([1, 0, 0, 1]), 2)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [4, 5], [3]]


def test_more_clusters_than_classes() -> None:
    y = np.arange(3)
    data = dataset(y[:, None], y, y[:, None], y, 3)
    with pytest.raises(ScenarioError, match="clusters is 4, and the data have 3 classes"):
        by_label_group(lambda *_: [], data, np.arange(4), 4)


# --- in a task ------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "rotation": {"kind": "rotation", "clusters": 4},
    "label_permutation": {"kind": "label_permutation", "clusters": 4},
    "affine_shift": {"kind": "affine_shift", "clusters": 4, "severity": 0.5},
    "label_groups": {"kind": "label_groups", "clusters": 4},
}


def test_other_content_is_another_run(tmp_path: Path) -> None:
    plain = setting(tmp_path, **DIGITS)
    assert plain.planted is None
    assert plain.dataset is not None
    roots, hashes = {plain.root}, {plain.dataset.content_hash}
    for kind, planted in KINDS.items():
        found = setting(tmp_path, **DIGITS, planted=planted)
        assert found.dataset is not None
        assert found.planted is not None
        assert np.bincount(found.planted).tolist() == [5] * 4
        assert found.root == setting(tmp_path, **DIGITS, planted=planted).root
        roots.add(found.root)
        hashes.add(found.dataset.content_hash)
        same = [(a == b).all() for a, b in zip(found.partition, plain.partition, strict=True)
                if len(a) == len(b)]  # fmt: skip
        assert (len(same) == 20 and all(same)) == (kind != "label_groups")
    assert len(roots) == 5
    assert len(hashes) == 4  # label groups leave the samples as they are


def test_label_groups_of_a_task(tmp_path: Path) -> None:
    found = setting(tmp_path, **DIGITS, planted=KINDS["label_groups"])
    assert found.dataset is not None
    assert found.planted is not None
    assert found.samples.sum() == len(found.dataset.train_y)
    for client, part in enumerate(found.partition):
        assert (found.dataset.train_y[part] % 4 == found.planted[client]).all()


def test_samples_set_aside_are_changed_as_their_clients_are(tmp_path: Path) -> None:
    before = setting(tmp_path, **DIGITS, client_test=0.25)
    after = setting(tmp_path, **DIGITS, client_test=0.25, planted=KINDS["label_permutation"])
    assert before.dataset is not None
    assert after.dataset is not None
    assert after.client_test is not None
    assert after.planted is not None
    names: dict[tuple[int, int], set[int]] = {}
    tested = 0
    for client, held in enumerate(after.partition):
        own = after.client_test.indices[client]
        tested += len(own)
        for sample in [*held.tolist(), *own.tolist()]:
            place = (int(after.planted[client]), int(before.dataset.train_y[sample]))
            names.setdefault(place, set()).add(int(after.dataset.train_y[sample]))
    assert tested > 200
    assert {len(found) for found in names.values()} == {1}
    assert any(found != {place[1]} for place, found in names.items())
    assert all(found == {place[1]} for place, found in names.items() if place[0] == 0)


def test_what_natural_clients_are_tested_on_is_changed_as_they_are(tmp_path: Path) -> None:
    """Three people of a cluster each: a class has one name for what each of them holds."""
    task = hapt(tmp_path)
    before = setting(tmp_path, **task)
    after = setting(tmp_path, **task, planted={"kind": "label_permutation", "clusters": 3})
    assert before.dataset is not None
    assert after.dataset is not None
    assert after.client_test is not None
    assert after.planted is not None
    assert sorted(after.planted.tolist()) == [0, 1, 2]
    assert [len(own) for own in after.client_test.indices] == [1, 2, 1]
    for held, own in zip(after.partition, after.client_test.indices, strict=True):
        learned = dict(zip(before.dataset.train_y[held], after.dataset.train_y[held], strict=True))
        tested = dict(zip(before.dataset.test_y[own], after.dataset.test_y[own], strict=True))
        assert tested == learned


def test_declared_data_can_be_planted(tmp_path: Path) -> None:
    """Without samples clients are in clusters all the same: those of any other data."""
    declared: dict[str, Any] = {
        "dataset": {"kind": "declared", "samples_per_client": 10},
        "model": {"kind": "declared", "size": "1 MB", "forward_macs": 1000, "backward_macs": 2000},
        "clients": 20,
        "planted": KINDS["rotation"],
    }
    found = setting(tmp_path, **declared)
    assert found.planted is not None
    assert found.planted.tolist() == planted_clusters(20, 4, 3).tolist()


# --- what a scenario may not say ------------------------------------------------------------------

SHAKESPEARE = {"dataset": {"kind": "shakespeare"}, "model": {"kind": "char_lstm"}}
HAPT = {"dataset": {"kind": "hapt"}, "model": {"kind": "conv1d"}}
NATURAL = {"partition": {"kind": "natural"}}


@pytest.mark.parametrize(
    ("task", "planted", "message"),
    [
        (SHAKESPEARE, "rotation", "'rotation' changes numbers, and shakespeare's data are text"),
        (SHAKESPEARE, "affine_shift", "'affine_shift' changes numbers"),
        (SHAKESPEARE, "label_permutation", "'label_permutation' changes numbers"),
        (SHAKESPEARE | NATURAL, "label_groups", "partition 'natural' says it already"),
        (HAPT, "rotation", "'rotation' turns images, and hapt's samples are signals"),
        (HAPT | NATURAL, "label_groups", "partition 'natural' says it already"),
        (
            {"partition": {"kind": "file", "path": "held.npz"}}, "label_groups",
            "partition 'file' says it already",
        ),
        ({"partition": {"kind": "iid", "holders": 10}}, "label_groups", "leave holders out"),
        ({"clients": 3}, "rotation", "planted.clusters is 4, more than the 3 clients"),
        ({"clients": 3}, "label_groups", "planted.clusters is 4, more than the 3 clients"),
    ],
)  # fmt: skip
def test_refused(task: dict[str, Any], planted: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Task.model_validate({**DIGITS, **task, "planted": KINDS[planted]})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("task", "planted"),
    [
        (SHAKESPEARE, "label_groups"),
        (HAPT, "label_groups"),
        (HAPT, "label_permutation"),
        (HAPT | NATURAL, "affine_shift"),
        ({"partition": {"kind": "iid", "holders": 10}}, "rotation"),
        ({"clients": 4}, "rotation"),
    ],
)
def test_accepted(task: dict[str, Any], planted: str) -> None:
    found = Task.model_validate({**DIGITS, **task, "planted": KINDS[planted]})
    assert found.planted is not None
    assert found.planted.kind == planted


@pytest.mark.parametrize("clusters", [0, 1, 1001, 2.5])
def test_clusters_are_two_at_least(clusters: float) -> None:
    with pytest.raises(ValidationError, match="clusters"):
        Task.model_validate({**DIGITS, "planted": {"kind": "rotation", "clusters": clusters}})
