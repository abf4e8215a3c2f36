"""Products of matrices: exact identities, results, charts, and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import svdvals

from normscope import report
from normscope.errors import InputError
from normscope.record import Record
from normscope.results.randmat import DepthConditioning, ProductSpectrum
from normscope.theory import randmat as rm
from normscope.theory.randmat._lanczos import largest_singular_value

seeds = st.integers(0, 10_000)


def chain(depth: int, size: int, seed: int) -> list[np.ndarray]:
    return list(rm.gaussian_factors(depth, size, seed=seed))


@given(seed=seeds, depth=st.integers(1, 12))
@settings(max_examples=60)
def test_two_by_two_products_have_the_determinant(seed, depth):
    """s_max s_min = |det|, the product of the factors' own."""
    factors = chain(depth, 2, seed)
    made = rm.product_conditioning(factors)
    determinants = np.cumsum([np.log10(abs(np.linalg.det(f))) for f in factors])
    np.testing.assert_allclose(
        made.log10_largest[0] + made.log10_smallest[0], determinants, rtol=0, atol=1e-9
    )


@given(seed=seeds, scale=st.floats(1e-150, 1e150))
@settings(max_examples=40)
def test_scales_move_singular_values_and_not_the_condition(seed, scale):
    factors = chain(4, 6, seed)
    plain = rm.product_conditioning(factors)
    scaled = rm.product_conditioning([scale * f for f in factors])
    shift = math.log10(scale) * np.arange(1, 5)
    np.testing.assert_allclose(scaled.log10_condition, plain.log10_condition, atol=1e-8)
    np.testing.assert_allclose(scaled.log10_largest[0], plain.log10_largest[0] + shift, atol=1e-8)


@given(seed=seeds)
@settings(max_examples=40)
def test_the_transposed_product_has_the_same_singular_values(seed):
    factors = chain(15, 5, seed)
    forth = rm.product_conditioning(factors)
    back = rm.product_conditioning([f.T for f in reversed(factors)])
    assert forth.log10_condition[0, -1] == pytest.approx(back.log10_condition[0, -1], abs=1e-7)
    assert forth.log10_largest[0, -1] == pytest.approx(back.log10_largest[0, -1], abs=1e-9)


@given(seed=seeds)
@settings(max_examples=20)
def test_orthogonal_factors_change_nothing(seed):
    first, *others = chain(30, 8, seed)
    turned = rm.product_conditioning([first, *(np.linalg.qr(f)[0] for f in others)])
    values = svdvals(first)
    expected = np.full(30, np.log10(values[0] / values[-1]))
    np.testing.assert_allclose(turned.log10_condition[0], expected, atol=1e-8)


def test_shallow_products_agree_with_a_plain_svd():
    factors = chain(4, 30, 3)
    made = rm.product_conditioning(factors)
    product = np.eye(30)
    for depth, factor in enumerate(factors):
        product = factor @ product
        values = svdvals(product)
        assert made.log10_largest[0, depth] == pytest.approx(np.log10(values[0]), abs=1e-12)
        assert made.log10_smallest[0, depth] == pytest.approx(np.log10(values[-1]), abs=1e-7)


MATRICES = {
    "identity": lambda n, g: np.eye(n),
    "orthogonal": lambda n, g: np.linalg.qr(g)[0],
    "rank one": lambda n, g: np.outer(g[0], g[1]),
    "gaussian": lambda n, g: g,
    "graded": lambda n, g: g * 10.0 ** -np.linspace(0, 12, n),
    "crowded": lambda n, g: np.diag(1 - 1e-3 * np.arange(n) / n),
}


@pytest.mark.parametrize("size", [2, 3, 50])
@pytest.mark.parametrize("kind", MATRICES)
def test_largest_singular_value(kind, size):
    matrix = MATRICES[kind](size, np.random.default_rng(0).standard_normal((size, size)))
    assert largest_singular_value(matrix) == pytest.approx(svdvals(matrix)[0], rel=1e-11)


