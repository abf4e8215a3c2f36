"""Laws of a hidden value, and parts by load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.polynomial import hermite_e, laguerre, legendre

from normscope.checks import Array
from normscope.experiments.observing import parts

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
    """Quadrature nodes and weights of a law."""
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


def by_load(groups: Mapping[float, Any], **more: Any) -> dict[str, Any]:
    """An observation with a part for each load alpha."""
    return parts({f"alpha={a:g}": v for a, v in groups.items()}, **more)
