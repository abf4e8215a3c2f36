"""I_phi and I_phi' at many correlations for fixed lengths: coefficients once, sums after."""

from __future__ import annotations

import numpy as np

from normscope.checks import Array
from normscope.spec import Activation
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.quadrature import SERIES, hermite_coefficients


class PairMap:
    """The maps c -> I_phi[q, c q] and c -> I_phi'[q, c q] for a fixed array of lengths q.

    Closed forms where there are any, and quadrature for activations with kinks. Otherwise the
    series sum_k c_k^2 c^k with the coefficients computed once; what the series leaves over is
    put into one term R c^K with R and K such that value and slope are exact at c = 1.
    """

    def __init__(self, act: Activation, length: Array) -> None:
        self._act = act
        self._length = length
        self._power: Array | None = None
        if act.family is None and not act.kinks:
            self._power = hermite_coefficients(act.function, length, SERIES)[0] ** 2
            orders = np.arange(SERIES)
            rest = second_moment(act, length) - self._power.sum(axis=1)
            steep = length * second_moment_of_derivative(act, length) - self._power @ orders
            resolved = (rest <= 1e-14) | (steep <= 0)
            self._rest = np.where(resolved, 0.0, rest)
            order = np.where(resolved, SERIES, steep / np.where(resolved, 1.0, rest))
            self._order = np.maximum(SERIES, order)

    def value(self, c: Array) -> Array:
        """E[phi(x) phi(y)] of two Gaussians of variance q and correlation c: I_phi[q, c q]."""
        if self._power is None:
            return product_mean(self._act, self._length, c * self._length)
        total = np.zeros_like(c)
        for k in range(SERIES - 1, -1, -1):
            total = total * c + self._power[:, k]
        return total + self._rest * np.abs(c) ** self._order

    def slope(self, c: Array) -> Array:
        """The same for the derivative of phi: I_phi'[q, c q]."""
        if self._power is None:
            return derivative_product_mean(self._act, self._length, c * self._length)
        total = np.zeros_like(c)
        for k in range(SERIES - 1, 0, -1):
            total = total * c + k * self._power[:, k]
        rest = self._rest * self._order * np.abs(c) ** (self._order - 1)
        return (total + rest) / self._length
