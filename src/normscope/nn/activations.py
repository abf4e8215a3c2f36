"""The torch modules behind a spec's activation names, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.spec.activations import activation


class Erf(nn.Module):
    """The error function as an activation, erf(scale x)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """The error function of ``scale * x``."""
        return torch.erf(self.scale * x)

    def extra_repr(self) -> str:
        """Show the scale in the printed form of the module."""
        return f"{self.scale}"


_PLAIN: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def activation_module(name: str) -> nn.Module:
    """The module of a spec's activation, e.g. ``"leaky_relu(0.1)"``."""
    made = activation(name)
    if made.family == "leaky_relu" and made.parameter is not None:
        return nn.LeakyReLU(made.parameter)
    if made.family == "erf" and made.parameter is not None:
        return Erf(made.parameter)
    if made.name not in _PLAIN:
        raise InputError(
            f"Activation {made.name!r} has no torch module: specs know it in numpy only. Call "
            f"register_activation_module({made.name!r}, lambda: ...) once. "
            f"{near_match(made.name, [*_PLAIN, 'leaky_relu', 'erf'])}"
        )
    return _PLAIN[made.name]()


def register_activation_module(name: str, make: Callable[[], nn.Module]) -> None:
    """Say which module is the activation ``name`` that ``register_activation`` made."""
    activation(name)
    if not isinstance(made := make(), nn.Module):
        raise InputError(
            f"make must return a module for {name!r}. Got a {type(made).__name__}: pass a factory "
            "such as lambda: MyActivation()."
        )
    _PLAIN[name] = make


def activation_name(module: nn.Module) -> str | None:
    """The spec's name of an activation module; None if the theory has none."""
    if isinstance(module, nn.LeakyReLU):
        return f"leaky_relu({module.negative_slope!r})"
    if isinstance(module, Erf):
        return f"erf({float(module.scale)!r})"
    if isinstance(module, nn.Softplus) and module.beta != 1:
        return None
    if isinstance(module, nn.GELU) and module.approximate != "none":
        return None
    for name, make in _PLAIN.items():
        made = make()
        if type(made) is type(module) and made.extra_repr() == module.extra_repr().replace(
            "inplace=True", ""
        ):
            return name
    return None
