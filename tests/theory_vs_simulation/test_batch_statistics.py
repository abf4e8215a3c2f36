"""Batch statistics and loss gaps, simulated with many batches, against the formulas."""

import numpy as np
import pytest
from scipy.special import expit, spence

from golden.regularization import SIMULATED
from normscope.theory import regularization as reg

SAMPLES = 4_000_000  # values behind each check
SPAN = 128  # batches of every size are cut from the same values
LAWS = {  # draw, excess kurtosis, skewness; mean 0, variance 1
    "gauss": (lambda rng, shape: rng.normal(size=shape), 0.0, 0.0),
    "uniform": (lambda rng, shape: rng.uniform(-1, 1, shape) * np.sqrt(3), -1.2, 0.0),
    "laplace": (lambda rng, shape: rng.laplace(size=shape) / np.sqrt(2), 3.0, 0.0),
    "exponential": (lambda rng, shape: rng.exponential(size=shape) - 1, 6.0, 2.0),
}


def batches(law, size, seed=0):
    rng = np.random.default_rng(seed)
    return LAWS[law][0](rng, (SAMPLES // size, size))


def within(values, expected, *, errors=5.0, slack=0.0):
    """The mean of independent values, by its standard error; ``slack``: the neglected order."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - expected) < errors * error + slack, (np.mean(values), expected)


def leading(whole, halves, size):
    """M times a mean over batches, M to infinity: the next order of two sizes cancels."""
    return 2 * size * whole - size / 2 * halves.reshape(len(whole), 2).mean(1)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_of_the_batch_statistics(law):
    _, rho, skew = LAWS[law]
    size = 128
    drawn = batches(law, size)
    values = []
    for group in (drawn, drawn.reshape(-1, size // 2)):
        mean, off = group.mean(1), group.std(1)
        centred = off - off.mean()
        values.append((mean**2, off - 1, centred**2, mean * centred))
    found = [leading(a, b, size) for a, b in zip(*values, strict=True)]
    within(found[0], reg.mean_variance(size) * size)
    within(found[1], (reg.deviation_mean(size, excess_kurtosis=rho) - 1) * size)
    within(found[2], reg.deviation_variance(size, excess_kurtosis=rho) * size)
    within(found[3], reg.mean_deviation_covariance(size, skewness=skew) * size)


@pytest.mark.parametrize("law", LAWS)
def test_the_neglected_order_of_the_variance_is_one_over_m_squared(law):
    _, rho, _ = LAWS[law]
    off = []
    for size in (8, 32):
        deviations = batches(law, size).std(1)
        off.append(deviations.var() - reg.deviation_variance(size, excess_kurtosis=rho))
    if law != "gauss":  # whose next order is too small to see
        assert 8 < off[0] / off[1] < 32  # (32/8)^2 = 16


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("size", [5, 8, 32])
def test_exact_gaussian_moments(size, centered):
    drawn = batches("gauss", size)
    deviations = drawn.std(1) if centered else np.sqrt(np.mean(drawn**2, axis=1))
    within(deviations, reg.gaussian_deviation_mean(size, centered=centered))
    within(1 / deviations, reg.gaussian_inverse_deviation_mean(size, centered=centered))
    if size > 5:  # below, the fourth inverse moment is infinite: no standard error
        within(deviations**-2.0, reg.gaussian_inverse_variance_mean(size, centered=centered))


def softplus_loss(h, y):
    return -spence(1 + np.exp(h)) - y * h


def softplus_gaps(law, size, *, target, gamma=1.0, beta=0.2, in_batch=True):
    """Loss gap of each batch, (batches,); labels softplus(t n + u)."""
    drawn = batches(law, SPAN).reshape(-1, size)
    n = drawn if in_batch else batches(law, SPAN, seed=1).reshape(-1, size)
    y = np.logaddexp(0, target[0] * n + target[1])
    mean, deviation = drawn.mean(1, keepdims=True), drawn.std(1, keepdims=True)
    batch = softplus_loss(gamma * (n - mean) / deviation + beta, y)
    return np.mean(batch - softplus_loss(gamma * n + beta, y), axis=1)


MATCHED, OTHER = (1.0, 0.2), (1.5, -0.5)


@pytest.mark.parametrize(
    ("name", "target", "in_batch"),
    [
        ("softplus matched in batch", MATCHED, True),
        ("softplus matched independent", MATCHED, False),
        ("softplus mismatched in batch", OTHER, True),
    ],
)
def test_simulated_reference_gaps(name, target, in_batch):
    size, value, relative = SIMULATED[name]
    gaps = softplus_gaps("gauss", size, target=target, in_batch=in_batch)
    within(gaps, value, slack=relative * value)


def test_simulated_reference_variances():
    for name, law in (("var sigma_B laplace", "laplace"), ("var sigma_B gauss", "gauss")):
        size, value, relative = SIMULATED[name]
        deviations = batches(law, size).std(1)
        within((deviations - deviations.mean()) ** 2, value, slack=relative * value)


@pytest.mark.parametrize("law", ["gauss", "exponential"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_the_complete_gap_is_right_to_order_one_over_m(law, in_batch):
    """Labels not from the model: the complete formula converges, Eq. (3) alone does not."""
    _, rho, skew = LAWS[law]
    rng = np.random.default_rng(5)
    n = LAWS[law][0](rng, 2_000_000)
    h, y = n + 0.2, np.logaddexp(0, 1.5 * n - 0.5)
    size = 128
    law_of_n = {"excess_kurtosis": rho, "skewness": skew}
    complete = reg.loss_gap(
        np.logaddexp(0, h) - y, expit(h), n, 1.0, size, in_batch=in_batch, **law_of_n
    )
    paper = reg.gamma_decay_strength(expit(h), n, size, excess_kurtosis=rho)
    whole, halves = (
        softplus_gaps(law, m, target=OTHER, in_batch=in_batch) for m in (size, size // 2)
    )
    found = leading(whole, halves, size)
    within(found, complete * size)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - paper * size) > 3 * error


def test_linear_student_in_batch_is_exact():
    size, value, relative = SIMULATED["linear in batch"]
    rng = np.random.default_rng(2)
    gamma, r = 0.8, 0.6
    n = rng.normal(size=(SAMPLES // size, size))
    y = r * n + np.sqrt(1 - r * r) * rng.normal(size=n.shape)
    unit = (n - n.mean(1, keepdims=True)) / n.std(1, keepdims=True)
    gaps = np.mean(0.5 * (y - gamma * unit) ** 2 - 0.5 * (y - gamma * n) ** 2, axis=1)
    exact = reg.linear_gap_in_batch(size, gamma=gamma, correlation=r)
    within(gaps, exact)
    assert exact == pytest.approx(value, rel=relative)


def test_the_variance_of_the_mean_of_correlated_positions():
    rng = np.random.default_rng(0)
    size, positions, common = 16, 9, 0.4
    shape = (20_000, size, 1)
    image = np.sqrt(common) * rng.normal(size=shape)
    own = np.sqrt(1 - common) * rng.normal(size=(*shape[:2], positions))
    means = (image + own).mean((1, 2))
    within(means**2, reg.correlated_mean_variance(size, positions=positions, common=common))
