"""What the networks of the zoo share: layers drawn and numbered as they are made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normscope.annotations import fits, hints
from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.nn.activations import activation_module
from normscope.nn.init import Init, draw_layer, undrawn
from normscope.nn.norm import make_norm, norm_after
from normscope.registry import near_match

EXTRA_NORMS = ("top", "before-last", "output")


@dataclass(frozen=True)
class Design:
    """The choices that every network of the zoo offers.

    Attributes:
        norm: a name in ``NORMS``, or None. ``"batch"`` is torch's own layer.
        norm_layers: numbers of the layers that have it; None is every hidden layer.
        gamma: initial value of the norms' scale.
        norm_options: further options of the norm layers: ``eps``, ``momentum``, ...
        extra_norms: further norms: ``"top"`` (on the last feature map, before pooling),
            ``"before-last"`` (on the input of the last linear layer), ``"output"``.
        activation: a spec's activation name.
        dropout: ratio; 0 is none.
        dropout_at: ``"blocks"`` (behind every residual block, or every hidden layer of a plain
            network), ``"last"`` (before the last linear layer), or layer numbers.
        init: a name in ``INITS`` or an initializer.
        seed: seed for the weights.
    """

    norm: str | None = "batch"
    norm_layers: Sequence[int] | None = None
    gamma: float | None = None
    norm_options: dict[str, Any] = field(default_factory=dict)
    extra_norms: Sequence[str] = ()
    activation: str = "relu"
    dropout: float = 0.0
    dropout_at: str | Sequence[int] = "blocks"
    init: str | Init = "he"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.extra_norms, str):
            object.__setattr__(self, "extra_norms", (self.extra_norms,))
        for name in ("norm_layers", "dropout_at"):
            if isinstance(getattr(self, name), int):
                object.__setattr__(self, name, (getattr(self, name),))
        for name, kind in hints(Design).items():
            if not fits(getattr(self, name), kind):
                raise InputError(
                    f"{name} must be {Design.__annotations__[name]}. Got {getattr(self, name)!r}."
                )
        if self.gamma is not None:
            if not abs(self.gamma) < torch.finfo(torch.float32).max:
                raise InputError(f"gamma must be a finite number. Got {self.gamma:.3g}.")
            options = {**self.norm_options, "gamma": float(self.gamma)}
            object.__setattr__(self, "norm_options", options)
        for name in self.extra_norms:
            if name not in EXTRA_NORMS:
                known = near_match(str(name), [*EXTRA_NORMS])
                raise InputError(f"Unknown place for an extra norm: {name!r}. {known}")
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise InputError(f"dropout is a ratio, from 0 to below 1. Got {self.dropout!r}.")
        if isinstance(self.dropout_at, str) and self.dropout_at not in ("blocks", "last"):
            raise InputError(
                f"Unknown place for dropout: {self.dropout_at!r}. "
                f"{near_match(self.dropout_at, ['blocks', 'last'])} Or pass layer numbers."
            )


class Maker:
    """Makes the layers of one network in forward order; weights are drawn at once."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.number = 0
        self._asked: set[int] = set()  # layers that can have a norm
        self._droppable: set[int] = set()  # layers that can have dropout behind them
        self._places: set[str] = set()  # where an extra norm can stand

    def network(self, parts: list[tuple[str, nn.Module]]) -> nn.Sequential:
        """The finished network; a norm or dropout asked for where none can be is an error."""
        self._check_places()
        missing = sorted(set(self.design.norm_layers or ()) - self._asked)
        if missing and self.design.norm is not None:
            raise InputError(
                f"norm_layers names layer {missing[0]}, which can have no norm in this network. "
                f"Layers that can: {sorted(self._asked)}."
            )
        return nn.Sequential(OrderedDict(parts))

    def _check_places(self) -> None:
        for place in self.design.extra_norms:
            if place not in self._places:
                raise InputError(
                    f"extra_norms names {place!r}, a place that this network does not have. Its "
                    f"places: {', '.join(sorted(self._places))}."
                )
        at = self.design.dropout_at
        missing = [] if isinstance(at, str) else sorted(set(at) - self._droppable)
        if missing and self.design.dropout > 0:
            raise InputError(
                f"dropout_at names layer {missing[0]}, behind which there is no dropout in this "
                f"network. Layers that can have it: {sorted(self._droppable)}."
            )

    def conv(
        self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1,
        padding: int | None = None, bias: bool = False,
    ) -> nn.Conv2d:  # fmt: skip
        """The next numbered layer: a convolution, padded to keep its size at stride 1."""
        self._next(inputs, outputs)
        padding = kernel // 2 if padding is None else padding
        made = undrawn(
            nn.Conv2d, inputs, outputs, kernel, stride=stride, padding=padding, bias=bias
        )
        draw_layer(made, self.design.init, self.design.seed, self.number)
        return made

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        """The next numbered layer: a linear one."""
        self._next(inputs, outputs)
        made = undrawn(nn.Linear, inputs, outputs, bias=bias)
        draw_layer(made, self.design.init, self.design.seed, self.number)
        return made

    def _next(self, inputs: int, outputs: int) -> None:
        self.number += 1
        checked_count(inputs, f"the inputs of layer {self.number}")
        checked_count(outputs, f"the outputs of layer {self.number}")

    def projection(self, inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
        """A 1 x 1 shortcut with its norm; shortcuts have no number."""
        conv = undrawn(nn.Conv2d, inputs, outputs, 1, stride=stride, bias=False)
        draw_layer(conv, self.design.init, self.design.seed, "shortcut", self.number)
        wanted = self.design.norm is not None and self.design.norm_layers is None
        return nn.Sequential(conv, self._norm(conv) if wanted else nn.Identity())

    def norm(self, layer: nn.Module) -> nn.Module:
        """The norm behind the layer made last, or the identity."""
        return self._norm(layer) if self.has_norm(self.number) else nn.Identity()

    def norm_before_next(self, channels: int) -> nn.Module:
        """The norm at the entrance of the next layer (pre-activation networks)."""
        if not self.has_norm(self.number + 1):
            return nn.Identity()
        return self.plain_norm(channels, self.design.norm or "batch")

    def has_norm(self, number: int) -> bool:
        """Whether the design puts a norm at this layer."""
        self._asked.add(number)
        chosen = self.design.norm_layers
        return self.design.norm is not None and (chosen is None or number in chosen)

    def extra(self, place: str, channels: int, *, dims: int) -> list[tuple[str, nn.Module]]:
        """The extra norm of that place as a named module, if the design has it."""
        self._places.add(place)
        if place not in self.design.extra_norms:
            return []
        kind = self.design.norm or "batch"
        kind = "batch" if kind.startswith("weight") else kind
        made = self.plain_norm(channels, kind, dims=dims)
        return [(f"{place.replace('-', '_')}_norm", made)]

    def plain_norm(self, channels: int, kind: str, *, dims: int = 2) -> nn.Module:
        """A norm by itself; ``"batch"`` is torch's own layer, which is faster."""
        if kind == "batch" and self._torch_options() is not None:
            cls = nn.BatchNorm2d if dims == 2 else nn.BatchNorm1d
            return self._with_gamma(cls(channels, **(self._torch_options() or {})))
        if kind.startswith("weight"):
            raise InputError(
                f"Norm {kind!r} belongs behind a layer whose weights it normalizes; this network "
                "has norms before its layers. Choose another norm or network."
            )
        return make_norm(kind, channels, **self.design.norm_options)

    def activation(self) -> nn.Module:
        """A new activation layer."""
        return activation_module(self.design.activation)

    def drop(self, *, block: bool) -> list[tuple[str, nn.Module]]:
        """Dropout behind the layer made last, as a named module, if the design has it."""
        self._droppable.add(self.number)
        at = self.design.dropout_at
        wanted = block if at == "blocks" else not isinstance(at, str) and self.number in at
        if not wanted or self.design.dropout == 0:
            return []
        return [(f"drop{self.number}", nn.Dropout(self.design.dropout))]

    def drop_last(self) -> list[tuple[str, nn.Module]]:
        """Dropout before the last layer, as a named module, if the design has it."""
        if self.design.dropout_at != "last" or self.design.dropout == 0:
            return []
        return [("drop", nn.Dropout(self.design.dropout))]

    def _norm(self, layer: nn.Module) -> nn.Module:
        kind = self.design.norm or "batch"
        if kind == "batch" and self._torch_options() is not None:
            dims = 2 if isinstance(layer, nn.Conv2d) else 1
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
            assert isinstance(channels, int)
            return self.plain_norm(channels, kind, dims=dims)
        return norm_after(layer, kind, **self.design.norm_options)

    def _torch_options(self) -> dict[str, Any] | None:
        """The options as torch's batch norm takes them; None if it does not."""
        options = {k: v for k, v in self.design.norm_options.items() if k != "gamma"}
        if set(options) - {"eps", "momentum", "track_running_stats"} or options.get("eps") == 0:
            return None
        return options

    def _with_gamma(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
        if "gamma" in self.design.norm_options:
            nn.init.constant_(layer.weight, self.design.norm_options["gamma"])
        return layer
