"""What a node passes on: groups of channels with kernels, gradients and a law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.theory.graph.algebra import Algebra
from normscope.theory.graph.pairs import correlation
from normscope.theory.graph.particles import Series, column
from normscope.theory.graph.sphere import Sphere

DATA = -1  # the number of the data among the sources of a group
GAIN = "gain"  # in the place of an activation: the term is the gain of what is now the channel


class Lazy:
    """Values at the quasi-random points, computed when they are first asked for."""

    def __init__(self, make: Callable[[], Array]) -> None:
        self._make: Callable[[], Array] | None = make
        self._values: Array | None = None

    def __call__(self) -> Array:
        """The values, made once."""
        if self._values is None:
            assert self._make is not None
            self._values, self._make = self._make(), None
        return self._values

    def then(self, function: Callable[[Array], Array]) -> Lazy:
        """A function of the values."""
        return Lazy(lambda: function(self()))


@dataclass(frozen=True, eq=False)
class Factor:
    """An independent Gaussian vector over sites (behind batch norm: a normalized one).

    Attributes:
        kernel: its covariance.
        sphere: the law of xhat behind batch norm; its value is ``gain`` times that.
        gain: gamma of that norm, and scales since.
        values: its standard normal values at the quasi-random points; None for a fresh column.
    """

    kernel: Array
    sphere: Sphere | None = None
    gain: float = 1.0
    values: Array | None = None


@dataclass(frozen=True, eq=False)
class Law:
    """A channel at one site as a function of factors, the same at every site.

    Attributes:
        factors: by number.
        values: the channel at the quasi-random points; None where it is the sum of the factors.
        order: the channel before its last activation, which ranks the points.
        cache: the series in the factors, kept for laws with the same ones.
    """

    factors: dict[int, Factor]
    values: Lazy | None = None
    order: Lazy | None = None
    cache: dict[str, Any] = field(default_factory=dict)

    def behind(self, values: Lazy, before: Lazy) -> Law:
        """The law behind an activation, and the values before it: the same factors."""
        return Law(self.factors, values, before, self.cache)

    @property
    def linear(self) -> bool:
        """Whether the channel is the sum of its factors, and so Gaussian."""
        return self.values is None

    def column(self, number: int) -> Array:
        """Standard normal values of a factor."""
        kept = self.factors[number].values
        return column(number) if kept is None else kept


@dataclass(frozen=True, eq=False)
class Term:
    """A part of Theta, before the mean over channels is taken.

    Attributes:
        kind: ``"plain"``: ``theta`` times the slopes collected since. ``"frozen"`` and ``"batch"``:
            ``theta`` still to be divided by s^2 of a batch norm and, for ``"batch"``, to be
            projected; ``theta`` then holds gamma^2 Theta, for ``"batch"`` centred. ``"gamma"``:
            the gradient of a batch norm's gain, xhat times the slopes.
        theta: a stack of kernels, one for each source; None for ``"gamma"``.
        factor: the batch norm's factor.
        slopes: product of the slopes collected since, at the quasi-random points; None for none.
        closed: E of the slopes at two sites where a closed form is known.
        activation: name of the one activation since, if only a normalized factor went into it;
            ``GAIN`` for a gain of fixed statistics whose channel is still as it was.
        source: the source of ``"gamma"``.
        scale: number that multiplies ``"gamma"``, or that ``GAIN`` divides by.
    """

    kind: str
    theta: Array | None
    factor: int = -1
    slopes: Lazy | None = None
    closed: Array | None = None
    activation: str | None = None
    source: int = -1
    scale: float = 1.0


@dataclass(eq=False)
class Group:
    """Channels with one law.

    Attributes:
        channels: how many.
        algebra: where its kernels live.
        kernel: K, the second moment of the values.
        mean: E of a channel at each site, a profile; None for zero.
        terms: Theta, not yet averaged over channels.
        law: the law of a channel; None where it is not known (the data, pooled channels).
        sources: the random layers in it that no fresh weights have followed.
    """

    channels: int
    algebra: Algebra
    kernel: Array
    terms: list[Term]
    law: Law | None
    sources: frozenset[int]
    mean: Array | None = None

    def series(self) -> tuple[Series, list[int], list[Array]]:
        """Hermite series in its factors, their numbers and correlations."""
        law = self.law
        assert law is not None
        if "series" not in law.cache:
            numbers = [n for n, f in law.factors.items() if self.spread(f) > 0]
            series = Series([law.column(n) for n in numbers])
            kernels = [law.factors[n].kernel for n in numbers]
            rho = [correlation(self.algebra, kernel) for kernel in kernels]
            law.cache["series"] = (series, numbers, rho)
        return law.cache["series"]

    def spread(self, factor: Factor) -> float:
        """Its standard deviation, root mean square over sites."""
        return float(np.sqrt(max(float(self.algebra.mean_diagonal(factor.kernel)), 0.0)))

    def values(self) -> Lazy:
        """The channel at the quasi-random points."""
        law = self.law
        assert law is not None
        if law.values is not None:
            return law.values

        def total() -> Array:
            parts = [self.spread(f) * law.column(n) for n, f in law.factors.items()]
            return np.asarray(sum(parts, np.zeros_like(column(0))))

        return Lazy(total)

    def with_(self, **changes: object) -> Group:
        """A copy with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def mean_profile(self) -> Array:
        """Its mean at each site, zeros if there is none."""
        diagonal = self.algebra.diagonal(self.kernel)
        return np.zeros_like(diagonal) if self.mean is None else self.mean

    def only_normalized(self) -> Factor | None:
        """Its one factor, if that is a batch norm's and nothing was added to it."""
        if self.law is None or not self.law.linear or len(self.law.factors) != 1:
            return None
        (factor,) = self.law.factors.values()
        return factor if factor.sphere is not None else None
