"""From a second moment to its spectrum."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import InputError
from normscope.results.eigenvalues import MomentSpectrum

ASYMMETRY = 1e-6  # relative; more is no rounding


def moment_spectrum(
    moment: Tensor | NDArray[np.floating], *, signals: torch.dtype = torch.float64
) -> MomentSpectrum:
    """All eigenvalues of a second moment E[v v^T], in float64.

    Args:
        moment: (d, d), symmetric.
        signals: type in which v was computed: its rounding sets what counts as a zero eigenvalue.

    Returns:
        ``largest`` (lambda_max), ``trace``, ``rank``, ``kappa(p)`` for any p in (0, 1].

    Example:
        >>> spectrum = moment_spectrum(torch.diag(torch.tensor([8.0, 2.0])))
        >>> spectrum.largest, spectrum.trace, spectrum.kappa(0.5), spectrum.kappa(1.0)
        (8.0, 10.0, 1.0, 4.0)
    """
    matrix = torch.as_tensor(moment).detach().to(torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.numel() == 0:
        raise InputError(f"A second moment is a square matrix. Got shape {tuple(matrix.shape)}.")
    if not bool(matrix.isfinite().all()):
        raise InputError("The second moment holds NaN or infinity, so it has no spectrum.")
    if float((matrix - matrix.T).abs().max()) > ASYMMETRY * float(matrix.abs().max()):
        raise InputError("A second moment is symmetric, and this matrix is not. Pass E[v v^T].")
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0).cpu().numpy()
    return MomentSpectrum.of(values, rtol=rounding_share(len(values), signals))


def rounding_share(size: int, signals: torch.dtype) -> float:
    """Share of lambda_max that rounding alone can make an eigenvalue.

    d eps of float64 for the matrix; rows with relative errors u give moments of size u^2, which
    is the larger one for float32 signals.
    """
    unit = torch.finfo(signals).eps if signals.is_floating_point else 0.0
    return size * max(float(torch.finfo(torch.float64).eps), float(unit) ** 2)