def test_runs_depths_and_variances_are_reproducible():
    made = rm.conditioning_by_depth(5, 12, runs=3, seed=7)
    fewer = rm.conditioning_by_depth(3, 12, runs=2, seed=7)
    np.testing.assert_array_equal(made.log10_condition[:2, :3], fewer.log10_condition)
    variances = [2.0, 0.5, 1.0, 3.0, 1e200]
    moved = rm.conditioning_by_depth(5, 12, runs=3, seed=7, variances=variances)
    shift = np.cumsum(np.log10(variances)) / 2
    np.testing.assert_allclose(moved.log10_largest, made.log10_largest + shift, rtol=1e-13)
    np.testing.assert_allclose(moved.log10_edge, made.log10_edge + shift, rtol=1e-13)
    np.testing.assert_allclose(moved.log10_condition, made.log10_condition, rtol=1e-10)
    first = next(rm.gaussian_factors(5, 12, seed=7))
    assert made.log10_largest[0, 0] == pytest.approx(np.log10(svdvals(first)[0]), abs=1e-12)


def test_factors_have_their_variances():
    drawn = rm.gaussian_factors(2, 200, variances=(4.0, 0.25), seed=0)
    for factor, variance in zip(drawn, (4.0, 0.25), strict=True):
        error = variance * math.sqrt(2 / 200**2)
        assert abs(200 * np.mean(factor**2) - variance) < 5 * error


def test_singular_factors_make_the_condition_infinite_from_there_on():
    good, flat = np.diag([1.0, 2.0]), np.array([[1.0, 2.0], [2.0, 4.0]])
    made = rm.product_conditioning([good, flat, good])
    np.testing.assert_allclose(made.log10_condition[0], [np.log10(2), np.inf, np.inf])
    assert np.isfinite(made.log10_largest).all()
    assert made.reason == "factor 2 is singular to working precision"
    assert made.reason in made.summary()
    nearly = rm.product_conditioning([flat + 1e-17 * np.eye(2)])
    assert nearly.log10_condition[0, 0] == np.inf
    nothing = rm.product_conditioning([np.zeros((2, 2))])
    assert nothing.log10_condition[0, 0] == np.inf
    assert nothing.log10_largest[0, 0] == -np.inf
    assert "infinite" in json.dumps(rm_chart(made).to_dict())
    with pytest.raises(InputError, match="nothing to draw: at every depth factor 1 is singular"):
        nothing.chart()


def rm_chart(result):
    return report.chart(result)


