"""Limits that are known: quadratics, linear networks, momentum; and a simulation by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.train import lr_range_test, max_stable_lr


def regression(seed, *, condition):
    """Linear regression with a spectrum of our choice: a quadratic in the weights."""
    rng = np.random.default_rng(seed)
    n, d, c = int(rng.integers(5, 60)), int(rng.integers(1, 40)), int(rng.integers(1, 5))
    x = rng.standard_normal((n, d)) * np.geomspace(1, condition**-0.5, d) * 10 ** rng.uniform(-1, 1)
    model = nn.Linear(d, c, bias=False)
    data = torch.from_numpy(x), torch.from_numpy(rng.standard_normal((n, c)))
    return model, data, float(np.linalg.eigvalsh(x.T @ x / n)[-1])


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("seed", "condition"), [(0, 1.0), (1, 30.0), (2, 1000.0)])
def test_gradient_descent_on_a_quadratic(seed, condition, momentum):
    model, data, top = regression(seed, condition=condition)
    found = max_stable_lr(model, data, "mse", momentum=momentum, seeds=1)
    assert found.lr == pytest.approx(2 * (1 + momentum) / top, rel=0.02)
    assert found.high <= found.low * 1.02
    assert found.ok


def test_the_scale_of_the_loss_is_the_users():
    """torch's MSELoss is 2 / C times half the squared error."""
    model, data, top = regression(3, condition=10.0)
    found = max_stable_lr(model, data, nn.MSELoss(), seeds=1)
    outputs = data[1].shape[1]
    assert found.lr == pytest.approx(2 / (2 / outputs * top), rel=0.02)


def test_an_optimizer_given_as_a_function_with_a_group_at_a_tenth_of_the_rate():
    """Two uncoupled directions, one at lr and one at lr / 10: the smaller limit counts."""
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    model = nn.Module()
    model.a, model.b = a, b

    def optimizer(parameters):
        first, second = parameters
        groups = [{"params": [first], "lr": 1e-3}, {"params": [second], "lr": 1e-4}]
        return torch.optim.SGD(groups, momentum=0.5)

    def loss_fn(net, _):
        return (0.5 * 3.0 * net.a**2 + 0.5 * 70.0 * net.b**2).sum()

    found = max_stable_lr(model, [0], loss_fn=loss_fn, optimizer=optimizer, seeds=1)
    assert found.lr == pytest.approx(10 * 2 * 1.5 / 70.0, rel=0.02)  # below 2 * 1.5 / 3


class TwoLayers(nn.Module):
    """f = v . (u x): a linear network with one hidden layer and one input."""

    def __init__(self, u, v):
        super().__init__()
        self.u, self.v = nn.Parameter(u), nn.Parameter(v)

    def forward(self, x):
        return (x @ self.u[None, :]) @ self.v[:, None]


def two_layer_loss(u2, v2, f, lr, steps):
    """Losses of gradient descent on f^2 / 2 with f = u.v, by its exact recursion.

    With s = |u|^2 + |v|^2 the pair (f, s) is closed: u' = u - lr f v, v' = v - lr f u give
    f' = f (1 - lr s + lr^2 f^2) and s' = s - 4 lr f^2 + lr^2 f^2 s.
    """
    losses, s = [], u2 + v2
    for _ in range(steps):
        losses.append(0.5 * f * f)
        if losses[-1] > 1e3 or not math.isfinite(f):
            break
        f, s = f * (1 - lr * s + lr**2 * f**2), s - 4 * lr * f**2 + lr**2 * f**2 * s
    return losses


@pytest.mark.parametrize("width", [4, 60])
def test_a_linear_network_with_one_hidden_layer(width):
    """It survives rates above 2 / lambda by moving to a flatter minimum, up to about 4 / lambda.

    The oracle is a bisection on the two-number recursion, written without any of the code tested.
    """
    generator = torch.Generator().manual_seed(width)
    u, v = (torch.randn(width, generator=generator) for _ in range(2))
    f, s = float(u @ v), float(u @ u + v @ v)
    low, high = 0.1 / s, 100 / s
    for _ in range(60):
        middle = math.sqrt(low * high)
        broke = two_layer_loss(float(u @ u), float(v @ v), f, middle, 5000)[-1] > 1e3
        low, high = (low, middle) if broke else (middle, high)
    found = max_stable_lr(
        TwoLayers(u, v), (torch.ones(1, 1), torch.zeros(1, 1)), "mse", seeds=1, tol=0.01
    )
    assert found.lr == pytest.approx(low, rel=0.02)
    assert found.lr > 2 / s


