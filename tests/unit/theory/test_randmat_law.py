"""The Fuss-Catalan law: moments, closed forms, inverses, scaling, and what it refuses."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from normscope.errors import InputError
from normscope.theory import randmat as rm

DEPTHS = range(1, 21)
factors = st.integers(1, 20)
shares = st.floats(1e-6, 1 - 1e-6)


def fuss_catalan(k: int, m: int) -> float:
    return math.comb(k * (m + 1), k) / (k * m + 1)


@pytest.mark.parametrize("m", DEPTHS)
def test_integral_and_six_moments_over_the_angle(m):
    for k in range(7):
        assert rm.squared_mean(lambda x, k=k: x**k, m) == pytest.approx(
            fuss_catalan(k, m), rel=1e-8
        )
        assert rm.squared_moment(k, m) == pytest.approx(fuss_catalan(k, m), rel=1e-12)


@pytest.mark.parametrize("m", DEPTHS)
def test_integral_and_six_moments_of_the_density_in_x(m):
    """Nothing shared with the rule above: adaptive quadrature of the density itself."""
    edge, power = rm.squared_edge(m), m + 1

    def integrand(t, k):  # x = edge t^(M+1) takes the singularity at 0 away
        x = edge * t**power
        return float(rm.squared_density(x, m)) * x**k * edge * power * t**m

    for k in (0, 1, 6):
        value, _ = quad(integrand, 0, 1, args=(k,), epsabs=0, epsrel=1e-9, limit=200)
        assert value == pytest.approx(fuss_catalan(k, m), rel=1e-8)


@pytest.mark.parametrize("m", DEPTHS)
def test_mean_of_the_logarithm(m):
    assert rm.squared_mean(np.log, m) == pytest.approx(-m, rel=1e-11)
    assert rm.squared_mean(np.log, m, variances=2.0) == pytest.approx(m * (math.log(2) - 1))


def test_one_factor_is_marchenko_pastur():
    x = np.array([0.5, 1.0, 2.0, 3.0])
    expected = [0.4210843993, 0.2756644477, 0.1591549431, 0.0918881492]
    np.testing.assert_allclose(rm.squared_density(x, 1), expected, rtol=1e-8)
    np.testing.assert_allclose(
        rm.squared_density(x, 1), np.sqrt((4 - x) / x) / (2 * np.pi), rtol=1e-13
    )


def test_two_factors_have_a_closed_form():
    x = np.array([1e-6, 0.1, 1.0, 4.0, 6.7])
    root = (27 + 3 * np.sqrt(81 - 12 * x)) ** (1 / 3)
    expected = 2 ** (1 / 3) * root**2 - 6 * x ** (1 / 3)
    expected *= 2 ** (1 / 3) * np.sqrt(3) / (12 * np.pi * x ** (2 / 3) * root)
    np.testing.assert_allclose(rm.squared_density(x, 2), expected, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_density_and_cdf_in_high_precision(m):
    """Bisection for the angle with 420 digits, from x = 1e-250 to 0.999 of the edge."""
    with mpmath.workdps(420):
        end = mpmath.pi / (m + 1)
        for x in (1e-250, 1e-30, 1e-3, 1.0, 0.999 * rm.squared_edge(m)):
            phi = _angle(mpmath.mpf(x), m, end)
            one, last, turn = (mpmath.sin(n * phi) for n in (1, m, m + 1))
            density = one * turn / last / mpmath.pi / mpmath.mpf(x)
            mass = 1 - ((m + 1) * phi - m * one * turn / last) / mpmath.pi
            assert float(rm.squared_density(x, m) / density) == pytest.approx(1, rel=1e-11)
            assert float(rm.squared_cdf(x, m) / mass) == pytest.approx(1, rel=1e-11)


def _angle(x, m, end):
    """The angle of x, by bisection on the logarithm of its distance from the far end."""
    low, high = mpmath.mpf(-900), mpmath.mpf(0)
    for _ in range(160):
        middle = (low + high) / 2
        phi = end * (1 - mpmath.exp(middle))
        value = (m + 1) * mpmath.log(mpmath.sin((m + 1) * phi))
        value -= mpmath.log(mpmath.sin(phi)) + m * mpmath.log(mpmath.sin(m * phi))
        low, high = (middle, high) if value < mpmath.log(x) else (low, middle)
    return end * (1 - mpmath.exp((low + high) / 2))


def test_edges():
    expected = [4, 6.75, 9.481481481, 14.9299, 28.53116706]
    np.testing.assert_allclose([rm.squared_edge(m) for m in (1, 2, 3, 5, 10)], expected, rtol=2e-6)
    for m in (100, 10_000):  # e (M + 1/2), with an error that falls
        assert rm.squared_edge(m) == pytest.approx(math.e * (m + 0.5), rel=1 / m**2)


def test_ends_and_outside_of_the_support():
    edge = rm.squared_edge(3)
    x = np.array([-1.0, 0.0, edge, 2 * edge])
    np.testing.assert_array_equal(rm.squared_density(x, 3), [0, np.inf, 0, 0])
    np.testing.assert_array_equal(rm.squared_cdf(x, 3), [0, 0, 1, 1])
    np.testing.assert_array_equal(rm.squared_quantile([0.0, 1.0], 3), [0, edge])
    np.testing.assert_array_equal(rm.singular_density([-1.0, 0.0, edge], 3), [0, np.inf, 0])
    np.testing.assert_array_equal(rm.singular_cdf([-1.0, 0.0, edge], 3), [0, 0, 1])
    assert rm.singular_density(0.0, 1, variances=9.0) == pytest.approx(2 / (3 * math.pi))


@given(m=factors, share=shares, variance=st.floats(1e-3, 1e3))
@settings(max_examples=200)
def test_quantile_inverts_the_cdf(m, share, variance):
    x = rm.squared_quantile(share, m, variances=(variance,) + (1.0,) * (m - 1))
    assert x.shape == ()
    value = rm.squared_cdf(x, m, variances=(variance,) + (1.0,) * (m - 1))
    assert float(value) == pytest.approx(share, rel=1e-10)


@given(m=factors, low=shares, high=shares)
@settings(max_examples=100)
def test_quantiles_rise_and_singular_ones_are_their_roots(m, low, high):
    low, high = sorted((low, high))
    x = rm.squared_quantile([low, high], m)
    assert x[0] <= x[1] <= rm.squared_edge(m)
    np.testing.assert_allclose(rm.singular_quantile([low, high], m) ** 2, x, rtol=1e-14)


@given(m=factors, place=st.floats(0.01, 0.99), variances=st.data())
@settings(max_examples=100)
def test_variances_scale_the_law(m, place, variances):
    values = variances.draw(st.lists(st.floats(0.1, 10.0), min_size=m, max_size=m))
    scale, x = math.prod(values), place * rm.squared_edge(m)
    assert float(rm.squared_density(scale * x, m, variances=values)) == pytest.approx(
        float(rm.squared_density(x, m)) / scale, rel=1e-9
    )
    assert rm.squared_moment(2, m, variances=values) == pytest.approx((m + 1) * scale**2)


@given(m=factors, place=st.floats(0.001, 0.999))
@settings(max_examples=100)
def test_the_density_is_the_slope_of_the_cdf(m, place):
    x = place * rm.squared_edge(m)
    step = 1e-4 * min(x, rm.squared_edge(m) - x)
    low, high = rm.squared_cdf([x - step, x + step], m)
    assert (high - low) / (2 * step) == pytest.approx(float(rm.squared_density(x, m)), rel=1e-5)


@pytest.mark.parametrize("m", [1, 3, 20])
def test_samples_follow_the_cdf(m):
    """Draws by beta variables, cdf by angles: no common code. 2.23 / sqrt(n) has chance 1e-4."""
    count = 20_000
    x = np.sort(rm.squared_samples(count, m, variances=0.7, seed=4))
    below = rm.squared_cdf(x, m, variances=0.7)
    steps = np.arange(count + 1) / count
    distance = max(np.abs(below - steps[1:]).max(), np.abs(below - steps[:-1]).max())
    assert distance < 2.23 / math.sqrt(count)


def test_samples_depend_on_the_seed_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = rm.singular_samples(5, 3, seed=1)
    np.testing.assert_array_equal(first, rm.singular_samples(5, 3, seed=1))
    assert not np.array_equal(first, rm.singular_samples(5, 3, seed=2))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_very_small_singular_values_keep_their_density():
    """s = 1e-300 has a square beyond float64; the power law s^(-(M-1)/(M+1)) still holds."""
    for m in (1, 3, 10):
        ratio = rm.singular_density(1e-300, m) / rm.singular_density(1e-200, m)
        assert np.log10(ratio) == pytest.approx(100 * (m - 1) / (m + 1), abs=1e-9)


BAD = {
    "no factor": (lambda: rm.squared_density(1.0, 0), "num_factors must be a whole number from 1"),
    "half a factor": (lambda: rm.squared_cdf(1.0, 1.5), "Got 1.5"),
    "a truth value": (lambda: rm.squared_edge(True), "Got True"),
    "text": (lambda: rm.squared_edge("two"), "Got 'two'"),
    "variance zero": (lambda: rm.squared_edge(2, variances=(1.0, 0.0)), "the zero matrix"),
    "variance negative": (lambda: rm.squared_moment(1, 2, variances=-1.0), "above 0.*-1.0"),
    "variance NaN": (lambda: rm.squared_edge(2, variances=math.nan), "variances must be finite"),
    "variances too many": (
        lambda: rm.squared_edge(2, variances=(1.0, 1.0, 1.0)),
        r"one per factor: 2.*\(3,\)",
    ),
    "variances overflow": (lambda: rm.squared_edge(400, variances=100.0), r"10\*\*800, beyond"),
    "share": (lambda: rm.squared_quantile([0.5, 1.5], 2), "from 0 to 1. Got 1.5"),
    "share below": (lambda: rm.singular_quantile(-0.1, 2), "Got -0.1"),
    "share NaN": (lambda: rm.squared_quantile(math.nan, 2), "share must be finite"),
    "x infinite": (lambda: rm.squared_density([1.0, math.inf], 2), "x must be finite. Got inf"),
    "s NaN": (lambda: rm.singular_density(math.nan, 2), "s must be finite. Got nan"),
    "x text": (lambda: rm.squared_density("a", 2), "x must be real numbers"),
    "x complex": (lambda: rm.squared_density(1j, 2), "x must be real numbers"),
    "angle": (lambda: rm.squared_of_angle([0.1, 2.0], 1), "between 0 and pi"),
    "moment infinite": (lambda: rm.squared_moment(-0.5, 1), "infinite for order <= .* = -0.5"),
    "moment too large": (lambda: rm.squared_moment(500, 20), "exceeds float64"),
    "count": (lambda: rm.squared_samples(0, 2), "count must be a whole number from 1"),
    "seed": (lambda: rm.squared_samples(3, 2, seed=-1), "seed must be an integer"),
    "function shape": (lambda: rm.squared_mean(lambda x: x[:3], 2), r"It gave shape \(3,\)"),
    "function infinite": (lambda: rm.squared_mean(lambda x: x * math.inf, 2), "must be finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    call, message = BAD[name]
    with pytest.raises(InputError, match=message):
        call()
