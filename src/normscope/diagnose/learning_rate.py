"""`suggest_lr`: how large a learning rate may be, by three ways, and which one to take."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from normscope.checks import checked_count, checked_seconds
from normscope.diagnose._curvature import descent, largest_curvature
from normscope.diagnose._race import EQUAL, RISES, TRAINED, WIDE, Choice, choose
from normscope.diagnose._training_runs import MARGIN, Race, TrainingRuns
from normscope.diagnose.comparison import loss_scale, trained_prediction
from normscope.diagnose.subject import Subject, as_subject
from normscope.errors import MeasurementError, TheoryError
from normscope.messages import said
from normscope.results import StabilityBound, StabilityLimit
from normscope.results.learning_rate import LRAdvice, LRBound
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES

STEPS = 50  # number of updates of a training run
TOLERANCE = 0.2  # relative width of the bisected intervals
LONGER = 3  # times the steps of the bisection, for the race
FALLEN = 0.99  # of the loss at the start: what did not learn must have come so far at least
NONE = math.nan


@measurement
def suggest_lr(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    optimizer: Any = "sgd",
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    momentum: float | None = None,
    steps: int = STEPS,
    tol: float = TOLERANCE,
    max_seconds: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> LRAdvice:
    r"""A learning rate to train with, and three bounds that it was held against.

    1. Theory: 2 (1 + momentum) / lambda_max with the lambda_max that mean-field theory predicts for
       the network at its initialization, where it covers the network. For cross-entropy lambda_max
       is scaled by the largest eigenvalue of mean(diag p - p p^T), an approximation.
    2. Local threshold: the same with the measured lambda_max of the loss on the first batches.
       Training may be stable above it.
    3. Bisected limits: copies are trained to find where training diverges, and where it stops
       learning (`max_stable_lr`).

    The recommendation comes from training runs, not from a formula: no fixed fraction of any of
    these bounds fits all networks (docs/results/advice.md). From the best run of the bisection a
    race of longer training runs (3 x ``steps`` updates) goes downhill by factors of 2, then of
    sqrt(2), never above half the largest rate that did not diverge; a run counts by its mean
    loss over the second half, and the answer is the minimum of a parabola in log-lr and log loss
    through the best and its two neighbours. The learning rate of your optimizer is one of the
    rates tried. The limits and the ends of the interval are tested with a second order of the
    samples; in a third one they may differ. All this takes 1000 to 3000 updates by default.

    Args:
        model: any module, as initialized or as trained so far; left as it was, bit by bit.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. Copies are trained on all of it.
        loss: ``"cross_entropy"`` (the default), ``"mse"``, a torch loss or
            ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets), such as the dicts of Hugging Face: nothing is lost with it.
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: how many of the first batches the curvature is measured on; None for all.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, a function of the parameters, or your torch
            optimizer, of which all but the learning rate is kept.
        momentum: SGD momentum.
        steps: number of updates of a training run of the bisection. A longer training run
            is stable at the same or a lower rate.
        tol: relative width of the bisected intervals.
        max_seconds: after that much time the answer is what is known by then.
        device: measure and train there, on copies.
        seed: seed for all random numbers.

    Returns:
        The rate, how far it may be changed, the rule and the reason, and all bounds. Without a
        recommendation ``ok`` is False, ``lr`` NaN, and ``reason`` says why.

    Example:
        >>> import normscope as ns
        >>> advice = suggest_lr(ns.network("mlp:64-32-10"), "digits", steps=20)
        >>> advice.ok, advice.lr < advice.bound("diverges").low
        (True, True)
    """
    deadline = time.monotonic() + checked_seconds(max_seconds)
    subject = as_subject(
        model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, batch_size=batch_size,
        num_batches=num_batches, optimizer=optimizer,
        momentum=momentum, device=device, seed=seed, deadline=deadline,
    )  # fmt: skip
    return advised(subject, steps=steps, tol=tol, max_seconds=max_seconds)


def advised(
    subject: Subject,
    *,
    steps: int = STEPS,
    tol: float = TOLERANCE,
    max_seconds: float | None = None,
) -> LRAdvice:
    """``suggest_lr`` for a subject that was read before, until its deadline."""
    began = time.monotonic()
    steps = checked_count(steps, "steps")
    orders = subject.seed, subject.seed + 1
    runs = TrainingRuns(subject, steps, orders, tol, subject.deadline)
    bounds = [_theory(subject), _threshold(subject)]
    limit = runs.limit(criterion="diverges")
    race = runs.race(limit, steps=LONGER * steps, own=subject.lr)
    read = subject.source.convention
    bounds += [_bisected(bound, steps) for bound in (limit.diverges, limit.does_not_learn)]
    return LRAdvice(
        **_recommendation(race, limit, steps),
        bounds=tuple(bounds),
        race=tuple(sorted([*race.trials, *race.again], key=lambda t: t.lr)),
        limit=limit,
        ended=race.ended,
        seconds=time.monotonic() - began,
        convention={
            **limit.convention,
            "curvature": f"{read['batches']}, left out: {read['left out']}",
            "race_steps": LONGER * steps,
            "max_seconds": max_seconds,
        },
    )


def _theory(subject: Subject) -> LRBound:
    rule = "2 (1 + momentum) / lambda_max, lambda_max by mean-field theory at initialization"
    how = descent(subject)
    try:
        if how.obstacle:
            raise TheoryError(how.obstacle)
        if not subject.objective.has_outputs:
            raise TheoryError("the loss hides the outputs that the theory speaks of")
        scale = loss_scale(subject)
        if math.isnan(scale):
            raise TheoryError("the theory covers loss='mse' and cross-entropy only")
        found = trained_prediction(subject)
        if found.lambda_max is None:
            raise TheoryError(f"there is no predicted lambda_max: {found.reason}")
    except Exception as error:  # whatever a user's module raises when it is read
        return LRBound("theory", NONE, NONE, NONE, rule, said(error))
    rate = 2 * (1 + how.momentum) / scale
    top = found.lambda_max_split or found.lambda_max
    low, high = found.upper or top, found.lower or top
    if scale != 1:
        rule += f", scaled by {scale:.3g} for cross-entropy (approximately)"
    return LRBound("theory", rate / top, min(rate / low, rate / top), max(rate / high, rate / top),
                   rule, " ".join(found.flags))  # fmt: skip


def _threshold(subject: Subject) -> LRBound:
    rule = "2 (1 + momentum) / lambda_max, measured; training may be stable above it"
    how = descent(subject)
    try:
        if how.obstacle:
            raise TheoryError(f"not applicable: {how.obstacle}")
        if time.monotonic() > subject.deadline:
            raise MeasurementError("not measured: max_seconds are used up")
        curvature = largest_curvature(subject)
    except Exception as error:  # a missing curvature must not stop the training runs
        return LRBound("threshold", NONE, NONE, NONE, rule, said(error))
    value, low, high = how.threshold(curvature)
    reason = curvature.reason if value > 0 else "the largest curvature is not positive"
    return LRBound("threshold", value, low, high, rule, reason)


def _bisected(bound: StabilityBound, steps: int) -> LRBound:
    where = f"{steps} updates lower the loss less than half as far as at the best rate"
    where = "training diverges" if bound.criterion == "diverges" else where
    ends = bound.lr, bound.low, bound.high
    rule = f"where {where}, by bisection with one order of the samples and both ends with another"
    return LRBound(bound.criterion, *ends, rule, bound.reason)


def _recommendation(race: Race, limit: StabilityLimit, steps: int) -> dict[str, Any]:
    """Rate, interval, rule and reason."""
    rule = (
        f"lowest mean loss over the second half of {LONGER * steps} updates, by a parabola in "
        f"log-lr and log loss, at most {MARGIN:g} x the largest rate that did not diverge"
    )
    choice, why = race.choice, "every training run diverged, at every rate tried"
    if choice is None and not limit.complete:  # the time was up before the race
        choice = choose([t for t in limit.trials if t.learned])
        rule = f"lowest mean loss in {steps} updates of the bisection, which was cut short"
        why = limit.reason or "no training run was finished"
    if choice is not None:
        best = choice.best
        if best.learned or best.final < FALLEN * best.start:
            rates = {"lr": choice.lr, "low": choice.low, "high": choice.high}
            return {**rates, "rule": rule, "reason": _reason(choice, race, limit)}
        why = f"at no rate does the loss fall; the best, {best.lr:.3g}: {best.reason}"
    return {"lr": NONE, "low": NONE, "high": NONE, "rule": rule, "reason": why}


def _reason(choice: Choice, race: Race, limit: StabilityLimit) -> str:
    best, count = choice.best, len(race.trials)
    words = [
        f"Of {count or 'the'} training runs the one at {best.lr:.3g} has the lowest mean loss over "
        f"the second half, {best.score:.3g} ({best.start:.3g} untrained)"
    ]
    if choice.fitted:
        words.append(f"a parabola through its neighbours has its minimum at {choice.lr:.3g}")
    if WIDE * choice.low < choice.high:
        words.append(
            f"from {choice.low:.3g} to {choice.high:.3g} it stays below {EQUAL:g} times that"
            + (" in both orders of the samples tried" if race.again else "")
        )
    ends = [("diverges", limit.diverges), ("stops learning", limit.does_not_learn)]
    closed = [(bound.lr, what) for what, bound in ends if bound.closed]
    if closed:
        nearest, what = min(closed)
        words.append(f"training {what} at {nearest / choice.lr:.3g} times this rate")
    learned_before = best.start < TRAINED * best.chance
    if learned_before and (peak := float(best.losses.max())) > RISES * best.start:
        words.append(
            f"on the way the loss of this trained network rises to {peak:.3g}: to continue "
            "training, use a lower rate"
        )
    if not best.learned:
        words.append(f"but {best.reason}: train longer to confirm it")
    return "; ".join(words) + "."
