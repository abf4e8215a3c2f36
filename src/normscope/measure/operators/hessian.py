"""The Hessian of the risk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.errors import MeasurementError
from normscope.measure.operators.base import Groups, summed
from normscope.measure.operators.blocks import RiskOperator
from normscope.measure.risk import Risk, checked_risk
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.memory import Piece
from normscope.subject.process import measurement
from normscope.subject.session import product, recomputed

ASYMMETRY = 1e-3  # relative; rounding in float32 stays far below


def hessian(risk: Risk, *, layers: str | Sequence[str] | None = None) -> HessianOperator:
    r"""The matrix of second derivatives of the risk, symmetric and in general indefinite.

    .. math:: H = \frac1B\sum_b \nabla^2_\theta\, \ell(f_\theta(x_b), y_b)

    Computed by differentiating the gradient backwards once more: of the compositions that torch
    offers this one is right through every normalization layer.

    Args:
        risk: what to measure; it needs targets.
        layers: restrict to layers, names or globs of parameters: a diagonal block.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(2, 1, bias=False)
        >>> risk = Risk(model, torch.eye(2), torch.ones(2, 1), loss="mse", statistics="batch")
        >>> hessian(risk).to_dense()
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    operator = HessianOperator(risk, checked_risk(risk, "hessian").function())
    return operator if layers is None else operator.block(layers)


class HessianOperator(RiskOperator):
    """Products by double backward, through a saved graph where the memory budget allows it."""

    @measurement
    def __init__(self, risk: Risk, function: ModelFunction) -> None:
        self._terms = [_Term(function, p) for p in risk.pieces(function, second_order=True)]
        self._pair: tuple[Tensor, ...] | None = ()
        super().__init__(risk, function, "Hessian of the loss", symmetric=True)

    def block(self, layers: str | Sequence[str]) -> HessianOperator:
        """The diagonal block of some layers, at the same point."""
        return HessianOperator(self._risk, self._restricted(layers))

    @product
    def _forward(self, vectors: Tensor) -> Tensor:
        products = (term.product(vectors) for term in self._terms)
        total = self._risk.reduced(summed("Hessian product", products, len(self._terms)))
        self.parameters.require_finite(total, "The Hessian product")
        self._check_symmetry(vectors[-1], total[-1])
        return total

    def _check_symmetry(self, vector: Tensor, product: Tensor) -> None:
        """<a, H b> = <b, H a> for the first two different vectors: free, and torch can be wrong."""
        if self._pair is None:
            return
        if len(self._pair) == 0:
            self._pair = (vector.clone(), product.clone())
            return
        other, image = self._pair
        gap = float((vector @ image - other @ product).abs())
        scale = float(vector.norm() * image.norm() + other.norm() * product.norm())
        if gap > ASYMMETRY * scale:
            raise MeasurementError(
                f"The Hessian is not symmetric (<a, Hb> and <b, Ha> differ by {gap / scale:.1e} of "
                "their size), so an operation in this model has a wrong second derivative: a "
                "custom autograd.Function, or a fused kernel. Replace it by elementary "
                "operations, or measure the Fisher matrix, which needs first derivatives only."
            )
        if not torch.equal(vector, other):
            self._pair = None


class _Term:
    """The Hessian of the loss of one piece, times its weight."""

    def __init__(self, function: ModelFunction, piece: Piece) -> None:
        self._function, self._piece = function, piece
        self._groups = Groups(torch.inf if piece.checkpointed else 2 * piece.num_bytes)
        self._graph: tuple[list[Tensor], list[Tensor | None]] | None = None
        if piece.keep:
            with function.open():
                self._graph = self._gradient_graph()

    def product(self, vectors: Tensor) -> Tensor:
        if self._graph is not None:
            return self._through(self._graph, vectors)
        with self._function.open(blocks=recomputed if self._piece.checkpointed else None):
            return self._through(self._gradient_graph(), vectors)

    def close(self) -> None:
        self._graph = None

    def _gradient_graph(self) -> tuple[list[Tensor], list[Tensor | None]]:
        function, batch = self._function, self._piece.batch
        leaves, outputs = function.with_graph(batch)
        with torch.enable_grad():
            loss = batch.weight * function.loss(outputs, batch)
        function.check_finite(loss, batch)
        grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        return leaves, list(grads)

    def _through(self, graph: tuple[list[Tensor], list[Tensor | None]], vectors: Tensor) -> Tensor:
        leaves, grads = graph
        parameters = self._function.parameters
        found = [(i, g) for i, g in enumerate(grads) if g is not None and g.requires_grad]
        if not found:  # the loss is linear in these parameters
            return torch.zeros_like(vectors)

        def one(vector: Tensor) -> Tensor:
            safe_point()
            pieces = parameters.split(vector)
            with torch.enable_grad():  # a scalar, as in Linearization: no import of grad checks
                along = torch.stack([(g * pieces[i]).sum() for i, g in found]).sum()
            second = torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True)
            return parameters.join(second, like=vector)

        def group(stack: Tensor) -> Tensor:
            safe_point()
            pieces = parameters.split_stacks(stack)
            heads, along = [g for _, g in found], [pieces[i] for i, _ in found]
            second = torch.autograd.grad(
                heads, leaves, along, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
            return parameters.join_stacks(second, like=stack)

        return self._groups.apply(group, one, vectors)
