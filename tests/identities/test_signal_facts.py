"""Facts that hold for every network: order of the sums, classes, output gradients, dead units."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from normscope.measure.probes.activations import activations
from normscope.measure.probes.gradients import gradients
from normscope.nn import network

COLUMNS = ("t1", "t2", "t3", "t4")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def net(seed, norm, *, kernel=3, stride=1, groups=1, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, kernel, stride=stride, padding=1, groups=groups),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=groups, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).to(dtype)


def data(samples, seed, size=5, dtype=torch.float64):
    labels = torch.randint(3, (samples,), generator=torch.Generator().manual_seed(seed))
    return normal(samples, 2, size, size, seed=seed).to(dtype), labels


configurations = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "norm": st.booleans(),
        "kernel": st.integers(1, 3),
        "stride": st.integers(1, 2),
        "groups": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=25)
@given(configurations, st.integers(2, 6), st.booleans())
def test_order_of_the_four_columns(config, samples, single):
    dtype = torch.float32 if single else torch.float64
    model, batch = net(**config, dtype=dtype), data(samples, config["seed"], dtype=dtype)
    found = gradients(model, batch, "cross_entropy")
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    for layer in found.layers:
        t1, t2, t3, t4 = (getattr(layer, name) for name in COLUMNS)
        # sums may cancel, so that rounding is a share of T1, not of the sum itself
        rounding = 50 * torch.finfo(dtype).eps * t1
        assert t4 <= t2 + rounding
        assert t4 <= t3 + rounding
        assert max(t2, t3) <= t1 + rounding
        weight = dict(model.named_parameters())[f"{layer.name}.weight"]
        scale = layer.mean_abs / t4 if t4 else 1.0  # samples times positions
        assert scale == pytest.approx(round(scale), rel=1e-12)
        expected = float(weight.grad.abs().mean()) / scale
        assert t4 == pytest.approx(expected, rel=1e-12, abs=rounding)


@pytest.mark.parametrize("norm", [False, True])
def test_columns_are_linear_in_the_loss(norm):
    def scaled(outputs, targets):
        return 7.5 * functional.cross_entropy(outputs, targets)

    one = gradients(net(0, norm), data(6, 1), "cross_entropy")
    many = gradients(net(0, norm), data(6, 1), scaled)
    for a, b in zip(one.layers, many.layers, strict=True):
        for name in COLUMNS:
            assert getattr(b, name) == pytest.approx(7.5 * getattr(a, name))
        assert b.kurtosis == pytest.approx(a.kurtosis)
        assert b.rank_one_signed == pytest.approx(a.rank_one_signed)


def test_terms_of_one_sign_do_not_cancel():
    """Positive inputs and weights, a loss that falls in every output: all terms are negative."""
    model = net(0, norm=False)
    for parameter in model.parameters():
        parameter.data.abs_()
    x = normal(5, 2, 5, 5).abs()
    found = gradients(model, (x, torch.zeros(5)), lambda outputs, targets: -outputs.mean())
    for layer in found.layers:
        assert layer.t4 == pytest.approx(layer.t1, rel=1e-12)
        assert layer.aligned == 1.0


def test_one_sample():
    found = gradients(net(0, norm=False), data(1, 3), "cross_entropy")
    for layer in found.layers:
        assert layer.t2 == pytest.approx(layer.t4, rel=1e-12)
        assert layer.t1 == pytest.approx(layer.t3, rel=1e-12)


def test_one_position():
    """A kernel as large as the image, and linear layers, have one position."""
    model = nn.Sequential(nn.Conv2d(2, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    found = gradients(model, data(6, 3), "cross_entropy")
    for layer in found.layers:
        assert layer.t3 == pytest.approx(layer.t4, rel=1e-12)
        assert layer.t1 == pytest.approx(layer.t2, rel=1e-12)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_gradients_of_classes_sum_to_the_whole(norm, dtype, bound):
    model = network("resnet8", norm="batch" if norm else None, width=8, init="xavier").to(dtype)
    x = normal(12, 3, 16, 16).to(dtype)
    y = torch.randint(10, (12,), generator=torch.Generator().manual_seed(0))
    for layer in (1, 4, 8):
        found = gradients(
            model, (x, y), "cross_entropy", quantities="classes", class_layer=layer
        ).classes
        assert found.sum_error < bound
        assert found.mean_abs.min() > 0


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans(), st.floats(0.1, 100))
def test_output_gradients_sum_to_zero(seed, norm, scale):
    model, batch = net(seed, norm), data(5, seed)
    model[-1].weight.data.mul_(scale)
    g = gradients(model, batch, "cross_entropy", quantities=()).outputs
    assert np.abs(g.examples.sum(1)).max() < 1e-12
    assert np.abs(g.examples).max() <= 1
    assert 0 <= g.alignment <= 1 + 1e-12
    loss = functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    (bias,) = torch.autograd.grad(loss, model[-1].bias)
    np.testing.assert_allclose(g.examples.sum(0), bias.numpy(), atol=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(-5, 5).filter(lambda g: abs(g) > 1e-3), st.floats(-50, 50))
def test_standardized_units_are_neither_dying_nor_full(seed, gamma, shift):
    """However far a bias moves it: mean zero and some variance is both signs."""
    model = net(seed, norm=True)
    model[0].bias.data.fill_(shift)
    model[1].weight.data.fill_(gamma)
    signal = activations(model, [(data(6, seed)[0], None)])["2"]
    assert (signal.variance > 0).all()
    assert not (signal.dying | signal.full | signal.one_signed).any()


def test_gradients_in_front_of_batch_norm_cancel_in_every_channel():
    """A shift of a channel does nothing, so the terms of a bias sum to zero; behind they do not."""
    model, batch = net(1, norm=True), data(8, 2)
    behind = gradients(model, batch, "cross_entropy")["0"]
    model[1] = nn.Identity()
    plain = gradients(model, batch, "cross_entropy")["0"]
    assert behind.channel_gradient_at == "1"
    assert plain.channel_gradient_at == "0"
    assert np.abs(behind.channel_gradient).max() > 1e-6


def test_weights_of_scale_invariant_layers_are_orthogonal_to_their_gradient():
    """Doubling the weight in front of batch norm halves its gradient: the ratio falls by four."""
    model, batch = net(1, norm=True), data(8, 2)
    model[0].bias = None
    model[1].eps = 1e-30
    once = gradients(model, batch, "cross_entropy")["0"]
    model[0].weight.data.mul_(2)
    twice = gradients(model, batch, "cross_entropy")["0"]
    assert twice.weight_ratio == pytest.approx(once.weight_ratio / 4, rel=1e-8)
    assert twice.domination == pytest.approx(once.domination / 4, rel=1e-8)
    assert math.isclose(twice.alignment, once.alignment, rel_tol=1e-8)
