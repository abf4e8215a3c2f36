"""The numeric roster: every formula of ``normscope.theory`` beside an independent number.

Each entry yields ``(value, oracle, relative tolerance)``. Oracles are adaptive quadrature, explicit
small matrices, literal loops, iteration of the map, or autograd; golden numbers and simulated
networks are tested elsewhere. ``test_completeness.py`` fails for a formula that is not here or in
another file ``roster_*.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gaussian
import normscope as ns
from normscope.spec import activation
from normscope.theory import fisher, integrals, kernel, layernorm
from normscope.theory.meanfield import batchnorm, fixed_points, order, residual, vanilla
from normscope.theory.meanfield.networks import stack

Check = Callable[[], Iterator[tuple[Any, Any, float]]]
NUMERIC: dict[str, Check] = {}
NOT_FORMULAS = {  # public functions of theory that state no formula
    "assemble.assembled": "puts formulas together for one network",
    "assemble.assembled_from_data": "puts formulas together for one network",
    "batch_statistics.checked_batch_size": "checks an argument",
    "batch_statistics.checked_law": "checks two arguments",
    "batch_statistics.log_deviation_mean": "the logarithm of gaussian_deviation_mean",
    "batch_statistics.log_inverse_deviation_mean": "that of gaussian_inverse_deviation_mean",
    "batchnorm.scaled_pair": "an integrand of train_gram, checked through it",
    "grams.gram_of": "chooses the formulas of a theory",
    "kernel.checked_inputs": "checks the inputs",
    "kernel.input_gram": "multiplies the inputs",
    "laws.draw": "draws from a law",
    "laws.nodes": "quadrature rules of numpy for a law, checked by their moments",
    "quadrature.angular_mean": "a quadrature rule, checked by closed forms and draws",
    "networks.shape_of": "says which specs share a recursion",
    "networks.stack": "arrays from specs",
    "outputs.with_output_norm": "chooses the formulas of the norm on the outputs",
    "order.forward_pass": "the loop over layers that all recursions share",
    "order.pooled": "averages over positions, one line",
    "order.stacked_forward": "arrays from lists of rows",
    "predict.predict": "the front door; its parts are the formulas",
    "quadrature.correlation": "one division, made safe",
    "quadrature.gaussian_mean": "a numerical rule, not a formula",
    "quadrature.gaussian_pair_mean": "a numerical rule, not a formula",
    "quadrature.hermite_coefficients": "a numerical rule, not a formula",
}
SMOOTH = ("tanh", "sigmoid", "softplus", "gelu", "silu")
NAMED = ("linear", "relu", "leaky_relu(0.1)", "erf", "erf(0.5)", *SMOOTH)
PAIRS = ((1.0, 0.5, None), (2.5, -1.1, None), (1.3, 0.7, 2.9), (0.4, -0.3, 3.0))


def check(name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        NUMERIC[name] = function
        return function

    return add


def pairs_of(which: str) -> Iterator[tuple[Any, Any, float]]:
    code = integrals.product_mean if which == "function" else integrals.derivative_product_mean
    for name in NAMED:
        act = activation(name)
        for a, b, a2 in PAIRS:
            f = getattr(act, which)
            yield (
                code(act, a, b, variance2=a2),
                gaussian.mean2(f, a, b, variance2=a2, kinks=act.kinks),
                1e-8,
            )


@check("integrals.arccosine_kernel")
def _():
    for c in (-0.9, -1 / 3, 0.0, 0.6):
        oracle = gaussian.mean2(lambda x: np.maximum(x, 0), 1.0, c, kinks=(0.0,))
        yield integrals.arccosine_kernel(c), 2 * oracle, 1e-9


@check("integrals.product_mean")
def _():
    yield from pairs_of("function")


@check("integrals.derivative_product_mean")
def _():
    yield from pairs_of("derivative")


@check("integrals.derivative_product_slope")
def _():
    second = {
        "tanh": lambda x: -2 * np.tanh(x) / np.cosh(x) ** 2,
        "erf": lambda x: -4 / math.sqrt(math.pi) * x * np.exp(-(x**2)),
        "linear": np.zeros_like,
    }
    for name, f in second.items():
        for a, b in ((1.0, 0.5), (2.5, -1.1), (3.64, 0.64)):
            oracle = gaussian.mean2(f, a, b)
            yield integrals.derivative_product_slope(name, a, b) + 1.0, oracle + 1.0, 1e-7
    yield integrals.derivative_product_slope("gelu", 0.0, 0.0), 2 / math.pi, 1e-6  # phi''(0)^2
    full = gaussian.mean1(lambda x: second["tanh"](x) ** 2, 2.0)
    yield integrals.derivative_product_slope("tanh", 2.0, 2.0), full, 1e-8
    for name in ("relu", "leaky_relu(0.1)"):
        step = 1e-5
        slope = integrals.derivative_product_mean(name, 2.0, np.array([0.7 - step, 0.7 + step]))
        oracle = (slope[1] - slope[0]) / (2 * step)
        yield integrals.derivative_product_slope(name, 2.0, 0.7), oracle, 1e-7


@check("integrals.second_moment")
def _():
    for name in NAMED:
        act = activation(name)
        oracle = gaussian.mean1(lambda x, f=act.function: f(x) ** 2, 1.7, act.kinks)
        yield integrals.second_moment(name, 1.7), oracle, 1e-9


@check("integrals.second_moment_of_derivative")
def _():
    for name in NAMED:
        act = activation(name)
        oracle = gaussian.mean1(lambda x, f=act.derivative: f(np.array(x)) ** 2, 1.7, act.kinks)
        yield integrals.second_moment_of_derivative(name, 1.7), oracle, 1e-9


@check("integrals.hermite_moment")
def _():
    hermite = {
        0: lambda z: 1.0,
        1: lambda z: z,
        2: lambda z: z**2 - 1,
        4: lambda z: z**4 - 6 * z**2 + 3,
    }
    for name in ("relu", "tanh", "gelu"):
        act = activation(name)
        for degree, he in hermite.items():
            for of, f in (
                ("function", act.function),
                ("square", lambda x, f=act.function: f(x) ** 2),
                ("derivative", act.derivative),
                ("derivative_square", lambda x, f=act.derivative: f(x) ** 2),
            ):
                oracle = gaussian.mean1(
                    lambda z, f=f, he=he: f(np.array(1.3 * z)) * he(z), 1.0, act.kinks
                )
                value = integrals.hermite_moment(name, 1.3, degree=degree, of=of)
                yield value + 1.0, oracle + 1.0, 1e-9


@check("batchnorm.batch_norm_hats")
def _():
    for count in (4, 8, 33):  # homogeneous: exact at every count
        for name in ("relu", "leaky_relu(0.1)"):
            f = activation(name).function
            oracle = gaussian.batch_normed_pair(lambda z, f=f: f(0.7 * z), count, terms=200)
            yield batchnorm.batch_norm_hats(name, 0.7, count=count), oracle, 1e-6
    for name in ("tanh", "gelu", "sigmoid"):  # smooth: the remainder is O(1/n^2)
        for of in ("function", "derivative"):
            f = getattr(activation(name), of)
            gaps = []
            for count in (200, 400):
                oracle = gaussian.batch_normed_pair(lambda z, f=f: f(1.3 * z), count)
                value = batchnorm.batch_norm_hats(name, 1.3, count=count, of=of)
                gaps.append(np.abs(np.array(value) - oracle))
            yield gaps[0] / gaps[1], np.array([4.0, 4.0]), 0.05


def relu_net(**options: Any) -> ns.NetworkSpec:
    options = {"weight_variance": 1.7, "bias_variance": 0.3} | options
    return ns.mlp([50, 60, 70, 80, 3], **options)


def literal_frozen(gamma: float, sw2: float, sb2: float, t: float, *, printed: bool) -> list[float]:
    """f_l at T to infinity (printed or not) of the dense ReLU network above, scalar by scalar."""
    fans = [50, 60, 70, 80]
    hat_t, hat_st = [1.0], [0.0]
    gains = []
    for _ in range(3):
        spread = sw2 * hat_t[-1] + sb2 if printed else sw2 * (hat_t[-1] - hat_st[-1])
        gains.append(gamma**2 * sw2 / spread)
        hat_t.append(gamma**2 / 2)
        hat_st.append(gamma**2 / (2 * math.pi))
    tilde = [1.0]
    for gain in reversed(gains):
        tilde.insert(0, gain / 4 * tilde[0])
    assert math.isinf(t)
    return [m * h * d for m, h, d in zip(fans, hat_st, tilde, strict=True)]


@check("batchnorm.printed_forward")
def _():
    nets = stack([relu_net(norm="batch", gamma=0.7)], math.inf)
    made = batchnorm.printed_forward(nets)
    q = 1.7 * np.array([1.0, 0.7**2 / 2, 0.7**2 / 2]) + 0.3
    yield made.scale2[:, 0], 0.7**2 / q, 1e-12


@check("batchnorm.terms_as_printed")
def _():
    nets = stack([relu_net(norm="batch", gamma=0.7)], math.inf)
    made = batchnorm.terms_as_printed(nets, batchnorm.printed_forward(nets))
    yield made[1:, 0], literal_frozen(0.7, 1.7, 0.3, math.inf, printed=True)[1:], 1e-12


@check("batchnorm.frozen_forward")
def _():
    nets = stack([relu_net(norm="batch", gamma=0.7)], math.inf)
    terms = order.weight_terms(nets, order.backward(nets, batchnorm.frozen_forward(nets)))
    literal = literal_frozen(0.7, 1.7, 0.3, math.inf, printed=False)
    yield terms.offdiagonal[1:, 0], literal[1:], 1e-12
    # E[1/s^2] of n Gaussian values is n / (n - 3): the mean of an inverse chi-squared
    for n in (20, 50):
        finite = batchnorm.frozen_forward(stack([relu_net(norm="batch")], n)).scale2[0, 0]
        limit = batchnorm.frozen_forward(stack([relu_net(norm="batch")], math.inf)).scale2[0, 0]
        chi2 = np.random.default_rng(0).chisquare(n - 1, size=400_000) / n
        yield finite / limit, np.mean(1 / chi2), 5e-3


@check("batchnorm.train_gram")
def _():
    """Entry by entry from the T x T matrices of the text."""
    t, gamma = 40, 1.3
    for name in ("relu", "gelu"):
        spec = relu_net(norm="batch", gamma=gamma, activation=name, bias_variance=0.0)
        act = activation(name)
        f = lambda z, act=act: act.function(gamma * z)  # noqa: E731
        df = lambda z, act=act: act.derivative(np.array(gamma * z))  # noqa: E731
        kinks = act.kinks
        m0, d0 = gaussian.mean1(f, 1, kinks), gaussian.mean1(df, 1, kinks)
        d1 = gaussian.mean1(lambda z, df=df: z * df(z), 1, kinks)
        power = gaussian.mean1(lambda z, df=df: df(z) ** 2, 1, kinks)
        spread = gaussian.mean1(lambda z, f=f: f(z) ** 2, 1, kinks) - m0**2
        gains = [gamma**2, gamma**2 / spread, gamma**2 / spread]
        eye, ones = np.eye(t), np.ones((t, t))
        matrix = [gains[2] * (power * eye - (d0**2 + d1**2) / t * ones)]
        for gain in (gains[1], gains[0]):
            matrix.insert(0, gain * power * matrix[0])
        fans, rest = [50, 60, 70], [1.0, spread, spread]
        terms = batchnorm.train_gram(stack([spec], t))[0].weight
        for row in range(3):
            full = fans[row] * rest[row] * matrix[row]
            yield terms.diagonal[row, 0], full[0, 0], 1e-8
            yield terms.offdiagonal[row, 0], full[0, 1], 1e-8


@check("batchnorm.gradient_growth")
def _():
    yield batchnorm.gradient_growth("relu", [0.1, 1.0, 3.0]), [math.pi / (math.pi - 1)] * 3, 1e-10
    nets = stack([relu_net(norm="batch", gamma=1.3, activation="tanh")], math.inf)
    diagonal = batchnorm.train_gram(nets)[2][:, 0]
    yield batchnorm.gradient_growth("tanh", 1.3), diagonal[1] / diagonal[2], 1e-9


def literal_vanilla(name: str, sw2: float, sb2: float, depth: int, *, gamma: float | None = None):
    """Scalar recursions of a plain (or layer-normed) dense network, by the test's quadrature."""
    act = activation(name)
    hat, hat_st, q, q_st, slope, slope_st, gain = [1.0], [0.0], [], [], [], [], []
    for layer in range(depth):
        q.append(sw2 * hat[-1] + sb2)
        q_st.append(sw2 * hat_st[-1] + sb2)
        if layer == depth - 1:
            break
        g = 1.0 if gamma is None else gamma**2 / q[-1]
        a, b = g * q[-1], g * q_st[-1]
        gain.append(g)
        hat.append(gaussian.mean1(lambda x: act.function(x) ** 2, a, act.kinks))
        hat_st.append(gaussian.mean2(act.function, a, b, kinks=act.kinks))
        slope.append(gaussian.mean1(lambda x: act.derivative(np.array(x)) ** 2, a, act.kinks))
        slope_st.append(gaussian.mean2(act.derivative, a, b, kinks=act.kinks))
    tilde, tilde_st = [1.0], [1.0]
    for layer in range(depth - 1, 0, -1):
        tilde.insert(0, sw2 * gain[layer - 1] * slope[layer - 1] * tilde[0])
        tilde_st.insert(0, sw2 * gain[layer - 1] * slope_st[layer - 1] * tilde_st[0])
    return q, q_st, hat, hat_st, tilde, tilde_st


