"""How a student learns from its teacher: paths, learning rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of

LONG = 1e5  # order parameters from here on are shown as powers of ten
ORDER = ("gamma", "correlation", "length")  # the order parameters of a path


@dataclass(frozen=True, eq=False, repr=False)
class LearningPath(Drawable):
    """Order parameters of online learning over time, from the ODE or from simulated students.

    The chart: gamma, R and L against time.

    Attributes:
        method: ``"bn"`` (weight norm and gamma decay), ``"wn"`` or ``"sgd"``.
        student: activation of teacher and student, ``"relu"`` or ``"linear"``.
        lr: learning rate eta.
        zeta: gamma decay, loss (y - yhat)^2 + zeta gamma^2 or half of both.
        time: steps / N, (times,).
        gamma: gain of the student, (runs, times); for sgd its length Q.
        correlation: R of student and teacher, (runs, times).
        length: L = ||w|| / sqrt(N), (runs, times); for sgd the same as gamma.
        num_inputs: N of the simulation, None for the limit N to infinity.
        seed: seed for the simulation, None for the ODE.
        fixed_length: w is rescaled to its first length after each step.
        reason: why the path ended early; empty if it did not.
    """

    method: str
    student: str
    lr: float
    zeta: float
    time: Array  # (times,)
    gamma: Array  # (runs, times)
    correlation: Array  # (runs, times)
    length: Array  # (runs, times)
    num_inputs: int | None = None
    seed: int | None = None
    fixed_length: bool = False
    reason: str = ""

    @property
    def end(self) -> tuple[float, float, float]:
        """gamma, R and L at the last time, mean over the runs."""
        gamma, correlation, length = (float(self.mean(name)[-1]) for name in ORDER)
        return gamma, correlation, length

    def mean(self, name: str) -> Array:
        """Mean over the runs of ``"gamma"``, ``"correlation"`` or ``"length"``, (times,)."""
        mean: Array = getattr(self, name).mean(axis=0)
        return mean

    def standard_error(self, name: str) -> Array:
        """Standard error of that mean, (times,); NaN for a single run."""
        return standard_error_of(getattr(self, name))

    def to_frame(self) -> DataFrame:
        """One row per time: means and, for a simulation, their standard errors."""
        columns = {"time": self.time} | {name: self.mean(name) for name in ORDER}
        if self.num_inputs is not None:
            columns |= {f"{name}_error": self.standard_error(name) for name in ORDER}
        return framed(columns)

    def summary(self) -> str:
        """Two lines for a terminal."""
        gamma, correlation, length = self.end
        state = f"  at t = {self.time[-1]:g}: {_state(gamma, correlation, length)}"
        return "\n".join([self.title, state] + ([self.reason] if self.reason else []))

    @property
    def title(self) -> str:
        """What was learnt by what, in one line."""
        runs = f"{len(self.gamma)} runs of {self.num_inputs} inputs" if self.num_inputs else "ODE"
        decay = f", zeta = {self.zeta:g}" if self.method == "bn" else ""
        held = ", L held" if self.fixed_length else ""
        return f"{self.method}, {self.student} student, lr = {self.lr:g}{decay}{held}: {runs}"

    def __repr__(self) -> str:
        gamma, correlation, length = self.end
        return f"LearningPath({self.title}; ends at {_state(gamma, correlation, length)})"


@dataclass(frozen=True, eq=False, repr=False)
class LearningComparison(Drawable):
    """The ODE and simulated students of the same start, at the same times.

    The chart: ODE as lines, simulation as points with error bars.
    """

    theory: LearningPath
    simulated: LearningPath

    @property
    def max_error(self) -> dict[str, float]:
        """Largest |mean of the runs - ODE| along the path, per order parameter."""
        return {name: float(np.max(np.abs(self._gap(name)))) for name in ORDER}

    def _gap(self, name: str) -> Array:
        return self.simulated.mean(name) - self.theory.mean(name)

    def to_frame(self) -> DataFrame:
        """One row per time: ODE, mean of the runs and its standard error."""
        frame = self.simulated.to_frame()
        for name in ORDER:
            frame[f"{name}_ode"] = self.theory.mean(name)
        return frame

    def summary(self) -> str:
        """The two ends and the largest distances."""
        errors = ", ".join(
            f"{name} {value:.4{'f' if value < LONG else 'g'}}"
            for name, value in self.max_error.items()
        )
        parts = [self.theory.summary(), self.simulated.summary()]
        return "\n".join([*parts, f"largest distance along the path: {errors}"])

    def __repr__(self) -> str:
        errors = self.max_error
        return (
            f"LearningComparison({self.simulated.title}; largest |R error| "
            f"{errors['correlation']:.4f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class OverlapSlopes(Drawable):
    """Measured rate d ln(1 - R) / dt of simulated students, one column per learning rate.

    The chart: slope against the learning rate.
    """

    method: str
    student: str
    lr: Array  # (rates,)
    slopes: Array  # (runs, rates)
    num_inputs: int
    start: float  # R at time 0
    duration: float  # of the fit, in units of N steps
    seed: int

    @property
    def mean(self) -> Array:
        """Mean over the runs, (rates,)."""
        mean: Array = self.slopes.mean(axis=0)
        return mean

    @property
    def standard_error(self) -> Array:
        """Standard error of the mean, (rates,); NaN for a single run."""
        return standard_error_of(self.slopes)

    def to_frame(self) -> DataFrame:
        """One row per learning rate."""
        columns = {"lr": self.lr, "slope": self.mean, "standard_error": self.standard_error}
        return framed(columns)

    def summary(self) -> str:
        """One line per learning rate."""
        rows = zip(self.lr, self.mean, self.standard_error, strict=True)
        lines = [
            f"  lr {lr:<6g} {slope: .4f}{plus_minus(error, '.4f')}" for lr, slope, error in rows
        ]
        runs = f"{len(self.slopes)} runs of {self.num_inputs} inputs from R = {self.start:g}"
        return "\n".join([f"slope of ln(1 - R), {self.method}, {self.student}: {runs}", *lines])

    def __repr__(self) -> str:
        return f"OverlapSlopes({self.method}, {self.student}, {len(self.lr)} learning rates)"


@dataclass(frozen=True, eq=False, repr=False)
class LearningRates(Drawable):
    """Fixed points, eigenvalues and learning rates of batch norm, weight norm and SGD.

    ``overlap_rate`` below 0 means that R = 1 attracts; it is linear theory at the fixed point,
    and with gamma decay that point is one to first order in the learning rate only.

    The chart: lambda_R against the learning rate.
    """

    student: str
    zeta: float
    length: float  # L0
    methods: tuple[str, ...]
    lr: Array  # (rates,)
    fixed_gamma: Array  # (methods,) gamma0
    max_effective_lr: Array  # (methods,) eta_max
    max_lr: Array  # (methods,) bound on the raw learning rate
    effective_lr: Array  # (methods, rates)
    gain_rate: Array  # (methods, rates) lambda_Q
    overlap_rate: Array  # (methods, rates) lambda_R
    measured: tuple[OverlapSlopes, ...] = ()

    def to_frame(self) -> DataFrame:
        """One row per method and learning rate."""
        shape = self.overlap_rate.shape
        lrs = np.tile(self.lr, shape[0])
        columns = {"method": np.repeat(self.methods, shape[1]), "lr": lrs}
        for name in ("fixed_gamma", "max_effective_lr", "max_lr"):
            columns[name] = np.repeat(getattr(self, name), shape[1])
        for name in ("effective_lr", "gain_rate", "overlap_rate"):
            columns[name] = getattr(self, name).ravel()
        return framed(columns)

    def summary(self) -> str:
        """Fixed point and largest learning rates of each method."""
        rows = zip(self.methods, self.fixed_gamma, self.max_effective_lr, self.max_lr, strict=True)
        lines = [
            f"  {name:<4} gamma0 {gamma:.4f}, eta_max {most:.4g}, bound on lr {raw:.4g}"
            for name, gamma, most, raw in rows
        ]
        head = f"{self.student} student, zeta = {self.zeta:g}, L0 = {self.length:g}"
        return "\n".join([head, *lines, *(slopes.summary() for slopes in self.measured)])

    def __repr__(self) -> str:
        bounds = ", ".join(
            f"{name} {raw:.4g}" for name, raw in zip(self.methods, self.max_lr, strict=True)
        )
        return f"LearningRates({self.student}, zeta = {self.zeta:g}; bound on lr: {bounds})"


def plus_minus(error: float, digits: str) -> str:
    """The error behind its mean; nothing for a single run, which has none."""
    return "" if np.isnan(error) else f" +- {error:{digits}}"


def _state(gamma: float, correlation: float, length: float) -> str:
    """The order parameters at one time; those of a student that diverged as powers of ten."""
    long = ".4f" if max(abs(gamma), abs(length)) < LONG else ".4g"
    return f"gamma {gamma:{long}}, R {correlation:.4f}, L {length:{long}}"
