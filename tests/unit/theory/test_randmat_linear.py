"""One layer of a linear network as independent linear systems (Bjorck et al., Appendix C)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import InputError
from normscope.record import Record
from normscope.theory import randmat as rm

seeds = st.integers(0, 10_000)


def network(seed: int, widths=(4, 4, 3, 5), samples: int = 12):
    rng = np.random.default_rng(seed)
    pairs = zip(widths[1:], widths[:-1], strict=True)
    weights = [rng.standard_normal(shape) for shape in pairs]
    inputs, targets = (rng.standard_normal((n, samples)) for n in (widths[0], widths[-1]))
    return weights, inputs, targets


@given(seed=seeds, layer=st.integers(1, 3))
@settings(max_examples=60)
def test_values_and_gradients_are_those_of_the_network(seed, layer):
    weights, x, y = network(seed)
    made = rm.linear_reduction(weights, x, targets=y, layer=layer)
    reduced = made.reduced(weights[layer - 1])
    assert made.loss(reduced) == pytest.approx(rm.linear_loss(weights, x, targets=y), rel=1e-10)
    gradient = made.gradient(reduced) * made.scales @ made.left.T
    expected = rm.linear_gradient(weights, x, targets=y, layer=layer)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(made.restored(reduced), weights[layer - 1], atol=1e-8)


@given(seed=seeds, layer=st.integers(1, 3))
@settings(max_examples=60)
def test_the_optimum_is_reached_and_flat(seed, layer):
    weights, x, y = network(seed)
    made = rm.linear_reduction(weights, x, targets=y, layer=layer)
    best = list(weights)
    best[layer - 1] = made.restored(made.solution())
    assert rm.linear_loss(best, x, targets=y) == pytest.approx(made.optimum(), rel=1e-8)
    slope = rm.linear_gradient(best, x, targets=y, layer=layer)
    scale = np.abs(rm.linear_gradient(weights, x, targets=y, layer=layer)).max()
    assert np.abs(slope).max() <= 1e-7 * max(scale, 1.0)
    assert made.optimum() <= rm.linear_loss(weights, x, targets=y) * (1 + 1e-12)
    assert made.constant <= made.optimum() * (1 + 1e-12)


def test_columns_are_independent_problems():
    weights, x, y = network(0)
    made = rm.linear_reduction(weights, x, targets=y)
    solution = made.solution()
    for column in range(4):
        alone = np.linalg.lstsq(made.matrix, made.targets[:, column], rcond=None)[0]
        np.testing.assert_allclose(solution[:, column], alone, atol=1e-12)
    frame = made.to_frame()
    assert frame.least_loss.sum() + made.constant == pytest.approx(made.optimum())


def test_descent_in_the_layer_meets_both_condition_numbers():
    """The Hessian in vec(A_1), from gradients at unit steps: exact, the loss is quadratic."""
    weights, x, y = network(1, widths=(3, 2, 5), samples=9)
    made = rm.linear_reduction(weights, x, targets=y)
    start = rm.linear_gradient(weights, x, targets=y).ravel()
    rows = []
    for unit in np.eye(6):
        moved = [weights[0] + unit.reshape(2, 3), weights[1]]
        rows.append(rm.linear_gradient(moved, x, targets=y).ravel() - start)
    condition = np.linalg.cond(np.array(rows))
    assert condition == pytest.approx((made.condition * made.input_condition) ** 2, rel=1e-8)


def test_rank_deficient_layers_above_have_an_infinite_condition():
    weights, x, y = network(0, widths=(3, 6, 2, 5))
    made = rm.linear_reduction(weights, x, targets=y, layer=1)
    assert made.condition == np.inf
    assert made.optimum() < rm.linear_loss(weights, x, targets=y)


def test_record():
    weights, x, y = network(0)
    made = rm.linear_reduction(weights, x, targets=y, layer=2)
    assert Record.from_json(made.to_json()) == made
    assert "LinearReduction(layer 2, 4 problems" in repr(made)
    assert "Layer 2 alone: 4 independent problems" in made.summary()


def wide_hidden():
    weights, x, y = network(0, widths=(3, 6, 2))
    return rm.linear_reduction(weights, x, targets=y, layer=2)


def few_samples():
    weights, x, y = network(0, samples=2)
    return rm.linear_reduction(weights, x, targets=y)


WEIGHTS, X, Y = network(0)
BAD = {
    "few samples": (few_samples, "4 features but rank 2 over 2 samples"),
    "wide hidden layer": (wide_hidden, "layer 2 have 6 features but rank 3"),
    "layer 0": (lambda: rm.linear_reduction(WEIGHTS, X, targets=Y, layer=0), "layer must be"),
    "layer 4": (
        lambda: rm.linear_gradient(WEIGHTS, X, targets=Y, layer=4),
        "from 1 to the 3 weight matrices. Got 4",
    ),
    "shapes": (lambda: rm.linear_loss(WEIGHTS[::-1], X, targets=Y), r"Weight 1 has shape \(5, 3\)"),
    "targets": (
        lambda: rm.linear_loss(WEIGHTS, X, targets=Y.T),
        r"targets must have shape \(5, 12\).*Got \(12, 5\)",
    ),
    "empty": (lambda: rm.linear_loss([], X, targets=Y), "weights is empty"),
    "vector": (lambda: rm.linear_loss(WEIGHTS, X[0], targets=Y), "inputs must be a matrix"),
    "NaN": (lambda: rm.linear_loss(WEIGHTS, X * np.nan, targets=Y), "inputs must be finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    call, message = BAD[name]
    with pytest.raises(InputError, match=message):
        call()
