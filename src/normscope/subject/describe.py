"""From a real module back to a spec: what the theory covers, and what could not be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.record import Record
from normscope.spec import LayerSpec, NetworkSpec, NormSpec
from normscope.subject.layer_reading import LayerReading, UnreadableError, read_affine, read_norm
from normscope.subject.tracing import Graph, Step, is_norm, traced

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Description(Record):
    """What was read off a module.

    Attributes:
        spec: the network as the theory takes it; None if a part of it cannot be said.
        layers: one row per layer, in forward order, read or not.
        reason: why there is no spec.
        total_parameters: of the module.
    """

    spec: NetworkSpec | None
    layers: tuple[LayerReading, ...]
    reason: str | None
    total_parameters: int

    @property
    def coverage(self) -> float:
        """Share of the module's parameters that belong to layers that were read."""
        read = sum(layer.parameters for layer in self.layers if layer.ok)
        return read / self.total_parameters if self.total_parameters else 0.0

    def to_frame(self) -> pd.DataFrame:
        """One row per layer."""
        import pandas as pd

        rows = []
        for layer in self.layers:
            row = layer.to_dict()
            row.pop("type")
            rows.append({**row, "notes": "; ".join(layer.notes)})
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"{self.coverage:.0%} of {self.total_parameters} parameters read"]
        if self.reason is not None:
            lines.append(f"no spec: {self.reason}")
        lines += [f"{x.name or x.kind}: {x.reason}" for x in self.layers if not x.ok]
        return "\n".join(lines)


