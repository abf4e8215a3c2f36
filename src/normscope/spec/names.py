"""Networks by name: ``mlp:784-1000-10``, ``cnn:3x32x32:30-60-90``, ``resmlp:784-500x4-10``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from normscope.errors import InputError
from normscope.registry import Registry
from normscope.spec.constructors import cnn, mlp, residual_mlp
from normscope.spec.network import NetworkSpec

Maker = Callable[[str, dict[str, Any]], NetworkSpec]
FORMS = {
    "mlp": "mlp:784-1000-1000-10",
    "cnn": "cnn:3x32x32:30-60-90",
    "resmlp": "resmlp:784-500-500-10",
}
# options that only some architectures have
OWN_OPTIONS = {
    "cnn": ("kernel", "stride", "padding", "outputs", "head"),
    "resmlp": ("branch_scale",),
}
_WIDTH = re.compile(r"(\d+)(?:x(\d+))?$")
MOST_LAYERS = 100_000  # a repeat count beyond is a typing error that would fill the memory


def network(name: str, options: dict[str, Any], *, given: Collection[str] = ()) -> NetworkSpec:
    """The network called ``name`` with the constructor arguments ``options``.

    Args:
        name: architecture and sizes, e.g. ``mlp:784-1000x3-10`` (``1000x3``: three times 1000).
        options: arguments of the constructor, those of other architectures among them.
        given: names of the options the user set; one that cannot apply is an error.
    """
    kind, _, sizes = name.partition(":")
    make = ARCHITECTURES[kind]
    if not sizes:
        raise InputError(f"The architecture {name!r} has no sizes. Write it as {FORMS[kind]}.")
    for owner, own in OWN_OPTIONS.items():
        misplaced = [option for option in own if option in given and owner != kind]
        if misplaced:
            raise InputError(
                f"{misplaced[0].replace('_', '-')} is an option of {owner}, and {name!r} is a "
                f"{kind}. Leave it out, or use an architecture such as {FORMS[owner]}."
            )
    shared = {k: v for k, v in options.items() if not any(k in own for own in OWN_OPTIONS.values())}
    return make(sizes, shared | {k: options[k] for k in OWN_OPTIONS.get(kind, ()) if k in options})


def _mlp(sizes: str, options: dict[str, Any]) -> NetworkSpec:
    return mlp(_widths(sizes, "mlp"), **options)


def _residual_mlp(sizes: str, options: dict[str, Any]) -> NetworkSpec:
    return residual_mlp(_widths(sizes, "resmlp"), **options)


def _cnn(sizes: str, options: dict[str, Any]) -> NetworkSpec:
    shape, _, channels = sizes.partition(":")
    sides = shape.split("x")
    if len(sides) != 3 or not all(side.isdecimal() for side in sides):
        raise InputError(
            f"A cnn begins with its input, channels x height x width. Got {shape!r}. "
            f"Write it as {FORMS['cnn']}."
        )
    return cnn([int(side) for side in sides], channels=_widths(channels, "cnn"), **options)


def _widths(sizes: str, kind: str) -> list[int]:
    widths: list[int] = []
    for part in sizes.split("-"):
        match = _WIDTH.match(part)
        if match is None or int(match[2] or 1) > MOST_LAYERS:
            raise InputError(
                f"The sizes of {kind} are whole numbers joined by '-'. Got {part!r} in {sizes!r}. "
                f"Write it as {FORMS[kind]}."
            )
        widths += [int(match[1])] * int(match[2] or 1)
    return widths


ARCHITECTURES: Registry[Maker] = Registry(
    "architecture", {"mlp": _mlp, "cnn": _cnn, "resmlp": _residual_mlp}
)
