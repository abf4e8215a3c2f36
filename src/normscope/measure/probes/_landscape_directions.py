"""Directions in parameter space: given, random, or from one state to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.seeds import numpy_generator
from normscope.subject.parameters import ParameterSet, parameter_kinds

State = Mapping[str, Tensor]


def given_tensors(
    model: nn.Module, parameters: ParameterSet, state: Any, rest: Sequence[Tensor], what: str
) -> list[Tensor]:
    """The tensors of a state or direction in the order of the parameters, checked.

    What it leaves out is taken from ``rest``; buffers in it are passed over.
    """
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(
            f"{what} must map names of parameters to tensors, as model.state_dict() does. Got a "
            f"{type(state).__name__}."
        )
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in state:
        if name not in every | buffers:
            raise InputError(
                f"{what} names {name!r}, which is no parameter of this model. "
                f"{near_match(name, sorted(every))}"
            )
    if not set(state) & set(parameters.names):
        raise InputError(f"{what} holds not one parameter of this model.")
    found = []
    for name, own in zip(parameters.names, rest, strict=True):
        tensor = state.get(name, own)
        if tensor.shape != own.shape:
            raise InputError(
                f"{what} has shape {tuple(tensor.shape)} for {name!r}, and the parameter "
                f"{tuple(own.shape)}."
            )
        found.append(tensor.detach().to(own))
    return found


def random_direction(values: Sequence[Tensor], seed: int, index: int) -> list[Tensor]:
    """Independent standard normal entries."""
    generator = numpy_generator(seed, "direction", index)
    drawn = [torch.from_numpy(generator.standard_normal(tuple(v.shape))) for v in values]
    return [entries.to(value) for entries, value in zip(drawn, values, strict=True)]


def by_filter(
    model: nn.Module, names: Sequence[str], values: Sequence[Tensor], direction: Sequence[Tensor]
) -> list[Tensor]:
    """Each filter of the direction with the length of the filter of the network (Li et al. 2018).

    A filter is what makes one output channel: a slice of a weight along its first axis. Biases,
    scales and shifts of norm layers do not move, as in the authors' code.
    """
    scaled, kinds = [], parameter_kinds(model)
    for name, value, step in zip(names, values, direction, strict=True):
        if kinds[name] != "weight" or value.ndim < 2:
            scaled.append(torch.zeros_like(value))
            continue
        rows, own = step.flatten(1), value.flatten(1)
        length = rows.norm(dim=1, keepdim=True)
        ratio = own.norm(dim=1, keepdim=True) / length.clamp(min=torch.finfo(rows.dtype).tiny)
        scaled.append((rows * ratio).view_as(value))
    return scaled
