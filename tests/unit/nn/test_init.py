"""Initial variances, streams and the global generator."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.nn import INITS, initialize, lsuv, network
from normscope.nn.init import fans, gaussian


def variance_is(values, expected, *, excess=0.0):
    """Mean square within 4.5 s.e.; var(x^2) = sigma^4 (2 + excess kurtosis)."""
    error = expected * math.sqrt((2 + excess) / values.numel())
    assert abs(float(values.square().mean()) - expected) < 4.5 * error
    assert abs(float(values.mean())) < 4.5 * math.sqrt(expected / values.numel())


LAYERS = [nn.Linear(300, 200), nn.Conv2d(20, 40, 3), nn.Conv1d(30, 50, 5)]
EXPECTED = {
    "gaussian": lambda i, o: 1 / i,
    "xavier": lambda i, o: 2 / (i + o),
    "xavier-uniform": lambda i, o: 2 / (i + o),
    "he": lambda i, o: 2 / i,
    "he-fan-out": lambda i, o: 2 / o,
    "lecun-uniform": lambda i, o: 1 / (3 * i),
}
UNIFORM = {"xavier-uniform", "lecun-uniform"}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda x: type(x).__name__)
def test_variances(name, layer):
    initialize(layer, name, seed=3)
    weight = layer.weight.detach()
    expected = EXPECTED[name](*fans(weight))
    variance_is(weight, expected, excess=-1.2 if name in UNIFORM else 0.0)
    if name in UNIFORM:
        bound = math.sqrt(3 * expected)
        assert 0.99 * bound < float(weight.abs().max()) <= bound
    if name == "lecun-uniform":  # Torch7 draws its biases alike
        assert 0 < float(layer.bias.detach().abs().max()) <= 1 / math.sqrt(fans(weight)[0])
    else:
        assert float(layer.bias.detach().abs().max()) == 0


def test_the_papers_square_convolution_under_xavier():
    conv = initialize(nn.Conv2d(64, 64, 3, bias=False), "xavier")
    variance_is(conv.weight.detach(), 1 / (9 * 64))


def test_gaussian_with_given_variances():
    layer = initialize(nn.Linear(200, 5000), gaussian(1.7, 0.4), seed=1)
    variance_is(layer.weight.detach(), 1.7 / 200)
    variance_is(layer.bias.detach(), 0.4)


@pytest.mark.parametrize("make", [
    lambda: nn.Linear(20, 30), lambda: nn.Linear(30, 20), lambda: nn.Conv2d(3, 8, 3),
])  # fmt: skip
def test_orthogonal(make):
    flat = initialize(make(), "orthogonal", seed=2).weight.detach().flatten(1)
    small = flat if flat.shape[0] <= flat.shape[1] else flat.T
    torch.testing.assert_close(small @ small.T, torch.eye(len(small)), rtol=0, atol=1e-12)


def test_orthogonal_is_uniform_over_rotations():
    """The trace of a uniform orthogonal matrix has mean 0 and variance 1; plain QR has not."""
    traces = torch.stack([
        initialize(nn.Linear(3, 3), "orthogonal", seed=s).weight.detach().trace()
        for s in range(2000)
    ])  # fmt: skip
    assert abs(float(traces.mean())) < 4.5 / math.sqrt(2000)
    assert abs(float(traces.square().mean()) - 1) < 4.5 * math.sqrt(2 / 2000)


def numpy_state():
    return np.random.get_state()[1].copy()  # noqa: NPY002  the legacy generator must not move


@pytest.mark.parametrize("name", INITS)
def test_the_seed_decides_and_the_global_generators_stay(name):
    states = torch.get_rng_state(), numpy_state(), random.getstate()
    first = initialize(nn.Linear(6, 4), name, seed=5).weight.detach()
    torch.set_rng_state(states[0])  # nn.Linear itself drew from it
    second, third = nn.Linear(6, 4), nn.Linear(6, 4)
    after = torch.get_rng_state()
    initialize(second, name, seed=5)
    initialize(third, name, seed=6)
    assert torch.equal(first, second.weight.detach())
    assert not torch.equal(first, third.weight.detach())
    assert torch.equal(after, torch.get_rng_state())
    assert np.array_equal(states[1], numpy_state())
    assert states[2] == random.getstate()


def test_streams_depend_on_the_name_only():
    """A layer's weights do not depend on what else the model has; every dtype sees the same."""
    small = nn.ModuleDict({"a": nn.Linear(5, 4)})
    large = nn.ModuleDict({"z": nn.Linear(7, 7), "a": nn.Linear(5, 4)})
    half = nn.ModuleDict({"a": nn.Linear(5, 4, dtype=torch.float32)})
    for model in (small, large, half):
        initialize(model, "he", seed=9)
    assert torch.equal(small["a"].weight, large["a"].weight)
    assert torch.equal(small["a"].weight.float(), half["a"].weight)
    assert not torch.equal(large["z"].weight[:4, :5], large["a"].weight)


