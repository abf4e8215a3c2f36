"""Online SGD of real weight vectors: what the order-parameter ODEs are the limit of.

Inputs are drawn afresh at every step. The teacher is sqrt(N) times the first unit vector, and the
student starts in the plane of the first two: no loss of generality for isotropic inputs. All
seeds, and all learning rates on the same inputs, move in one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_count, checked_number
from normscope.errors import InputError
from normscope.results.teacher_student import ORDER, LearningComparison, LearningPath, OverlapSlopes
from normscope.seeds import checked_seed, numpy_generator
from normscope.theory.teacher_student._checks import decays, learning_rates_of
from normscope.theory.teacher_student.dynamics import Start, checked_times
from normscope.theory.teacher_student.students import STUDENTS, Student

BLOCK = 32  # steps whose inputs are drawn together
FIT_POINTS = 81  # times at which the slope of ln(1 - R) is fitted


def simulate_bn(
    start: Start,
    times: ArrayLike,
    *,
    lr: float,
    zeta: float,
    num_inputs: int,
    num_runs: int = 1,
    student: str = "relu",
    fixed_length: bool = False,
    seed: int = 0,
) -> LearningPath:
    """Online SGD of weight norm with gamma decay, Luo's Eq. (5) with its 1/N restored.

    Args:
        start: gamma, R and L at time 0.
        times: the end, or all times wanted, in units of N steps.
        lr: learning rate eta.
        zeta: gamma decay; 0 is weight norm.
        num_inputs: N.
        num_runs: independent students.
        student: activation of teacher and student, ``"relu"`` or ``"linear"``.
        fixed_length: rescale w to its first length after each step.
        seed: seed for the inputs.
    """
    rates = np.array([checked_number(learning_rates_of(lr), "lr")])
    decay = checked_number(decays(zeta), "zeta")
    rule = _Rule(rates, decay, STUDENTS[student], fixed_length)
    method = "bn" if rule.zeta > 0 else "wn"
    return _path(method, _bn_step, rule, start, checked_times(times), num_inputs, num_runs, seed)


def simulate_sgd(
    start: Start,
    times: ArrayLike,
    *,
    lr: float,
    num_inputs: int,
    num_runs: int = 1,
    student: str = "relu",
    seed: int = 0,
) -> LearningPath:
    """Online SGD without a norm; ``start.gamma`` is the first length Q, ``start.length`` unused."""
    rule = _Rule(np.array([checked_number(learning_rates_of(lr), "lr")]), 0.0, STUDENTS[student])
    start = Start(start.gamma, start.correlation, start.gamma)
    return _path("sgd", _sgd_step, rule, start, checked_times(times), num_inputs, num_runs, seed)


def with_simulation(
    path: LearningPath, *, num_inputs: int, num_runs: int = 3, seed: int = 0
) -> LearningComparison:
    """Students simulated from the start of an ODE path, at its times, beside it."""
    if path.num_inputs is not None or path.time[0] != 0:
        raise InputError(
            "with_simulation needs a path of the ODE that begins at time 0, as bn_path, wn_path "
            f"and sgd_path give it. Got {path!r}."
        )
    start = Start(*(float(getattr(path, name)[0, 0]) for name in ORDER))
    given: dict[str, Any] = {"num_inputs": num_inputs, "num_runs": num_runs, "seed": seed}
    given |= {"lr": path.lr, "student": path.student}
    if path.method == "sgd":
        return LearningComparison(path, simulate_sgd(start, path.time, **given))
    given |= {"zeta": path.zeta, "fixed_length": path.fixed_length}
    return LearningComparison(path, simulate_bn(start, path.time, **given))


def simulated_overlap_rate(
    lr: ArrayLike,
    method: str = "wn",
    *,
    num_inputs: int,
    num_runs: int = 3,
    student: str = "relu",
    start: float = 0.9999,
    duration: float = 8.0,
    seed: int = 0,
) -> OverlapSlopes:
    """Measured rate of ln(1 - R) near the fixed point, the counterpart of ``overlap_rate``.

    Args:
        lr: one learning rate or several; all see the same inputs.
        method: ``"wn"`` (weight norm, w rescaled to length 1 after each step) or ``"sgd"``.
        num_inputs: N.
        num_runs: independent students per learning rate.
        student: ``"relu"`` or ``"linear"``.
        start: R at time 0; gamma and L start at 1.
        duration: the line is fitted by least squares to times from 0 to here.
        seed: seed for the inputs.
    """
    steps = {"wn": _bn_step, "sgd": _sgd_step}
    if method not in steps:
        raise InputError(f"method must be 'wn' or 'sgd'. Got {method!r}.")
    if not abs(start) < 1:
        raise InputError(f"start must be below 1, else ln(1 - R) has no slope. Got {start!r}.")
    rates = np.atleast_1d(learning_rates_of(lr))
    rule = _Rule(rates, 0.0, STUDENTS[student], fixed_length=method == "wn")
    times = np.linspace(0.0, float(checked_times(duration)[-1]), FIT_POINTS)
    runs = _Runs(Start(1.0, start, 1.0), rule, num_inputs, num_runs, seed)
    with np.errstate(over="ignore", invalid="ignore"):  # a student that diverges has slope NaN
        far = np.stack([now.distance for now in runs.states(steps[method], times)])
    centred = times - times.mean()
    slopes = np.einsum("t,tkr->rk", centred, np.log(far)) / np.sum(centred**2)
    return OverlapSlopes(
        method=method, student=rule.student.name, lr=rates, slopes=slopes,
        num_inputs=num_inputs, start=float(start), duration=float(duration), seed=seed,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rule:
    """What one step does."""

    lr: Array  # (rates,)
    zeta: float
    student: Student
    fixed_length: bool = False


@dataclass
class _State:
    """Students (rate, run): w = scale * direction, so that shrinking w costs one number."""

    direction: Array  # (rate, run, N)
    scale: Array  # (rate, run)
    square: Array  # (rate, run) ||w||^2
    gamma: Array  # (rate, run)

    @property
    def distance(self) -> Array:
        """1 - R, from the part of w across the teacher: no cancellation near R = 1."""
        along = self.direction[..., 0]
        across = np.sum(self.direction[..., 1:] ** 2, axis=-1)
        sine2 = across / (across + along**2)
        cosine = along / np.sqrt(across + along**2)
        gap: Array = np.where(cosine > 0, sine2 / (1 + np.abs(cosine)), 1 - cosine)
        return gap


Step = Callable[[_State, _Rule, Array, Array], None]


class _Runs:
    """Independent students of one start, and the inputs they see."""

    def __init__(
        self, start: Start, rule: _Rule, num_inputs: int, num_runs: int, seed: int
    ) -> None:
        why = "the student needs a plane to turn in"
        self.inputs = checked_count(num_inputs, "num_inputs", least=2, why=why)
        runs = checked_count(num_runs, "num_runs", why="there is nothing to average otherwise")
        self.rule, self.start = rule, start
        self.generators = [numpy_generator(checked_seed(seed), "online", i) for i in range(runs)]

    def states(self, step: Step, times: Array) -> Iterator[_State]:
        """The students at each time; the same object each time, moved on."""
        now, done, blocks = self._first(), 0, self._inputs()
        left: list[Array] = []
        for target in np.rint(times * self.inputs).astype(int):
            while done < target:
                left = left or list(next(blocks))
                x = left.pop(0)
                step(now, self.rule, x, np.einsum("rn,rn->r", x, x))
                done += 1
            self._settle(now)
            yield now

    def _first(self) -> _State:
        shape = (len(self.rule.lr), len(self.generators))
        direction = np.zeros((*shape, self.inputs))
        cosine = self.start.correlation
        direction[..., 0], direction[..., 1] = cosine, np.sqrt(1 - cosine**2)
        direction *= self.start.length * np.sqrt(self.inputs)
        square = np.full(shape, self.start.length**2 * self.inputs)
        return _State(direction, np.ones(shape), square, np.full(shape, self.start.gamma))

    def _inputs(self) -> Iterator[Array]:
        """Blocks (step, run, N) of inputs, a stream of its own for each run."""
        while True:
            block = [g.standard_normal((BLOCK, self.inputs)) for g in self.generators]
            yield np.stack(block, axis=1) / np.sqrt(self.inputs)

    @staticmethod
    def _settle(now: _State) -> None:
        """Fold the scale into the vectors and measure their length: rounding cannot add up."""
        now.direction *= now.scale[..., None]
        now.scale[:] = 1.0
        now.square = np.einsum("krn,krn->kr", now.direction, now.direction)


def _bn_step(now: _State, rule: _Rule, x: Array, norms: Array) -> None:
    """W += eta delta (gamma/L x - W.x/(N L^2) w); gamma += eta/N (delta W.x/gamma - zeta gamma)."""
    n = x.shape[-1]
    eta, square = rule.lr[:, None], now.square
    length = np.sqrt(square / n)
    h = now.scale * np.einsum("krn,rn->kr", now.direction, x)
    u = now.gamma * h / length
    delta = _delta(u, x, rule.student)
    push = eta * delta * now.gamma / length
    keep = 1 - eta * delta * u / square  # N L^2 = ||w||^2
    now.gamma = now.gamma + eta / n * (delta * h / length - rule.zeta * now.gamma)
    now.square = keep**2 * square + 2 * keep * push * h + push**2 * norms
    now.scale = now.scale * keep
    now.direction += (push / now.scale)[..., None] * x
    if rule.fixed_length:
        now.scale = now.scale * np.sqrt(square / now.square)
        now.square = square


def _sgd_step(now: _State, rule: _Rule, x: Array, norms: Array) -> None:
    """W += eta delta x."""
    u = np.einsum("krn,rn->kr", now.direction, x)
    push = rule.lr[:, None] * _delta(u, x, rule.student)
    now.square = now.square + 2 * push * u + push**2 * norms
    now.gamma = np.sqrt(now.square / x.shape[-1])
    now.direction += push[..., None] * x


def _delta(u: Array, x: Array, student: Student) -> Array:
    """g'(u) (g(t) - g(u)) with t = w*.x, the first input times sqrt(N)."""
    t = np.sqrt(x.shape[-1]) * x[:, 0]
    made: Array = student.slope(u) * (student.function(t) - student.function(u))
    return made


def _path(
    method: str,
    step: Step,
    rule: _Rule,
    start: Start,
    times: Array,
    num_inputs: int,
    num_runs: int,
    seed: int,
) -> LearningPath:
    runs = _Runs(start, rule, num_inputs, num_runs, seed)
    rows = []
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is a result
        for now in runs.states(step, times):
            length = np.sqrt(now.square[0] / num_inputs)
            rows.append((now.gamma[0].copy(), 1 - now.distance[0], length))
    gamma, correlation, length = (np.stack(part, axis=1) for part in zip(*rows, strict=True))
    return LearningPath(
        method, rule.student.name, float(rule.lr[0]), rule.zeta, times, gamma, correlation, length,
        num_inputs=num_inputs, seed=seed, fixed_length=rule.fixed_length,
        reason=_divergence(times, gamma),
    )  # fmt: skip


def _divergence(times: Array, gamma: Array) -> str:
    lost = ~np.all(np.isfinite(gamma), axis=0)
    if not lost.any():
        return ""
    return f"A student diverged: not finite from t = {times[np.argmax(lost)]:.4g} on."
