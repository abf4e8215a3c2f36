"""Noisy linear data, and the loop over loads and seeds that every simulated student shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_count
from normscope.errors import InputError
from normscope.results.generalization import SimulatedErrors
from normscope.seeds import checked_seed, numpy_generator
from normscope.theory.teacher_student._checks import loads, noise
from normscope.theory.teacher_student.students import STUDENTS, Student

GROUP_BYTES = 5e8  # inputs that are held, and trained on, together


@dataclass(frozen=True)
class Data:
    """What the students are shown.

    Attributes:
        num_inputs: N.
        noise_variance: S of the teacher's output y = w*.x + noise; x ~ N(0, I/N), |w*|^2 = N.
        num_seeds: independent teachers and samples at each load.
        seed: seed for all of them; equal seeds give equal data to every kind of student.
    """

    num_inputs: int
    noise_variance: float = 0.25
    num_seeds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        checked_count(self.num_inputs, "num_inputs", least=2, why="theory is for many inputs")
        checked_count(self.num_seeds, "num_seeds", why="there is nothing to average otherwise")
        noise(self.noise_variance)
        checked_seed(self.seed)

    def samples_at(self, alpha: float) -> int:
        """P = alpha N, rounded."""
        found = round(alpha * self.num_inputs)
        if found < 1:
            raise InputError(
                f"alpha = {alpha:g} with {self.num_inputs} inputs is less than one sample. "
                "Use a larger alpha or more inputs."
            )
        return found


@dataclass(frozen=True)
class Sample:
    """P samples of N inputs, their noisy targets and the teacher behind them."""

    inputs: Array  # (P, N)
    targets: Array  # (P,)
    teacher: Array  # (N,)
    generator: np.random.Generator  # for what a student draws itself
    alpha: float

    def error(self, weights: Array, student: Student) -> float:
        """Noise-free test error of a student: E over x of (w*.x - g(w.x))^2, in closed form."""
        n = len(weights)
        length, overlap = weights @ weights / n, weights @ self.teacher / n
        return float(1 + student.power * (length - 2 * overlap))


@dataclass(frozen=True)
class Outcome:
    """One kind of student that an arm trains: its name and how it was trained."""

    method: str
    parameters: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


class Arm(ABC):
    """A way to make students out of samples."""

    student: Student = STUDENTS["linear"]
    least_samples = 1  # that it can be trained on

    @property
    @abstractmethod
    def outcomes(self) -> Sequence[Outcome]:
        """The students made of each sample."""

    @abstractmethod
    def errors(self, samples: Sequence[Sample]) -> Array:
        """Test errors, (samples, outcomes)."""


def draw_sample(data: Data, alpha: float, run: int) -> Sample:
    """The sample of one load and one seed."""
    stream = numpy_generator(data.seed, "sample", repr(float(alpha)), run)
    count, n = data.samples_at(alpha), data.num_inputs
    teacher = stream.standard_normal(n)
    teacher *= np.sqrt(n) / np.linalg.norm(teacher)
    inputs = stream.standard_normal((count, n))
    inputs /= np.sqrt(n)
    targets = inputs @ teacher + np.sqrt(data.noise_variance) * stream.standard_normal(count)
    return Sample(inputs, targets, teacher, stream, alpha)


def simulated_errors(
    arms: Sequence[Arm], alpha: ArrayLike, data: Data, *, workers: int = 1
) -> tuple[SimulatedErrors, ...]:
    """Train the students of every arm on the same samples, load by load and seed by seed.

    Args:
        arms: kinds of students.
        alpha: loads P / N.
        data: what they are shown.
        workers: threads; each holds one group of samples, so that memory grows with them.
    """
    load = loads(alpha)
    _check_samples(arms, load, data)
    threads = checked_count(workers, "workers", least=1, why="somebody has to do the work")
    groups = list(_groups(load, data))

    def errors_of(group: list[tuple[int, int]]) -> Array:
        samples = [draw_sample(data, float(load[index]), run) for index, run in group]
        return np.concatenate([arm.errors(samples) for arm in arms], axis=1)

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(errors_of, groups))
    table: dict[tuple[int, int], list[float]] = {}
    for group, errors in zip(groups, found, strict=True):
        table |= {place: list(row) for place, row in zip(group, errors, strict=True)}
    rows = [[table[i, run] for i in range(len(load))] for run in range(data.num_seeds)]
    by_outcome = np.moveaxis(np.array(rows), 2, 0).copy()  # (outcomes, seeds, loads)
    outcomes = [(arm, outcome) for arm in arms for outcome in arm.outcomes]
    common: dict[str, Any] = {"alpha": load, "noise_variance": data.noise_variance}
    common |= {"num_inputs": data.num_inputs, "seed": data.seed}
    return tuple(
        SimulatedErrors(**asdict(outcome), student=arm.student.name, errors=errors, **common)
        for errors, (arm, outcome) in zip(by_outcome, outcomes, strict=True)
    )


def _check_samples(arms: Sequence[Arm], load: Array, data: Data) -> None:
    fewest = data.samples_at(float(load.min()))
    for arm in arms:
        if fewest < arm.least_samples:
            raise InputError(
                f"{type(arm).__name__} needs at least {arm.least_samples} samples, its batch. "
                f"alpha = {load.min():g} with {data.num_inputs} inputs gives {fewest}. Use a "
                "smaller batch_size, a larger alpha or more inputs."
            )


def _groups(load: Array, data: Data) -> Iterator[list[tuple[int, int]]]:
    """Places (load, seed) whose inputs fit into memory together, largest loads first."""
    group: list[tuple[int, int]] = []
    held = 0.0
    for index in np.argsort(-load):
        size = 8.0 * data.samples_at(float(load[index])) * data.num_inputs
        for run in range(data.num_seeds):
            if group and held + size > GROUP_BYTES:
                yield group
                group, held = [], 0.0
            group.append((int(index), run))
            held += size
    yield group
