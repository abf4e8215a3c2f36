"""Exact facts of layer-wise conditioning: Huang's theorems, interlacing, ranks, sub-Hessians."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normscope as ns
from cases import BY_NAME, ROSTER
from golden.measurements_huang import COST, DEEP_SLOPE, WEIGHTS
from normscope.data import load_data
from normscope.measure.probes.conditioning import conditioning
from normscope.nn import BatchNorm, network
from normscope.results.conditioning import ConditioningCost
from normscope.subject.transforms import apply_transform

WIDTHS = (12, 20, 16, 18, 5)
FACTORS = (2.0, 0.5, 3.0, 0.7)


def stack(*, norm_eps: float | None = None, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    parts: list[tuple[str, nn.Module]] = []
    for k, (a, b) in enumerate(itertools.pairwise(WIDTHS), start=1):
        layer = nn.Linear(a, b, bias=False)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / a))
        parts.append((f"layer{k}", layer))
        if norm_eps is not None:
            parts.append((f"norm{k}", BatchNorm(b, eps=norm_eps)))
        if k < len(WIDTHS) - 1:
            parts.append((f"act{k}", nn.ReLU()))
    model = nn.Sequential()
    for name, part in parts:
        model.add_module(name, part)
    return model


def scaled(model: nn.Module) -> nn.Module:
    return apply_transform(
        model, [f"scale-weights:layer{k}={a!r}" for k, a in enumerate(FACTORS, 1)]
    )


def linear(outputs, targets):
    """<c_b, h_b>, mean over the batch."""
    return (outputs * targets).sum(1).mean()


def quadratic(outputs, targets):
    return 0.5 * outputs.square().sum(1).mean()


def ratios(before, after, of):
    return after.lambda_max(of) / before.lambda_max(of)


def same_kappas(before, after):
    for of, p in itertools.product(("inputs", "gradients", "fisher"), (0.3, 0.5, 0.8, 1.0)):
        one, other = before.kappa(p, of), after.kappa(p, of)
        np.testing.assert_array_equal(np.isinf(one), np.isinf(other))
        finite = np.isfinite(one)
        # an eigenvalue is known to epsilon times the largest
        np.testing.assert_allclose(other[finite] / one[finite], 1, atol=1e-12 * one[finite].max())


@pytest.mark.parametrize(("loss", "mu"), [(linear, 1.0), (quadratic, math.prod(FACTORS))])
def test_theorem_1(loss, mu):
    """Without norm: lambda_max scales by squares of products of the factors, kappa_p stays."""
    model, x = stack(), torch.randn(60, 12)
    targets = torch.randn(5).expand(60, 5)  # one c for all examples
    before = conditioning(model, (x, targets), loss)
    after = conditioning(scaled(model), (x, targets), loss)
    below = [math.prod(FACTORS[:k]) for k in range(4)]
    above = [math.prod(FACTORS[k + 1 :]) for k in range(4)]
    np.testing.assert_allclose(below, (1, 2, 1, 3))
    np.testing.assert_allclose(above, (1.05, 2.1, 0.7, 1))
    expected_g = np.square(mu * np.array(above))
    np.testing.assert_allclose(ratios(before, after, "inputs"), np.square(below), rtol=1e-10)
    np.testing.assert_allclose(ratios(before, after, "gradients"), expected_g, rtol=1e-10)
    np.testing.assert_allclose(
        ratios(before, after, "fisher"), expected_g * np.square(below), rtol=1e-10
    )
    if loss is quadratic:  # one c for all gives gradients of rank one at the top
        same_kappas(before, after)


@pytest.mark.parametrize("exact", [None, "full"])
def test_theorem_2(exact):
    """Behind batch norm: Sigma_x stays, Sigma_grad scales by a_k^-2, kappa_p stays."""
    model, x = stack(norm_eps=1e-30), torch.randn(32, 12)
    c = torch.randn(32, 5)
    before = conditioning(model, (x, c), linear, exact=exact)
    after = conditioning(scaled(model), (x, c), linear, exact=exact)
    shrink = np.array(FACTORS) ** -2.0
    np.testing.assert_allclose(ratios(before, after, "inputs"), np.ones(4), rtol=1e-9)
    np.testing.assert_allclose(ratios(before, after, "gradients"), shrink, rtol=1e-9)
    np.testing.assert_allclose(ratios(before, after, "fisher"), shrink, rtol=1e-9)
    same_kappas(before, after)
    if exact:
        np.testing.assert_allclose(ratios(before, after, "exact"), shrink, rtol=1e-9)


def test_theorem_2_needs_eps_zero():
    model, x = stack(norm_eps=1e-5), torch.randn(32, 12)
    c = torch.randn(32, 5)
    found = ratios(
        conditioning(model, (x, c), linear), conditioning(scaled(model), (x, c), linear), "fisher"
    )
    error = np.abs(found * np.array(FACTORS) ** 2 - 1).max()
    assert 1e-7 < error < 1e-2


def test_kronecker_order():
    """Row-major weight gradients of one example: Sigma_grad (x) Sigma_x; transposed, the other."""
    layer = nn.Linear(3, 2, bias=False)
    x, y = torch.randn(1, 3), torch.tensor([1])
    found = conditioning(layer, (x, y), "cross_entropy", exact="blocks", moments=True)[1]
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(layer(x), y), layer.weight)
    for flat, left, right in (
        (gradient.flatten(), found.gradient_moment, found.input_moment),
        (gradient.T.flatten(), found.input_moment, found.gradient_moment),
    ):
        np.testing.assert_allclose(torch.outer(flat, flat), np.kron(left, right), rtol=1e-12)
    order = np.kron(found.gradient_moment, found.input_moment)
    risk = ns.Risk(layer, x, y, loss="cross_entropy", statistics="batch")
    np.testing.assert_allclose(ns.fisher(risk, kind="empirical").to_dense(), order, rtol=1e-12)


def relu_net(*norms: bool) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(4, 6), *([nn.BatchNorm1d(6)] if norms else []), nn.ReLU(),
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


@pytest.mark.parametrize("labels", [0, 1])
def test_sub_hessian_is_the_sub_fisher_of_a_plain_relu_net(labels):
    """A ReLU net is piecewise linear in the weights of one layer, so the Hessian has no more."""
    x, y = torch.randn(20, 4), (torch.arange(20) + labels) % 3
    found = conditioning(
        relu_net(), (x, y), "cross_entropy", kind="true", exact="blocks", hessian=True
    )
    for layer in found:
        fisher, hessian = found.block(layer.name).spectrum, found.hessian(layer.name).spectrum
        np.testing.assert_allclose(hessian.values, fisher.values, atol=1e-10 * fisher.largest)
        assert hessian.smallest > -1e-10 * fisher.largest


def test_sub_hessian_is_indefinite_with_batch_norm_or_tanh():
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    normed = conditioning(relu_net(True), (x, y), "cross_entropy", hessian=True)
    assert normed.hessian(1).spectrum.smallest < -1e-3 * normed.hessian(1).spectrum.largest
    smooth = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    found = conditioning(smooth, (x, y), "cross_entropy", hessian=True)
    assert found.hessian(1).spectrum.smallest < -1e-3 * found.hessian(1).spectrum.largest


PLAIN = [c for c in ROSTER if c.name in ("mlp-tanh", "mlp-relu-ce", "cnn", "residual", "bn2d-batch",
                                         "bn1d-batch-ce", "layer-norm", "bn3d-batch")]  # fmt: skip


@pytest.mark.parametrize("kind", ["empirical", "sampled", "true"])
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_blocks_interlace_with_the_full_matrix(case, kind):
    found = conditioning(
        case.build(), (case.inputs, case.targets), case.loss, kind=kind, exact="full"
    )
    full = found.full.spectrum
    blocks = [block.spectrum for block in found.blocks]
    assert full.largest >= max(b.largest for b in blocks) * (1 - 1e-8)
    assert full.largest <= sum(b.largest for b in blocks) * (1 + 1e-8)
    assert full.trace == pytest.approx(sum(b.trace for b in blocks), rel=1e-8)


@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 99))
@settings(max_examples=15)
def test_ranks(samples, classes, seed):
    """rank(F) <= N (C - 1), rank(M) <= N, and the last Sigma_grad has rank C - 1 at most."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, classes, bias=False))
    x, y = torch.randn(samples, 6), torch.randint(classes, (samples,))
    exact = {
        kind: conditioning(model, (x, y), "cross_entropy", kind=kind, exact="full")
        for kind in ("true", "empirical")
    }
    assert exact["true"].full.spectrum.rank <= samples * (classes - 1)
    assert exact["empirical"].full.spectrum.rank <= samples
    for found in exact.values():
        assert found[2].gradients.rank <= min(classes - 1, samples * classes)
        assert found[2].gradients.kappa(1.0) == math.inf
        assert found[2].fisher.kappa(1.0) == math.inf


