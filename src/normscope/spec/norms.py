"""What a normalization is: kind, parts, gain. It is the subject, so nothing is implied."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import check_choice

T = TypeVar("T")
KINDS = ("batch", "layer")
PARTS = ("mean", "variance", "scale", "shift")
LastNorm = Literal["mean", "variance", "batch", "layer"]
LAST_NORMS: tuple[LastNorm, ...] = ("mean", "variance", "batch", "layer")


@dataclass(frozen=True, eq=False)
class NormSpec(Record):
    """One normalization layer, between an affine layer and its activation.

    Attributes:
        kind: ``"batch"`` (statistics over the batch, per unit) or ``"layer"`` (per sample).
        gamma: the gain after normalization, the same for every unit of the layer.
        parts: which of mean, variance, scale and shift are present.
        eps: added to the variance; the theory takes 0.
    """

    kind: str
    gamma: float = 1.0
    parts: tuple[str, ...] = PARTS
    eps: float = 0.0

    def __post_init__(self) -> None:
        check_choice("norm", self.kind, KINDS)
        gamma, eps = finite_number(self.gamma), finite_number(self.eps)
        if gamma is None:
            raise InputError(
                f"gamma must be a finite number. Got {self.gamma!r}. It multiplies every "
                "normalized unit, so nothing finite would follow; give 0 or a positive number."
            )
        if gamma < 0:
            raise InputError(
                f"gamma must not be negative. Got {self.gamma}. The theory depends on gamma^2 for "
                "symmetric activations only, so a sign cannot be dropped; negate the activation."
            )
        for part in listed("parts", self.parts):
            check_choice("norm part", part, PARTS)
        if gamma != 1 and "scale" not in self.parts:
            raise InputError(
                f"gamma = {self.gamma} is the gain of the 'scale' part, which this norm does not "
                f"have: parts are {tuple(self.parts)}. Add 'scale', or leave gamma at 1."
            )
        if eps is None or eps < 0:
            raise InputError(
                f"eps must be finite and not negative. Got {self.eps!r}. It is added to a "
                "variance; give 0 or a small positive number such as 1e-5."
            )
        object.__setattr__(self, "gamma", gamma)
        object.__setattr__(self, "eps", eps)
        object.__setattr__(self, "parts", tuple(p for p in PARTS if p in self.parts))


def finite_number(value: object) -> float | None:
    """``value`` as a float, or None if it is not a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def listed(name: str, values: Iterable[T]) -> list[T]:
    """``values`` as a list; a single value in the place of several is an error."""
    return checked_list(values, name)


def norm_spec(norm: str | NormSpec | None, gamma: float | None) -> NormSpec | None:
    """The norm a user named: None, a kind with its ``gamma``, or a ready ``NormSpec``."""
    if norm is None:
        if gamma is not None and gamma != 1.0:
            raise InputError(
                f"gamma = {gamma} was given, but the network has no norm for it to act on. "
                "Pass norm='batch' or norm='layer', or leave gamma out."
            )
        return None
    if isinstance(norm, NormSpec):
        if gamma is not None and gamma != norm.gamma:
            raise InputError(f"gamma = {gamma} contradicts the NormSpec's gamma = {norm.gamma}.")
        return norm
    return NormSpec(norm, 1.0 if gamma is None else gamma)
