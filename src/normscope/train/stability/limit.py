"""The largest stable learning rate of a network, by bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from normscope.checks import as_float, checked_count, checked_seconds
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.measure.progress import progress
from normscope.results.stability import StabilityLimit
from normscope.seeds import checked_seed
from normscope.subject.data import repeatable
from normscope.subject.interrupts import held, hold_rest, interruptible
from normscope.subject.objective import LossFn, LossLike, OutputsFn, as_objective
from normscope.subject.process import measurement
from normscope.train.optim import OptimizerFactory
from normscope.train.options import TrainingOptions
from normscope.train.run import INTERRUPTED
from normscope.train.stability.bisection import CRITERIA, Bisection
from normscope.train.stability.copies import ModelOrFactory, Origin
from normscope.train.stability.trials import Bench, Recipe, SearchEnded

RULE = Divergence()
COARSE = 0.1  # relative width for the criterion that was not asked for
MOST_SEEDS = 1000
SMALLEST = 1e-6  # relative width below which rounding decides


@measurement
def max_stable_lr(
    model: ModelOrFactory,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    steps: int = 50,
    criterion: str = "diverges",
    seeds: int | Sequence[int] = 3,
    batch_size: int | None = None,
    num_batches: int | None = None,
    bracket: tuple[float, float] | None = None,
    tol: float = 0.02,
    divergence: Divergence = RULE,
    max_seconds: float | None = None,
    device: torch.device | str | None = None,
    after_step: Callable[[StabilityLimit], object] | None = None,
) -> StabilityLimit:
    r"""The largest learning rate at which a network still trains, by training copies of it.

    Three limits can be told apart. Two are always found, because they can differ by orders of
    magnitude: where training *diverges* (the loss is not finite or above max(1e3, 10 x its first
    value)), and where it *does not learn*. A training run learns if the mean of the last quarter
    of its losses is, by two standard errors, below that of the untrained model on the same batches
    and below that of the best constant answer, and at least half as far below both as the best run
    of the search. Too small a rate does not learn either, so this second limit is the highest
    switch, searched from divergence downwards. A network that has died does not diverge: where the
    first limit lies above the second, ``reason`` and ``summary()`` say so. The third,
    ``criterion="leaves"``, is that of a minimum: start close to one, and find where the loss rises
    above 10 times its first value, however small that is. This is the limit 2 (1 + momentum) /
    lambda_max of the Hessian there; a network that leaves a minimum need not diverge, because it
    may find a flatter one.

    Learning rates are tried outwards from a guess, in strides of 4, 16, 256, ..., then by bisection
    in log-lr; every outcome of every seed is kept. The first seed narrows the interval to ``tol``;
    then rates up to 1.5 times outside of it are tried, because divergence need not be monotone in
    the rate: with momentum 0.9 two of three small networks diverge at some rates below others that
    they survive. Then the interval spans all of these, and ``reason`` says that there is no single
    limit (five rates on either side miss some of them). The other seeds are tried at both ends,
    widen the interval where they differ, and at 4 times its upper end.

    On a quadratic the limit is 2 (1 + momentum) / lambda_max (torch's momentum). At a rate
    1 + e times that the loss grows by about 1 + 4 e per update (momentum: faster), so a fixed
    number of updates would miss divergence close to the limit. Hence a training goes on, up to
    20 ``steps``, as long as its loss is clearly rising and would break the rule by then, and the
    last bisections take at least 2.5 / (relative width) updates. What is called divergence did
    break the rule; nothing is extrapolated. What bias remains is upwards, where the unstable
    direction starts with a small share of the loss: over 36 random regressions with momentum 0,
    0.5 and 0.9 the answer was within 1.3 % of the formula. With mini-batches, nonlinear networks
    or adaptive optimizers there is no such formula: then this is a measurement.

    Args:
        model: a module, of which copies are trained, or a function that returns one, asked once
            per seed (with ``seed=`` if it has such an argument). Your model is never touched.
            Copies of a model in half precision are trained in float32, as it is measured.
        data: as in ``fit``. Every training run reads all its batches, in the same order; of data
            that can be read only once, the first ``steps`` + 1 batches are kept.
        loss: as in ``fit``; or pass ``loss_fn``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``, for batches of any form.
        outputs_fn: as in ``fit``.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, or a function of the parameters, whose
            groups keep the ratio of their rates; the answer is the rate of the first group.
        momentum: SGD momentum, in torch's convention.
        weight_decay: as in torch.
        steps: number of updates of a training run.
        criterion: ``"diverges"``, ``"does-not-learn"`` or ``"leaves"``: which limit is the
            headline; the others are found to 10 %, but ``"leaves"`` only if it is asked for.
        seeds: how many (0, 1, ...), or which: of the order of the samples and of a factory.
        batch_size: 128 by default; a loader keeps its own. All samples make it gradient descent.
        num_batches: the first so many batches of every epoch; None for all.
        bracket: lowest and highest rate to try; None searches up to a factor 1e9 around a guess.
        tol: relative width of the interval.
        divergence: the rule.
        max_seconds: after that much time the answer is what is known by then.
        device: where to train; by default where the model is.
        after_step: called after each training run with what is known by then, to save it.

    Returns:
        Interval, all criteria, and all trials. An end that does not exist is 0 or infinite, with
        a reason.

    Example:
        >>> import torch
        >>> line = torch.nn.Linear(1, 1, bias=False)
        >>> x = torch.full((4, 1), 3.0)  # the second derivative of the loss is 9
        >>> limit = max_stable_lr(line, (x, torch.ones(4, 1)), "mse", seeds=1)
        >>> abs(limit.lr / (2 / 9) - 1) < 0.02
        True
    """
    began = time.monotonic()
    numbers, ends = _checked_seeds(seeds), checked_bracket(bracket)
    widths = _widths(criterion, tol)
    deadline = began + checked_seconds(max_seconds)
    steps = checked_count(steps, "steps")
    options = TrainingOptions(
        optimizer=optimizer, momentum=momentum, weight_decay=weight_decay,
        batch_size=batch_size, num_batches=num_batches, divergence=divergence,
    )  # fmt: skip
    objective = as_objective(loss, loss_fn, outputs_fn)
    recipe = Recipe(repeatable(data, steps + 1), objective, options)
    own = {"steps": steps, "seed": numbers[0], "seeds": list(numbers), "bracket": ends, "tol": tol}

    def found(stop: str) -> StabilityLimit:
        return StabilityLimit(
            criterion=criterion,
            diverges=search.bound("diverges", stop),
            does_not_learn=search.bound("does-not-learn", stop),
            trials=tuple(bench.trials),
            complete=not stop,
            seconds=time.monotonic() - began,
            convention=_shared(bench.convention) | own,
            leaves=search.bound("leaves", stop) if criterion == "leaves" else None,
        )

    def told() -> None:
        tick()
        if after_step is not None:
            with held():
                after_step(found(INTERRUPTED))

    with progress("training runs") as tick:
        leaving = criterion == "leaves"
        bench = Bench(Origin(model, device), recipe, steps, deadline, told, leaving=leaving)
        search = Bisection(bench, numbers, ends or (), steps, widths)
        hold_rest()
        return found(_ended(search))


def _ended(search: Bisection) -> str:
    """Run the search; why it ended early, empty if it did not."""
    try:
        with interruptible():  # and nothing after it: the training runs are kept
            search.run()
    except SearchEnded as signal:
        return str(signal)
    except KeyboardInterrupt:  # between two training runs
        return INTERRUPTED
    return ""


def _shared(convention: dict[str, Any]) -> dict[str, Any]:
    """What was in effect in every training."""
    of_single_runs = ("lr", "epochs", "steps", "seed", "schedule")
    left = (*of_single_runs, "shuffle", "drop_last", "augment", "penalty", "clip")
    return {name: value for name, value in convention.items() if name not in left}


def _checked_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, Sequence):
        found = tuple(dict.fromkeys(checked_seed(seed) for seed in seeds))
        if not found or len(found) < len(seeds):
            raise InputError(f"seeds must be different, and at least one. Got {seeds!r}.")
        return found
    return tuple(range(checked_count(seeds, "seeds", most=MOST_SEEDS)))


def checked_bracket(bracket: tuple[float, float] | None) -> tuple[float, float] | None:
    """Two rates in order, or None."""
    if bracket is None:
        return None
    pair = tuple(bracket) if isinstance(bracket, Sequence) else ()
    if len(pair) != 2 or not all(isinstance(end, int | float) for end in pair):
        raise InputError(f"bracket must be two learning rates (low, high). Got {bracket!r}.")
    if not 0 < pair[0] < pair[1] < math.inf:
        raise InputError(
            f"bracket must be two learning rates with 0 < low < high < infinity. Got {bracket!r}"
            f"{': the two are reversed.' if pair[0] > pair[1] > 0 else '.'}"
        )
    return float(pair[0]), float(pair[1])


def _widths(criterion: str, tol: float) -> dict[str, float]:
    CRITERIA[criterion]  # an unknown name is refused here
    if not SMALLEST <= as_float(tol) < math.inf:
        raise InputError(
            f"tol is the relative width of the interval, from {SMALLEST:g}. Got {tol!r:.40}."
        )
    wanted = [name for name in CRITERIA if name in (criterion, "diverges", "does-not-learn")]
    return {name: tol if name == criterion else max(tol, COARSE) for name in wanted}
