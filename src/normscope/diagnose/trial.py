"""A few updates of copies, with the user's optimizer: at its rate, and at others where in doubt.

The ladder: the rate and a tenth of it; larger rates where the loss hardly falls; a longer trial
where the short one cannot tell; a hundredth of the rate where it does not learn. Which of them fit
into the time is decided before the first one, by the time of one gradient, so that the answer does
not depend on what else the machine does.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.diagnose.findings import findings_of
from normscope.diagnose.rules import RULES
from normscope.diagnose.settings import settings_of
from normscope.diagnose.subject import Subject
from normscope.measure.divergence import Divergence
from normscope.measure.setup.inner_calls import InnerCalls, spread
from normscope.results import Rung, Trial
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.graph.recorder import tensors_in
from normscope.subject.interrupts import held, interruptible
from normscope.subject.likelihoods import BernoulliLoss, CrossEntropy
from normscope.subject.losses import Loss
from normscope.subject.problem import model_device
from normscope.subject.process import isolated_random
from normscope.subject.reading import Kept, Source
from normscope.train.loop import train
from normscope.train.modes import kept_buffers, kept_mode
from normscope.train.optim import build_optimizer
from normscope.train.options import TrainingOptions
from normscope.train.run import INTERRUPTED, Event, StopTraining, TrainingRun
from normscope.train.stability.copies import Origin, kept_gradients
from normscope.train.stability.judge import chance_loss

SECONDS = {"fast": 10.0, "standard": 60.0, "full": 60.0}  # time limit by preset
UPDATE = 0.6  # of a gradient as it is measured, which runs the model twice
STEPS, LONG, FRESH = 25, 100, 150  # updates
BYTES = 2**28  # of data that are read for it
ENOUGH = 16  # samples in a batch, from which it is asked what holds for other ones
BATCHES, JUDGED = 8, 4  # for the updates, and of these for the loss before and after
FORWARD = 1 / 3  # cost of a forward pass, in gradients
ASSUMED = "adam", 1e-3  # torch's own default, where no rate was given
HALF = 0.5  # of the batches of an epoch: most of the data
FEW = 3  # targets per class, below which their shares say nothing
OVERRUN = 2.0  # times the time limit, after which even a trial that was planned ends
FACTS = 3.9  # orders of the rules on plumbing and data: with them a rate is no cause
UP, LARGEST, FALLEN = 0.2, 1e6, 0.97  # the fall that a larger rate aims at, and where it is one
RUNGS = 4  # larger rates that are tried
FINITE_ONLY = Divergence(floor=math.inf)


def tried(subject: Subject, results: dict[str, Any]) -> Trial:
    """The trials that the time of ``subject`` allows, given what was measured before."""
    return _Ladder(subject, results).climbed()


def cost_of(subject: Subject, steps: int = STEPS, *, first: bool = True) -> float:
    """Gradients of one batch that a trial takes; the first one measures the start as well."""
    judged = min(_num_judged(subject), len(subject.practice))
    return steps + FORWARD * (1 + judged * (2 if first else 1))


def _num_judged(subject: Subject) -> int:
    """Batches that the loss is taken on: more where they are small."""
    return max(JUDGED, len(subject.practice) // 2)


def usual_cost(subject: Subject) -> float:
    """The cost where nothing is in doubt: the rate and a tenth of it."""
    return cost_of(subject) + cost_of(subject, first=False)


def obstacle(subject: Subject) -> str | None:
    """Why there is no trial, or None."""
    allowed, needed = subject.allowance, cost_of(subject)
    if allowed.seconds == 0:
        return "not judged: trial_seconds=0 leaves it out"
    if needed <= allowed.gradients:
        return None
    return (
        f"not judged: {STEPS} updates take about {needed * allowed.gradient:.2g} s, and "
        f"trial_seconds is {allowed.seconds:.3g}"
    )


class _Ladder:
    """Trials one after the other, one copy at a time."""

    def __init__(self, subject: Subject, results: dict[str, Any]) -> None:
        self._subject, self._results = subject, results
        self._batches = Kept(list(subject.practice), subject.source.reading)
        self._began = time.monotonic()
        self._rungs: list[Rung] = []
        self._left_out: list[str] = []
        self._cost = 0.0
        self._start: tuple[float, float, float] | None = None  # loss, constant, uniform
        self._spread = self._held = self._held_constant = math.nan
        self._limitless = False
        further = subject.further
        epoch = math.inf if further is None else further.per_epoch or math.inf
        self._most = HALF * epoch < len(subject.practice)
        self._unmoved: tuple[str, ...] = ()
        self._ended = ""

    def climbed(self) -> Trial:
        """All trials that are needed to judge the rate."""
        try:
            self._climb()
            further = self._subject.further
            labels = getattr(self._results.get("data"), "labels", 0)
            if self._found().by_heart and further is not None and labels and not self._most:
                self._run(1.0, FRESH, fresh=_apart(further))
        except KeyboardInterrupt:
            self._ended = INTERRUPTED
        return self._found()

    def _climb(self) -> None:
        self._run(1.0)
        trial = self._found()
        if not math.isfinite(trial.before) or not trial.judged:
            return
        given = self._subject.lr is not None
        if given or not trial.learns:
            self._run(0.1)
        if self._too_slow(trial) and self._look_up(trial):
            return
        if trial.doubtful:
            self._run(1.0, LONG)
            if not self._found().clear:
                self._run(0.1, LONG)
        if not trial.learns or trial.own_rises:
            self._run(0.01)
        trial = self._found()
        if trial.diverged or trial.own_rises:
            lower = trial.best_lower
            if lower is not None and trial.gap_of(lower) < trial.limits.doubtful:
                self._run(lower.factor, LONG)  # before it is said that no rate learns
        if trial.learns or trial.diverged or trial.rung(longest=True) is not trial.own:
            return
        if not any(f.warns and f.rule != "no-learning" for f in self._findings(trial)):
            tried = any(rung.factor > 1 for rung in trial.rungs)
            if not tried and not trial.own_rises and self._look_up(trial):
                return
            self._run(1.0, LONG)  # before it is said that it does not learn
            lower = trial.best_lower
            if lower is not None and not self._found().learns:
                self._run(lower.factor, LONG)

    def _too_slow(self, trial: Trial) -> bool:
        """Whether the loss stands still and no fact explains it."""
        still = -trial.limits.falls < trial.fall < trial.limits.falls
        if not still or trial.trained:
            return False
        return not any(f.warns and RULES[f.rule].order <= FACTS for f in self._findings(trial))

    def _look_up(self, trial: Trial) -> bool:
        """Whether it learns at the factor that should give a clear fall, or near it.

        Larger ones follow as long as they come lower.
        """
        aim = UP * trial.before / max(trial.before * trial.fall, UP * trial.before / LARGEST)
        factor = 10.0 ** round(math.log10(min(max(aim, 10.0), LARGEST)))
        line, tried = FALLEN * trial.reference, list[Rung]()
        one, lowest = factor, trial.before
        while one <= LARGEST and len(tried) < RUNGS and self._run(one):
            tried.append(self._rungs[-1])
            if tried[-1].after < line:
                return True
            worse, lowest = not tried[-1].after < lowest, min(lowest, tried[-1].after)
            if worse and (len(tried) > 1 or factor <= 10):
                break
            one = factor / 10 if worse else one * 10
        best = min(tried, key=lambda rung: rung.after, default=None)
        near = (trial.before + trial.reference) / 2  # half of the way: more updates may do it
        if best is None or not best.after < min(near, (1 - UP / 2) * trial.before):
            return False
        return self._run(best.factor, LONG) and self._rungs[-1].after < line

    def _findings(self, trial: Trial) -> Sequence[Any]:
        return findings_of({**self._results, "trial": trial}, settings_of(self._subject))

    def _found(self) -> Trial:
        before, constant, uniform = self._start or (math.nan, math.nan, math.nan)
        subject = self._subject
        lr, reason = subject.lr, ""
        if self._start is not None and not math.isfinite(before):
            reason = f"the loss is {before} before the first update"
        elif not self._rungs:
            reason = self._ended or "no trial was made"
        return Trial(
            lr=None if subject.own is not None and len(set(subject.own.rates)) > 1 else lr,
            constant=constant,
            uniform=uniform,
            before=before,
            rungs=tuple(self._rungs),
            batches=len(subject.practice),
            gradients=self._cost,
            seconds=time.monotonic() - self._began,
            ended=self._ended,
            reason=reason,
            left_out="; ".join(self._left_out),
            unmoved=self._unmoved,
            spread=self._spread,
            held=self._held,
            held_constant=self._held_constant,
            limitless=self._limitless and any(rung.after < 0 for rung in self._rungs),
            fresh=self._subject.samples >= ENOUGH and self._subject.further is not None,
            most=self._most,
            optimizer=_in_words(subject),
            assumed=None if lr is not None or subject.own is not None else ASSUMED[1],
        )

    def _run(
        self, factor: float, steps: int = STEPS, fresh: tuple[Kept, list[Batch]] | None = None
    ) -> bool:
        """One trial, if its time is left; whether it was made.

        ``fresh`` is other data to train on, and to judge on.
        """
        subject, first = self._subject, self._start is None
        if factor != 1 and subject.lr is None and subject.own is not None:
            return False  # an optimizer without a rate
        cost = cost_of(subject, steps, first=first)
        if self._cost + cost > subject.allowance.gradients or self._late():
            self._left_out.append(f"{steps} updates at {factor:g} times the rate")
            return False
        own = dict(subject.model.named_parameters())
        hooks = {name: [*(p._backward_hooks or {}).values()] for name, p in own.items()}
        with (
            held(),
            kept_gradients(_shared(subject)),
            Origin(subject.model, None).fresh(subject.seed) as model,
            interruptible(),
        ):
            start = self._judged_start(model)
            if not math.isfinite(start):
                return False
            for name, twin in model.named_parameters():
                for hook in hooks[name] if twin is not own[name] else ():
                    twin.register_hook(hook)  # type: ignore[no-untyped-call]
            source, others = fresh or (self._batches, subject.held_out)
            run, optimizer = self._trained(model, source, factor, steps)
            after, seen = (math.inf, _Seen()) if run.diverged else self._judged(model)
            held_out = self._judged(model, others)[0] if factor == 1 else math.nan
            if not self._rungs:
                self._unmoved = tuple(_unmoved(own, model, optimizer))
        path = tuple(run.losses.tolist())
        self._cost += cost_of(subject, run.updates, first=first)
        self._rungs.append(
            Rung(factor, steps, run.updates, start, after, path, run.reason, held_out, seen.spread,
                 fresh is not None)
        )  # fmt: skip
        return True

    def _trained(
        self, model: nn.Module, source: Kept, factor: float, steps: int
    ) -> tuple[TrainingRun, Optimizer]:
        """Train a copy at ``factor`` times the rate."""
        subject, optimizer = self._subject, _scaled(_optimizer(self._subject, model), factor)
        options = TrainingOptions(
            optimizer=lambda _: optimizer, steps=steps, seed=subject.seed, divergence=FINITE_ONLY
        )
        run = train(model, source, subject.objective, options, callbacks=[self._watch])
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        return run, optimizer

    def _late(self) -> bool:
        now, subject = time.monotonic(), self._subject
        return now > subject.deadline or now > self._began + OVERRUN * subject.allowance.seconds

    def _watch(self, event: Event) -> None:
        if event.kind == "step" and self._late():
            raise StopTraining(f"its time was up after {event.step} updates")

    def _judged_start(self, model: nn.Module) -> float:
        """The loss before the first update, measured once."""
        if self._start is None:
            value, seen = self._judged(model)
            self._spread, self._limitless = seen.spread, seen.limitless
            self._start = value, *self._constants(seen)
            if math.isfinite(value):
                self._held, further = self._judged(model, self._subject.held_out)
                self._held_constant = self._constants(further)[0]
        return self._start[0]

    def _constants(self, seen: _Seen) -> tuple[float, float]:
        """Loss of the best constant prediction, and of equal probabilities."""
        loss, pairs = self._subject.objective.loss, seen.pairs
        if not self._subject.objective.has_outputs:
            return _inner_constants(seen.losses, seen.calls)
        if any(t is None for _, t in pairs) or not pairs:
            return math.nan, math.nan
        return constant_loss(loss, pairs), uniform_loss(loss, pairs)

    def _judged(
        self, model: nn.Module, batches: Sequence[Batch] | None = None
    ) -> tuple[float, _Seen]:
        """The loss in train mode with the same noise each time; buffers are put back."""
        subject, device = self._subject, model_device(model)
        seen = _Seen()
        with (
            isolated_random(subject.seed + 1, device),
            kept_mode(model, training=True),
            torch.no_grad(),
            kept_buffers(model),
            interruptible(),
        ):
            watching = model.register_forward_hook(seen.look)
            for batch in subject.practice[: _num_judged(subject)] if batches is None else batches:
                calls = InnerCalls(lambda: None)
                with contextlib.nullcontext() if subject.objective.has_outputs else calls:
                    outputs, targets, loss = subject.objective.evaluated(
                        model, batch.copied().to(device)
                    )
                seen.losses.append(float(loss))
                seen.pairs.append((outputs, targets))
                seen.calls.append(calls.seen)
            watching.remove()
        values = seen.losses
        if not all(map(math.isfinite, values)):
            return math.inf, seen
        return (math.fsum(values) / len(values) if values else math.nan), seen


class _Seen:
    """What a few passes show.

    Attributes:
        losses: one for each batch.
        pairs: outputs and targets.
        calls: losses inside the user's own.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.calls: list[list[Any]] = []
        self._spreads: list[float] = []

    def look(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        """Called after a forward pass."""
        first = next((t for t in float_leaves(outputs) if t.ndim > 1), None)
        if first is not None and len(first) > 1:
            share, rms = spread(first)
            self._spreads.append(share * rms**2)

    @property
    def limitless(self) -> bool:
        """Whether targets are zeros and ones, and outputs are beyond them."""
        pairs = [(float_leaves(o)[:1], t) for o, t in self.pairs if isinstance(t, Tensor)]
        known = [
            (o[0], t) for o, t in pairs if o and o[0].shape == t.shape and t.is_floating_point()
        ]
        if not known or not all(bool(((t == 0) | (t == 1)).all()) for _, t in known):
            return False
        return any(bool(((o < 0) | (o > 1)).any()) for o, _ in known)

    @property
    def spread(self) -> float:
        """Variance of the model's outputs over the samples."""
        return max(self._spreads, default=math.nan)


def _apart(source: Source) -> tuple[Kept, list[Batch]]:
    """All of the data, as far as it is not too large, in two parts: one is not trained on."""
    read, size = list[Batch](), 0
    for batch in source.stream(FRESH):
        read.append(batch)
        size += sum(t.numel() * t.element_size() for t in tensors_in((batch.inputs, batch.targets)))
        if size > BYTES:
            break
    cut = max(JUDGED, len(read) // 10)
    return Kept(read[:-cut], source.reading), read[-cut:]


def _optimizer(subject: Subject, model: nn.Module) -> Optimizer:
    """The user's optimizer on a copy, at the rate asked about; Adam's own rate without one."""
    if subject.own is not None:
        made = subject.own.copied(model)
        rates = iter(subject.own.rates)
        other = made.param_groups[0].get("momentum") != subject.momentum  # momentum= was given
        for group in made.param_groups:
            if "lr" in group:
                group["lr"] = next(rates)
            if "momentum" in group and other:
                group["momentum"] = subject.momentum
            group.setdefault("lr", 1.0)  # a training sets it; this optimizer does not look at it
    else:
        name, lr = subject.training.optimizer, subject.lr
        if lr is None:
            name, lr = ASSUMED
        named = isinstance(name, str)
        momentum = subject.momentum if name == "sgd" else 0.0
        made = build_optimizer(model, name, lr if named else None, momentum=momentum)
    if subject.lr is not None and (base := float(made.param_groups[0].get("lr", 0.0))) > 0:
        made = _scaled(made, subject.lr / base)
    return made


def _scaled(optimizer: Optimizer, factor: float) -> Optimizer:
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = float(group["lr"]) * factor
    return optimizer


def optimizer_in_words(subject: Subject) -> str:
    """The optimizer with its rate, "SGD lr 0.1, momentum 0.9"; empty if none is known."""
    if subject.lr is None:
        return ""
    momentum = f", momentum {subject.momentum:g}" if subject.momentum else ""
    return f"{_in_words(subject)} lr {subject.lr:.3g}{momentum}"


def _in_words(subject: Subject) -> str:
    if subject.own is not None:
        return type(subject.own.optimizer).__name__
    chosen = ASSUMED[0] if subject.lr is None else subject.training.optimizer
    known = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
    return known.get(chosen, chosen) if isinstance(chosen, str) else subject.optimizer_name


def _unmoved(
    before: dict[str, nn.Parameter], model: nn.Module, optimizer: Optimizer
) -> Iterator[str]:
    """Trainable parameters that the optimizer holds, and that are what they were."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        same = parameter.requires_grad and id(parameter) in updated
        if same and torch.equal(parameter.detach(), before[name].detach().to(parameter.dtype)):
            yield name


def _shared(subject: Subject) -> list[nn.Parameter]:
    """What the copy shares with the user: parameters of the loss, and of other models."""
    groups = [] if subject.own is None else subject.own.optimizer.param_groups
    shared = [p for group in groups for p in group["params"]]
    for part in (*vars(subject.objective.loss).values(), subject.objective.loss_fn):
        owner = getattr(part, "__self__", part)
        shared += [*owner.parameters()] if isinstance(owner, nn.Module) else []
    return shared


def constant_loss(loss: Loss, seen: list[tuple[Any, Any]]) -> float:
    """Loss of the best constant prediction; NaN where that is not known.

    For other losses than cross-entropy and squares it is the best of a few constants.
    """
    few = isinstance(loss, CrossEntropy) and _labels(seen) < FEW * _classes(seen)
    found = math.nan if few else chance_loss(loss, seen)
    if not math.isnan(found) or few or not isinstance(seen[0][0], Tensor | Sequence):
        return found  # a loss that takes a dict cannot be given a tensor
    # a loss of the user's may take anything, and have parameters
    with contextlib.suppress(Exception), torch.no_grad():
        return min(_losses_of_constants(loss, seen), default=math.nan)
    return math.nan


def _losses_of_constants(loss: Loss, seen: list[tuple[Any, Any]]) -> Iterator[float]:
    first = float_leaves(seen[0][0])[0]
    targets = torch.cat([targets for _, targets in seen])
    for constant in _candidates(first, targets, getattr(loss, "ignored", -100)):
        values = []
        for given, wanted in seen:
            shown = constant.to(first.dtype).expand_as(float_leaves(given)[0])
            values.append(float(loss.value(shown, wanted)))
        if all(map(math.isfinite, values)):
            yield math.fsum(values) / len(values)


def _candidates(outputs: Tensor, targets: Tensor, ignored: int) -> Iterator[Tensor]:
    """Predictions that do not depend on the input, of which the best one counts."""
    if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
        classes = outputs.shape[1]
        valid = targets[(targets >= 0) & (targets < classes) & (targets != ignored)]
        if len(valid) < FEW * classes:
            return
        share = torch.bincount(valid, minlength=classes).double() / len(valid)
        yield share.clamp(min=1e-12).log().reshape(1, classes, *[1] * (outputs.ndim - 2))
    elif targets.shape[1:] == outputs.shape[1:]:
        values = targets.double()
        mean = values.mean(0, keepdim=True)
        yield mean
        yield values.median(0, keepdim=True).values
        if values.min() >= 0 and values.max() <= 1:
            yield mean.clamp(1e-6, 1 - 1e-6).logit()


def _inner_constants(losses: list[float], calls: list[list[Any]]) -> tuple[float, float]:
    """Loss of the best constant prediction, and of equal probabilities, of a loss inside another.

    Known where the user's loss is one plain torch loss, or a multiple of it.
    """
    if any(len(one) != 1 for one in calls) or not calls:
        return math.nan, math.nan
    kinds, options, outputs, targets = zip(*(one[0] for one in calls), strict=True)
    plain = all(
        o.get("reduction", "mean") == "mean"
        and not o.get("label_smoothing")
        and o.get("weight") is None
        and o.get("pos_weight") is None
        for o in options
    )
    factors = [loss / o["value"] for loss, o in zip(losses, options, strict=True) if o.get("value")]
    if not plain or len(factors) < len(losses) or max(factors) > 1.01 * min(factors):
        return math.nan, math.nan
    kind, factor, first = kinds[0], factors[0], outputs[0]
    if kind in ("cross_entropy", "nll") and first.ndim > 1:
        labels = torch.cat([t.reshape(-1) for t in targets])
        ignored = labels == options[0].get("ignore_index", -100)
        if labels.is_floating_point():
            return math.nan, math.nan
        labels, classes = labels[(labels >= 0) & ~ignored], first.shape[1]
        share = torch.bincount(labels).double() / max(len(labels), 1)
        constant = float(-torch.special.xlogy(share, share).sum())
        enough = len(labels) >= FEW * classes
        return (factor * constant if enough else math.nan), factor * math.log(classes)
    y = torch.cat([t.reshape(len(t), -1) for t in targets]).double() if targets[0].ndim else None
    if y is None or kind not in ("squared", "logits", "bernoulli"):
        return math.nan, math.nan
    mean = y.mean(0)
    if kind == "squared":
        return factor * float((y - mean).square().mean()), math.nan
    entropy = -torch.special.xlogy(mean, mean) - torch.special.xlogy(1 - mean, 1 - mean)
    return factor * float(entropy.mean()), factor * math.log(2)


def uniform_loss(loss: Loss, seen: list[tuple[Any, Any]]) -> float:
    """Loss of the same probability for every class; NaN where there are no classes."""
    if isinstance(loss, BernoulliLoss):
        return math.log(2)
    if not isinstance(loss, CrossEntropy):
        return math.nan
    count = sum(loss.num_samples(outputs) for outputs, _ in seen) / len(seen)
    return math.log(_classes(seen)) * (count if loss.summed else 1.0)


def _classes(seen: list[tuple[Any, Any]]) -> int:
    return int(float_leaves(seen[0][0])[0].shape[1])


def _labels(seen: list[tuple[Any, Any]]) -> int:
    return sum(float_leaves(o)[0].numel() // float_leaves(o)[0].shape[1] for o, _ in seen)