@check("vanilla.plain_forward")
def _():
    for name in ("relu", "tanh", "gelu"):
        made = vanilla.plain_forward(stack([relu_net(activation=name)], 100))
        q, q_st, hat, hat_st, _, _ = literal_vanilla(name, 1.7, 0.3, 4)
        for value, oracle in ((made.q_t, q), (made.q_st, q_st), (made.in_t, hat)):
            yield value[:, 0], oracle, 1e-8
        yield made.in_st[1:, 0], hat_st[1:], 1e-8


@check("vanilla.layer_norm_forward")
def _():
    for name in ("relu", "tanh"):
        nets = stack([relu_net(activation=name, norm="layer", gamma=1.4)], 100)
        made = vanilla.layer_norm_forward(nets)
        q, q_st, hat, hat_st, _, _ = literal_vanilla(name, 1.7, 0.3, 4, gamma=1.4)
        yield made.q_t[:, 0], q, 1e-8
        yield made.q_st[:, 0], q_st, 1e-8
        yield made.in_t[:, 0], hat, 1e-8
        yield made.in_st[1:, 0], hat_st[1:], 1e-8


@check("order.backward")
def _():
    for name, gamma in (("relu", None), ("tanh", None), ("tanh", 1.4)):
        norm = None if gamma is None else "layer"
        nets = stack([relu_net(activation=name, norm=norm, gamma=gamma)], 100)
        forward = vanilla.plain_forward if gamma is None else vanilla.layer_norm_forward
        made = order.backward(nets, forward(nets))
        *_, tilde, tilde_st = literal_vanilla(name, 1.7, 0.3, 4, gamma=gamma)
        yield made.same_t[:, 0], tilde, 1e-8
        yield made.same_st[:, 0], tilde_st, 1e-8
        yield made.cross_t + 1.0, np.ones_like(made.cross_t), 1e-15


