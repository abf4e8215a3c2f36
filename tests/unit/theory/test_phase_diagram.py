"""Order and chaos on a grid."""

import numpy as np
import pytest

import normscope as ns
from normscope.errors import ConvergenceError, InputError
from normscope.results import PhaseDiagram
from normscope.theory.integrals import product_mean
from normscope.theory.meanfield.fixed_points import critical_weight_variance, length_fixed_point

ALL = ["linear", "relu", "leaky_relu(0.1)", "erf", "tanh", "sigmoid", "softplus", "gelu", "silu"]
WEIGHTS, BIASES = [0.5, 1.0, 1.9, 2.5, 4.0], [0.0, 0.05, 0.5]


@pytest.mark.parametrize("act", ALL)
def test_grid_is_the_points_one_by_one(act):
    grid = ns.phase_diagram(act, WEIGHTS, BIASES)
    for row, bias in enumerate(BIASES):
        for column, weight in enumerate(WEIGHTS):
            point = ns.phase_diagram(act, weight, bias)
            assert point.status[0, 0] == grid.status[row, column]
            for name in ("length", "correlation", "chi1", "correlation_depth", "length_depth"):
                a, b = getattr(point, name)[0, 0], getattr(grid, name)[row, column]
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("act", ALL)
def test_nan_only_where_lengths_diverge(act):
    grid = ns.phase_diagram(act, np.linspace(0.1, 5, 12), np.linspace(0, 1, 5))
    diverges = grid.status == "diverges"
    for name in ("length", "correlation", "chi1", "correlation_depth", "length_depth"):
        assert not np.isnan(getattr(grid, name)[~diverges]).any(), name
    assert np.isinf(grid.length[diverges]).all()
    assert (grid.correlation[~diverges] <= 1).all()
    assert (grid.correlation[~diverges] >= 0).all()


@pytest.mark.parametrize("weight", [2.5, 3.0, 5.0])
def test_slopes_are_derivatives_of_the_maps(weight):
    made = ns.phase_diagram("tanh", weight, 0.05)
    q, c = made.length[0, 0], made.correlation[0, 0]
    step = 1e-5
    high, low = (weight * float(product_mean("tanh", q, (c + s) * q)) / q for s in (step, -step))
    numeric = (high - low) / (2 * step)
    assert made.correlation_depth[0, 0] == pytest.approx(-1 / np.log(numeric), rel=1e-4)


@pytest.mark.parametrize("act", ["tanh", "erf"])
@pytest.mark.parametrize("bias", [0.01, 0.05, 0.2])
def test_edge_of_chaos_separates_the_phases(act, bias):
    edge = critical_weight_variance(act, bias)
    made = ns.phase_diagram(act, [edge * 0.99, edge * 1.01], bias)
    assert list(made.status[0]) == ["ordered", "chaotic"]
    assert made.correlation[0, 0] == 1.0
    assert made.correlation[0, 1] < 1.0


def test_relu_in_closed_form():
    made = ns.phase_diagram("relu", [1.0, 2.0, 3.0], [0.0, 0.5])
    assert made.length[1, 0] == pytest.approx(0.5 / (1 - 0.5))
    np.testing.assert_allclose(made.chi1, [[0.5, 1.0, 1.5]] * 2)
    assert list(made.status[1]) == ["ordered", "diverges", "diverges"]
    assert made.status[0, 1] == "edge"
    assert made.correlation_depth[1, 0] == pytest.approx(1 / np.log(2))


def test_results_survive_json_and_tables():
    made = ns.phase_diagram("relu", [1.0, 3.0], [0.0, 0.5])
    assert PhaseDiagram.from_json(made.to_json()) == made
    frame = made.to_frame()
    assert len(frame) == 4
    assert list(frame["status"]) == list(made.status.ravel())
    assert "4 points" in made.summary()


@pytest.mark.parametrize("bad", [[-1.0], [np.nan], [np.inf], [], [[1.0]]])
def test_bad_grids(bad):
    with pytest.raises(InputError) as error:
        ns.phase_diagram("tanh", bad, [0.1])
    assert "weight_variances" in str(error.value)
    with pytest.raises(InputError) as error:
        ns.phase_diagram("tanh", [1.0], bad)
    assert "bias_variances" in str(error.value)


def test_unknown_activation():
    with pytest.raises(InputError, match="Did you mean 'tanh'"):
        ns.phase_diagram("tanhh", [1.0], [0.1])


def test_no_edge():
    with pytest.raises(InputError) as error:
        critical_weight_variance("sigmoid", 1e9)
    assert "no edge of chaos" in str(error.value)
    assert "between" in str(error.value)


def test_zero_weights_forget_everything():
    made = ns.phase_diagram("tanh", [0.0], [0.3])
    assert made.length[0, 0] == pytest.approx(0.3)
    assert made.chi1[0, 0] == 0.0
    assert made.correlation_depth[0, 0] == 0.0


def test_lengths_near_the_critical_point():
    """tanh without biases: q* is zero up to weight variance 1, then grows from it."""
    q = length_fixed_point("tanh", [0.5, 0.9, 1.1, 1.5], 0.0)
    assert (q[:2] < 1e-10).all()
    assert (q[2:] > 0.01).all()
    assert issubclass(ConvergenceError, RuntimeError)


def test_variances_that_are_no_numbers():
    with pytest.raises(InputError) as error:
        ns.phase_diagram("tanh", ["high"], [0.1])
    assert "weight_variances" in str(error.value)
    assert "high" in str(error.value)
