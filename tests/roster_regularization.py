"""Numeric roster of batch norm as a regularizer: quadrature, literal sums, autograd, mpmath."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import torch
from scipy import integrate
from scipy.special import gammaln
from scipy.stats import binom
from torch.autograd.functional import hessian, jacobian

from normscope.theory import regularization as reg
from roster import check

CASES = [(m, c) for m in (5, 8, 32, 300) for c in (True, False)]


def gaussian_deviation(power, batch_size, centered):
    """E[sigma_B^power] of standard Gaussian values, from the density of chi-squared."""
    nu = batch_size - centered

    def integrand(s):
        log_density = mpmath.log(s) * (nu / 2 - 1) - s / 2 - mpmath.loggamma(nu / 2)
        return mpmath.exp(log_density - nu / 2 * mpmath.log(2)) * (s / batch_size) ** (power / 2)

    points = [0, nu / 2, nu, 2 * nu, mpmath.inf]
    return float(mpmath.quad(integrand, points))


def gauss_mean(f):
    density = lambda x: np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)  # noqa: E731
    return integrate.quad(lambda x: f(x) * density(x), -12, 12, epsabs=1e-13, limit=400)[0]


def sample(rows=7, neurons=3, seed=0):
    """Skewed, correlated values of mean 0 and variance 1, and slopes."""
    rng = np.random.default_rng(seed)
    n = rng.exponential(size=(rows, neurons)) @ rng.normal(size=(neurons, neurons))
    n = (n - n.mean(0)) / n.std(0)
    return n, rng.normal(size=(rows, neurons)), rng.normal(size=neurons)


@check("batch_statistics.mean_variance")
def _():
    # every batch of two out of four values, with replacement
    values = np.array([0.0, 1.0, 5.0, -2.0])
    means = [np.mean(b) for b in itertools.product(values, repeat=3)]
    yield reg.mean_variance(3, std=values.std()), np.var(means), 1e-12


def expansion(law, moment):
    """Coefficient of 1/M of a moment of batch statistics, from two large M.

    ``law``: low and high value and the chance of the high one; batches are binomial counts.
    """
    low, high, p = law
    found = []
    for m in (4000, 8000):
        k = np.arange(m + 1)
        weights = binom.pmf(k, m, p)
        means = low + (high - low) * k / m
        deviations = (high - low) * np.sqrt(k / m * (1 - k / m))
        found.append(m * moment(weights, means, deviations))
    return 2 * found[1] - found[0]  # the next order cancels


LAW = (-1.0, 2.0, 0.3)
SIGMA = 3 * np.sqrt(0.21)
MEAN = -1 + 3 * 0.3
SKEW = (0.7 * (-1 - MEAN) ** 3 + 0.3 * (2 - MEAN) ** 3) / SIGMA**3
RHO = (0.7 * (-1 - MEAN) ** 4 + 0.3 * (2 - MEAN) ** 4) / SIGMA**4 - 3


@check("batch_statistics.deviation_mean")
def _():
    oracle = expansion(LAW, lambda w, m, s: w @ s - SIGMA)
    yield reg.deviation_mean(1000, std=SIGMA, excess_kurtosis=RHO) - SIGMA, oracle / 1000, 1e-4
    # uncentered: E[sqrt(1 + Q)] = 1 - Var(Q)/8, Var(Q) = (rho + 2)/M
    value = reg.deviation_mean(50, std=2.0, excess_kurtosis=1.0, centered=False)
    yield value, 2 * (1 - 3 / 50 / 8), 1e-14


@check("batch_statistics.deviation_variance")
def _():
    oracle = expansion(LAW, lambda w, m, s: w @ (s - w @ s) ** 2)
    yield reg.deviation_variance(1000, std=SIGMA, excess_kurtosis=RHO), oracle / 1000, 1e-4


@check("batch_statistics.mean_deviation_covariance")
def _():
    oracle = expansion(LAW, lambda w, m, s: w @ ((m - w @ m) * (s - w @ s)))
    yield reg.mean_deviation_covariance(1000, std=SIGMA, skewness=SKEW), oracle / 1000, 1e-4


@check("batch_statistics.gaussian_deviation_mean")
def _():
    for m, c in CASES:
        value = reg.gaussian_deviation_mean(m, centered=c)
        yield value, gaussian_deviation(1, m, c), 1e-11


@check("batch_statistics.gaussian_inverse_deviation_mean")
def _():
    for m, c in CASES:
        value = reg.gaussian_inverse_deviation_mean(m, centered=c)
        yield value, gaussian_deviation(-1, m, c), 1e-11


@check("batch_statistics.gaussian_inverse_variance_mean")
def _():
    for m, c in CASES:
        value = reg.gaussian_inverse_variance_mean(m, centered=c)
        yield value, gaussian_deviation(-2, m, c), 1e-10


@check("batch_statistics.correlated_mean_variance")
def _():
    covariance = 4.0 * (0.3 * np.ones((5, 5)) + 0.7 * np.eye(5))  # one image of five positions
    oracle = covariance.mean() / 12
    yield reg.correlated_mean_variance(12, positions=5, common=0.3, std=2.0), oracle, 1e-13


@check("batch_statistics.effective_batch_size")
def _():
    yield reg.effective_batch_size(reg.mean_variance(48, std=3.0), std=3.0), 48.0, 1e-13


@check("layer_gap.decay_from_mean")
def _():
    c = np.array([0.5, 2.0, -1.0, 3.0])
    yield reg.decay_from_mean(c, 10), sum(c) / 4 / 20, 1e-14
    yield reg.decay_from_mean(c, 10, weights=[1, 0, 0, 1]), 1.75 / 20, 1e-14


@check("layer_gap.decay_from_deviation")
def _():
    c, n = np.array([0.5, 2.0, -1.0]), np.array([1.2, -0.3, 0.1])
    oracle = (1.5 + 2) / 80 * (0.5 * 1.44 + 2 * 0.09 - 0.01) / 3
    yield reg.decay_from_deviation(c, n, 10, excess_kurtosis=1.5), oracle, 1e-14


@check("layer_gap.gamma_decay_strength")
def _():
    n, curvature, _ = sample()
    h = curvature[:, 0] ** 2
    value = reg.gamma_decay_strength(h, n[:, 0], 9)
    yield value, reg.deep_decay(n[:, :1], h[:, None], 9)[0], 1e-13


@check("layer_gap.first_order_gap")
def _():
    n, slope, gamma = sample()
    for inside in (True, False):
        value = reg.first_order_gap(slope[:, 1], n[:, 1], gamma[1], 9, in_batch=inside)
        oracle = reg.deep_first_order(n[:, 1:2], slope[:, 1:2], gamma[1:2], 9, in_batch=inside)
        yield value, oracle, 1e-13


@check("layer_gap.second_order_gap")
def _():
    n, curvature, gamma = sample()
    value = reg.second_order_gap(curvature[:, 0], n[:, 0], gamma[0], 9)
    oracle = reg.deep_second_order(n[:, :1], curvature[:, :1, None], gamma[:1], 9)
    yield value, oracle, 1e-13


@check("layer_gap.loss_gap")
def _():
    # a linear unit: every batch of M out of three values counted, M to infinity
    n, _, _ = sample(rows=3, neurons=1, seed=3)
    n, y = n[:, 0], np.array([0.3, -1.0, 2.0])
    value = 2 * reg.loss_gap(1.3 * n + 0.2 - y, np.ones(3), n, 1.3, 2)
    low, high = (m * counted_gap(n, y, m) for m in (400, 800))
    yield value, 2 * high - low, 1e-4


def counted_gap(n, y, m):
    """Exact mean over batches of m values drawn with replacement, of a linear unit's loss."""
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(m), np.arange(m)))
    counts = np.stack([a, b, m - a - b])[:, (a + b <= m) & (a + b > 0)]
    log = gammaln(m + 1) - gammaln(counts + 1).sum(0) - m * np.log(3)
    share = counts / m
    mean = n @ share
    std = np.sqrt(((n[:, None] - mean) ** 2 * share).sum(0))
    out = 1.3 * (n[:, None] - mean) / std + 0.2
    losses = (0.5 * (out - y[:, None]) ** 2 * share).sum(0)
    return np.exp(log) @ losses - np.mean(0.5 * (1.3 * n + 0.2 - y) ** 2)


