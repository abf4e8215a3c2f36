r"""Ritz values with their error bounds, in the order that was asked for.

For the j leading Ritz values as a group, with residual block R_j and the distance delta_j to the
other Ritz values, each of them is off by about

.. math:: |\lambda_i - \theta_i| \le \min(\|r_i\|, \|R_j\|^2 / \delta_j), \qquad i \le j

(Parlett 1998, section 11.7; Mathias 1998). The group form does not suffer from small distances
inside a cluster. The distance is one between Ritz values, so the second term holds only if no
eigenvalue was missed: that is what :mod:`normscope.measure.spectral.search` verifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from normscope.errors import InputError
from normscope.measure.spectral.products import Floats
from normscope.registry import near_match

__all__ = ["Ritz", "Which", "checked_which", "rank_key", "ritz_pairs"]

Which = Literal["largest", "smallest", "magnitude"]


def checked_which(which: str) -> Which:
    """``which`` if it is known, otherwise an error with the near match."""
    names = ["largest", "smallest", "magnitude"]
    if which not in names:
        raise InputError(f"Unknown which={which!r}. {near_match(str(which), names)}")
    return which  # type: ignore[return-value]


def rank_key(values: Floats, which: Which) -> Floats:
    """What is maximised: lambda, -lambda or |lambda|."""
    if which == "largest":
        return values
    return -values if which == "smallest" else np.abs(values)


@dataclass(frozen=True)
class Ritz:
    """Ritz pairs of one space, best first."""

    values: Floats  # (m,)
    vectors: Floats  # (m, m) columns, in the basis
    couplings: Floats  # (b, m) residuals in the open ends
    residuals: Floats  # (m,) ||A y - theta y||: an eigenvalue lies within, always
    bounds: Floats  # (m,) of the eigenvalue error


def ritz_pairs(matrix: Floats, couplings: Floats, which: Which) -> Ritz:
    """The eigenpairs of the projected matrix H with residuals E s and bounds."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    order = np.argsort(-rank_key(values, which), kind="stable")
    values, vectors = values[order], vectors[:, order]
    coupled = couplings @ vectors
    residuals = np.linalg.norm(coupled, axis=0)
    return Ritz(values, vectors, coupled, residuals, _bounds(values, residuals))


def _bounds(values: Floats, residuals: Floats) -> Floats:
    """The least over the groups of leading values that contain i; i alone counts as a group too."""
    if len(values) < 2:
        return residuals
    distance = np.abs(values[:, None] - values[None])
    squares = np.cumsum(residuals**2)[:-1]
    groups = np.array([distance[:j, j:].min() for j in range(1, len(values))])
    np.fill_diagonal(distance, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        grouped = np.nan_to_num(squares / groups, nan=0.0, posinf=np.inf)
        alone = np.nan_to_num(residuals**2 / distance.min(axis=1), nan=0.0, posinf=np.inf)
    best = np.minimum.accumulate(grouped[::-1])[::-1]
    bounds: Floats = np.minimum(np.minimum(residuals, alone), np.append(best, np.inf))
    return bounds
