"""Channel means, variances, signs and histograms of every signal of a network."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normscope.measure.probes._histograms import StreamedHistograms, checked_bins
from normscope.measure.probes.moments import ChannelMoments
from normscope.measure.probes.probe import Probe
from normscope.measure.probes.run import Layers, Passes, run_probes
from normscope.measure.probes.sites import ACTIVATION, LAYERS, NORM, WEIGHTED, Site
from normscope.results.activations import Activations, ChannelStatistics, fitted_growth
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES

BINS = 32
# These let through what is above zero, and nothing or little of the rest.
RECTIFIERS = ("relu", "relu6", "leaky_relu", "prelu", "rrelu", "threshold")


class ActivationProbe(Probe):
    """Outputs of weighted and norm layers, and inputs of activations.

    Args:
        histogram: bins of each channel's histogram, even; 0 for none.
        norm_histograms: histograms of what norm layers give, too.
    """

    watches: ClassVar[tuple[str, ...]] = (*LAYERS, NORM, ACTIVATION)

    def __init__(self, *, histogram: int = BINS, norm_histograms: bool = False) -> None:
        self._bins = checked_bins(histogram)
        self._of_norms = norm_histograms
        self._channels: dict[str, _Channels] = {}

    def entering(self, site: Site, x: Tensor) -> None:
        """What goes into an activation."""
        if site.kind == ACTIVATION:
            self._take(site, x)

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """What comes out of a weighted layer or a norm."""
        if site.kind != ACTIVATION:
            self._take(site, out)

    def _take(self, site: Site, signal: Tensor) -> None:
        maps = site.rows(signal).transpose(1, 2)
        # What a norm gives goes into an activation, or is added to something that does.
        bins = self._bins if site.kind != NORM or self._of_norms else 0
        self._channels.setdefault(site.name, _Channels(site, bins)).add(maps)

    def result(self, passes: Passes, index: int = 0) -> Activations:
        """What was seen in ``passes`` by this probe, number ``index`` of them."""
        ok = {layer.name for layer in passes.coverage[index].ok}
        found = [c for name, c in self._channels.items() if name in ok]
        signals = tuple(c.statistics() for c in found)
        steps = [c.site.kind in WEIGHTED and not c.site.side for c in found]
        growth = fitted_growth(tuple(itertools.compress(signals, steps)))
        return Activations(signals=signals, growth=growth, **passes.record(index))


class _Channels:
    """The sums of one site."""

    def __init__(self, site: Site, bins: int) -> None:
        self.site = site
        self._moments = ChannelMoments()
        self._histograms = StreamedHistograms(bins) if bins else None
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def add(self, maps: Tensor) -> None:
        """Take in maps (samples, channels, positions)."""
        self._moments.add_maps(maps)
        low, high = maps.amin(2).amin(0).cpu(), maps.amax(2).amax(0).cpu()
        if self._histograms is not None:
            self._histograms.add(maps, low, high)
        self._low = low if self._low is None else torch.minimum(self._low, low)
        self._high = high if self._high is None else torch.maximum(self._high, high)

    def statistics(self) -> ChannelStatistics:
        site = self.site
        assert self._low is not None
        assert self._high is not None
        return ChannelStatistics(
            name=site.name,
            number=site.layer,
            kind=site.kind,
            operation=site.operation,
            mean=self._moments.mean.numpy(),
            variance=self._moments.variance.numpy(),
            minimum=self._low.double().numpy(),
            maximum=self._high.double().numpy(),
            rectified=site.kind == ACTIVATION and site.operation in RECTIFIERS,
            histograms=self._histograms.result() if self._histograms else None,
        )


@measurement
def activations(
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
    histogram: int = BINS,
    norm_histograms: bool = False,
) -> Activations:
    r"""Mean, variance, range and histogram of each channel of each signal, and growth with depth.

    .. math:: \mu_c = E_{b,p}[h_{bcp}], \quad \sigma_c^2 = E_{b,p}[(h_{bcp} - \mu_c)^2]

    over samples b and positions p of the data, at the outputs h of linear and convolutional layers
    (what batch norm receives, or would), at the outputs of norm layers, and at the inputs of
    activations. A rectified unit is *dying* if its pre-activation is at most 0 on every sample and
    position of the data, *full* if it is always above 0. Growth is a straight line fitted to log10
    of the mean channel variance of the hidden layers, of all of them and of even and odd ones.

    Histograms are kept of layers' outputs and activations' inputs, with bins for each channel;
    ``Histograms.bimodality()`` tells channels with two modes. They
    span the first batch; when a later value lies outside, neighbouring bins are joined in pairs
    until it is inside, so that every value counts.

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
        histogram: bins of each channel, an even number; 0 for none.
        norm_histograms: keep histograms of what norm layers give, too.

    Returns:
        One record per signal, growth, and the layers left out with reasons.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> x = torch.arange(20.0).reshape(5, 4).to(net[0].weight)
        >>> found = activations(net, [(x, None)])
        >>> [(s.number, s.kind, len(s.mean)) for s in found.signals]
        [(1, 'linear', 3), (1, 'activation', 3), (2, 'linear', 2)]
    """
    probe = ActivationProbe(histogram=histogram, norm_histograms=norm_histograms)
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed, required=False)
    passes = run_probes(problem, [probe], num_batches, statistics, layers)
    return probe.result(passes)