def describe(module: nn.Module, example: Any) -> Description:
    """Read a ``NetworkSpec`` off a real module, as far as the theory covers it.

    Widths, convolutions, norms and activations are read from the layers in the order of the
    forward pass (by tracing: nothing is run, nothing is changed), variances are mean squares of
    the weights at hand, gamma is the root mean square of the norm's scale.

    Args:
        module: any network.
        example: an input batch, for its shape.

    Returns:
        The spec or the reason why there is none, and a row per layer either way.

    Example:
        >>> import torch, normscope as ns
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> describe(net, torch.zeros(1, 8)).spec.widths
        (8, 16, 2)
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"describe takes a torch module. Got a {type(module).__name__}.")
    total = sum(p.numel() for p in module.parameters())
    graph = traced(module)
    if graph.failure is not None:
        return Description(None, _unplaced(module), graph.failure, total)
    walk = _Walk()
    walk.follow(graph)
    if walk.reason is not None:
        return Description(None, walk.rows(module), walk.reason, total)
    try:
        spec = _spec(walk, example)
    except (UnreadableError, InputError) as error:
        return Description(None, walk.rows(module), str(error), total)
    return Description(spec, walk.rows(module), None, total)


@dataclass
class _Unit:
    """One affine layer with what follows it."""

    reading: LayerReading
    layer: nn.Module
    norm: NormSpec | None = None
    activation: str | None = None
    branch_scale: float | None = None
    pooled: bool = False


@dataclass
class _Walk:
    """Follows the steps of a graph from the input to the output, unit by unit."""

    units: list[_Unit] = field(default_factory=list)
    unread: list[LayerReading] = field(default_factory=list)
    reason: str | None = None
    _split: Step | None = None
    _seen: set[int] = field(default_factory=set)

    def follow(self, graph: Graph) -> None:
        inputs = graph.of_kind("input")
        if len(inputs) != 1:
            self._fail(None, f"it takes {len(inputs)} inputs; theory has one")
            return
        step = inputs[0]
        while self.reason is None and step.kind != "output":
            following = self._next(step)
            if following is None:
                return
            try:
                self._take(following)
            except UnreadableError as problem:
                self._fail(following, str(problem))
            step = following

    def rows(self, module: nn.Module) -> tuple[LayerReading, ...]:
        """What was read, what was not, and the layers that the walk did not come to."""
        rows = [_completed(unit) for unit in self.units] + self.unread
        reached = {row.name for row in rows} | {
            n for n, m in module.named_modules() if id(m) in self._seen
        }
        return (*rows, *(row for row in _unplaced(module) if row.name not in reached))

    def _next(self, step: Step) -> Step | None:
        users = step.users
        if len(users) == 1:
            return users[0]
        adds = [user for user in users if user.kind == "add"]
        if len(users) == 2 and len(adds) == 1 and self._split is None:
            if not self.units or self.units[-1].norm or self.units[-1].activation:
                self._fail(step, "theory has branches x + beta (W phi(norm(x)) + b) only")
                return None
            self._split = step
            return next(user for user in users if user is not adds[0])
        self._fail(step, f"its result is used {len(users)} times; theory has chains and x + branch")
        return None

    def _take(self, step: Step) -> None:
        if step.module is not None:
            self._check_new(step)
        match step.kind:
            case "affine":
                assert step.module is not None
                reading = read_affine(len(self.units) + 1, step.name, step.module)
                self.units.append(_Unit(reading, step.module))
            case "norm":
                self._take_norm(step)
            case "activation":
                self._last(step).activation = self._one(step, self._last(step).activation)
            case "scale":
                if self._split is None:
                    raise UnreadableError(
                        "a factor outside a residual branch has no place in theory"
                    )
                self._last(step).branch_scale = step.detail
            case "add":
                self._take_sum(step)
            case "pool":
                self._last(step).pooled = True
            case "drop":
                self._note(f"{step.name or 'dropout'} is left out: the theory has no dropout")
            case "identity" | "flatten" | "output":
                pass
            case _:
                what = step.name if step.module is None else type(step.module).__name__
                raise UnreadableError(f"{what} has no counterpart in the theory")

    def _take_norm(self, step: Step) -> None:
        unit, layer = self._last(step), step.module
        assert layer is not None
        if unit.activation is not None:
            raise UnreadableError("it stands behind the activation; theory has it before")
        if unit.norm is not None:
            raise UnreadableError("a second norm behind one layer has no place in theory")
        unit.norm, notes = read_norm(layer)
        size = sum(p.numel() for p in layer.parameters())
        unit.reading = replace(
            unit.reading,
            notes=(*unit.reading.notes, *notes),
            parameters=unit.reading.parameters + size,
        )

    def _take_sum(self, step: Step) -> None:
        if self._split is None or self._split not in step.sources:
            raise UnreadableError("it adds something else than a branch to its own input")
        unit = self._last(step)
        if unit.norm is not None or unit.activation is not None or len(self.units) < 2:
            raise UnreadableError("theory has branches x + beta (W phi(norm(x)) + b) only")
        unit.branch_scale = 1.0 if unit.branch_scale is None else unit.branch_scale
        self._split = None

    def _last(self, step: Step) -> _Unit:
        if not self.units:
            raise UnreadableError(f"{step.name!r} comes before the first affine layer")
        return self.units[-1]

    def _one(self, step: Step, before: str | None) -> str:
        if before is not None:
            raise UnreadableError("a second activation behind one layer has no place in theory")
        return str(step.detail)

    def _check_new(self, step: Step) -> None:
        if id(step.module) in self._seen and step.kind in ("affine", "norm"):
            raise UnreadableError("it is used twice; theory has no shared layers")
        self._seen.add(id(step.module))

    def _note(self, text: str) -> None:
        if self.units:
            unit = self.units[-1]
            unit.reading = replace(unit.reading, notes=(*unit.reading.notes, text))

    def _fail(self, step: Step | None, why: str) -> None:
        name = "the network" if step is None else f"{step.kind} {step.name!r}"
        self.reason = f"{name}: {why}"
        if step is not None:
            size = 0
            if step.module is not None:
                size = sum(p.numel() for p in step.module.parameters())
            self.unread.append(
                LayerReading(0, step.name, step.kind, ok=False, reason=why, parameters=size)
            )


def _completed(unit: _Unit) -> LayerReading:
    return replace(
        unit.reading,
        norm=None if unit.norm is None else unit.norm.kind,
        gamma=None if unit.norm is None else unit.norm.gamma,
        activation=unit.activation,
    )


def _unplaced(module: nn.Module) -> tuple[LayerReading, ...]:
    """Affine and norm layers whose place in the forward pass is not known, with their numbers."""
    rows = []
    for name, layer in module.named_modules():
        if isinstance(layer, AFFINE) or is_norm(layer):
            rows.append(replace(_alone(name, layer), ok=False, reason=_UNREACHED))
    return tuple(rows)


_UNREACHED = "its place in the forward pass was not reached"


def _alone(name: str, layer: nn.Module) -> LayerReading:
    size = sum(p.numel() for p in layer.parameters())
    try:
        if not is_norm(layer):
            return read_affine(0, name, layer)
        norm, notes = read_norm(layer)
        row = LayerReading(0, name, "norm", parameters=size, notes=notes)
        return replace(row, norm=norm.kind, gamma=norm.gamma)
    except UnreadableError as problem:
        kind = "norm" if is_norm(layer) else "affine"
        return LayerReading(0, name, kind, parameters=size, notes=(str(problem),))


def _spec(walk: _Walk, example: Any) -> NetworkSpec:
    if not walk.units:
        raise UnreadableError("the network has no linear or convolutional layer")
    if not isinstance(example, Tensor) or example.ndim < 2:
        what = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example)
        raise UnreadableError(f"the example must be a batch, (samples, ...). Got {what}")
    shape = tuple(example.shape[1:])
    if len(shape) not in (1, 3):
        shape = (math.prod(shape),)
    hidden = [_layer_spec(unit, readout=False) for unit in walk.units[:-1]]
    last = walk.units[-1]
    if last.activation is not None or last.pooled:
        what = last.activation or "pooling"
        raise UnreadableError(f"the network ends with {what}; theory ends with a linear read-out")
    convs = [unit for unit in walk.units if unit.reading.kind == "conv"]
    if any(unit.pooled for unit in walk.units if not convs or unit is not convs[-1]):
        raise UnreadableError("average pooling is only covered behind the last convolution")
    spec = NetworkSpec(
        shape,
        (*hidden, _layer_spec(last, readout=True)),
        last_norm=_last_norm(last),
        head="pool" if convs and convs[-1].pooled else "flatten",
        branch_scale=_branch_scale(walk.units),
    )
    _check_sizes(spec, walk.units)
    return spec


def _layer_spec(unit: _Unit, *, readout: bool) -> LayerSpec:
    reading, layer = unit.reading, unit.layer
    assert reading.outputs is not None
    assert reading.weight_variance is not None
    assert reading.bias_variance is not None
    conv: dict[str, Any] = {}
    if isinstance(layer, nn.Conv2d):
        conv = {
            "kernel": layer.kernel_size[0],
            "stride": layer.stride[0],
            "padding": int(layer.padding[0]),
        }
    return LayerSpec(
        reading.outputs,
        reading.weight_variance,
        reading.bias_variance,
        activation=None if readout else unit.activation or "linear",
        norm=None if readout else unit.norm,
        **conv,
    )


def _last_norm(unit: _Unit) -> str | None:
    if unit.norm is None:
        return None
    parts = set(unit.norm.parts)
    if unit.norm.gamma != 1.0 or any("beta" in n or "gamma" in n for n in unit.reading.notes):
        raise UnreadableError("the norm of the outputs has gamma or beta; theory has 1 and 0 there")
    if unit.norm.kind == "batch" and parts == {"mean"}:
        return "mean"
    if not {"mean", "variance"} <= parts:
        raise UnreadableError(f"the norm of the outputs has parts {unit.norm.parts}")
    return unit.norm.kind


def _branch_scale(units: list[_Unit]) -> float | None:
    scales = [unit.branch_scale for unit in units[1:-1]]
    if all(scale is None for scale in (*scales, units[0].branch_scale, units[-1].branch_scale)):
        return None
    if units[-1].branch_scale is not None or None in scales or len(set(scales)) > 1:
        raise UnreadableError(
            "theory has the same x + beta branch at every layer between the first and the last; "
            f"found beta = {[unit.branch_scale for unit in units]}"
        )
    return scales[0]


def _check_sizes(spec: NetworkSpec, units: list[_Unit]) -> None:
    for number, (unit, fan_in) in enumerate(zip(units, spec.fan_ins, strict=True), start=1):
        if unit.reading.fan_in != fan_in:
            raise UnreadableError(
                f"layer {number} ({unit.reading.name!r}) takes {unit.reading.fan_in} inputs per "
                f"unit, but an example of shape {spec.input_shape} gives it {fan_in}. Pass an "
                "example of the network's own input shape"
            )
