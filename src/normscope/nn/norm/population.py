"""Population norm: statistics of many training samples through the current weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.nn.norm.channel import PARTS, ChannelNorm, inside_transform
from normscope.registry import check_choice
from normscope.seeds import child_seed

STAT_GRADS = ("detach", "through", "batch")


class PopulationNorm(ChannelNorm):
    r"""Luo's population norm: y = gamma (x - mu_P) / sigma_P + beta, the same in evaluation.

    mu_P and sigma_P are those of a population of training samples sent through the network with
    its current weights; ``refresh_population`` or a ``PopulationRefresher`` computes them.

    Args:
        num_features: number of channels.
        parts: which of mean, variance, scale and shift are on.
        deviation: ``"centred"``, or ``"rms"`` where the mean is not subtracted.
        eps: added to the variance; 0 is allowed.
        stat_grad: how a training step differentiates the statistics. ``"detach"``: they are
            constants, for measuring; **deep networks train poorly**, because most of the gradient
            of a weight shifts the mean of a channel, which the next refresh subtracts again.
            ``"through"``: exact, with a refresh before every step, which keeps the graph of the
            whole population. ``"batch"``: outputs are the same, but gradients flow through the
            mean and variance of the mini-batch as in batch norm (batch renormalization, Ioffe
            2017): nearly the gradient of ``"through"`` at the price of ``"detach"``. In every
            measurement, and under ``torch.func``, they are constants all the same.
        gamma: initial value of the scale, a constant gain where there is no scale.
        channel_axis: 1, or -1 for channels on the last axis.
        device: device of parameters and buffers.
        dtype: data type of parameters and buffers.
    """

    population_mean: Tensor
    population_var: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        parts: Sequence[str] = PARTS,
        deviation: str = "centred",
        eps: float = 1e-5,
        stat_grad: str = "detach",
        gamma: float = 1.0,
        channel_axis: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, parts, deviation, eps, gamma, channel_axis, device, dtype)
        check_choice("stat_grad", stat_grad, STAT_GRADS)
        self.stat_grad = stat_grad
        made = {"device": device, "dtype": dtype}
        self.register_buffer("population_mean", torch.zeros(num_features, **made))
        self.register_buffer("population_var", torch.ones(num_features, **made))
        self.ready = False  # whether there are statistics
        self._collector: _Collector | None = None
        self._live: tuple[Tensor, Tensor] | None = None  # statistics that carry a graph

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        self.check_input(x)
        if not self.needs_statistics:
            return self.normalize(x)
        if self._collector is not None:
            return self.normalize(x, *self._collector.visit(self, x))
        if not self.ready:
            raise InputError(
                "This PopulationNorm has no population statistics yet, and would pass its input "
                "through as if they were 0 and 1. Call refresh_population(model, inputs) first, "
                "or step a PopulationRefresher before each training step."
            )
        if self.stat_grad == "through" and self.training and torch.is_grad_enabled():
            return self.normalize(x, *self._take_live())
        if self.stat_grad == "batch" and self.training and torch.is_grad_enabled():
            return self.normalize(x, *self._batch_slopes(x))
        return self.normalize(x, self.population_mean, self.population_var)

    def set_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Hold these as the population's; a graph they carry serves one training pass."""
        with torch.no_grad():
            self.population_mean.copy_(mean)
            self.population_var.copy_(variance)
        self._live = (mean, variance) if mean.requires_grad else None
        self.ready = True

    def _batch_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The population's values with derivatives as if the batch's own statistics were used.

        y = (x - mu_B) r / sigma_B + (mu_B - mu_P) / sigma_P with r = sigma_B / sigma_P, where r
        and the last term are constants: scale and shift of x have no derivative, as in batch norm.
        """
        if inside_transform():
            return self.population_mean, self.population_var
        mean, variance = self.moments(x)
        ratio = torch.ones_like(variance)
        if "variance" in self.parts:
            held = variance.detach()
            ratio = 1 + (variance - held) / held.clamp_min(torch.finfo(held.dtype).tiny)
        shifted = mean - (mean.detach() - self.population_mean) * ratio.sqrt()
        return shifted, self.population_var * ratio

    def _take_live(self) -> tuple[Tensor, Tensor]:
        if self._live is None:
            raise InputError(
                "stat_grad='through' needs population statistics computed with the very weights "
                "of this step, and those of the last refresh are used up. Call "
                "refresh_population(model, inputs) before every training pass (every=1)."
            )
        live, self._live = self._live, None
        return live

    def get_extra_state(self) -> Tensor:
        """Whether there are statistics, for the state dict."""
        return torch.tensor(self.ready)

    def set_extra_state(self, state: Tensor) -> None:
        """Take back what ``get_extra_state`` returned."""
        self.ready = bool(state)

    def __getstate__(self) -> dict[str, Any]:
        # a graph cannot be copied or pickled: a copy asks for a refresh of its own
        return {**self.__dict__, "_live": None, "_collector": None}


class PopulationRefresher:
    """Refreshes the population statistics of a model every K training steps.

    Statistics are those before an update: after the last one, ``refresh_population`` brings them
    up to the final weights.

    Args:
        model: a network with ``PopulationNorm`` layers.
        inputs: training samples, first axis samples.
        num_samples: size of the population, drawn from ``inputs`` without replacement; None is
            all of them.
        every: K; 1 is exact. With stale statistics the signal drifts: in a ResNet-8 at learning
            rate 0.05, momentum 0.9 and ``stat_grad="batch"``, 3 cost little and 10 most of the
            progress. The smaller the learning rate, the more is possible.
        chunk_size: as in ``refresh_population``.
        seed: seed for the draw.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        *,
        num_samples: int | None = 10_000,
        every: int = 1,
        chunk_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.every = checked_count(every, "every")
        self.chunk_size = chunk_size
        self.steps = 0
        self.population = _drawn(inputs, num_samples, seed)

    def step(self) -> bool:
        """Call before each training step; True if the statistics were refreshed."""
        due = self.steps % self.every == 0
        if due:
            refresh_population(self.model, self.population, chunk_size=self.chunk_size)
        self.steps += 1
        return due

    @contextlib.contextmanager
    def refreshed(self) -> Iterator[None]:
        """A span with the statistics of the present weights; afterwards they are as before."""
        layers = [layer for layer in self.model.modules() if isinstance(layer, PopulationNorm)]
        kept = [
            (m, m.population_mean.clone(), m.population_var.clone(), m.ready, m._live)
            for m in layers
        ]
        refresh_population(self.model, self.population, chunk_size=self.chunk_size)
        try:
            yield
        finally:
            for layer, mean, variance, ready, live in kept:
                layer.set_statistics(mean, variance)
                layer.ready, layer._live = ready, live

    def state_dict(self) -> dict[str, int]:
        """What a resumed run needs: the number of steps taken."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.steps = int(state["steps"])


def refresh_population(
    model: nn.Module, inputs: Tensor, *, chunk_size: int | None = None
) -> nn.Module:
    """Set every ``PopulationNorm`` of ``model`` to the statistics of ``inputs``.

    Exact: each layer sees the population as the layers before it, refreshed, pass it on. All
    other layers are in evaluation mode during the pass (no dropout, running batch norms).

    Args:
        model: a network with ``PopulationNorm`` layers; changed in place and returned.
        inputs: the population, first axis samples.
        chunk_size: samples at a time; None is all at once, in one forward pass. In chunks the
            pass is repeated, up to the next norm each time: memory for time.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, PopulationNorm)]
    _check_population(layers, inputs, chunk_size)
    chunks = [inputs] if chunk_size is None else list(torch.split(inputs, chunk_size))
    through = any(layer.stat_grad == "through" for layer in layers)
    with _evaluating(model), torch.set_grad_enabled(through):
        if len(chunks) == 1:
            _collect_at_once(model, layers, chunks[0])
        else:
            _collect_in_chunks(model, layers, chunks)
    return model


