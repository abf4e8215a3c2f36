"""spectral_density: exact cases, mass accounting, error bars, dual side, bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from normscope.errors import InputError, MeasurementError
from normscope.measure.operators.base import TensorOperator
from normscope.measure.spectral import density as density_module
from normscope.measure.spectral import spectral_density
from normscope.results import SpectralDensity
from normscope.seeds import child_seed
from spectra import DiagonalOperator, FactoredOperator, PrimalOnly, factor, rotated

VALUES = np.concatenate([np.linspace(0, 1, 495), [4, 4, 5, 5, 6]])


def smoothed_exactly(values, grid, width):
    bumps = np.exp(-(((grid[:, None] - values) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
    return bumps.mean(axis=1)


def test_a_budget_that_covers_the_dimension_is_exact():
    matrix = rotated(VALUES[:100])
    result = spectral_density(TensorOperator(matrix, symmetric=True))
    assert result.exact
    assert result.matvecs == 100
    assert np.allclose(result.nodes[0], torch.linalg.eigvalsh(matrix).numpy())
    expected = smoothed_exactly(result.nodes[0], result.grid, result.width)
    assert np.allclose(result.density, expected)
    assert np.all(result.density_error == 0)


def test_each_run_reproduces_the_moments_of_its_vector():
    matrix = rotated(VALUES)
    result = spectral_density(
        TensorOperator(matrix, symmetric=True), num_vectors=3, steps=12, seed=5
    )
    generator = torch.Generator().manual_seed(child_seed(5, "density"))
    rows = [torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(3)]
    start = torch.stack(rows)
    start = start / start.norm(dim=1, keepdim=True)
    image = start
    for power in range(1, 24):  # Gauss: exact up to degree 2 * 12 - 1
        image = image @ matrix
        moments = (start * image).sum(dim=1).numpy()
        assert np.allclose((result.weights * result.nodes**power).sum(axis=1), moments, rtol=1e-10)


def test_mass_is_exactly_one():
    result = spectral_density(DiagonalOperator(VALUES), num_vectors=4, steps=20)
    assert np.allclose(result.weights.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert result.zero_mass == 0
    assert result.cumulative[0] == pytest.approx(0, abs=1e-6)
    assert result.cumulative[-1] == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(result.density, result.grid) == pytest.approx(1, abs=1e-5)
    assert result.moment(0).value == pytest.approx(1, abs=1e-14)


COVERED = {
    "one outlier": np.append(np.linspace(0, 1, 239), 100.0),
    "power law": 1 / np.arange(1, 241),
    "indefinite": np.concatenate([np.linspace(-0.2, 0.2, 236), [50.0, 20.0, 5.0, -3.0]]),
    "flat": np.linspace(0, 1, 240),
}


def quadratures(values, repeats, num_vectors=5):
    """What random vectors give where Lanczos has run to the end: all eigenvalues as nodes."""
    op = DiagonalOperator(values)
    start = spectral_density(op, num_vectors=num_vectors, steps=6)
    generator = np.random.default_rng(0)
    for _ in range(repeats):
        weights = generator.standard_normal((num_vectors, len(values))) ** 2
        weights /= weights.sum(axis=1, keepdims=True)
        yield replace(start, nodes=np.tile(values, (num_vectors, 1)), weights=weights)


REPEATS = 400
ENOUGH = 0.95 - 3 * np.sqrt(0.95 * 0.05 / REPEATS)


@pytest.mark.parametrize("name", COVERED)
def test_intervals_hold_the_truth_in_95_percent(name):
    values, hits = COVERED[name], {1: 0, 2: 0}
    for result in quadratures(values, REPEATS):
        for power in hits:
            low, high = result.moment(power).interval()
            hits[power] += low <= np.mean(values**power) <= high
    assert min(hits.values()) / REPEATS >= ENOUGH, hits


def test_bands_hold_the_curve_in_95_percent():
    values, points, width = COVERED["one outlier"], np.array([0.2, 0.5, 100.0]), 0.1
    exact = smoothed_exactly(values, points, width)
    curves = [result.smoothed(width, points) for result in quadratures(values, REPEATS)]
    inside = [np.abs(c.density - exact) <= c.band * c.density_error for c in curves]
    assert np.mean(inside, axis=0).min() >= ENOUGH


def test_curve_lies_within_its_error_bars():
    width = 0.1
    result = spectral_density(
        DiagonalOperator(VALUES), num_vectors=10, steps=45, seed=1, width=width
    )
    exact = smoothed_exactly(VALUES, result.grid, width)
    inside = np.abs(result.density - exact) <= 5 * result.density_error + 1e-3 * exact.max()
    assert inside.all()
    assert result.density_error.max() < 0.2 * exact.max()


@pytest.mark.parametrize("power", [1, 2, 3])
def test_moments_within_standard_errors(power):
    result = spectral_density(DiagonalOperator(VALUES), num_vectors=12, steps=20, seed=2)
    moment = result.moment(power)
    assert abs(moment.value - np.mean(VALUES**power)) <= 5 * moment.standard_error
    assert moment.standard_error > 0


def test_standard_error_of_the_first_moment_is_calibrated():
    op, z = DiagonalOperator(VALUES), []
    for seed in range(200):
        moment = spectral_density(op, num_vectors=20, steps=2, seed=seed).moment(1)
        z.append((moment.value - VALUES.mean()) / moment.standard_error)
    covered = np.mean(np.abs(z) <= 2)
    # Student's t with 19 degrees of freedom: 94.0 % within 2 s.e.
    assert abs(covered - 0.940) <= 4 * np.sqrt(0.94 * 0.06 / 200)


def test_dual_side_with_exact_atom_at_zero():
    op = FactoredOperator(factor(60, 240))
    dual, primal = spectral_density(op), spectral_density(PrimalOnly(op), num_vectors=6)
    assert (dual.side, primal.side) == ("dual", "primal")
    assert dual.zero_mass == 0.75
    assert np.allclose(dual.weights.sum(axis=1) + dual.zero_mass, 1)
    assert dual.moment(0).value == pytest.approx(1)
    assert dual.moment(1).value == pytest.approx(primal.moment(1).value, rel=1e-10)
    after = dual.cumulative[dual.grid >= 0][0]
    before = dual.cumulative[dual.grid < 0][-1]
    assert after - before >= 0.75
    assert dual.cumulative[-1] == pytest.approx(1, abs=1e-6)


def test_dual_sampled_agrees_with_dense_primal():
    op = FactoredOperator(factor(300, 600, seed=4))
    values = torch.linalg.eigvalsh(op.dual.to_dense()).numpy()
    result = spectral_density(op, num_vectors=6, steps=30, seed=3)
    assert not result.exact
    moment = result.moment(2)
    assert abs(moment.value - np.sum(values**2) / 600) <= 5 * moment.standard_error


def test_zero_eigenvalues_are_seen_as_mass_at_zero():
    values = np.concatenate([np.zeros(900), np.full(100, 2.0)])
    result = spectral_density(DiagonalOperator(values), num_vectors=20, steps=5, seed=0)
    mass = (result.weights * (np.abs(result.nodes) < 1e-9)).sum(axis=1)
    assert abs(mass.mean() - 0.9) <= 5 * mass.std(ddof=1) / np.sqrt(20)
    assert np.allclose(result.weights.sum(axis=1), 1)  # runs end early: padding has no weight


def test_groups_do_not_change_the_answer(monkeypatch):
    together = spectral_density(DiagonalOperator(VALUES), num_vectors=5, steps=10, seed=9)
    monkeypatch.setattr(density_module, "STACK_BYTES", 2 * 13 * 500 * 8)
    apart = spectral_density(DiagonalOperator(VALUES), num_vectors=5, steps=10, seed=9)
    assert np.allclose(together.nodes, apart.nodes, rtol=1e-9, atol=1e-9)


def test_seed_decides_bit_by_bit():
    op = DiagonalOperator(VALUES)
    first = spectral_density(op, num_vectors=3, steps=8, seed=1)
    assert first == spectral_density(op, num_vectors=3, steps=8, seed=1)
    assert first != spectral_density(op, num_vectors=3, steps=8, seed=2)


def test_smoothing_again_needs_no_product():
    result = spectral_density(DiagonalOperator(VALUES), num_vectors=3, steps=8, width=0.2)
    again = result.smoothed(0.05, grid=[0.0, 0.5, 5.0])
    assert again.width == 0.05
    assert again.density.shape == (3,)
    assert np.array_equal(again.nodes, result.nodes)
    assert result.smoothed(0.2) == result
    with pytest.raises(InputError, match=r"standard deviation.* must be a number above 0. Got -1"):
        result.smoothed(-1)


def test_zero_operator():
    result = spectral_density(TensorOperator(torch.zeros(300, 300), psd=True), steps=3)
    assert np.all(result.nodes == 0)
    assert np.allclose(result.weights.sum(axis=1), 1)


def test_record_round_trip_and_text():
    result = spectral_density(DiagonalOperator(VALUES), num_vectors=3, steps=8)
    assert SpectralDensity.from_json(result.to_json()) == result
    assert "3 random vectors" in result.summary()
    assert len(repr(result)) < 100
    assert len(result.to_frame()) == len(result.grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_vectors": 1}, "num_vectors must be a whole number from 2"),
        ({"steps": 0}, "steps must be a whole number from 1"),
        ({"grid": [[1.0]]}, "grid must be one row of finite numbers"),
        ({"grid": [np.nan]}, "grid must be one row of finite numbers"),
        ({"width": 0.0}, "standard deviation.* must be a number above 0"),
        ({"seed": 1.5}, "seed must be an integer"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        spectral_density(DiagonalOperator(VALUES), **arguments)


def test_bad_operator_and_nan():
    with pytest.raises(InputError, match="needs a symmetric operator"):
        spectral_density(TensorOperator(torch.eye(3)))
    matrix = torch.eye(300, dtype=torch.float64)
    matrix[0, 0] = torch.nan
    with pytest.raises(MeasurementError, match="Product 1 with TensorOperator"):
        spectral_density(TensorOperator(matrix, symmetric=True))
