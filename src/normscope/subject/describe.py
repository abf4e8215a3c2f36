"""From a real module back to a spec: what the theory covers, and what could not be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.record import Record
from normscope.spec import LayerSpec, NetworkSpec, NormSpec
from normscope.subject.graph import DROPS, Graph, Step, graph_on, steps_of
from normscope.subject.graph.reading import check_readable
from normscope.subject.layer_reading import (
    LayerReading,
    UnreadableError,
    read_affine,
    read_convolution,
    read_norm,
    read_weights,
)
from normscope.subject.norms import norm_cards

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Description(Record):
    """What was read off a module.

    Attributes:
        spec: the network as the theory takes it; None if a part of it cannot be said.
        layers: one row per layer, in forward order, read or not.
        reason: why there is no spec.
        total_parameters: number of parameters of the module.
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

    Widths, convolutions, norms and activations are read from one forward pass on ``example``, in
    evaluation mode; nothing is changed. Variances are mean squares of the weights, gamma is the
    root mean square of the norm's scale.

    Args:
        module: any network.
        example: a batch of what it takes: a tensor, a tuple of arguments or a dict of keywords.

    Returns:
        The spec or the reason why there is none, and a row per layer either way.

    Example:
        >>> import torch, normscope as ns
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> describe(net, torch.zeros(1, 8)).spec.widths
        (8, 16, 2)
    """
    if not isinstance(module, nn.Module):
        check_readable(module)
    total = sum(p.numel() for p in module.parameters() if not is_lazy(p))
    try:
        walk = _Walk(module, graph_on(module, example))
    except InputError as error:
        return Description(None, _unplaced(module), str(error), total)
    try:
        spec, reason = walk.spec(), None
    except (UnreadableError, InputError) as error:
        spec, reason = None, str(error)
    return Description(spec, walk.rows(), reason, total)


@dataclass
class _Unit:
    """One affine layer with what follows it."""

    reading: LayerReading
    node: int
    conv: dict[str, int]
    norm: NormSpec | None = None
    activation: str | None = None
    branch_scale: float | None = None
    pooled: bool = False


class _Walk:
    """Follows the steps of a graph from the input to the output, unit by unit."""

    def __init__(self, module: nn.Module, graph: Graph) -> None:
        self._module, self._graph = module, graph
        self._units: list[_Unit] = []
        self._unread: list[LayerReading] = []
        self._split: Step | None = None
        self._seen: set[str] = set()

    def spec(self) -> NetworkSpec:
        """The network as the theory takes it, or ``UnreadableError``."""
        inputs = [step for step in steps_of(self._graph) if step.kind == "input"]
        if len(inputs) != 1:
            raise UnreadableError(f"the network: it takes {len(inputs)} inputs; theory has one")
        step = inputs[0]
        while step.kind != "output":
            step = self._next(step)
            try:
                self._take(step)
            except UnreadableError as problem:
                raise self._failed(step, str(problem)) from None
        return _spec(self._units, self._graph.flow.nodes[inputs[0].node].shape)

    def rows(self) -> tuple[LayerReading, ...]:
        """What was read, what was not, and the layers that the walk did not come to."""
        calls = [node.call for node in self._graph.flow.nodes]
        for place, call in enumerate(self._graph.record.calls):
            before = [u for u in self._units if call.key[2] in DROPS and calls[u.node] < place]
            for unit in before[-1:]:
                what = call.key[0] or "dropout"
                _note(unit, f"{what} is left out: the theory has no dropout")
        rows = [_completed(unit) for unit in self._units] + self._unread
        reached = {row.name for row in rows} | self._seen
        rest = {row.name: row for row in _unplaced(self._module)}
        for layer in self._graph.layers:
            size = sum(self._graph.record.sizes[name] for name in layer.parameters)
            row = LayerReading(0, layer.name, layer.kind, False, _UNREACHED, size)
            rest.setdefault(layer.name, row)
        return (*rows, *(row for name, row in rest.items() if name not in reached))

    def _next(self, step: Step) -> Step:
        users = step.users
        if len(users) == 1:
            return users[0]
        adds = [user for user in users if user.kind == "add"]
        if len(users) == 2 and len(adds) == 1 and self._split is None:
            if not self._units or self._units[-1].norm or self._units[-1].activation:
                raise self._failed(step, "theory has branches x + beta (W phi(norm(x)) + b) only")
            self._split = step
            return next(user for user in users if user is not adds[0])
        raise self._failed(
            step, f"its result is used {len(users)} times; theory has chains and x + branch"
        )

    def _take(self, step: Step) -> None:
        match step.kind:
            case "layer":
                self._check_new(step)
                self._units.append(self._read(step))
            case "norm":
                self._check_new(step)
                self._take_norm(step)
            case "activation":
                if (unit := self._last(step)).activation is not None:
                    raise UnreadableError("a second activation behind one layer; theory has one")
                unit.activation = str(step.detail)
            case "scale":
                if self._split is None:
                    raise UnreadableError("theory has no factor outside a residual branch")
                self._last(step).branch_scale = step.detail
            case "add":
                self._take_sum(step)
            case "pool":
                self._last(step).pooled = True
            case "dropout" | "reshape" | "output":
                pass
            case _:
                what = step.name if step.module is None else type(step.module).__name__
                raise UnreadableError(f"{what} has no counterpart in the theory")

    def _read(self, step: Step) -> _Unit:
        layer, flow = step.layer, self._graph.flow
        assert layer is not None
        node, found = flow.nodes[layer.nodes[0]], flow.weighted[layer.nodes[0]]
        if layer.kind not in ("linear", "conv"):
            raise UnreadableError(f"specs have dense layers and 2-d convolutions, not {layer.kind}")
        if not flow.is_stored(found.weight):
            others = ", ".join(sorted(flow.names(found.weight)))
            raise UnreadableError(f"its weights are computed from others ({others})")
        tensors = dict(self._module.named_parameters(remove_duplicate=False))
        biases = [tensors[name] for name in layer.parameters - {layer.weight}]
        conv = layer.kind == "conv"
        reading = read_weights(
            len(self._units) + 1, layer.name, "conv" if conv else "dense", tensors[layer.weight],
            biases[0] if biases else None, outputs=node.shape[1 if conv else -1],
        )  # fmt: skip
        settings = read_convolution(node.scalars, tensors[layer.weight]) if conv else {}
        return _Unit(reading, step.node, settings)

    def _take_norm(self, step: Step) -> None:
        unit, layer = self._last(step), step.module
        if layer is None:
            raise UnreadableError("it is no module, so that its parts cannot be read")
        if unit.activation is not None:
            raise UnreadableError("it stands behind the activation; theory has it before")
        if unit.norm is not None:
            raise UnreadableError("a second norm behind one layer has no place in theory")
        unit.norm, notes = read_norm(layer)
        size = sum(p.numel() for p in layer.parameters())
        unit.reading = replace(unit.reading, parameters=unit.reading.parameters + size)
        _note(unit, *notes)

    def _take_sum(self, step: Step) -> None:
        if self._split is None or self._split not in step.sources:
            raise UnreadableError("it adds something else than a branch to its own input")
        unit = self._last(step)
        if unit.norm is not None or unit.activation is not None or len(self._units) < 2:
            raise UnreadableError("theory has branches x + beta (W phi(norm(x)) + b) only")
        unit.branch_scale = 1.0 if unit.branch_scale is None else unit.branch_scale
        self._split = None

    def _last(self, step: Step) -> _Unit:
        if not self._units:
            raise UnreadableError(f"{step.name!r} comes before the first affine layer")
        return self._units[-1]

    def _check_new(self, step: Step) -> None:
        if step.name in self._seen:
            raise UnreadableError("it is used twice; theory has no shared layers")
        self._seen.add(step.name)

    def _failed(self, step: Step, why: str) -> UnreadableError:
        size = sum(p.numel() for p in step.module.parameters()) if step.module else 0
        self._unread.append(LayerReading(0, step.name, step.kind, False, why, size))
        return UnreadableError(f"{step.kind} {step.name!r}: {why}")


def _note(unit: _Unit, *notes: str) -> None:
    unit.reading = replace(unit.reading, notes=(*unit.reading.notes, *notes))


def _completed(unit: _Unit) -> LayerReading:
    return replace(
        unit.reading,
        norm=None if unit.norm is None else unit.norm.kind,
        gamma=None if unit.norm is None else unit.norm.gamma,
        activation=unit.activation,
    )


def _unplaced(module: nn.Module) -> tuple[LayerReading, ...]:
    """Affine and norm layers whose place in the forward pass is not known, with their numbers."""
    rows, norms = [], norm_cards(module)
    for name, layer in module.named_modules():
        empty = any(is_lazy(p) or p.is_meta for p in layer.parameters())
        if (isinstance(layer, AFFINE) or name in norms) and not empty:
            rows.append(replace(_alone(name, layer), ok=False, reason=_UNREACHED))
    return tuple(rows)


_UNREACHED = "its place in the forward pass was not reached"


def _alone(name: str, layer: nn.Module) -> LayerReading:
    size = sum(p.numel() for p in layer.parameters())
    try:
        if isinstance(layer, AFFINE):
            return read_affine(0, name, layer)
        norm, notes = read_norm(layer)
        row = LayerReading(0, name, "norm", parameters=size, notes=notes)
        return replace(row, norm=norm.kind, gamma=norm.gamma)
    except UnreadableError as problem:
        kind = "affine" if isinstance(layer, AFFINE) else "norm"
        return LayerReading(0, name, kind, parameters=size, notes=(str(problem),))


def _spec(units: list[_Unit], example: tuple[int, ...]) -> NetworkSpec:
    if not units:
        raise UnreadableError("the network has no linear or convolutional layer")
    if len(example) < 2:
        raise UnreadableError(f"the example must be a batch, (samples, ...). Got shape {example}")
    shape = example[1:] if len(example) in (2, 4) else (math.prod(example[1:]),)
    hidden = [_layer_spec(unit, readout=False) for unit in units[:-1]]
    last = units[-1]
    if last.activation is not None or last.pooled:
        what = last.activation or "pooling"
        raise UnreadableError(f"the network ends with {what}; theory ends with a linear read-out")
    convs = [unit for unit in units if unit.reading.kind == "conv"]
    if any(unit.pooled for unit in units if not convs or unit is not convs[-1]):
        raise UnreadableError("average pooling is only covered behind the last convolution")
    spec = NetworkSpec(
        shape,
        (*hidden, _layer_spec(last, readout=True)),
        last_norm=_last_norm(last),
        head="pool" if convs and convs[-1].pooled else "flatten",
        branch_scale=_branch_scale(units),
    )
    _check_sizes(spec, units)
    return spec


def _layer_spec(unit: _Unit, *, readout: bool) -> LayerSpec:
    reading = unit.reading
    assert reading.outputs is not None
    assert reading.weight_variance is not None
    assert reading.bias_variance is not None
    return LayerSpec(
        reading.outputs,
        reading.weight_variance,
        reading.bias_variance,
        activation=None if readout else unit.activation or "linear",
        norm=None if readout else unit.norm,
        **unit.conv,
    )


def _last_norm(unit: _Unit) -> str | None:
    if unit.norm is None:
        return None
    parts = set(unit.norm.parts)
    if unit.norm.gamma != 1.0 or any("beta" in n or "gamma" in n for n in unit.reading.notes):
        raise UnreadableError("the norm of the outputs has gamma or beta; theory has 1 and 0 there")
    if unit.norm.kind == "batch" and parts in ({"mean"}, {"variance"}):
        return unit.norm.parts[0]
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
