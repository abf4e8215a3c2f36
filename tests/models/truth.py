"""What is true of a model, and where a graph of it says otherwise."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

NOTHING = "^$"


@dataclass
class Truth:
    """Known from reading the model; None is not checked.

    Layers go by the name of their module, or of their weight where no module owns it alone.
    """

    head: str | tuple[str, ...]  # last layer; several that are equally deep
    depth: int | None  # of the last layer
    norm: str | None = None  # that the input of the last layer comes from; "*" is any
    norms: int = 0
    named: str = ".*"  # pattern of the names of all norms
    norm_kinds: set[str] | None = None
    direct: str = NOTHING  # pattern of the layers whose input comes straight from a norm
    layers: int | None = None
    depths: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    side: set[str] = field(default_factory=set)
    heads: set[str] | None = None
    attention: int = 0
    residuals: tuple[int, int] | None = (0, 0)  # identity, projection
    unused: set[str] = field(default_factory=set)
    other: str | None = NOTHING  # pattern of parameters that are in neither layers nor norms


@dataclass
class Example:
    model: nn.Module
    inputs: tuple
    truth: Truth
    keywords: dict = field(default_factory=dict)

    def call(self):
        return self.model(*self.inputs, **self.keywords)


Maker = Callable[[], Example]


def _stem(weight):
    return weight.removesuffix(".weight")


def layer_of(graph, key):
    """The layer of this name; else the one with this weight that is no embedding."""
    named = [layer for layer in graph.layers if layer.name == key]
    if named:
        return named[0]
    by_weight = [layer for layer in graph.layers if key in (layer.weight, _stem(layer.weight))]
    return max(by_weight, key=lambda layer: layer.kind != "embedding", default=None)


def mismatches(graph, model, truth):
    """One sentence for each thing that the graph says otherwise."""
    found = dict(_told(graph, truth))
    wrong = [f"{k}: expected {a}, came {b}" for k, (a, b) in found.items() if a != b]
    for attribute, expected in (
        ("depth", truth.depths),
        ("state", truth.states),
        ("kind", truth.kinds),
        ("uses", truth.uses),
    ):
        for name, value in expected.items():
            layer = layer_of(graph, name)
            came = "no such layer" if layer is None else getattr(layer, attribute)
            if came != value:
                wrong.append(f"{attribute} of {name}: expected {value}, came {came}")
    return wrong + _inconsistent(graph, model)


def _told(graph, truth):
    """(what, (expected, came)) of all that a truth knows."""
    heads = (truth.head,) if isinstance(truth.head, str) else truth.head
    yield "last", (True, graph.last.name in heads or graph.last.name)
    if truth.depth is not None:
        yield "depth of last", (truth.depth, graph.last.depth)
    came = "*" if truth.norm == "*" and graph.last_norm else graph.last_norm
    yield "last_norm", (truth.norm, came)
    yield "norms", (truth.norms, len(graph.norms))
    strange = [norm.name for norm in graph.norms if not re.search(truth.named, norm.name)]
    yield "names of norms", ([], strange)
    if truth.norm_kinds is not None:
        yield "kinds of norms", (truth.norm_kinds, {norm.kind for norm in graph.norms})
    yield "wrong direct inputs", ([], _wrong_inputs(graph, truth.direct))
    if truth.layers is not None:
        yield "layers", (truth.layers, len(graph.layers))
    yield "side", (truth.side, {layer.name for layer in graph.layers if layer.side})
    if truth.heads is not None:
        yield "heads", (truth.heads, {layer.name for layer in graph.heads})
    yield "attention", (truth.attention, len(graph.attention))
    if truth.residuals is not None:
        count = Counter(kind for kind, _ in graph.residuals)
        yield "residuals", (truth.residuals, (count["identity"], count["projection"]))
    yield "unused", (truth.unused, set(graph.unused))
    if truth.other is not None:
        yield "other", ([], [name for name in graph.other if not re.search(truth.other, name)])


def _wrong_inputs(graph, pattern):
    wrong = []
    for layer in graph.layers:
        if layer.kind == "embedding":
            continue
        named = (layer.name, layer.weight, _stem(layer.weight))
        expected = any(re.search(pattern, name) for name in named)
        if (layer.state == "norm") != expected:
            wrong.append((layer.name, layer.state, layer.norm))
    return wrong


def _inconsistent(graph, model):
    """What cannot be, whatever the model."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(sizes.values())
    wrong = []
    if set(graph.coverage) != {"layers", "norms", "other", "unused"}:
        wrong.append(f"coverage has the keys {sorted(graph.coverage)}")
    elif abs(sum(graph.coverage.values()) - 1) > 1e-9:
        wrong.append(f"shares of parameters sum to {sum(graph.coverage.values())}")
    held = {name for layer in graph.layers for name in layer.parameters}
    for what, names in (("layers", held), ("other", graph.other), ("unused", graph.unused)):
        unknown = set(names) - set(sizes)
        if unknown:
            wrong.append(f"{what} have parameters that the model has not: {sorted(unknown)}")
        elif abs(graph.coverage[what] - sum(sizes[n] for n in set(names)) / total) > 1e-9:
            wrong.append(f"share of {what} is {graph.coverage[what]}, its parameters say otherwise")
    both = held & {*graph.other, *graph.unused}
    if both:
        wrong.append(f"in a layer and left over: {sorted(both)}")
    for layer in graph.layers:
        if layer.weight not in layer.parameters:
            wrong.append(f"{layer.name}: {layer.weight} is none of {layer.parameters}")
        if layer.uses < 1 or layer.depth < (not layer.side):
            wrong.append(f"{layer.name}: {layer.uses} uses, depth {layer.depth}")
        if layer.state == "norm" and layer.norm not in {norm.name for norm in graph.norms}:
            wrong.append(f"{layer.name}: its norm {layer.norm} is not in the list")
    if graph.last not in graph.heads:
        wrong.append("the last layer is no head")
    if len({layer.name for layer in graph.layers}) < len(graph.layers):
        wrong.append("two layers have one name")
    return wrong


def outputs_of(example, seed=0):
    """All tensors that a call gives."""
    torch.manual_seed(seed)
    found = []

    def walk(value):
        if isinstance(value, torch.Tensor):
            found.append(value.detach().clone())
        elif isinstance(value, dict):
            for part in value.values():
                walk(part)
        elif isinstance(value, list | tuple):
            for part in value:
                walk(part)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a compiler's
        walk(example.call())
    return found
