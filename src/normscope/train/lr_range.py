"""The learning-rate range test, with its answer as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.checks import Array, checked_count
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.results.stability import LRRange
from normscope.seeds import checked_seed
from normscope.subject.data import repeatable
from normscope.subject.interrupts import interruptible
from normscope.subject.objective import LossFn, LossLike, OutputsFn, as_objective
from normscope.subject.process import measurement
from normscope.train.optim import OptimizerFactory
from normscope.train.options import TrainingOptions
from normscope.train.run import TrainingRun
from normscope.train.schedules import Schedule, When
from normscope.train.stability.copies import ModelOrFactory, Origin
from normscope.train.stability.limit import checked_bracket
from normscope.train.stability.trials import Recipe

RULE = Divergence()
REACH = 1e3  # on either side of the guess
SMOOTH = 0.15  # width of the local fit in decades of learning rate
POINTS = 3.0  # the same in updates, at least
ROBUST = 3  # rounds of reweighting
OUTLIER = 6.0  # median deviations beyond which a point has no weight
SIGMAS = 2.0  # of the noise of single losses
MARGIN = 8.0  # below the turn, which lies above the limit
FALL = 5.0  # times the noise of single losses that the fitted loss must come down
CLEAR = 3.0  # standard errors that make a fall or a rise
FEWEST = 10  # updates that a fit needs


@dataclass(frozen=True)
class Growing(Schedule):
    """base x ratio^t after t updates."""

    ratio: float

    def lr(self, base: float, when: When) -> float:
        """The rate of the update at ``when``."""
        return base * self.ratio**when.step


@measurement
def lr_range_test(
    model: ModelOrFactory,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    bracket: tuple[float, float] | None = None,
    steps: int = 100,
    optimizer: str | OptimizerFactory = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    num_batches: int | None = None,
    divergence: Divergence = RULE,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> LRRange:
    r"""Train a copy while the learning rate grows exponentially, and read a rate off the losses.

    The suggestion is where the loss falls fastest per update, relative to itself:

    .. math:: \arg\min_\eta \; \frac{d \ln L}{d \ln \eta}

    of a local linear fit in log-lr, but at most 1/8 of ``turn``, the last rate before the loss
    rises for good. On a quadratic with one curvature lambda the steepest fall is at 1 / lambda,
    half the limit. With several, the direction that limits the rate has died out when its limit is
    passed and must grow again from almost nothing, so that ``turn`` lies up to 5 times above the
    limit: hence the margin. One training sees each rate once; for a limit use ``max_stable_lr``.

    Args:
        model: a module, of which a copy is trained, or a function that returns one; one in half
            precision is trained in float32.
        data: as in ``fit``.
        loss: as in ``fit``; or pass ``loss_fn``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``.
        outputs_fn: as in ``fit``.
        bracket: first and last rate; None is a factor 1e3 to either side of a guess.
        steps: updates from the first to the last rate; divergence ends it before.
        optimizer: as in ``max_stable_lr``.
        momentum: SGD momentum, in torch's convention.
        weight_decay: as in torch.
        batch_size: 128 by default; a loader keeps its own.
        num_batches: the first so many batches of every epoch; None for all.
        divergence: the rule that ends the test.
        device: where to train; by default where the model is.
        seed: seed for the order of the samples and a factory.

    Returns:
        The history as arrays, fit, suggestion with interval and rule; ``ok`` and ``reason``.

    Example:
        >>> import torch
        >>> line = torch.nn.Linear(1, 1, bias=False)
        >>> x = torch.full((4, 1), 2.0)  # the second derivative of the loss is 4
        >>> found = lr_range_test(line, (x, torch.ones(4, 1)), "mse")
        >>> found.ok, found.low < 1 / 4 < found.high
        (True, True)
    """
    seed, steps = checked_seed(seed), checked_count(steps, "steps")
    if steps < FEWEST:
        raise InputError(f"steps must be at least {FEWEST}: a fit needs them. Got {steps}.")
    options = TrainingOptions(
        optimizer=optimizer, momentum=momentum, weight_decay=weight_decay,
        batch_size=batch_size, num_batches=num_batches, divergence=divergence,
    )  # fmt: skip
    objective = as_objective(loss, loss_fn, outputs_fn)
    recipe = Recipe(repeatable(data, steps + 1), objective, options)
    origin, ends = Origin(model, device), checked_bracket(bracket)
    with origin.fresh(seed) as copy, interruptible():
        guess = recipe.reference(copy, seed=seed, steps=1).guess
    low, high = ends or (guess / REACH, guess * REACH)
    ratio = (high / low) ** (1 / (steps - 1))
    with origin.fresh(seed) as copy, interruptible():
        run = recipe.train(copy, lr=low, seed=seed, steps=steps, schedule=Growing(ratio))
    return _answer(replace(run, convention={**run.convention, **origin.conditions(seed)}))


def _answer(run: TrainingRun) -> LRRange:
    fields: dict[str, Any] = {
        "lrs": run.lrs,
        "losses": run.losses,
        "diverged": run.diverged,
        "seconds": run.seconds,
        "convention": run.convention,
    }
    usable = np.isfinite(run.losses) & (np.cumsum(run.losses == 0) == 0)  # a zero ends the descent
    lrs, losses = run.lrs[usable], run.losses[usable]
    if len(lrs) < FEWEST:
        return _none(f"only {len(lrs)} losses before divergence or zero: lower the bracket", fields)
    log = bool((losses > 0).all())
    curve, slope, error, noise = local_fit(np.log(lrs), np.log(losses) if log else losses)
    turn = _turn(lrs, curve, noise, diverged=run.diverged)
    fitted = np.exp(curve) if log else curve
    fields |= {"fitted": _filled(fitted, usable), "slope": _filled(slope, usable), "turn": turn}
    best = int(np.argmin(np.where(lrs <= turn, slope, np.inf)))
    fall = curve[: best + 1].max() - curve[best:].min()
    if not (slope[best] < -CLEAR * error[best] and fall > FALL * np.median(noise[: best + 1])):
        return _none("the loss does not clearly fall at any rate: more steps, or others", fields)
    return _suggested(lrs, slope, best, turn, "log loss" if log else "loss", fields)


def _suggested(
    lrs: Array, slope: Array, best: int, turn: float, what: str, fields: dict[str, Any]
) -> LRRange:
    fast = slope <= slope[best] / 2
    first = best - int(np.argmin(np.append(fast[best::-1], False))) + 1
    last = best + int(np.argmin(np.append(fast[best:], False))) - 1
    value, high = float(lrs[best]), float(lrs[last])
    capped = turn / MARGIN < value
    value, high = min(value, turn / MARGIN), min(high, turn)
    return LRRange(
        suggestion=value,
        low=min(float(lrs[first]), value),
        high=max(high, value),
        ok=True,
        reason=f"the loss falls fastest above 1/{MARGIN:g} of where it turns upwards"
        if capped
        else "",
        rule=f"steepest fall of {what} over log-lr in a local fit, at most turn / {MARGIN:g}",
        **fields,
    )


def _none(reason: str, fields: dict[str, Any]) -> LRRange:
    blank = np.full(len(fields["lrs"]), math.nan)
    given: dict[str, Any] = {"fitted": blank, "slope": blank, "turn": math.inf} | fields
    return LRRange(
        suggestion=math.nan, low=math.nan, high=math.nan, ok=False, reason=reason, rule="", **given
    )


def _turn(lrs: Array, curve: Array, noise: Array, *, diverged: bool) -> float:
    """The last rate at which the fit is no higher than its lowest point, but for noise."""
    lowest = int(np.argmin(curve))
    last = int(np.flatnonzero(curve <= curve[lowest] + SIGMAS * noise[lowest])[-1])
    return float(lrs[last]) if diverged or last < len(lrs) - 1 else math.inf


def local_fit(x: Array, y: Array) -> tuple[Array, ...]:
    """Value, slope, its standard error and the noise of a Gaussian-weighted linear fit at every x.

    Far-off points lose their weight (bisquare, as in LOWESS): with momentum a loss swings through
    zero, and its logarithm has dips.
    """
    width = max(SMOOTH * math.log(10), POINTS * float(np.diff(x).mean()))
    offset = x[None, :] - x[:, None]
    kernel = np.exp(-0.5 * (offset / width) ** 2)
    weight = kernel
    for _ in range(ROBUST + 1):
        value, slope, error, noise, rest = _weighted_lines(offset, y, weight)
        scale = _weighted_median(np.abs(rest), kernel)
        ratio = rest / np.maximum(OUTLIER * scale, 1e-300)[:, None]
        weight = kernel * np.clip(1 - ratio**2, 0, None) ** 2 + 1e-12 * kernel
    return value, slope, error, noise


def _weighted_lines(offset: Array, y: Array, weight: Array) -> tuple[Array, ...]:
    weight = weight / weight.sum(1, keepdims=True)
    centre = (weight * offset).sum(1)
    arm = offset - centre[:, None]
    spread = (weight * arm**2).sum(1)
    mean = weight @ y
    slope = (weight * arm) @ y / spread
    rest = y[None, :] - mean[:, None] - slope[:, None] * arm
    noise = np.sqrt((weight * rest**2).sum(1))
    error = noise * np.sqrt((weight**2 * arm**2).sum(1)) / spread
    return mean - slope * centre, slope, error, noise, rest


def _weighted_median(values: Array, weight: Array) -> Array:
    """The weighted median of each row."""
    order = np.argsort(values, axis=1)
    share = np.cumsum(np.take_along_axis(weight, order, 1), axis=1)
    middle = np.argmax(share >= share[:, -1:] / 2, axis=1)
    ranked = np.take_along_axis(values, order, 1)
    return ranked[np.arange(len(values)), middle]


def _filled(values: Array, where: NDArray[np.bool_]) -> Array:
    out = np.full(len(where), math.nan)
    out[where] = values
    return out
