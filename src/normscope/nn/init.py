"""Initial weights by name and seed; the global generators are never touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError
from normscope.registry import Registry
from normscope.seeds import child_seed

Init = Callable[[Tensor, Tensor | None, torch.Generator], None]
M = TypeVar("M", bound=nn.Module)
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def initialize(model: nn.Module, scheme: str | Init = "he", *, seed: int = 0) -> nn.Module:
    """Draw the weights and biases of all linear and convolutional layers afresh, in place.

    Each layer has a random stream of its own, so that its weights depend on the seed and on its
    name only. Numbers are drawn in float64 on the CPU and then cast: every dtype and device gets
    the same network. Norm layers are left as they are.

    Args:
        model: the network; returned.
        scheme: a name in ``INITS``, or ``gaussian(weight_variance, bias_variance)``.
        seed: seed for the draw.

    Example:
        >>> net = initialize(nn.Linear(4, 2), "xavier", seed=1)
        >>> bool((net.bias == 0).all())
        True
    """
    draw = INITS[scheme] if isinstance(scheme, str) else scheme
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, AFFINE)]
    if not layers:
        raise InputError(
            f"{type(model).__name__} has no linear or convolutional layer to initialize."
        )
    for name, layer in layers:
        draw_layer(layer, draw, seed, name)
    return model


@torch.no_grad()
def draw_layer(layer: nn.Module, scheme: str | Init, seed: int, *stream: str | int) -> None:
    """Draw one layer's weights and biases from one named stream of ``seed``, in place."""
    draw = INITS[scheme] if isinstance(scheme, str) else scheme
    generator = torch.Generator().manual_seed(child_seed(seed, "init", *stream))
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    new_weight = torch.empty(weight.shape, dtype=torch.float64)
    new_bias = None if bias is None else torch.empty(bias.shape, dtype=torch.float64)
    draw(new_weight, new_bias, generator)
    if parametrize.is_parametrized(layer, "weight"):
        layer.weight = new_weight.to(weight)  # goes through the parametrization's right inverse
    else:
        weight.copy_(new_weight)
    if bias is not None and new_bias is not None:
        bias.copy_(new_bias)


