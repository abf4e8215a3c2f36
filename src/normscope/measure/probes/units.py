"""How alike the units of a layer are: correlation, kurtosis, and the spread of their sizes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normscope.measure.probes.moments import UnitMoments
from normscope.measure.probes.probe import Probe, SkipLayer
from normscope.measure.probes.run import Layers, Passes, run_probes
from normscope.measure.probes.sites import ACTIVATION, LAYERS, NORM, Site
from normscope.results.units import LayerUnits, UnitStatistics
from normscope.subject.batch import Batch
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES

LARGEST = 8192  # units, whose covariance takes half a gigabyte


class UnitProbe(Probe):
    """Outputs of layers with weights, of norms and of activations.

    Args:
        positions: whether every position of a sample is an observation, or their mean is one.
    """

    watches: ClassVar[tuple[str, ...]] = (*LAYERS, NORM, ACTIVATION)

    def __init__(self, *, positions: bool = True) -> None:
        self._positions, self._samples = positions, 0
        self._found: dict[str, tuple[Site, torch.dtype, UnitMoments]] = {}

    def starting(self, batch: Batch) -> None:
        """Note how many samples there are."""
        self._samples = batch.size

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """Add what came out to the sums."""
        rows = site.rows(out)
        if rows.shape[-1] > LARGEST:
            raise SkipLayer(f"it has {rows.shape[-1]} units; correlations of {LARGEST} fit")
        if not self._positions:
            if len(rows) != self._samples:
                raise SkipLayer("its samples cannot be told from its positions")
            rows = rows.double().mean(1)
        self._found.setdefault(site.name, (site, out.dtype, UnitMoments()))[2].add(rows)

    def result(self, passes: Passes, index: int = 0) -> UnitStatistics:
        """What was seen in ``passes`` by this probe, number ``index`` of them."""
        ok = {layer.name for layer in passes.coverage[index].ok}
        signals = tuple(_units(*seen) for name, seen in self._found.items() if name in ok)
        return UnitStatistics(signals, positions=self._positions, **passes.record(index))


def _units(site: Site, dtype: torch.dtype, moments: UnitMoments) -> LayerUnits:
    covariance, mean = moments.matrix(centred=True).cpu(), moments.mean.cpu()
    variance = covariance.diagonal().clamp(min=0)
    # less than rounding of the signal itself is no variance
    varies = variance > torch.finfo(dtype).eps ** 2 * (variance + mean.square())
    std, count = variance[varies].sqrt(), int(varies.sum())
    correlation = (covariance[varies][:, varies] / std / std[:, None]).abs().fill_diagonal_(0)
    pairs = count * (count - 1)
    skewness, kurtosis = (m.cpu().where(varies, math.nan).numpy() for m in moments.standardized())
    return LayerUnits(
        name=site.name,
        number=site.layer,
        kind=site.kind,
        operation=site.operation,
        mean=mean.numpy(),
        variance=variance.numpy(),
        skewness=skewness,
        kurtosis=kurtosis,
        mean_abs_correlation=float(correlation.sum()) / pairs if pairs else math.nan,
    )


@measurement
def unit_statistics(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
    positions: bool = True,
) -> UnitStatistics:
    r"""Correlation, skewness and kurtosis of the units of every layer, and how unequal they are.

    .. math:: \frac{1}{C(C-1)} \sum_{c \ne d} |\mathrm{corr}(h_c, h_d)|, \quad
              \frac{E(h_c - \mu_c)^4}{\sigma_c^4} - 3, \quad
              \frac{\mathrm{std}_c}{\mathrm{mean}_c} \sqrt{E h_c^2}

    h is what comes out of a linear or other layer with weights, of a norm, or of an activation; a
    unit is a channel. Moments are those of the data (divided by their number), in float64. Units
    that never change have no correlation and no kurtosis; ``constant`` counts them.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: not needed.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for dropout and the order of a data set.
        positions: True: every position of every sample is an observation. False: the mean over
            the positions of a sample is one.

    Returns:
        One record per signal, and the layers left out with reasons.

    Example:
        >>> net = nn.Linear(2, 3)
        >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]]))
        >>> x = torch.tensor([[-1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
        >>> found = unit_statistics(net, [(x, None)])[1]
        >>> round(found.mean_abs_correlation, 4), round(found.mean_kurtosis, 4)
        (0.3333, -2.0)
    """
    probe = UnitProbe(positions=positions)
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed, required=False)
    return probe.result(run_probes(problem, [probe], num_batches, statistics, layers))
