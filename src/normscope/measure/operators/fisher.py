"""The Fisher matrix in its three kinds, and its dual (Gram) side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure._linearization import Linearization
from normscope.measure.operators.base import LinearOperator, require_outputs, summed
from normscope.measure.operators.blocks import RiskOperator
from normscope.measure.risk import Risk, checked_risk
from normscope.registry import Registry
from normscope.seeds import checked_seed, numpy_generator
from normscope.subject.functional import ModelFunction
from normscope.subject.losses import flat
from normscope.subject.memory import Piece
from normscope.subject.process import measurement
from normscope.subject.roots import OutputRoot
from normscope.subject.session import product


def fisher(
    risk: Risk, *, kind: str = "true", seed: int = 0, layers: str | Sequence[str] | None = None
) -> FisherOperator:
    r"""The Fisher matrix of the risk, (parameters, parameters), symmetric, positive semidefinite.

    .. math:: F = \frac1B\sum_b J_b^\top S_b S_b^\top J_b

    with J_b the Jacobian of the outputs of batch b (samples coupled where batch norm couples them)
    and S S^T depending on ``kind``:

    - ``"true"``: the exact expectation over the model's own labels. For ``"mse"`` this is
      J^T J / T, for ``"cross_entropy"`` the Gauss-Newton matrix with diag(p) - p p^T; for other
      losses the generalised Gauss-Newton matrix with the loss's Hessian in the outputs.
    - ``"sampled"``: one label per sample drawn from the model; its mean over seeds is the true one.
    - ``"empirical"``: second moment of the per-sample gradients with the data's own labels. With
      batch statistics the gradient of one sample's loss keeps the coupling. Under cross-entropy
      (``NLLLoss``, ``BCEWithLogitsLoss``), whatever its options, a sample is one label that
      counts: every position of a sequence or image, every yes-or-no output. With labels drawn
      from the model its mean is then the true one. Under any other loss a sample is one row of
      the outputs, and its own loss is what the batch's loss is the mean (or the sum) of.

    Args:
        risk: what to measure.
        kind: ``"true"``, ``"sampled"`` or ``"empirical"``.
        seed: for the labels of ``"sampled"``.
        layers: restrict to layers, names or globs of parameters: a diagonal block.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(2, 1, bias=False)
        >>> risk = Risk(model, torch.eye(2), loss="mse", statistics="batch")
        >>> fisher(risk).to_dense()
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    function = checked_risk(risk, "fisher").function()
    operator = FisherOperator(risk, function, kind=kind, seed=seed)
    return operator if layers is None else operator.block(layers)


@dataclass(frozen=True)
class _Term:
    """One piece of the sum: weight J^T S S^T J, or with a product in place of S S^T."""

    jacobian: Linearization
    weight: float
    root: OutputRoot | None
    curvature: Callable[[Tensor], Tensor]

    @property
    def is_curved(self) -> bool:
        """Whether the loss has a second derivative in these outputs, along one fixed vector."""
        outputs = flat(self.jacobian.outputs)
        index = torch.arange(outputs.numel(), device=outputs.device, dtype=outputs.dtype)
        return self.root is not None or bool(self.curvature(torch.cos(1 + index)[None]).any())

    def product(self, vectors: Tensor) -> Tensor:
        pushed = self.jacobian.push(vectors)
        return self.jacobian.pull(self.weight * self.curvature(pushed))

    def close(self) -> None:
        self.jacobian.close()


class FisherOperator(RiskOperator):
    """J^T S S^T J summed over batches; ``dual`` is the other side with the same spectrum."""

    @measurement
    def __init__(self, risk: Risk, function: ModelFunction, *, kind: str, seed: int) -> None:
        require_outputs(risk, "The Fisher matrix")
        self._kind, self._seed = kind, checked_seed(seed)
        make = _KINDS[kind]
        rank = 0 if risk.sharing is None else risk.sharing.rank
        generator = numpy_generator(self._seed, "labels of the sampled Fisher matrix", rank)
        self._terms = [
            _term(risk, function, piece, make, generator) for piece in risk.pieces(function)
        ]
        _require_curvature(risk, self._terms)
        psd, said = risk.loss.convex or self._factored, _description(risk, kind, self._seed)
        super().__init__(risk, function, said, symmetric=True, psd=psd)

    @property
    def _factored(self) -> bool:
        return all(term.root is not None for term in self._terms)

    @property
    def dual(self) -> FisherDual | None:
        """S^T J J^T S, the same non-zero spectrum.

        None where S is unknown, and where no process holds all the rows.
        """
        whole = self._factored and self._risk.sharing is None
        return FisherDual(self, self._terms) if whole else None

    def from_dual(self, vectors: Tensor) -> Tensor:
        """J^T S u: from a stack of dual vectors to the parameters, not normalized."""
        dual = self.dual
        if dual is None:
            raise InputError("This Fisher matrix has no dual side: its loss gives no square root.")
        return dual.to_parameters(vectors)

    def block(self, layers: str | Sequence[str]) -> FisherOperator:
        """The diagonal block of some layers, at the same point and for the same labels."""
        inner = self._restricted(layers)
        return FisherOperator(self._risk, inner, kind=self._kind, seed=self._seed)

    @product
    def _forward(self, vectors: Tensor) -> Tensor:
        products = (term.product(vectors) for term in self._terms)
        total = self._risk.reduced(summed("Fisher product", products, len(self._terms)))
        self.parameters.require_finite(total, "The Fisher product")
        return total


