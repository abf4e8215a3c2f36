"""Exact Hessians of single weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from normscope.errors import MeasurementError
from normscope.measure.operators.hessian import hessian
from normscope.measure.risk import Risk
from normscope.results.conditioning import CurvatureBlock
from normscope.results.eigenvalues import SignedSpectrum
from normscope.subject.memory import readable_bytes
from normscope.subject.problem import Problem

COPIES = 3


def hessian_blocks(
    problem: Problem, weights: Sequence[str], *, statistics: str, budget: int
) -> tuple[CurvatureBlock, ...]:
    """The spectrum of the Hessian in each of the named weights.

    Args:
        problem: the model and the batches that were looked at.
        weights: names of parameters.
        statistics: what batch norm does.
        budget: bytes that one matrix may take.
    """
    risk = Risk.of(problem, None, statistics=statistics)
    return tuple(_block(risk, name, budget) for name in weights)


def _block(risk: Risk, name: str, budget: int) -> CurvatureBlock:
    parameter = dict(risk.model.named_parameters()).get(name)
    if parameter is None:
        return CurvatureBlock(name, 0, None, "its weight is no parameter, but computed from others")
    size = parameter.numel()
    if not parameter.requires_grad:
        return CurvatureBlock(name, size, None, "its weight is frozen (requires_grad=False)")
    needed = COPIES * 8 * size**2
    if needed > budget:
        reason = (
            f"its Hessian of {size} x {size} needs {readable_bytes(needed)}, and the budget is "
            f"{readable_bytes(budget)}; raise memory=... or ask for top_eigenvalues(hessian(risk))"
        )
        return CurvatureBlock(name, size, None, reason)
    operator = hessian(risk, layers=name)
    try:
        matrix = operator.to_dense(limit=size).double().cpu()
    except MeasurementError as error:
        return CurvatureBlock(name, size, None, str(error))
    finally:
        operator.close()
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0).numpy()
    return CurvatureBlock(name, size, SignedSpectrum(values))
