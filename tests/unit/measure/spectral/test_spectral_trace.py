"""trace, trace_of_square and frobenius_norm: unbiased, calibrated, with the declared rates."""

import numpy as np
import pytest
import torch
from scipy import stats

from normscope.errors import InputError, MeasurementError
from normscope.measure.operators.base import TensorOperator
from normscope.measure.spectral import frobenius_norm, trace, trace_of_square
from normscope.results import Estimate
from spectra import BrokenOperator, DiagonalOperator, FactoredOperator, factor, rotated

FLAT = np.linspace(0.5, 1.5, 150)
DECAYING = 0.8 ** np.arange(150)
INDEFINITE = np.linspace(-1, 1, 150) ** 3
SPECTRA = {"flat": FLAT, "decaying": DECAYING, "indefinite": INDEFINITE}
QUESTIONS = [
    (trace, "hutchinson"),
    (trace, "hutch++"),
    (trace, "xtrace"),
    (trace_of_square, "hutchinson"),
    (trace_of_square, "xtrace"),
]


def exact(question, values):
    return float(np.sum(values if question is trace else values**2))


def repeated(question, method, values, repeats, num_matvecs=30):
    op = TensorOperator(rotated(values), symmetric=True)
    results = [
        question(op, method=method, num_matvecs=num_matvecs, seed=seed) for seed in range(repeats)
    ]
    return np.array([r.value for r in results]), np.array([r.standard_error for r in results])


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("question", "method"), QUESTIONS)
def test_unbiased_and_error_not_understated(question, method, name):
    values, errors = repeated(question, method, SPECTRA[name], 100)
    scatter = values.std(ddof=1)
    assert abs(values.mean() - exact(question, SPECTRA[name])) <= 4.5 * scatter / 10
    # variances, because it is the squared standard error that is unbiased; the scatter of 100
    # repeats is itself known to about 10 % (more for skewed estimates)
    assert np.sqrt(np.mean(errors**2)) >= 0.75 * scatter


@pytest.mark.parametrize("question", [trace, trace_of_square])
def test_hutchinson_error_bars_are_calibrated(question):
    values, errors = repeated(question, "hutchinson", FLAT, 200)
    covered = np.mean(np.abs(values - exact(question, FLAT)) <= 2 * errors)
    # Student's t with 29 degrees of freedom: 94.5 % within 2 s.e.
    assert abs(covered - 0.945) <= 4 * np.sqrt(0.945 * 0.055 / 200)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("question", [trace, trace_of_square])
def test_xtrace_error_bars_cover_at_least_what_they_claim(question, name):
    values, errors = repeated(question, "xtrace", SPECTRA[name], 200)
    covered = np.mean(np.abs(values - exact(question, SPECTRA[name])) <= 2 * errors)
    # the jackknife is conservative; 14 degrees of freedom: 93.5 % if it were exact
    assert covered >= 0.935 - 4 * np.sqrt(0.935 * 0.065 / 200)


def measured_rate(question, method, values, budgets):
    scatter = [repeated(question, method, values, 60, budget)[0].std(ddof=1) for budget in budgets]
    slope, _ = np.polyfit(np.log(budgets), np.log(scatter), 1)
    return slope


@pytest.mark.parametrize("question", [trace, trace_of_square])
def test_hutchinson_rate_is_minus_one_half(question):
    budgets = [8, 16, 32, 64]
    slope = measured_rate(question, "hutchinson", FLAT, budgets)
    # a standard deviation from 60 repeats is known to 1 / sqrt(120)
    error = (1 / np.sqrt(120)) / np.sqrt(np.sum((np.log(budgets) - np.log(budgets).mean()) ** 2))
    assert abs(slope + 0.5) <= 4 * error


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_sketches_beat_the_square_root_on_decaying_spectra(method):
    power_law = 1 / np.arange(1.0, 151) ** 2
    assert measured_rate(trace, method, power_law, [12, 24, 48, 96]) < -1


def test_xtrace_beats_hutchinson_at_equal_cost_on_decaying_spectra():
    hutchinson, _ = repeated(trace, "hutchinson", DECAYING, 40, 60)
    xtrace, _ = repeated(trace, "xtrace", DECAYING, 40, 60)
    assert xtrace.std() < 0.05 * hutchinson.std()


@pytest.mark.parametrize(("question", "method"), QUESTIONS)
def test_exact_if_the_budget_covers_the_dimension(question, method):
    op = TensorOperator(rotated(INDEFINITE), symmetric=True)
    result = question(op, method=method, num_matvecs=150)
    assert result.exact
    assert result.method == "exact"
    assert result.matvecs == 150
    assert result.standard_error == 0
    assert result.value == pytest.approx(exact(question, INDEFINITE), abs=1e-12)


