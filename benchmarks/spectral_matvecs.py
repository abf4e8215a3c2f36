"""Products that leading eigenvalues cost, beside scipy's eigsh (ARPACK), at equal accuracy.

    python benchmarks/spectral_matvecs.py [--seeds 10]

Every row is one spectrum: median products over the seeds, worst relative error of any of the k
values, and the share of seeds whose error is above 1e-3. normscope stops by itself at tol=1e-3.
eigsh is given, per spectrum, the loosest of several settings (tol, size of the basis) whose
median error over the seeds is within 1e-3, which it could not know.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from normscope.measure.operators.base import LinearOperator as Operator
from normscope.measure.spectral import top_eigenvalues

TOL = 1e-3
BULK = np.linspace(0.1, 0, 2000)


class Diagonal(Operator):
    """diag(d): a Krylov method from a random vector does not see the basis."""

    def __init__(self, values: np.ndarray) -> None:
        n = len(values)
        super().__init__((n, n), dtype=torch.float64, symmetric=True)
        self._values = torch.from_numpy(values)

    def _forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors * self._values


def network_gram(widths: list[int], samples: int, seed: int) -> np.ndarray:
    """Eigenvalues of the Fisher matrix J^T J / T of a ReLU network at random weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = [normal(b, a) * math.sqrt(2 / a) for a, b in itertools.pairwise(widths)]
    inputs, masks = [normal(samples, widths[0])], []
    for weight in weights[:-1]:
        before = inputs[-1] @ weight.T
        masks.append((before > 0).double())
        inputs.append(before.clamp_min(0))
    outputs = widths[-1]
    delta = torch.eye(outputs, dtype=torch.float64).expand(samples, outputs, outputs)
    gram = torch.zeros(samples * outputs, samples * outputs, dtype=torch.float64)
    for layer in reversed(range(len(weights))):
        rows = delta.reshape(samples * outputs, -1)
        above = inputs[layer] @ inputs[layer].T + 1
        spread = above.repeat_interleave(outputs, 0).repeat_interleave(outputs, 1)
        gram += (rows @ rows.T) * spread
        if layer:
            delta = (delta @ weights[layer]) * masks[layer - 1][:, None]
    return torch.linalg.eigvalsh(gram / samples).flip(0).numpy().copy()


def spectra() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    cases = {f"10 within {s:g}, bulk to 0.1": _cluster(rng, s) for s in (0.3, 0.1, 0.01, 0.001)}
    cases["10 equal, bulk to 0.1"] = np.concatenate([np.ones(10), BULK])
    cases["1 / i"] = 1 / np.arange(1.0, 2001)
    cases["1 / sqrt(i)"] = 1 / np.sqrt(np.arange(1.0, 2001))
    cases["0.9^i"] = 0.9 ** np.arange(500.0)
    normal = rng.normal(size=(500, 1000))
    cases["Wishart 500 x 1000"] = np.linalg.eigvalsh(normal @ normal.T / 1000)[::-1].copy()
    cases["Fisher 784-500-500-10, T=128"] = network_gram([784, 500, 500, 10], 128, 0)
    cases["Fisher 784-500-500-500-10, T=128"] = network_gram([784, 500, 500, 500, 10], 128, 1)
    return cases


def _cluster(rng: np.random.Generator, spread: float) -> np.ndarray:
    top = 1 - spread * np.append(0, rng.uniform(0, 1, 9))
    return np.concatenate([np.sort(top)[::-1], BULK])


def ours(values: np.ndarray, k: int, seed: int) -> tuple[int, float]:
    result = top_eigenvalues(Diagonal(values), k, tol=TOL, seed=seed)
    return result.matvecs, _error(result.values, values[:k])


def theirs(values: np.ndarray, k: int, seed: int, tol: float, basis: int) -> tuple[int, float]:
    count = 0

    def matvec(vector: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        return values * vector.ravel()

    n = len(values)
    start = np.random.default_rng(seed).normal(size=n)
    op = LinearOperator((n, n), matvec=matvec, dtype=np.float64)
    try:
        found = eigsh(op, k, which="LA", tol=tol, ncv=basis, v0=start, return_eigenvectors=False)
    except (ArpackNoConvergence, ArpackError):
        return count, math.inf
    return count, _error(np.sort(found)[::-1], values[:k])


def best_of_eigsh(values: np.ndarray, k: int, seeds: int) -> list[tuple[int, float]] | None:
    """The cheapest setting that reaches the accuracy in the median; None if no setting does."""
    settings = [(tol, k + extra) for tol in (0.3, 0.1, 0.01, 1e-3) for extra in (2, 4, 8, 12, 20)]
    runs = [[theirs(values, k, s, tol, basis) for s in range(seeds)] for tol, basis in settings]
    good = [run for run in runs if np.median([e for _, e in run]) <= TOL]
    return min(good, key=lambda run: np.median([c for c, _ in run])) if good else None


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(found - exact) / np.abs(exact)))


def _cells(runs: list[tuple[int, float]] | None) -> str:
    if runs is None:
        return f"{'none reaches it':>28s}"
    counts, errors = np.array([c for c, _ in runs]), np.array([e for _, e in runs])
    return f"{np.median(counts):8.0f} {errors.max():10.1e} {np.mean(errors > TOL):8.0%}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args(arguments).seeds
    torch.set_num_threads(1)
    print(f"{'':38s} {'normscope, by itself':>28s} | {'eigsh, best setting':>28s}")
    head = f"{'products':>8s} {'worst':>10s} {'>1e-3':>8s}"
    print(f"{'spectrum':34s} {'k':>3s} {head} | {head}")
    for name, values in spectra().items():
        for k in (1, 10):
            mine = [ours(values, k, seed) for seed in range(seeds)]
            print(f"{name:34s} {k:3d} {_cells(mine)} | {_cells(best_of_eigsh(values, k, seeds))}")


if __name__ == "__main__":
    main()
