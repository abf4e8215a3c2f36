"""The Jacobian of the outputs in the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.measure._linearization import Linearization
from normscope.measure.operators.base import require_outputs, summed
from normscope.measure.operators.blocks import RiskOperator
from normscope.measure.risk import Risk, checked_risk
from normscope.subject.functional import ModelFunction
from normscope.subject.process import measurement
from normscope.subject.session import product


def jacobian(risk: Risk, *, layers: str | Sequence[str] | None = None) -> JacobianOperator:
    r"""J = df/dtheta of all outputs of all batches, (outputs, parameters), without any scale.

    Rows are the outputs of batch 1, batch 2, ..., each flattened (samples first); columns are the
    parameters in the order of ``named_parameters()``.

    Args:
        risk: what to measure.
        layers: restrict the columns to layers, names or globs of parameters.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(2, 1, bias=False)
        >>> risk = Risk(model, torch.tensor([[1.0, 2.0]]), loss="mse", statistics="batch")
        >>> jacobian(risk).to_dense()
        tensor([[1., 2.]])
    """
    operator = JacobianOperator(risk, checked_risk(risk, "jacobian").function())
    return operator if layers is None else operator.block(layers)


class JacobianOperator(RiskOperator):
    """J by forward mode, J^T by reverse mode, batch by batch."""

    @measurement
    def __init__(self, risk: Risk, function: ModelFunction) -> None:
        require_outputs(risk, "The Jacobian")
        self._terms = [Linearization(function, piece) for piece in risk.pieces(function)]
        rows = sum(term.size for term in self._terms)
        super().__init__(risk, function, "Jacobian of the outputs, unscaled", rows)

    def block(self, layers: str | Sequence[str]) -> JacobianOperator:
        """The columns of some layers, at the same point."""
        return JacobianOperator(self._risk, self._restricted(layers))

    @product
    def _forward(self, vectors: Tensor) -> Tensor:
        return torch.cat([term.push(vectors) for term in self._terms], dim=1)

    @product
    def _adjoint(self, vectors: Tensor) -> Tensor:
        stacks = vectors.split_with_sizes([term.size for term in self._terms], dim=1)
        products = (term.pull(stack) for term, stack in zip(self._terms, stacks, strict=True))
        total = self._risk.reduced(summed("product with J^T", products, len(self._terms)))
        self.parameters.require_finite(total, "The product with J^T")
        return total