def test_trace_of_the_exact_block():
    """trace(F_k) = E |x|^2 |g|^2, which the product of the factors only approximates."""
    case = BY_NAME["mlp-relu-ce"]
    model = case.build()
    found = conditioning(model, (case.inputs, case.targets), case.loss, exact="blocks")
    h = case.inputs
    with torch.no_grad():
        x = model[1](model[0](h))
        p = model[2](x).softmax(1) - nn.functional.one_hot(case.targets, 2)
    trace = float((x.square().sum(1) * p.square().sum(1)).mean())
    assert found.block(2).spectrum.trace == pytest.approx(trace, rel=1e-12)
    assert found[2].fisher.trace != pytest.approx(trace, rel=1e-3)


def test_a_dead_unit_zeroes_a_row_behind_and_ahead():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].bias[1] = -1e6
    found = conditioning(
        model, (torch.randn(30, 3), torch.arange(30) % 3), "cross_entropy", moments=True
    )
    assert not found[1].gradient_moment[1].any()
    assert not found[2].input_moment[1].any()
    assert found[2].inputs.rank == 3


def test_last_batch_norm_bounds_the_input_of_the_read_out():
    """trace(Sigma_x) = width, so lambda_max <= width (gain 1, shift 0, eps -> 0)."""
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Linear(10, 64), nn.LeakyReLU(0.5), nn.BatchNorm1d(64), nn.Linear(64, 4)
    )
    x = 30 * torch.rand(200, 10)
    found = conditioning(features, (x, torch.arange(200) % 4), "cross_entropy")
    assert found[2].inputs.trace == pytest.approx(64, rel=1e-3)
    assert found[2].inputs.largest <= 64
    plain = nn.Sequential(features[0], features[1], features[3])
    assert conditioning(plain, (x, torch.arange(200) % 4), "cross_entropy")[2].inputs.largest > 64


