"""Slopes and curvatures of the loss in the noise variables of one norm layer.

The variables are kappa and mu of `Site`, both at zero; with factors gamma they are a relative
increase of sigma_B and an increase of mu_B in units of sigma_P. The mean Hessian in them, shared
by all samples, is the Hessian of the population-norm loss in (gamma, beta), up to sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.checks import Array
from normscope.measure.regularization._sites import Site
from normscope.measure.regularization._view import PopulationView
from normscope.subject.batch import Batch
from normscope.subject.interrupts import interruptible
from normscope.subject.losses import flat

T = TypeVar("T")


@dataclass
class _Graph:
    """One chunk: the noise variables, (rows, 2, C), and the summed loss as a graph over them."""

    batch: Batch
    variables: Tensor
    outputs: Any
    total: Tensor

    def slope(self) -> Tensor:
        """Gradient in the variables, itself a graph."""
        (slope,) = torch.autograd.grad(self.total, self.variables, create_graph=True)
        return slope

    def product(self, slope: Tensor, vector: Tensor) -> Tensor:
        """Each sample's Hessian times its own vector."""
        if not slope.requires_grad:  # the loss is linear in the layer's output
            return torch.zeros_like(vector)
        (product,) = torch.autograd.grad(
            slope, self.variables, vector, retain_graph=True, materialize_grads=True
        )
        return product


def slopes(view: PopulationView, site: Site) -> tuple[Array, Array]:
    """Slope of each sample's loss in kappa and in mu, (samples, C) each, without gamma."""

    def chunk(graph: _Graph) -> Tensor:
        (grad,) = torch.autograd.grad(graph.total, graph.variables)
        return grad.double().cpu()

    table = _masked(site, torch.cat(_over_graphs(view, site, chunk)))
    return table[:, 0].numpy(), table[:, 1].numpy()


