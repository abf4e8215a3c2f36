"""The Frobenius norm, and the trace of the square."""

from __future__ import annotations

import numpy as np
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


def frobenius_norm(
    op: LinearOperator, *, method: str = "auto", num_matvecs: int = 100, seed: int = 0
) -> Estimate:
    """||A||_F of a symmetric operator: the root of :func:`trace_of_square`, s.e. by delta method.

    The root of an unbiased estimate is biased low by about s.e.^2 / (2 ||A||_F).

    Args:
        op: a symmetric operator.
        method: "auto", "hutchinson" or "xtrace".
        num_matvecs: budget of products.
        seed: of the random vectors.

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
        seed: of the random vectors.

    Returns:
        The estimate of tr A^2.
    """
    checked_operator(op, "trace_of_square", symmetric=True)
    name = "xtrace" if method == "auto" else method
    return _SQUARE.ask(op, method=name, num_matvecs=num_matvecs, seed=seed)


def _squared_norms(images: Tensor) -> Array:
    """||A v||^2 of each row."""
    return numbers((images**2).sum(dim=1))


def _hutchinson(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget values of ||A v||^2."""
    sizes = [min(STACK, budget - first) for first in range(0, budget, STACK)]
    values = [_squared_norms(products(draw(size).sign())) for size in sizes]
    return independent(np.concatenate(values))


def _xtrace(products: Products, draw: Draw, budget: int) -> Sample:
    """Of budget / 2 leave-one-out estimates."""
    return leave_one_out(
        Sketch.of(products, draw(budget // 2)), Sketch.squares, Sketch.hidden_square
    )


_METHODS: Registry[Sampler] = Registry("Frobenius norm method")
_METHODS.add("hutchinson", Sampler(_hutchinson, least=2))
_METHODS.add("xtrace", Sampler(_xtrace, least=4))
_SQUARE = Question("tr A^2", _METHODS, lambda _, images: float(_squared_norms(images).sum()))