@pytest.mark.parametrize("question", [trace, trace_of_square])
def test_exact_if_the_sketch_captures_the_range(question):
    low = factor(5, 200)
    matrix = low.T @ torch.diag(torch.tensor([3.0, 2.0, 1.0, -1.0, -2.0])) @ low
    result = question(TensorOperator(matrix, symmetric=True), num_matvecs=20)
    values = torch.linalg.eigvalsh(matrix).numpy()
    assert result.exact
    assert result.matvecs == 20
    assert result.value == pytest.approx(exact(question, values), rel=1e-10)


def test_dual_side_has_the_same_trace_and_norm():
    op = FactoredOperator(factor(30, 400))
    dense = op.to_dense()
    result = trace(op, num_matvecs=30)
    assert (result.side, result.exact, result.dimension) == ("dual", True, 400)
    assert result.value == pytest.approx(float(torch.trace(dense)), rel=1e-12)
    norm = frobenius_norm(op, num_matvecs=30)
    assert norm.value == pytest.approx(float(torch.linalg.matrix_norm(dense)), rel=1e-12)


def test_frobenius_norm_is_the_root_with_the_delta_method():
    op = TensorOperator(rotated(INDEFINITE), symmetric=True)
    square, norm = trace_of_square(op, num_matvecs=30), frobenius_norm(op, num_matvecs=30)
    assert norm.value == pytest.approx(np.sqrt(square.value))
    assert norm.standard_error == pytest.approx(square.standard_error / (2 * norm.value))
    assert norm.quantity == "||A||_F"


@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace"])
def test_trace_needs_no_symmetry(method):
    matrix = factor(80, 80) / 9 + torch.eye(80, dtype=torch.float64)
    results = [
        trace(TensorOperator(matrix), method=method, num_matvecs=24, seed=s) for s in range(60)
    ]
    values = np.array([r.value for r in results])
    assert abs(values.mean() - float(torch.trace(matrix))) <= 4.5 * values.std(ddof=1) / np.sqrt(60)


@pytest.mark.parametrize(("question", "method"), QUESTIONS)
def test_seed_decides_bit_by_bit_and_the_budget_is_kept(question, method):
    op, state = DiagonalOperator(INDEFINITE), torch.get_rng_state()
    first = question(op, method=method, num_matvecs=31, seed=4)
    assert first == question(op, method=method, num_matvecs=31, seed=4)
    assert 29 <= first.matvecs <= 31
    assert torch.equal(state, torch.get_rng_state())


def test_zero_operator():
    op = TensorOperator(torch.zeros(300, 300), psd=True)
    for question in (trace, trace_of_square, frobenius_norm):
        result = question(op, num_matvecs=20)
        assert (result.value, result.standard_error) == (0, 0)


def test_float32():
    op = DiagonalOperator(FLAT, torch.float32)
    result = trace(op, num_matvecs=60)
    assert abs(result.value - FLAT.sum()) <= 5 * result.standard_error


def test_record_round_trip_and_text():
    result = trace(DiagonalOperator(INDEFINITE + 1), num_matvecs=30)
    assert Estimate.from_json(result.to_json()) == result
    low, high = result.interval()
    assert high - low == pytest.approx(2 * stats.t.ppf(0.975, 14) * result.standard_error)
    low, high = result.interval(2)
    assert high - low == pytest.approx(4 * result.standard_error)
    assert float(result) == result.value
    assert "+-" in repr(result)
    assert "xtrace, 30 products" in result.summary()
    assert "exact" in trace(DiagonalOperator([1.0, 2.0])).summary()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "hutchinsen"}, "Unknown trace method 'hutchinsen'. Did you mean 'hutchinson'"),
        ({"num_matvecs": 3}, "num_matvecs must be a whole number from 4. Got 3"),
        ({"num_matvecs": 5, "method": "hutch++"}, "from 6"),
        ({"num_matvecs": 1, "method": "hutchinson"}, "from 2"),
        ({"seed": None}, "seed must be an integer"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        trace(DiagonalOperator(FLAT), **arguments)


def test_bad_operators_and_nan():
    with pytest.raises(InputError, match="needs a square operator"):
        trace(TensorOperator(torch.zeros(2, 3)))
    with pytest.raises(InputError, match="needs a symmetric operator"):
        frobenius_norm(TensorOperator(torch.eye(3)))
    with pytest.raises(MeasurementError, match="Product 7 with BrokenOperator"):
        trace(BrokenOperator(300, 7), method="hutchinson")


def test_a_sketch_full_to_rounding_does_not_hide_a_wide_flat_rest():
    """In float32 one eigenvalue of 1e-6 vanishes beside 2000, but a million of them are 1."""
    values = np.full(1_000_000, 1e-6)
    values[0] = 2000.0
    found = trace(DiagonalOperator(values, torch.float32), num_matvecs=12)
    assert not found.exact
    assert abs(found.value - values.sum()) <= 2 * found.standard_error
    alone = np.where(values > 1, values, 0.0)
    assert trace(DiagonalOperator(alone, torch.float32), num_matvecs=12).exact