def mean_curvature(view: PopulationView, site: Site) -> Array:
    """The mean Hessian in (kappa, mu), exact, (2C, 2C), without gamma: 2C products."""

    def chunk(graph: _Graph) -> Tensor:
        slope = graph.slope()
        rows = []
        for j in range(slope[0].numel()):
            unit = torch.zeros_like(slope[0]).reshape(-1)
            unit[j] = 1.0
            product = graph.product(slope, unit.reshape(slope[0].shape).expand_as(slope))
            rows.append(product.double().sum(0).reshape(-1).cpu())
        return torch.stack(rows)

    total = torch.stack(_over_graphs(view, site, chunk)).sum(0) / view.pool.size
    keep = torch.tensor([float(site.divides), float(site.subtracts)]).double()
    keep = keep.repeat_interleave(len(total) // 2)
    return (total * keep * keep[:, None]).numpy()


def probed_second_order(
    view: PopulationView, site: Site, factor: Tensor, *, probes: int, seed: int
) -> tuple[float, float]:
    """Mean of z^T T z over Gaussian z = factor x, and its standard error.

    Every sample has its own z in every probe, so that one pass averages over all samples.
    """
    generator = torch.Generator().manual_seed(seed)

    def chunk(graph: _Graph) -> Tensor:
        slope, size = graph.slope(), graph.batch.size
        found = []
        for _ in range(probes):
            z = _drawn(site, factor, size, generator).to(slope)
            found.append((z * graph.product(slope, z)).sum((1, 2)).double().cpu())
        return torch.stack(found, 1)

    table = torch.cat(_over_graphs(view, site, chunk))  # (samples, probes)
    error = float(table.var(1).mean() / table.numel()) ** 0.5
    return float(table.mean()), error


def wide_second_order(
    view: PopulationView, site: Site, factor: Tensor, losses: Array, *, probes: int, seed: int
) -> tuple[float, float]:
    """Mean of [l(+z) + l(-z)]/2 - l(0) over Gaussian z = factor x; standard error.

    The second-order term with the curvature averaged over the width of the noise. It sees the
    kinks of ReLU and max-pooling, which have no second derivative.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []  # (probes,)
    with view.opened(), torch.no_grad():
        for _ in range(probes):
            total = 0.0
            for batch in view.parts():
                z = _drawn(site, factor, batch.size, generator).to(view.function.values[0])
                for sign in (1, -1):
                    site.noise = (sign * z[:, 0], sign * z[:, 1])
                    value = view.mean_loss(view.run(batch), batch)
                    total += 0.5 * float(value.double()) * batch.size
            found.append(total / view.pool.size - losses.mean())
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(probes))


def probed_diagonal(
    view: PopulationView, site: Site, *, probes: int, seed: int
) -> tuple[Array, Array]:
    """Diagonal of the mean Hessian in kappa and in mu, by random signs, without gamma."""
    generator = torch.Generator().manual_seed(seed)

    def chunk(graph: _Graph) -> Tensor:
        slope = graph.slope()
        total = torch.zeros(slope[0].shape, dtype=torch.float64)
        for _ in range(probes):
            z = (torch.randint(0, 2, slope.shape, generator=generator) * 2 - 1).to(slope)
            total += (z * graph.product(slope, z)).double().sum(0).cpu()
        return total

    return _diagonal(view, site, _over_graphs(view, site, chunk), probes)


def gauss_newton_diagonal(
    view: PopulationView, site: Site, *, probes: int, seed: int
) -> tuple[Array, Array]:
    """Diagonal of the mean Gauss-Newton matrix: squared slopes for labels drawn from the model."""
    generator = np.random.default_rng(seed)

    def chunk(graph: _Graph) -> Tensor:
        outputs = flat(graph.outputs)
        held = pytree.tree_map(_detached, graph.outputs)
        # the root is of the batch's loss, which is a mean or a sum over samples
        share = 1.0 if view.loss.summed else float(graph.batch.size)
        total = torch.zeros(graph.variables[0].shape, dtype=torch.float64)
        for _ in range(probes):
            root = view.loss.sampled_root(held, generator)
            columns = root.spread(outputs.new_ones(1, root.size))[0]
            (grad,) = torch.autograd.grad(outputs, graph.variables, columns, retain_graph=True)
            total += share * grad.double().square().sum(0).cpu()
        return total

    return _diagonal(view, site, _over_graphs(view, site, chunk), probes)


def _over_graphs(view: PopulationView, site: Site, function: Callable[[_Graph], T]) -> list[T]:
    """``function`` of every chunk's graph, in order."""
    assert site.mean is not None
    found = []
    with view.opened(), torch.enable_grad():
        for batch in view.parts():
            shape = (batch.size, 2, len(site.mean))
            variables = torch.zeros(shape, dtype=site.mean.dtype, device=site.mean.device)
            variables.requires_grad_()
            site.noise = (variables[:, 0], variables[:, 1])
            outputs = view.run(batch)
            total = view.mean_loss(outputs, batch) * batch.size
            with interruptible():
                found.append(function(_Graph(batch, variables, outputs, total)))
    return found


def _diagonal(
    view: PopulationView, site: Site, sums: list[Tensor], probes: int
) -> tuple[Array, Array]:
    mean = torch.stack(sums).sum(0) / (view.pool.size * probes)
    table = _masked(site, mean).numpy()
    return table[0], table[1]


def _masked(site: Site, table: Tensor) -> Tensor:
    """Zero for what the layer does not do: dividing (kappa) or subtracting (mu)."""
    keep = torch.tensor([float(site.divides), float(site.subtracts)]).to(table)
    return table * keep[:, None]


def _drawn(site: Site, factor: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Gaussian noise of covariance ``factor`` ``factor``^T, (size, 2, C) float64."""
    draw = torch.randn(size, factor.shape[1], generator=generator, dtype=torch.float64)
    return _masked(site, (draw @ factor.T).reshape(size, 2, -1))


def root_of(covariance: Array) -> Tensor:
    """F with F F^T = covariance, of full column rank."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > values.max(initial=0.0) * 1e-14
    return torch.from_numpy(vectors[:, kept] * np.sqrt(values[kept]))


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
