"""top_eigenvalues against eigh, and every input it refuses."""

import numpy as np
import pytest
import torch

from normscope.errors import ConvergenceError, InputError, MeasurementError
from normscope.measure.operators.base import TensorOperator
from normscope.measure.spectral import search as search_module
from normscope.measure.spectral import top_eigenvalues
from normscope.results import Spectrum
from spectra import (
    BrokenOperator,
    DiagonalOperator,
    FactoredOperator,
    PrimalOnly,
    factor,
    rotated,
    symmetric,
)

BULK = np.linspace(0, 0.1, 150)
SPECTRA = {
    "random": np.random.default_rng(0).normal(size=200),
    "tenfold": np.concatenate([np.ones(10), BULK]),
    "two multiplicities": np.concatenate([np.full(4, 3.0), np.full(5, 2.0), BULK]),
    "clustered": np.concatenate([1 - 0.03 * np.linspace(0, 1, 10) ** 2, BULK]),
    "low rank": np.concatenate([[5, 4, 4, 3, 2, 2, 2, 2, 1, 1, 0.5, 0.5], np.zeros(100)]),
    "indefinite": np.concatenate([[-9, -9, -8, 7, 7, 7], np.linspace(-1, 1, 100)]),
    "all negative": -np.linspace(1, 5, 60),
}


def leading(values, k, which):
    key = {"largest": -values, "smallest": values, "magnitude": -np.abs(values)}[which]
    return values[np.argsort(key, kind="stable")][:k]


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("name", SPECTRA)
def test_against_eigh(name, k, which):
    matrix = rotated(SPECTRA[name])
    exact = leading(torch.linalg.eigvalsh(matrix).numpy(), k, which)
    result = top_eigenvalues(
        TensorOperator(matrix, symmetric=True), k, which=which, seed=3, confidence=0.99
    )
    floor = 1e-12 * np.abs(SPECTRA[name]).max()
    zeros = np.abs(exact) <= floor
    if name == "low rank" and which == "smallest":
        exact = np.zeros(k)
    error = np.abs(result.values - exact)
    if which == "magnitude":  # x and -x are ties
        error = np.abs(np.abs(result.values) - np.abs(exact))
    assert result.converged
    assert np.all(error[~zeros] <= 1e-3 * np.abs(exact[~zeros]))
    assert np.all(np.abs(result.values[zeros]) <= floor)
    assert np.all(error <= result.bounds + floor)


def test_one_by_one_and_zero_and_identity():
    assert top_eigenvalues(TensorOperator(torch.tensor([[-3.0]]), symmetric=True)).values == [-3.0]
    zero = top_eigenvalues(TensorOperator(torch.zeros(5, 5), psd=True), 3)
    assert zero.converged
    assert zero.values.tolist() == [0, 0, 0]
    assert "larger than the rank, 0" in zero.reason
    identity = top_eigenvalues(TensorOperator(5 * torch.eye(40), psd=True), 40)
    assert np.allclose(identity.values, 5, rtol=1e-14)
    assert identity.matvecs == 40


def test_all_eigenvalues_are_exact():
    matrix = symmetric(30)
    result = top_eigenvalues(TensorOperator(matrix, symmetric=True), 30, tol=1e-8)
    exact = torch.linalg.eigvalsh(matrix).flip(0).numpy()
    assert np.abs(result.values - exact).max() < 1e-12
    assert result.matvecs == 30


def test_beyond_the_rank_the_values_are_zero_and_it_says_so():
    low = factor(3, 80)
    result = top_eigenvalues(TensorOperator(low.T @ low, psd=True), 6)
    assert result.converged
    assert np.all(result.values[3:] <= 1e-11)
    assert np.all(result.values >= 0)
    assert "3 of the 6 values are zero" in result.reason
    assert "the rank, 3" in result.reason


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_vectors_are_eigenvectors(which):
    matrix = rotated(SPECTRA["indefinite"])
    result = top_eigenvalues(
        TensorOperator(matrix, symmetric=True), 6, which=which, vectors=True, tol=1e-6
    )
    rows = result.vectors
    assert np.abs(rows @ rows.T - np.eye(6)).max() < 1e-12
    residual = np.linalg.norm(rows @ matrix.numpy() - result.values[:, None] * rows, axis=1)
    assert np.allclose(residual, result.residuals, atol=1e-13)


def test_no_vectors_unless_asked():
    assert top_eigenvalues(DiagonalOperator([1.0, 2.0])).vectors is None


