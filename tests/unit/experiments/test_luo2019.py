"""The parts of Luo's experiments that their verdicts rest on."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import normscope as ns
from normscope.experiments.luo2019 import _common, batch_sizes, dropout_order, formulas, neuron
from normscope.experiments.luo2019 import parts as part_arms
from normscope.experiments.observing import over_sizes
from normscope.results.rules import judge
from normscope.theory import teacher_student as ts


@pytest.mark.parametrize("law", _common.LAWS)
def test_nodes_and_draws_have_the_moments_of_their_law(law):
    rho, skew = _common.LAWS[law]
    exact = np.array([0, 1, skew, rho + 3])
    x, w = _common.nodes(law)
    assert np.allclose([w @ x**k for k in (1, 2, 3, 4)], exact, rtol=1e-9, atol=1e-9)
    drawn = _common.draw(law, (4, 100_000), np.random.default_rng(1)).ravel()
    powers = np.stack([drawn**k for k in (1, 2, 3, 4)])
    error = powers.std(axis=1) / np.sqrt(drawn.size)
    assert np.all(np.abs(powers.mean(axis=1) - exact) < 4.5 * error)


@pytest.mark.parametrize(("q", "r"), [(0.7, 0.3), (1.2, -0.6), (0.9, 0.99)])
def test_quadrature_over_the_angle_against_closed_forms_and_draws(q, r):
    rng = np.random.default_rng(2)
    u, other = rng.standard_normal((2, 200_000))
    t = r * u + np.sqrt(1 - r**2) * other
    closed = {"I1": ts.gradient_along_student, "I2": ts.gradient_power}
    closed |= {"I3": ts.gradient_along_teacher}
    for name, function in formulas.INTEGRALS.items():
        found, values = formulas.angular(function, q, r), function(q * u, t)
        assert abs(found - values.mean()) < 4.5 * values.std() / np.sqrt(len(u))
        if name in closed:
            assert found == pytest.approx(float(closed[name](q, r)), rel=1e-11)


def test_the_loss_of_the_softplus_unit_has_the_slope_softplus():
    h = np.linspace(-4, 4, 9)
    slope = (neuron._antiderivative(h + 1e-5) - neuron._antiderivative(h - 1e-5)) / 2e-5
    assert np.allclose(slope, neuron.softplus(h), atol=1e-8)


def test_a_remainder_of_two_terms_is_told_from_a_wrong_limit():
    sizes, rng = [16, 32, 64, 128, 256], np.random.default_rng(3)
    m = np.array(sizes, float)
    values = 1 + 5 / m + 20 / m**2 + 1e-3 * rng.standard_normal((30, 5))
    seen = over_sizes(sizes, values.T, 1.0)
    assert judge("formula", seen, {"terms": 2}).verdict == "reproduced"
    assert judge("formula", seen, {"terms": 1}).verdict == "not reproduced"
    wrong = over_sizes(sizes, values.T, 1.02)
    assert judge("formula", wrong, {"terms": 2}).verdict == "not reproduced"


def test_information_of_the_scales_against_a_difference_quotient():
    """Each sample's loss with the scale of one unit moved, its standardized values fixed."""
    torch.manual_seed(0)
    model = ns.network("mlp:5-4-3-2", norm="batch", seed=1).double()
    x, labels = torch.randn(40, 5).double(), torch.arange(40) % 2
    model(x)  # some running statistics
    model.eval()
    values = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _x, y, name=name: values.setdefault(name, y.detach())
        )
        for name in ("norm1", "norm2")
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    layers = []
    for name, y in values.items():
        n, rows = (y - y.mean(0)) / y.std(0, correction=0), []
        for unit in range(y.shape[1]):
            losses = []
            for sign in (1, -1):
                moved = torch.zeros_like(y)
                moved[:, unit] = sign * 1e-5 * n[:, unit]
                hook = model.get_submodule(name).register_forward_hook(
                    lambda _m, _x, out, moved=moved: out + moved
                )
                losses.append(functional.cross_entropy(model(x), labels, reduction="none").detach())
                hook.remove()
            rows.append(((losses[0] - losses[1]) / 2e-5).square().mean())
        layers.append(float(torch.stack(rows).mean()))
    assert part_arms.information(model.train(), x, labels) == pytest.approx(
        np.mean(layers), rel=1e-6
    )
    assert model.training


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_shift_of_the_variance_by_dropout_is_that_of_centred_values(dropout):
    """Kept values are divided by 1 - p: the variance of what has mean 0 grows by 1 / (1 - p)."""
    torch.manual_seed(1)
    x, norm = torch.randn(4000, 8), torch.nn.BatchNorm1d
    model = torch.nn.Sequential(norm(8), torch.nn.Dropout(dropout), norm(8))
    found = dropout_order.shift(model, x, batch=100)
    spread = np.sqrt((3 / (1 - dropout) - 1) / (len(x) * dropout_order.PASSES * 8)) / np.log(10)
    assert abs(found + np.log10(1 - dropout)) < 5 * spread


def test_the_names_of_the_arms_are_the_batch_sizes_at_desk_scale():
    arms = batch_sizes.DESK.settings["arm"]
    assert arms == list(batch_sizes.ARMS)
    size, unit = batch_sizes.LARGE, batch_sizes.DESK.settings["unit"]
    assert (unit, size * unit) == (128, 1024)
