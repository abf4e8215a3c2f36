"""A network under population norm: its statistics, its moments sample by sample, its losses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.checks import Array
from normscope.errors import InputError, MeasurementError
from normscope.measure.regularization._sites import Site, Stop, Visit
from normscope.measure.regularization.pool import population_function
from normscope.subject.batch import Batch, failed_on, float_leaves
from normscope.subject.memory import budget_bytes
from normscope.subject.problem import Problem

KEPT_MAPS = 8  # feature maps of the largest layer that a forward pass may hold at once
ROUNDINGS = 4  # units in the last place by which equal values of a channel may differ


@dataclass(frozen=True)
class SampleMoments:
    """What each sample adds to the statistics of one layer, and the shape of its values.

    ``means`` and ``squares`` are means over positions of n and of n^2, n normalized by the
    population's statistics.
    """

    means: Array  # (samples, channels)
    squares: Array  # (samples, channels)
    excess_kurtosis: Array  # (channels,) over samples and positions; 0 for a constant channel
    skewness: Array  # (channels,)
    constant: int  # channels without variance


class PopulationView:
    """A model whose norms use the statistics of ``pool``; nothing of it is left on the model."""

    def __init__(self, problem: Problem, sites: list[Site], pool: Batch, *, chunk: int) -> None:
        self.function, self.loss = population_function(problem), problem.objective.loss
        self.sites, self.pool, self.chunk = sites, pool, chunk
        self._collect()
        self.unused = [site.name for site in sites if site.mean is None]
        self.sites = [site for site in sites if site.mean is not None]

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The span in which `run` may be called."""
        with self.function.open():
            for site in self.sites:
                site.attach()
            try:
                yield
            finally:
                for site in self.sites:
                    site.group, site.noise, site.visit = None, None, None

    def run(self, batch: Batch) -> Any:
        """The outputs for ``batch``."""
        for site in self.sites:
            site.calls = 0
        return self.function(self.function.values, batch)

    def parts(self) -> Iterator[Batch]:
        """The pool in chunks."""
        for start in range(0, self.pool.size, self.chunk):
            yield self.pool.part(start, min(start + self.chunk, self.pool.size))

    def _visit(self, visit: Visit) -> None:
        """Let every site tell what goes into it, until the span ends."""
        for site in self.sites:
            site.visit = visit

    def mean_loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The loss per sample, mean over ``batch``."""
        value = self.function.loss(outputs, batch)
        return value / batch.size if self.loss.summed else value

    def losses(self) -> Array:
        """The loss of every sample under population norm, (samples,)."""
        found = []
        with self.opened(), torch.no_grad():
            for batch in self.parts():
                found += group_losses(self, self.run(batch), batch, size=1)
        values = np.array(found, np.float64)
        if not np.all(np.isfinite(values)):
            raise MeasurementError(
                f"The loss of {int((~np.isfinite(values)).sum())} samples is not finite under "
                "population norm. Training has diverged, or the loss does not fit the targets."
            )
        return values

    def moments(self) -> dict[str, SampleMoments]:
        """The moments of every layer, in one pass over the pool."""
        tables = {site.name: _MomentTable(site) for site in self.sites}
        with self.opened(), torch.no_grad():
            self._visit(lambda site, x: tables[site.name].add(x))
            for batch in self.parts():
                self.run(batch)
        return {name: table.finished() for name, table in tables.items()}

    def _collect(self) -> None:
        """Population statistics, each layer's with those before it under population norm."""
        with self.opened(), torch.no_grad():
            if self._fits_at_once():
                self._collect_at_once()
            else:
                self._collect_in_chunks()
        for site in self.sites:
            for value in (site.mean, site.variance):
                if value is not None and not bool(value.isfinite().all()):
                    raise MeasurementError(
                        f"The statistics of {site.kind} {site.name!r} are not finite. Training has "
                        "diverged, or a wrong checkpoint was loaded: measure an earlier one."
                    )

    def _fits_at_once(self) -> bool:
        sizes = [0]

        def note(site: Site, x: Tensor) -> None:
            sizes.append(x.numel() * x.element_size())
            site.mean, site.variance = site.moments(x)

        self._visit(note)
        first = self.pool.part(0, min(self.chunk, self.pool.size))
        self._try(first)
        for site in self.sites:
            site.mean = site.variance = None
        needed = KEPT_MAPS * max(sizes) * self.pool.size / first.size
        return needed <= budget_bytes(None, self.function.device)

    def _try(self, batch: Batch) -> None:
        """The first pass of all: what the model and the loss refuse is said here."""
        try:
            outputs = self.run(batch)
            if not float_leaves(outputs):
                raise InputError("The model gives no floating-point output to compare.")
            value = self.mean_loss(outputs, batch)
        except (InputError, MeasurementError):
            raise
        except Exception as error:
            raise MeasurementError(
                "The model and its loss cannot be run on the data: "
                f"{failed_on(error, self.function.model, batch.inputs, batch.targets)}"
            ) from error
        if not bool(value.isfinite()):
            raise MeasurementError(
                f"The loss is {float(value)} on the first samples. Training has diverged, or the "
                "loss does not fit the targets."
            )

    def _collect_at_once(self) -> None:
        def take(site: Site, x: Tensor) -> None:
            site.mean, site.variance = site.moments(x)

        self._visit(take)
        self.run(self.pool)

    def _collect_in_chunks(self) -> None:
        merged = _Merge()
        self._visit(merged.visit)
        while True:
            for batch in self.parts():
                with contextlib.suppress(Stop):
                    self.run(batch)
            if merged.current is None:
                return
            merged.finish()