@check("regularization.deep_decay")
def _():
    n, h, _ = sample()
    for i in range(3):
        terms = [
            0.5 * h[j, i] * ((np.mean(n[:, i] ** 4) - 1) / 36 * n[j, i] ** 2 + 1 / 9)
            for j in range(7)
        ]
        yield reg.deep_decay(n, h, 9)[i], sum(terms) / 7, 1e-13


def gap_by_autograd(n, loss, gamma, *, in_batch):
    """d/d(1/M) of the mean loss: all pairs (sample, one other), derivatives by autograd.

    The batch that sample a sees is a plus M - 1 others, so that to first order in 1/M the noise
    has mean (n_a, n_a^2 - 1)/M in batch, and the covariance of one sample over M.
    """
    n, gamma = torch.tensor(n), torch.tensor(gamma)
    size = len(n)
    total = 0.0
    for a in range(size):

        def shifted(mean, square, a=a):
            # the very formula of batch norm, with the batch's mean and mean square
            variance = 1 + square - mean**2
            return loss(a, gamma * (n[a] - mean) / variance.sqrt())

        zero = torch.zeros_like(n[a])
        first = jacobian(shifted, (zero, zero))
        second = hessian(shifted, (zero, zero))
        own = torch.stack([n[a], n[a] ** 2 - 1])
        total += float((torch.stack(first) * own).sum()) if in_batch else 0.0
        for b in range(size):
            v = (n[b], n[b] ** 2 - 1)
            for i, k in itertools.product((0, 1), repeat=2):
                total += 0.5 * float(v[i] @ second[i][k] @ v[k]) / size
    return total / size


