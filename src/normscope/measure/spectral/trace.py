"""Traces of A and A^2 by random vectors, Hutchinson, Hutch++ and XTrace; the Frobenius norm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array
from normscope.measure.operators.base import LinearOperator
from normscope.measure.spectral import sampling
from normscope.measure.spectral.products import Draw, Products, checked_operator, numbers
from normscope.measure.spectral.sampling import STACK, Question, Sample, Sampler
from normscope.measure.spectral.sketch import Sketch
from normscope.registry import Registry
from normscope.results.estimate import Estimate
from normscope.subject.process import measurement

Rows = Callable[[Tensor, Tensor], Array]  # vectors and their images -> a number of each


@measurement
def trace(
    op: LinearOperator, *, method: str = "auto", num_matvecs: int = 100, seed: int = 0
) -> Estimate:
    r"""The trace of a square operator, with a standard error.

    ``"hutchinson"``: the mean of v^T A v over n_v random sign vectors; the standard error falls
    as 1 / sqrt(n_v) and is proportional to the off-diagonal Frobenius norm (Hutchinson 1989).
    ``"hutch++"``: a third of the products finds the range of A, a third takes its trace exactly
    and the rest is estimated; 1 / n_v for positive semi-definite A (Meyer, Musco, Musco, Woodruff
    2021). ``"xtrace"``: every vector serves both purposes by leaving it out once; falls as fast as
    the spectrum decays (Epperly, Tropp, Webber 2024). ``"auto"`` is XTrace. All are unbiased. If
    the budget covers the dimension (of the smaller side), or the sketch captures the whole range,
    the trace is exact.

    Args:
        op: a square operator; symmetry is not needed.
        method: "auto", "hutchinson", "hutch++" or "xtrace".
        num_matvecs: budget of products, at least 2 (6 for Hutch++, 4 for XTrace).
        seed: seed for the random vectors; equal seeds give equal bits.

    Returns:
        The estimate. The standard error of XTrace is a jackknife over its vectors, which is on the
        safe side: 2 to 5 times the true scatter on the spectra tried. Those of the other methods
        are of the size of the scatter.

    Example:
        >>> import torch
        >>> from normscope.measure.operators.base import TensorOperator
        >>> trace(TensorOperator(torch.diag(torch.tensor([1.0, 2.0, 3.0])), psd=True))
        Estimate(tr A = 6 exact)
    """
    checked_operator(op, "trace", symmetric=False)
    name = "xtrace" if isinstance(method, str) and method == "auto" else method
    return _TRACE.ask(op, method=name, num_matvecs=num_matvecs, seed=seed)


def frobenius_norm(
    op: LinearOperator, *, method: str = "auto", num_matvecs: int = 100, seed: int = 0
) -> Estimate:
    """||A||_F of a symmetric operator: the root of :func:`trace_of_square`, s.e. by delta method.

    The root of an unbiased estimate is biased low by about s.e.^2 / (2 ||A||_F).

    Args:
        op: a symmetric operator.
        method: "auto", "hutchinson" or "xtrace".
        num_matvecs: budget of products.
        seed: seed for the random vectors.

    Returns:
        The norm with its standard error.

    Example:
        >>> import torch
        >>> from normscope.measure.operators.base import TensorOperator
        >>> frobenius_norm(TensorOperator(torch.diag(torch.tensor([3.0, 4.0])), psd=True))
        Estimate(||A||_F = 5 exact)
    """
    square = trace_of_square(op, method=method, num_matvecs=num_matvecs, seed=seed)
    return square.sqrt("||A||_F")


def trace_of_square(
    op: LinearOperator, *, method: str = "auto", num_matvecs: int = 100, seed: int = 0
) -> Estimate:
    r"""The trace of A^2 = ||A||_F^2 of a symmetric operator, with a standard error.

    ``"hutchinson"``: the mean of ||A v||^2, one product each. ``"xtrace"``: from the sketch of
    XTrace, the part inside it exactly and the rest with the vector left out,

    .. math:: \|A\|_F^2 = \|PAP\|^2 + 2\|(I-P)AP\|^2 + c\,\|(I-P)A(I-P)\omega\|^2,

    Both are unbiased; the latter is better by far if few eigenvalues carry most of the norm, and
    is what ``"auto"`` takes.

    Args:
        op: a symmetric operator.
        method: "auto", "hutchinson" or "xtrace".
        num_matvecs: budget of products; exact if it covers the dimension.
        seed: seed for the random vectors.

    Returns:
        The estimate of tr A^2.
    """
    checked_operator(op, "trace_of_square", symmetric=True)
    name = "xtrace" if method == "auto" else method
    return _SQUARE.ask(op, method=name, num_matvecs=num_matvecs, seed=seed)


def _rayleigh_quotients(vectors: Tensor, images: Tensor) -> Array:
    """v^T A v of each row."""
    return numbers((vectors * images).sum(dim=1))


def _squared_norms(vectors: Tensor, images: Tensor) -> Array:
    """||A v||^2 of each row."""
    return numbers((images**2).sum(dim=1))


def _hutchinson(of: Rows) -> Sampler:
    """Of budget values of ``of``; signs have the smallest variance of independent entries."""

    def sample(products: Products, draw: Draw, budget: int) -> Sample:
        sizes = [min(STACK, budget - first) for first in range(0, budget, STACK)]
        values = [of(signs, products(signs)) for signs in map(Tensor.sign, map(draw, sizes))]
        return sampling.independent(np.concatenate(values))

    return Sampler(sample, least=2)


def _hutch_plus_plus(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget / 3 values of tr(Q^T A Q) + g^T (I - Q Q^T) A (I - Q Q^T) g."""
    third = budget // 3
    q, _ = torch.linalg.qr(products(draw(third).sign()).T)
    known = float(_rayleigh_quotients(q.T, products(q.T)).sum())
    tests = draw(budget - 2 * third).sign()
    tests = tests - (tests @ q) @ q.T
    return sampling.independent(known + _rayleigh_quotients(tests, products(tests)))


def _xtrace(estimates: Callable[[Sketch], Array], hidden: Callable[[Sketch], float]) -> Sampler:
    """Of budget / 2 leave-one-out estimates."""

    def sample(products: Products, draw: Draw, budget: int) -> Sample:
        return sampling.leave_one_out(Sketch.of(products, draw(budget // 2)), estimates, hidden)

    return Sampler(sample, least=4)


_TRACES = {
    "hutchinson": _hutchinson(_rayleigh_quotients),
    "hutch++": Sampler(_hutch_plus_plus, least=6),
    "xtrace": _xtrace(Sketch.traces, Sketch.hidden_trace),
}
_SQUARES = {
    "hutchinson": _hutchinson(_squared_norms),
    "xtrace": _xtrace(Sketch.squares, Sketch.hidden_square),
}
_TRACE = Question("tr A", Registry("trace method", _TRACES), _rayleigh_quotients)
_SQUARE = Question("tr A^2", Registry("Frobenius norm method", _SQUARES), _squared_norms)