@pytest.mark.parametrize(("widths", "count"), WEIGHTS.items())
def test_sizes_of_the_networks(widths, count):
    sizes = "-".join(map(str, widths))
    net = network(f"mlp:{sizes}", norm="batch", bias=False).double()
    x, y = torch.randn(4, widths[0]), torch.arange(4)
    found = conditioning(net, (x, y), "cross_entropy", layers="layer*")
    assert sum(layer.fisher.size for layer in found) == count
    assert len(found.layers) == len(widths) - 1


@pytest.mark.parametrize(("shape", "expected"), COST.items())
def test_cost(shape, expected):
    cost = ConditioningCost(depth=shape[0], width=shape[1], samples=1000)
    assert cost.full[1] / cost.blocks[1] == expected[0] == shape[0] ** 2
    assert cost.blocks[1] / cost.factored[1] == expected[1] == shape[1] ** 3
    assert cost.full[0] / cost.blocks[0] == shape[0]
    assert cost.blocks[0] / cost.factored[0] == shape[1] ** 2
    assert cost.full == (1000 * (8 * 24**2) ** 2, (8 * 24**2) ** 3)


def digits(count):
    data = load_data("digits")
    return data.images[:count].flatten(1).double(), data.labels[:count]


def deep(norm, depth, width):
    widths = "-".join(map(str, [64, *[width] * (depth - 1), 10]))
    return network(f"mlp:{widths}", norm=norm, bias=False, init="lecun-uniform").double()


def test_gradients_explode_through_a_hundred_batch_norms():
    """log lambda_max(F_k) falls by almost log10(pi / (pi - 1)) a layer: Huang's Fig. XI(a)."""
    found = conditioning(deep("batch", 100, 128), digits(512), "cross_entropy")
    number, height = np.arange(1, 101), np.log10(found.lambda_max("fisher"))
    slope, start = np.polyfit(number, height, 1)
    assert DEEP_SLOPE[0] < slope < DEEP_SLOPE[1]
    assert np.abs(height - slope * number - start).max() < 1.0  # a straight line over 15 decades


def test_signals_vanish_without_norm():
    """E|x|^2 shrinks to 1/6 a layer: weights of variance 1/(3 d), and half is lost in the ReLU."""
    found = conditioning(deep(None, 21, 256), digits(256), "cross_entropy")
    squares = np.log10([layer.inputs.trace for layer in found])[1:]
    slope = np.polyfit(np.arange(len(squares)), squares, 1)[0]
    # variance of log10 |x|^2 per layer of width d: about 5 / d (fourth moments of a ReLU layer)
    error = math.sqrt(5 / 256) / math.log(10) * math.sqrt(12 / len(squares))
    assert abs(slope + math.log10(6)) < 4 * error


def test_figures_1_and_2_on_digits():
    """Claims (a) to (d): plain is smaller and worse conditioned, in blocks and in the whole."""
    x, y = digits(1437)
    found = {
        (norm, kind): conditioning(
            deep(norm, 6, 12), (x, y), "cross_entropy", kind=kind, exact="full"
        )
        for norm in (None, "batch")
        for kind in ("sampled", "empirical")
    }
    for kind in ("sampled", "empirical"):
        plain, normed = found[None, kind], found["batch", kind]
        assert (normed.lambda_max("exact") > 100 * plain.lambda_max("exact")).all()
        assert normed.full.spectrum.largest > 100 * plain.full.spectrum.largest
        assert normed.full.spectrum.kappa(0.5) < plain.full.spectrum.kappa(0.5) < math.inf
        hidden = slice(1, 5)
        for p in (0.5, 0.8):
            assert (normed.kappa(p, "exact")[hidden] < plain.kappa(p, "exact")[hidden]).all()
            assert (normed.kappa(p)[hidden] < plain.kappa(p)[hidden]).all()
