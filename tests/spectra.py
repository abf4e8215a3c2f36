"""Matrices with known eigenvalues, and operators made for tests of the spectral solvers."""

import numpy as np
import torch

from normscope.measure.operators.base import LinearOperator, TensorOperator


class DiagonalOperator(LinearOperator):
    """diag(d): Krylov methods do not know the basis, so this is any matrix with spectrum d."""

    def __init__(self, values, dtype=torch.float64):
        values = torch.as_tensor(np.array(values, dtype=np.float64)).to(dtype)
        super().__init__((len(values), len(values)), dtype=dtype, symmetric=True)
        self._values = values

    def _forward(self, vectors):
        return vectors * self._values


class FactoredOperator(LinearOperator):
    """J^T J of a dense J (rows, n) with its dual J J^T."""

    def __init__(self, factor):
        n = factor.shape[1]
        super().__init__((n, n), dtype=factor.dtype, psd=True, convention={"loss": "mse"})
        self._factor = factor
        self.dual = TensorOperator(factor @ factor.T, psd=True)

    def _forward(self, vectors):
        return (vectors @ self._factor.T) @ self._factor

    def from_dual(self, stack):
        return stack @ self._factor


class PrimalOnly(LinearOperator):
    """Another operator without its dual."""

    def __init__(self, op):
        super().__init__(op.shape, dtype=op.dtype, symmetric=op.symmetric, psd=op.psd)
        self._op = op

    def _forward(self, vectors):
        return self._op._forward(vectors)


class BrokenOperator(LinearOperator):
    """NaN from the ``at``-th product on."""

    def __init__(self, n, at):
        super().__init__((n, n), dtype=torch.float64, symmetric=True)
        self._values = torch.linspace(1, 2, n)
        self._calls, self._at = 0, at

    def _forward(self, vectors):
        result = vectors * self._values
        for row in result:
            self._calls += 1
            if self._calls >= self._at:
                row[0] = torch.nan
        return result


def rotated(values, seed=0):
    """A dense symmetric matrix with the given eigenvalues."""
    values = torch.as_tensor(np.array(values, dtype=np.float64))
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(normal)
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def symmetric(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return (normal + normal.T) / 2


def factor(rows, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, n, generator=generator, dtype=torch.float64)


def clustered(rng):
    """A random spectrum: a cluster of leading values, of any spread, over a bulk of any shape."""
    n, size = int(rng.choice([100, 1000, 3000])), int(rng.choice([1, 2, 3, 10, 30]))
    top = 1 - 10 ** rng.uniform(-4, -0.3) * rng.uniform(0, 1, size)
    edge, shape = rng.choice([0.9, 0.5, 0.1, 0.03]), rng.choice(["uniform", "power", "exponential"])
    ranks = np.arange(n)
    bulk = {
        "uniform": rng.uniform(0, 1, n),
        "power": 1 / (ranks + 1.0) ** rng.choice([0.3, 1, 2]),
        "exponential": np.exp(-rng.choice([0.01, 0.1, 1]) * ranks),
    }[shape]
    return np.sort(np.concatenate([top / top.max(), edge * bulk]))[::-1].copy()
