"""Batch norm as a regularizer: reference values, bad input, arrays."""

import numpy as np
import pytest

from golden.regularization import EFFECTIVE_BATCH, EXPONENTIAL_GAP, FORMULAS, MISMATCHED
from normscope.errors import InputError
from normscope.theory import regularization as reg


@pytest.mark.parametrize("name", FORMULAS)
def test_reference_value(name):
    function, inputs, value, relative = FORMULAS[name]
    assert getattr(reg, function)(**inputs) == pytest.approx(value, rel=relative)


@pytest.mark.parametrize("in_batch", [True, False])
def test_exponential_law(in_batch):
    # Exp(1) - 1 by Gauss-Laguerre: moments rho = 6, s = 2 follow from the nodes
    nodes, weights = np.polynomial.laguerre.laggauss(120)
    value = reg.softplus_gap(
        1.0, 0.2, 32, in_batch=in_batch, normalized=nodes - 1, weights=weights, **MISMATCHED
    )
    assert value == pytest.approx(EXPONENTIAL_GAP[in_batch], rel=1e-6)


def test_effective_batch_size():
    inputs, value = EFFECTIVE_BATCH
    found = reg.effective_batch_size(reg.correlated_mean_variance(**inputs))
    assert found == pytest.approx(value, rel=1e-9)


def test_three_conventions():
    for m in (16, 1000):
        assert reg.linear_decay(m) == pytest.approx(3 / (4 * m))
        assert reg.linear_decay(m, centered=False) == pytest.approx(1 / (4 * m))
        assert reg.linear_decay(m, centered=False, loss_scale="full") == pytest.approx(1 / (2 * m))
        assert reg.relu_decay(m) == pytest.approx(3 / (8 * m))
        assert reg.relu_decay(m, centered=False, loss_scale="full") == pytest.approx(1 / (4 * m))


def test_squared_slopes_equal_curvature_only_for_labels_from_the_model():
    # I(gamma): with Var(y | x) = A'' the two forms agree, without label noise the slope form is 0
    n = np.linspace(-8, 8, 1601)
    w = np.exp(-(n**2) / 2)
    curvature = 1 / (1 + np.exp(-(n + 0.2)))
    from_curvature = reg.decay_from_deviation(curvature, n, 10, weights=w, excess_kurtosis=0.0)
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(4000, len(n))) * np.sqrt(curvature)  # slope = mean - label
    squared = np.mean(labels**2, axis=0)
    from_slopes = reg.decay_from_deviation(squared, n, 10, weights=w, excess_kurtosis=0.0)
    error = from_curvature * np.sqrt(2 / 4000) * np.sqrt(np.sum(w**2)) / np.sum(w) * 3
    assert abs(from_slopes - from_curvature) < 5 * error
    assert reg.decay_from_deviation(0 * n, n, 10, weights=w) == 0


def test_arrays_of_batch_sizes():
    sizes = np.array([4, 17, 64, 1000])
    for function in (reg.gaussian_deviation_mean, reg.linear_gap_in_batch, reg.linear_decay_exact):
        assert np.allclose(function(sizes), [function(int(m)) for m in sizes], rtol=1e-13)


@pytest.mark.parametrize("centered", [True, False])
def test_gaps_keep_their_digits_at_large_batches(centered):
    # the leading order plus the next one, known from the expansion of the Gamma function
    for m in (1e5, 1e8):
        lead = reg.linear_decay(m, centered=centered)
        assert reg.linear_gap_in_batch(m, centered=centered) == pytest.approx(lead, rel=2 / m)
        assert reg.linear_gap_independent(m, centered=centered) == pytest.approx(lead, rel=20 / m)


BAD = {
    "one sample": (lambda: reg.deviation_variance(1), "must be above 1"),
    "E 1/sigma_B": (lambda: reg.gaussian_inverse_deviation_mean(2), r"E\[1/sigma_B\]"),
    "E 1/sigma_B^2": (lambda: reg.gaussian_inverse_variance_mean(3), "above 3"),
    "uncentered": (lambda: reg.gaussian_inverse_variance_mean(2, centered=False), "above 2"),
    "bracket": (lambda: reg.linear_decay_bracket(3), "above 3"),
    "nan": (lambda: reg.deviation_mean(float("nan")), "nan"),
    "kurtosis": (lambda: reg.deviation_variance(8, excess_kurtosis=-2.5), "at least -2"),
    "std": (lambda: reg.mean_variance(8, std=-1.0), "not negative"),
    "scale": (lambda: reg.linear_decay(8, loss_scale="hlaf"), "'half'"),
    "zeta": (lambda: reg.linear_scale_decayed(-0.1), "at least 0"),
    "samples": (lambda: reg.deep_decay(np.ones((3, 2)), np.ones((3, 3)), 8), r"\(3, 3\)"),
    "hessian": (
        lambda: reg.deep_second_order(np.ones((3, 2)), np.ones((3, 2)), np.ones(2), 8),
        "neurons, neurons",
    ),
    "non-finite": (lambda: reg.deep_decay([[np.nan]], [[1.0]], 8), "finite. Got nan"),
    "non-finite slope": (lambda: reg.first_order_gap([np.inf], [1.0], 1.0, 8), "finite"),
    "common": (lambda: reg.correlated_mean_variance(8, positions=4, common=1.5), "common=1.5"),
    "variance": (lambda: reg.effective_batch_size(-1.0), "not negative"),
    "weight norm": (
        lambda: reg.population_to_weight_norm(
            1, 0, population_mean=0, weight_norm=0, input_variance=1
        ),
        "weight_norm",
    ),
    "negative noise": (
        lambda: reg.measured_decay(1.0, 1.0, mean_variance=-1, deviation_variance=1),
        "not negative",
    ),
    "shapes": (
        lambda: reg.correlated_second_order(np.ones((2, 2)), np.ones((4, 4)), batch_size=8),
        "square",
    ),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_bad_input(make, text):
    with pytest.raises(InputError, match=text):
        make()
