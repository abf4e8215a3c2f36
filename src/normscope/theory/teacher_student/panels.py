"""Theory and simulation side by side: the two panels of Luo's Figure 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from normscope.results.generalization import GeneralizationPanel
from normscope.theory.teacher_student._checks import loads
from normscope.theory.teacher_student.linear_errors import (
    least_squares_error,
    ridge_error,
    weight_norm_error,
)
from normscope.theory.teacher_student.relu_errors import published_relu_error, relu_error
from normscope.theory.teacher_student.samples import Data, simulated_errors
from normscope.theory.teacher_student.solved import ConvexRelu, LinearSolutions
from normscope.theory.teacher_student.trained import BatchNormSgd, ReluDescent

LOADS = tuple(np.linspace(0.25, 3.0, 12))
FINE = 400  # points of a theory's line


def linear_panel(
    alpha: ArrayLike = LOADS,
    *,
    data: Data | None = None,
    batch_size: int = 32,
    lam: Sequence[float] = (0.25,),
    num_steps: Sequence[int] = (300, 3000),
    workers: int = 1,
) -> GeneralizationPanel:
    """Luo's Figure 1a: least squares, weight norm with gamma decay, ridge and batch norm.

    Args:
        alpha: loads P / N of the simulation; the lines of theory cover their range.
        data: N, noise, seeds; 512 inputs by default, the paper has 4096.
        batch_size: M of batch norm; weight norm gets zeta = 1/(2M).
        lam: ridges.
        num_steps: when batch norm is tested on its way; it is no ridge at convergence.
        workers: threads.
    """
    given, load = data or Data(512), loads(alpha)
    normed = BatchNormSgd("linear", batch_size=batch_size, num_steps=num_steps)
    zeta = 1 / (2 * normed.batch_size)
    arms = [LinearSolutions(lam=lam, zeta=(zeta,)), normed]
    fine = _fine(load)
    noise = given.noise_variance
    curves = (
        least_squares_error(fine, noise_variance=noise),
        *(ridge_error(fine, lam=value, noise_variance=noise) for value in lam),
        weight_norm_error(fine, zeta=zeta, noise_variance=noise),
    )
    return GeneralizationPanel(curves, simulated_errors(arms, load, given, workers=workers))


def relu_panel(
    alpha: ArrayLike = LOADS,
    *,
    data: Data | None = None,
    batch_size: int = 16,
    num_steps: Sequence[int] = (300, 3000),
    workers: int = 1,
) -> GeneralizationPanel:
    """Luo's Figure 1b: the ReLU student, published and corrected theory beside simulation.

    The text gives M = 16 and zeta = 1/(4M) (the caption M = 32): the text is followed. Arguments
    as in :func:`linear_panel`; 400 inputs by default.
    """
    given, load = data or Data(400), loads(alpha)
    normed = BatchNormSgd("relu", batch_size=batch_size, num_steps=num_steps)
    zeta = 1 / (4 * normed.batch_size)
    arms = [ConvexRelu(), ReluDescent(zeta=(0.0, zeta)), normed]
    fine = _fine(load)
    curves = (
        published_relu_error(fine, noise_variance=given.noise_variance),
        relu_error(fine, noise_variance=given.noise_variance),
    )
    return GeneralizationPanel(curves, simulated_errors(arms, load, given, workers=workers))


def _fine(load: np.ndarray) -> np.ndarray:
    """The loads themselves and an even grid over their range."""
    return np.unique(np.concatenate([load, np.linspace(load.min(), load.max(), FINE)]))
