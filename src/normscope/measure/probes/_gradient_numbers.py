"""Numbers that describe one gradient: spread, low rank, correlation; all in float64."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.linalg import svds
from torch import Tensor
from torch.nn import functional

from normscope.checks import Array
from normscope.measure.probes._alignment import Terms
from normscope.measure.probes.sites import Site

NAN = float("nan")
DENSE = 1024  # smaller side up to which all singular values are found
ALIGNED = 0.5
POINTS = 1000  # weights kept for a picture


def ratio(a: float, b: float) -> float:
    """A / b; infinite over zero, NaN for zero over zero."""
    if b == 0:
        return NAN if a == 0 else math.inf
    return a / b


def term_numbers(terms: Terms) -> dict[str, float]:
    """T1 to T4 of Bjorck's Table 1, and T4 against T1 weight by weight."""
    total = terms.total.abs().double().flatten()
    absolute = terms.absolute.double().flatten()
    share = (total / absolute)[absolute > 0]
    return {
        "t1": float(absolute.mean()) / terms.count,
        "t2": float(terms.by_sample.double().mean()) / terms.count,
        "t3": float(terms.by_position.double().mean()) / terms.count,
        "t4": float(total.mean()) / terms.count,
        "aligned": float((share > ALIGNED).double().mean()) if len(share) else NAN,
        "median_alignment": median(share) if len(share) else NAN,
        "term_correlation": pearson(absolute, total),
    }


def sampled_terms(terms: Terms) -> Array:
    """T1 and T4 of evenly spaced weights, (2, n)."""
    both = torch.stack([terms.absolute.flatten(), terms.total.abs().flatten()])
    step = max(1, both.shape[1] // POINTS)
    return (both[:, ::step].double() / terms.count).cpu().numpy()


def entry_numbers(gradient: Tensor) -> dict[str, float]:
    """Moments of the entries of a gradient."""
    entries = gradient.double().flatten()
    centred = entries - entries.mean()
    variance = float(centred.square().mean())
    fourth = float(centred.square().square().mean())
    magnitude = entries.abs()
    return {
        "std": math.sqrt(variance),
        "mean_abs": float(magnitude.mean()),
        "max_abs": float(magnitude.max()),
        "kurtosis": ratio(fourth, variance**2) - 3,
        "norm": float(entries.norm()),
        "sigma": largest_singular_value(gradient.flatten(1)),
    }


def channel_matrix_numbers(gradient: Tensor, matrix: Tensor, groups: int) -> dict[str, float]:
    """How unevenly a gradient is spread over pairs of channels; ``matrix`` is A(out, in)."""
    columns = in_channel_gradient(matrix, groups)
    rows = matrix.mean(1)
    signed = gradient.double().flatten(2).sum(2) if gradient.ndim > 2 else gradient.double()
    return {
        "max_over_median": ratio(float(matrix.max()), median(matrix)),
        "log10_spread": _log10(ratio(float(matrix.max()), float(matrix.min()))),
        "row_cv": ratio(float(rows.std(correction=0)), float(rows.mean())),
        "column_cv": ratio(float(columns.std(correction=0)), float(columns.mean())),
        "rank_one": _rank_one(matrix),
        "rank_one_signed": _rank_one(signed),
    }


def in_channel_gradient(matrix: Tensor, groups: int) -> Tensor:
    """Mean of A(out, in / groups) over the weights of each in-channel, (in,)."""
    return matrix.reshape(groups, -1, matrix.shape[1]).mean(1).flatten()


def in_channel_contribution(site: Site, x: Tensor, weight: Tensor) -> Tensor:
    """Mean |what an in-channel adds to an output| over outputs, samples and positions, (in,)."""
    way = site.geometry
    if way is None:
        return site.rows(x).abs().mean((0, 1)).double() * weight.abs().mean(0).double()
    if x.ndim == len(way.kernel) + 1:  # one sample without a batch axis
        x = x[None]
    x = functional.pad(x, way.pads)
    apply = (functional.conv1d, functional.conv2d, functional.conv3d)[len(way.kernel) - 1]
    means = []
    for group, kernels in enumerate(weight.chunk(way.groups)):
        for within in range(weight.shape[1]):
            one = x[:, [group * weight.shape[1] + within]]
            part = apply(one, kernels[:, [within]], stride=way.stride, dilation=way.dilation)
            means.append(part.abs().double().mean())
    return torch.stack(means)


def median(values: Tensor) -> float:
    """The mean of the two middle values where their number is even; torch takes the lower one."""
    flat, count = values.flatten(), values.numel()
    middle = [float(flat.kthvalue(k).values) for k in ((count + 1) // 2, count // 2 + 1)]
    return sum(middle) / 2


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; NaN if one of them is constant."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return ratio(float((a * b).sum()), float(a.norm() * b.norm()))


def largest_singular_value(matrix: Tensor) -> float:
    """Of (m, n), in float64."""
    matrix = matrix.double()
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if not bool(matrix.any()):
        return 0.0
    if len(short) <= DENSE:
        scale = float(matrix.abs().max())  # squares of small gradients would vanish
        short = short / scale
        return scale * math.sqrt(float(torch.linalg.eigvalsh(short @ short.T)[-1]))
    start = np.ones(len(short))
    return float(svds(short.cpu().numpy(), k=1, v0=start, return_singular_vectors=False)[0])


def _rank_one(matrix: Tensor) -> float:
    return ratio(largest_singular_value(matrix) ** 2, float(matrix.square().sum()))


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else value
