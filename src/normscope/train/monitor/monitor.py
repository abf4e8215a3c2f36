"""A context that watches a training that somebody else runs."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from normscope.checks import checked_count
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.sites import module_of
from normscope.results.monitor import MonitorLog, Reading, Trouble
from normscope.subject.interrupts import held
from normscope.subject.session import original_module
from normscope.subject.usable import check_usable
from normscope.train.monitor._signals import Signals, why_no_signals
from normscope.train.monitor.probes import MonitorProbe, Update, as_probes, quantities
from normscope.train.monitor.sinks import MemorySink, as_sinks
from normscope.train.plan import model_in_words

NO_PASS = (
    "no forward pass of the model itself in train mode was seen on a recorded step. Is a part of "
    "it called in its place, a copy, a compiled version, or is it in evaluation mode?"
)
NO_STEP = (
    "no torch optimizer that holds parameters of this model made a step. Are the updates made by "
    "hand, does the optimizer hold the parameters of a copy, or did training end before its first "
    "step (a GradScaler skips steps whose gradients overflow)?"
)


class Monitor:
    """Watches a training loop of your own, from its construction to ``close()``.

    Nothing of the training changes: not a bit of the parameters, not the random numbers. A step is
    a step of a torch optimizer that holds parameters of the model, however many backward passes
    went into it; steps that a ``GradScaler`` skips do not count. Each optimizer counts for itself.
    Signals are those of all train-mode passes since the step before. Between recorded steps there
    are no hooks on the model.

    Args:
        model: the module that is called in the loop, on one device.
        every: record the first step, and then one in so many. At the default the default probes
            cost less than 5 % of the time (benchmarks/monitor.py).
        probes: ``"updates"`` (norms and ratios of weights, gradients, updates), ``"activations"``
            (mean, variance, dead units), ``"last_layer"`` (lambda_max and kappa_p of the input of
            the last linear layer), a ``SharpnessProbe`` (lambda_max of the Hessian), or a
            ``MonitorProbe`` of your own; one or several.
        sinks: ``"memory"`` (for ``result()``), ``"jsonl:run.jsonl"``, ``"tensorboard:folder"``, or
            any object with ``write(reading)``; one or several. Sinks given by name are closed with
            the monitor.
        optimizers: the one or those that count; None for all that hold parameters of the model.

    Attributes:
        num_steps: steps made so far (of the optimizer that made the most).

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with Monitor(net, every=2) as monitor:
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         loss = net(torch.ones(4, 3)).square().mean()
        ...         loss.backward()
        ...         monitor.log(loss=loss)
        ...         optimizer.step()
        >>> monitor.result().of("gradient_norm", "2").steps
        array([0, 2, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        *,
        probes: Any = ("updates", "activations", "last_layer"),
        sinks: Any = ("memory",),
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
    ) -> None:
        self._weights = _weights(model)
        self._model = model_in_words(original_module(model))
        self._every = checked_count(every, "every")
        self._only = _optimizers(optimizers)
        self._probes = as_probes(probes)
        self._sinks = as_sinks(sinks)
        given = [sinks] if isinstance(sinks, str) or not isinstance(sinks, Sequence) else sinks
        self._own_sinks = [s for s, g in zip(self._sinks, given, strict=True) if isinstance(g, str)]
        self._troubles: dict[str, Trouble] = {}
        self._guarded = partial(_guarded, self._troubles)
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._held: weakref.WeakKeyDictionary[Optimizer, tuple[int, dict[str, Any]]]
        self._held = weakref.WeakKeyDictionary()
        self._update: Update | None = None
        self._readings = 0
        self.num_steps = 0
        blind = why_no_signals(model)
        watching = {n: p for n, p in self._probes.items() if p.watches}
        for name in watching if blind else ():
            self._troubles[name] = Trouble(name, "skipped", blind)
        told = {} if blind else watching
        self._signals = Signals(original_module(model), told, self._guarded)
        with held():
            self._signals.start()
            self._end = weakref.finalize(self, _detach, self._hooks(), self._signals)

    def _hooks(self) -> list[Any]:
        monitor = weakref.ref(self)  # a monitor that nobody holds any more is not kept alive

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if (alive := monitor()) is not None:
                alive._before(optimizer, args, kwargs)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if (alive := monitor()) is not None:
                alive._after(optimizer)

        return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    # ---- steps

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        layers = self._layers(optimizer)
        step = self._counts.get(optimizer, 0)
        if not layers or step % self._every:
            return
        closure = (args[1] if len(args) > 1 else kwargs.get("closure")) is not None
        scale = getattr(optimizer, "grad_scale", None)
        scaled = 1.0 if scale is None else float(scale)
        self._update = Update(step, layers, closure, scaled, optimizer)
        for name, probe in self._probes.items():
            if not probe.watches:
                self._guarded(name, partial(probe.stepping, self._update))

    def _after(self, optimizer: Optimizer) -> None:
        layers = self._layers(optimizer)
        update, self._update = self._update, None
        if not layers or _skipped(optimizer):
            return
        step = self._counts.get(optimizer, 0)
        if update is not None and step % self._every == 0:
            self._write(update, signals=False)
        if step == self.num_steps:
            if self._signals.on:
                self._signals.stop()
                self._write(update or Update(step, layers), signals=True)
            self.num_steps += 1
            if self.num_steps % self._every == 0:
                self._signals.start()
        self._counts[optimizer] = step + 1

    def _layers(self, optimizer: Optimizer) -> dict[str, list[nn.Parameter]]:
        """The model's weights that ``optimizer`` holds, by layer."""
        if self._only is not None and not any(optimizer is o for o in self._only):
            return {}
        groups = len(optimizer.param_groups)
        known = self._held.get(optimizer)
        if known is None or known[0] != groups:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            chosen = {n: [p for p in ps if id(p) in held] for n, ps in self._weights.items()}
            known = (groups, {n: ps for n, ps in chosen.items() if ps})
            self._held[optimizer] = known
        return known[1]

    # ---- readings

    def _write(self, update: Update, *, signals: bool) -> None:
        for name, probe in self._probes.items():
            if bool(probe.watches) == signals:
                self._guarded(name, partial(self._take, probe, update))
        for sink in self._sinks:
            if hasattr(sink, "flush"):
                self._guarded(type(sink).__name__, sink.flush)

    def _take(self, probe: MonitorProbe, update: Update) -> None:
        for layer, quantity, value in probe.readings(update):
            self._readings += 1
            self._send(Reading(update.step, layer, quantity, float(value)))

    def _send(self, reading: Reading) -> None:
        for sink in self._sinks:
            self._guarded(type(sink).__name__, partial(sink.write, reading))

    def log(self, **values: Any) -> None:
        """Record numbers of your own, such as ``loss=loss``, under the current step.

        Called between ``backward()`` and ``step()`` they belong to the update that follows.

        Args:
            values: a number or one-element tensor each.
        """
        for name, value in values.items():
            try:
                number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError):
                raise InputError(f"log takes one number each. Got {name} = {value!r}.") from None
            self._send(Reading(self.num_steps, "", name, number))

    def result(self) -> MonitorLog:
        """Everything recorded so far, from the memory sink."""
        kept = [sink for sink in self._sinks if isinstance(sink, MemorySink)]
        if not kept:
            raise InputError(
                "result() needs the sink 'memory'. Add it to sinks, or read the file of a jsonl "
                "sink with MonitorLog.from_jsonl(path)."
            )
        series = kept[0].series()
        if not series:
            raise MeasurementError(f"Nothing was recorded: {self._why_nothing()}")
        convention = {
            "model": self._model,
            "statistics": "those of the training itself: its passes in train mode",
            "probes": tuple(self._probes),
            "every": self._every,
        }
        meaning, troubles = dict(quantities(self._probes.values())), tuple(self._troubles.values())
        return MonitorLog(series, self.num_steps, self._every, troubles, meaning, convention)

    # ---- the end

    def close(self) -> None:
        """Remove every hook and close the sinks; warns if nothing was recorded. May be repeated."""
        if self._end.alive:
            self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        self._end()
        for sink in self._own_sinks:
            if hasattr(sink, "close"):
                self._guarded(type(sink).__name__, sink.close)
        if self._signals.passes == 0 and self.num_steps:
            for name, probe in self._probes.items():
                if probe.watches:
                    self._troubles.setdefault(name, Trouble(name, "skipped", NO_PASS))
        if failed:
            return
        if not self._readings:
            warnings.warn(f"The monitor recorded nothing: {self._why_nothing()}", stacklevel=3)
        elif any(t.reason == NO_PASS for t in self._troubles.values()):
            warnings.warn(f"The monitor recorded no signals: {NO_PASS}", stacklevel=3)

    def _why_nothing(self) -> str:
        if self.num_steps == 0:
            return NO_STEP
        return "; ".join(f"{t.name}: {t.reason}" for t in self._troubles.values()) or NO_PASS

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if self._end.alive:
            self._finish(failed=kind is not None)

    def __repr__(self) -> str:
        state = "watching" if self._end.alive else "closed"
        return f"Monitor({state}, {self.num_steps} steps, {self._readings} readings)"


