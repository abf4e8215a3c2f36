"""Laws of a hidden value, and observations over batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def over_sizes(sizes: Sequence[int], values: Array, theory: Any) -> dict[str, Any]:
    """An observation of the rule ``formula``: values (seeds, sizes), theory for each size."""
    expected = np.broadcast_to(np.asarray(theory, float), (len(sizes),))
    return {"sizes": list(sizes), "values": values.T.tolist(), "theory": expected.tolist()}


def parts(groups: Mapping[Any, Any], **more: Any) -> dict[str, Any]:
    """An observation with a part for each group of values; numbers are loads alpha."""
    named = {k if isinstance(k, str) else f"alpha={k:g}": v for k, v in groups.items()}
    return {"parts": {k: {"values": np.asarray(v).tolist(), **more} for k, v in named.items()}}


def exact(value: Any, expected: Any, remainder: float = 0.0) -> dict[str, Any]:
    """An observation of the rule ``number`` that is not random."""
    made = {"mean": float(value), "se": 0.0, "n": 1}
    return made | {"expected": float(expected), "remainder": remainder}
