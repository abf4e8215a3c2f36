"""Arguments that all of this package share, checked once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError

Variances = float | Sequence[float] | Array
LARGEST_LOG = 700.0  # exp of it is still a float64


def checked_factors(num_factors: int) -> int:
    """M, the number of matrices in the product."""
    return checked_count(num_factors, "num_factors", why="the matrices of the product")


def checked_variances(variances: Variances, num_factors: int) -> Array:
    """One sigma_i^2 per factor, (M,); a single number stands for all."""
    values = checked_numbers(variances, "variances")
    if values.ndim > 1 or values.size not in (1, num_factors):
        raise InputError(
            f"variances is one number, or one per factor: {num_factors} of them. "
            f"Got an array of shape {values.shape}."
        )
    if not (values > 0).all():
        raise InputError(
            f"variances are sigma_i^2, above 0: a factor with variance 0 is the zero matrix. "
            f"Got {float(values.min())!r}."
        )
    return np.broadcast_to(values.reshape(-1), (num_factors,))


def log_scale(variances: Variances, num_factors: int) -> float:
    """Log of prod_i sigma_i^2, by which squared singular values are multiplied."""
    scale = float(np.log(checked_variances(variances, num_factors)).sum())
    if abs(scale) > LARGEST_LOG:
        raise InputError(
            f"The product of the variances is 10**{scale / np.log(10):.0f}, beyond float64. "
            "The law only scales with it: compute with variances=1 and scale in logarithms."
        )
    return scale


def checked_size(size: int) -> int:
    """N, rows and columns of a factor."""
    return checked_count(
        size, "size", least=2, why="a product of numbers has one singular value only"
    )
