"""Transforms of the weights: fold norms into them, freeze, scale."""

from __future__ import annotations

import copy
import fnmatch
import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.nn.norm import UnitWeight
from normscope.nn.norm.channel import inverse_deviation
from normscope.registry import near_match
from normscope.subject.transforms.base import TRANSFORMS, Change, Edit, TransformKind, number_or_nan
from normscope.subject.transforms.finding import Norm, norms_of, num_channels, selected
from normscope.subject.transforms.structure import Structure


def detached_copy(layer: nn.Module) -> nn.Module:
    """A copy with parameters of its own and the weights that the layer computes with."""
    twin = copy.deepcopy(layer)
    if not parametrize.is_parametrized(layer):
        return twin
    # torch's remove_parametrizations edits the class, which the copy shares with the original
    chains = layer.parametrizations
    assert isinstance(chains, nn.ModuleDict)
    twin.__class__ = type(layer).__bases__[0]
    del twin._modules["parametrizations"]
    for name in chains:
        twin.register_parameter(name, nn.Parameter(getattr(layer, name).detach().clone()))
    return twin


def _fold(what: str | None, value: str | None) -> Change:
    if value is not None:
        raise InputError(f"fold takes no value behind '='. Got {value!r}.")

    def change(model: nn.Module, edit: Edit) -> None:
        norms = norms_of(model, what)
        structure = Structure(model, edit.example)
        pairs = [(structure.affine_before(n[0]), n, name) for name, n in norms.items()]
        for affine, norm, name in pairs:
            factor, offset = _channel_map(norm, name)
            _check_channels(affine, norm, name)
            edit.replace(affine, _folded(affine, factor, offset))
            edit.replace(norm[0], nn.Identity())

    return change


def _channel_map(norm: Norm, name: str) -> tuple[Tensor, Tensor]:
    """Evaluation mode as y = factor x + offset, per channel."""
    layer, card = norm
    stored = card.stored_statistics(layer)
    if stored is None:
        raise InputError(
            f"{type(layer).__name__} {name!r} has no stored statistics: what it does depends on "
            "its input, so that it cannot be folded into weights. Fold batch norms only, by a glob."
        )
    (mean, variance), gamma, beta = stored, card.gamma(layer), card.beta(layer)
    factor, shift = torch.full_like(mean, card.gain), torch.zeros_like(mean)
    if "variance" in card.parts:
        about = mean if card.centred else None
        factor = factor * inverse_deviation(variance, about, eps=card.eps or 0.0)
    if gamma is not None:
        factor = factor * gamma.detach()
    if "mean" in card.parts:
        shift = -factor * mean
    if beta is not None:
        shift = shift + beta.detach()
    return factor, shift


def _check_channels(affine: nn.Module, norm: Norm, name: str) -> None:
    """Behind a linear layer on sequences torch's batch norm takes the positions as channels."""
    weight = affine.weight
    assert isinstance(weight, Tensor)
    if num_channels(norm) != weight.shape[0]:
        raise InputError(
            f"Norm {name!r} has {num_channels(norm)} channels, but the layer before it has "
            f"{weight.shape[0]} outputs: it normalizes another axis, so that it cannot be joined "
            "with their weights. Leave it out with a glob."
        )


@torch.no_grad()
def _folded(affine: nn.Module, factor: Tensor, offset: Tensor) -> nn.Module:
    twin = detached_copy(affine)
    weight, bias = twin.weight, twin.bias
    assert isinstance(weight, Tensor)
    weight.mul_(factor.view(-1, *[1] * (weight.ndim - 1)))
    before = bias if isinstance(bias, Tensor) else torch.zeros_like(offset)
    twin.bias = nn.Parameter(before * factor + offset)
    return twin


def _freeze(what: str | None, value: str | None) -> Change:
    if what is None or value is not None:
        raise InputError(
            "freeze names layers or parameters, as in 'freeze:stage1' or 'freeze:*.conv1.weight'."
        )

    def change(model: nn.Module, edit: Edit) -> None:
        layers = fnmatch.filter([n for n, _ in model.named_modules() if n], what)
        parameters = dict(model.named_parameters())
        chosen = set(fnmatch.filter(parameters, what))
        chosen |= {p for p in parameters for n in layers if p.startswith(f"{n}.")}
        if not chosen:
            known = [*parameters, *(n for n, _ in model.named_modules() if n)]
            raise InputError(f"No layer or parameter fits {what!r}. {near_match(what, known)}")
        for name in sorted(chosen):
            edit.set(parameters[name], "requires_grad", False)

    return change


def _scale(what: str | None, value: str | None) -> Change:
    factor = number_or_nan(value)
    if not (math.isfinite(factor) and factor != 0):
        raise InputError(
            f"scale-weights needs a finite factor other than 0, as in 'scale-weights=2'. Got "
            f"{value!r}."
        )

    def change(model: nn.Module, edit: Edit) -> None:
        layers: dict[str, nn.Module] = {
            n: m for n, m in model.named_modules() if isinstance(m, AFFINE)
        }
        if not layers:
            raise InputError(
                f"{type(model).__name__} has no linear or convolutional layer to scale."
            )
        chosen = selected(layers, what, "linear or convolutional layer")
        # layers may share one tensor, which is scaled once
        for weight in {_raw_weight(layer, name): None for name, layer in chosen.items()}:
            edit.fill(weight, weight.detach() * factor)

    return change


def _raw_weight(layer: nn.Module, name: str) -> Tensor:
    weight = layer.weight
    if parametrize.is_parametrized(layer, "weight"):
        chain = layer.parametrizations.weight  # type: ignore[union-attr]
        if len(chain) > 1 or not isinstance(chain[0], UnitWeight):  # type: ignore[arg-type, index]
            raise InputError(
                f"The weights of {name!r} are computed from others ({type(chain[0]).__name__}), "  # type: ignore[index]
                "and scaling those need not scale the weights. Leave the layer out with a glob."
            )
        weight = chain.original  # type: ignore[union-attr]
    assert isinstance(weight, Tensor)
    return weight


_ENTRIES = {
    "fold": (_fold, "[:GLOB]", "trained batch norm becomes part of the weights before it"),
    "freeze": (_freeze, ":GLOB", "layers or parameters that are not trained"),
    "scale-weights": (_scale, "[:GLOB]=NUMBER", "multiply weights, not biases"),
}
for _name, (_make, _rest, _meaning) in _ENTRIES.items():
    TRANSFORMS.add(_name, TransformKind(_make, _name + _rest, _meaning))
