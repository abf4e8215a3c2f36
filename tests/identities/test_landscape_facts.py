"""Exact facts of landscapes: parabolas, slopes, curvatures, scale invariance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normscope as ns
from cases import ROSTER
from normscope.measure.probes.landscape import landscape

# A ReLU's kink within the stretch would spoil differences (a ReLU on the inputs does not).
KINKS = {"mlp-relu-ce", "mlp-relu-in-place", "transformer-layer"}
SMOOTH = [case for case in ROSTER if case.name not in KINKS]


@given(
    seed=st.integers(0, 1000),
    distances=st.lists(st.floats(-5, 5), min_size=2, max_size=5),
)
@settings(max_examples=25)
def test_the_loss_of_a_linear_model_is_a_parabola(seed, distances):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    model = nn.Linear(3, 2).double()
    x, y, step = normal(7, 3), normal(7, 2), normal(2, 3)
    with torch.no_grad():
        residual, change = model(x) - y, x @ step.T
        a, b, c = ((change**2).sum() / 14, (residual * change).sum() / 7, (residual**2).sum() / 14)
    found = landscape(model, (x, y), "mse", direction={"weight": step}, distances=distances)
    t = np.array(distances)
    np.testing.assert_allclose(found.loss, float(a) * t**2 + float(b) * t + float(c), rtol=1e-9)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_slope_and_curvature_at_the_start_are_gradient_and_hessian(case):
    model = case.build()
    risk = ns.Risk(model, case.inputs, case.targets, loss=case.loss, statistics=case.statistics)
    gradient = risk.gradient()
    generator = torch.Generator().manual_seed(4)
    flat = torch.randn(len(gradient), generator=generator, dtype=torch.float64)
    direction = dict(zip(risk.parameters.names, risk.parameters.split(flat), strict=True))
    h = 1e-3
    found = landscape(
        model, [(case.inputs, case.targets)], case.loss, direction=direction,
        distances=[-2 * h, -h, 0, h, 2 * h], statistics=case.statistics,
    )  # fmt: skip
    two_below, below, at, above, two_above = found.loss
    slope = (8 * (above - below) - (two_above - two_below)) / (12 * h)
    curvature = (16 * (above + below) - (two_above + two_below) - 30 * at) / (12 * h * h)
    assert slope == pytest.approx(float(gradient @ flat), rel=1e-5, abs=1e-7)
    exact = float(flat @ ns.hessian(risk).matvec(flat))
    assert curvature == pytest.approx(exact, rel=1e-3, abs=1e-5)


@given(st.floats(0.1, 10), st.integers(0, 100))
@settings(max_examples=10)
def test_scaling_weights_before_batch_norm_changes_nothing(scale, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, eps=1e-30), nn.Linear(4, 2)
    )
    model = model.double()
    x, y = torch.randn(9, 3).double(), torch.arange(9) % 2
    own = {"0.weight": model[0].weight.detach()}
    found = landscape(model, (x, y), "cross_entropy", direction=own, distances=[0, scale])
    assert found.loss[1] == pytest.approx(found.loss[0], rel=1e-9)
    assert found.growth[0, 1] == pytest.approx((1 + scale) ** 2, rel=1e-9)
    assert found.growth[1, 1] == pytest.approx(1, rel=1e-9)


def test_a_plane_holds_its_lines():
    case = ROSTER[0]
    model = case.build()
    data = (case.inputs, case.targets)
    grid = [-0.5, 0.0, 0.5]
    plane = landscape(model, data, case.loss, direction=("gradient", "random"), distances=grid)
    first = landscape(model, data, case.loss, distances=grid)
    np.testing.assert_allclose(plane.loss[:, 1], first.loss, rtol=1e-12)
    np.testing.assert_allclose(plane.variance[:, :, 1], first.variance, rtol=1e-12)
