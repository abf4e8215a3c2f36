"""Students that are trained: batch norm by SGD, ReLU students by gradient descent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array, checked_count
from normscope.errors import InputError
from normscope.theory.teacher_student._checks import decays, learning_rates_of
from normscope.theory.teacher_student.samples import Arm, Outcome, Sample
from normscope.theory.teacher_student.students import STUDENTS, Student

INITS = ("span", "random")
SMALL = 1e-2  # length of the first weights of gradient descent, in units of the teacher's


class BatchNormSgd(Arm):
    """Batch norm without mean and shift, yhat = g(gamma h / sigma_B), sigma_B^2 = mean h^2.

    SGD on half the squared error with batches drawn without replacement, epoch by epoch. The step
    of w is N lr times its gradient, as inputs have variance 1/N; gamma starts at 1, w at the
    teacher's length, either in the span of the data (w ~ X'y) or at random. Tests use the
    statistics of the whole training set.
    """

    def __init__(
        self,
        student: str = "linear",
        *,
        batch_size: int,
        num_steps: Sequence[int] | int,
        lr: float = 0.1,
        init: str = "span",
    ) -> None:
        self.student = STUDENTS[student]
        why = "the norm of one value is its sign"
        self.batch_size = checked_count(batch_size, "batch_size", least=2, why=why)
        self.least_samples = self.batch_size
        steps = (num_steps,) if isinstance(num_steps, int) else num_steps
        self.steps = tuple(sorted(map(_checked_steps, steps)))
        self.lr = float(learning_rates_of(lr))
        if init not in INITS:
            raise InputError(f"init must be one of {', '.join(INITS)}. Got {init!r}.")
        self.init = init

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The same student at each of the numbers of steps."""
        settings = {"init": f"{self.init}, gamma = 1", "lr": f"{self.lr:g}"}
        settings |= {"statistics": "uncentred, training set at test"}
        return tuple(
            Outcome("batch norm", {"M": float(self.batch_size), "steps": float(s)}, settings)
            for s in self.steps
        )

    def errors(self, samples: Sequence[Sample]) -> Array:
        """All samples at once: one gather and three products per step."""
        one = len(samples) == 1  # a large sample is not copied
        rows = samples[0].inputs if one else np.concatenate([s.inputs for s in samples])
        targets = np.concatenate([s.targets for s in samples])
        weights, gamma = self._first(samples), np.ones(len(samples))
        found = []
        for step, batch in enumerate(self._batches(samples), start=1):
            x, y = rows[batch], targets[batch]  # (sample, M, N), (sample, M)
            h = (x @ weights[..., None])[..., 0]
            sigma = np.sqrt(np.mean(h**2, axis=1, keepdims=True))
            n = h / sigma
            u = gamma[:, None] * n
            pull = self.student.slope(u) * (y - self.student.function(u))
            own = np.mean(pull * n, axis=1)
            across = (pull - n * own[:, None]) * gamma[:, None] / sigma / self.batch_size
            weights += self.lr * weights.shape[1] * (across[:, None] @ x)[:, 0]
            gamma += self.lr * own
            if step in self.steps:
                students = zip(samples, weights, gamma, strict=True)
                found.append([self._error(*student) for student in students])
        return np.array(found).T

    def _first(self, samples: Sequence[Sample]) -> Array:
        rows = []
        for s in samples:
            n = len(s.teacher)
            w = s.inputs.T @ s.targets if self.init == "span" else s.generator.standard_normal(n)
            rows.append(w * np.sqrt(n) / np.linalg.norm(w))
        return np.array(rows)

    def _batches(self, samples: Sequence[Sample]) -> Iterator[NDArray[np.intp]]:
        """Rows (sample, M) of the joint input matrix, one batch per sample and step."""
        offsets = np.cumsum([0, *(len(s.targets) for s in samples[:-1])])
        streams = [_epochs(s, self.batch_size) for s in samples]
        for _ in range(self.steps[-1]):
            yield np.stack([next(b) + o for b, o in zip(streams, offsets, strict=True)])

    def _error(self, sample: Sample, weights: Array, gamma: float) -> float:
        sigma = np.sqrt(np.mean((sample.inputs @ weights) ** 2))
        return sample.error(gamma / sigma * weights, self.student)


class ReluDescent(Arm):
    """Full-batch gradient descent of the ReLU student itself, from small random weights.

    Loss (1/P) sum (y - relu(w.x))^2 + zeta gamma^2 with gamma^2 = |w|^2/N, one ``zeta`` per
    outcome. The step is one over the curvature's bound (1 + sqrt(alpha))^2 + alpha zeta.
    """

    student: Student = STUDENTS["relu"]

    def __init__(self, *, num_steps: int = 2000, zeta: Sequence[float] = (0.0,)) -> None:
        self.steps = _checked_steps(num_steps)
        self.zeta = tuple(float(decays(value)) for value in zeta)

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """One student per decay."""
        settings = {"init": f"random, length {SMALL:g}", "steps": str(self.steps)}
        names = {z: "gradient descent" + (" + gamma decay" if z else "") for z in self.zeta}
        return tuple(Outcome(names[z], {"zeta": z} if z else {}, settings) for z in self.zeta)

    def errors(self, samples: Sequence[Sample]) -> Array:
        """Samples of the same size move together, all decays with them."""
        found = np.empty((len(samples), len(self.zeta)))
        for size in {len(s.targets) for s in samples}:
            places = [i for i, s in enumerate(samples) if len(s.targets) == size]
            found[places] = self._same_size([samples[i] for i in places])
        return found

    def _same_size(self, samples: Sequence[Sample]) -> Array:
        inputs = np.stack([s.inputs for s in samples])  # (sample, P, N)
        targets = np.stack([s.targets for s in samples])[..., None]
        n = inputs.shape[2]
        start = np.stack([s.generator.standard_normal(n) for s in samples])
        weights = np.repeat(SMALL * start[..., None], len(self.zeta), axis=2)  # (sample, N, zeta)
        alpha = targets.shape[1] / n
        ridge = alpha * np.array(self.zeta)
        rate = 1 / ((1 + np.sqrt(alpha)) ** 2 + ridge)
        across = np.swapaxes(inputs, 1, 2)
        for _ in range(self.steps):
            u = inputs @ weights
            pull = self.student.slope(u) * (targets - u)
            weights = weights + rate * (across @ pull - ridge * weights)
        pairs = zip(samples, weights, strict=True)
        return np.array([[s.error(w, self.student) for w in kept.T] for s, kept in pairs])


def _checked_steps(num_steps: int) -> int:
    return checked_count(num_steps, "num_steps", why="nothing is learnt otherwise")


def _epochs(sample: Sample, batch_size: int) -> Iterator[NDArray[np.intp]]:
    """Batches without replacement; what is left of an epoch is dropped."""
    count = len(sample.targets)
    while True:
        order = sample.generator.permutation(count)
        for first in range(0, count - batch_size + 1, batch_size):
            yield order[first : first + batch_size]
