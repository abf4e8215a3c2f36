"""Random networks in plain torch, and their Fisher matrix by three routes.

This is the oracle of the theory: nothing of ``normscope.nn`` or ``normscope.measure`` is used.
``F* = J J^T / T`` (outputs x samples) has the non-zero spectrum of ``F = J^T J / T``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn import functional

from normscope.spec import NetworkSpec

Statistics = list[tuple[Tensor, Tensor]]

PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


def phi(name: str) -> Callable[[Tensor], Tensor]:
    word, _, argument = name.partition("(")
    number = float(argument[:-1]) if argument else None
    if word == "leaky_relu":
        return lambda x: functional.leaky_relu(x, number)
    if word == "erf":
        return lambda x: torch.erf(number * x)
    return PHI[word]


@dataclass(frozen=True)
class Net:
    """One drawn network with its inputs; ``statistics`` None means train-mode batch norm."""

    spec: NetworkSpec
    params: dict[str, Tensor]
    inputs: Tensor
    statistics: Statistics | None = None

    @property
    def samples(self) -> int:
        return len(self.inputs)

    def outputs(self, params: dict[str, Tensor]) -> Tensor:
        return forward(self.spec, params, self.inputs, statistics=self.statistics)

    def frozen(self) -> Net:
        """The same network with the batch statistics of its inputs held constant."""
        found: Statistics = []
        forward(self.spec, self.params, self.inputs, record=found)
        return Net(self.spec, self.params, self.inputs, [(m.clone(), v.clone()) for m, v in found])

    def only(self, *kinds: str) -> Callable[[dict[str, Tensor]], Tensor]:
        """Outputs as a function of the parameters of some kinds, the others kept."""
        rest = {k: p for k, p in self.params.items() if k.split(".")[0] not in kinds}
        return lambda chosen: self.outputs({**rest, **chosen})

    def chosen(self, *kinds: str) -> dict[str, Tensor]:
        return {k: p for k, p in self.params.items() if k.split(".")[0] in kinds}


def draw(
    spec: NetworkSpec,
    seed: int,
    samples: int,
    *,
    inputs: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Net:
    """Fresh weights and iid N(0, 1) inputs; biases of every layer, gamma and beta of every norm."""
    g = torch.Generator().manual_seed(seed)
    params = {}
    for number, (layer, size) in enumerate(zip(spec.layers, spec.fan_ins, strict=True), start=1):
        k = layer.kernel
        shape = (layer.outputs, size) if k is None else (layer.outputs, size // k**2, k, k)
        weight = torch.randn(shape, generator=g, dtype=dtype)
        params[f"weight.{number}"] = weight * math.sqrt(layer.weight_variance / size)
        bias = torch.randn(layer.outputs, generator=g, dtype=dtype)
        params[f"bias.{number}"] = bias * math.sqrt(layer.bias_variance)
        if layer.norm is not None:
            params[f"gamma.{number}"] = torch.full((layer.outputs,), layer.norm.gamma, dtype=dtype)
            params[f"beta.{number}"] = torch.zeros(layer.outputs, dtype=dtype)
    if inputs is None:
        inputs = torch.randn((samples, *spec.input_shape), generator=g, dtype=dtype)
    return Net(spec, params, inputs)


def forward(
    spec: NetworkSpec,
    params: dict[str, Tensor],
    x: Tensor,
    *,
    statistics: Statistics | None = None,
    record: Statistics | None = None,
    shifts: list[Tensor] | None = None,
    inputs_of: list[Tensor] | None = None,
) -> Tensor:
    """Outputs (T, C). ``shifts`` are added to the affine outputs, ``inputs_of`` collects h."""
    h, number = x, 0
    for number, layer in enumerate(spec.layers, start=1):
        weight, bias = params[f"weight.{number}"], params[f"bias.{number}"]
        last = number == spec.depth
        if layer.kernel is None and h.ndim > 2:
            h = h.mean(dim=(2, 3)) if spec.head == "pool" and number > 1 else h.flatten(1)
        source = h
        if spec.branch_scale is not None and number > 1:
            source = phi(spec.layers[number - 2].activation)(h)
        if inputs_of is not None:
            inputs_of.append(source)
        if layer.kernel is None:
            u = source @ weight.T + bias
        else:
            u = functional.conv2d(source, weight, bias, layer.stride, layer.padding)
        if spec.branch_scale is not None and 1 < number < spec.depth:
            u = h + spec.branch_scale * u
        if shifts is not None:
            u = u + shifts[number - 1]
        if last:
            return outer_norm(u, spec.last_norm)
        if layer.norm is not None:
            given = None if statistics is None else statistics[number - 1]
            u = norm(u, layer.norm.kind, given, record)
            broadcast = (1, -1) + (1,) * (u.ndim - 2)
            gamma, beta = params[f"gamma.{number}"], params[f"beta.{number}"]
            u = gamma.reshape(broadcast) * u + beta.reshape(broadcast)
        h = u if spec.branch_scale is not None else phi(layer.activation)(u)
    raise AssertionError(number)


def norm(
    u: Tensor, kind: str, given: tuple[Tensor, Tensor] | None, record: Statistics | None
) -> Tensor:
    over = tuple(range(1, u.ndim)) if kind == "layer" else (0, *range(2, u.ndim))
    if kind == "layer" or given is None:
        mean = u.mean(dim=over, keepdim=True)
        variance = ((u - mean) ** 2).mean(dim=over, keepdim=True)
        if record is not None:
            record.append((mean, variance))
    else:
        mean, variance = given
    return (u - mean) / variance.sqrt()


def outer_norm(u: Tensor, kind: str | None) -> Tensor:
    if kind is None:
        return u
    over = 1 if kind == "layer" else 0
    centred = u - u.mean(dim=over, keepdim=True)
    if kind == "mean":
        return centred
    kept = u if kind == "variance" else centred
    return kept / centred.pow(2).mean(over, keepdim=True).sqrt()


def dense_grams(net: Net, *, chunk: int = 64) -> dict[str, Tensor]:
    """T F* of each parameter tensor, (T, C, T, C), from the full Jacobian."""
    out, pull = vjp(net.outputs, net.params)
    basis = torch.eye(out.numel(), dtype=out.dtype).reshape(-1, *out.shape)
    rows = vmap(lambda v: pull(v)[0], chunk_size=chunk)(basis)
    shape = (*out.shape, *out.shape)
    flat = {name: r.reshape(out.numel(), -1) for name, r in rows.items()}
    return {name: (r @ r.T).reshape(shape) for name, r in flat.items()}


def layer_grams(net: Net) -> list[Tensor]:
    """T F* of the weights of each dense layer by the product of two Gram matrices.

    ``(delta(s) . delta(t)) (h(s) . h(t))`` holds where samples are not coupled: no batch
    statistics in train mode. Shape (C, T, C, T).
    """
    spec, size = net.spec, net.samples
    shifts = [
        torch.zeros(size, layer.outputs, dtype=net.inputs.dtype, requires_grad=True)
        for layer in spec.layers
    ]
    hidden: list[Tensor] = []
    out = forward(
        spec, net.params, net.inputs, statistics=net.statistics, shifts=shifts, inputs_of=hidden
    )
    deltas = [
        torch.autograd.grad(out[:, k].sum(), shifts, retain_graph=True) for k in range(out.shape[1])
    ]
    grams = []
    for number in range(spec.depth):
        delta = torch.stack([d[number] for d in deltas]).flatten(0, 1)
        branch = spec.branch_scale if 0 < number < spec.depth - 1 else None
        back = (delta @ delta.T) * (1.0 if branch is None else branch**2)
        kernel = hidden[number].detach() @ hidden[number].detach().T
        both = back.reshape(out.shape[1], size, out.shape[1], size) * kernel[None, :, None, :]
        grams.append(both)
    return grams


def lanczos_lambda_max(net: Net, *kinds: str, steps: int = 24, seed: int = 0) -> float:
    """Largest eigenvalue of F by Lanczos on v -> J (J^T v) / T, with forward and reverse mode."""
    f, chosen = net.only(*kinds), net.chosen(*kinds)
    out, pull = vjp(f, chosen)

    def product(v: Tensor) -> Tensor:
        with warnings.catch_warnings():  # torch scripts its own forward rules at first use
            warnings.simplefilter("ignore", DeprecationWarning)
            return jvp(f, (chosen,), (pull(v)[0],))[1] / net.samples

    # the outliers are near the mean directions: start there, with some noise
    g = torch.Generator().manual_seed(seed)
    start = torch.randn(out.shape[1], generator=g, dtype=out.dtype)
    v = start.expand(out.shape) + torch.randn(out.shape, generator=g, dtype=out.dtype)
    basis, alphas, betas = [v / v.norm()], [], []
    for _ in range(min(steps, out.numel())):
        w = product(basis[-1])
        alphas.append(float((w * basis[-1]).sum()))
        for _ in range(2):
            for b in basis:
                w = w - (w * b).sum() * b
        size = float(w.norm())
        if size < 1e-9 * max(alphas):
            break
        betas.append(size)
        basis.append(w / size)
    betas = betas[: len(alphas) - 1]
    matrix = np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1)
    return float(np.linalg.eigvalsh(matrix)[-1])


def mean_direction_terms(net: Net) -> dict[str, float]:
    """||grad mean_t f_k||^2 of each parameter tensor, averaged over the outputs k."""
    out, pull = vjp(net.outputs, net.params)
    total = dict.fromkeys(net.params, 0.0)
    for k in range(out.shape[1]):
        v = torch.zeros_like(out)
        v[:, k] = 1 / net.samples
        for name, grad in pull(v)[0].items():
            total[name] += float(grad.pow(2).sum()) / out.shape[1]
    return total


def own_and_along(
    spec: NetworkSpec,
    seeds: Sequence[int],
    samples: int,
    *,
    frozen: bool = False,
    inputs: Tensor | None = None,
    along: Tensor | None = None,
    probes: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, np.ndarray]:
    """Mean diagonal of T F*, and F* in one direction, of each parameter tensor: (networks, 2).

    Two products with J^T for each output instead of T: in the unit vector ``along`` (T,), the mean
    direction unless given, and in one of ``probes`` (networks, C, T), unit vectors drawn at random
    among those orthogonal to it: on average they see 1/(T-1) of the trace that is left. All
    networks are simulated at once.
    """
    nets = [draw(spec, seed, samples, inputs=inputs, dtype=dtype) for seed in seeds]
    params = {key: torch.stack([net.params[key] for net in nets]) for key in nets[0].params}
    if along is None:
        along = torch.full((samples,), samples**-0.5, dtype=dtype)
    if probes is None:
        g = torch.Generator().manual_seed(seeds[0])
        probes = torch.randn(len(nets), spec.outputs, samples, generator=g, dtype=dtype)
        probes = probes - (probes @ along)[..., None] * along
        probes = probes / probes.norm(dim=2, keepdim=True)
    one = partial(_own_and_along, spec, frozen, along)
    found = vmap(one)(params, torch.stack([net.inputs for net in nets]), probes)
    return {key: value.double().numpy() for key, value in found.items()}


def _own_and_along(
    spec: NetworkSpec,
    frozen: bool,
    along: Tensor,
    params: dict[str, Tensor],
    inputs: Tensor,
    probes: Tensor,
) -> dict[str, Tensor]:
    found: Statistics = []
    forward(spec, params, inputs, record=found)
    held = [(m.detach(), v.detach()) for m, v in found] if frozen else None
    _, pull = vjp(lambda p: forward(spec, p, inputs, statistics=held), params)
    total = {key: torch.zeros(2, dtype=inputs.dtype) for key in params}
    for probe, output in zip(probes, torch.eye(spec.outputs, dtype=inputs.dtype), strict=True):
        first, second = (pull(v[:, None] * output)[0] for v in (along, probe))
        for key in params:
            one, other = first[key].pow(2).sum(), second[key].pow(2).sum()
            total[key] = total[key] + torch.stack([one + (len(along) - 1) * other, one])
    return {key: value / (len(along) * spec.outputs) for key, value in total.items()}


def largest(gram: Tensor, samples: int) -> float:
    size = math.isqrt(gram.numel())
    return float(torch.linalg.eigvalsh(gram.reshape(size, size))[-1]) / samples


def entries(gram: Tensor) -> tuple[float, float]:
    """Mean diagonal and mean off-diagonal entry of the same-output blocks of (T, C, T, C)."""
    size, outputs = gram.shape[:2]
    block = torch.einsum("skuk->ksu", gram)
    diagonal = torch.einsum("kss->ks", block)
    off = (block.sum() - diagonal.sum()) / (outputs * size * (size - 1))
    return float(diagonal.mean()), float(off)


@dataclass(frozen=True)
class Mean:
    """A mean over independent networks with its standard error."""

    value: float
    error: float
    spread: float
    count: int

    def sigmas(self, theory: float) -> float:
        return abs(self.value - theory) / self.error


def mean_of(values: list[float]) -> Mean:
    array = np.asarray(values, dtype=float)
    spread = float(array.std(ddof=1))
    return Mean(float(array.mean()), spread / math.sqrt(len(array)), spread, len(array))