@check("order.weight_terms")
def _():
    nets = stack([relu_net()], 100)
    made = order.weight_terms(nets, order.backward(nets, vanilla.plain_forward(nets)))
    _, _, hat, hat_st, tilde, tilde_st = literal_vanilla("relu", 1.7, 0.3, 4)
    fans = np.array([50, 60, 70, 80])
    yield made.diagonal[:, 0], fans * np.array(tilde) * np.array(hat), 1e-8
    yield made.offdiagonal[1:, 0], (fans * np.array(tilde_st) * np.array(hat_st))[1:], 1e-8


@check("order.bias_terms")
def _():
    nets = stack([relu_net()], 100)
    made = order.bias_terms(order.backward(nets, vanilla.plain_forward(nets)))
    *_, tilde, tilde_st = literal_vanilla("relu", 1.7, 0.3, 4)
    yield made.diagonal[:, 0], tilde, 1e-8
    yield made.offdiagonal[:, 0], tilde_st, 1e-8


@check("order.overlap_slope")
def _():
    for name in ("relu", "tanh", "gelu", "erf"):
        for norm, forward in (
            (None, vanilla.plain_forward),
            ("layer", vanilla.layer_norm_forward),
        ):
            nets = stack([relu_net(activation=name, norm=norm)], 100)

            def a2(overlap: float, nets=nets, forward=forward) -> float:
                made = order.backward(nets, forward(nets, overlap=overlap))
                return float(order.weight_terms(nets, made).offdiagonal.sum())

            step = 1e-4
            oracle = (a2(step) - a2(-step)) / (2 * step)
            value = order.overlap_slope(nets, order.backward(nets, forward(nets)))
            yield value[0], oracle, 1e-5


