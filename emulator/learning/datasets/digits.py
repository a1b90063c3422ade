"""The 1,797 handwritten digits of 8x8 that scikit-learn carries: a data set with no download."""

from __future__ import annotations

import numpy as np

from emulator.learning.datasets.dataset import Dataset, sample_limit


def digits(*, train_samples: int | None = None, test_samples: int | None = None) -> Dataset:
    """Grey images ``[1, 8, 8]`` in [0, 1], 10 classes: 1,438 for training, 359 for testing.

    The split is fixed: every fifth sample (index % 5 == 4) is a test sample. The limits keep the
    first samples of a split. Raises ScenarioError for a limit that does not fit.
    """
    # Imported here: scikit-learn takes a second to load, and only this data set needs it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images[:, None] / 16.0).astype(np.float32)
    y = bunch.target.astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 4
    n_train = sample_limit("train_samples", train_samples, int((~is_test).sum()))
    n_test = sample_limit("test_samples", test_samples, int(is_test.sum()))
    return Dataset(
        name="digits",
        train_x=x[~is_test][:n_train],
        train_y=y[~is_test][:n_train],
        test_x=x[is_test][:n_test],
        test_y=y[is_test][:n_test],
        classes=10,
    )
