"""Networks by name, shared by Python and the command line."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from normscope.annotations import fits, hints
from normscope.errors import InputError, out_of_memory
from normscope.nn.build import build
from normscope.nn.zoo.imagenet import imagenet_resnet
from normscope.nn.zoo.maker import Design
from normscope.nn.zoo.plain import cnn6, mlp_network, vgg16
from normscope.nn.zoo.residual import cifar_preresnet, cifar_resnet, cifar_vgg, resnet18
from normscope.registry import Registry, near_match
from normscope.spec import cnn, mlp

_DEPTH = re.compile(r"(resnet|vgg|preresnet)(\d+)")
_FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "resnet": cifar_resnet,
    "vgg": cifar_vgg,
    "preresnet": cifar_preresnet,
}


_OTHERS = ("resnet50", "resnet152")  # of depth 6n + 2, but everyone means another network
_WEI: dict[str, Any] = {"weight_variance": 2.0, "bias_variance": 0.5}  # of Wei et al. 2019


def network(name: str, *, seed: int = 0, **options: Any) -> nn.Module:
    """A network by name: ``"resnet20"``, ``"mlp:784-256-10"``, ``"cnn6"``, ``"wei-cnn"``, ...

    Options may stand in the name, ``"resnet110:norm=none,extra_norms=top"``, behind commas or
    colons; several values are joined by ``+``. Residual and VGG-style networks are those for CIFAR,
    in every depth 6n + 2; those for ImageNet are ``"imagenet-resnet18"``, 34, 50, 101 and 152.

    Args:
        name: a name in ``ZOO``, with options.
        seed: seed for the weights.
        **options: options of the network's function (``classes``, ``width``, ``side`` of images,
            ``inputs`` of ``"wei-mlp"``, ...) and the fields of ``Design``: ``norm``,
            ``norm_layers``, ``gamma``, ``extra_norms``, ``activation``, ``dropout``,
            ``dropout_at``, ``init``, ``norm_options``; Wei's networks have ``norm`` and ``gamma``.

    Example:
        >>> sum(p.numel() for p in network("resnet20").parameters())
        269722
    """
    if not isinstance(name, str):
        raise InputError(f"A network's name is text such as 'resnet20'. Got {name!r}.")
    base, _, rest = name.partition(":")
    make = _factory(base.strip())
    positional, written = _parsed(rest)
    given = {**written, **options, "seed": seed}
    _check_options(base, make, positional, given)
    try:
        return make(*positional, **given)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(f"The network {name!r} does not fit into memory.") from None


def _factory(base: str) -> Callable[..., nn.Module]:
    match = _DEPTH.fullmatch(base)
    if base in _OTHERS:
        raise InputError(
            f"{base!r} is known as the ImageNet network: take 'imagenet-{base}', which has the "
            f"layers of torchvision.models.{base}. Names without 'imagenet-' are the networks for "
            "CIFAR, of depth 6n + 2: 'resnet56' and 'resnet110' among them; "
            "normscope.nn.zoo.cifar_resnet(depth) makes any of them."
        )
    if base not in ZOO and match is not None:
        family, depth = match.groups()
        return functools.partial(_FAMILIES[family], int(depth))
    return ZOO[base]


def _parsed(rest: str) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in re.split("[,:]", rest))):
        key, equals, value = item.partition("=")
        if equals:
            named[key.strip().replace("-", "_")] = _values(value.strip())
        else:
            positional.append(_widths(item))
    return positional, named


def _widths(text: str) -> list[int]:
    try:
        return [int(width) for width in re.split("[-x]", text)]
    except ValueError:
        raise InputError(
            f"Expected widths such as 784-256-10 or option=value behind the name. Got {text!r}."
        ) from None


def _values(text: str) -> Any:
    if "+" in text:
        return tuple(_values(piece) for piece in text.split("+"))
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _check_options(
    base: str, make: Callable[..., nn.Module], positional: list[Any], options: dict[str, Any]
) -> None:
    parameters = inspect.signature(make).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    kinds = hints(make.func if isinstance(make, functools.partial) else make)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        known |= set(Design.__dataclass_fields__)
    takes = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    for option, value in options.items():
        if option not in known:
            raise InputError(
                f"Network {base!r} has no option {option!r}. {near_match(option, sorted(known))}"
            )
        if option in kinds and not fits(value, kinds[option]):
            shown = inspect.formatannotation(kinds[option])
            raise InputError(f"{option} of network {base!r} must be {shown}. Got {value!r}.")
    if len(positional) != takes:
        raise InputError(
            f"Network {base!r} takes {takes} list of widths behind its name, as in "
            f"'mlp:784-256-10'. Got {len(positional)}."
        )


def _wei_mlp(
    *, inputs: int = 784, width: int = 1000, classes: int = 10, norm: str | None = "batch",
    gamma: float | None = None, seed: int = 0,
) -> nn.Module:  # fmt: skip
    """Wei's fully connected network: 784-1000-1000-1000-10, variances 2 and 0.5."""
    widths = [inputs, width, width, width, classes]
    return build(mlp(widths, norm=norm, gamma=gamma, **_WEI), seed)


def _wei_cnn(
    *, channels: int = 3, side: int = 32, width: int = 30, classes: int = 10,
    norm: str | None = "batch", gamma: float | None = None, seed: int = 0,
) -> nn.Module:  # fmt: skip
    """Wei's convolutional network: 30-60-90 channels, kernel 3, stride 2, a dense read-out."""
    spec = cnn(
        (channels, side, side), channels=[width, 2 * width, 3 * width], stride=2, outputs=classes,
        norm=norm, gamma=gamma, **_WEI,
    )  # fmt: skip
    return build(spec, seed)


_NAMED: dict[str, Callable[..., nn.Module]] = {
    **{"mlp": mlp_network, "cnn6": cnn6, "vgg16": vgg16, "resnet18": resnet18},
    **{"wei-mlp": _wei_mlp, "wei-cnn": _wei_cnn},
}
ZOO: Registry[Callable[..., nn.Module]] = Registry("network", _NAMED)
for _depth in (8, 14, 20, 32, 44, 56, 110, 1202):
    for _family, _make in _FAMILIES.items():
        ZOO.add(f"{_family}{_depth}", functools.partial(_make, _depth))
for _depth in (18, 34, 50, 101, 152):
    ZOO.add(f"imagenet-resnet{_depth}", functools.partial(imagenet_resnet, _depth))
