"""Which models and devices can be used at all."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from normscope.errors import InputError
from normscope.messages import kind_of


def check_usable(model: object) -> None:
    """Refuse what is no module, is scripted or exported, or has no values."""
    how = "scripted" if isinstance(model, torch.jit.ScriptModule) else ""
    if how or is_exported(model):
        how = how or "exported"
        raise InputError(
            f"The model is {how}, which fixes its layers and its mode (train or eval). Pass the "
            f"nn.Module as it was before it was {how}."
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module. Got {kind_of(model)}.")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise InputError(
                f"{name!r} has no shape yet (a lazy layer). Run the model once on a batch first."
            )
        if tensor.is_meta:
            raise InputError(
                f"{name!r} is on the meta device and has no values. Build the model on a real "
                "device, or call model.to_empty(device=...) and load its weights."
            )


def is_exported(model: object) -> bool:
    """Whether it is a program of ``torch.export``, or a module of one (its ``train`` fails)."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    fixed = any(isinstance(m, torch.fx.GraphModule) and "train" in vars(m) for m in parts)
    return fixed or isinstance(model, torch.export.ExportedProgram)


def usable_device(device: torch.device | str) -> torch.device:
    """The device that is meant, if tensors can be made there."""
    try:
        place = torch.device(device)
        if place.type != "meta":
            torch.empty(0, device=place)
            return place
        reason = "it holds no values"
    except (RuntimeError, AssertionError, TypeError) as error:  # torch's ways to say no
        reason = str(error).splitlines()[0].rstrip(":.")
    raise InputError(f"The device {device!r} cannot be used: {reason}.")
