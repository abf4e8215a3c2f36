"""Where samples, channels and positions stand in the axes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SAMPLE, CHANNEL = -2, -1  # kinds of atoms; positions are 0, 1, ...
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "squeeze",
         "unsqueeze", "flatten", "unflatten"}  # fmt: skip
COPIES = {"alias", "detach", "clone", "_to_copy", "to", "contiguous", "lift_fresh"}
TURNS = {"permute", "transpose", "t"}


class Atom(NamedTuple):
    """One axis of the theory.

    Attributes:
        kind: ``SAMPLE``, ``CHANNEL`` or the number of the side of the image.
        size: its length.
    """

    kind: int
    size: int


Axis = tuple[Atom, ...]  # several where axes were merged, none where one of length 1 was added
Axes = tuple[Axis, ...]


def kinds(axis: Axis) -> tuple[int, ...]:
    """What an axis holds."""
    return tuple(atom.kind for atom in axis)


def standard(samples: int, channels: int, sides: Sequence[int]) -> Axes:
    """Samples, channels, then each side."""
    places = [(Atom(k, side),) for k, side in enumerate(sides)]
    return ((Atom(SAMPLE, samples),), (Atom(CHANNEL, channels),), *places)


def viewed(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """The axes of a view of that shape; None if it cuts a side or the channels in pieces."""
    atoms = [atom for axis in axes for atom in axis]
    made: list[list[Atom]] = []
    for length in shape:
        made.append([])
        while math.prod(atom.size for atom in made[-1]) < length and atoms:
            made[-1].append(atoms.pop(0))
        if length == 1 and atoms and atoms[0].size == 1:
            made[-1].append(atoms.pop(0))
        if math.prod(atom.size for atom in made[-1]) != length:
            return None
    made[-1] += atoms  # of length 1
    return tuple(map(tuple, made))


def turned(axes: Axes, op: str, arguments: Sequence[object]) -> Axes:
    """The axes after ``permute``, ``transpose`` or ``t``."""
    order = list(range(len(axes)))
    if op == "permute":
        order = [int(k) for k in arguments[0]]  # type: ignore[attr-defined]
    elif op == "transpose":
        first, second = (int(str(k)) % len(axes) for k in arguments[:2])
        order[first], order[second] = second, first
    else:
        order.reverse()
    return tuple(axes[k] for k in order)


def without(axes: Axes, gone: Sequence[int], *, keep: bool) -> Axes:
    """The axes after a reduction over some of them, which stay with length 1 if ``keep``."""
    if keep:
        return tuple(() if k in gone else axis for k, axis in enumerate(axes))
    return tuple(axis for k, axis in enumerate(axes) if k not in gone)
