"""Layer-wise conditioning: second moments of layer inputs and of output gradients (Huang)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.measure.probes._conditioning_exact import ExactCurvature
from normscope.measure.probes._conditioning_hessian import hessian_blocks
from normscope.measure.probes._conditioning_probe import (
    SCALES,
    LossMoments,
    MomentProbe,
    SlopeMoments,
)
from normscope.measure.probes._conditioning_slopes import KINDS
from normscope.measure.probes.run import Layers, run_probes
from normscope.registry import check_choice
from normscope.results.conditioning import Conditioning, CurvatureBlock
from normscope.results.eigenvalues import checked_share
from normscope.seeds import checked_seed
from normscope.subject.memory import budget_bytes
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn
from normscope.subject.problem import as_problem, model_device
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES, Kept

EXACT = (None, "blocks", "full")


@measurement
def conditioning(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
    kind: str = "empirical",
    centered: bool = False,
    spatial_scale: str = "example",
    patches: bool = False,
    p: Sequence[float] = (0.5, 0.8, 0.9, 1.0),
    exact: str | None = None,
    hessian: bool = False,
    moments: bool = False,
    memory: str | int | None = None,
) -> Conditioning:
    r"""How well conditioned each layer is: spectra of its inputs and of the gradients that return.

    .. math:: \Sigma_x = E[x x^\top],\quad \Sigma_g = E[g g^\top],\quad
              F_k \approx \Sigma_x \otimes \Sigma_g,\quad
              \kappa_p = \lambda_{(1)} / \lambda_{(\lceil p d\rceil)}

    x is the input of a linear or convolutional layer, g the gradient of an example's own loss in
    its output. Every position of a feature map or sequence is one sample of x and g. lambda_max of
    F_k tells the size of the layer's weight gradients, kappa_p how unevenly its directions are
    learned. Moments are summed in float64 over batches of any number. With
    ``statistics="batch"``, g is the derivative of the sum of all losses of the batch, the way
    through batch statistics included; with ``"frozen"`` or ``"running"`` it is that of one example.

    Args:
        model: any module; left as it was, bit by bit.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss or ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for sampled labels, dropout and the order of a data set.
        kind: whose labels: ``"empirical"`` (the data's), ``"sampled"`` (one draw from the model per
            example) or ``"true"`` (expectation over the model's labels, one backward pass per
            output; with batch statistics one per sample and output).
        centered: subtract the means E[x] and E[g].
        spatial_scale: ``"example"``, or ``"position"`` for g times the number of positions.
        patches: x of a convolution is what its window sees, as in K-FAC, not one position.
        p: shares of kappa_p in tables and charts.
        exact: ``"blocks"``: the exact matrix E[(g g^T) (x) (x x^T)] of each layer's weight, for
            small layers; ``"full"``: of all weights together, and its blocks.
        hessian: the exact Hessian of the loss in each weight, for small layers.
        moments: keep Sigma_x and Sigma_g themselves.
        memory: budget for all matrices, such as ``"2GB"``; None is half of what is free. A layer
            whose moments do not fit is left out with the reason.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> found = conditioning(net, (x, torch.tensor([0, 1])), "cross_entropy")
        >>> found[1].inputs.values, found[1].inputs.kappa(1.0)
        (array([2. , 0.5]), 4.0)
    """
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed)
    shares = tuple(checked_share(share) for share in checked_list(p, "p"))
    _check_options(kind, spatial_scale, exact)
    budget = budget_bytes(memory, model_device(problem.model))
    curvature = ExactCurvature(full=exact == "full", budget=budget) if exact else None
    make = _probe_of(problem.objective, kind)
    probe = make(kind, centered, spatial_scale, patches, curvature, hessian, budget, seed)
    passes = run_probes(problem, [probe], num_batches, statistics, layers)
    found = tuple(probe.layer(s.name, keep=moments) for s in passes.coverage[0].ok)
    blocks, full = probe.exact.result() if probe.exact else ((), None)
    hessians: tuple[CurvatureBlock, ...] = ()
    if hessian:
        names = list(dict.fromkeys(layer.weight or layer.name for layer in found))
        seen = replace(problem, source=Kept(probe.batches, problem.source.reading))
        hessians = hessian_blocks(seen, names, statistics=statistics, budget=budget)
    return Conditioning(
        layers=found,
        coverage=passes.coverage[0],
        convention={**passes.convention, **probe.convention},
        p=shares,
        blocks=blocks,
        full=full,
        hessians=hessians,
        seed=checked_seed(seed),
    )


def _check_options(kind: str, spatial_scale: str, exact: str | None) -> None:
    KINDS[kind]  # an unknown name is refused, with the known ones
    check_choice("spatial_scale", spatial_scale, SCALES)
    if exact not in EXACT:
        raise InputError(f"exact must be None, 'blocks' or 'full'. Got {exact!r}.")


def _probe_of(objective: Objective, kind: str) -> type[MomentProbe]:
    if objective.has_outputs:
        return SlopeMoments
    if kind != "empirical":
        raise InputError(
            f"kind={kind!r} needs the outputs of the model, and loss_fn(model, batch) hides them. "
            "Pass loss= and, if needed, outputs_fn=(model, batch) -> (outputs, targets); or "
            "kind='empirical'."
        )
    return LossMoments