@check("residual.residual_gram")
def _():
    beta, sw2, sb2 = 0.6, 1.5, 0.2
    spec = ns.residual_mlp([50, 60, 60, 60, 60, 2], branch_scale=beta, activation="tanh",
                           weight_variance=sw2, bias_variance=sb2)  # fmt: skip
    nets = stack([spec], 50)
    _, weights, biases = residual.residual_gram(nets)
    for same in (True, False):
        q = [sw2 + sb2 if same else sb2]
        hats, slopes, kept = [1.0 if same else 0.0], [], [sw2 + sb2]
        for layer in range(4):
            a, b = kept[-1], q[-1]
            if same:
                hats.append(gaussian.mean1(lambda x: np.tanh(x) ** 2, a))
                slopes.append(gaussian.mean1(lambda x: 1 / np.cosh(x) ** 4, a))
            else:
                hats.append(gaussian.mean2(np.tanh, a, b))
                slopes.append(gaussian.mean2(lambda x: 1 / np.cosh(x) ** 2, a, b))
            if layer < 3:
                own = gaussian.mean1(lambda x: np.tanh(x) ** 2, a)
                kept.append(a + beta**2 * (sw2 * own + sb2))
                q.append(q[-1] + beta**2 * (sw2 * hats[-1] + sb2))
        tilde = [1.0, sw2 * slopes[3]]
        for slope in reversed(slopes[:3]):
            tilde.append(tilde[-1] * (1 + beta**2 * sw2 * slope))
        tilde = np.array(tilde[::-1])
        branch = np.array([1, beta**2, beta**2, beta**2, 1])
        oracle = branch * np.array([50, 60, 60, 60, 60]) * tilde * np.array(hats)
        terms = weights.diagonal if same else weights.offdiagonal
        yield terms[:, 0] + 1.0, oracle + 1.0, 1e-8
        extra = biases.diagonal if same else biases.offdiagonal
        yield extra[:, 0], branch * tilde, 1e-8


def iterated(f: Callable[[Any], Any], sw2: float, sb2: float) -> tuple[float, float]:
    """q* and c* by running the maps from q = 1, c = 0."""
    q, c = 1.0, 0.0
    for _ in range(200):
        q = sw2 * gaussian.smooth2(f, q, q) + sb2
    for _ in range(600):
        c = (sw2 * gaussian.smooth2(f, q, c * q) + sb2) / q
    return q, c


