"""What an activation is: a named function with its derivative, in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from normscope.errors import InputError
from normscope.registry import Registry

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Activation:
    """A pointwise non-linearity phi with its derivative.

    Attributes:
        name: what a spec calls it, its parameter included, e.g. ``leaky_relu(0.1)``.
        function: phi, on numpy arrays.
        derivative: phi', on numpy arrays.
        homogeneous: phi(a x) = a phi(x) for a > 0, so that scales pass through.
        kinks: where phi or phi' is not smooth; quadrature splits its range there.
        family: name of the closed forms of its Gaussian integrals, or None for quadrature.
        parameter: the number in the brackets of the name, or None.
    """

    name: str
    function: Function = field(repr=False)
    derivative: Function = field(repr=False)
    homogeneous: bool = False
    kinks: tuple[float, ...] = ()
    family: str | None = None
    parameter: float | None = None


_CALL = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\(\s*([^()]*?)\s*\))?\s*$")
STEEPEST = 1e75  # its fourth power is a number yet


def activation(name: str | Activation) -> Activation:
    """The activation of that name; ``leaky_relu(0.1)`` and ``erf(0.5)`` carry a parameter."""
    if isinstance(name, Activation):
        return name
    match = _CALL.match(name) if isinstance(name, str) else None
    if match is None:
        raise InputError(
            f"An activation is a name such as 'relu' or 'leaky_relu(0.1)'. Got {name!r}. "
            "For a function of your own, call register_activation first."
        )
    word, argument = match.groups()
    make = ACTIVATIONS[word.replace("-", "_")]
    if argument is None or argument == "":
        return make(None)
    try:
        parameter = float(argument.split("=")[-1])
    except ValueError:
        raise InputError(
            f"The parameter of activation {word!r} must be a number. Got {argument!r}."
        ) from None
    return make(parameter)


def register_activation(
    name: str,
    function: Function,
    derivative: Function,
    *,
    homogeneous: bool = False,
    kinks: tuple[float, ...] = (),
    replace: bool = False,
) -> Activation:
    """Make a function of your own usable by name in every spec.

    Args:
        name: a new name, without brackets.
        function: phi on numpy arrays, elementwise.
        derivative: phi' on numpy arrays; checked against differences of ``function``.
        homogeneous: True if phi(a x) = a phi(x) for every a > 0.
        kinks: points where phi or phi' is not smooth.
        replace: allow an existing name to be redefined.
    """
    made = Activation(name, function, derivative, homogeneous, tuple(kinks))
    _check_derivative(made)
    ACTIVATIONS.add(name, _fixed(made), replace=replace)
    return made


def _check_derivative(made: Activation) -> None:
    x = np.linspace(-3.1, 2.9, 61)
    step = 1e-5
    x = x[[all(abs(v - k) > 10 * step for k in made.kinks) for v in x]]
    slope = (made.function(x + step) - made.function(x - step)) / (2 * step)
    worst = int(np.argmax(np.abs(slope - made.derivative(x))))
    claimed = float(np.asarray(made.derivative(x))[worst])
    if not abs(slope[worst] - claimed) <= 1e-5 * (1 + abs(slope[worst])):
        raise InputError(
            f"The derivative given for activation {made.name!r} is {claimed:.6g} at "
            f"x = {x[worst]:.3g}, but the function's slope there is {slope[worst]:.6g}. Every "
            "prediction would be wrong: correct the derivative, or list the point in kinks=."
        )


def _fixed(made: Activation) -> Callable[[float | None], Activation]:
    def make(parameter: float | None) -> Activation:
        if parameter is not None:
            raise InputError(f"Activation {made.name!r} takes no parameter. Got {parameter}.")
        return made

    return make


def _leaky_relu(parameter: float | None) -> Activation:
    slope = 0.01 if parameter is None else parameter
    if not abs(slope) < STEEPEST:
        raise InputError(f"The slope of leaky_relu must be below {STEEPEST:g}. Got {slope}.")
    return Activation(
        f"leaky_relu({slope!r})",
        lambda x: np.where(x > 0, x, slope * x),
        lambda x: np.where(x > 0, 1.0, slope),
        homogeneous=True,
        kinks=(0.0,),
        family="leaky_relu",
        parameter=slope,
    )


def _erf(parameter: float | None) -> Activation:
    scale = 1.0 if parameter is None else parameter
    if not 0 < scale < STEEPEST:
        raise InputError(
            f"The scale k of erf(k x) must be positive, below {STEEPEST:g}. Got {scale}."
        )
    return Activation(
        f"erf({scale!r})",
        lambda x: special.erf(scale * x),
        lambda x: 2 * scale / np.sqrt(np.pi) * np.exp(-((scale * x) ** 2)),
        family="erf",
        parameter=scale,
    )


def _gelu_derivative(x: Any) -> Any:
    return special.ndtr(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def _silu_derivative(x: Any) -> Any:
    gate = special.expit(x)
    return gate * (1 + x * (1 - gate))


_PLAIN = [
    Activation("linear", lambda x: x * 1.0, np.ones_like, True, (), "linear"),
    Activation(
        "relu",
        lambda x: np.maximum(x, 0.0),
        lambda x: np.where(x > 0, 1.0, 0.0),
        True,
        (0.0,),
        "relu",
    ),
    Activation("tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    Activation("sigmoid", special.expit, lambda x: special.expit(x) * special.expit(-x)),
    Activation("softplus", lambda x: np.logaddexp(0.0, x), special.expit),
    Activation("gelu", lambda x: x * special.ndtr(x), _gelu_derivative),
    Activation("silu", lambda x: x * special.expit(x), _silu_derivative),
]
ACTIVATIONS: Registry[Callable[[float | None], Activation]] = Registry(
    "activation",
    {made.name: _fixed(made) for made in _PLAIN} | {"leaky_relu": _leaky_relu, "erf": _erf},
)
