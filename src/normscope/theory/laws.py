"""Laws of a standardized hidden value, for what batch statistics do beyond the Gaussian case."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import hermite_e, laguerre, legendre

from normscope.checks import Array

LAWS = {  # excess kurtosis and skewness; all have mean 0 and variance 1
    "Gauss": (0.0, 0.0), "uniform": (-1.2, 0.0), "Laplace": (3.0, 0.0), "exponential": (6.0, 2.0),
}  # fmt: skip
NODES = 100


def draw(law: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Independent values of a law."""
    if law == "Gauss":
        return rng.standard_normal(shape)
    if law == "uniform":
        return rng.uniform(-np.sqrt(3), np.sqrt(3), shape)
    if law == "Laplace":
        return rng.laplace(scale=np.sqrt(0.5), size=shape)
    return rng.exponential(size=shape) - 1


def nodes(law: str) -> tuple[Array, Array]:
    """Quadrature nodes of a law, and their weights, which sum to 1."""
    if law == "Gauss":
        x, w = hermite_e.hermegauss(NODES)
    elif law == "uniform":
        x, w = legendre.leggauss(NODES)
        x = x * np.sqrt(3)
    else:
        x, w = laguerre.laggauss(NODES)
        mirrored = np.concatenate([-x, x]) * np.sqrt(0.5), np.concatenate([w, w])
        x, w = mirrored if law == "Laplace" else (x - 1, w)
    return x, w / w.sum()