def _guarded(troubles: dict[str, Trouble], name: str, call: Callable[[], Any]) -> None:
    """Call what must not stop a training: a failure is noted, and warned of once."""
    try:
        with torch.no_grad():
            call()
    except Exception as error:
        if name not in troubles:
            reason = f"{type(error).__name__}: {error}"
            troubles[name] = Trouble(name, "failed", reason)
            text = f"The monitor's {name} failed, and training goes on: {reason}"
            warnings.warn(text, stacklevel=2)


def _detach(handles: Iterable[Any], signals: Signals) -> None:
    with held():
        for handle in handles:
            handle.remove()
        signals.stop()


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer was told by a GradScaler that the gradients are not finite."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _optimizers(given: Any) -> list[Optimizer] | None:
    if given is None:
        return None
    several = list(given) if isinstance(given, Sequence) else [given]
    for optimizer in several:
        if not isinstance(optimizer, Optimizer):
            raise InputError(f"optimizers must be torch optimizers. Got {optimizer!r}.")
    return several


def _weights(model: Any) -> dict[str, list[nn.Parameter]]:
    """The parameters that stand for each layer, by its name."""
    check_usable(model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(
            f"{type(model).__name__} runs copies of the model, whose signals are seen in pieces. "
            "Pass the module inside it (model.module) on one device."
        )
    owned: dict[str, list[nn.Parameter]] = {}
    for name, parameter in original_module(model).named_parameters():
        owned.setdefault(module_of(name) or type(model).__name__, []).append(parameter)
    if not owned:
        raise InputError(f"{type(model).__name__} has no parameters, so there is nothing to watch.")
    matrices = {name: [p for p in ps if p.ndim > 1] for name, ps in owned.items()}
    return {name: matrices[name] or ps for name, ps in owned.items()}
