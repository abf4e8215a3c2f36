"""Batches divided over processes: sums over processes, and a check that all measure the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from normscope.errors import InputError, MeasurementError

if TYPE_CHECKING:
    from normscope.measure.risk import Risk


@dataclass(frozen=True)
class Sharing:
    """The processes that share one risk, and what they hold together."""

    group: Any
    rank: int
    processes: int
    num_batches: int
    num_samples: int

    def summed(self, total: Tensor) -> Tensor:
        """The sum over all processes; every process gets the same bits."""
        device = total.device
        moved = total.detach().to(self._device(device)).clone()
        dist.all_reduce(moved, group=self.group)
        return moved.to(device)

    def _device(self, device: torch.device) -> torch.device:
        """Nccl sums on the GPU, gloo on the CPU."""
        return device if dist.get_backend(self.group) == "nccl" else torch.device("cpu")


def joined(risk: Risk, group: Any = None) -> Sharing:
    """Meet the other processes; refuse if they do not hold the same model and conventions."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "Sharing a risk needs torch.distributed. Call torch.distributed.init_process_group "
            "first (backend 'gloo' on CPU, 'nccl' on GPU), or measure in one process."
        )
    mine = {
        "loss": risk.loss.description,
        "statistics": risk.statistics,
        "parameters": ", ".join(risk.parameters.names),
        "values of the model": _fingerprint(risk),
        "seed": str(risk.seed),
    }
    counts = (len(risk.batches), sum(batch.size for batch in risk.batches))
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, (mine, counts), group=group)
    _check_alike([entry[0] for entry in found])
    batches, samples = (sum(all_of) for all_of in zip(*(entry[1] for entry in found), strict=True))
    return Sharing(group, dist.get_rank(group), len(found), batches, samples)


def _fingerprint(risk: Risk) -> str:
    """Sums of what the loss depends on, and of the squares, in float64, to the last bit."""
    values = [p.detach().double() for p in risk.model.parameters()]
    if risk.statistics == "running":  # otherwise each process has its own, as in training
        values += [b.detach().double() for b in risk.model.buffers()]
    return " ".join(float(v.sum()).hex() + float(v.square().sum()).hex() for v in values)


def _check_alike(entries: Sequence[dict[str, str]]) -> None:
    for rank, entry in enumerate(entries):
        for what, value in entries[0].items():
            if entry[what] != value:
                shown = "" if what.startswith("values") else f": {entry[what]!r} against {value!r}"
                raise MeasurementError(
                    f"Process {rank} and process 0 differ in the {what}{shown}. A sum over "
                    "processes would mix two matrices. Give every process the same model (the "
                    "same seed, or broadcast its state) and the same arguments; only batches "
                    "may differ."
                )