def test_a_limit_below_which_everything_learns_is_both_limits():
    """Away from the limit all modes shrink, so divergence and no learning switch together."""
    data = torch.ones(1, 1), torch.zeros(1, 1)
    found = max_stable_lr(nn.Linear(1, 1, bias=False), data, "mse", seeds=1, tol=0.01)
    assert found.diverges.lr == pytest.approx(2.0, rel=0.02)
    assert found.does_not_learn.lr == pytest.approx(2.0, rel=0.1)


def test_sign_descent_has_the_rate_at_which_adam_reaches_the_rule():
    """Adam moves by the rate itself: from w = 1, w^2 / 2 passes 1e3 in one step near lr = 45.7."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    data = torch.ones(1, 1), torch.zeros(1, 1)
    found = max_stable_lr(model, data, "mse", optimizer="adam", seeds=1, steps=1, tol=0.005)
    assert found.lr == pytest.approx(1 + math.sqrt(2e3), rel=0.02)


@pytest.mark.parametrize("steps", [60, 100])
def test_range_test_on_one_curvature_is_steepest_at_its_inverse(steps):
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(-0.6)
    data = torch.full((4, 1), 2.0), torch.full((4, 1), 0.7)  # curvature 4
    found = lr_range_test(model, data, "mse", steps=steps)
    frame = found.to_frame()
    before = frame[frame.lr <= found.turn]
    steepest = float(before.lr[before.slope.idxmin()])
    assert abs(math.log10(steepest * 4)) < 0.15  # the width of the fit
    assert found.ok
    assert found.low <= found.suggestion < 2 / 4


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_range_test_suggests_less_than_the_limit_of_a_quadratic(seed, momentum):
    model, data, top = regression(seed, condition=30.0)
    found = lr_range_test(model, data, "mse", momentum=momentum)
    limit = 2 * (1 + momentum) / top
    assert found.ok, found.reason
    assert found.suggestion < limit
    assert found.turn > limit / 2


def at_a_minimum(seed=0):
    """A small tanh network whose targets are its own outputs, moved by a little; the Hessian."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = 2 * torch.randn(30, 3, generator=generator)
    y = model(x).detach()
    names, point = zip(*model.named_parameters(), strict=True)

    def loss(*values):
        out = torch.func.functional_call(model, dict(zip(names, values, strict=True)), x)
        return 0.5 * (out - y).square().sum(1).mean()

    blocks = torch.autograd.functional.hessian(loss, tuple(p.detach() for p in point))
    rows = [
        torch.cat([b.flatten(p.ndim) for b in row], -1)
        for row, p in zip(blocks, point, strict=True)
    ]
    hessian = torch.cat([r.reshape(-1, r.shape[-1]) for r in rows])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-4 * torch.randn(p.shape, generator=generator))
    return model, (x, y), float(torch.linalg.eigvalsh(hessian)[-1])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_limit_of_a_minimum(momentum):
    model, data, top = at_a_minimum()
    found = max_stable_lr(model, data, "mse", momentum=momentum, seeds=1, criterion="leaves")
    assert found.lr == pytest.approx(2 * (1 + momentum) / top, rel=0.02)
    assert found.lr == found.leaves.lr
    assert found.ok
    assert found.summary().startswith("largest learning rate that stays below 10 times")
    assert found.diverges.high > 1.2 * found.high  # what leaves need not diverge
    again = type(found).from_dict(found.to_dict())
    assert again.leaves.high == found.high


def test_leaving_a_quadratic_is_divergence():
    model, data, top = regression(1, condition=30.0)
    found = max_stable_lr(model, data, "mse", seeds=2, criterion="leaves")
    assert found.lr == pytest.approx(2 / top, rel=0.03)
    assert found.diverges.lr == pytest.approx(2 / top, rel=0.1)


def test_leaving_needs_a_positive_loss():
    model, data, _ = regression(1, condition=30.0)
    with pytest.raises(InputError, match="must be above 0"):
        max_stable_lr(
            model, data, lambda out, y: (out - y).square().mean() - 1e6, criterion="leaves"
        )
