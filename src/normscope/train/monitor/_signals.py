"""Signals of a training as it runs: hooks that are there only on steps that are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.measure.probes.capture import Capture, Watcher
from normscope.measure.probes.sites import Site
from normscope.subject.session import in_session
from normscope.train.monitor.probes import MonitorProbe

Guard = Callable[[str, Callable[[], None]], None]


def why_no_signals(model: nn.Module) -> str:
    """Why the signals of ``model`` cannot be seen; empty if they can."""
    if isinstance(model, torch.jit.ScriptModule):
        return "the model is scripted, and hooks do not run inside scripted code"
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            which = f"part {name!r} of the model" if name else "the model"
            return (
                f"{which} is compiled, and hooks do not run inside compiled code; gradients and "
                "updates are recorded all the same"
            )
    return ""


class Signals(Watcher):
    """Tells probes of the signals of train-mode passes, while it is on.

    Evaluation passes in between, passes without gradients or of a measurement, and passes of a
    part of the model alone (a checkpointed block that runs again) are not told of.

    Attributes:
        passes: train-mode forward passes seen.
    """

    def __init__(self, model: nn.Module, probes: Mapping[str, MonitorProbe], guard: Guard) -> None:
        self._model, self._probes, self._guard = model, probes, guard
        self._capture: Capture | None = None
        self._inside = False
        self.passes = 0

    @property
    def on(self) -> bool:
        """Whether hooks are there."""
        return self._capture is not None

    def start(self) -> None:
        """Add the hooks to the model."""
        if not self.on and self._probes:
            capture = Capture(self._model, self)
            capture.__enter__()
            self._capture = capture

    def stop(self) -> None:
        """Remove the hooks from the model."""
        self._inside = False
        if self._capture is not None:
            self._capture.__exit__()
            self._capture = None

    def calling(self, capture: Capture) -> None:
        other = torch.compiler.is_compiling() or in_session()
        self._inside = self._model.training and torch.is_grad_enabled() and not other
        if self._inside:
            capture.begin_pass()

    def returned(self, out: Any) -> None:
        inside, self._inside = self._inside, False
        if inside and out is not None:
            self.passes += 1
            for name, probe in self._probes.items():
                self._guard(name, probe.returned)

    def entering(self, site: Site, x: Tensor) -> None:
        for name, probe in self._told(site).items():
            self._guard(name, partial(probe.entering, site, x.detach()))

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        for name, probe in self._told(site).items():
            self._guard(name, partial(probe.leaving, site, x.detach(), out.detach()))

    def _told(self, site: Site) -> dict[str, MonitorProbe]:
        if not self._inside:
            return {}
        return {name: probe for name, probe in self._probes.items() if site.kind in probe.watches}
