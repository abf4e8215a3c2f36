"""Theorems 1 and 2 and equations (1) to (9): what scaled weights do to signals and gradients."""

import math

import numpy as np
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.experiments.observing import Array, Values
from normscope.measure.layer_signals import Loss, Signals, layer_signals

WIDTHS, FACTORS, SAMPLES = (8, 12, 12, 12, 5), (0.7, 1.6, 0.5, 2.2), 64
SIZE, DEPTH, TOTAL = max(WIDTHS), len(FACTORS), math.prod(FACTORS)
OWN = np.array(FACTORS)
BEFORE = np.array([math.prod(FACTORS[:k]) for k in range(DEPTH)])  # of the layers below
BEHIND = TOTAL / BEFORE / OWN  # of the layers above


def make(activation: str, norm: str | None, seed: int, eps: float = 0.0, *,
         last: bool) -> nn.Module:  # fmt: skip
    """The network 8-12-12-12-5 in float64, without biases."""
    options = {"norm_options": {"eps": eps}} if norm else {}
    extra = ("output",) if last else ()
    name = "mlp:" + "-".join(map(str, WIDTHS))
    return ns.network(
        name, norm=norm, bias=False, activation=activation, seed=seed, extra_norms=extra, **options
    ).double()


def scaled(net: nn.Module) -> nn.Module:
    """A copy with the weights of layer k multiplied by the k-th factor."""
    for number, factor in enumerate(FACTORS, 1):
        net = ns.apply_transform(net, f"scale-weights:layer{number}={factor}")
    return net


def distance(one: Tensor, other: Tensor) -> float:
    """Largest difference, relative to the largest entry."""
    return float(((one - other).abs().max() / other.abs().max()).detach())


def law(one: Signals, scaled: Signals, name: str, factors: Array) -> float:
    """How far the scaled network is from the other times a factor for each layer."""
    triples = zip(one[name], scaled[name], factors.tolist(), strict=True)
    return max(distance(new, factor * old) for old, new, factor in triples)


def theorem1(activation: str, x: Tensor, target: Tensor, seed: int) -> dict[str, float]:
    """Errors of Theorem 1 and its equations, for the two losses that have a mu."""
    net = make(activation, None, seed, last=False)
    other = scaled(net)
    losses: list[tuple[Loss, float]] = [(lambda out: (out * target).sum(), 1.0),
                                        (lambda out: (out**2).sum() / 2, TOTAL)]  # fmt: skip
    worst: dict[str, float] = {}
    for loss, mu in losses:
        old, new = layer_signals(net, x, loss), layer_signals(other, x, loss)
        slope = [h.clone().detach().requires_grad_() for h in (old["h"][1], 3 * old["h"][1])]
        act = net.get_submodule("act2")
        slopes = [torch.autograd.grad(act(h).sum(), h)[0] for h in slope]
        errors = {"eq3": distance(act(3 * old["h"][1]), 3 * act(old["h"][1])),
                  "eq5": distance(slopes[1], slopes[0]),
                  "eq6-7": law(old, new, "dx", mu * OWN * BEHIND),
                  "thm1-input": law(old, new, "x", BEFORE),
                  "thm1-output-gradient": law(old, new, "dh", mu * BEHIND),
                  "thm1-weight-gradient": law(old, new, "dw", mu * BEFORE * BEHIND)}  # fmt: skip
        worst = {name: max(error, worst.get(name, 0.0)) for name, error in errors.items()}
    found = [ns.conditioning(n, (x, target), _against).lambda_max("inputs") for n in (net, other)]
    ratios = found[1] / found[0] / BEFORE**2
    return worst | {"thm1-moments": float(np.max(np.abs(ratios - 1)))}


def theorem2(net: nn.Module, x: Tensor, labels: Tensor) -> dict[str, float]:
    """Errors of Theorem 2 and equation (9)."""
    one, other = (
        layer_signals(n, x, lambda out: _cross_entropy(out, labels)) for n in (net, scaled(net))
    )
    return {"thm2-input": law(one, other, "x", np.ones(DEPTH)),
            "thm2-output-gradient": law(one, other, "dh", 1 / OWN),
            "thm2-weight-gradient": law(one, other, "dw", 1 / OWN),
            "eq9": law(one, other, "dx", np.ones(DEPTH))}  # fmt: skip


