"""`suggest_lr`: how large a learning rate may be, by three ways, and which one to take."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from normscope.checks import checked_count, checked_seconds
from normscope.diagnose._curvature import descent, largest_curvature
from normscope.diagnose._race import EQUAL, RISES, TRAINED, WIDE, Choice, choose, score
from normscope.diagnose._trainings import MARGIN, Trainings, said
from normscope.diagnose.comparison import loss_scale, predictions
from normscope.diagnose.subject import Subject, as_subject
from normscope.errors import TheoryError
from normscope.results import StabilityBound, StabilityLimit, StabilityTrial
from normscope.results.learning_rate import LRAdvice, LRBound
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES

STEPS = 50  # updates by which a training is judged
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
       It need not be a limit: training often continues above it.
    3. Bisected limits: copies are trained to find where training diverges, and where it no longer
       learns (`max_stable_lr`).

    The recommendation comes from trainings, not from a formula: no fixed fraction of any of these
    bounds fits all networks (docs/results/advice.md). From the best training of the bisection a
    race of longer trainings (3 x ``steps`` updates) goes downhill by factors of 2, then of
    sqrt(2), never above half the largest rate that did not diverge; a training counts by its mean
    loss over the second half, and the answer is the minimum of a parabola in log-lr and log loss
    through the best and its two neighbours. With the default
    settings all this takes about as much as 20 trainings of 50 updates (600 to 1500 updates).

    Args:
        model: any module, as initialized or as trained so far; left as it was, bit by bit.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. Copies are trained on all of it.
        loss: ``"cross_entropy"`` (the default), ``"mse"``, a torch loss or
            ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets), such as the dicts of Hugging Face: nothing is lost with it.
        batch_size: samples in a batch, 128 by default; a loader brings its own.
        num_batches: how many of the first batches the curvature is measured on; None for all.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, a function of the parameters, or your torch
            optimizer, of which all but the learning rate is kept.
        momentum: of sgd.
        steps: updates by which a training of the bisection is judged. A longer training bears a
            rate that is lower, rather than higher.
        tol: relative width of the bisected intervals.
        max_seconds: after that much time the answer is what is known by then.
        device: measure and train there, on copies.
        seed: of everything random.

    Returns:
        The rate, how far it may be changed, the rule and the reason, and all bounds. Without a
        recommendation ``ok`` is False, ``lr`` NaN, and ``reason`` says why.

    Example:
        >>> import normscope as ns
        >>> advice = suggest_lr(ns.network("mlp:64-32-10"), "digits", steps=20)
        >>> advice.ok, advice.lr < advice.bound("diverges").low
        (True, True)
    """
    subject = as_subject(
        model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, batch_size=batch_size,
        num_batches=num_batches, optimizer=optimizer,
        momentum=momentum, device=device, seed=seed,
    )  # fmt: skip
    return advised(subject, steps=steps, tol=tol, max_seconds=max_seconds)


def advised(
    subject: Subject,
    *,
    steps: int = STEPS,
    tol: float = TOLERANCE,
    max_seconds: float | None = None,
) -> LRAdvice:
    """``suggest_lr`` for a subject that was read before."""
    began = time.monotonic()
    deadline = began + checked_seconds(max_seconds)
    steps = checked_count(steps, "steps")
    trainings = Trainings(subject, steps, (subject.seed,), tol, deadline)
    bounds = [_theory(subject), _threshold(subject)]
    limit = trainings.limit(criterion="diverges")
    race, ended = trainings.race(limit, steps=LONGER * steps)
    read = subject.source.convention
    bounds += [_bisected(bound, steps) for bound in (limit.diverges, limit.does_not_learn)]
    return LRAdvice(
        **_recommendation(race, limit, steps),
        bounds=tuple(bounds),
        race=tuple(race),
        limit=limit,
        ended=ended,
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
        found = predictions(subject)[0]
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
    rule = "2 (1 + momentum) / lambda_max, measured; training often continues above it"
    how = descent(subject)
    try:
        if how.obstacle:
            raise TheoryError(f"not applicable: {how.obstacle}")
        curvature = largest_curvature(subject)
    except Exception as error:  # a curvature that cannot be had must not stop the trainings
        return LRBound("threshold", NONE, NONE, NONE, rule, said(error))
    value, low, high = how.threshold(curvature)
    reason = curvature.reason if value > 0 else "the largest curvature is not positive"
    return LRBound("threshold", value, low, high, rule, reason)


def _bisected(bound: StabilityBound, steps: int) -> LRBound:
    where = f"{steps} updates no longer lower the loss below start and chance"
    where = "training diverges" if bound.criterion == "diverges" else where
    ends = bound.lr, bound.low, bound.high
    return LRBound(bound.criterion, *ends, f"where {where}, by bisection", bound.reason)


def _recommendation(
    race: list[StabilityTrial], limit: StabilityLimit, steps: int
) -> dict[str, Any]:
    """Rate, interval, rule and reason."""
    rule = (
        f"lowest mean loss over the second half of {LONGER * steps} updates, by a parabola in "
        f"log-lr and log loss, at most {MARGIN:g} x the largest rate that did not diverge"
    )
    choice, why = choose(race), "every training diverged, at every rate that was tried"
    if choice is None and not limit.complete:  # the time was up before the race
        choice = choose([t for t in limit.trials if t.learned])
        rule = f"lowest mean loss in {steps} updates of the bisection, which was cut short"
        why = limit.reason or "no training was finished"
    if choice is not None:
        best = choice.best
        if best.learned or best.final < FALLEN * best.start:
            rates = {"lr": choice.lr, "low": choice.low, "high": choice.high}
            return {**rates, "rule": rule, "reason": _reason(choice, len(race), limit)}
        why = f"at no rate does the loss fall; the best, {best.lr:.3g}: {best.reason}"
    return {"lr": NONE, "low": NONE, "high": NONE, "rule": rule, "reason": why}


def _reason(choice: Choice, count: int, limit: StabilityLimit) -> str:
    best = choice.best
    words = [
        f"Of {count or 'the'} trainings the one at {best.lr:.3g} came lowest: loss "
        f"{best.start:.3g} untrained, {score(best):.3g} over the second half, {best.final:.3g} at "
        "the end"
    ]
    if choice.fitted:
        words.append(f"a parabola through its neighbours has its minimum at {choice.lr:.3g}")
    if WIDE * choice.low < choice.high:
        words.append(
            f"from {choice.low:.3g} to {choice.high:.3g} the loss stays below {EQUAL:g} times that"
        )
    ends = [("diverges", limit.diverges), ("no longer learns", limit.does_not_learn)]
    closed = [(bound.lr, what) for what, bound in ends if bound.closed]
    if closed:
        nearest, what = min(closed)
        words.append(f"training {what} at {nearest / choice.lr:.3g} times this rate")
    learned_before = best.start < TRAINED * best.chance
    if learned_before and (peak := float(best.losses.max())) > RISES * best.start:
        words.append(
            f"on the way the loss of this trained network rises to {peak:.3g}: to train on, begin "
            "lower"
        )
    if not best.learned:
        words.append(f"but {best.reason}: train longer before you trust it")
    return "; ".join(words) + "."
