"""Huang's theorems: what scaling the weights does, and where the hidden preconditions bite."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from normscope.nn import BatchNorm, gaussian, initialize
from normscope.subject.transforms import apply_transform

TOLERANCE = 1e-10


@dataclass
class Signals:
    """Per layer k = 1..K: its input x_(k-1), and the gradients of h_k and W_k."""

    inputs: list[Tensor]
    gradients: list[Tensor]
    weights: list[Tensor]


def rectifier(slope: float) -> nn.Module:
    return nn.LeakyReLU(slope)


def plain(widths: list[int], seed: int, slope: float) -> nn.Module:
    parts: list[tuple[str, nn.Module]] = []
    for k, (a, b) in enumerate(itertools.pairwise(widths), start=1):
        parts.append((f"layer{k}", nn.Linear(a, b, bias=False)))
        if k < len(widths) - 1:
            parts.append((f"act{k}", rectifier(slope)))
    return initialize(nn.Sequential(OrderedDict(parts)), gaussian(2.0), seed=seed)


def normed(widths: list[int], seed: int, *, eps: float = 0.0, last: bool = True,
           activation: type[nn.Module] = nn.Tanh) -> nn.Module:  # fmt: skip
    parts: list[tuple[str, nn.Module]] = []
    depth = len(widths) - 1
    for k, (a, b) in enumerate(itertools.pairwise(widths), start=1):
        parts.append((f"layer{k}", nn.Linear(a, b, bias=False)))
        if k < depth or last:
            parts.append((f"norm{k}", BatchNorm(b, eps=eps)))
        if k < depth:
            parts.append((f"act{k}", activation()))
    return initialize(nn.Sequential(OrderedDict(parts)), gaussian(1.0), seed=seed)


def signals(model: nn.Module, x: Tensor, loss) -> Signals:
    """One pass, layer by layer, keeping what the theorems speak of."""
    inputs, outputs, weights = [], [], []
    h = x
    for layer in model:
        if isinstance(layer, nn.Linear):
            inputs.append(h)
            weights.append(layer.weight)
            h = layer(h)
            h.retain_grad()
            outputs.append(h)
        else:
            h = layer(h)
    gradients = torch.autograd.grad(loss(h), [*outputs, *weights])
    depth = len(outputs)
    return Signals([i.detach() for i in inputs], list(gradients[:depth]), list(gradients[depth:]))


def scaled(model: nn.Module, factors: list[float]) -> nn.Module:
    steps = [f"scale-weights:layer{k}={a!r}" for k, a in enumerate(factors, start=1)]
    return apply_transform(model, steps)


def deviation(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest entry; 0 where both vanish."""
    size = float(expected.abs().max())
    error = float((found - expected).abs().max())
    return error / size if size > 0 else error


def kappa_half(samples: Tensor) -> float:
    """Largest over the median eigenvalue of the second moment."""
    values = torch.linalg.eigvalsh(samples.T @ samples / len(samples)).flip(0)
    return float(values[0] / values[math.ceil(len(values) / 2 - 1e-9) - 1])


networks = st.tuples(
    st.lists(st.integers(3, 8), min_size=3, max_size=6),
    st.integers(0, 2**32),
    st.data(),
)
factor = st.floats(0.1, 10.0)


def data_for(widths: list[int], seed: int, count: int) -> Tensor:
    return torch.randn(count, widths[0], generator=torch.Generator().manual_seed(seed % 2**31))


@settings(max_examples=60)
@given(case=networks, slope=st.sampled_from([0.0, 0.1, 1.0]), quadratic=st.booleans())
def test_theorem_1_without_norm(case, slope, quadratic):
    """x, dL/dh and dL/dW scale by products of the factors, times mu."""
    widths, seed, draw = case
    depth = len(widths) - 1
    factors = draw.draw(st.lists(factor, min_size=depth, max_size=depth))
    model, x = plain(widths, seed, slope), data_for(widths, seed, 12)
    direction = data_for([widths[-1]], seed + 1, 1)[0]

    def loss(h: Tensor) -> Tensor:
        return 0.5 * h.square().sum() if quadratic else (h @ direction).sum()

    a, b = signals(model, x, loss), signals(scaled(model, factors), x, loss)
    mu = math.prod(factors) if quadratic else 1.0
    for k in range(depth):
        below, above = math.prod(factors[:k]), math.prod(factors[k + 1 :])
        assert deviation(b.inputs[k], below * a.inputs[k]) < TOLERANCE
        assert deviation(b.gradients[k], mu * above * a.gradients[k]) < TOLERANCE
        assert deviation(b.weights[k], mu * below * above * a.weights[k]) < TOLERANCE


@settings(max_examples=40)
@given(case=networks)
def test_theorem_1_for_eigenvalues(case):
    """lambda_max scales by the squares; kappa_p does not change."""
    widths, seed, draw = case
    depth = len(widths) - 1
    factors = draw.draw(st.lists(factor, min_size=depth, max_size=depth))
    model, x = plain(widths, seed, 0.1), data_for(widths, seed, 40)

    def loss(h: Tensor) -> Tensor:
        return 0.5 * h.square().sum()

    a, b = signals(model, x, loss), signals(scaled(model, factors), x, loss)
    mu = math.prod(factors)
    for k in range(depth):
        below, above = math.prod(factors[:k]), math.prod(factors[k + 1 :])
        for before, after, ratio in (
            (a.inputs[k], b.inputs[k], below**2),
            (a.gradients[k], b.gradients[k], (mu * above) ** 2),
        ):
            top = [float(torch.linalg.matrix_norm(s, 2)) ** 2 for s in (before, after)]
            assert top[1] == pytest.approx(ratio * top[0], rel=TOLERANCE)
            kappa = kappa_half(before)
            rounding = 1e-12 * kappa  # an eigenvalue is known to epsilon times the largest
            assert kappa_half(after) == pytest.approx(kappa, rel=max(TOLERANCE, rounding))


