"""Places in a network where signals are seen, and how they are named and chosen."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.registry import near_match

LINEAR, CONV, NORM, ACTIVATION = "linear", "conv", "norm", "activation"
EMBEDDING, EXPERTS, RECURRENT = "embedding", "experts", "recurrent"
WEIGHTED = (LINEAR, CONV)
LAYERS = (*WEIGHTED, EMBEDDING, EXPERTS, RECURRENT)


def module_of(parameter: str) -> str:
    """The module a parameter belongs to, as a user would say it."""
    owner, _, rest = parameter.partition(".parametrizations.")
    return owner if rest else parameter.rpartition(".")[0]


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves its window; entries per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False

    @property
    def pads(self) -> list[int]:
        """Padding in the order of ``functional.pad``: last axis first, before and behind."""
        pairs = []
        for axis, (size, gap) in enumerate(zip(self.kernel, self.dilation, strict=True)):
            if isinstance(self.padding, str):
                whole = gap * (size - 1) if self.padding == "same" else 0
                pairs.append((whole // 2, whole - whole // 2))
            else:
                pairs.append((self.padding[axis], self.padding[axis]))
        return [pad for pair in reversed(pairs) for pad in pair]


@dataclass(frozen=True)
class Site:
    """One use of one operation.

    Attributes:
        name: name of the module or parameter; ``#2`` marks its second use in a pass.
        kind: one of ``LAYERS``, ``"norm"`` or ``"activation"``.
        operation: such as ``"conv2d"``, ``"BatchNorm2d"``, ``"relu"``.
        layer: how many layers with weights lie on the longest way to it from the input, itself
            included; without a graph of the network, how many have run.
        weight: name of the weight (the largest), None if it is no parameter or there is none.
        axis: axis of the channels: 1 or -1.
        geometry: geometry of a convolution.
        samples: how many there are, where they have no axis of their own.
        positions_first: whether positions come before samples, as inside attention.
        parameters: names of all that it uses.
        bias: name of the one that is added.
        matrix: whether one matrix, or a kernel, is applied to the signal at every position.
        transposed: whether the weight is stored as (in, out).
        side: whether it only makes gates or indices, which are no steps of depth.
    """

    name: str
    kind: str
    operation: str
    layer: int
    weight: str | None = None
    axis: int = -1
    geometry: Geometry | None = None
    samples: int | None = None
    positions_first: bool = False
    parameters: tuple[str, ...] = ()
    bias: str | None = None
    matrix: bool = True
    transposed: bool = False
    side: bool = False

    def rows(self, signal: Tensor) -> Tensor:
        """A signal at this site as (samples, positions, channels)."""
        if signal.ndim == 1:
            return signal[None, None]
        if self.positions_first:
            return signal.reshape(-1, self.samples or 1, signal.shape[-1]).transpose(0, 1)
        if self.axis == 1:
            return signal.flatten(2).transpose(1, 2) if signal.ndim > 2 else signal[:, None]
        return signal.reshape(self.samples or signal.shape[0], -1, signal.shape[-1])


class Selection:
    """Which layers a probe looks at: None for all, names, globs, or layer numbers.

    Args:
        layers: one name, glob or number, or several; a norm or activation goes with its own name,
            or with the number of the weighted layer before it.
    """

    def __init__(self, layers: str | int | Sequence[str | int] | None) -> None:
        alone = isinstance(layers, str | int)
        wanted: list[Any] = [layers] if alone else checked_list(layers or [], "layers")
        for item in wanted:
            if isinstance(item, bool) or not isinstance(item, str | int):
                raise InputError(
                    "layers must be names, globs such as 'layer1.*', or numbers from 1. "
                    f"Got {item!r} instead."
                )
        if layers is not None and not wanted:
            raise InputError("layers is empty: nothing would be measured. Leave it out for all.")
        self._wanted = wanted
        self._seen: dict[Any, bool] = dict.fromkeys(wanted, False)

    def __contains__(self, site: Site) -> bool:
        if not self._wanted:
            return True
        plain = site.name.partition("#")[0]
        found = False
        for item in self._wanted:
            if item == site.layer or (
                isinstance(item, str)
                and (fnmatch.fnmatchcase(plain, item) or fnmatch.fnmatchcase(site.name, item))
            ):
                self._seen[item] = found = True
        return found

    def require_found(self, names: Sequence[str]) -> None:
        """Refuse what matched no site of a pass; ``names`` are those there were."""
        for item, seen in self._seen.items():
            if not seen:
                hint = near_match(str(item), list(names)) if isinstance(item, str) else ""
                raise InputError(
                    f"No layer of this network is reached under {item!r}. {hint} "
                    f"It has {len(names)} measurable places, such as {', '.join(names[:4])}."
                )