class FisherDual(LinearOperator):
    """S^T J J^T S on vectors of one number per output (or per sample), all batches stacked."""

    def __init__(self, primal: FisherOperator, terms: list[_Term]) -> None:
        self._terms = terms
        self._parameters = primal.parameters
        self._roots = [term.root for term in terms if term.root is not None]
        size = sum(root.size for root in self._roots)
        said = {**primal.convention, "side": "dual (Gram) matrix"}
        super().__init__((size, size), primal.dtype, primal.device, psd=True, convention=said)

    @product
    def to_parameters(self, vectors: Tensor) -> Tensor:
        """J^T S u, (k, dual) -> (k, parameters)."""
        parts = zip(self._terms, self._roots, self._split(vectors), strict=True)
        products = (
            term.jacobian.pull(term.weight**0.5 * root.spread(part)) for term, root, part in parts
        )
        total = summed("dual product", products, len(self._terms))
        self._parameters.require_finite(total, "The product J^T S u")
        return total

    @product
    def _forward(self, vectors: Tensor) -> Tensor:
        inner = self.to_parameters(vectors)
        outer = [
            term.weight**0.5 * root.gather(term.jacobian.push(inner))
            for term, root in zip(self._terms, self._roots, strict=True)
        ]
        return torch.cat(outer, dim=1)

    def _split(self, vectors: Tensor) -> Sequence[Tensor]:
        return vectors.split_with_sizes([root.size for root in self._roots], dim=1)


RootMaker = Callable[[Risk, Any, Any, np.random.Generator], OutputRoot | None]


def _term(
    risk: Risk,
    function: ModelFunction,
    piece: Piece,
    make: RootMaker,
    generator: np.random.Generator,
) -> _Term:
    jacobian, weight = Linearization(function, piece), piece.batch.weight
    outputs, targets = jacobian.outputs, function.targets(piece.batch)
    risk.loss.check(outputs, targets)
    root = make(risk, outputs, targets, generator)
    if root is None:
        _require_targets(targets, "this loss")
        curvature = partial(risk.loss.curvature, outputs, targets)
        return _Term(jacobian, weight, None, curvature)
    return _Term(jacobian, weight, root, lambda pushed: root.spread(root.gather(pushed)))


def _true(
    risk: Risk, outputs: Any, targets: Any, generator: np.random.Generator
) -> OutputRoot | None:
    return risk.loss.root(outputs)


def _sampled(risk: Risk, outputs: Any, targets: Any, generator: np.random.Generator) -> OutputRoot:
    return risk.loss.sampled_root(outputs, generator)


def _empirical(
    risk: Risk, outputs: Any, targets: Any, generator: np.random.Generator
) -> OutputRoot:
    _require_targets(targets, "kind='empirical'")
    return risk.loss.empirical_root(outputs, targets)


def _require_targets(targets: Any, what: str) -> None:
    if targets is None:
        raise InputError(
            f"The Fisher matrix of {what} needs targets, and the risk has none. Pass targets, or "
            "use kind='true' with loss='mse' or 'cross_entropy'."
        )


def _require_curvature(risk: Risk, terms: list[_Term]) -> None:
    """Refuse a loss that is linear in all outputs, such as NLLLoss with weights, or L1Loss."""
    if risk.sharing is None and not any(term.is_curved for term in terms):
        raise InputError(
            f"The loss {risk.loss.description} is linear in the outputs here, so its generalised "
            "Gauss-Newton matrix is zero, and no distribution of labels is known of it. Use "
            "kind='empirical', or give the model's logits to loss='cross_entropy' or another loss "
            "that is curved."
        )


_KINDS: Registry[RootMaker] = Registry(
    "kind of Fisher matrix", {"true": _true, "sampled": _sampled, "empirical": _empirical}
)


def _description(risk: Risk, kind: str, seed: int) -> str:
    if kind == "true":
        gauss = "" if not risk.loss.custom else " (generalised Gauss-Newton)"
        return f"true Fisher matrix{gauss}"
    if kind == "sampled":
        return f"sampled Fisher matrix, one label per sample, seed {seed}"
    return "empirical Fisher matrix: second moment of per-sample gradients"