@check("fixed_points.length_fixed_point")
def _():
    for name, sw2, sb2 in (("tanh", 1.3, 0.05), ("tanh", 2.5, 0.05), ("sigmoid", 4.0, 0.1)):
        value = float(fixed_points.length_fixed_point(name, sw2, sb2))
        f, q = activation(name).function, 1.0
        for _ in range(200):
            q = sw2 * gaussian.mean1(lambda x, f=f: f(x) ** 2, q) + sb2
        yield value, q, 1e-9
    yield fixed_points.length_fixed_point("relu", 1.5, 0.3), 0.3 / (1 - 0.75), 1e-12


@check("fixed_points.length_slope")
def _():
    for name in ("tanh", "gelu", "relu", "softplus"):
        step = 1e-4
        high, low = (integrals.second_moment(name, 1.2 + s) for s in (step, -step))
        oracle = 1.8 * (high - low) / (2 * step)
        yield fixed_points.length_slope(name, 1.2, 1.8), oracle, 1e-6


@check("fixed_points.correlation_fixed_point")
def _():
    for sw2 in (2.5, 3.0, 5.0):
        q, c = iterated(np.tanh, sw2, 0.05)
        value, slope = fixed_points.correlation_fixed_point("tanh", q, sw2, 0.05)
        yield value, c, 1e-9
        yield slope, sw2 * integrals.derivative_product_mean("tanh", q, c * q), 1e-8
    value, _ = fixed_points.correlation_fixed_point("tanh", 0.315316477485312, 1.3, 0.05)
    yield value, 1.0, 1e-12


@check("fixed_points.depth_scale")
def _():
    q, c = iterated(np.tanh, 2.5, 0.05)
    slope = fixed_points.correlation_fixed_point("tanh", q, 2.5, 0.05)[1]
    gaps, now = [], c + 0.01
    for _ in range(60):
        now = (2.5 * gaussian.smooth2(np.tanh, q, now * q) + 0.05) / q
        gaps.append(abs(now - c))
    fitted = -1 / np.polyfit(np.arange(20, 60), np.log(gaps[20:]), 1)[0]
    yield fixed_points.depth_scale(slope), fitted, 1e-3


@check("fixed_points.critical_weight_variance")
def _():
    for name in ("tanh", "erf"):
        for sb2 in (0.01, 0.05, 0.3):
            edge = fixed_points.critical_weight_variance(name, sb2)
            q = fixed_points.length_fixed_point(name, edge, sb2)
            yield edge * integrals.second_moment_of_derivative(name, q), 1.0, 1e-8
    yield fixed_points.critical_weight_variance("relu", 0.0), 2.0, 1e-12
    yield fixed_points.critical_weight_variance("tanh", 0.0), 1.0, 1e-9


@check("phase.phase_diagram")
def _():
    """The returned points are kept by the maps; c* < 1 exactly where chi_1 > 1."""
    diagram = ns.phase_diagram("tanh", [1.3, 2.5, 4.0], [0.05, 0.2])
    for row, sb2 in enumerate((0.05, 0.2)):
        for column, sw2 in enumerate((1.3, 2.5, 4.0)):
            q, c = diagram.length[row, column], diagram.correlation[row, column]
            yield sw2 * gaussian.smooth2(np.tanh, q, q) + sb2, q, 1e-9
            yield (sw2 * gaussian.smooth2(np.tanh, q, c * q) + sb2) / q, c, 1e-9
            slope = sw2 * gaussian.mean1(lambda x: 1 / np.cosh(x) ** 4, q)
            yield diagram.chi1[row, column], slope, 1e-9
            assert (c < 1 - 1e-6) == (slope > 1)


A1, A2, T, C = 700.0, 90.0, 12, 3


def one_output() -> np.ndarray:
    """F* of one output with diagonal A1 / T and off-diagonal A2 / T."""
    return ((A1 - A2) * np.eye(T) + A2 * np.ones((T, T))) / T


@check("fisher.kappas")
def _():
    widths, unit = [50, 150, 100], 100
    alpha, k1, k2 = fisher.kappas([100.0, 125.0], [40.0, 20.0], widths=widths, unit=unit)
    yield alpha, 0.5 * 1.5 + 1.5 * 1.0, 1e-12
    yield (k1 * alpha * unit, k2 * alpha * unit), (225.0, 60.0), 1e-12


@check("fisher.mean_direction")
def _():
    yield fisher.mean_direction(A1, A2, samples=T), np.linalg.eigvalsh(one_output())[-1], 1e-12


@check("fisher.second_moment_bound")
def _():
    oracle = np.linalg.norm(np.kron(np.eye(C), one_output()))
    yield fisher.second_moment_bound(A1, A2, samples=T, outputs=C), oracle, 1e-12


