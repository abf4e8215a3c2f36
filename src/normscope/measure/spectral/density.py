"""Spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array, checked_count, checked_positive
from normscope.errors import InputError
from normscope.measure.operators.base import LinearOperator
from normscope.measure.progress import progress
from normscope.measure.spectral import products as multiplying
from normscope.measure.spectral.products import Products, numbers, smaller_side
from normscope.results.density import SpectralDensity
from normscope.seeds import checked_seed
from normscope.subject.process import measurement

POINTS = 400  # of the default grid
MARGIN = 5.0  # widths that the default grid extends beyond the extreme nodes
RESOLUTION = 0.01  # default width, as a share of the range of the nodes
_SMOOTHED = ("density", "density_error", "cumulative", "cumulative_error")
STACK_BYTES = 10**9  # vectors kept at a time; more runs go one group after another


@measurement
def spectral_density(
    op: LinearOperator,
    *,
    num_vectors: int = 5,
    steps: int = 40,
    seed: int = 0,
    width: float | None = None,
    grid: Array | None = None,
) -> SpectralDensity:
    r"""The density of all eigenvalues, by stochastic Lanczos quadrature with standard errors.

    For a random unit vector v, m Lanczos steps give a Gauss quadrature of the measure

    .. math:: v^T f(A) v = \sum_i w_i f(\theta_i), \qquad E[v^T f(A) v] = \mathrm{tr} f(A) / n

    with the Ritz values theta_i and w_i the squared first components of the eigenvectors of the
    tridiagonal matrix; exact for polynomials up to degree 2m - 1 (Golub and Meurant 2010;
    Ghorbani, Krishnan, Xiao 2019). Vectors are reorthogonalised fully, so there are no ghosts.
    The standard error covers the choice of vectors, not the resolution of m nodes, which is about
    the spectral range over m. It is the larger of two: the scatter over the vectors, and what
    random vectors scatter by given the eigenvalues found. With Student's quantile, as in the band
    of the chart and in ``moment(k).interval()``, 95 % of the intervals or more hold the truth.

    Where the operator has a smaller dual side, that one is multiplied, and the n - n_dual exact
    zeros are an atom of known mass. Where the budget num_vectors * steps covers the dimension, the
    eigenvalues are computed densely instead and the result is exact.

    Args:
        op: a symmetric operator.
        num_vectors: random vectors (n_v), at least 2 so that there is an error bar.
        steps: Lanczos steps per vector (m).
        seed: seed for the random vectors; equal seeds give equal bits.
        width: standard deviation of the Gaussian smoothing; default 1% of the range.
        grid: points of the curve; default 400 points over the range.

    Returns:
        Curve, cumulative distribution, standard errors and the raw nodes and weights.

    Example:
        >>> import torch
        >>> from normscope.measure.operators.base import TensorOperator
        >>> op = TensorOperator(torch.diag(torch.tensor([1.0, 1.0, 1.0, 3.0])), psd=True)
        >>> density = spectral_density(op)
        >>> density.nodes.tolist(), density.weights.tolist()
        ([[1.0, 1.0, 1.0, 3.0]], [[0.25, 0.25, 0.25, 0.25]])
    """
    multiplying.checked_operator(op, "spectral_density", symmetric=True)
    num_vectors = checked_count(num_vectors, "num_vectors", least=2)
    steps = checked_count(steps, "steps")
    width = None if width is None else checked_positive(width, "width (a standard deviation)")
    side, name = smaller_side(op)
    with progress("spectral density") as tick:
        products = Products(side, tick)
        exact = side.shape[0] <= num_vectors * steps
        if exact:
            nodes, weights = _all_eigenvalues(products)
        else:
            draw = multiplying.random_source(side, checked_seed(seed), "density")
            groups = _group_sizes(num_vectors, steps, side)
            parts = [_quadrature(products, draw(size), steps) for size in groups]
            nodes, weights = np.vstack([p[0] for p in parts]), np.vstack([p[1] for p in parts])
    share = side.shape[0] / op.shape[0]
    nothing: dict[str, Array] = dict.fromkeys(_SMOOTHED, np.zeros(0))
    raw = SpectralDensity(
        nodes=np.maximum(nodes, 0.0) if op.psd else nodes,
        weights=weights * share,
        zero_mass=1 - share,
        grid=_grid(_with_atom(nodes, name), width) if grid is None else _checked_grid(grid),
        **nothing,
        width=0.0,
        exact=exact,
        matvecs=products.count,
        dimension=op.shape[0],
        seed=checked_seed(seed),
        side=name,
        convention=dict(op.convention),
    )
    return raw.smoothed(_width(_with_atom(nodes, name)) if width is None else width)


def _all_eigenvalues(products: Products) -> tuple[Array, Array]:
    """The eigenvalues themselves with equal weights, as one run."""
    n, operator = products.n, products.operator
    unit = torch.eye(n, dtype=operator.dtype, device=operator.device)
    dense = torch.cat([products(block) for block in torch.split(unit, 128)])
    matrix = dense.to("cpu", torch.float64).numpy()
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values[None], np.full((1, n), 1 / n)


def _quadrature(products: Products, starts: Tensor, steps: int) -> tuple[Array, Array]:
    """Nodes and weights (run, node), runs side by side so that a step is one matmat."""
    runs = len(starts)
    alphas, betas = np.zeros((runs, steps)), np.zeros((runs, steps))
    current = starts / torch.linalg.vector_norm(starts, dim=1, keepdim=True)
    basis = current.new_empty(runs, steps, products.n)
    for step in range(steps):
        basis[:, step] = current
        known = basis[:, : step + 1]
        product = products(current)
        alphas[:, step] = numbers((product * current).sum(dim=1))
        for _ in range(2):  # full reorthogonalisation; once is not enough
            inside = torch.einsum("rmn,rn->rm", known, product)
            product = product - torch.einsum("rm,rmn->rn", inside, known)
        norms = torch.linalg.vector_norm(product, dim=1)
        scale = np.abs(alphas).max(axis=1) + betas.max(axis=1)
        alive = numbers(norms) > 10 * products.eps * scale
        betas[:, step] = np.where(alive, numbers(norms), 0.0)
        # a run that has met an invariant space is complete: its further vectors are zero
        mask = torch.from_numpy(alive).to(product.device)[:, None]
        current = torch.where(mask, product / norms.clamp_min(1e-300)[:, None], 0.0)
        if not alive.any():
            break
    rules = [_gauss_rule(a, b, steps) for a, b in zip(alphas, betas, strict=True)]
    return np.array([r[0] for r in rules]), np.array([r[1] for r in rules])


def _gauss_rule(alphas: Array, betas: Array, steps: int) -> tuple[Array, Array]:
    """Nodes and weights of one run, padded to ``steps`` with nodes of weight zero."""
    dead = np.flatnonzero(betas[:-1] == 0)
    size = int(dead[0]) + 1 if len(dead) else steps
    inner = betas[: size - 1]
    matrix = np.diag(alphas[:size]) + np.diag(inner, 1) + np.diag(inner, -1)
    values, vectors = np.linalg.eigh(matrix)
    weights = vectors[0] ** 2 / np.sum(vectors[0] ** 2)
    pad = steps - size
    return np.append(values, np.full(pad, values[-1])), np.append(weights, np.zeros(pad))


def _group_sizes(num_vectors: int, steps: int, side: LinearOperator) -> list[int]:
    """How many runs go side by side, so that their vectors fit."""
    one = (steps + 3) * side.shape[0] * side.dtype.itemsize
    size = max(1, min(num_vectors, int(STACK_BYTES / one)))
    return [min(size, num_vectors - first) for first in range(0, num_vectors, size)]


def _width(nodes: Array) -> float:
    spread = float(np.ptp(nodes))
    return RESOLUTION * (spread or abs(float(nodes.max())) or 1.0)


def _grid(nodes: Array, width: float | None) -> Array:
    margin = MARGIN * (_width(nodes) if width is None else width)
    return np.linspace(nodes.min() - margin, nodes.max() + margin, POINTS)


def _with_atom(nodes: Array, side: str) -> Array:
    """The nodes, and zero if it is an eigenvalue by the sizes alone."""
    return np.append(nodes, 0.0) if side == "dual" else nodes


def _checked_grid(grid: Array) -> Array:
    try:
        points = np.asarray(grid, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        points = np.zeros(0)
    if points.ndim != 1 or not len(points) or not np.isfinite(points).all():
        raise InputError(
            f"grid must be one row of finite numbers. Got an array of shape {points.shape}."
        )
    return points