def trial(seed: int) -> Values:
    """All identities on one draw of weights, inputs and targets."""
    draw = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(SAMPLES, n, generator=draw).double() for n in (WIDTHS[0], WIDTHS[-1]))
    labels = torch.randint(WIDTHS[-1], (SAMPLES,), generator=draw)
    parts: dict[str, Values] = {}

    def add(name: str, part: str, error: float) -> None:
        made = parts.setdefault(name, {"parts": {}})
        made["parts"][part] = {"error": error, "size": SIZE}

    for activation in ("relu", "leaky-relu", "linear"):
        for name, error in theorem1(activation, x, target, seed).items():
            shown = "thm1-input" if name == "thm1-moments" else name
            add(shown, activation + " (moments)" * (name == "thm1-moments"), error)
    for name, error in theorem1("tanh", x, target, seed).items():
        add("thm1-homogeneous", name, error)
    for activation in ("relu", "tanh"):
        net = make(activation, "batch", seed, last=True)
        for name, error in theorem2(net, x, labels).items():
            add(name, activation, error)
    small = make("relu", "batch", seed, 1e-5, last=True)
    bare = make("relu", "batch", seed, last=False)
    for part, net in {"eps 1e-5": small, "no BN behind the last layer": bare}.items():
        add("thm2-preconditions", part, theorem2(net, x, labels)["thm2-weight-gradient"])
    plain = make("relu", None, seed, last=False)
    for name, error in _by_hand(plain, x, target).items():
        add(name, "relu", error)
    add("thm1-mu", "cross-entropy", _not_a_multiple(plain, x, labels))
    add("eq8", "BN", _through_bn(x, target))
    fits = all(WIDTHS[k + 1] == WIDTHS[k] for k in range(DEPTH))  # W x with x behind the layer
    return parts | {"eq2": {"holds": [fits]}}


def _by_hand(net: nn.Module, x: Tensor, target: Tensor) -> dict[str, float]:
    """Equations (1) and (4): the forward pass and the chain rule in a loop."""
    kept = layer_signals(net, x, lambda out: (out * target).sum())
    weights = [m.weight.detach() for m in net.modules() if isinstance(m, nn.Linear)]
    state, forward, chain = x, [], []
    for k, weight in enumerate(weights):
        output = state @ weight.T
        forward.append(distance(kept["h"][k], output))
        chain.append(distance(kept["dx"][k], kept["dh"][k] @ weight))
        if k + 1 < DEPTH:
            chain.append(distance(kept["dh"][k], kept["dx"][k + 1] * (output > 0)))
        state = output.relu()
    return {"eq1": max(forward), "eq4": max(chain)}


def _not_a_multiple(net: nn.Module, x: Tensor, labels: Tensor) -> float:
    """What is left of the scaled network's dL/dh_K when the best multiple is taken off."""
    pair = [layer_signals(n, x, lambda out: _cross_entropy(out, labels))
            for n in (net, scaled(net))]  # fmt: skip
    old, new = (found["dh"][-1].flatten() for found in pair)
    return float((new - old * (new @ old) / (old @ old)).norm() / new.norm())


def _through_bn(x: Tensor, target: Tensor) -> float:
    """Equation (8) against autograd."""
    h, slope = x[:, : target.shape[1]].clone().requires_grad_(), target
    norm = ns.BatchNorm(target.shape[1], eps=0.0, parts=("mean", "variance")).double()
    s = norm(h)
    (found,) = torch.autograd.grad(s, h, slope)
    sigma = h.detach().std(0, correction=0)
    formula = (slope - slope.mean(0) - (slope * s).mean(0) * s) / sigma
    return distance(formula, found)


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def _against(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).sum(-1).mean()
