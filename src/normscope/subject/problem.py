"""A model with its data and its loss: what every function of (model, data, loss) is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normscope.errors import InputError
from normscope.seeds import checked_seed
from normscope.subject.data import as_source
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn, as_objective
from normscope.subject.parameters import computed_dtype, floating_dtype
from normscope.subject.reading import Listed, Reading, Source
from normscope.subject.session import original_module


@dataclass(frozen=True, eq=False)
class Problem:
    """What is examined.

    Attributes:
        model: as given, without a compiled or parallel wrapper.
        source: the batches.
        objective: the loss and how a batch is run.
        seed: of the order of the data, and of what the model draws.
    """

    model: nn.Module
    source: Source
    objective: Objective
    seed: int


def as_problem(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    default: str | None = None,
    required: bool = True,
    exact: bool = False,
) -> Problem:
    """Check and gather what a measurement takes; see ``as_source`` and ``as_objective``."""
    check_model(model)
    module = original_module(model)
    objective = as_objective(loss, loss_fn, outputs_fn, default=default, required=required)
    dtype = floating_dtype(module)
    reading = Reading(
        batch_size,
        seed=checked_seed(seed),
        pairs=objective.pairs,
        dtype=None if dtype is None else computed_dtype(dtype),
        exact=exact,
    )
    source = Listed(data, reading) if exact and isinstance(data, list) else as_source(data, reading)
    return Problem(module, source, objective, reading.seed)


def check_model(model: nn.Module) -> None:
    """Refuse what is no module, a scripted one, and one spread over several devices."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module. Got {type(model).__name__} instead.")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "A scripted module cannot be measured: its parameters cannot be exchanged. Pass the "
            "original nn.Module."
        )
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) > 1:
        raise InputError(
            f"The parameters are spread over {', '.join(sorted(devices))}; one vector of all of "
            "them needs one device. Move the model with model.to(device)."
        )


def model_device(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