@check("fisher.split_lambda_max")
def _():
    """The edge of a Wishart matrix of C vectors in M dimensions, measured."""
    rng, c, m = np.random.default_rng(0), 40, 2000
    tops = []
    for _ in range(20):
        x = rng.standard_normal((c, m)) / math.sqrt(m)
        tops.append(np.linalg.eigvalsh(x @ x.T)[-1])
    value = fisher.split_lambda_max(7.0, 11.0, outputs=c, last_width=m)
    yield value, 7.0 + 11.0 * np.mean(tops), 0.03
    yield fisher.split_lambda_max(7.0, 11.0, outputs=1, last_width=m), 18.0, 1e-12


def centred() -> np.ndarray:
    g = np.eye(T) - 1 / T
    return np.kron(np.eye(C), g @ one_output() @ g)


@check("fisher.mean_subtraction_trace")
def _():
    value = fisher.mean_subtraction_trace(A1, A2, samples=T, outputs=C)
    yield value, np.trace(centred()), 1e-12


@check("fisher.mean_subtraction_bounds")
def _():
    lower, upper = fisher.mean_subtraction_bounds(A1, A2, samples=T, outputs=C)
    values = np.linalg.eigvalsh(centred())
    yield lower, values[-1], 1e-12
    yield upper * math.sqrt(1 - 1 / T), np.linalg.norm(centred()), 1e-12


@check("fisher.mean_subtraction_linearised")
def _():
    """Explicit matrix: A2 + slope * overlap off the diagonal, A1 on it, then centred."""
    rng, t, m0, slope = np.random.default_rng(0), 300, 400, 60.0
    tops = []
    for _ in range(10):
        x = rng.standard_normal((t, m0))
        overlap = x @ x.T / m0
        matrix = A2 + slope * overlap + (A1 - A2 - slope) * np.eye(t)
        g = np.eye(t) - 1 / t
        tops.append(np.linalg.eigvalsh(g @ matrix @ g / t)[-1])
    value = fisher.mean_subtraction_linearised(A1, A2, slope, samples=t, input_width=m0)
    yield value, np.mean(tops), 0.01


@check("fisher.last_batch_norm_bounds")
def _():
    """The projected leading matrix for realised outputs of given variances."""
    rng = np.random.default_rng(0)
    u = rng.standard_normal((T, C)) * np.array([1.0, 0.5, 2.0])
    u -= u.mean(axis=0)
    sigma2 = (u**2).mean(axis=0)
    blocks = []
    for k in range(C):
        n = u[:, k] / math.sqrt(sigma2[k])
        b = (np.eye(T) - 1 / T - np.outer(n, n) / T) / math.sqrt(sigma2[k])
        blocks.append(np.linalg.eigvalsh(b @ one_output() @ b.T))
    values = np.concatenate(blocks)
    q1, q2, trace, lower, upper = fisher.last_batch_norm_bounds(A1, A2, samples=T, variances=sigma2)
    yield (1 - 2 / T) * trace, values.sum(), 1e-12
    yield lower, (values**2).sum() / values.sum(), 1e-12
    yield upper * math.sqrt(1 - 2 / T), math.sqrt((values**2).sum()), 1e-12
    yield (q1, q2), (np.sum(1 / sigma2), np.sum(sigma2**-2.0)), 1e-12


@check("fisher.last_variance_norm")
def _():
    """The Jacobian of u / sigma(u) by finite differences, on both sides of the leading matrix."""
    rng = np.random.default_rng(0)
    u = rng.standard_normal((T, C)) * np.array([1.0, 0.5, 2.0]) + np.array([0.3, -2.0, 1.0])
    values = []
    for k in range(C):
        steps = [u[:, k] + h * row for row in np.eye(T) for h in (1e-5, -1e-5)]
        normed = np.array([x / x.std() for x in steps]).reshape(T, 2, T)
        b = (normed[:, 0] - normed[:, 1]).T / 2e-5
        values.append(np.linalg.eigvalsh(b @ one_output() @ b.T))
    made = fisher.last_variance_norm(
        A1, A2, samples=T, variances=u.var(axis=0), squared_means=u.mean(axis=0) ** 2
    )
    every = np.concatenate(values)
    yield made, (every.max(), every.sum(), (every**2).sum()), 1e-7
    one = {"variances": [4.0], "squared_means": [9.0]}
    limit = fisher.last_variance_norm(A1, A2, samples=math.inf, **one)
    yield limit, (A2 / 4, A1 / 4, (A2 / 4) ** 2), 1e-12


@check("fisher.batch_norm_lower_bound")
def _():
    h = np.random.default_rng(0).standard_normal((T, 30))
    gram = h @ h.T / 30
    hat_t = np.trace(gram) / T
    hat_st = (gram.sum() - np.trace(gram)) / (T * (T - 1))
    one = np.ones(T) / math.sqrt(T)
    oracle = 30 * (one @ gram @ one) / T
    yield fisher.batch_norm_lower_bound(30, hat_t, hat_st, samples=T), oracle, 1e-12


