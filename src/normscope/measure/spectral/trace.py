"""The trace by random vectors: Hutchinson, Hutch++ and XTrace."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array
from normscope.measure.operators.base import LinearOperator
from normscope.measure.spectral.products import Products, checked_operator, numbers
from normscope.measure.spectral.sampling import (
    STACK,
    Draw,
    Question,
    Sample,
    Sampler,
    independent,
    leave_one_out,
)
from normscope.measure.spectral.sketch import Sketch
from normscope.registry import Registry
from normscope.results.estimate import Estimate
from normscope.subject.process import measurement


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
        seed: of the random vectors; equal seeds give equal bits.

    Returns:
        The estimate. The standard error of XTrace is a jackknife over its vectors.

    Example:
        >>> import torch
        >>> from normscope.measure.operators.base import TensorOperator
        >>> trace(TensorOperator(torch.diag(torch.tensor([1.0, 2.0, 3.0])), psd=True))
        Estimate(tr A = 6 exact)
    """
    checked_operator(op, "trace", symmetric=False)
    name = "xtrace" if method == "auto" else method
    return _TRACE.ask(op, method=name, num_matvecs=num_matvecs, seed=seed)


def _rayleigh_quotients(vectors: Tensor, images: Tensor) -> Array:
    """v^T A v of each row."""
    return numbers((vectors * images).sum(dim=1))


def _diagonal(unit: Tensor, images: Tensor) -> float:
    return float(_rayleigh_quotients(unit, images).sum())


def _hutchinson(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget values of v^T A v; signs have the smallest variance of independent entries."""
    values = []
    for first in range(0, budget, STACK):
        signs = draw(min(STACK, budget - first)).sign()
        values.append(_rayleigh_quotients(signs, products(signs)))
    return independent(np.concatenate(values))


def _hutch_plus_plus(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget / 3 values of tr(Q^T A Q) + g^T (I - Q Q^T) A (I - Q Q^T) g."""
    third = budget // 3
    q, _ = torch.linalg.qr(products(draw(third).sign()).T)
    known = float(_rayleigh_quotients(q.T, products(q.T)).sum())
    tests = draw(budget - 2 * third).sign()
    tests = tests - (tests @ q) @ q.T
    return independent(known + _rayleigh_quotients(tests, products(tests)))


def _xtrace(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget / 2 leave-one-out estimates."""
    return leave_one_out(Sketch.of(products, draw(budget // 2)), Sketch.traces, Sketch.hidden_trace)


_METHODS: Registry[Sampler] = Registry("trace method")
_METHODS.add("hutchinson", Sampler(_hutchinson, least=2))
_METHODS.add("hutch++", Sampler(_hutch_plus_plus, least=6))
_METHODS.add("xtrace", Sampler(_xtrace, least=4))
_TRACE = Question("tr A", _METHODS, _diagonal)
