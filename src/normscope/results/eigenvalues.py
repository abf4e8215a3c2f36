"""Spectra of second moments: the generalized condition number, and Kronecker products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array, as_float
from normscope.errors import InputError
from normscope.record import Record

EPS = float(np.finfo(np.float64).eps)
SLACK = 1e-9  # keeps the rounding of p * d from shifting the index: 0.28 * 25 is above 7
MANY = 1_000_000  # pairwise products that are not formed, but counted


def checked_share(p: float) -> float:
    """``p`` as a number in (0, 1]; anything else is refused."""
    share = as_float(p)
    if not 0 < share <= 1:
        raise InputError(
            f"p is the share of the eigenvalues that are kept, above 0 and at most 1. Got {p!r}. "
            "Write 0.5 for kappa_50%, and 1.0 for the ordinary condition number."
        )
    return share


def share_index(p: float, count: int) -> int:
    """Rank of the eigenvalue that kappa_p divides by: ceil(p d - 1e-9), at least 1."""
    return max(math.ceil(checked_share(p) * count - SLACK), 1)


def generalized_condition_number(
    eigenvalues: NDArray[np.floating], p: float = 1.0, *, rtol: float | None = None
) -> float:
    r"""kappa_p, the largest eigenvalue over the one that leaves the share p of them above it.

    .. math:: \kappa_p = \lambda_{(1)} / \lambda_{(\lceil p d\rceil)},\quad
              \lambda_{(1)} \ge \dots \ge \lambda_{(d)} \ge 0

    Args:
        eigenvalues: those of a positive semidefinite matrix, in any order; tiny negative
            ones count as 0.
        p: share in (0, 1]; 1 is the ordinary condition number.
        rtol: an eigenvalue at or below ``rtol`` times the largest counts as zero, and the answer is
            infinite; default d times the rounding unit of float64.

    Example:
        >>> [generalized_condition_number(np.array([8.0, 4.0, 2.0, 1.0]), p) for p in (0.5, 1.0)]
        [2.0, 8.0]
    """
    values = np.asarray(eigenvalues, dtype=np.float64).ravel()
    return MomentSpectrum.of(values, rtol=rtol).kappa(p)


@dataclass(frozen=True, eq=False, repr=False)
class MomentSpectrum(Record):
    """Every eigenvalue of a positive semidefinite matrix.

    Attributes:
        values: largest first; tiny negative ones are 0.
        floor: values at or below this are zero to rounding.
    """

    values: Array  # (d,)
    floor: float

    @classmethod
    def of(cls, values: Array, *, rtol: float | None = None) -> MomentSpectrum:
        """The spectrum with these eigenvalues, in any order."""
        if len(values) == 0 or not np.isfinite(values).all():
            raise InputError(f"A spectrum needs finite eigenvalues, at least one. Got {values!r}.")
        kept = np.sort(np.clip(values, 0.0, None))[::-1]
        tolerance = len(kept) * EPS if rtol is None else rtol
        return cls(kept, float(tolerance * kept[0]))

    @property
    def size(self) -> int:
        """Number of eigenvalues."""
        return len(self.values)

    @property
    def largest(self) -> float:
        """The largest eigenvalue, lambda_max."""
        return float(self.values[0])

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""
        return float(self.values.sum())

    @property
    def rank(self) -> int:
        """Number of eigenvalues above rounding error."""
        return int((self.values > self.floor).sum())

    @property
    def finite_share(self) -> float:
        """kappa_p is finite for p up to this: the rank over the number of eigenvalues."""
        return self.rank / self.size

    @property
    def resolved(self) -> Array:
        """The values, with those that are rounding set to exactly 0."""
        return np.where(self.values > self.floor, self.values, 0.0)

    def kappa(self, p: float = 1.0) -> float:
        """kappa_p; infinite for p above ``finite_share``, as with fewer samples than p d."""
        divisor = float(self.resolved[share_index(p, len(self.values)) - 1])
        return self.largest / divisor if divisor > 0 else math.inf

    def __repr__(self) -> str:
        return (
            f"MomentSpectrum(lambda_max={self.largest:.4g}, d={len(self.values)}, "
            f"rank={self.rank}, kappa={self.kappa():.3g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerSpectrum(Record):
    """The spectrum of a Kronecker product: all pairwise products of two spectra.

    lambda_max, the trace and kappa_100% multiply; kappa_p with p < 1 does not.

    Example:
        >>> left = MomentSpectrum.of(np.array([4.0, 1.0]))
        >>> right = MomentSpectrum.of(np.array([3.0, 2.0, 1.0]))
        >>> both = KroneckerSpectrum(left, right)
        >>> both.kappa(0.5), left.kappa(0.5) * right.kappa(0.5)
        (3.0, 1.5)
    """

    left: MomentSpectrum
    right: MomentSpectrum

    @property
    def size(self) -> int:
        """Number of eigenvalues, zeros included."""
        return len(self.left.values) * len(self.right.values)

    @property
    def largest(self) -> float:
        """The largest eigenvalue, lambda_max."""
        return self.left.largest * self.right.largest

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""
        return self.left.trace * self.right.trace

    @property
    def rank(self) -> int:
        """Number of eigenvalues above rounding error."""
        return self.left.rank * self.right.rank

    @property
    def finite_share(self) -> float:
        """kappa_p is finite for p up to this."""
        return self.rank / self.size

    @property
    def values(self) -> Array:
        """All pairwise products, largest first; those of a zero factor are 0."""
        products = np.multiply.outer(self.left.resolved, self.right.resolved).ravel()
        return np.sort(products)[::-1]

    def kth(self, k: int) -> float:
        """The k-th largest eigenvalue, k from 1, without forming many products."""
        if not 1 <= k <= self.size:
            raise InputError(f"k must lie in 1..{self.size}. Got {k!r}.")
        if k > self.rank:
            return 0.0
        a, b = self.left.resolved, self.right.resolved
        if self.size > MANY:
            return _kth_product(a[a > 0], b[b > 0], k)
        products = np.multiply.outer(a, b).ravel()
        return float(np.partition(products, len(products) - k)[len(products) - k])

    def kappa(self, p: float = 1.0) -> float:
        """kappa_p of the product; infinite for p above ``finite_share``."""
        divisor = self.kth(share_index(p, self.size))
        return self.largest / divisor if divisor > 0 else math.inf

    def __repr__(self) -> str:
        return (
            f"KroneckerSpectrum(lambda_max={self.largest:.4g}, {len(self.left.values)} x "
            f"{len(self.right.values)} values, kappa={self.kappa():.3g})"
        )


def _kth_product(a: Array, b: Array, k: int) -> float:
    """Bisection over the bit patterns of positive floats: the largest t with k products >= t."""
    ascending = b[::-1]

    def count(t: float) -> int:
        below = np.searchsorted(ascending, t / a, side="left")
        return int(len(a) * len(b) - below.sum())

    low, high = _bits(float(a[-1] * b[-1]) / 2), _bits(float(a[0] * b[0]) * 2)
    while high - low > 1:
        middle = (low + high) // 2
        if count(_number(middle)) >= k:
            low = middle
        else:
            high = middle
    return _number(low)


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _number(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


@dataclass(frozen=True, eq=False, repr=False)
class SignedSpectrum(Record):
    """Every eigenvalue of a symmetric matrix that may be indefinite, such as a Hessian.

    Attributes:
        values: largest first, with their signs.
    """

    values: Array  # (d,)

    @property
    def largest(self) -> float:
        """The largest eigenvalue, lambda_max."""
        return float(self.values[0])

    @property
    def smallest(self) -> float:
        """lambda_min, below zero for an indefinite matrix."""
        return float(self.values[-1])

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues."""
        return float(self.values.sum())

    def magnitude_ratio(self, p: float = 1.0) -> float:
        """The ratio of kappa_p for |lambda|: kappa_p itself is undefined with negative values."""
        return generalized_condition_number(np.abs(self.values), p)

    def __repr__(self) -> str:
        return f"SignedSpectrum({self.smallest:.4g} to {self.largest:.4g}, d={len(self.values)})"
