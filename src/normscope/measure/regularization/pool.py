"""The samples that stand for the population, from whatever holds data."""

from __future__ import annotations

from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.subject.batch import Batch, joined
from normscope.subject.functional import ModelFunction
from normscope.subject.parameters import select_parameters
from normscope.subject.problem import Problem
from normscope.subject.process import kept_generators

LEAST = 4  # samples: fewer have no fourth moment worth the name


def population_function(problem: Problem) -> ModelFunction:
    """The model in evaluation mode, as a function of its trainable parameters."""
    return ModelFunction(
        problem.model, select_parameters(problem.model, None), problem.objective,
        statistics="running", seed=problem.seed,
    )  # fmt: skip


def pool_of(problem: Problem, *, max_samples: int | None) -> Batch:
    """The first ``max_samples`` samples of the data, in their seeded order, as one batch."""
    limit = None if max_samples is None else checked_count(max_samples, "max_samples")
    if not problem.objective.has_outputs:
        raise InputError(
            "loss_fn(model, batch) hides the outputs, which are needed here sample by sample. Pass "
            "loss= and, for batches that are not (inputs, targets), outputs_fn=."
        )
    function, held, count = population_function(problem), [], 0
    with kept_generators(problem.source.generators):
        for batch in problem.source.epoch(0):
            held.append(function.with_targets(batch))
            count += batch.size
            if limit is not None and count >= limit:
                break
    pool = joined(held)
    pool = pool if limit is None or limit >= pool.size else pool.part(0, limit)
    _check(pool)
    return pool


def _check(pool: Batch) -> None:
    if pool.targets is None:
        raise InputError(
            "The loss gap needs targets, and the data have none. Pass pairs (inputs, targets), or "
            "outputs_fn(model, batch) -> (outputs, targets)."
        )
    rows = {len(t) for t in pytree.tree_leaves(pool.targets) if isinstance(t, Tensor) and t.ndim}
    if rows != {pool.size}:
        raise InputError(
            f"Inputs and targets must have one row per sample. Got {pool.size} inputs and targets "
            f"of length {sorted(rows)}."
        )
    if pool.size < LEAST:
        raise InputError(
            f"The population has {pool.size} samples, too few for its moments. Pass at least "
            f"{LEAST}, better a thousand."
        )