def test_dual_equals_primal_and_costs_less_memory():
    op = FactoredOperator(factor(40, 300))
    dual, primal = top_eigenvalues(op, 5, tol=1e-8), top_eigenvalues(PrimalOnly(op), 5, tol=1e-8)
    assert (dual.side, primal.side) == ("dual", "primal")
    assert np.allclose(dual.values, primal.values, rtol=1e-8)
    assert dual.dimension == 300
    assert dual.convention == {"loss": "mse"}


def test_dual_vectors_are_those_of_the_operator():
    op = FactoredOperator(factor(12, 50))
    result = top_eigenvalues(op, 4, tol=1e-9, vectors=True)
    product = op.matmat(torch.from_numpy(result.vectors).T).T.numpy()
    assert result.side == "dual"
    assert np.allclose(np.linalg.norm(result.vectors, axis=1), 1)
    assert np.abs(product - result.values[:, None] * result.vectors).max() < 1e-5


def test_dual_smaller_than_k_is_filled_with_its_zeros():
    result = top_eigenvalues(FactoredOperator(factor(4, 50)), 7)
    assert result.values.shape == (7,)
    assert np.all(result.values[4:] == 0)
    assert "k is larger than the rank" in result.reason


def test_dual_vectors_of_zero_are_nan_and_said_so():
    low = factor(3, 40)
    op = FactoredOperator(torch.cat([low, low]))  # six rows, rank three
    result = top_eigenvalues(op, 5, vectors=True)
    assert result.side == "dual"
    assert np.isnan(result.vectors[3:]).all()
    assert np.isfinite(result.vectors[:3]).all()
    assert "rows are NaN" in result.reason


def test_smallest_of_a_low_rank_semidefinite_operator_needs_no_product():
    result = top_eigenvalues(FactoredOperator(factor(5, 50)), 3, which="smallest")
    assert result.values.tolist() == [0, 0, 0]
    assert result.matvecs == 0
    assert "rank at most 5" in result.reason


def test_same_seed_same_bits_and_global_generators_untouched():
    op = DiagonalOperator(SPECTRA["clustered"])
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = top_eigenvalues(op, 4, seed=7), top_eigenvalues(op, 4, seed=7)
    assert first == second
    assert first != top_eigenvalues(op, 4, seed=8)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_matvecs_are_what_the_operator_was_asked():
    calls = []

    class Counting(DiagonalOperator):
        def _forward(self, vectors):
            calls.append(len(vectors))
            return super()._forward(vectors)

    result = top_eigenvalues(Counting(SPECTRA["clustered"]), 4)
    assert result.matvecs == sum(calls)


def test_restart_bounds_the_basis(monkeypatch):
    monkeypatch.setattr(search_module, "BASIS_BYTES", 0)
    sizes = []
    extend = search_module.KrylovSpace.extend

    def recorded(self, direction):
        step = extend(self, direction)
        sizes.append(self.size)
        return step

    monkeypatch.setattr(search_module.KrylovSpace, "extend", recorded)
    values = np.linspace(0, 1, 400) ** 2
    result = top_eigenvalues(DiagonalOperator(values), 3)
    assert result.converged
    assert max(sizes) <= 3 + search_module.SPARE
    assert result.matvecs > 2 * max(sizes)
    assert np.allclose(result.values, values[::-1][:3], rtol=1e-3)


def test_float32_reaches_its_floor():
    values = np.concatenate([[3, 2.5, 2.5], np.linspace(0, 1, 300)])
    result = top_eigenvalues(DiagonalOperator(values, torch.float32), 3, tol=1e-4)
    assert result.converged
    assert result.values.dtype == np.float64
    assert np.allclose(result.values, [3, 2.5, 2.5], rtol=1e-4)
    hopeless = top_eigenvalues(DiagonalOperator(values, torch.float32), 2, tol=1e-9)
    assert not hopeless.converged
    assert "rounding error of torch.float32" in hopeless.reason
    assert np.allclose(hopeless.values, [3, 2.5], rtol=1e-5)


def test_budget_gives_an_honest_result_or_an_error():
    op = DiagonalOperator(np.linspace(0, 1, 500))
    result = top_eigenvalues(op, 3, max_matvecs=10)
    assert not result.converged
    assert result.matvecs == 10
    assert "0 of 3 eigenvalues reached tol=0.001 within 10 products" in result.reason
    assert np.all(result.bounds > 0)
    with pytest.raises(ConvergenceError, match=r"within 10 products.*Raise max_matvecs"):
        top_eigenvalues(op, 3, max_matvecs=10, strict=True)
    short = top_eigenvalues(op, 3, max_matvecs=2)
    assert np.isnan(short.values[2])
    assert np.isinf(short.bounds[2])


