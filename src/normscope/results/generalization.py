"""Generalization errors against the load: theory, simulation, both in one panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of
from normscope.results.teacher_student import plus_minus


@dataclass(frozen=True, eq=False, repr=False)
class ErrorCurve(Drawable):
    """A generalization error of theory against the load alpha = P / N.

    ``np.asarray(curve)`` is ``error``; ``float(curve)`` the error at a single load. Where the error
    diverges it is ``inf`` and ``reasons`` says why.

    The chart: error against the load.
    """

    method: str
    student: str
    noise_variance: float  # S
    alpha: Array  # (loads,)
    error: Array  # (loads,) mean of (w*.x - yhat)^2, noise-free
    gamma2: Array  # (loads,) squared length of the student, ||w||^2 / N
    overlap: Array  # (loads,) gamma R, w.w* / N
    reasons: tuple[str, ...]  # (loads,) why infinite, or what to know; else empty
    regimes: tuple[str, ...] = ()  # (loads,) "interp" or "noninterp" where the theory has two
    parameters: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Method and parameters, for a legend."""
        return _label(self.method, self.parameters)

    def to_frame(self) -> DataFrame:
        """One row per load."""
        names = ("alpha", "error", "gamma2", "overlap")
        columns = {name: getattr(self, name) for name in names} | {"reason": self.reasons}
        return framed(columns | ({"regime": self.regimes} if self.regimes else {}))

    def summary(self) -> str:
        """One line per load."""
        rows = zip(self.alpha, self.error, self.reasons, strict=True)
        lines = [f"  alpha {a:<6.4g} {e:.5g}{f'  ({why})' if why else ''}" for a, e, why in rows]
        head = f"{self.label}, {self.student} student, noise variance {self.noise_variance:g}"
        return "\n".join([head, *lines])

    def __float__(self) -> float:
        return float(self.error.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.error, dtype=dtype)

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:.4g}" for value in self.error[:3])
        more = ", ..." if len(self.error) > 3 else ""
        return f"ErrorCurve({self.label}, {self.student}: {shown}{more})"


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedErrors(Drawable):
    """Generalization errors of trained or solved students, several seeds at each load.

    The chart: errors with their standard errors against the load.
    """

    method: str
    student: str
    noise_variance: float
    alpha: Array  # (loads,)
    errors: Array  # (seeds, loads)
    num_inputs: int
    seed: int
    parameters: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # how it was trained
    notes: tuple[str, ...] = ()

    @property
    def mean(self) -> Array:
        """Mean over the seeds, (loads,)."""
        mean: Array = self.errors.mean(axis=0)
        return mean

    @property
    def standard_error(self) -> Array:
        """Standard error of the mean, (loads,); NaN for a single seed."""
        return standard_error_of(self.errors)

    @property
    def label(self) -> str:
        """Method and parameters, for a legend."""
        return _label(self.method, self.parameters)

    def to_frame(self) -> DataFrame:
        """One row per load."""
        columns = {"alpha": self.alpha, "error": self.mean, "standard_error": self.standard_error}
        return framed(columns)

    def summary(self) -> str:
        """One line per load."""
        rows = zip(self.alpha, self.mean, self.standard_error, strict=True)
        lines = [f"  alpha {a:<6.4g} {e:.5g}{plus_minus(s, '.2g')}" for a, e, s in rows]
        head = (
            f"{self.label}, {self.student} student, noise variance {self.noise_variance:g}: "
            f"{len(self.errors)} seeds, {self.num_inputs} inputs"
        )
        how = [f"  {name}: {value}" for name, value in self.settings.items()]
        return "\n".join([head, *lines, *how, *self.notes])

    def __repr__(self) -> str:
        return (
            f"SimulatedErrors({self.label}, {self.student}, {len(self.alpha)} loads, "
            f"{len(self.errors)} seeds, {self.num_inputs} inputs)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class GeneralizationPanel(Drawable):
    """Theory and simulation of one student over one range of loads, as in Luo's Figure 1.

    The chart: theory as lines, simulation as points with error bars.
    """

    curves: tuple[ErrorCurve, ...]
    simulated: tuple[SimulatedErrors, ...]

    def to_frame(self) -> DataFrame:
        """One row per method and load; ``source`` is ``theory`` or ``simulation``."""
        import pandas as pd

        parts: Sequence[ErrorCurve | SimulatedErrors] = (*self.curves, *self.simulated)
        frames = []
        for part in parts:
            frame = part.to_frame()
            source = "theory" if isinstance(part, ErrorCurve) else "simulation"
            frame.insert(0, "source", source)
            frame.insert(0, "method", part.label)
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def summary(self) -> str:
        """A table at the simulated loads: one column per curve of theory and per simulation."""
        parts: Sequence[ErrorCurve | SimulatedErrors] = (*self.curves, *self.simulated)
        names = [f"theory: {part.label}" for part in self.curves]
        names += [f"{part.label}: {len(part.errors)} seeds" for part in self.simulated]
        loads = self._loads()
        columns = [_column(i, part, loads) for i, part in enumerate(parts, start=1)]
        lines = [f"[{i}] {name}" for i, name in enumerate(names, start=1)]
        heads = ["alpha", *(f"{load:<5.4g}" for load in loads)]
        lines += ["".join(cells) for cells in zip(heads, *columns, strict=True)]
        why = {reason for curve in self.curves for reason in curve.reasons if reason}
        return "\n".join([*lines, *sorted(why)])

    def _loads(self) -> Array:
        """The simulated loads; without simulation those of the curves, a dozen at most."""
        if self.simulated:
            return np.unique(np.concatenate([part.alpha for part in self.simulated]))
        every = np.unique(np.concatenate([curve.alpha for curve in self.curves]))
        return every[:: max(1, len(every) // 12)]

    def __repr__(self) -> str:
        return f"GeneralizationPanel({len(self.curves)} curves, {len(self.simulated)} simulations)"


def _column(number: int, part: ErrorCurve | SimulatedErrors, loads: Array) -> list[str]:
    """A head and the errors at these loads, aligned; a dash where there is none."""
    if isinstance(part, ErrorCurve):
        shown = [f"{value:.4g}" for value in part.error]
    else:
        pairs = zip(part.mean, part.standard_error, strict=True)
        shown = [f"{value:.4g}{plus_minus(error, '.1g')}" for value, error in pairs]
    known = dict(zip(part.alpha.tolist(), shown, strict=True))
    cells = [f"[{number}]", *(known.get(load, "-") for load in loads.tolist())]
    width = max(map(len, cells)) + 2
    return [f"{cell:>{width}}" for cell in cells]


def _label(method: str, parameters: dict[str, float]) -> str:
    return ", ".join([method, *(f"{name} = {value:g}" for name, value in parameters.items())])
