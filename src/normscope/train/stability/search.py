"""Which learning rate to try next, as a function of the outcomes so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Outcomes = dict[float, bool]  # learning rate -> failed

STRIDE = 4.0  # first step of an expanding search
REACH = 1e9  # how far from the guess a search goes, as a factor
DEPTH = 8  # strides below divergence in which a rate that learns is looked for


@dataclass(frozen=True)
class Switch:
    """Where one seed's outcomes change from success to failure.

    Attributes:
        low: largest success below every failure; 0 if there is none.
        high: smallest failure above every success; infinite if there is none.
        first: smallest failure; infinite if there is none.
        top: largest success of all; 0 if there is none.
        interleaved: a failure lies below a success.
    """

    low: float
    high: float
    first: float
    top: float
    interleaved: bool


def switch(failed: Outcomes, *, slow_fails: bool) -> Switch:
    """The switch of outcomes ``{lr: failed}``.

    ``slow_fails``: rates that are too small fail too; failures below every success do not count.
    """
    passes, fails = _parts(failed, slow_fails)
    first = fails[0] if fails else math.inf
    top = passes[-1] if passes else 0.0
    low = max((lr for lr in passes if lr < first), default=0.0)
    high = min((lr for lr in fails if lr > top), default=math.inf)
    return Switch(low, high, first, top, interleaved=first < top)


def pooled(
    outcomes: Sequence[Outcomes], *, slow_fails: bool, partial: bool = False
) -> tuple[float, float]:
    """The interval that holds the switches of all seeds.

    ``partial``: the search was cut short, so an end that one seed lacks is another's.
    """
    tried = [failed for failed in outcomes if failed]
    found = [switch(failed, slow_fails=slow_fails) for failed in tried]
    lows, highs = [one.low for one in found], [one.high for one in found]
    if partial:
        lows = [low for low in lows if low > 0]
        highs = [high for high in highs if high < math.inf]
    return min(lows, default=0.0), max(highs, default=math.inf)


def _parts(failed: Outcomes, slow_fails: bool) -> tuple[list[float], list[float]]:
    """Rates that passed and rates that failed, both sorted."""
    passes = sorted(lr for lr, bad in failed.items() if not bad)
    fails = sorted(lr for lr, bad in failed.items() if bad)
    if slow_fails and passes:
        fails = [lr for lr in fails if lr > passes[0]]
    return passes, fails


def next_rate(
    failed: Outcomes,
    ends: Sequence[float],
    *,
    tol: float,
    slow_fails: bool = False,
    stride: float = STRIDE,
) -> float | None:
    """The next rate to try: outwards until both outcomes are there, then the middle; None: done.

    A step outwards is a factor of ``stride``, but not beyond ``ends``.
    """
    found = switch(failed, slow_fails=slow_fails)
    if found.high == math.inf:
        return min(found.top * stride, ends[1]) if found.top < ends[1] else None
    if found.low == 0:
        return max(found.first / stride, ends[0]) if found.first > ends[0] else None
    # One gap, or two with both outcomes in between: then each end is narrowed by itself.
    for low, high in ((found.low, found.first), (found.top, found.high)):
        if high > low * (1 + tol):
            return math.sqrt(low) * math.sqrt(high)
    return None


def downward(tried: Sequence[float], top: float, floor: float) -> float | None:
    """The first rate below ``top``, in strides, that nothing tried is close to; None: all tried."""
    for k in range(1, DEPTH + 1):
        lr = top / STRIDE**k
        if lr < floor:
            return None
        if all(abs(math.log(lr / other)) > math.log(STRIDE) / 2 for other in tried):
            return lr
    return None