def radius(rate: float, mu: float) -> float:
    """Spectral radius of heavy-ball momentum on a quadratic with curvature times rate = rate."""
    return float(np.max(np.abs(np.linalg.eigvals([[1 + mu - rate, -mu], [1.0, 0.0]]))))


@check("fisher.critical_lr")
def _():
    for mu in (0.0, 0.5, 0.9):
        edge = float(fisher.critical_lr(5.0, momentum=mu)) * 5.0
        assert radius(edge * 0.999, mu) < 1 < radius(edge * 1.001, mu)
        yield edge, 2 * (1 + mu), 1e-12


@check("fisher.best_lr_range")
def _():
    for mu in (0.25, 0.81):
        low, high = (5.0 * x for x in fisher.best_lr_range(5.0, momentum=mu))
        for rate in np.linspace(low * 1.0001, high * 0.9999, 7):
            yield radius(rate, mu), math.sqrt(mu), 1e-6
        assert radius(low * 0.9, mu) > math.sqrt(mu) + 1e-3
        assert radius(high * 1.1, mu) > math.sqrt(mu) + 1e-3
        yield (low + high) / 2, (1 + mu), 1e-12


@check("fisher.hessian_from_fisher")
def _():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(5, n, generator=g, dtype=torch.float64) for n in (3, 2))
    theta = torch.randn(3 * 4 + 4 * 2, generator=g, dtype=torch.float64)

    def outputs(p: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ p[:12].reshape(3, 4)) @ p[12:].reshape(4, 2)

    jac = torch.func.jacrev(outputs)(theta).reshape(10, -1).numpy()
    second = torch.func.jacrev(torch.func.jacrev(outputs))(theta).numpy()
    loss = lambda p: ((y - outputs(p)) ** 2).sum() / 10  # noqa: E731
    hessian = torch.func.jacrev(torch.func.jacrev(loss))(theta)
    residuals = (y - outputs(theta)).numpy()
    yield fisher.hessian_from_fisher(jac.T @ jac / 5, residuals, second), hessian.numpy(), 1e-12


def outputs_of(count: int = 7, width: int = 4) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, width))


def leading_matrix(u: np.ndarray, a1: float, a2: float) -> np.ndarray:
    """F* behind layer norm on realised outputs, from the entries of T F* before it."""
    count, width = u.shape
    centred = u - u.mean(axis=1, keepdims=True)
    sigma = np.sqrt((centred**2).mean(axis=1))
    rows = []
    for t in range(count):
        n = centred[t] / sigma[t]
        rows.append((np.eye(width) - 1 / width - np.outer(n, n) / width) / sigma[t])
    entries = (a1 - a2) * np.eye(count) + a2 * np.ones((count, count))
    blocks = [[entries[s, t] * rows[s] @ rows[t] for t in range(count)] for s in range(count)]
    return np.block(blocks) / count


@check("layernorm.output_norm_statistics")
def _():
    u = outputs_of()
    centred = u - u.mean(axis=1, keepdims=True)
    sigma2 = (centred**2).mean(axis=1)
    total = 0.0
    for s in range(len(u)):
        for t in range(len(u)):
            g = (centred[s] * centred[t]).mean() / math.sqrt(sigma2[s] * sigma2[t])
            total += g**2 / (sigma2[s] * sigma2[t]) / len(u) ** 2
    oracle = (np.mean(1 / sigma2), np.mean(sigma2**-2.0), math.sqrt(total))
    yield layernorm.output_norm_statistics(u), oracle, 1e-12


@check("layernorm.output_norm_bounds")
def _():
    u = outputs_of()
    values = np.linalg.eigvalsh(leading_matrix(u, A1, A2))
    s, lower, upper = layernorm.output_norm_bounds(
        A1, A2, samples=7, outputs=4, etas=layernorm.output_norm_statistics(u)
    )
    yield s, (values**2).sum(), 1e-10
    yield lower, (values**2).sum() / values.sum(), 1e-10
    yield upper, math.sqrt((values**2).sum()), 1e-10


@check("layernorm.output_norm_leading")
def _():
    u = outputs_of(200, 6)
    oracle = np.linalg.eigvalsh(leading_matrix(u, A2, A2))[-1]  # A1 = A2: no diagonal part
    yield layernorm.output_norm_leading(u, A2), oracle, 1e-10
    for count, width, a1 in ((200, 6, 400.0), (30, 3, A1), (5, 3, A1), (12, 4, 1e6)):
        u = outputs_of(count, width)
        oracle = np.linalg.eigvalsh(leading_matrix(u, a1, A2))[-1]
        yield layernorm.output_norm_leading(u, A2, gap=(a1 - A2) / count), oracle, 1e-9
    oracle = np.linalg.eigvalsh(leading_matrix(u, 50.0, 0.0))[-1]
    yield layernorm.output_norm_leading(u, 0.0, gap=50 / 12), oracle, 1e-9