def test_weight_normed_layers_are_initialized_too():
    from normscope.nn import unit_weights

    plain = initialize(nn.Linear(5, 4), "he", seed=1).weight.detach()
    unit = unit_weights(nn.Linear(5, 4))
    initialize(unit, "he", seed=1)
    torch.testing.assert_close(unit.weight.detach(), plain / plain.norm(dim=1, keepdim=True))


def test_bad_input():
    with pytest.raises(InputError, match="Did you mean 'xavier'"):
        initialize(nn.Linear(2, 2), "xaver")
    with pytest.raises(InputError, match="no linear or convolutional layer"):
        initialize(nn.ReLU(), "he")
    with pytest.raises(InputError, match="bias_variance"):
        gaussian(1.0, -1.0)
    with pytest.raises(InputError, match="seed"):
        initialize(nn.Linear(2, 2), "he", seed=-1)


# layer-sequential unit variance


def outputs_of(model, x):
    """Outputs of all linear and convolutional layers in evaluation mode, by name."""
    kept = {}
    hooks = [m.register_forward_hook(lambda m, i, o, n=n: kept.setdefault(n, o))
             for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]  # fmt: skip
    mode = model.training
    model.eval()(x)
    model.train(mode)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("norm", [None, "batch"])
def test_lsuv_gives_every_layer_unit_variance_and_its_channels_mean_zero_if_asked(center, norm):
    net = network("resnet8", width=4, norm=norm, init="orthogonal").double()
    x = 1 + torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    before = {k: v.clone() for k, v in net.named_buffers()}
    state = torch.get_rng_state()
    assert lsuv(net, x, center=center) is net
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.named_buffers())
    assert all(m.training for m in net.modules())
    found = outputs_of(net, x)
    assert len(found) == 8
    for y in found.values():
        assert y.var(correction=0).item() == pytest.approx(1, abs=1e-12)
        means = y.mean([k for k in range(y.ndim) if k != 1])
        assert (means.abs().max().item() < 1e-12) == center


def test_lsuv_is_the_loop_over_layers():
    """The published procedure by hand: forward to a layer, divide its weights by the deviation."""
    layers = [
        nn.Linear(9, 30, bias=False),
        nn.Linear(30, 20, bias=False),
        nn.Linear(20, 4, bias=False),
    ]
    net = initialize(nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Tanh(), layers[2]), "xavier")
    x = torch.randn(50, 9, generator=torch.Generator().manual_seed(1))
    weights = [m.weight.detach().double().clone() for m in layers]
    signal = x.double()
    for k, act in enumerate((torch.relu, torch.tanh, None)):
        weights[k] = weights[k] / (signal @ weights[k].T).std(correction=0)
        signal = signal @ weights[k].T if act is None else act(signal @ weights[k].T)
    lsuv(net.double(), x.double())
    for layer, expected in zip(layers, weights, strict=True):
        torch.testing.assert_close(layer.weight.detach(), expected)


def test_lsuv_scales_a_shared_layer_for_its_first_use():
    layer = nn.Linear(6, 6).double()
    net, x = nn.Sequential(layer, nn.ReLU(), layer), torch.randn(40, 6).double()
    lsuv(net, x, center=True)
    first = layer(x)
    assert first.var(correction=0).item() == pytest.approx(1)
    assert layer(first.relu()).var(correction=0).item() != pytest.approx(1, rel=1e-3)


def test_lsuv_refuses_what_it_cannot_scale_and_leaves_the_model_as_it_was():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    initialize(net[2], gaussian(0.0))
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(InputError, match="layer '2' have standard deviation 0"):
        lsuv(net, torch.randn(8, 3))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert not net[0]._forward_hooks
    with pytest.raises(InputError, match="no such layer"):
        lsuv(nn.ReLU(), torch.randn(8, 3))
    with pytest.raises(InputError, match="layer '0' is parametrized"):
        lsuv(
            nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 5))), torch.randn(8, 3)
        )