class _Merge:
    """Moments of the first layer without statistics, chunk by chunk (Chan's merge)."""

    def __init__(self) -> None:
        self.current: Site | None = None
        self._parts: list[tuple[int, Tensor, Tensor]] = []

    def visit(self, site: Site, x: Tensor) -> None:
        if site.mean is not None:
            return
        self.current = site
        mean, variance = site.moments(x)
        self._parts.append((len(x), mean.double(), variance.double()))
        raise Stop

    def finish(self) -> None:
        assert self.current is not None
        count = sum(n for n, _, _ in self._parts)
        mean = sum((m * (n / count) for n, m, _ in self._parts), start=torch.zeros(()))
        variance = torch.zeros(())
        for n, m, v in self._parts:
            between = (m - mean).square() if self.current.card.centred else 0.0
            variance = variance + (v + between) * (n / count)
        like = self._parts[0][1]
        self.current.mean, self.current.variance = mean.to(like), variance.to(like)
        self.current, self._parts = None, []


class _MomentTable:
    """Moments of one layer, chunk by chunk, in float64."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._powers = torch.zeros(())  # sums of n^2, n^3, n^4 about the mean, (3, C)
        self._count = 0
        self._rounding = torch.zeros(())  # variance of n that rounding alone may give, (C,)

    def add(self, x: Tensor) -> None:
        site = self._site
        assert site.mean is not None
        unit = site.along(site.unit().double(), x)
        values = x.double()
        centred = (values - site.along(site.mean.double(), x)) / unit
        about = centred if site.card.centred else values / unit
        rows = centred.movedim(site.card.channel_axis, -1).reshape(len(x), -1, len(site.mean))
        self._means.append(rows.mean(1).cpu())
        squares = about.square().movedim(site.card.channel_axis, -1)
        self._squares.append(squares.reshape(len(x), -1, len(site.mean)).mean(1).cpu())
        powers = torch.stack([rows.pow(k).sum((0, 1)) for k in (2, 3, 4)])
        self._powers = self._powers + powers.cpu()
        self._count += rows.shape[0] * rows.shape[1]
        step = ROUNDINGS * torch.finfo(x.dtype).eps * site.mean.double() / site.unit().double()
        self._rounding = step.square().cpu()

    def finished(self) -> SampleMoments:
        second, third, fourth = (self._powers / self._count).numpy()
        means = torch.cat(self._means).numpy()
        # about the channel's own mean, of which the site's is rounded to the model's type
        spread = second - means.mean(axis=0) ** 2
        constant = spread <= np.maximum(self._rounding.numpy(), 1e-12)
        safe = np.where(constant, 1.0, second)
        kurtosis = np.where(constant, 0.0, fourth / safe**2 - 3)
        skewness = np.where(constant, 0.0, third / safe**1.5)
        squares = torch.cat(self._squares).numpy()
        return SampleMoments(means, squares, kurtosis, skewness, int(constant.sum()))


def group_losses(view: PopulationView, outputs: Any, batch: Batch, *, size: int) -> list[float]:
    """The mean loss of each group of ``size`` rows."""
    rows = batch.size

    def cut(leaf: Any, start: int) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == rows
        return leaf[start : start + size] if whole else leaf

    values = []
    for start in range(0, rows, size):
        part = pytree.tree_map(lambda leaf, s=start: cut(leaf, s), outputs)
        values.append(view.mean_loss(part, batch.part(start, start + size)))
    return [float(v) for v in torch.stack(values).double().cpu()]
