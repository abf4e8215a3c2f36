"""Running statistics made again: what one pass over data in train mode leaves in them.

As `torch.optim.swa_utils.update_bn` does: a plain average of the batches, from the start, of every
layer that keeps running statistics. Nothing of the model moves: the statistics of a pass live here,
and can be used in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from normscope.nn.norm import BatchNorm
from normscope.subject.batch import readable_failures
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import Problem
from normscope.subject.session import patch_forward

RUNNING = ("running_mean", "running_var")
KNOWN = (_NormBase, BatchNorm)  # how these update them is known


def running_norms(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that keep running statistics and would update them, by name."""
    return {name: layer for name, layer in model.named_modules() if _keeps(layer)}


def _keeps(layer: nn.Module) -> bool:
    if not isinstance(layer, KNOWN) or not getattr(layer, "needs_statistics", True):
        return False
    return all(isinstance(getattr(layer, name), Tensor) for name in RUNNING)


def is_frozen(layer: nn.Module, model: nn.Module) -> bool:
    """Whether a layer uses its running statistics while the model is trained."""
    off = model.training and not layer.training
    return off or getattr(layer, "every", 1) is None


class RunningStatistics:
    """The statistics that passes leave in the layers, and their use in other passes.

    Attributes:
        layers: names of the layers that take part.
        buffers: what they hold by now, by layer and buffer; a layer that no pass reached has none.
        uses: how often each was called.
        counts: values per channel in the last call.
    """

    def __init__(self, layers: Iterable[str]) -> None:
        self.layers = tuple(layers)
        self.buffers: dict[str, dict[str, Tensor]] = {}
        self.uses = dict.fromkeys(self.layers, 0)
        self.counts = dict.fromkeys(self.layers, 0)

    def statistics(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of a layer; None if no pass reached it."""
        held = self.buffers.get(name)
        return None if held is None else (held[RUNNING[0]], held[RUNNING[1]])

    def collecting(self, model: nn.Module) -> None:
        """The layers keep the plain average of what passes give them (inside a session)."""
        for name in self.layers:
            layer: Any = model.get_submodule(name)
            layer.training = True
            if getattr(layer, "every", 1) is None:
                layer.every = 1
            patch_forward(layer, self._collector(layer, name))

    def using(self, model: nn.Module) -> None:
        """The layers use them as their own (inside a session)."""
        for name in self.layers:
            if name in self.buffers:
                layer = model.get_submodule(name)
                patch_forward(layer, self._user(layer, name))

    def _collector(self, layer: Any, name: str) -> Callable[[Any], Any]:
        def make(forward: Callable[..., Any]) -> Callable[..., Any]:
            def collected(*args: Any, **kwargs: Any) -> Any:
                held = self.buffers.get(name) or _started(layer)
                self.buffers[name] = held
                layer._buffers.update(held)
                self.uses[name] += 1
                layer.track_running_stats = True
                own = isinstance(layer, BatchNorm)  # which may skip batches, and knows when
                layer.momentum = None if own else 1 / self.uses[name]
                given = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
                if given is not None:
                    self.counts[name] = given.numel() // held[RUNNING[0]].numel()
                return forward(*args, **kwargs)

            return collected

        return make

    def _user(self, layer: nn.Module, name: str) -> Callable[[Any], Any]:
        def make(forward: Callable[..., Any]) -> Callable[..., Any]:
            def used(*args: Any, **kwargs: Any) -> Any:
                layer._buffers.update(self.buffers[name])
                return forward(*args, **kwargs)

            return used

        return make


def _started(layer: nn.Module) -> dict[str, Tensor]:
    """Its buffers as a new layer has them."""
    held = {n: b.detach().clone() for n, b in layer._buffers.items() if b is not None}
    for name, buffer in held.items():
        buffer.fill_(1 if name.endswith("var") else 0)
    return held


def passed_over(problem: Problem, layers: Iterable[str]) -> RunningStatistics:
    """The statistics that one pass over all of the data leaves in ``layers``."""
    found, model = RunningStatistics(layers), problem.model
    function = ModelFunction(
        model, every_parameter(model), problem.objective, statistics="batch", seed=problem.seed
    )
    for number, batch in enumerate(problem.source.epoch(0)):
        safe_point()
        failing = readable_failures(model, batch, f"in train mode on batch {number}")
        with failing, function.open(change=found.collecting), torch.no_grad():
            function(function.values, batch)
    return found