@check("layernorm.output_norm_estimate")
def _():
    """The same means from another generator, within five standard errors."""
    made = layernorm.output_norm_estimate(
        2.0, 1.2, diagonal=A1, offdiagonal=A2, samples=30, outputs=10, seed=0
    )
    rng, tops = np.random.default_rng(99), []
    for _ in range(60):
        u = math.sqrt(1.2) * rng.standard_normal((1, 10))
        u = u + math.sqrt(0.8) * rng.standard_normal((30, 10))
        tops.append(np.linalg.eigvalsh(leading_matrix(u, A1, A2))[-1])
    error = math.hypot(np.std(tops) / math.sqrt(60), made.standard_error)
    yield made.lambda_max, np.mean(tops), 5 * error / np.mean(tops)
    # three outputs: the median of 128 draws parts another 200 in halves, and so on
    made = layernorm.output_norm_estimate(
        2.0, 1.2, diagonal=A1, offdiagonal=A2, samples=30, outputs=3, seed=0
    )
    tops = []
    for _ in range(200):
        u = math.sqrt(1.2) * rng.standard_normal((1, 3))
        u = u + math.sqrt(0.8) * rng.standard_normal((30, 3))
        tops.append(np.linalg.eigvalsh(leading_matrix(u, A1, A2))[-1])
    for level, value in (*made.quantiles.items(), ("0.5", made.lambda_max)):
        p = float(level)
        error = math.sqrt(p * (1 - p) * (1 / 128 + 1 / 200))
        yield np.mean(np.array(tops) < value), p, 4 * error / p
    inside = np.mean(np.abs(np.array(tops) - made.lambda_max) < made.standard_error)
    yield inside, 1 / math.sqrt(128), 1.0  # one error: sqrt(n)/2 ranks of n on either side


@check("kernel.mean_inverse_variance")
def _():
    t = 12
    centre = np.eye(t) - 1 / t
    yield kernel.mean_inverse_variance(2.5 * centre), t / (t - 3) / 2.5, 1e-9
    rng = np.random.default_rng(0)
    x = centre @ (rng.standard_normal((t, 9)) * np.geomspace(1, 0.2, 9))
    values = x @ rng.standard_normal((9, 400_000))
    inverse = 1 / values.var(axis=0)
    value = kernel.mean_inverse_variance(x @ x.T)
    error = inverse.std() / math.sqrt(inverse.size)
    yield value, inverse.mean(), 5 * error / value


@check("kernel.pairwise_gram")
def _():
    """Equal lengths and overlaps reduce the T x T recursion to the scalar one."""
    size, c = 6, 0.3
    gram = (1 - c) * np.eye(size) + c
    for name, norm in (("relu", None), ("tanh", None), ("tanh", "layer")):
        spec = relu_net(activation=name, norm=norm)
        nets = stack([spec], size)
        forward = vanilla.plain_forward if norm is None else vanilla.layer_norm_forward
        terms = order.weight_terms(nets, order.backward(nets, forward(nets, overlap=c)))
        made = kernel.pairwise_gram(spec, gram).weight
        yield made[:, 0, 0], terms.diagonal[:, 0], 1e-9
        yield made[:, 0, 1], terms.offdiagonal[:, 0], 1e-9
    nets = stack([relu_net(norm="batch")], 12)  # independent samples of equal length
    terms = order.weight_terms(nets, order.backward(nets, batchnorm.frozen_forward(nets)))
    made = kernel.pairwise_gram(relu_net(norm="batch"), np.eye(12)).weight
    yield made[:, 0, 0], terms.diagonal[:, 0], 1e-6
    yield made[:, 0, 1], terms.offdiagonal[:, 0], 1e-6
    yield from _drawn_batch_norm()


def _drawn_batch_norm():
    """Samples of unequal length behind batch norm: the kernels of 400,000 drawn units."""
    rng = np.random.default_rng(1)
    data = rng.standard_normal((9, 12)) * np.geomspace(0.4, 2, 9)[:, None]
    u = data @ rng.standard_normal((12, 400_000)) / math.sqrt(12)
    z = (u - u.mean(axis=0)) / u.std(axis=0)
    variances = {"weight_variance": 1.0, "bias_variance": 0.0}
    spec = ns.mlp([12, 30, 1], activation="leaky_relu(0.2)", norm="batch", gamma=1.3, **variances)
    made = kernel.pairwise_gram(spec, kernel.input_gram(data))
    slope = np.where(z > 0, 1.0, 0.2)
    for kernel_of, values in (
        (made.hats[1], 1.3 * z * slope),
        (made.tildes[0], 1.3 * slope / u.std(axis=0)),
    ):
        for s, t in ((0, 0), (8, 8), (0, 8), (3, 6)):
            product = values[s] * values[t]
            error = product.std() / math.sqrt(product.size)
            yield kernel_of[s, t], product.mean(), 5 * error / abs(product.mean())
