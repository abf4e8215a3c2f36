"""Signals of linear layers against autograd and the chain rule."""

import pytest
import torch
from torch import nn

from normscope.measure.layer_signals import layer_signals


def test_signals_and_gradients_are_those_of_the_chain_rule():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x = torch.randn(7, 3).double()
    found = layer_signals(net, x, lambda out: out.pow(3).sum())
    outputs = net(x)
    torch.testing.assert_close(found["h"][1], outputs)
    slope = 3 * outputs.detach() ** 2
    torch.testing.assert_close(found["dh"][1], slope)
    torch.testing.assert_close(found["dx"][1], slope @ net[2].weight.detach())
    inner = (slope @ net[2].weight.detach()) * (1 - found["x"][1].detach() ** 2)
    torch.testing.assert_close(found["dh"][0], inner)
    torch.testing.assert_close(found["dw"][0], inner.T @ x)
    assert all(p.grad is None for p in net.parameters())


def test_a_loss_that_fails_leaves_no_hook():
    net = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError):
        layer_signals(net, torch.ones(1, 2), lambda out: 1 / 0)
    assert not net._forward_hooks
