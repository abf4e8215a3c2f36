"""Gradients of every weighted layer: do samples agree, how are they spread, whom do they favour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from normscope.checks import checked_count, checked_list
from normscope.errors import InputError
from normscope.measure.probes._gradient_layers import ChannelMean, LayerSums
from normscope.measure.probes._gradient_outputs import ByClass, ClassLayer, FavouredClass
from normscope.measure.probes.probe import Pass, Probe
from normscope.measure.probes.run import Layers, Passes, run_probes
from normscope.measure.probes.sites import ACTIVATION, LAYERS, NORM, Site
from normscope.registry import check_choice
from normscope.results.gradients import Gradients
from normscope.subject.batch import Batch
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES

SUMMANDS = ("largest", "smallest", "aligned")
QUANTITIES = (
    "alignment",
    "classes",
    "contributions",
)  # those that cost more than the passes themselves


@dataclass(frozen=True, eq=False)
class _Signal:
    """What is known of a tensor on its way from an activation to the layer that takes it."""

    held: Tensor  # so that its memory is not given to another tensor
    version: int
    mean: ChannelMean
    name: str


class GradientProbe(Probe):
    """Terms, entries and channels of the gradient of every weight.

    Args:
        quantities: names out of ``QUANTITIES``.
        class_layer: layers to split by class, for ``"classes"``.
        summand: the weight of each layer whose single terms are kept.
    """

    watches: ClassVar[tuple[str, ...]] = LAYERS
    needs_gradients: ClassVar[bool] = True

    def __init__(
        self,
        *,
        quantities: str | Sequence[str] = ("alignment",),
        class_layer: ClassLayer = None,
        summand: str | Sequence[int] = "largest",
    ) -> None:
        chosen = _checked(quantities)
        self._summand = _checked_summand(summand, with_terms="alignment" in chosen)
        self.keeps_graph = "classes" in chosen
        self._with_terms = "alignment" in chosen
        self._with_contributions = "contributions" in chosen
        self._outputs = FavouredClass()
        self._by_class = ByClass(class_layer) if self.keeps_graph else None
        self._layers: dict[str, LayerSums] = {}
        self._weights: dict[str, Tensor] = {}
        self._samples = 0
        self._forget()

    def _forget(self) -> None:
        self._means: dict[str, ChannelMean] = {}  # of activations' inputs, by site
        self._signals: dict[int, _Signal] = {}  # by address
        self._inputs: dict[str, tuple[ChannelMean, str]] = {}  # means of layers' inputs, by site
        self._normed: dict[str, Site] = {}  # norm -> the layer whose output it takes
        self._whole: dict[str, Site] = {}  # layers of which only the weight's gradient is looked at
        self._taken: dict[str, Tensor] = {}  # layers' inputs, for contributions
        self._before: tuple[Site, int] | None = None

    def sees(self, site: Site, *, selected: bool, gradients: bool) -> bool:
        """Norms and activations too, for what goes in and out of the layers between them."""
        if site.kind in LAYERS:
            return selected
        return site.kind == NORM or not gradients

    def starting(self, batch: Batch) -> None:
        """Nothing is known of any tensor."""
        self._samples = batch.size
        self._forget()

    def entering(self, site: Site, x: Tensor) -> None:
        """Remember the means of what goes in."""
        if site.kind == ACTIVATION:
            self._means[site.name] = ChannelMean.of(site, x)
        elif site.kind == NORM:
            if self._before is not None and self._before[1] == x.data_ptr():
                self._normed[site.name] = self._before[0]
        elif not _has_terms(site):
            self._whole[site.name] = site
        else:
            self._inputs[site.name] = self._input_mean(site, x)
            if self._with_contributions:
                self._taken[site.name] = x.detach().clone()
        self._before = None

    def _input_mean(self, site: Site, x: Tensor) -> tuple[ChannelMean, str]:
        """Mean of each in-channel before its activation, or of the input itself."""
        known = self._signals.get(x.data_ptr())
        channels = x.shape[1] if site.axis == 1 and x.ndim > 1 else x.shape[-1]
        if known and known.held._version == known.version and len(known.mean.values) == channels:
            return known.mean, f"input of {known.name}"
        return ChannelMean.of(site, x), "its input"

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """Remember whose output this is."""
        if site.kind == ACTIVATION and site.name in self._means:
            signal = _Signal(out, out._version, self._means[site.name], site.name)
            self._signals[out.data_ptr()] = signal
        if site.kind in LAYERS and _has_terms(site):
            self._before = (site, out.data_ptr())

    def gradient(self, site: Site, x: Tensor, g: Tensor) -> None:
        """All that is kept of a gradient: sums over batches of numbers of each batch."""
        if site.kind == NORM:
            if (layer := self._normed.get(site.name)) is not None:
                self._sums(layer).add_channels(g, site)
            return
        if site.name in self._whole:
            return
        mean, source = self._inputs[site.name]
        sums = self._sums(site)
        sums.site = site
        sums.add(x, g, mean, source, samples=self._samples, with_terms=self._with_terms)

    def _sums(self, site: Site) -> LayerSums:
        return self._layers.setdefault(site.name, LayerSums(site, self._summand))

    def finished(self, run: Pass) -> None:
        """The outputs, and the partial passes of single classes."""
        self._weights = run.weights
        self._outputs.add(run)
        for site in self._whole.values():
            found = run.gradients.get(site.weight or "")
            if found is not None and "#" not in site.name:
                self._sums(site).add_whole(found)
        for name, x in self._taken.items():
            sums = self._layers.get(name)
            if sums is not None and sums.seen and (sums.site.weight or "") in run.weights:
                sums.add_contributions(x, run.weights[str(sums.site.weight)])
        if self._by_class is not None:
            reached = [self._layers[name] for name in self._inputs if name in self._layers]
            self._by_class.add(run, [sums.site for sums in reached if sums.seen])
        self._forget()

    def verdict(self, site: Site) -> tuple[str, str] | None:
        """A layer without a gradient is not measured."""
        if site.name in self._layers and self._layers[site.name].seen:
            return None
        if not _has_terms(site) and "#" in site.name:
            return "skipped", "the gradient of its weight is with its first use"
        if not _has_terms(site) and site.weight is None:
            return "skipped", "its weight is no parameter, but computed from others"
        return "skipped", "the loss does not depend on what comes out of it"

    def result(self, passes: Passes, index: int = 0) -> Gradients:
        """What was seen in ``passes`` by this probe, number ``index`` of them."""
        layers = [self._layers[layer.name] for layer in passes.coverage[index].ok]
        classes = self._by_class.result() if self._by_class else ()
        return Gradients(
            layers=tuple(sums.result(self._weights) for sums in layers),
            loss=passes.loss,
            outputs=self._outputs.result(),
            classes=classes[0] if classes else None,
            class_layers=classes,
            **passes.record(index),
        )


@measurement
def gradients(
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
    quantities: str | Sequence[str] = ("alignment",),
    class_layer: ClassLayer = None,
    summand: str | Sequence[int] = "largest",
) -> Gradients:
    r"""Whether the terms of each weight's gradient agree, and how the gradient is spread.

    The gradient of a weight is a sum over samples b and positions p of
    :math:`d^{bp} = \partial L / \partial OUT(b, p) \cdot IN(b, p)`, L the mean loss of a batch.
    Four sums of it, averaged over the weights of a layer and divided by samples times positions,

    .. math:: T_1 = \sum_{bp} |d|, \quad T_2 = \sum_b |\sum_p d|, \quad T_3 = \sum_p |\sum_b d|,
        \quad T_4 = |\sum_{bp} d|

    say where it cancels: T4 / T1 is 1 if all samples and positions pull a weight in one direction,
    about 1 / sqrt(samples x positions) if they are independent. T2 and T3 are NaN where a layer
    cannot tell samples from positions, and all four for embeddings, experts, recurrent layers and
    transposed convolutions, whose gradient is no such sum. Beside them: moments and
    histogram of the entries; the matrix of in- and out-channels and its rank-one share; gradient
    against weight; mean of an in-channel (before its activation) against the gradient of its
    weights; gradients of the channels, taken behind the norm that follows a layer, since in front
    of batch norm they are zero; for cross-entropy the output gradients and the favoured class.

    Every number is one of a single batch, as one training step sees it, averaged over batches.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss or ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for dropout and the order of a data set.
        quantities: what costs extra: ``"alignment"`` (T1 to T4: three weight gradients a layer)
            and ``"classes"`` (one partial backward pass for each class), ``"contributions"`` (how
            much each in-channel adds to a layer's output: a pass for each channel, and a copy of
            every layer's input); ``()`` for none of them.
        class_layer: layer whose gradient ``"classes"`` splits, or several; None for the middle one.
        summand: the weight of each layer of whose terms d mean, deviation, signs and histogram are
            kept: the one with the ``"largest"`` gradient in the first batch, the ``"smallest"``
            that is a sum of anything, the most ``"aligned"`` (T4 / T1), or a place (out, in,
            *kernel); layers whose weight does not have that place are left out.

    Returns:
        One record per layer, the output gradients, and the layers left out with reasons.

    Example:
        >>> import torch
        >>> net = nn.Linear(2, 2, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).to(net.weight)
        >>> found = gradients(net, (x, torch.tensor([0, 0])), "cross_entropy")
        >>> round(found[1].alignment, 6)  # two samples that are the same pull one way
        1.0
    """
    probe = GradientProbe(quantities=quantities, class_layer=class_layer, summand=summand)
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed)
    passes = run_probes(problem, [probe], num_batches, statistics, layers)
    return probe.result(passes)


def _has_terms(site: Site) -> bool:
    """Whether the gradient is a sum over output positions of gradient times input."""
    return site.matrix and not (site.geometry is not None and site.geometry.transposed)


def _checked_summand(summand: str | Sequence[int], *, with_terms: bool) -> str | tuple[int, ...]:
    if not isinstance(summand, str):
        return tuple(checked_count(i, "summand", least=0) for i in checked_list(summand, "summand"))
    check_choice("summand", summand, SUMMANDS)
    if summand == "aligned" and not with_terms:
        raise InputError(
            "summand='aligned' looks for the largest T4 / T1, which quantities='alignment' "
            "measures. Ask for that, too."
        )
    return summand


def _checked(quantities: str | Sequence[str]) -> tuple[str, ...]:
    alone = isinstance(quantities, str)
    chosen = (quantities,) if alone else tuple(checked_list(quantities, "quantities"))
    for name in chosen:
        check_choice("quantity", name, QUANTITIES)
    return chosen
