"""A norm on the outputs, applied analytically: the Jacobian of the norm on both sides of F*."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from normscope.errors import InputError, MeasurementError
from normscope.measure.risk import Risk
from normscope.registry import Registry
from normscope.subject.batch import float_leaves
from normscope.subject.likelihoods import SquaredLoss


@dataclass(frozen=True)
class OutputMap:
    """The Jacobian B of a norm on the outputs, one dense block per batch."""

    blocks: list[Tensor]  # (T C, T C) each

    def congruence(self, gram: Tensor) -> Tensor:
        """The matrix B F* B^T."""
        return self._left(self._left(gram).T)

    def _left(self, matrix: Tensor) -> Tensor:
        rows, start = [], 0
        for block in self.blocks:
            rows.append(block @ matrix[start : start + len(block)])
            start += len(block)
        return torch.cat(rows)


def output_map(risk: Risk, last_norm: str) -> OutputMap:
    """B of the norm called ``last_norm`` at the outputs of each batch, without gain and shift."""
    make = _NORMS[last_norm]
    if not isinstance(risk.loss, SquaredLoss):
        raise InputError(
            f"last_norm={last_norm!r} is applied to J J^T of the squared loss. Got the loss "
            f"{risk.loss.description}: put the norm into the model and measure that."
        )
    function = risk.function()
    blocks = []
    for batch in risk.batches:
        with function.open(), torch.no_grad():
            leaves = float_leaves(function(function.values, function.prepared(batch)))
        if len(leaves) != 1 or leaves[0].ndim != 2:
            raise InputError(
                "last_norm= needs one output tensor of shape (samples, outputs). Got shapes "
                f"{[tuple(x.shape) for x in leaves]}."
            )
        blocks.append(make(leaves[0]))
    return OutputMap(blocks)


def _mean(outputs: Tensor) -> Tensor:
    samples, width = outputs.shape
    centre = torch.eye(samples).to(outputs) - 1 / samples
    return torch.kron(centre, torch.eye(width).to(outputs))


def _batch(outputs: Tensor, *, subtract: bool = True) -> Tensor:
    r"""B_k = (1/sigma_k) (G - v u^T / (T sigma_k^2)) for each output k, u the centred outputs.

    v is u; where the mean is not subtracted, v is the output itself and G = I.
    """
    samples, width = outputs.shape
    centred = outputs - outputs.mean(0)
    sigma2 = centred.square().mean(0)
    if not bool((sigma2 > 0).all()):
        raise MeasurementError(
            f"Output {int((sigma2 == 0).nonzero()[0])} is the same for every sample: the norm "
            "would divide by zero."
        )
    kept = torch.eye(samples).to(outputs) - (1 / samples if subtract else 0)
    block = outputs.new_zeros(samples, width, samples, width)
    for k in range(width):
        v = (centred if subtract else outputs)[:, k]
        slope = torch.outer(v, centred[:, k]) / (samples * sigma2[k])
        block[:, k, :, k] = (kept - slope) / sigma2[k].sqrt()
    return block.reshape(samples * width, samples * width)


def _layer(outputs: Tensor) -> Tensor:
    r"""(1/sigma_t) (I - 1 1^T / C - n_t n_t^T / C) for each sample t."""
    width = outputs.shape[1]
    centred = outputs - outputs.mean(1, keepdim=True)
    sigma = centred.square().mean(1, keepdim=True).sqrt()
    if not bool((sigma > 0).all()):
        raise MeasurementError(
            f"Sample {int((sigma[:, 0] == 0).nonzero()[0])} has equal outputs: layer norm would "
            "divide by zero."
        )
    unit = centred / sigma
    eye = torch.eye(width).to(outputs) - 1 / width
    blocks = (eye - unit[:, :, None] * unit[:, None, :] / width) / sigma[:, :, None]
    index = torch.arange(len(outputs), device=outputs.device)
    made = outputs.new_zeros(len(outputs), width, len(outputs), width)
    made[index, :, index, :] = blocks
    return made.reshape(len(outputs) * width, -1)


_NORMS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "norm on the outputs",
    {"mean": _mean, "variance": partial(_batch, subtract=False), "batch": _batch, "layer": _layer},
)
