"""Bjorck's ResNet-110 at initialization on CIFAR-10: what must show, as ratios; cost."""

import numpy as np
import pytest
from benchmarks.bjorck_init import GIGABYTES, SECONDS, measured

from golden.measurements_bjorck import (
    ALIGNED_BATCH_NORM,
    ALIGNED_PLAIN,
    BY_POSITION_BATCH_NORM,
    CHANNEL_RATIO,
    FIRST_OVER_SECOND,
    FLAT_SLOPE,
    GRADIENT_GAP,
    MATRIX_BATCH_NORM,
    MATRIX_PLAIN,
    MEAN_CORRELATION,
    STD_GAP,
    TABLE_1,
    VARIANCE_SLOPE,
)

pytestmark = pytest.mark.real_data
T1, T2, T3, T4, ALIGNED = range(5)


@pytest.fixture(scope="module", params=[0, 1, 2], ids="seed {}".format)
def both(request):
    """Without and with batch norm, each measured in a process of its own."""
    return measured("none", request.param), measured("batch", request.param)


def within(value, band):
    return band[0] <= value <= band[1]


def test_alignment(both):
    plain, normed = (found["table_1"] for found in both)
    for layer, band in ALIGNED_BATCH_NORM.items():
        assert within(normed[str(layer)][ALIGNED], band)
        assert within(plain[str(layer)][ALIGNED], ALIGNED_PLAIN)
        share = normed[str(layer)][T3] / normed[str(layer)][T1]
        assert within(share, BY_POSITION_BATCH_NORM)
        assert plain[str(layer)][T4] / normed[str(layer)][T4] > GRADIENT_GAP


def test_numbering_of_layers(both):
    """The two convolutions of a block differ in a way that a shifted number would turn round."""
    _, normed = both
    t1 = {int(layer): row[T1] for layer, row in normed["table_1"].items()}
    assert t1[18] > t1[54] > t1[90]
    assert within(t1[18] / t1[19], FIRST_OVER_SECOND)


def test_printed_table(both):
    """Ratios of columns within a factor of four of the printed; the gap of T4 in its direction."""
    for found, norm in zip(both, (False, True), strict=True):
        for layer in (18, 19, 54, 55, 90, 91):
            row, printed = found["table_1"][str(layer)], TABLE_1[layer, norm]
            for column in (T2, T3, T4):
                ratio = (row[column] / row[T1]) / (printed[column] / printed[T1])
                assert 1 / 4 < ratio < 4, (layer, norm, column)


def test_gradient_histogram(both):
    plain, normed = (found["fig2"] for found in both)
    assert plain["std"] / normed["std"] > STD_GAP
    assert plain["kurtosis"] > normed["kurtosis"]


def test_growth_with_depth(both):
    plain, normed = (found["fig3"] for found in both)
    for which in ("even", "odd"):
        assert within(plain[which][0], VARIANCE_SLOPE)
    assert abs(normed["odd"][0]) < FLAT_SLOPE
    assert plain["largest_mean"] > 100
    assert normed["largest_mean"] < 20


def test_channel_matrix(both):
    plain, normed = (found["fig7"] for found in both)
    for name, bound in MATRIX_PLAIN.items():
        assert plain[name] > bound
    for name, bound in MATRIX_BATCH_NORM.items():
        assert normed[name] < bound


def test_channel_means(both):
    plain, normed = (found["fig18"] for found in both)
    assert plain["r"] > MEAN_CORRELATION
    assert normed["max_over_min"] < CHANNEL_RATIO


def test_classes(both):
    for found in both:
        assert found["fig21"]["sum_error"] < 1e-4
        assert found["fig21"]["dominant"] == found["fig4"]["favoured"]
    plain, normed = (found["fig21"]["top_over_median"] for found in both)
    assert plain > normed > 1


def test_terms_of_single_weights(both):
    plain, normed = (found["fig23"] for found in both)
    assert plain["r"] > normed["r"]
    assert plain["median"] > 10 * normed["median"]


def test_dying_and_full_units(both):
    plain, normed = both
    assert plain["dying"] > 0
    assert plain["full"] > 0
    assert normed["dying"] == 0
    assert normed["full"] == 0


def test_cost(both):
    for found in both:
        assert found["cpu_seconds"] < SECONDS
        assert found["gigabytes"] < GIGABYTES
        assert np.isfinite(found["loss"])