def test_unfinished_probe_is_not_converged():
    values = np.concatenate([[2.0, 1.9], np.linspace(0, 1, 500)])
    full = top_eigenvalues(DiagonalOperator(values), 2)
    cut = top_eigenvalues(DiagonalOperator(values), 2, max_matvecs=full.matvecs - 1)
    assert full.converged
    assert full.verified
    assert not cut.converged
    assert "probe for missed ones" in cut.reason


def test_a_start_blind_to_the_leading_eigenvector_is_found_out():
    values = np.concatenate([[2.0, 1.0], np.linspace(0, 0.5, 200)])
    start = torch.zeros(202, dtype=torch.float64)
    start[1:] = 1.0
    assert top_eigenvalues(DiagonalOperator(values), start=start).values[0] == pytest.approx(
        2, 1e-3
    )


def test_a_good_start_saves_products():
    values = np.concatenate([[2.0], np.linspace(0, 1.9, 500)])
    start = torch.full((501,), 1e-6, dtype=torch.float64)
    start[0] = 1.0
    result = top_eigenvalues(DiagonalOperator(values), start=start)
    assert result.values[0] == pytest.approx(2, rel=1e-3)


def test_start_of_either_side():
    op = FactoredOperator(factor(10, 30))
    ones = torch.ones(30, dtype=torch.float64)
    assert top_eigenvalues(op, start=ones).side == "primal"
    assert top_eigenvalues(op, start=ones[:10]).side == "dual"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be a whole number from 1. Got 0"),
        ({"k": 2.5}, "k must be a whole number from 1. Got 2.5"),
        ({"k": 6}, "k = 6 eigenvalues were asked of a 5 x 5 operator"),
        ({"tol": 0}, "tol is a relative error between 0 and 1, such as 0.001. Got 0"),
        ({"tol": 2}, "tol is a relative error"),
        ({"tol": "small"}, "tol is a relative error"),
        ({"confidence": 1.0}, "confidence is a probability between 0 and 1"),
        ({"which": "bigest"}, "Unknown which 'bigest'. Did you mean 'largest'"),
        ({"max_matvecs": 0}, "max_matvecs must be a whole number from 1"),
        ({"seed": -1}, "seed must be an integer"),
        ({"start": torch.ones(4)}, r"one vector of length 5. Got the shape \(4,\)"),
        ({"start": torch.zeros(5)}, "finite and not zero"),
        ({"start": torch.full((5,), torch.nan)}, "finite and not zero"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        top_eigenvalues(DiagonalOperator(np.arange(1.0, 6)), **arguments)


def test_bad_operators():
    with pytest.raises(InputError, match=r"takes a LinearOperator. Got Tensor.*TensorOperator"):
        top_eigenvalues(torch.eye(3))
    with pytest.raises(InputError, match=r"square operator. TensorOperator is 2 x 3.*J\^T J"):
        top_eigenvalues(TensorOperator(torch.zeros(2, 3)))
    with pytest.raises(InputError, match=r"tagged symmetric=False.*A\^T A"):
        top_eigenvalues(TensorOperator(torch.eye(3)))


@pytest.mark.parametrize("at", [1, 4])
def test_nan_names_the_product(at):
    with pytest.raises(MeasurementError, match=f"Product {at} with BrokenOperator .*NaN"):
        top_eigenvalues(BrokenOperator(50, at), 3)


def test_products_that_contradict_symmetry_are_found_out():
    matrix = symmetric(50)
    skew = torch.triu(matrix, 1)
    wrong = TensorOperator(matrix + 0.1 * (skew - skew.T), symmetric=True)
    with pytest.raises(MeasurementError, match=r"tagged symmetric, but .* differ by"):
        top_eigenvalues(wrong, 3)


def test_record_round_trip_and_text():
    result = top_eigenvalues(DiagonalOperator(SPECTRA["tenfold"]), 4, vectors=True)
    assert Spectrum.from_json(result.to_json()) == result
    assert repr(result).startswith("Spectrum([1, 1, 1, ...], largest, ")
    assert len(repr(result)) < 100
    frame = result.to_frame()
    assert list(frame.columns) == ["value", "residual", "bound"]
    assert list(frame.index) == [1, 2, 3, 4]
    assert "4 largest eigenvalues of a 160 x 160 operator: converged" in result.summary()
    assert result.largest == result.values[0]
    unfinished = top_eigenvalues(DiagonalOperator(SPECTRA["tenfold"]), 4, max_matvecs=3)
    assert "NOT converged" in repr(unfinished)
    assert unfinished.reason in unfinished.summary()
    assert Spectrum.from_json(unfinished.to_json()) == unfinished