def network_loss(seed=0):
    torch.manual_seed(seed)
    w, y = torch.randn(2, 3, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    return lambda a, h: 0.5 * ((w @ torch.nn.functional.softplus(h) - y[a]) ** 2).sum()


def derivatives(n, loss, gamma):
    h = torch.tensor(n * gamma)
    pairs = [(lambda x, a=a: loss(a, x)) for a in range(len(h))]
    slopes = torch.stack([jacobian(f, x) for f, x in zip(pairs, h, strict=True)])
    second = torch.stack([hessian(f, x) for f, x in zip(pairs, h, strict=True)])
    return slopes.numpy(), second.numpy()


@check("regularization.deep_first_order")
def _():
    n, _, gamma = sample()
    loss = network_loss()
    slope, curvature = derivatives(n, loss, gamma)
    for inside in (True, False):
        both = reg.deep_first_order(n, slope, gamma, 2, in_batch=inside)
        both += reg.deep_second_order(n, curvature, gamma, 2)
        yield 2 * both, gap_by_autograd(n, loss, gamma, in_batch=inside), 1e-10


@check("regularization.deep_second_order")
def _():
    n, _, gamma = sample(seed=4)
    _, curvature = derivatives(n, network_loss(1), gamma)
    oracle = 0.0
    for a, b in itertools.product(range(7), repeat=2):
        v = gamma * (n[a] * (n[b] ** 2 - 1) / 2 + n[b])  # the noise that sample b adds
        oracle += v @ curvature[a] @ v / 49 / 2 / 11
    yield reg.deep_second_order(n, curvature, gamma, 11), oracle, 1e-12


@check("regularization.measured_decay")
def _():
    n, h, _ = sample()
    rho = np.mean(n**4, axis=0) - 3
    value = reg.measured_decay(
        np.mean(h * n**2, axis=0), h.mean(0), mean_variance=1 / 9, deviation_variance=(rho + 2) / 36
    )
    yield value, reg.deep_decay(n, h, 9), 1e-13


@check("regularization.noise_covariance")
def _():
    n, _, _ = sample()
    value = reg.noise_covariance(n, n**2)
    yield value[3:, 3:], n.T @ n / 7, 1e-12
    yield value[0, 4], np.mean(n[:, 0] ** 2 * n[:, 1]) / 2, 1e-12
    yield value[0, 1], (np.mean(n[:, 0] ** 2 * n[:, 1] ** 2) - 1) / 4, 1e-12


@check("regularization.correlated_first_order")
def _():
    n, slope, gamma = sample()
    for inside in (True, False):
        value = reg.correlated_first_order(
            -slope * gamma * n, -slope * gamma, sample_means=n, sample_squares=n**2,
            batch_size=9, in_batch=inside,
        )  # fmt: skip
        yield value, reg.deep_first_order(n, slope, gamma, 9, in_batch=inside), 1e-12


@check("regularization.correlated_second_order")
def _():
    n, _, gamma = sample()
    _, curvature = derivatives(n, network_loss(), gamma)
    scaled = curvature * np.outer(gamma, gamma)
    by_deviation = np.einsum("ai,aik,ak->ik", n, scaled, n) / 7
    mixed = np.einsum("ai,aik->ik", n, scaled) / 7
    matrix = np.block([[by_deviation, mixed], [mixed.T, scaled.mean(0)]])
    value = reg.correlated_second_order(matrix, reg.noise_covariance(n, n**2), batch_size=9)
    yield value, reg.deep_second_order(n, curvature, gamma, 9), 1e-12


@check("decay_closed_forms.relu_decay")
def _():
    for centered, scale in itertools.product((True, False), ("half", "full")):
        n = np.linspace(-12, 12, 48001)
        w = np.exp(-(n**2) / 2)
        on = (n > 0) + 0.5 * (n == 0)
        oracle = reg.decay_from_deviation(on, n, 16, excess_kurtosis=0.0, weights=w)
        oracle += centered * reg.decay_from_mean(on, 16, weights=w)
        factor = 2 if scale == "full" else 1
        yield reg.relu_decay(16, centered=centered, loss_scale=scale), factor * oracle, 1e-9


@check("decay_closed_forms.linear_decay")
def _():
    for centered, scale in itertools.product((True, False), ("half", "full")):
        m = 1e7
        exact = reg.linear_gap_in_batch(m, centered=centered, loss_scale=scale)
        yield reg.linear_decay(m, centered=centered, loss_scale=scale), exact, 1e-6


@check("decay_closed_forms.linear_decay_bracket")
def _():
    for m in (5, 8, 40, 300):
        inverse, inverse2 = (gaussian_deviation(p, m, True) for p in (-1, -2))
        for part in (True, False):
            oracle = 0.5 * (1 - 2 * inverse + (1 + part / m) * inverse2)
            yield reg.linear_decay_bracket(m, mean_part=part), oracle, 1e-8


@check("decay_closed_forms.linear_decay_exact")
def _():
    yield reg.linear_decay_exact(20), reg.linear_decay_bracket(20), 1e-13
    inverse, inverse2 = (gaussian_deviation(p, 20, False) for p in (-1, -2))
    yield reg.linear_decay_exact(20, centered=False), 0.5 - inverse + inverse2 / 2, 1e-9


@check("decay_closed_forms.linear_gap_in_batch")
def _():
    for m, c in CASES:
        oracle = 0.8 * 0.6 * (1 - gaussian_deviation(1, m, c))
        yield reg.linear_gap_in_batch(m, gamma=0.8, correlation=0.6, centered=c), oracle, 1e-8


@check("decay_closed_forms.linear_gap_independent")
def _():
    for m, c in CASES:
        inverse, inverse2 = (gaussian_deviation(p, m, c) for p in (-1, -2))
        oracle = -0.48 * (inverse - 1) + 0.32 * ((1 + c / m) * inverse2 - 1)
        value = reg.linear_gap_independent(m, gamma=0.8, correlation=0.6, centered=c)
        yield value, oracle, 1e-8


def minimizer(loss):
    """Of a parabola, from three of its points."""
    low, mid, high = loss(0.0), loss(1.0), loss(2.0)
    return 1.0 - (high - low) / (2 * (high - 2 * mid + low))


@check("decay_closed_forms.linear_scale_in_batch")
def _():
    for m, c in CASES:
        oracle = minimizer(
            lambda g, m=m, c=c: (
                0.5 * (1 - 2 * g * 0.7 + g * g)
                + reg.linear_gap_in_batch(m, gamma=g, correlation=0.7, centered=c)
            )
        )
        yield reg.linear_scale_in_batch(m, correlation=0.7, centered=c), oracle, 1e-10
    yield reg.linear_scale_in_batch(1e4) - 1, -3 / 4e4, 1e-3
    yield reg.linear_scale_in_batch(1e4, centered=False) - 1, -1 / 4e4, 1e-3


@check("decay_closed_forms.linear_scale_independent")
def _():
    for m, c in CASES:
        oracle = minimizer(
            lambda g, m=m, c=c: (
                0.5 * (1 - 2 * g * 0.7 + g * g)
                + reg.linear_gap_independent(m, gamma=g, correlation=0.7, centered=c)
            )
        )
        yield reg.linear_scale_independent(m, correlation=0.7, centered=c), oracle, 1e-10
    yield reg.linear_scale_independent(1e4, centered=False) - 1, -5 / 4e4, 1e-3


@check("decay_closed_forms.linear_scale_decayed")
def _():
    oracle = minimizer(lambda g: 0.5 * (1 - 2 * g * 0.7 + g * g) + 0.3 * g * g)
    yield reg.linear_scale_decayed(0.3, correlation=0.7), oracle, 1e-12


def softplus(x):
    return np.logaddexp(0, x)


def logistic(x):
    return 1 / (1 + np.exp(-x))


@check("decay_closed_forms.softplus_decay")
def _():
    for gamma, beta in ((1.0, 0.2), (2.0, 0.3), (-0.7, 1.5), (5.0, -1.0)):
        square = gauss_mean(lambda n, g=gamma, b=beta: logistic(g * n + b) * n * n)
        plain = gauss_mean(lambda n, g=gamma, b=beta: logistic(g * n + b))
        yield reg.softplus_decay(gamma, beta, 7), square / 28 + plain / 14, 1e-9


@check("decay_closed_forms.softplus_gap")
def _():
    for inside in (True, False):

        def integrand(n, inside=inside):
            h = 0.9 * n - 0.4
            slope = softplus(h) - softplus(1.4 * n + 0.3)
            own = -(n**3) / 2 if inside else n / 2
            return 0.9 / 7 * slope * (0.75 * n + own) + 0.81 / 14 * logistic(h) * (n * n / 2 + 1)

        value = reg.softplus_gap(0.9, -0.4, 7, target_scale=1.4, target_shift=0.3, in_batch=inside)
        yield value, gauss_mean(integrand), 1e-9


@check("decay_closed_forms.population_to_weight_norm")
def _():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 6)) * 0.5 + 0.2, rng.normal(size=6)
    norm, mean, std = np.linalg.norm(w), w @ np.full(6, 0.2), 0.5 * np.linalg.norm(w)
    v, b = reg.population_to_weight_norm(
        1.7, 0.4, population_mean=mean, weight_norm=norm, input_variance=0.25
    )
    yield v * (x @ w) / norm + b, 1.7 * (x @ w - mean) / std + 0.4, 1e-12