@settings(max_examples=60)
@given(case=networks, activation=st.sampled_from([nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU]))
def test_theorem_2_with_batch_norm(case, activation):
    """x does not change, dL/dh and dL/dW scale by 1 / a_k; any activation."""
    widths, seed, draw = case
    depth = len(widths) - 1
    factors = draw.draw(st.lists(factor, min_size=depth, max_size=depth))
    model = normed(widths, seed, activation=activation)
    x = data_for(widths, seed, 24)
    labels = torch.randint(widths[-1], (24,), generator=torch.Generator().manual_seed(seed % 97))

    def loss(h: Tensor) -> Tensor:
        return functional.cross_entropy(h, labels)

    a, b = signals(model, x, loss), signals(scaled(model, factors), x, loss)
    for k, factor_k in enumerate(factors):
        assert deviation(b.inputs[k], a.inputs[k]) < TOLERANCE
        assert deviation(b.gradients[k], a.gradients[k] / factor_k) < TOLERANCE
        assert deviation(b.weights[k], a.weights[k] / factor_k) < TOLERANCE
        weight = dict(model.named_parameters())[f"layer{k + 1}.weight"].detach()
        along = (weight * a.weights[k]).sum(1)
        scale = weight.norm(dim=1) * a.weights[k].norm()
        assert float((along / scale).abs().max()) < TOLERANCE  # scale invariance


CASE = ([5, 6, 6, 4], 3)


def errors_of_theorem_2(model: nn.Module, factors: list[float], loss) -> float:
    x = data_for(CASE[0], 1, 24)
    a, b = signals(model, x, loss), signals(scaled(model, factors), x, loss)
    return max(
        deviation(b.weights[k], a.weights[k] / factor_k) for k, factor_k in enumerate(factors)
    )


def cross_entropy(h: Tensor) -> Tensor:
    labels = torch.arange(len(h)) % h.shape[1]
    return functional.cross_entropy(h, labels)


@pytest.mark.parametrize(("eps", "low", "high"), [(0.0, 0, 1e-12), (1e-30, 0, 1e-12),
                                                  (1e-5, 1e-7, 1e-2)])  # fmt: skip
def test_precondition_eps(eps, low, high):
    error = errors_of_theorem_2(normed(*CASE, eps=eps), [0.5, 3.0, 0.7], cross_entropy)
    assert low <= error < high


def test_precondition_norm_behind_every_scaled_layer():
    """With norms on hidden layers only, the law holds if and only if the last factor is 1."""
    model = normed(*CASE, last=False)
    assert errors_of_theorem_2(model, [0.5, 3.0, 1.0], cross_entropy) < 1e-12
    assert errors_of_theorem_2(model, [0.5, 3.0, 0.7], cross_entropy) > 1e-2


def test_precondition_batch_statistics():
    """Under running statistics nothing undoes the factors."""
    model = normed(*CASE)
    for seed in range(5):
        model(data_for(CASE[0], seed, 50))
    assert errors_of_theorem_2(model, [0.5, 3.0, 0.7], cross_entropy) < 1e-12
    assert errors_of_theorem_2(model.eval(), [0.5, 3.0, 0.7], cross_entropy) > 1e-2


def test_precondition_a_loss_with_a_gradient():
    """Behind a last batch norm both losses of theorem 1 have gradient zero: they test nothing."""
    model, x = normed(*CASE), data_for(CASE[0], 1, 24)
    c = torch.randn(4)
    per_example = torch.randn(24, 4)
    real = signals(model, x, lambda h: (h * per_example).sum())
    size = max(float(w.abs().max()) for w in real.weights)
    for vacuous in (lambda h: (h @ c).sum(), lambda h: 0.5 * h.square().sum()):
        empty = signals(model, x, vacuous)
        assert max(float(w.abs().max()) for w in empty.weights) < 1e-12 * size


def test_precondition_mu_exists():
    """Cross-entropy has no mu, unless the factors multiply to 1."""
    model, x = plain([5, 6, 4], 2, 0.0), data_for([5], 2, 24)
    a = signals(model, x, cross_entropy)
    for factors, holds in (([2.0, 0.5], True), ([2.0, 3.0], False)):
        b = signals(scaled(model, factors), x, cross_entropy)
        ratio = b.gradients[-1] / a.gradients[-1]
        spread = float((ratio.max() - ratio.min()) / ratio.abs().max())
        assert (spread < 1e-12) == holds


def test_precondition_no_bias():
    model = nn.Sequential(
        OrderedDict(layer1=nn.Linear(5, 6), act=nn.ReLU(), layer2=nn.Linear(6, 4))
    )
    initialize(model, gaussian(2.0, 0.5), seed=1)
    x = data_for([5], 2, 12)
    a, b = (signals(m, x, lambda h: h.sum()) for m in (model, scaled(model, [2.0, 1.0])))
    assert deviation(b.inputs[1], 2.0 * a.inputs[1]) > 1e-2


def test_precondition_homogeneous_activation():
    model = nn.Sequential(OrderedDict(layer1=nn.Linear(5, 6, bias=False), act=nn.Tanh(),
                                      layer2=nn.Linear(6, 4, bias=False)))  # fmt: skip
    initialize(model, gaussian(2.0), seed=1)
    x = data_for([5], 2, 12)
    a, b = (signals(m, x, lambda h: h.sum()) for m in (model, scaled(model, [2.0, 1.0])))
    assert deviation(b.inputs[1], 2.0 * a.inputs[1]) > 1e-2
