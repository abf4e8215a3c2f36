"""Hessians through every normalization layer against finite differences of the gradient.

Finite differences know nothing of double backward, and torch's own compositions are not all right:
here each layer is differentiated by central differences of plain gradients.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import normscope as ns

STEP = 5e-4  # fourth-order differences: STEP^4 fifth derivatives, eps / STEP rounding
STENCIL = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))


def dense(*norm):
    return nn.Sequential(nn.Linear(3, 4), *norm, nn.Tanh(), nn.Linear(4, 2))


def image(*norm):
    layers = [nn.Conv2d(2, 4, 2), *norm, nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)]
    return nn.Sequential(*layers)


def weight_norm(dim):
    first = parametrizations.weight_norm(nn.Linear(3, 4), dim=dim)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 2))


NETWORKS = {
    "batch-norm-1d": lambda: dense(nn.BatchNorm1d(4)),
    "batch-norm-2d": lambda: image(nn.BatchNorm2d(4)),
    "layer-norm": lambda: dense(nn.LayerNorm(4)),
    "group-norm": lambda: image(nn.GroupNorm(2, 4)),
    "instance-norm": lambda: image(nn.InstanceNorm2d(4, affine=True)),
    "rms-norm": lambda: dense(nn.RMSNorm(4)),
    "local-response-norm": lambda: image(nn.LocalResponseNorm(2, alpha=0.5)),
    "weight-norm-0": lambda: weight_norm(0),
    "weight-norm-1": lambda: weight_norm(1),
}


def finite_difference_hessian(model, x, y):
    """Columns dg/dtheta_i by the five-point rule on gradients of plain autograd."""
    parameters = list(model.parameters())

    def gradient():
        loss = nn.functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, parameters)
        return torch.cat([g.reshape(-1) for g in grads])

    columns = []
    for parameter in parameters:
        flat = parameter.data.view(-1)
        for index in range(len(flat)):
            middle, column = float(flat[index]), 0.0
            for offset, weight in STENCIL:
                flat[index] = middle + offset * STEP
                column = column + weight / STEP * gradient()
            flat[index] = middle
            columns.append(column)
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_hessian_through_norm_is_the_finite_difference(name):
    torch.manual_seed(2)
    model = NETWORKS[name]().train()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(5, 2, 3, 3) if isinstance(model[0], nn.Conv2d) else torch.randn(5, 3)
    y = torch.randint(2, (5,))
    expected = finite_difference_hessian(model, x, y)
    operator = ns.hessian(ns.Risk(model, x, y, loss="cross_entropy", statistics="batch"))
    assert (operator.to_dense() - expected).norm() < 1e-8 * expected.norm()
    one_by_one = torch.stack([operator @ v for v in torch.eye(len(expected))], dim=1)
    assert (one_by_one - expected).norm() < 1e-8 * expected.norm()


class WrongSecond(torch.autograd.Function):
    """A product whose backward holds one factor constant: right once, wrong when repeated."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale.detach(), (grad * x).sum(0)


def test_a_wrong_second_derivative_is_noticed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return WrongSecond.apply(self.a(x), self.scale)

    risk = ns.Risk(Net(), torch.randn(5, 3), torch.randn(5, 2), loss="mse", statistics="batch")
    operator = ns.hessian(risk)
    operator @ torch.randn(risk.num_parameters)
    with pytest.raises(ns.NormscopeError, match="wrong second derivative"):
        operator @ torch.randn(risk.num_parameters)
