"""Where a function on a grid is zero, as straight pieces (marching squares)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array

Point = tuple[float, float]


def zero_contour(x: Array, y: Array, z: Array) -> list[tuple[Point, Point]]:
    """Pieces of the line z = 0; cells with a value that is not finite are passed over.

    Args:
        x: (n,) rising.
        y: (m,) rising.
        z: (m, n) values.
    """
    pieces = []
    for i, j in np.argwhere(_mixed_cells(z)):
        ends = _cell_crossings(x[j : j + 2], y[i : i + 2], z[i : i + 2, j : j + 2])
        # four crossings are a saddle: two pieces, either pairing is within the cell's accuracy
        pieces += list(zip(ends[::2], ends[1::2], strict=True))
    return pieces


def crossings(x: Array, z: Array) -> list[float]:
    """Where z changes sign along x, by linear interpolation; both (n,)."""
    found = np.flatnonzero(((z[:-1] >= 0) != (z[1:] >= 0)) & np.isfinite(z[:-1] + z[1:]))
    return [float(x[i] + (x[i + 1] - x[i]) * z[i] / (z[i] - z[i + 1])) for i in found]


def _mixed_cells(z: Array) -> NDArray[np.bool_]:
    """Cells whose four corners are finite and not all on one side, (m - 1, n - 1)."""
    corners = np.stack([z[:-1, :-1], z[:-1, 1:], z[1:, :-1], z[1:, 1:]])
    above = (corners >= 0).sum(axis=0)
    mixed: NDArray[np.bool_] = np.isfinite(corners).all(axis=0) & (above > 0) & (above < 4)
    return mixed


def _cell_crossings(x: Array, y: Array, z: Array) -> list[Point]:
    """Crossings on the four sides of one cell, going round it."""
    bottom = [(at, float(y[0])) for at in crossings(x, z[0])]
    right = [(float(x[1]), at) for at in crossings(y, z[:, 1])]
    top = [(at, float(y[1])) for at in crossings(x, z[1])]
    left = [(float(x[0]), at) for at in crossings(y, z[:, 0])]
    return bottom + right + top + left
