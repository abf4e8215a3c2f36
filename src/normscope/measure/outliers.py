"""The outliers of the Fisher spectrum and the mean gradients that carry them (Karakida et al.)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure.operators.base import LinearOperator, require_outputs
from normscope.measure.operators.fisher import fisher
from normscope.measure.operators.hessian import hessian
from normscope.measure.operators.jacobian import jacobian
from normscope.measure.risk import Risk
from normscope.measure.spectral.lanczos import top_eigenvalues
from normscope.measure.spectral.trace import trace, trace_of_square
from normscope.results.estimate import Estimate
from normscope.results.outliers import LeadingDirections, SpectralBounds
from normscope.subject.batch import float_leaves
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.process import measurement


def mean_gradients(risk: Risk) -> Tensor:
    r"""E_t grad f_k for every output k, (outputs, parameters): one backward pass per output.

    For the squared loss |E_t grad f_k|^2 = nu_k^T F* nu_k is a lower bound of lambda_max, and in
    wide networks that are not centred nearly its value. Batches are averaged.
    """
    require_outputs(risk, "The mean gradient")
    operator = jacobian(risk)
    try:
        rows = operator.shape[0]
        width = _outputs_per_sample(risk, rows)
        samples = rows // width
        picks = torch.eye(width, dtype=operator.dtype, device=operator.device)
        weights = _sample_weights(risk).to(picks)
        stack = (weights[:, None, None] * picks[None]).permute(1, 0, 2).reshape(width, -1)
        assert stack.shape == (width, samples * width)
        return operator.rmatmat(stack.T).T
    finally:
        operator.close()


@measurement
def leading_directions(
    risk: Risk, *, k: int | None = None, tol: float = 1e-3, seed: int = 0
) -> LeadingDirections:
    r"""The leading eigenvalues of F, and how much of each eigenvector is mean gradient.

    .. math:: \mathrm{share}_i = \bigl\|P\,v_i\bigr\|^2,\quad
              P \text{ onto } \mathrm{span}\{E_t\nabla f_1, \dots, E_t\nabla f_C\}

    In wide networks that are not centred the C leading eigenvectors lie in that span (Karakida,
    Theorem 3.1): shares near 1 mean pathological sharpness, which subtracting the mean of the
    outputs removes.

    Args:
        risk: what to measure, with ``loss="mse"``.
        k: how many eigenvalues; as many as outputs if not given.
        tol: relative error of the eigenvalues.
        seed: seed for the solver.
    """
    require_outputs(risk, "leading_directions")
    if not (isinstance(risk.loss, SquaredLoss) and risk.loss.is_half_mean):
        raise InputError(
            "leading_directions compares eigenvectors of J^T J / T with mean gradients of the "
            f"outputs, which needs loss='mse'. Got {risk.loss.description}. Make a second "
            "Risk with loss='mse' (no targets are needed)."
        )
    means = mean_gradients(risk)
    operator = fisher(risk)
    try:
        side = operator if operator.dual is None else operator.dual
        count = min(len(means) if k is None else k, operator.shape[0], side.shape[0])
        spectrum = top_eigenvalues(operator, count, tol=tol, seed=seed, vectors=True)
        products = operator.matmat(means.T).T
    finally:
        operator.close()
    assert spectrum.vectors is not None
    noise = 100 * torch.finfo(means.dtype).eps * float(spectrum.values[0]) ** 0.5
    basis, mix = _span(means.double(), noise)
    vectors = torch.from_numpy(np.asarray(spectrum.vectors)).to(basis)
    shares = (vectors @ basis).square().sum(1)
    norms = means.double().square().sum(1)
    safe = torch.where(norms > 0, norms, 1.0)
    rayleigh = (means.double() * products.double()).sum(1) / safe
    return LeadingDirections(
        values=spectrum.values,
        bounds=spectrum.bounds,
        shares=shares.cpu().numpy(),
        outliers=norms.cpu().numpy(),
        rayleigh=rayleigh.cpu().numpy(),
        span=_largest(mix @ means.double() @ products.double().T @ mix.T),
        converged=spectrum.converged,
        seed=seed,
        convention=spectrum.convention,
    )


def _span(rows: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the span of the rows, directions of rounding left out.

    The basis, (n, rank), and how it is mixed from the rows, (rank, rows).
    """
    left, sizes, right = torch.linalg.svd(rows.T, full_matrices=False)
    kept = sizes > noise
    return left[:, kept], right[kept] / sizes[kept, None]


