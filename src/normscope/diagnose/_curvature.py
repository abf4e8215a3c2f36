"""The largest curvature of a subject's loss, and the learning rate it allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from normscope.diagnose._optimizers import Remade
from normscope.diagnose.subject import Subject
from normscope.errors import MeasurementError
from normscope.measure import fisher, hessian
from normscope.measure.spectral import top_eigenvalues
from normscope.results import Spectrum

TOLERANCE = 0.05  # of lambda_max: advice does not hang on its second digit
ADAPTIVE = tuple(
    getattr(torch.optim, name)
    for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop")
)


def largest_curvature(subject: Subject) -> Spectrum:
    """lambda_max of the Gauss-Newton matrix; of the Hessian if the loss hides the outputs."""
    try:
        return _largest(subject)
    except MeasurementError as error:
        # Large signals can leave float32 products too rough to be symmetric.
        if "symmetric" not in str(error) or subject.is_double:
            raise
    return _largest(subject.double())


def _largest(subject: Subject) -> Spectrum:
    risk = subject.risk()
    operator = fisher(risk) if risk.has_outputs else hessian(risk)
    return top_eigenvalues(operator, tol=TOLERANCE, seed=subject.seed)


@dataclass(frozen=True)
class Descent:
    """What of the optimizer enters the threshold 2 (1 + momentum) / lambda_max.

    Attributes:
        momentum: SGD momentum, in torch's convention.
        obstacle: why there is no such threshold; empty if there is one.
    """

    momentum: float
    obstacle: str = ""

    def threshold(self, curvature: Spectrum) -> tuple[float, float, float]:
        """Largest stable learning rate in the sharpest direction: value, low, high; NaN if none."""
        if self.obstacle:
            return math.nan, math.nan, math.nan
        return curvature.lr_threshold(self.momentum)


def descent(subject: Subject) -> Descent:
    """Whether the optimizer is gradient descent, and its momentum."""
    chosen = subject.training.optimizer
    if isinstance(chosen, str):
        if chosen == "sgd":
            return Descent(subject.momentum)
        return _adaptive(chosen)
    made = chosen([torch.nn.Parameter(torch.zeros(1))])
    if isinstance(made, ADAPTIVE):
        return _adaptive(type(made).__name__.lower())
    if isinstance(chosen, Remade) and len(set(chosen.rates)) > 1:
        return Descent(0.0, "the parameter groups of your optimizer have different learning rates")
    group = made.param_groups[0]
    other = any(group.get(key) for key in ("nesterov", "dampening", "maximize"))
    if isinstance(made, torch.optim.SGD) and not other:
        return Descent(float(group["momentum"]))
    return Descent(0.0, "your optimizer is not plain gradient descent with momentum")


def _adaptive(name: str) -> Descent:
    why = f"{name} rescales its steps, so lambda_max gives no limit; preset='full' measures one"
    return Descent(0.0, why)
