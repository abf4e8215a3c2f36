"""Gaussian averages: custom activations, kinks, extremes, and rules that do not settle."""

import numpy as np
import pytest

import gaussian
import normscope as ns
from normscope.errors import ConvergenceError, InputError
from normscope.spec import ACTIVATIONS, activation, register_activation
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.quadrature import gaussian_mean, gaussian_pair_mean
from roster import NAMED

CLOSED = ["linear", "relu", "leaky_relu(0.1)", "erf", "erf(0.5)"]


@pytest.fixture
def hard_tanh():
    made = register_activation(
        "hard_tanh_for_tests",
        lambda x: np.clip(x, -1, 1),
        lambda x: np.where(np.abs(x) < 1, 1.0, 0.0),
        kinks=(-1.0, 1.0),
    )
    yield made
    ACTIVATIONS._entries.pop("hard_tanh_for_tests")


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize(("a1", "a2"), [(1.0, 1.0), (2.5, 2.5), (1.3, 2.9)])
@pytest.mark.parametrize("c", [-0.99999, -0.6, 0.0, 0.3, 0.99999])
def test_closed_form_is_the_quadrature(name, a1, a2, c):
    b = c * np.sqrt(a1 * a2)
    for mean in (product_mean, derivative_product_mean):
        closed = mean(name, a1, b, variance2=a2)
        np.testing.assert_allclose(
            closed, mean(name, a1, b, variance2=a2, closed=False), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("a1", "a2", "c"), [(1.0, 1.0, 0.5), (3.64, 3.64, -0.4), (0.6, 2.0, 0.9)])
def test_monte_carlo_agrees(name, a1, a2, c):
    act, b = activation(name), c * np.sqrt(a1 * a2)
    for f, mean in ((act.function, product_mean), (act.derivative, derivative_product_mean)):
        value, error = gaussian.monte_carlo(f, a1, a2, b)
        assert abs(value - float(mean(act, a1, b, variance2=a2))) < 4.5 * error + 1e-12


@pytest.mark.parametrize("name", NAMED)
def test_full_correlation_is_the_second_moment(name):
    act = activation(name)
    for a in (0.0, 0.3, 4.0):
        np.testing.assert_allclose(product_mean(act, a, a), second_moment(act, a), rtol=1e-7)
        np.testing.assert_allclose(
            derivative_product_mean(act, a, a), second_moment_of_derivative(act, a), rtol=1e-7
        )


@pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid"])
def test_large_variances_and_strong_correlations(name):
    act = activation(name)
    for a, c in ((30.0, 0.5), (10.0, -0.999), (100.0, 0.3)):
        oracle = gaussian.mean2(act.function, a, c * a)
        np.testing.assert_allclose(product_mean(name, a, c * a), oracle, rtol=1e-7)


def test_correlations_are_clipped():
    assert product_mean("relu", 1.0, 1.0 + 1e-12) == pytest.approx(0.5)
    assert derivative_product_mean("tanh", 1.0, 1.0 + 1e-12) == pytest.approx(
        float(second_moment_of_derivative("tanh", 1.0))
    )


def test_arrays_broadcast():
    a, b = np.array([[1.0], [2.0]]), np.array([0.1, 0.2, 0.3])
    made = product_mean("tanh", a, b)
    assert made.shape == (2, 3)
    assert made[1, 2] == pytest.approx(float(product_mean("tanh", 2.0, 0.3)))


def test_custom_activation_with_kinks(hard_tanh):
    for a, c in ((1.0, 0.5), (2.0, -0.8), (0.5, 0.999)):
        for f, mean in (
            (hard_tanh.function, product_mean),
            (hard_tanh.derivative, derivative_product_mean),
        ):
            oracle = gaussian.mean2(f, a, c * a, kinks=(-1.0, 1.0))
            assert float(mean(hard_tanh.name, a, c * a)) == pytest.approx(oracle, rel=1e-6)
    made = ns.predict(
        ns.mlp([20, 30, 30, 2], activation=hard_tanh.name, bias_variance=0.5),
        samples=20,
        theory="corrected",
    )
    tanh = ns.predict(
        ns.mlp([20, 30, 30, 2], activation="tanh", bias_variance=0.5),
        samples=20,
        theory="corrected",
    )
    assert 0.5 < made.lambda_max / tanh.lambda_max < 4


def test_custom_activation_behind_batch_norm(hard_tanh):
    spec = ns.mlp([20, 30, 30, 2], activation=hard_tanh.name, norm="batch")
    for theory in ("corrected", "frozen"):
        made = ns.predict(spec, samples=50, theory=theory, parameters="all")
        assert np.isfinite([made.trace, made.lower, made.upper]).all()


def test_wrong_derivative_is_refused():
    with pytest.raises(InputError) as error:
        register_activation("wrong_for_tests", np.sin, np.sin)
    text = str(error.value)
    assert "derivative" in text
    assert "wrong_for_tests" in text
    assert "kinks" in text
    assert "wrong_for_tests" not in ACTIVATIONS


def test_taken_name_is_refused():
    with pytest.raises(InputError, match=r"'tanh' is taken.*replace=True"):
        register_activation("tanh", np.sin, np.cos)


def test_unlisted_kink_is_not_integrated_silently():
    step = lambda x: np.where(x > 0.3, 1.0, 0.0)  # noqa: E731
    with pytest.raises(ConvergenceError) as error:
        gaussian_mean(step, 1.0)
    text = str(error.value)
    assert "did not settle" in text
    assert "kinks=" in text
    assert "variance 1" in text
    with pytest.raises(ConvergenceError):
        gaussian_pair_mean(step, 1.0, 0.999)
    assert float(gaussian_mean(step, 1.0, kinks=(0.3,))) == pytest.approx(0.3820885778, rel=1e-8)


def test_growth_beyond_the_gaussian_is_an_error():
    with pytest.raises(ConvergenceError), np.errstate(over="ignore", invalid="ignore"):
        gaussian_mean(lambda x: np.exp(x**2), 2.0)
