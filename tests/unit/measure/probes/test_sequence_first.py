"""Layers that run on (positions, samples, channels): samples are not taken for positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns

SAMPLES = 5


class Turned(nn.Module):
    """Two layers over a sequence, samples first or positions first."""

    def __init__(self, *, first, fixed=False):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.first, self.fixed = first, fixed

    def forward(self, x):
        if self.fixed:
            x = x.reshape(SAMPLES, -1, 3)
            if len(x) != SAMPLES or x.shape[1] < SAMPLES:
                raise ValueError("made for five samples")
        x = x if self.first else x.transpose(0, 1)
        out = self.b(torch.tanh(self.norm(self.a(x))))
        return (out if self.first else out.transpose(0, 1)).mean(1)


def pair(**options):
    torch.manual_seed(0)
    plain, turned = Turned(first=True), Turned(first=False, **options)
    turned.load_state_dict(plain.state_dict())
    return plain, turned


def data(length):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, length, 3, generator=generator)
    x = x + 3 * torch.randn(SAMPLES, 1, 3, generator=generator)  # samples differ, positions less
    return x, torch.tensor([0, 1, 1, 0, 1])


@pytest.mark.parametrize("length", [SAMPLES, 7])
class TestTheSameNumbersInBothOrders:
    def test_gradients(self, length):
        plain, turned = (ns.gradients(m, data(length), "cross_entropy") for m in pair())
        for one, other in zip(plain.layers, turned.layers, strict=True):
            for name in ("t1", "t2", "t3", "t4"):
                assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9), name
        assert plain[1].t2 != pytest.approx(plain[1].t3, rel=0.1)

    def test_order_parameters(self, length):
        plain, turned = (ns.order_parameters(m, data(length), "cross_entropy") for m in pair())
        for name, values in plain.measured.items():
            assert np.allclose(turned.measured[name], values, rtol=1e-9), name

    def test_activations_and_conditioning(self, length):
        plain, turned = (ns.activations(m, data(length)) for m in pair())
        for one, other in zip(plain.signals, turned.signals, strict=True):
            assert np.allclose(other.variance, one.variance, rtol=1e-9)
        plain, turned = (ns.conditioning(m, data(length), "cross_entropy") for m in pair())
        for one, other in zip(plain.layers, turned.layers, strict=True):
            assert np.allclose(other.inputs.values, one.inputs.values, rtol=1e-9)
            assert np.allclose(other.gradients.values, one.gradients.values, atol=1e-12)


def test_a_model_of_one_batch_size_says_that_it_cannot_tell():
    plain, turned = pair(fixed=True)
    found = ns.gradients(turned, data(SAMPLES), "cross_entropy")
    assert np.isnan(found[1].t2)
    assert np.isnan(found[1].t3)
    assert found[1].t4 == pytest.approx(ns.gradients(plain, data(SAMPLES), "cross_entropy")[1].t4)
    with pytest.raises(ns.NormscopeError, match="cannot be told apart"):
        ns.order_parameters(turned, data(SAMPLES), "cross_entropy")


def test_model_and_random_state_are_left_alone():
    _, model = pair()
    before, state = {n: p.clone() for n, p in model.state_dict().items()}, torch.get_rng_state()
    ns.gradients(model, data(SAMPLES), "cross_entropy")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
