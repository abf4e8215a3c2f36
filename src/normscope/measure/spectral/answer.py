"""From a finished search to the record: padding, lifting, and the sentences."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.measure.operators.base import LinearOperator
from normscope.measure.spectral.products import Floats, Products, smaller_side
from normscope.measure.spectral.search import Search
from normscope.results.spectrum import Spectrum

__all__ = ["Answer", "has_kernel", "zero_spectrum"]


class Answer:
    """What a search found, in terms of the operator that was asked."""

    def __init__(
        self,
        op: LinearOperator,
        search: Search,
        products: Products,
        side: str,
        *,
        k: int,
        tol: float,
    ) -> None:
        self._op, self._search, self._products = op, search, products
        self._side, self._k, self._tol = side, k, tol
        self._sought = min(k, products.n)
        self._floor = search.space.floor
        self.failure = self._failure()

    def spectrum(self, *, which: str, seed: int, confidence: float, with_vectors: bool) -> Spectrum:
        """The record; a dual side smaller than k is filled up with its exact zeros."""
        search = self._search
        values = self._filled(search.ritz.values, math.nan)
        values = np.maximum(values, 0.0) if self._op.psd else values
        rows, unknown = self._rows() if with_vectors else (None, "")
        return Spectrum(
            values=values,
            residuals=self._filled(search.ritz.residuals, math.inf),
            bounds=self._filled(search.bounds, math.inf),
            converged=not self.failure,
            verified=search.verified,
            matvecs=self._products.count,
            dimension=self._op.shape[0],
            which=which,
            tol=float(self._tol),
            confidence=confidence,
            seed=seed,
            side=self._side,
            reason=" ".join(
                filter(None, [self.failure, self._doubt(), self._rank(values, which), unknown])
            ),
            convention=dict(self._op.convention),
            vectors=rows,
        )

    def _filled(self, found: Floats, missing: float) -> Floats:
        """All k numbers: those found, ``missing`` up to what was sought, zeros beyond the dual."""
        filled = np.zeros(self._k)
        filled[: self._sought] = missing
        usable = found[: self._sought]
        filled[: len(usable)] = usable
        return filled

    def _failure(self) -> str:
        search, tol, count = self._search, self._tol, self._products.count
        values = np.abs(search.ritz.values[: self._sought])
        if search.converged < self._sought:
            bounds = search.bounds[search.converged :]
            known = f"the next one is known to {bounds[0]:.1e}" if len(bounds) else "the rest not"
            return (
                f"{search.converged} of {self._sought} eigenvalues reached tol={tol:g} within "
                f"{count} products; {known}. Raise max_matvecs, or tol."
            )
        if not (search.verified or search.exhausted):
            return (
                f"All {self._sought} values meet tol={tol:g}, but the probe for missed ones was "
                f"not finished within {count} products. Raise max_matvecs."
            )
        if np.any((tol * values < self._floor) & (values > self._floor)):
            return (
                f"tol={tol:g} of the smallest of these values is below the rounding error of "
                f"{self._op.dtype} products, about {self._floor:.1e} here. Raise tol, or use "
                "float64."
            )
        return ""

    def _doubt(self) -> str:
        if self.failure or self._search.verified:
            return ""
        return (
            "Not verified: the eigenvalues lie so densely at the last of these values that a "
            "random run met nothing beyond it but could not exclude it."
        )

    def _rank(self, values: Floats, which: str) -> str:
        zeros = int(np.sum(np.abs(values) <= self._floor))
        if not zeros or self.failure or which == "smallest":
            return ""
        return (
            f"{zeros} of the {self._k} values are zero to rounding ({self._floor:.1e}): k is "
            f"larger than the rank, {self._k - zeros}."
        )

    def _rows(self) -> tuple[NDArray[np.floating], str]:
        """Unit eigenvectors (k, n) and, where a row could not be had, why it is NaN."""
        search = self._search
        stack = search.space.lift(search.ritz.vectors[:, : self._sought])
        if self._side == "dual":
            stack = self._op.from_dual(stack)  # type: ignore[attr-defined]
        norms = torch.linalg.vector_norm(stack, dim=1, keepdim=True)
        lost = norms[:, 0] <= math.sqrt(self._products.eps) * norms.max().clamp_min(1e-300)
        stack = torch.where(lost[:, None], torch.nan, stack / norms)
        rows = np.full((self._k, stack.shape[1]), np.nan, dtype=stack.cpu().numpy().dtype)
        rows[: len(stack)] = stack.cpu().numpy()
        if not np.isnan(rows).any():
            return rows, ""
        return rows, "Eigenvectors of the value zero are not determined here; their rows are NaN."


def has_kernel(op: LinearOperator, k: int) -> bool:
    """Whether a semi-definite operator must have k zeros: its dual is that much smaller."""
    side, _ = smaller_side(op)
    return op.psd and op.shape[0] - side.shape[0] >= k


def zero_spectrum(
    op: LinearOperator, k: int, *, tol: float, seed: int, confidence: float
) -> Spectrum:
    """The k smallest eigenvalues of such an operator: exact zeros, without a product."""
    rank = smaller_side(op)[0].shape[0]
    return Spectrum(
        values=np.zeros(k),
        residuals=np.zeros(k),
        bounds=np.zeros(k),
        converged=True,
        verified=True,
        matvecs=0,
        dimension=op.shape[0],
        which="smallest",
        tol=tol,
        confidence=confidence,
        seed=seed,
        side="dual",
        reason=f"Exact: positive semi-definite of rank at most {rank}, so {op.shape[0] - rank} "
        "eigenvalues are zero.",
        convention=dict(op.convention),
    )
