"""Leading eigenvalues by Lanczos, multiplicities included, with error bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import Array, checked_count
from normscope.errors import ConvergenceError, InputError
from normscope.measure.operators.base import LinearOperator
from normscope.measure.progress import progress
from normscope.measure.spectral import products as multiplying
from normscope.measure.spectral.krylov import Which, checked_which
from normscope.measure.spectral.products import Products, smaller_side
from normscope.measure.spectral.search import Search
from normscope.results.spectrum import Spectrum
from normscope.seeds import checked_seed
from normscope.subject.process import measurement

PROBE_CAUTION = 20  # a missed copy of an eigenvalue is worse than a bound that is slightly off


@measurement
def top_eigenvalues(
    op: LinearOperator,
    k: int = 1,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    which: str = "largest",
    vectors: bool = False,
    max_matvecs: int = 1000,
    strict: bool = False,
    start: Tensor | None = None,
    confidence: float = 0.8,
) -> Spectrum:
    r"""The k leading eigenvalues of a symmetric operator, each to relative error ``tol``.

    Lanczos with full reorthogonalisation and thick restart (Wu and Simon 2000). It stops by
    itself. For k = 1 it stops when the run excludes an eigenvalue above theta (1 + tol): a random
    start vector hides one only with probability 1 - ``confidence``. For k > 1 it stops when
    min(||r||, ||r||^2 / gap) <= tol theta / 2 twice in a row for all, and a probe from a fresh
    random vector has excluded further copies. Where the operator has a smaller dual side (the Gram
    matrix J J^T of J^T J), that one is multiplied.

    ``tol`` and the bounds hold with high probability, not always: a leading eigenvalue that is
    nearly equal to the next can be missed. Measured at tol = 1e-3 and the default confidence, over
    500 to 1000 random starts each: with two leading eigenvalues within 2 % (k = 1) 2.5 % of the
    answers were off by more than the bound, the worst by 11 tol; with three within 2 % and k = 2,
    2.8 %, the top one missed (off by 10 tol); on a Marchenko-Pastur spectrum 0.1 %; on clusters
    asked for whole (k >= 5), none of 300. With confidence=0.99 it was 0.3 %.

    The small dense problem is solved in float64; vectors keep the operator's type, and no value
    can be had more accurately than about 10 eps times the largest: 1e-6 in float32, 2e-15 in
    float64.

    Args:
        op: a symmetric operator.
        k: how many, at most the dimension. Beyond the rank the values are zeros, and
            ``reason`` says so.
        tol: relative error that each eigenvalue is meant to have; see above for how often it has.
        seed: seed for the random vectors; equal seeds give equal bits.
        which: "largest", "smallest" (the most negative ones of an indefinite operator) or
            "magnitude".
        vectors: also return unit eigenvectors, as rows.
        max_matvecs: budget of products.
        strict: raise ``ConvergenceError`` if the budget does not suffice.
        start: first vector; of length n, or of the dual's length. It may be blind to a leading
            eigenvector, therefore a random probe verifies the answer.
        confidence: probability, in the worst case, that nothing larger was missed. Each halving
            of the risk costs about one product.

    Returns:
        The values best first, with residuals, bounds, products used and, if it did not converge,
        the reason.

    Raises:
        InputError: an argument that cannot be used, or an operator that is not symmetric.
        MeasurementError: a product with NaN, or products that contradict the symmetry.
        ConvergenceError: under ``strict``.

    Example:
        >>> import torch
        >>> from normscope.measure.operators.base import TensorOperator
        >>> matrix = torch.diag(torch.tensor([5.0, 5.0, 2.0, -7.0], dtype=torch.float64))
        >>> op = TensorOperator(matrix, symmetric=True)
        >>> top_eigenvalues(op, 3).values.round(6).tolist()
        [5.0, 5.0, 2.0]
        >>> top_eigenvalues(op, which="smallest").values.round(6).tolist()
        [-7.0]
    """
    order = _checked(op, k, which)
    k, max_matvecs = checked_count(k, "k"), checked_count(max_matvecs, "max_matvecs")
    _check_share(tol, "tol", "a relative error", 1e-3)
    _check_share(confidence, "confidence", "a probability", 0.8)
    seed = checked_seed(seed)
    if order == "smallest" and not vectors and has_kernel(op, k):
        return zero_spectrum(op, k, float(tol), seed, float(confidence))
    side, name = _side(op, k, order, vectors, start)
    count = min(k, side.shape[0])
    miss = (1 - confidence) / (1 if k == 1 and start is None else PROBE_CAUTION)
    with progress("top eigenvalues") as tick:
        products = Products(side, tick)
        draw = multiplying.random_source(side, seed, "lanczos")
        search = Search(products, draw, count, order, tol, miss)
        search.run(None if start is None else start.to(side.device, side.dtype), max_matvecs)
    answer = Answer(op, search, products, name, k, tol)
    if answer.failure and strict:
        raise ConvergenceError(f"{answer.failure} Without strict=True the result carries bounds.")
    return answer.spectrum(order, seed, float(confidence), with_vectors=vectors)


def _checked(op: Any, k: int, which: str) -> Which:
    multiplying.checked_operator(op, "top_eigenvalues", symmetric=True)
    if checked_count(k, "k") > op.shape[0]:
        raise InputError(
            f"k = {k} eigenvalues were asked of a {op.shape[0]} x {op.shape[0]} operator, which "
            f"has {op.shape[0]}. Ask for at most that many."
        )
    return checked_which(which)


def _check_share(value: Any, name: str, what: str, example: float) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
        raise InputError(f"{name} is {what} between 0 and 1, such as {example}. Got {value!r}.")


def _side(
    op: LinearOperator, k: int, which: Which, vectors: bool, start: Tensor | None
) -> tuple[LinearOperator, str]:
    """The side to multiply: the dual knows non-zero eigenvalues only."""
    if start is not None and not isinstance(start, Tensor):
        raise InputError(f"start must be a torch tensor. Got a {type(start).__name__}.")
    side, name = smaller_side(op)
    needs_zeros = which == "smallest" or (vectors and k > side.shape[0])
    if name == "dual" and (needs_zeros or (start is not None and len(start) == op.shape[0])):
        side, name = op, "primal"
    if start is not None:
        lengths = f"{op.shape[0]}" + (f" or {side.shape[0]}" if name == "dual" else "")
        if tuple(start.shape) != (side.shape[0],):
            raise InputError(
                f"start must be one vector of length {lengths}. Got the shape {tuple(start.shape)}."
            )
        if not bool(torch.isfinite(start).all()) or not bool(start.any()):
            raise InputError("start must be finite and not zero, to give a direction.")
    return side, name


@dataclass(eq=False)
class Answer:
    """What a search found, in terms of the operator that was asked."""

    op: LinearOperator
    search: Search
    products: Products
    side: str
    k: int
    tol: float

    def __post_init__(self) -> None:
        self._sought = min(self.k, self.products.n)
        self._floor = self.search.space.floor
        self.failure = self._failure()

    def spectrum(self, which: str, seed: int, confidence: float, *, with_vectors: bool) -> Spectrum:
        """The record; a dual side smaller than k is filled up with its exact zeros."""
        search = self.search
        values = self._filled(search.ritz.values, math.nan)
        values = np.maximum(values, 0.0) if self.op.psd else values
        rows, unknown = self._rows() if with_vectors else (None, "")
        doubts = [self.failure, self._doubt(), self._rank(values, which), unknown]
        return Spectrum(
            values=values,
            residuals=self._filled(search.ritz.residuals, math.inf),
            bounds=self._filled(search.bounds, math.inf),
            converged=not self.failure,
            verified=search.verified,
            matvecs=self.products.count,
            dimension=self.op.shape[0],
            which=which,
            tol=float(self.tol),
            confidence=confidence,
            seed=seed,
            side=self.side,
            reason=" ".join(filter(None, doubts)),
            convention=dict(self.op.convention),
            vectors=rows,
        )

    def _filled(self, found: Array, missing: float) -> Array:
        """All k numbers: those found, ``missing`` up to what was sought, zeros beyond the dual."""
        filled = np.zeros(self.k)
        filled[: self._sought] = missing
        usable = found[: self._sought]
        filled[: len(usable)] = usable
        return filled

    def _failure(self) -> str:
        search, tol, count = self.search, self.tol, self.products.count
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
                f"{self.op.dtype} products, about {self._floor:.1e} here. Raise tol, or use "
                "float64."
            )
        return ""

    def _doubt(self) -> str:
        if self.failure or self.search.verified:
            return ""
        return (
            "Not verified: the eigenvalues lie so densely at the last of these values that a "
            "random run met nothing beyond it but could not exclude it."
        )

    def _rank(self, values: Array, which: str) -> str:
        zeros = int(np.sum(np.abs(values) <= self._floor))
        if not zeros or self.failure or which == "smallest":
            return ""
        return (
            f"{zeros} of the {self.k} values are zero to rounding ({self._floor:.1e}): k is "
            f"larger than the rank, {self.k - zeros}."
        )

    def _rows(self) -> tuple[NDArray[np.floating], str]:
        """Unit eigenvectors (k, n) and, where a row could not be had, why it is NaN."""
        search = self.search
        stack = search.space.lift(search.ritz.vectors[:, : self._sought])
        if self.side == "dual":
            stack = self.op.from_dual(stack)  # type: ignore[attr-defined]
        norms = torch.linalg.vector_norm(stack, dim=1, keepdim=True)
        lost = norms[:, 0] <= math.sqrt(self.products.eps) * norms.max().clamp_min(1e-300)
        stack = torch.where(lost[:, None], torch.nan, stack / norms)
        rows = np.full((self.k, stack.shape[1]), np.nan, dtype=stack.cpu().numpy().dtype)
        rows[: len(stack)] = stack.cpu().numpy()
        if not np.isnan(rows).any():
            return rows, ""
        return rows, "Eigenvectors of the value zero are not determined here; their rows are NaN."


def has_kernel(op: LinearOperator, k: int) -> bool:
    """Whether a semi-definite operator must have k zeros: its dual is that much smaller."""
    side, _ = smaller_side(op)
    return op.psd and op.shape[0] - side.shape[0] >= k


def zero_spectrum(op: LinearOperator, k: int, tol: float, seed: int, confidence: float) -> Spectrum:
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
