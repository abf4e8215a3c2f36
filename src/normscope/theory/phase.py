"""Order and chaos over a grid of variances."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.refs import POOLE2016, SCHOENHOLZ2017, equation
from normscope.results.phase import PhaseDiagram
from normscope.spec import activation as activation_of
from normscope.theory.integrals import second_moment_of_derivative
from normscope.theory.meanfield.fixed_points import (
    correlation_fixed_point,
    depth_scale,
    length_fixed_point,
    length_slope,
)

MOST_POINTS = 10_000_000


@equation(SCHOENHOLZ2017, "Eq. (8)-(10)")
@equation(POOLE2016, "Eq. (3)-(6)")
def phase_diagram(
    activation: str, weight_variances: ArrayLike, bias_variances: ArrayLike
) -> PhaseDiagram:
    r"""Fixed points, chi_1 and depth scales on a grid of weight and bias variances.

    .. math:: q^* = \sigma_w^2 I_\phi[q^*,q^*] + \sigma_b^2,\quad
              \chi_1 = \sigma_w^2 I_{\phi'}[q^*,q^*]

    Symbols: sigma_w^2 ``weight_variances`` (n,), sigma_b^2 ``bias_variances`` (m,); results have
    shape (m, n), one row per bias variance.
    Holds for: wide plain networks. Where lengths grow without bound, q* is infinite and the
    status says ``diverges``.

    Example:
        >>> diagram = phase_diagram("tanh", [1.3, 2.5], [0.05])
        >>> [str(s) for s in diagram.status[0]]
        ['ordered', 'chaotic']
    """
    act = activation_of(activation)
    weight = _checked("weight_variances", weight_variances)
    bias = _checked("bias_variances", bias_variances)
    checked_count(weight.size * bias.size, "The number of points of a diagram", most=MOST_POINTS)
    w, b = np.meshgrid(weight, bias)
    length = length_fixed_point(act, w, b)
    finite = np.isfinite(length)
    # homogeneous slopes do not depend on the length, so they are known where it diverges
    safe = np.where(finite, length, 1.0)
    known = finite | act.homogeneous
    chi1 = np.where(known, w * second_moment_of_derivative(act, safe), np.nan)
    correlation, slope = correlation_fixed_point(act, length, w, b)
    correlation = np.where(finite, correlation, np.nan)
    slope = np.where(finite, slope, np.nan)
    length_chi = np.where(finite, length_slope(act, safe, w), np.nan)
    # At a critical point rounding decides the side; chi_1 within 1e-12 of 1 counts as the edge.
    status = np.where(chi1 > 1 + 1e-12, "chaotic", np.where(chi1 < 1 - 1e-12, "ordered", "edge"))
    status = np.where(finite, status, "diverges")
    return PhaseDiagram(
        activation=act.name,
        weight_variances=weight,
        bias_variances=bias,
        length=length,
        correlation=correlation,
        chi1=chi1,
        correlation_depth=np.where(finite, depth_scale(slope), np.nan),
        length_depth=np.where(finite, depth_scale(length_chi), np.nan),
        status=status,
    )


def _checked(name: str, values: ArrayLike) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        array = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number or a list of numbers. Got {values!r}.") from None
    if array.ndim != 1 or not array.size:
        raise InputError(f"{name} must be a number or a list of numbers. Got shape {array.shape}.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        bad = array[~(np.isfinite(array) & (array >= 0))][0]
        raise InputError(f"{name} are variances: finite, not negative. Got {bad}.")
    return array