@torch.no_grad()
def lsuv(model: M, inputs: Tensor, *, center: bool = False) -> M:
    """Scale every linear and convolutional layer to outputs of variance 1 on a batch, in place.

    Layer-sequential unit-variance initialization (Mishkin and Matas 2016), which stands in for
    norm layers. It scales the weights that the model has; the authors draw them first by
    ``initialize(model, "orthogonal")``. Layers come in the order of the forward pass, which is one
    pass in evaluation mode; a layer that is used several times is scaled for its first use.

    Args:
        model: the network; returned.
        inputs: a batch of its inputs.
        center: also shift each output channel to mean 0, by the bias; a layer without a bias gets
            one. The authors do not shift.

    Example:
        >>> x = torch.randn(100, 4)
        >>> net = lsuv(nn.Linear(4, 2), x)
        >>> round(net(x).var(correction=0).item(), 3)
        1.0
    """
    layers: dict[nn.Module, str] = {m: n for n, m in model.named_modules() if isinstance(m, AFFINE)}
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def normalized(layer: nn.Module, _: Any, outputs: Tensor) -> Tensor:
        if layer not in found:
            axis = outputs.ndim - 1 if isinstance(layer, nn.Linear) else 1
            others = [k for k in range(outputs.ndim) if k != axis]
            mean = outputs.mean(others, keepdim=True) if center else outputs.new_zeros(())
            deviation = (outputs - mean).std(correction=0)
            if not (deviation > 0 and torch.isfinite(deviation)):
                raise InputError(
                    f"The outputs of layer {layers[layer] or type(layer).__name__!r} have standard "
                    f"deviation {float(deviation):.3g}, which cannot be scaled to 1. Pass a batch "
                    "of different inputs, and draw other weights first: initialize(model)."
                )
            found[layer] = mean, deviation
        mean, deviation = found[layer]
        return (outputs - mean) / deviation

    bad = [n for m, n in layers.items() if parametrize.is_parametrized(m)]
    if bad or not layers:
        what = f"layer {bad[0]!r} is parametrized" if bad else "it has no such layer"
        raise InputError(
            f"{type(model).__name__} cannot be scaled: {what}. lsuv sets the weights of linear and "
            "convolutional layers directly; call it before a parametrization is registered."
        )
    modes = {m: m.training for m in model.modules()}
    hooks = [m.register_forward_hook(normalized) for m in layers]
    try:
        model.eval()(inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    for layer, (mean, deviation) in found.items():  # only now: an error leaves the model as it was
        assert isinstance(layer.weight, Tensor)
        layer.weight.div_(deviation)
        if layer.bias is None and center:
            layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        if isinstance(layer.bias, Tensor):
            layer.bias.sub_(mean.flatten() if center else mean).div_(deviation)
    return model


def undrawn(kind: type[M], *args: Any, device: Any = None, **kwargs: Any) -> M:
    """A layer whose parameters are not drawn yet, so that no random number is used up."""
    made = kind(*args, device="meta", **kwargs)
    return made.to_empty(device=device or torch.get_default_device())


def fans(weight: Tensor) -> tuple[int, int]:
    """Inputs of one output unit, and outputs that one input unit reaches."""
    field = math.prod(weight.shape[2:])
    return weight.shape[1] * field, weight.shape[0] * field


def gaussian(weight_variance: float = 1.0, bias_variance: float = 0.0) -> Init:
    """The theory's initialization: weights N(0, weight_variance / fan_in), biases N(0, .)."""
    for name, value in (("weight_variance", weight_variance), ("bias_variance", bias_variance)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be finite and not negative. Got {value!r}.")

    def draw(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
        _normal(weight, weight_variance / fans(weight)[0], generator)
        if bias is not None:
            _normal(bias, bias_variance, generator)

    return draw


def _normal(tensor: Tensor, variance: float, generator: torch.Generator) -> None:
    tensor.normal_(0.0, 1.0, generator=generator).mul_(math.sqrt(variance))


def _uniform(tensor: Tensor, bound: float, generator: torch.Generator) -> None:
    tensor.uniform_(-1.0, 1.0, generator=generator).mul_(bound)


# initialization -> variance of a weight, of its fan-in and fan-out
WEIGHT_VARIANCES: dict[str, Callable[[int, int], float]] = {
    "gaussian": lambda fan_in, fan_out: 1 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "he": lambda fan_in, fan_out: 2 / fan_in,
    "he-fan-out": lambda fan_in, fan_out: 2 / fan_out,
    "lecun-uniform": lambda fan_in, fan_out: 1 / (3 * fan_in),
}


def _with_variance(name: str, *, uniform: bool = False) -> Init:
    def draw(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
        wanted = WEIGHT_VARIANCES[name](*fans(weight))
        if uniform:
            _uniform(weight, math.sqrt(3 * wanted), generator)
        else:
            _normal(weight, wanted, generator)
        if bias is not None:
            bias.zero_()

    return draw


def _lecun_uniform(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    bound = 1 / math.sqrt(fans(weight)[0])
    _uniform(weight, bound, generator)
    if bias is not None:
        _uniform(bias, bound, generator)


def _orthogonal(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    rows = weight.shape[0]
    flat = torch.empty(rows, weight[0].numel(), dtype=weight.dtype)
    flat.normal_(0.0, 1.0, generator=generator)
    tall = flat if rows >= flat.shape[1] else flat.T
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))  # uniform over the orthogonal group
    weight.copy_((q if rows >= flat.shape[1] else q.T).reshape(weight.shape))
    if bias is not None:
        bias.zero_()


_NAMED: dict[str, Init] = {
    "gaussian": gaussian(),
    "xavier": _with_variance("xavier"),
    "xavier-uniform": _with_variance("xavier", uniform=True),
    "he": _with_variance("he"),
    "he-fan-out": _with_variance("he-fan-out"),
    "lecun-uniform": _lecun_uniform,
    "orthogonal": _orthogonal,
}
INITS: Registry[Init] = Registry("initializer", _NAMED)
