"""What a pre-trained model tells of its client's data, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from emulator.errors import ScenarioError
from emulator.learning.methods.fedseq import (
    classifier_weights,
    confidence,
    exemplars,
    pairwise_cosine,
    principal_components,
)
from emulator.learning.models.fedseq_lenet import fedseq_lenet


def test_the_classifier_of_fedseq_lenet() -> None:
    """fc1 614,400, fc2 73,728 and fc3 1,920 weights, the last layer first, no biases."""
    model = fedseq_lenet((3, 32, 32), 10)
    sizes = [len(classifier_weights(model, layers)) for layers in (1, 2, 3)]
    assert sizes == [1_920, 75_648, 690_048]
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1].weight
    assert torch.equal(classifier_weights(model, 3)[:1_920], last.detach().reshape(-1))


def test_more_layers_than_there_are() -> None:
    with pytest.raises(ScenarioError, match=r"layers is 2, and task\.model has 1 Linear"):
        classifier_weights(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 2)


def test_principal_components_keep_ninety_percent() -> None:
    """Variances 16, 2 and 0.02 of centred columns: 88.8 % with one, 99.9 % with two."""
    rows = np.array([[4, 0, 0.1], [-4, 0, 0.1], [0, 2**0.5, -0.1], [0, -(2**0.5), -0.1]])
    found = principal_components(rows)
    assert found.shape == (4, 2)
    assert np.allclose(np.abs(found), np.abs(rows[:, :2]), atol=1e-12)
    assert principal_components(np.ones((3, 5))).tolist() == [[0.0]] * 3
    # The mean of equal numbers need not be that number.
    assert principal_components(np.full((6, 2), 0.1)).tolist() == [[0.0]] * 6


def test_confidence_is_the_mass_of_the_true_class() -> None:
    """Two exemplars a class, softmaxes (3/4, 1/4), (1/4, 3/4) | (1/2, 1/2), (3/4, 1/4): the true
    classes have 3/4 + 1/4 = 1 and 1/2 + 1/4 = 3/4 of mass."""
    probabilities = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
    found = confidence(probabilities.log(), torch.tensor([0, 0, 1, 1]), 2)
    assert found == pytest.approx([4 / 7, 3 / 7], abs=1e-7)
    assert math.fsum(found) == pytest.approx(1.0, abs=1e-15)


def test_exemplars_are_stratified() -> None:
    y = np.array([0] * 5 + [1] * 9 + [2] * 4)
    chosen, rest = exemplars(y, 3, 3, np.random.default_rng(1))
    assert np.bincount(y[chosen]).tolist() == [3, 3, 3]
    assert np.bincount(y[rest]).tolist() == [2, 6, 1]
    assert sorted([*chosen, *rest]) == list(range(18))
    with pytest.raises(ScenarioError, match="class 2 has 4 test samples"):
        exemplars(y, 3, 4, np.random.default_rng(1))


def test_pairwise_cosine() -> None:
    found = pairwise_cosine([torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])])
    assert found == pytest.approx(np.array([[1, 0.6], [0.6, 1]]))