class _Stop(BaseException):
    """Ends a forward pass at the layer that is being measured."""


class _Collector:
    """Takes the statistics of each layer in the order in which the pass reaches them.

    ``chunked``: the first layer that is not done only adds to its moments and ends the pass.
    """

    def __init__(self, *, chunked: bool) -> None:
        self.chunked = chunked
        self.done: dict[PopulationNorm, tuple[Tensor, Tensor]] = {}
        self.current: PopulationNorm | None = None
        self._visited: set[PopulationNorm] = set()
        self._count = 0
        self._mean: Tensor | None = None
        self._spread: Tensor | None = None

    def begin(self) -> None:
        """A new forward pass starts."""
        self._visited = set()

    def visit(self, layer: PopulationNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """The statistics that ``layer`` is to use on ``x``."""
        if layer in self._visited:
            raise InputError(
                "A PopulationNorm layer is used twice in one forward pass, with a population "
                "of its own each time. Give each use a layer of its own."
            )
        self._visited.add(layer)
        if layer in self.done:
            return self.done[layer]
        mean, variance = layer.moments(x)
        if not self.chunked:
            live = layer.stat_grad == "through"
            self.done[layer] = (mean, variance) if live else (mean.detach(), variance.detach())
            return self.done[layer]
        self.current = layer
        self._merge(layer, mean, variance, x.numel() // layer.num_features)
        raise _Stop

    def _merge(self, layer: PopulationNorm, mean: Tensor, variance: Tensor, count: int) -> None:
        """Chan's merge of moments, in float64."""
        mean, spread = mean.double(), variance.double() * count
        if self._mean is None or self._spread is None:
            self._count, self._mean, self._spread = count, mean, spread
            return
        total = self._count + count
        gap = mean - self._mean
        if layer.centred:
            spread = spread + gap.square() * (self._count * count / total)
        self._mean = self._mean + gap * (count / total)
        self._spread = self._spread + spread
        self._count = total

    def finish(self) -> None:
        """The moments of the current layer are complete."""
        assert self.current is not None
        assert self._mean is not None
        assert self._spread is not None
        like = self.current.population_mean
        self.done[self.current] = (self._mean.to(like), (self._spread / self._count).to(like))
        self.current, self._mean, self._spread, self._count = None, None, None, 0


def _collect_at_once(model: nn.Module, layers: list[PopulationNorm], inputs: Tensor) -> None:
    collector = _Collector(chunked=False)
    with _collecting(layers, collector):
        collector.begin()
        model(inputs)


def _collect_in_chunks(
    model: nn.Module, layers: list[PopulationNorm], chunks: list[Tensor]
) -> None:
    collector = _Collector(chunked=True)
    with _collecting(layers, collector):
        while True:
            for chunk in chunks:
                collector.begin()
                with contextlib.suppress(_Stop):
                    model(chunk)
                if collector.current is None:
                    break  # every layer on the way is done
            if collector.current is None:
                break
            collector.finish()


@contextlib.contextmanager
def _collecting(layers: list[PopulationNorm], collector: _Collector) -> Iterator[None]:
    """Layers that ask ``collector`` for their statistics, and keep those it has in the end."""
    for layer in layers:
        layer._collector = collector
    try:
        yield
    finally:
        for layer in layers:
            layer._collector = None
    for layer, statistics in collector.done.items():
        layer.set_statistics(*statistics)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _check_population(layers: list[PopulationNorm], inputs: Tensor, chunk_size: int | None) -> None:
    if not layers:
        raise InputError(
            "The model has no PopulationNorm layer to refresh. Build it with norm='population', "
            "or apply the transform 'replace:batch->population'."
        )
    if len(inputs) < 2:
        raise InputError(
            f"Population statistics need at least two samples. Got {len(inputs)}. Pass some "
            "thousand training inputs."
        )
    if chunk_size is not None:
        checked_count(chunk_size, "chunk_size")
        if any(layer.stat_grad == "through" for layer in layers):
            raise InputError(
                f"stat_grad='through' keeps the graph of the whole population, so that it cannot "
                f"be computed in chunks. Got chunk_size={chunk_size}. Leave it out, or use fewer "
                "samples or stat_grad='detach'."
            )


def _drawn(inputs: Tensor, num_samples: int | None, seed: int) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"The population is a tensor of inputs, first axis samples. Got a "
            f"{type(inputs).__name__}; of a DataSet pass its images."
        )
    if num_samples is None or num_samples == len(inputs):
        return inputs
    if checked_count(num_samples, "num_samples") > len(inputs):
        raise InputError(
            f"num_samples = {num_samples}, but there are only {len(inputs)} samples to draw from. "
            "Pass num_samples=None to use them all."
        )
    generator = torch.Generator().manual_seed(child_seed(seed, "population"))
    chosen = torch.randperm(len(inputs), generator=generator)[:num_samples]
    return inputs[chosen.sort().values]
