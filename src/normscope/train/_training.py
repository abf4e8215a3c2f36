"""One training under way: where it is, and how it moves from update to update."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure.progress import progress
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.interrupts import interruptible, safe_point
from normscope.subject.process import (
    isolated_random,
    kept_generators,
    kept_random,
    random_state,
    set_random_state,
)
from normscope.train.checkpoint import Checkpoint
from normscope.train.evaluate import evaluation
from normscope.train.modes import kept_buffers, kept_mode, refuse_single_samples
from normscope.train.plan import Plan
from normscope.train.run import INTERRUPTED, Event, StopTraining, TrainingRun
from normscope.train.schedules import When


class _Diverged(Exception):  # noqa: N818 - a signal
    """The training diverged; its text is the reason."""


class Training:
    """The moving part: made from a plan, run once."""

    def __init__(self, plan: Plan, checkpoint: Checkpoint | None) -> None:
        self._plan = plan
        self._checkpoint = checkpoint
        self._base_lrs = [float(group["lr"]) for group in plan.optimizer.param_groups]
        self._losses: list[float] = []
        self._lrs: list[float] = []
        self._events: list[Event] = []
        self._step = self._epoch = self._batch = 0
        self._outcome = self._reason = ""
        self._diverged_at: int | None = None
        self._earlier, self._began = 0.0, time.monotonic()
        self._epoch_began_with: list[Tensor] = []  # the loader's own generators
        self._last_batch: Batch | None = None

    def run(self, *, resume: bool) -> TrainingRun:
        """Train to the end, from the checkpoint if there is one."""
        plan = self._plan
        with (
            isolated_random(plan.options.seed, plan.device),
            kept_mode(plan.model, training=True),
            torch.enable_grad(),
            progress("training", plan.total) as tick,
            interruptible(),
        ):
            self._check_smallest_batch()
            state = self._checkpoint.load() if self._checkpoint and resume else None
            if state is not None:
                self._restore(state)
                for _ in range(self._step):
                    tick()
            if not self._outcome:
                self._run_to_an_end(tick)
        return self._record()

    def _check_smallest_batch(self) -> None:
        """Refuse it now rather than at the end of the first epoch."""
        plan, batch = self._plan, self._plan.source.smallest()
        if batch is not None:
            where = "One batch of every epoch"
            refuse_single_samples(plan.model, plan.objective, batch.to(plan.device), where=where)

    def _run_to_an_end(self, tick: Callable[[], None]) -> None:
        try:
            if self._step == 0:
                self._emit("start", math.nan)
            while not self._complete():
                self._run_epoch(tick)
            self._judge_last_update()
            self._finish("finished")
        except StopTraining as stop:
            self._finish("stopped", str(stop))
        except _Diverged as signal:
            self._diverged_at = self._step
            with contextlib.suppress(StopTraining):
                self._emit("divergence", self._losses[-1])
            self._finish("diverged", str(signal))
        except KeyboardInterrupt:
            # The update may be half made, so the last checkpoint stands and no other is written.
            self._checkpoint = None
            self._finish("interrupted", INTERRUPTED)

    def _complete(self) -> bool:
        options = self._plan.options
        if options.steps is not None:
            return self._step >= options.steps
        return options.epochs is not None and self._epoch >= options.epochs

    def _run_epoch(self, tick: Callable[[], None]) -> None:
        source, steps = self._plan.source, self._plan.options.steps
        for batch in self._batches():
            self._last_batch = batch.to(self._plan.device)
            self._update(self._last_batch)
            tick()
            safe_point()
            if steps is not None and self._complete():
                if self._batch == source.per_epoch:
                    self._close_epoch()
                return
            self._save_if_due(epoch_ended=False)
        self._close_epoch()

    def _close_epoch(self) -> None:
        self._emit("epoch", float(np.mean(self._losses[-self._batch :])), **self._validated())
        self._epoch, self._batch = self._epoch + 1, 0
        self._save_if_due(epoch_ended=True)

    def _validated(self) -> dict[str, float]:
        """Loss and accuracy on the validation data; nothing of it shows in the training."""
        plan, source = self._plan, self._plan.validation
        if source is None:
            return {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(kept_random(plan.device))
            stack.enter_context(kept_generators(source.generators))
            for refresher in plan.refreshers:
                if hasattr(refresher, "refreshed"):
                    stack.enter_context(refresher.refreshed())
            found = evaluation(plan.model, source, plan.objective, plan.options.seed)
        accuracy = math.nan if found.accuracy is None else found.accuracy
        return {"validation_loss": found.loss, "validation_accuracy": accuracy}

    def _batches(self) -> Iterator[Batch]:
        source = self._plan.source
        if self._batch == 0:
            self._epoch_began_with = self._loader_states()
        else:  # resumed within an epoch, which is read again from its beginning
            self._set_loader_states(self._epoch_began_with)
        return source.epoch(self._epoch, self._batch)

    def _loader_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._plan.source.generators]

    def _set_loader_states(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._plan.source.generators, states, strict=True):
            generator.set_state(state)

    def _update(self, batch: Batch) -> None:
        plan = self._plan
        plan.optimizer.zero_grad(set_to_none=True)
        for refresher in plan.refreshers:
            refresher.step()
        loss = self._loss(batch)
        self._lrs.append(self._set_lrs())
        self._losses.append(float(loss.detach()))
        self._judge(self._losses[-1])
        penalty, clip = plan.options.penalty, plan.options.clip
        total = loss if penalty is None else loss + self._penalty(penalty(plan.model))
        torch.autograd.backward(total)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(plan.model.parameters(), clip)
        plan.optimizer.step()
        self._step, self._batch = self._step + 1, self._batch + 1
        self._emit("step", self._losses[-1])

    def _loss(self, batch: Batch) -> Tensor:
        plan = self._plan
        where = f"Batch {self._batch} of epoch {self._epoch}"
        refuse_single_samples(plan.model, plan.objective, batch, where=where)
        try:
            with readable_failures(plan.model, batch, f"on {where[0].lower()}{where[1:]}"):
                loss = plan.objective.value(plan.model, batch)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if not loss.requires_grad:
            raise InputError(
                "The loss does not depend on any trainable parameter, so there is nothing to "
                "train. Does the model detach its output, or run under no_grad? Does "
                "a loss_fn or outputs_fn use a model of its own, not the one it is given?"
            )
        return loss

    @staticmethod
    def _penalty(value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InputError(
                f"penalty(model) must return one number as a tensor. Got {value!r:.60}."
            )
        return value

    def _set_lrs(self) -> float:
        plan = self._plan
        when = When(self._step, plan.source.per_epoch, plan.total)
        lrs = [plan.schedule.lr(base, when) for base in self._base_lrs]
        for group, lr in zip(plan.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        return lrs[0]

    def _judge(self, loss: float) -> None:
        rule = self._plan.options.divergence
        if rule is not None and (reason := rule.reason(loss, self._losses[0])):
            raise _Diverged(f"Diverged after {self._step} updates: {reason}.")

    def _judge_last_update(self) -> None:
        """No step follows the last update, so its loss is taken on the same batch, unrecorded."""
        plan, rule = self._plan, self._plan.options.divergence
        if rule is None:
            return
        for name, parameter in plan.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise _Diverged(f"Diverged in the last update: {name!r} is not finite.")
        if self._last_batch is None:  # resumed behind the last update
            return
        with kept_random(plan.device), torch.no_grad(), kept_buffers(plan.model), interruptible():
            loss = float(plan.objective.value(plan.model, self._last_batch))
        if reason := rule.reason(loss, self._losses[0]):
            raise _Diverged(f"Diverged in the last update: {reason} on the same batch.")

    def _emit(self, kind: str, loss: float, **validated: float) -> None:
        lr = self._lrs[-1] if self._lrs else self._set_lrs()
        event = Event(kind, self._step, self._epoch, loss, lr, self._outcome, **validated)
        if kind not in ("start", "step"):
            self._events.append(event)
        for callback in self._plan.callbacks:
            callback(event)

    def _finish(self, outcome: str, reason: str = "") -> None:
        self._outcome, self._reason = outcome, reason
        self._plan.optimizer.zero_grad(set_to_none=True)
        with contextlib.suppress(StopTraining):
            self._emit("done", self._losses[-1] if self._losses else math.nan)
        if self._checkpoint and self._checkpoint.due_at_end:
            self._checkpoint.save(self._state())

    def _save_if_due(self, *, epoch_ended: bool) -> None:
        if self._checkpoint and self._checkpoint.due(self._step, epoch_ended=epoch_ended):
            self._checkpoint.save(self._state())

    def _state(self) -> dict[str, Any]:
        plan = self._plan
        kept = plan.model.state_dict()
        return {
            "model": kept,
            "buffers": {n: b for n, b in plan.model.named_buffers() if n not in kept},
            "optimizer": plan.optimizer.state_dict(),
            "helpers": [helper.state_dict() for helper in plan.stateful],
            "random": {"global": random_state(plan.device), "loader": self._loader_states()},
            "epoch_began_with": self._epoch_began_with,
            "place": [self._step, self._epoch, self._batch],
            "losses": torch.tensor(self._losses, dtype=torch.float64),
            "lrs": torch.tensor(self._lrs, dtype=torch.float64),
            "events": json.dumps([event.to_dict() for event in self._events]),
            "end": [self._outcome, self._reason, self._diverged_at],
            "seconds": self._spent(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        plan = self._plan
        plan.model.load_state_dict(state["model"])
        buffers = dict(plan.model.named_buffers())
        for name, value in state["buffers"].items():
            buffers[name].copy_(value)
        plan.optimizer.load_state_dict(state["optimizer"])
        for helper, kept in zip(plan.stateful, state["helpers"], strict=True):
            helper.load_state_dict(kept)
        set_random_state(state["random"]["global"], plan.device)
        self._set_loader_states(state["random"]["loader"])
        self._epoch_began_with = state["epoch_began_with"]
        self._step, self._epoch, self._batch = state["place"]
        self._losses, self._lrs = state["losses"].tolist(), state["lrs"].tolist()
        self._events = [Event.from_dict(event) for event in json.loads(state["events"])]
        self._outcome, self._reason, self._diverged_at = state["end"]
        self._earlier = state["seconds"]

    def _spent(self) -> float:
        return self._earlier + time.monotonic() - self._began

    def _record(self) -> TrainingRun:
        return TrainingRun(
            losses=np.array(self._losses, np.float64),
            lrs=np.array(self._lrs, np.float64),
            outcome=self._outcome,
            diverged_at=self._diverged_at,
            reason=self._reason,
            updates=self._step,
            seconds=self._spent(),
            convention=self._plan.convention,
            events=tuple(self._events),
        )
