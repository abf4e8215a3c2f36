"""Operators over the parameters of a risk, and their restriction to layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from normscope.errors import InputError
from normscope.measure.operators.base import LinearOperator
from normscope.measure.probes.sites import module_of
from normscope.measure.risk import Risk
from normscope.messages import kind_of
from normscope.subject.functional import ModelFunction
from normscope.subject.parameters import ParameterSet, select_parameters

Op = TypeVar("Op", bound="RiskOperator")


class RiskOperator(LinearOperator):
    """An operator whose columns are the parameters of a risk, a sum or stack over its batches.

    Attributes:
        parameters: those of the columns.
    """

    _terms: list[Any]  # one per piece of the batches

    def __init__(
        self, risk: Risk, function: ModelFunction, what: str, rows: int | None = None, **tags: bool
    ) -> None:
        self._risk, self._function = risk, function
        self.parameters = wanted = function.parameters
        said = {"matrix": what, **risk.convention, "parameters": wanted.description}
        shape = (wanted.total if rows is None else rows, wanted.total)
        super().__init__(shape, wanted.dtype, function.device, convention=said, **tags)

    @abstractmethod
    def block(self: Op, layers: str | Sequence[str]) -> Op:
        """The columns, or the diagonal block, of some layers, at the same point."""

    def _restricted(self, layers: str | Sequence[str]) -> ModelFunction:
        return self._function.restricted(sub_parameters(self._risk, self.parameters, layers))

    def close(self) -> None:
        """Release the saved passes."""
        for term in self._terms:
            term.close()


def sub_parameters(
    risk: Risk, parameters: ParameterSet, layers: str | Sequence[str]
) -> ParameterSet:
    """The members of ``parameters`` that ``layers`` (names, globs, layers, kinds) selects."""
    wanted = select_parameters(risk.model, layers)
    names = [name for name in parameters.names if name in wanted.names]
    if not names:
        raise InputError(
            f"layers={layers!r} selects parameters that are not in the measured set "
            f"({parameters.description}). Choose layers within it, or measure more parameters."
        )
    return parameters.subset(names, wanted.description)


def layer_blocks(operator: Op) -> dict[str, Op]:
    """One diagonal block per layer that owns parameters, by layer name, in forward order."""
    if not isinstance(operator, RiskOperator):
        raise InputError(
            f"layer_blocks takes fisher(risk) or hessian(risk). Got {kind_of(operator)}."
        )
    groups: dict[str, list[str]] = {}
    for name in operator.parameters.names:
        groups.setdefault(module_of(name), []).append(name)
    return {layer: operator.block(names) for layer, names in groups.items()}
