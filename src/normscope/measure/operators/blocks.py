"""Restriction of operators to layers, and sums over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from normscope.errors import InputError
from normscope.measure.risk import Risk
from normscope.subject.parameters import ParameterSet, select_parameters

Op = TypeVar("Op", bound="Blocked")


class Blocked(Protocol):
    """An operator over parameters that can be restricted to some of them."""

    parameters: ParameterSet

    def block(self: Op, layers: str | Sequence[str]) -> Op:
        """The same operator over fewer parameters."""


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
    groups: dict[str, list[str]] = {}
    for name in operator.parameters.names:
        layer = name.partition(".parametrizations.")[0].rpartition(".")[0]
        if ".parametrizations." in name:
            layer = name.partition(".parametrizations.")[0]
        groups.setdefault(layer, []).append(name)
    return {layer: operator.block(names) for layer, names in groups.items()}