RESULTS = {
    "depths": lambda: rm.conditioning_by_depth(6, 10, runs=4, seed=1),
    "given": lambda: rm.product_conditioning(chain(3, 5, 0)),
    "huge": lambda: rm.conditioning_by_depth(5, 10, runs=2, variances=1e200),
    "one factor": lambda: rm.product_spectrum(1, 80, seed=1),
    "four factors": lambda: rm.product_spectrum(4, 60, runs=3, variances=0.5, seed=1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_round_trip_and_are_drawn(name, tmp_path):
    result = RESULTS[name]()
    assert Record.from_json(result.to_json()) == result
    assert len(repr(result)) < 120
    assert result.summary().startswith(("Products of", "Singular values of"))
    chart = result.chart(title="A title")
    assert chart.to_dict()["title"]["text"] == "A title"
    svg = report.save(chart, tmp_path / "chart.svg").read_text()
    assert "NaN" not in svg
    assert "Infinity" not in svg


def test_frame_of_depths():
    result = RESULTS["depths"]()
    frame = result.to_frame()
    assert list(frame.index) == [1, 2, 3, 4, 5, 6]
    logs = result.log10_condition
    np.testing.assert_allclose(frame.log10_condition, logs.mean(axis=0))
    np.testing.assert_allclose(frame.log10_condition_median, np.median(logs, axis=0))
    np.testing.assert_allclose(frame.log10_condition_error, logs.std(axis=0, ddof=1) / 2)
    assert RESULTS["given"]().to_frame().log10_condition_error.isna().all()
    assert "± " not in RESULTS["given"]().summary().splitlines()[-1]


def test_chart_of_depths_holds_means_of_logs_and_their_bars():
    result = RESULTS["depths"]()
    rows = [r for data in result.chart().to_dict()["datasets"].values() for r in data]
    bars = [row for row in rows if "low" in row]
    frame = result.to_frame()
    for row in bars[:6]:
        found = frame.loc[row["depth"]]
        assert row["mean"] == pytest.approx(found.log10_condition)
        half = 2 * found.log10_condition_error
        assert (row["low"], row["high"]) == pytest.approx((row["mean"] - half, row["mean"] + half))
    for row in bars[6:]:
        assert row["mean"] == pytest.approx(10 ** frame.loc[row["depth"]].log10_largest)
    edges = {row["depth"]: row["edge"] for row in rows if "edge" in row}
    assert edges == pytest.approx({m: rm.singular_edge(m) for m in range(1, 7)})


def test_spectrum_holds_values_and_law():
    spectrum = RESULTS["four factors"]()
    first = list(rm.gaussian_factors(4, 60, variances=0.5, seed=1))
    values = svdvals(np.linalg.multi_dot(first[::-1]))
    np.testing.assert_allclose(spectrum.values[0], values, rtol=1e-9)
    assert spectrum.edge == rm.singular_edge(4, variances=0.5)
    np.testing.assert_allclose(
        spectrum.density, rm.singular_density(spectrum.grid, 4, variances=0.5)
    )
    assert spectrum.distance[0] == rm.ks_distance(spectrum.values[0], 4, variances=0.5)
    frame = spectrum.to_frame()
    assert len(frame) == 180
    assert frame.above_rounding.all()
    bars = [
        row
        for data in spectrum.chart(bins=20).to_dict()["datasets"].values()
        for row in data
        if "left" in row
    ]
    shares = sum(row["density"] * (row["right"] - row["left"]) for row in bars)
    assert shares == pytest.approx(1)
    with pytest.raises(InputError, match="bins must be a whole number"):
        spectrum.chart(bins=0)


def test_values_below_rounding_are_said_and_left_out_of_the_distance():
    spectrum = rm.product_spectrum(30, 100, seed=0)
    lost = int((~spectrum.to_frame().above_rounding).sum())
    assert lost > 5
    assert f"{lost} of 100 values are below rounding" in spectrum.summary()
    kept = spectrum.values[0, :-lost]
    steps = np.arange(lost, 101) / 100
    below = np.sort(rm.singular_cdf(kept, 30))
    expected = max(np.abs(below - steps[1:]).max(), np.abs(below - steps[:-1]).max())
    assert spectrum.distance[0] == pytest.approx(expected)


def test_exact_quantiles_have_half_a_step_distance():
    values = rm.singular_quantile((np.arange(50) + 0.5) / 50, 3, variances=2.0)
    assert rm.ks_distance(values, 3, variances=2.0) == pytest.approx(0.01, rel=1e-9)


BAD = {
    "no factors": (lambda: rm.conditioning_by_depth(0, 10), "num_factors must be a whole number"),
    "size one": (lambda: rm.conditioning_by_depth(3, 1), "size must be a whole number from 2"),
    "size half": (lambda: rm.product_spectrum(3, 10.5), "Got 10.5"),
    "runs": (lambda: rm.conditioning_by_depth(3, 10, runs=0), "runs must be a whole number"),
    "run": (lambda: rm.gaussian_factors(3, 10, run=-1), "run must be a whole number from 0"),
    "seed": (lambda: rm.product_spectrum(3, 10, seed=1.5), "seed must be an integer"),
    "variance": (lambda: rm.conditioning_by_depth(3, 10, variances=(1, 2, 0)), "above 0"),
    "empty": (lambda: rm.product_conditioning([]), "factors is empty"),
    "oblong": (lambda: rm.product_conditioning([np.ones((2, 3))]), r"Factor 1 has shape \(2, 3\)"),
    "sizes": (
        lambda: rm.product_conditioning([np.eye(2), np.eye(3)]),
        r"Factor 2 has shape \(3, 3\), those before it \(2, 2\)",
    ),
    "one by one": (lambda: rm.product_conditioning([[[1.0]]]), "size must be .* from 2"),
    "NaN": (lambda: rm.product_conditioning([np.full((2, 2), np.nan)]), "factor 1 must be finite"),
    "no values": (lambda: rm.ks_distance([], 2), "at least one number"),
    "negative values": (lambda: rm.ks_distance([1.0, -1.0], 2), "from -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    call, message = BAD[name]
    with pytest.raises(InputError, match=message):
        call()


def test_types():
    assert isinstance(RESULTS["given"](), DepthConditioning)
    assert isinstance(RESULTS["one factor"](), ProductSpectrum)
