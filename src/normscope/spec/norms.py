"""What a normalization is: kind, parts, gain. It is the subject, so nothing is implied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import near_match

__all__ = ["LAST_NORMS", "LastNorm", "NormSpec", "norm_spec"]

KINDS = ("batch", "layer")
PARTS = ("mean", "variance", "scale", "shift")
LastNorm = Literal["mean", "batch", "layer"]
LAST_NORMS: tuple[LastNorm, ...] = ("mean", "batch", "layer")


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
        if self.kind not in KINDS:
            raise InputError(f"Unknown norm {self.kind!r}. {near_match(str(self.kind), [*KINDS])}")
        try:
            finite = math.isfinite(self.gamma)
        except TypeError:
            finite = False
        if not finite:
            raise InputError(f"gamma must be a finite number. Got {self.gamma!r}.")
        if self.gamma < 0:
            raise InputError(
                f"gamma must not be negative. Got {self.gamma}. The theory depends on gamma^2 for "
                "symmetric activations only, so a sign cannot be dropped; negate the activation."
            )
        unknown = [p for p in self.parts if p not in PARTS]
        if unknown:
            raise InputError(
                f"Unknown norm part {unknown[0]!r}. {near_match(unknown[0], [*PARTS])}"
            )
        if self.gamma != 1 and "scale" not in self.parts:
            raise InputError(
                f"gamma = {self.gamma} is the gain of the 'scale' part, which this norm does not "
                f"have: parts are {tuple(self.parts)}. Add 'scale', or leave gamma at 1."
            )
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InputError(f"eps must be finite and not negative. Got {self.eps!r}.")
        object.__setattr__(self, "gamma", float(self.gamma))
        object.__setattr__(self, "parts", tuple(p for p in PARTS if p in self.parts))


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