def _largest(matrix: Tensor) -> float:
    """The largest eigenvalue of a symmetric matrix, 0 if it is empty."""
    return float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]) if len(matrix) else 0.0


def spectral_bounds(
    operator: LinearOperator, *, num_matvecs: int = 60, seed: int = 0
) -> SpectralBounds:
    r"""Bounds of lambda_max of a PSD operator from two traces, by products only.

    .. math:: \mathrm{tr} A^2/\mathrm{tr} A \le \lambda_{\max} \le \sqrt{\mathrm{tr} A^2}

    Args:
        operator: positive semidefinite, e.g. ``fisher(risk)``.
        num_matvecs: products spent, half on each trace.
        seed: seed for the probe vectors.
    """
    if not operator.psd:
        raise InputError(
            "These bounds hold for positive semidefinite operators, e.g. fisher(risk). This one "
            "is not tagged so. Use top_eigenvalues instead."
        )
    if num_matvecs < 12:
        raise InputError(
            f"num_matvecs must be at least 12, half for each of two traces. Got {num_matvecs!r}."
        )
    first = trace(operator, num_matvecs=num_matvecs // 2, seed=seed)
    second = trace_of_square(operator, num_matvecs=num_matvecs // 2, seed=seed)
    bounds = _ratio(second, first), second.sqrt("sqrt(tr A^2)")
    return SpectralBounds(*bounds, first, second, dict(operator.convention))


def residual_term(risk: Risk) -> LinearOperator:
    r"""F - H, the part of the Hessian that the residuals carry.

    .. math:: F - H = \frac1T\sum_t\sum_k (y_k - f_k)\,\nabla\nabla f_k

    for the squared loss; for other losses F is the generalised Gauss-Newton matrix.
    """
    return _Difference(fisher(risk), hessian(risk))


class _Difference(LinearOperator):
    """A - B of two symmetric operators."""

    def __init__(self, first: LinearOperator, second: LinearOperator) -> None:
        self._first, self._second = first, second
        said = {**first.convention, "matrix": "Fisher matrix minus Hessian"}
        super().__init__(first.shape, first.dtype, first.device, symmetric=True, convention=said)

    def _forward(self, vectors: Tensor) -> Tensor:
        return self._first._forward(vectors) - self._second._forward(vectors)


def _outputs_per_sample(risk: Risk, rows: int) -> int:
    samples = sum(batch.size for batch in risk.batches)  # of this process
    if rows % samples:
        raise InputError(
            f"The model gives {rows} numbers for {samples} samples: not the same number for each. "
            "Mean gradients need outputs of shape (samples, outputs)."
        )
    function = risk.function()
    with function.open(), torch.no_grad():
        leaves = float_leaves(function(function.values, function.prepared(risk.batches[0])))
    if len(leaves) != 1:
        raise InputError(
            f"Mean gradients need one output tensor. The model gives {len(leaves)}: wrap it so "
            "that it returns the one to be measured."
        )
    return rows // samples


def _sample_weights(risk: Risk) -> Tensor:
    """Each sample's share of the mean over batches of the mean over samples."""
    sizes = [(batch.size, batch.weight / batch.size) for batch in risk.batches]
    return torch.cat([torch.full((size,), weight) for size, weight in sizes])


def _ratio(top: Estimate, bottom: Estimate) -> Estimate:
    value = top.value / bottom.value if bottom.value > 0 else 0.0
    relative = [(e.standard_error / e.value) ** 2 if e.value else 0.0 for e in (top, bottom)]
    error, exact = abs(value) * sum(relative) ** 0.5, top.exact and bottom.exact
    found = replace(top, value=value, standard_error=error, exact=exact)
    return replace(found, quantity="tr A^2 / tr A", matvecs=top.matvecs + bottom.matvecs)
