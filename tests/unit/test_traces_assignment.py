import numpy as np
import pytest
from scipy.stats import spearmanr

from traces import DeviceTable, TraceError, assign_rows, couple_ranks

RNG = np.random.default_rng(11)
DUTY = RNG.permutation(np.linspace(0.0, 1.0, 1000))


def test_fedscale_is_the_client_number() -> None:
    assert assign_rows("fedscale", RNG.random(4), 5).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["fedscale", "stratified"])
def test_no_silent_modulo(kind: str) -> None:
    with pytest.raises(TraceError, match=r"6 clients and 5 rows; .*assign: random"):
        assign_rows(kind, RNG.random(6), 5, np.ones(5))  # type: ignore[arg-type]


def test_random_is_uniform_over_the_rows_with_replacement() -> None:
    rows = assign_rows("random", np.array([0.0, 0.199, 0.2, 0.999, 1 - 2**-53]), 5)
    assert rows.tolist() == [0, 0, 1, 4, 4]
    many = np.bincount(assign_rows("random", RNG.random(50_000), 5), minlength=5)
    assert abs(many - 10_000).max() < 400


def test_the_last_draw_stays_inside_a_huge_trace() -> None:
    assert assign_rows("random", np.array([1 - 2**-53]), 2**53 + 2)[0] < 2**53 + 2


def test_worst_draws_from_the_least_available_tenth() -> None:
    rows = assign_rows("worst", RNG.random(2000), 1000, DUTY)
    assert DUTY[rows].max() < 0.1
    assert len(np.unique(rows)) == 100
    assert (
        assign_rows("worst", RNG.random(3), 4, np.array([0.5, 0.1, 0.3, 0.2])).tolist() == [1] * 3
    )


@pytest.mark.parametrize("clients", [1, 7, 100, 333, 1000])
def test_stratified_takes_one_row_of_each_stratum(clients: int) -> None:
    rows = assign_rows("stratified", RNG.random(clients), 1000, DUTY)
    assert len(np.unique(rows)) == clients
    rank = np.argsort(np.argsort(DUTY))[rows]
    edges = np.arange(clients + 1) * 1000 // clients
    per_stratum = np.histogram(rank, bins=edges - 0.5)[0]
    assert per_stratum.tolist() == [1] * clients


def test_stratified_order_of_clients_says_nothing_about_duty() -> None:
    draws = np.random.default_rng(5).random(500)
    duty = DUTY[assign_rows("stratified", draws, 1000, DUTY)]
    assert abs(np.corrcoef(np.arange(500), duty)[0, 1]) < 0.15
    # Within a stratum of two rows, both come up.
    rank = np.argsort(np.argsort(DUTY))[assign_rows("stratified", draws, 1000, DUTY)]
    assert 0.4 < (rank % 2).mean() < 0.6


def test_refusals() -> None:
    with pytest.raises(TraceError, match="'best' is unknown; one of fedscale, random, stratified"):
        assign_rows("best", RNG.random(2), 5)  # type: ignore[arg-type]
    for kind in ("stratified", "worst"):
        with pytest.raises(TraceError, match="devices do not have; use assign: fedscale or"):
            assign_rows(kind, RNG.random(2), 5)
        with pytest.raises(TraceError, match="4 duty cycles for 5 rows"):
            assign_rows(kind, RNG.random(2), 5, np.ones(4))
    with pytest.raises(TraceError, match="no row"):
        assign_rows("random", RNG.random(2), 0)
    for draw in (1.0, -0.1, np.nan):
        with pytest.raises(TraceError, match=r"outside \[0, 1\)"):
            assign_rows("random", np.array([draw]), 5)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_devices_are_finite_and_positive(bad: float) -> None:
    good = np.array([1.0, 2.0])
    broken = np.array([1.0, bad])
    with pytest.raises(TraceError, match=r"device row 1: computation_ms_per_sample is"):
        DeviceTable(broken, good)
    with pytest.raises(TraceError, match=r"device row 1: communication_kbps is"):
        DeviceTable(good, broken)


def test_devices_have_two_columns_of_one_length_and_are_read_only() -> None:
    with pytest.raises(TraceError, match="2 devices have a computation speed, 1 a"):
        DeviceTable(np.ones(2), np.ones(1))
    table = DeviceTable(np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="read-only"):
        table.communication_kbps[0] = 3.0


def coupled(values: np.ndarray, speeds: np.ndarray, rho: float) -> np.ndarray:
    rows = couple_ranks(values, speeds, rho, np.random.default_rng(3).random(len(values)))
    assert sorted(rows.tolist()) == list(range(len(values))), "each device is dealt out once"
    return rows


@pytest.mark.parametrize("rho", [-0.9, -0.5, -0.2, 0.3, 0.7])
def test_the_rank_correlation_comes_out(rho: float) -> None:
    rng = np.random.default_rng(8)
    samples = rng.permutation(2000).astype(float)
    speeds = rng.choice(np.arange(72.0), 2000)  # as many values as FedScale's capacities have
    rows = coupled(samples, speeds, rho)
    achieved = spearmanr(samples, speeds[rows]).statistic
    # The standard error of Spearman's correlation of 2,000 is at most 0.022.
    assert achieved == pytest.approx(rho, abs=0.06)


def test_correlation_of_one_sorts_and_of_none_moves_nobody() -> None:
    rng = np.random.default_rng(9)
    samples, speeds = rng.permutation(500).astype(float), rng.random(500)
    assert coupled(samples, speeds, 0.0).tolist() == list(range(500))
    for rho in (1.0, -1.0):
        dealt = speeds[coupled(samples, speeds, rho)]
        assert (np.diff(rho * dealt[np.argsort(samples)]) > 0).all()


def test_clients_with_equally_many_samples_keep_the_order_of_their_devices() -> None:
    samples = np.array([1.0, 1, 2, 2, 2])
    speeds = np.array([5.0, 9, 7, 1, 3])
    assert speeds[coupled(samples, speeds, 1.0)].tolist() == [1, 3, 9, 5, 7]
    assert speeds[coupled(samples, speeds, -1.0)].tolist() == [7, 9, 5, 1, 3]


def test_no_correlation_beyond_one_or_with_a_constant() -> None:
    two = np.array([1.0, 2.0])
    for rho in (1.1, -1.1, np.nan):
        with pytest.raises(TraceError, match="must lie between -1 and 1"):
            couple_ranks(two, two, rho, two / 3)
    with pytest.raises(TraceError, match=r"all values are 4.0"):
        couple_ranks(np.full(2, 4.0), two, 0.5, two / 3)
