"""Residual networks as lists of nodes: the builders behind the reference values of graph theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from golden import graph_theory as golden
from normscope.checks import Array
from normscope.data import load_data
from normscope.theory.graph import nodes as n


class Builder:
    """Appends nodes that read the last one, unless told otherwise."""

    def __init__(self, size: tuple[int, ...], weight_variance: float) -> None:
        self.nodes: list[n.Node] = [n.Input("input", size=size)]
        self.weight_variance = weight_variance

    @property
    def last(self) -> str:
        return self.nodes[-1].name

    def add(self, kind: Any, *inputs: str, **options: Any) -> str:
        name = f"{kind.__name__.lower()}{len(self.nodes)}"
        self.nodes.append(kind(name, inputs or (self.last,), **options))
        return name

    def dense(self, outputs: int, *inputs: str) -> str:
        return self.add(n.Dense, *inputs, outputs=outputs, weight_variance=self.weight_variance)

    def conv(self, outputs: int, *inputs: str, kernel: int = 3, stride: int = 1) -> str:
        return self.add(
            n.Conv,
            *inputs,
            outputs=outputs,
            weight_variance=self.weight_variance,
            kernel=kernel,
            stride=stride,
            padding=kernel // 2,
        )

    def head(self, outputs: int) -> n.Graph:
        self.add(n.Dense, outputs=outputs, weight_variance=1.0, bias_variance=0.0)
        return n.Graph(tuple(self.nodes))


def _normed(b: Builder, norm: str, gamma: float, eps: float, *inputs: str) -> str:
    kinds = {"batch": n.BatchNorm, "layer": n.LayerNorm}
    if norm == "none":
        return inputs[0] if inputs else b.last
    return b.add(kinds[norm], *inputs, gamma=gamma, eps=eps)


def residual_mlp(
    size: tuple[int, ...],
    width: int,
    blocks: int,
    outputs: int = 1,
    *,
    style: str = "pre",
    norm: str = "batch",
    activation: str = "relu",
    sw2: float = 2.0,
    gamma: float = 1.0,
    last_gamma: float | None = None,
    eps: float = 1e-5,
) -> n.Graph:
    """Stem, then blocks of two dense layers, with norm and activation before or behind them."""
    b = Builder(size, sw2)
    last_gamma = gamma if last_gamma is None else last_gamma

    def act(*inputs: str) -> str:
        return b.add(n.Activate, *inputs, activation=activation)

    x = b.dense(width)
    if style == "post":
        x = act(_normed(b, norm, gamma, eps, x))
    for _ in range(blocks):
        if style == "pre":
            y = b.dense(width, act(_normed(b, norm, gamma, eps, x)))
            y = b.dense(width, act(_normed(b, norm, gamma, eps, y)))
            x = b.add(n.Add, x, y)
        else:
            y = act(_normed(b, norm, gamma, eps, b.dense(width, x)))
            y = _normed(b, norm, last_gamma, eps, b.dense(width, y))
            x = act(b.add(n.Add, x, y))
    if style == "pre":
        act(_normed(b, norm, gamma, eps, x))
    return b.head(outputs)


def resnet(
    size: tuple[int, ...],
    channels: Sequence[int],
    blocks: int,
    outputs: int = 1,
    *,
    style: str = "post",
    shortcut: str = "A",
    norm: str = "batch",
    activation: str = "relu",
    sw2: float = 2.0,
    gamma: float = 1.0,
    last_gamma: float | None = None,
    eps: float = 1e-5,
    head: str = "gap",
) -> n.Graph:
    """3x3 stem, stages of two-layer blocks, stride 2 at the first block of every later stage."""
    b = Builder(size, sw2)
    last_gamma = gamma if last_gamma is None else last_gamma

    def act(*inputs: str) -> str:
        return b.add(n.Activate, *inputs, activation=activation)

    def bn(gain: float, *inputs: str) -> str:
        return _normed(b, norm, gain, eps, *inputs)

    x = b.conv(channels[0])
    if style == "post":
        x = act(bn(gamma, x))
    width = channels[0]
    for stage, count in enumerate(channels):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            if style == "pre":
                source = act(bn(gamma, x))
                y = act(bn(gamma, b.conv(count, source, stride=stride)))
                y = b.conv(count, y)
                source = source if shortcut == "B" else x
            else:
                y = act(bn(gamma, b.conv(count, x, stride=stride)))
                y, source = bn(last_gamma, b.conv(count, y)), x
            if stride == 1 and count == width:
                skip = x
            elif shortcut == "A":
                skip = b.add(n.Shortcut, source, stride=stride, after=count - width)
            else:
                skip = b.conv(count, source, kernel=1, stride=stride)
                skip = bn(gamma, skip) if style == "post" else skip
            x = b.add(n.Add, skip, y)
            x = act(x) if style == "post" else x
            width = count
    if style == "pre":
        act(bn(gamma, x))
    b.add(n.GlobalPool if head == "gap" else n.Flatten)
    return b.head(outputs)


def network(size: tuple[int, ...], width: int, outputs: int, options: dict[str, Any]) -> n.Graph:
    """The network of a reference entry at this width."""
    given = dict(options)
    builder = given.pop("builder")
    blocks = given.pop("blocks")
    if builder == "residual_mlp":
        return residual_mlp(size, width, blocks, outputs, **given)
    return resnet(size, (width, 2 * width, 4 * width), blocks, outputs, **given)


def _value(word: str) -> Any:
    try:
        return float(word) if "." in word else int(word)
    except ValueError:
        return word


def _words(text: str) -> dict[str, Any]:
    return {k: _value(v) for k, v in (word.split("=") for word in text.split())}


def references() -> dict[str, dict[str, Any]]:
    """The entries of ``golden/graph_theory.py`` by name."""
    made: dict[str, dict[str, Any]] = {}
    keys_of_predictions = ("lambda_max", "lambda_max_split", "mean_direction", "trace")
    for line in golden.NETWORKS.strip().replace("\n  ", " & ").splitlines():
        name, rest = line.split(" | ")
        *parts, rest = rest.split(" & ")
        options = " ".join(parts)
        source, setting = rest.split(";")
        kind, _, words = source.partition(" ")
        made[name] = {"network": _words(options), "data": {"kind": kind, **_words(words)}}
        made[name] |= {**_words(setting), "predicted": {}, "measured": {}}
    for line in golden.PREDICTED.strip().splitlines():
        name, level, *numbers = line.split()
        keys = ("tolerance", *keys_of_predictions)
        made[name]["predicted"][level] = dict(zip(keys, map(float, numbers), strict=True))
    for line in golden.MEASURED.strip().splitlines():
        name, width, *numbers = line.split()
        values = list(map(float, numbers))
        keys = ("lambda_max", "mean_direction", "trace")
        made[name]["measured"][int(width)] = {
            key: tuple(values[3 * i : 3 * i + 3]) for i, key in enumerate(keys)
        }
    for line in golden.OVER_OUTPUTS.strip().splitlines():
        name, width, *numbers = line.split()
        made[name]["measured"][int(width)]["lambda_max_over_outputs"] = (*map(float, numbers),)
    for line in golden.NARROW.strip().splitlines():
        name, level, width, *numbers = line.split()
        found = dict(zip(keys_of_predictions, map(float, numbers), strict=True))
        made[name].setdefault("narrow", {})[level, int(width)] = found
    for line in golden.NETWORKS_MEASURED.strip().splitlines():
        name, *counts = line.split()
        made[name]["networks"] = {int(w): int(c) for w, c in (one.split(":") for one in counts)}
    return made


def reference_data(source: dict[str, Any]) -> Array:
    """The data of an entry; CIFAR-10 needs NORMSCOPE_DATA."""
    if source["kind"] == "gauss":
        shape = [int(side) for side in str(source["shape"]).split("x")]
        made = torch.Generator().manual_seed(source["seed"])
        return torch.randn(*shape, generator=made, dtype=torch.float64).numpy()
    plain = load_data("cifar10", split="test", standardize=((0.0,) * 3, (1.0,) * 3))
    rows = slice(source["start"], source["start"] + source["samples"])
    images = np.asarray(plain.images[rows], dtype=float)
    side = 32 // source["size"]
    small = images.reshape(len(images), 3, source["size"], side, source["size"], side)
    small = small.mean((3, 5))
    axes = (0, 2, 3)
    return (small - small.mean(axes, keepdims=True)) / small.std(axes, keepdims=True)


def reference_graph(entry: dict[str, Any], width: int | None = None) -> n.Graph:
    """The network of an entry, at its largest width unless told otherwise."""
    data = entry["data"]
    if data["kind"] == "gauss":
        size = tuple(int(side) for side in str(data["shape"]).split("x"))[1:]
    else:
        size = (3, data["size"], data["size"])
    return network(size, width or entry["width"], entry["outputs"], entry["network"])


class Drawn(torch.nn.Module):
    """A finite network of the nodes, in plain torch, its weights drawn from a seed."""

    def __init__(self, graph: n.Graph, seed: int, statistics: str) -> None:
        super().__init__()
        self.graph, self.frozen = graph, statistics == "frozen"
        generator = torch.Generator().manual_seed(seed)
        self.tensors = torch.nn.ParameterDict()
        for node in graph.nodes:
            sizes = [graph.shapes[name] for name in node.inputs]
            key = node.name
            if isinstance(node, n.Affine):
                window = (node.kernel,) * 2 if isinstance(node, n.Conv) else ()
                shape = (node.outputs, sizes[0][0], *window)
                drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
                scale = (node.weight_variance / node.fan_in(sizes)) ** 0.5
                self.tensors[f"{key}_w"] = torch.nn.Parameter(scale * drawn)
                if node.bias_variance is not None:  # 0 in all entries
                    self.tensors[f"{key}_b"] = torch.nn.Parameter(drawn.new_zeros(node.outputs))
            elif isinstance(node, n.BatchNorm):
                ones = torch.ones(sizes[0][0], dtype=torch.float64)
                self.tensors[f"{key}_w"] = torch.nn.Parameter(node.gamma * ones)
                self.tensors[f"{key}_b"] = torch.nn.Parameter(0 * ones)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[str, torch.Tensor] = {}
        for node in self.graph.nodes:
            sources = [values[name] for name in node.inputs]
            values[node.name] = self._of(node, sources) if sources else x
        return values[self.graph.nodes[-1].name]

    def _of(self, node: n.Node, sources: list[torch.Tensor]) -> torch.Tensor:
        x = sources[0]
        names = (f"{node.name}_{kind}" for kind in "wb")
        w, b = (self.tensors.get(name) for name in names)
        if isinstance(node, n.Dense):
            return torch.nn.functional.linear(x, w, b)
        if isinstance(node, n.Conv):
            return torch.nn.functional.conv2d(x, w, b, node.stride, node.padding)
        if isinstance(node, n.BatchNorm):
            over = [k for k in range(x.ndim) if k != 1]
            mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
            if self.frozen:
                mean, variance = mean.detach(), variance.detach()
            side = (1, -1, *[1] * (x.ndim - 2))
            return (x - mean) / (variance + node.eps).sqrt() * w.view(side) + b.view(side)
        if isinstance(node, n.Activate):
            return getattr(torch, node.activation)(x)
        if isinstance(node, n.Add):
            return sum(sources[1:], x)
        if isinstance(node, n.Shortcut):
            x = x[:, :, :: node.stride, :: node.stride]
            return torch.nn.functional.pad(x, (0, 0, 0, 0, node.before, node.after))
        return x.mean((2, 3)) if isinstance(node, n.GlobalPool) else x.flatten(1)


def measured_numbers(model: torch.nn.Module, data: Array) -> dict[str, float]:
    """The numbers of F = J^T J / T, from one backward pass for each output of each sample."""
    x = torch.from_numpy(data)
    out = model(x)
    samples, outputs = out.shape
    parameters = list(model.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters, retain_graph=True)])
        for one in out.flatten()
    ]
    jacobian = torch.stack(rows)
    gram = jacobian @ jacobian.T / samples
    blocks = gram.view(samples, outputs, samples, outputs)
    over = torch.einsum("scuc->su", blocks) / outputs
    return {
        "lambda_max": float(torch.linalg.eigvalsh(gram)[-1]),
        "mean_direction": float(over.mean() * samples),
        "trace": float(gram.trace()),
        "lambda_max_over_outputs": float(torch.linalg.eigvalsh(over)[-1]),
    }
