"""The order of trials: one seed narrows both limits, the others test them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from normscope.registry import Registry
from normscope.results.stability import StabilityBound, StabilityTrial
from normscope.train.stability import search
from normscope.train.stability.search import STRIDE, Outcomes, switch
from normscope.train.stability.trials import Bench

FAR = 4.0  # times the limit: a rate at which every seed should fail
GROWTH = 2.5  # updates times relative width that make growth at the limit visible
NEAR = 1.1  # first step from the limit of one seed to that of another
OTHERS = 0.25  # relative width for the seeds that do not agree with the first
LONGEST = 10  # times the number of updates, at most, for that
BESIDE = (1.02, 1.06, 1.12, 1.25, 1.5)  # factors beyond both ends at which the limit is tested
ROUNDS = 6  # of such tests, at most


@dataclass(frozen=True)
class Criterion:
    """A way to fail, and whether rates that are too small fail too."""

    failed: Callable[[StabilityTrial], bool]
    slow_fails: bool


CRITERIA: Registry[Criterion] = Registry("criterion")
CRITERIA.add("diverges", Criterion(lambda trial: trial.diverged, slow_fails=False))
CRITERIA.add("leaves", Criterion(lambda trial: trial.left, slow_fails=False))
CRITERIA.add("does-not-learn", Criterion(lambda trial: not trial.learned, slow_fails=True))


@dataclass(eq=False)
class Bisection:
    """A search for the limits.

    Attributes:
        bench: runs and keeps the trials.
        seeds: the first does the search.
        ends: lowest and highest rate to try; none: a wide range around a guess.
        steps: updates a trial is judged by.
        widths: relative width to reach, per criterion; one without a width is not looked for.
    """

    bench: Bench
    seeds: Sequence[int]
    ends: Sequence[float]
    steps: int
    widths: dict[str, float]

    def run(self) -> None:
        """Make all trials."""
        first, *others = self.seeds
        start = self.ends
        if not start:
            guess = self.bench.reference(first).guess
            start, self.ends = (guess,), (guess / search.REACH, guess * search.REACH)
        for lr in start:
            self.bench.run(lr, first)
        upward = [name for name in self.widths if not CRITERIA[name].slow_fails]
        for criterion in upward:
            self._narrow(first, criterion, self.widths[criterion])
            self._test_beside(first, criterion)
        self._look_for_learning(first)
        if any(trial.learned for trial in self.bench.of(first)):
            self._narrow(first, "does-not-learn", self.widths["does-not-learn"])
        for seed in others:
            for criterion in upward:
                self._compare(seed, criterion)
            if any(trial.learned for trial in self.bench.of(first)):
                self._compare(seed, "does-not-learn")
        for seed in self.seeds:
            self._try_far_above(seed)

    def _outcomes(self, seed: int, criterion: str) -> Outcomes:
        failed = CRITERIA[criterion].failed
        return {trial.lr: failed(trial) for trial in self.bench.of(seed)}

    def _narrow(self, seed: int, criterion: str, width: float, *, stride: float = STRIDE) -> None:
        """Outwards in steps that are squared each time, then inwards to ``width``."""
        slow_fails = CRITERIA[criterion].slow_fails
        while True:
            found = self._outcomes(seed, criterion)
            ends = (self._floor(criterion), self.ends[1])
            lr = search.next_rate(found, ends, tol=width, slow_fails=slow_fails, stride=stride)
            if lr is not None:
                self.bench.run(lr, seed, length=self._length(found, slow_fails))
                # What learns lies in a band, which a large step downwards might pass over.
                stride = min(stride**2, STRIDE if slow_fails else search.REACH)
            elif slow_fails or not self._overturned(seed, criterion, width):
                return

    def _test_beside(self, seed: int, criterion: str) -> None:
        """Rates beyond both ends: a limit need not be single, above all with momentum.

        An end that is contradicted moves beyond the contradiction, and is tested there.
        """
        for _ in range(ROUNDS):
            before = switch(self._outcomes(seed, criterion), slow_fails=False)
            ratios = [r for r in BESIDE if r > 1 + self.widths[criterion] / 2]
            for lr in (end for r in ratios for end in (before.low / r, before.high * r)):
                if self.ends[0] <= lr <= self.ends[1]:
                    self.bench.run(lr, seed)
            self._narrow(seed, criterion, max(self.widths[criterion], OTHERS))
            after = switch(self._outcomes(seed, criterion), slow_fails=False)
            if (after.low, after.high) == (before.low, before.high):
                return

    def _floor(self, criterion: str) -> float:
        """The lowest rate to try; far below divergence nothing learns for being too slow."""
        if not CRITERIA[criterion].slow_fails:
            return self.ends[0]
        high = self.bound("diverges").high
        return max(self.ends[0], 0.0 if high == math.inf else high / STRIDE**search.DEPTH)

    def _overturned(self, seed: int, criterion: str, width: float) -> bool:
        """Whether the lower end fails after all, in a training as long as the width demands."""
        low = switch(self._outcomes(seed, criterion), slow_fails=False).low
        if low == 0:
            return False
        self.bench.run(low, seed, length=min(LONGEST * self.steps, math.ceil(GROWTH / width)))
        return self._outcomes(seed, criterion)[low]

    def _length(self, found: Outcomes, slow_fails: bool) -> int:
        """The closer the two ends, the slower the growth that tells them apart."""
        here = switch(found, slow_fails=slow_fails)
        if not 0 < here.low < here.high < math.inf:
            return self.steps
        return min(LONGEST * self.steps, math.ceil(GROWTH / (here.high / here.low - 1)))

    def _look_for_learning(self, seed: int) -> None:
        """From divergence downwards, until one training learns or lower rates only do worse."""
        while True:
            trials = sorted(self.bench.of(seed), key=lambda trial: trial.lr)
            tried = [trial.lr for trial in trials]
            top = min((t.lr for t in trials if t.diverged), default=tried[-1])
            lr = search.downward(tried, top, self.ends[0])
            if lr is None or any(t.learned for t in trials) or _too_slow(trials):
                return
            self.bench.run(lr, seed)

    def _compare(self, seed: int, criterion: str) -> None:
        """Both ends for another seed; from there on, coarsely, if it fails or passes both."""
        slow_fails = CRITERIA[criterion].slow_fails
        first = switch(self._outcomes(self.seeds[0], criterion), slow_fails=slow_fails)
        ends = [lr for lr in (first.low, first.high) if 0 < lr < math.inf]
        for lr in ends:
            self.bench.run(lr, seed)
        stride = max(first.high / first.low, NEAR) if len(ends) == 2 else STRIDE
        self._narrow(seed, criterion, max(self.widths[criterion], OTHERS), stride=stride)

    def _try_far_above(self, seed: int) -> None:
        """Divergence shows at once here, so this costs little, and catches interleaving."""
        lr = FAR * self.bound("diverges").high
        if lr <= self.ends[1]:
            self.bench.run(lr, seed)
            self._narrow(seed, "diverges", max(self.widths["diverges"], OTHERS))

    def bound(self, criterion: str, stop: str = "") -> StabilityBound:
        """The interval that the trials so far leave; ``stop`` says why there are no more."""
        slow_fails = CRITERIA[criterion].slow_fails
        per_seed = [self._outcomes(seed, criterion) for seed in self.seeds]
        low, high = search.pooled(per_seed, slow_fails=slow_fails, partial=bool(stop))
        if slow_fails and low == 0:  # what fails may be too slow; only divergence bounds the limit
            high = min((t.lr for t in self.bench.trials if t.diverged), default=math.inf)
        interleaved = any(switch(one, slow_fails=slow_fails).interleaved for one in per_seed)
        notes = [f"the search ended early: {stop}"] if stop else []
        notes += self._open_ends(criterion, low, high)
        if interleaved:
            notes.append("no single limit: rates that fail and rates that pass interleave")
        elif low > 0 and low * (1 + self.widths[criterion]) < high < math.inf and not stop:
            notes.append("the seeds differ, and the interval spans them")
        at_low = [trial for trial in self.bench.trials if trial.lr == low and trial.rising]
        if at_low and not slow_fails:
            notes.append(
                f"at lr {low:.4g} the loss was still rising after {at_low[0].updates} updates"
            )
        return StabilityBound(criterion, low, high, interleaved, "; ".join(notes))

    def _open_ends(self, criterion: str, low: float, high: float) -> list[str]:
        tried = sorted(trial.lr for trial in self.bench.trials)
        if not tried:
            return ["no training was finished"]
        verb = {"diverges": "diverged", "leaves": "left"}.get(criterion, "failed to learn")
        notes = []
        if high == math.inf and low > 0:
            notes.append(f"no training {verb} at the highest rate tried, {tried[-1]:.4g}")
        if low == 0 and not CRITERIA[criterion].slow_fails:
            notes.append(f"the training {verb} at the lowest rate tried, {tried[0]:.4g}")
        elif low == 0:
            best = min(
                (t for t in self.bench.trials if math.isfinite(t.final)),
                key=lambda t: t.final,
                default=self.bench.trials[0],
            )
            notes.append(f"no rate learned for every seed; the best, {best.lr:.4g}: {best.reason}")
        return notes


def _too_slow(trials: Sequence[StabilityTrial]) -> bool:
    """Whether, of trials by rising rate, the two lowest are worse than one above them."""
    finals = [trial.final for trial in trials if not trial.diverged]
    return len(finals) > 2 and min(finals[:2]) > min(finals[2:])
