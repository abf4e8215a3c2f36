"""Students that are solved for, not trained: least squares, ridge, the convexified ReLU loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from normscope.checks import Array
from normscope.theory.teacher_student._checks import above_zero, decays
from normscope.theory.teacher_student.samples import Arm, Outcome, Sample
from normscope.theory.teacher_student.students import STUDENTS, Student

RIDGES = tuple(10.0**-k for k in range(11))  # warm starts on the way to no ridge
ROUNDS = 100


class LinearSolutions(Arm):
    """Least squares (least norm), ridges ``lam``, and weight norm with gamma decay ``zeta``.

    All share one Gram matrix, of the smaller side. Weight norm at convergence is the ridge
    alpha zeta: its loss is quadratic in gamma w/|w|.
    """

    def __init__(self, *, lam: Sequence[float] = (), zeta: Sequence[float] = ()) -> None:
        why = "least squares is always there"
        self.lam = tuple(float(above_zero("lam", value, why=why)) for value in lam)
        self.zeta = tuple(float(decays(value)) for value in zeta)

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """Least squares, then the ridges, then the decays."""
        return (
            Outcome("least squares"),
            *(Outcome("ridge", {"lam": value}) for value in self.lam),
            *(Outcome("weight norm + gamma decay", {"zeta": value}) for value in self.zeta),
        )

    def errors(self, samples: Sequence[Sample]) -> Array:
        """Sample by sample: the time goes into the Gram matrix and its factors."""
        return np.array([self._errors(sample) for sample in samples])

    def _errors(self, sample: Sample) -> list[float]:
        alpha = len(sample.targets) / len(sample.teacher)
        ridges = [0.0, *self.lam, *(alpha * value for value in self.zeta)]
        weights = ridge_weights(sample.inputs, sample.targets, ridges)
        return [sample.error(w, self.student) for w in weights]


class ConvexRelu(Arm):
    """The minimum of the convexified ReLU loss, of least norm if the loss reaches 0.

    Positive targets are fitted, for the others w.x <= 0 is asked for. Newton's method on the set of
    samples that pull, with a ridge that goes to 0; the last step has none.
    """

    student: Student = STUDENTS["relu"]

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The one outcome of this student."""
        return (Outcome("convexified loss", settings={"solver": "active set, exact"}),)

    def errors(self, samples: Sequence[Sample]) -> Array:
        """The generalization error for each sample."""
        found = [convex_relu_weights(s.inputs, s.targets) for s in samples]
        rows = [[s.error(w, self.student)] for s, w in zip(samples, found, strict=True)]
        return np.array(rows)


def ridge_weights(inputs: Array, targets: Array, ridges: Sequence[float]) -> list[Array]:
    """(X'X + lam I)^-1 X'y for each lam, from the Gram matrix of the smaller side."""
    wide = inputs.shape[0] < inputs.shape[1]
    gram = inputs @ inputs.T if wide else inputs.T @ inputs
    side = targets if wide else inputs.T @ targets
    found = [_solve(gram, side, lam) for lam in ridges]
    return [inputs.T @ made for made in found] if wide else found


def _solve(gram: Array, side: Array, lam: float) -> Array:
    shifted = gram.copy()  # symmetric: its transpose is in LAPACK's order
    shifted[np.diag_indices(len(side))] += lam
    try:
        factor = linalg.cho_factor(shifted.T, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:  # singular to rounding: the least-norm solution
        made: Array = linalg.lstsq(gram, side, check_finite=False)[0]
        return made
    solved: Array = linalg.cho_solve(factor, side, check_finite=False)
    return solved


def convex_relu_weights(inputs: Array, targets: Array) -> Array:
    """The minimiser of sum_{y>0} (y - w.x)^2 + sum_{y<=0} max(0, w.x)^2, of least norm."""
    positive = targets > 0
    wanted = np.where(positive, targets, 0.0)
    weights = np.zeros(inputs.shape[1])
    for ridge in RIDGES:
        weights = _newton(inputs, wanted, positive, weights, ridge)
    pulls = positive | (inputs @ weights > 0)
    return ridge_weights(inputs[pulls], wanted[pulls], [0.0])[0]


def _newton(
    inputs: Array, wanted: Array, positive: NDArray[np.bool_], weights: Array, ridge: float
) -> Array:
    """Piecewise quadratic and strictly convex: solve on the samples that pull until they stay."""

    def loss(w: Array) -> float:
        gap = wanted - inputs @ w
        gap = np.where(positive, gap, np.minimum(gap, 0.0))
        return float(gap @ gap + ridge * (w @ w))

    pulls = positive | (inputs @ weights > 0)
    for _ in range(ROUNDS):
        step = ridge_weights(inputs[pulls], wanted[pulls], [ridge])[0] - weights
        size, before = 1.0, loss(weights)
        while loss(weights + size * step) > before and size > 1e-8:
            size /= 2
        weights = weights + size * step
        now = positive | (inputs @ weights > 0)
        if size == 1.0 and np.array_equal(now, pulls):
            break
        pulls = now
    return weights
