"""From random samples of a quantity to an estimate with a standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.checks import Array, checked_count
from normscope.measure.operators.base import LinearOperator
from normscope.measure.progress import progress
from normscope.measure.spectral.products import Draw, Products, random_source, smaller_side
from normscope.measure.spectral.sketch import Sketch, jackknife
from normscope.registry import Registry
from normscope.results.estimate import Estimate
from normscope.seeds import checked_seed

STACK = 16  # vectors multiplied at a time where the method does not say


@dataclass(frozen=True)
class Sample:
    """Mean, its standard error, and the number of random vectors behind it; none if exact."""

    value: float
    error: float
    count: int


@dataclass(frozen=True)
class Sampler:
    """A method: products, random vectors and budget -> sample."""

    sample: Callable[[Products, Draw, int], Sample]
    least: int  # products without which there is no standard error


@dataclass(frozen=True)
class Question:
    """A quantity of an operator: how it is sampled, and how it is had from all unit vectors."""

    quantity: str
    methods: Registry[Sampler]
    of: Callable[[Tensor, Tensor], Array]  # vectors and their images -> the share of each

    def ask(self, op: LinearOperator, *, method: str, num_matvecs: int, seed: int) -> Estimate:
        """The estimate on the smaller side; exact if the budget covers its dimension."""
        sampler, seed = self.methods[method], checked_seed(seed)
        budget = checked_count(num_matvecs, "num_matvecs", least=sampler.least)
        side, name = smaller_side(op)
        with progress(self.quantity, total=min(budget, side.shape[0])) as tick:
            products = Products(side, tick)
            if budget >= side.shape[0]:
                sample, method = self._exact(products), "exact"
            else:
                sample = sampler.sample(products, random_source(side, seed, method), budget)
        return Estimate(
            quantity=self.quantity,
            value=sample.value,
            standard_error=sample.error,
            exact=sample.count == 0,
            matvecs=products.count,
            samples=sample.count,
            method=method,
            seed=seed,
            dimension=op.shape[0],
            side=name,
            convention=dict(op.convention),
        )

    def _exact(self, products: Products) -> Sample:
        operator, n = products.operator, products.n
        shares = []
        for first in range(0, n, STACK):
            width = min(STACK, n - first)
            unit = torch.zeros(width, n, dtype=operator.dtype, device=operator.device)
            unit[torch.arange(width), torch.arange(first, first + width)] = 1
            shares.append(float(self.of(unit, products(unit)).sum()))
        return Sample(math.fsum(shares), 0.0, 0)


def independent(values: Array) -> Sample:
    """Mean and standard error of independent values."""
    count = len(values)
    return Sample(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count), count)


def leave_one_out(
    sketch: Sketch, estimates: Callable[[Sketch], Array], hidden: Callable[[Sketch], float]
) -> Sample:
    """Mean of the leave-one-out estimates of a sketch; exact if it captures all of A.

    ``hidden`` is the most that a rest of the size of rounding can add, were it spread evenly.
    """
    value = float(estimates(sketch).mean())
    if sketch.captured:
        rest = hidden(sketch)
        is_rounding = rest <= math.sqrt(sketch.eps) * abs(value)
        return Sample(value, 0.0, 0) if is_rounding else Sample(value, rest, len(sketch.norms))
    return Sample(value, jackknife(sketch, estimates), len(sketch.norms))
