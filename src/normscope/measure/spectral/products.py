"""Products with an operator: counted, checked, on the smaller of its two sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.checks import Array
from normscope.errors import InputError, MeasurementError
from normscope.measure.operators.base import LinearOperator
from normscope.seeds import child_seed

Draw = Callable[[int], Tensor]  # so many random row vectors


class Products:
    """Products with one operator on stacks of row vectors, (k, n) -> (k, n).

    Every product is counted and must be finite: a NaN is reported with its number, so that it
    does not surface later as an eigenvalue that failed to converge.
    """

    def __init__(self, operator: LinearOperator, tick: Callable[[], None]) -> None:
        self.operator = operator
        self.n = operator.shape[1]
        self.count = 0
        self._tick = tick

    @property
    def eps(self) -> float:
        """Unit roundoff of the operator's vectors."""
        return float(torch.finfo(self.operator.dtype).eps)

    def __call__(self, stack: Tensor) -> Tensor:
        """Products with the rows of ``stack``, all at once."""
        with torch.no_grad():
            result = self.operator.matmat(stack.T).T
        finite = torch.isfinite(result).all(dim=1)
        if not bool(finite.all()):
            self._refuse(int(torch.nonzero(~finite)[0]))
        self.count += len(stack)
        for _ in stack:
            self._tick()
        return result

    def _refuse(self, row: int) -> None:
        raise MeasurementError(
            f"Product {self.count + row + 1} with {type(self.operator).__name__} "
            f"({self.n} x {self.n}) contains NaN or Inf although its input was finite, so no "
            "eigenvalue or trace can be had. Look for NaN in parameters and data, or for overflow: "
            "try float64."
        )


def numbers(tensor: Tensor) -> Array:
    """A tensor as float64 numpy: the small dense part of every method is done there."""
    array: Array = tensor.detach().to("cpu", torch.float64).numpy()
    return array


def random_source(operator: LinearOperator, seed: int, stream: str) -> Draw:
    """``draw(k)``: k standard normal row vectors from ``seed``, the same on every device."""
    generator, n = torch.Generator().manual_seed(child_seed(seed, stream)), operator.shape[1]

    def draw(k: int) -> Tensor:
        # one by one, so that the vectors do not depend on how many are drawn at a time
        rows = [torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(k)]
        return torch.stack(rows).to(operator.device, operator.dtype)

    return draw


def smaller_side(operator: LinearOperator) -> tuple[LinearOperator, str]:
    """The dual operator if there is a smaller one, otherwise the operator itself; and its name."""
    dual = getattr(operator, "dual", None)
    if dual is not None and dual.shape[0] < operator.shape[0]:
        return dual, "dual"
    return operator, "primal"


def checked_operator(operator: Any, what: str, *, symmetric: bool) -> LinearOperator:
    """``operator`` if ``what`` can be asked of it, otherwise an error that names the way out."""
    if not isinstance(operator, LinearOperator):
        raise InputError(
            f"{what} takes a LinearOperator. Got {type(operator).__name__} instead. Wrap a dense "
            "tensor as TensorOperator(matrix, symmetric=True), or build one with fisher(risk), "
            "hessian(risk)."
        )
    rows, columns = operator.shape
    if rows != columns or rows == 0:
        raise InputError(
            f"{what} needs a square operator. {type(operator).__name__} is {rows} x {columns}. "
            "For a Jacobian J ask the Fisher matrix J^T J, or its Gram matrix J J^T."
        )
    if symmetric and not operator.symmetric:
        raise InputError(
            f"{what} needs a symmetric operator, because Lanczos reads A v as v^T A too. "
            f"{type(operator).__name__} ({rows} x {columns}) is tagged symmetric=False. If the "
            "matrix is symmetric, build it with symmetric=True; otherwise use A^T A (singular "
            "values) or (A + A^T) / 2."
        )
    return operator
