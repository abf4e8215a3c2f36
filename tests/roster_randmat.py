"""Products of Gaussian matrices: polynomial roots, adaptive quadrature, beta moments, autograd."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import beta as beta_function

from normscope.theory import randmat
from roster import NOT_FORMULAS, check

NOT_FORMULAS.update(
    {
        "conditioning.conditioning_by_depth": "a simulation",
        "conditioning.product_conditioning": "linear algebra on given matrices",
        "law.squared_mean": "a numerical rule, not a formula",
        "products.gaussian_factors": "draws matrices",
        "products.ks_distance": "compares numbers with the law",
        "products.product_spectrum": "a simulation",
    }
)
DEPTHS = (1, 2, 3, 7, 20)
VARIANCES = {1: 2.5, 2: (0.5, 3.0), 3: (1.0, 2.0, 0.25), 7: 0.9, 20: 1.1}


def scale_of(factors: int) -> float:
    return float(np.prod(np.broadcast_to(VARIANCES[factors], factors)))


def density_by_root(x: float, factors: int) -> float:
    """Im w / (pi x) for the root of w^(M+1) = x (w - 1) with argument in (0, pi / (M + 1))."""
    roots = np.roots([1.0, *([0.0] * (factors - 1)), -x, x])
    [root] = [r for r in roots if 1e-9 < np.angle(r) < math.pi / (factors + 1)]
    return float(root.imag) / (math.pi * x)


def mass_by_quadrature(x: float, factors: int) -> float:
    """Integral of the density up to x; in t with x = t^(M+1) the integrand is bounded."""
    power = factors + 1
    integrand = lambda t: density_by_root(t**power, factors) * power * t**factors  # noqa: E731
    return quad(integrand, 0, x ** (1 / power), epsabs=0, epsrel=1e-10, limit=200)[0]


@check("law.squared_of_angle")
def _():
    """The root of the polynomial at x has the angle that was asked for."""
    for m in DEPTHS:
        angles = np.linspace(0.1, 0.9, 5) * math.pi / (m + 1)
        x = randmat.squared_of_angle(angles, m, variances=VARIANCES[m]) / scale_of(m)
        for value, angle in zip(x, angles, strict=True):
            roots = np.roots([1.0, *([0.0] * (m - 1)), -value, value])
            nearest = min(np.angle(roots), key=lambda found: abs(found - angle))
            yield nearest, angle, 1e-9


@check("law.squared_edge")
def _():
    """The least of w^(M+1) / (w - 1) over real w > 1: below it the roots are complex."""
    for m in DEPTHS:
        power = lambda w, m=m: (m + 1) * math.log(w) - math.log(w - 1)  # noqa: E731
        least = math.exp(minimize_scalar(power, bounds=(1 + 1e-6, 3), method="bounded").fun)
        yield randmat.squared_edge(m), least, 1e-9
        yield randmat.squared_edge(m, variances=VARIANCES[m]), least * scale_of(m), 1e-9


@check("law.squared_density")
def _():
    for m in DEPTHS:
        edge, scale = randmat.squared_edge(m), scale_of(m)
        for x in (1e-5, 0.3, 1.0, 0.9 * edge):
            oracle = density_by_root(x, m)
            yield randmat.squared_density(x, m), oracle, 1e-10
            value = randmat.squared_density(x * scale, m, variances=VARIANCES[m])
            yield value, oracle / scale, 1e-10


@check("law.squared_cdf")
def _():
    for m in DEPTHS:
        for x in (1e-3, 0.5, 0.8 * randmat.squared_edge(m)):
            value = randmat.squared_cdf(x * scale_of(m), m, variances=VARIANCES[m])
            yield value, mass_by_quadrature(x, m), 1e-8


@check("law.squared_quantile")
def _():
    for m in DEPTHS:
        for share in (0.2, 0.6, 0.95):
            x = randmat.squared_quantile(share, m, variances=VARIANCES[m])
            yield mass_by_quadrature(float(x) / scale_of(m), m), share, 1e-8


def beta_moment(k: float, factors: int) -> float:
    """Mean of (x_+ B_1 ... B_M)^k, from the moments of beta variables."""
    m = factors
    product = math.exp(k * ((m + 1) * math.log(m + 1) - m * math.log(m)))
    for j in range(1, m + 1):
        a, b = j / (m + 1), (m + 1 + j) / (m * (m + 1))
        product *= beta_function(a + k, b) / beta_function(a, b)
    return product


@check("law.squared_moment")
def _():
    for m in DEPTHS:
        for k in (0, 1, 2, 6, 0.5, -0.4 / (m + 1)):
            value = randmat.squared_moment(k, m, variances=VARIANCES[m])
            yield value, beta_moment(k, m) * scale_of(m) ** k, 1e-10
    yield [randmat.squared_moment(k, 2) for k in (1, 2, 3)], [1, 3, 12], 1e-14
    yield [randmat.squared_moment(k, 3) for k in (1, 2, 3)], [1, 4, 22], 1e-14


@check("law.squared_samples")
def _():
    """Sample means of x^k within five standard errors of the binomials."""
    for m in (1, 3, 20):
        x = randmat.squared_samples(200_000, m, variances=VARIANCES[m], seed=1)
        for k in (1, 0.5):
            oracle = math.gamma(k * (m + 1) + 1) / math.gamma(k + 1) / math.gamma(k * m + 2)
            oracle *= scale_of(m) ** k
            error = (x**k).std() / math.sqrt(x.size)
            yield (x**k).mean(), oracle, 5 * error / oracle


@check("singular.singular_density")
def _():
    for m in DEPTHS:
        s = 0.7 * math.sqrt(scale_of(m))
        value = randmat.singular_density(s, m, variances=VARIANCES[m])
        yield value, 2 * s * density_by_root(0.49, m) / scale_of(m), 1e-10
    for s in (0.0, 0.3, 1.9):  # a quarter of an ellipse
        value = randmat.singular_density(s, 1, variances=4.0)
        yield value, math.sqrt(16 - s**2) / (4 * math.pi), 1e-12


@check("singular.singular_cdf")
def _():
    for m in DEPTHS:
        value = randmat.singular_cdf(0.7 * math.sqrt(scale_of(m)), m, variances=VARIANCES[m])
        yield value, mass_by_quadrature(0.49, m), 1e-8


@check("singular.singular_quantile")
def _():
    for m in DEPTHS:
        s = float(randmat.singular_quantile(0.7, m, variances=VARIANCES[m]))
        yield mass_by_quadrature(s**2 / scale_of(m), m), 0.7, 1e-8


@check("singular.singular_moment")
def _():
    for m in DEPTHS:
        for k in (1, 2, 5):
            value = randmat.singular_moment(k, m, variances=VARIANCES[m])
            yield value, beta_moment(k / 2, m) * scale_of(m) ** (k / 2), 1e-10
    yield randmat.singular_moment(1, 1), 8 / (3 * math.pi), 1e-13  # mean of a quarter circle


@check("singular.singular_edge")
def _():
    yield [randmat.singular_edge(m) for m in (1, 3, 10)], [2, 3.079201436, 5.341457391], 1e-9
    yield randmat.singular_edge(2, variances=(4.0, 9.0)), 6 * math.sqrt(6.75), 1e-13


@check("singular.singular_samples")
def _():
    s = randmat.singular_samples(200_000, 3, variances=VARIANCES[3], seed=2)
    oracle = beta_moment(0.5, 3) * scale_of(3) ** 0.5
    yield s.mean(), oracle, 5 * s.std() / math.sqrt(s.size) / oracle


def network(seed: int = 0) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal(shape) for shape in ((4, 5), (3, 4), (6, 3))]
    return weights, rng.standard_normal((5, 20)), rng.standard_normal((6, 20))


def torch_loss(weights: list[torch.Tensor], x: np.ndarray, y: np.ndarray) -> torch.Tensor:
    total = torch.zeros(())
    for sample, target in zip(x.T, y.T, strict=True):
        signal = torch.tensor(sample)
        for weight in weights:
            signal = weight @ signal
        total = total + ((signal - torch.tensor(target)) ** 2).sum()
    return total


@check("linear_network.linear_loss")
def _():
    weights, x, y = network()
    oracle = torch_loss([torch.tensor(w) for w in weights], x, y)
    yield randmat.linear_loss(weights, x, targets=y), oracle.item(), 1e-12


@check("linear_network.linear_gradient")
def _():
    weights, x, y = network()
    leaves = [torch.tensor(w, requires_grad=True) for w in weights]
    gradients = torch.autograd.grad(torch_loss(leaves, x, y), leaves)
    for layer, gradient in enumerate(gradients, start=1):
        value = randmat.linear_gradient(weights, x, targets=y, layer=layer)
        yield value, gradient.numpy(), 1e-10


@check("linear_network.linear_reduction")
def _():
    """The same value at a random weight; the least one by least squares in vec(A_i)."""
    weights, x, y = network()
    for layer in (1, 2, 3):
        made = randmat.linear_reduction(weights, x, targets=y, layer=layer)
        value = made.loss(made.reduced(weights[layer - 1]))
        yield value, randmat.linear_loss(weights, x, targets=y), 1e-12
        above, below = np.eye(weights[layer - 1].shape[0]), x
        for weight in weights[layer:]:
            above = weight @ above
        for weight in weights[: layer - 1]:
            below = weight @ below
        design = np.kron(below.T, above)
        least = y.T.ravel() - design @ np.linalg.pinv(design) @ y.T.ravel()
        yield made.optimum(), np.sum(least**2), 1e-10
