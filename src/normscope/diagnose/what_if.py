"""`what_if`: the same measurements on changed copies of a network."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from normscope.checks import checked_count, checked_list, checked_seconds
from normscope.diagnose._curvature import descent, largest_curvature
from normscope.diagnose._optimizers import Remade
from normscope.diagnose._training_runs import TrainingRuns
from normscope.diagnose.steps import probed
from normscope.diagnose.subject import Subject, as_subject
from normscope.errors import InputError, NormscopeError
from normscope.measure.probes.conditioning import conditioning
from normscope.measure.probes.layout import norm_layout
from normscope.measure.progress import progress
from normscope.messages import said
from normscope.results import Layout
from normscope.results.what_if import BEFORE, PAIRS, Variant, WhatIf
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.parameters import half_precision
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.statistics import in_words
from normscope.subject.transforms import Transform, apply_transform
from normscope.train.run import INTERRUPTED
from normscope.train.stability.trials import SearchEnded

SHARE = 0.8  # of the directions that kappa counts
STEPS = 50  # number of updates of a training run
WIDE = 0.1  # relative width of a bisected interval
USED_UP = "max_seconds are used up"
SMALL_BATCH = 16  # samples below which batch statistics are poor
SMALL_GAMMA = 0.1  # is tried where gamma is larger, up to 1; above it half of gamma
Change = str | Transform | Sequence[str | Transform]


@measurement
def what_if(
    model: nn.Module,
    data: Any,
    changes: Sequence[Change] | None = None,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    optimizer: Any = None,
    momentum: float | None = None,
    limits: bool = True,
    steps: int = STEPS,
    num_seeds: int = 1,
    tol: float = WIDE,
    max_seconds: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> WhatIf:
    r"""What named changes would do to a network: curvature, stable learning rates, conditioning.

    Every change is made to a copy of the model as it is; the copies are measured alike and, with
    ``limits``, trained to find at which learning rates each is stable. lambda_max of the start
    and that limit need not change alike: a change that lowers the curvature 100 times may leave the
    measured limit where it was, or raise it far more. Both ratios are given, and where they differ
    by more than 3 the result says so.

    Args:
        model: any module; left as it was, bit by bit.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. Copies are trained on all of it.
        changes: transforms by name (``"norm-before-last"``, ``"gamma=0.1"``, ``"remove-norms"``,
            ... ``TRANSFORMS`` lists them), a ``Transform``, or a list of several to be made in
            turn. None takes ``promising_changes``.
        loss: ``"cross_entropy"`` (the default), ``"mse"``, a torch loss or
            ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets), such as the dicts of Hugging Face: nothing is lost with it.
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: how many of the first batches curvature and conditioning are measured on; None
            for all.
        optimizer: a name, a function of the parameters, or your torch optimizer.
        momentum: SGD momentum.
        limits: whether to train copies; without, it takes some twenty gradients per change.
        steps: number of updates of a training run.
        num_seeds: orders of the samples to train with; the intervals of the limits span them. At
            its best rate every network is trained with at least three, for a comparison of losses.
        tol: relative width of the intervals of the limits.
        max_seconds: time limit; training runs that do not fit are skipped and listed.
        device: measure there, on a copy.
        seed: seed for all random numbers; training runs use it and the next ones,
            at least three in all.

    Returns:
        The network as it is, then one row per change. A change that cannot be made has a row with
        the reason; if none can be made, an error says why.

    Example:
        >>> import normscope as ns
        >>> net = ns.network("mlp:64-32-32-10")
        >>> found = what_if(net, "digits", ["gamma=0.1"], limits=False)
        >>> found["gamma=0.1"].lambda_max < found.before.lambda_max
        True
    """
    deadline = time.monotonic() + checked_seconds(max_seconds)
    subject = as_subject(
        model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, batch_size=batch_size,
        num_batches=num_batches, optimizer=optimizer,
        momentum=momentum, device=device, seed=seed, deadline=deadline,
    )  # fmt: skip
    return tabled(
        subject, changes, limits=limits, steps=steps, num_seeds=num_seeds, tol=tol,
        max_seconds=max_seconds,
    )  # fmt: skip


def tabled(
    subject: Subject,
    changes: Sequence[Change] | None,
    *,
    limits: bool = True,
    steps: int = STEPS,
    num_seeds: int = 1,
    tol: float = WIDE,
    max_seconds: float | None = None,
) -> WhatIf:
    """``what_if`` for a subject that was read before, until its deadline."""
    began = time.monotonic()
    seeds = tuple(subject.seed + i for i in range(checked_count(num_seeds, "num_seeds")))
    runs = TrainingRuns(subject, steps, seeds, tol, subject.deadline)
    chosen = _listed(changes, subject)
    how = runs if limits else None
    with progress("changes", len(chosen) + 1) as tick:
        variants = [_variant(subject, None, how)]
        for change in chosen:
            tick()
            over = INTERRUPTED if INTERRUPTED in variants[-1].ended else ""
            if not over and time.monotonic() > subject.deadline:
                over = USED_UP
            made = Variant(_text(change), reason=over, ended=over)
            variants.append(made if over else _variant(subject, change, how))
    _refuse_nothing(variants[1:])
    half = half_precision(subject.model)
    return WhatIf(
        tuple(variants),
        time.monotonic() - began,
        {
            "loss": subject.objective.loss.description,
            "statistics": in_words(subject.model, "batch"),
            "parameters": "all trainable",
            **subject.source.convention,
            "seed": subject.seed,
            "optimizer": subject.optimizer_name,
            "momentum": subject.momentum,
            "steps": steps if limits else None,
            "seeds": list(seeds),
            "tol": tol,
            "batch": subject.samples,
            "max_seconds": max_seconds,
            **({"precision": f"float32 (the model is in {half})"} if half else {}),
        },
    )


def promising_changes(layout: Layout, *, samples: int | None = None) -> tuple[str, ...]:
    """The changes worth a look, given where a network is normalized.

    A norm before the last layer where its inputs have none of their own, on the outputs where they
    have none; a smaller gamma where there are norms; another norm where the batch is too small
    for batch statistics; smaller weights where there are no norms.

    Args:
        layout: where its layers and norms are.
        samples: number of samples in a batch, if known.
    """
    used = [norm for norm in layout.norms if norm.used]
    names = []
    if layout.output_norm is None:
        names += [*layout.before_last, "norm-output"]
    gamma = max((norm.gamma for norm in used), default=0.0)
    if gamma > SMALL_GAMMA:
        names.append(f"gamma={0.5 * gamma if gamma > 1 else SMALL_GAMMA:.2g}")
    if samples is not None and samples < SMALL_BATCH and any(n.over_batch for n in used):
        names.append("replace:batch->group")
    if not used:
        names.append("scale-weights=0.5")
    return tuple(names)


def _listed(changes: Sequence[Change] | None, subject: Subject) -> list[Change]:
    if changes is None:
        return [*promising_changes(probed(subject, norm_layout), samples=subject.samples)]
    if isinstance(changes, str | Transform):
        return [changes]
    found = checked_list(changes, "changes")
    if not found:
        raise InputError(
            "changes is empty: name at least one, such as 'norm-before-last', or leave it out for "
            "the promising ones."
        )
    for change in found:
        _text(change)  # what is no change is refused before anything is measured
    return found


def _variant(subject: Subject, change: Change | None, runs: TrainingRuns | None) -> Variant:
    if change is None:  # an error here is one of the input, for the user to see
        return _measured(subject, BEFORE, runs)
    text = _text(change)
    try:
        inputs = subject.first().risk().function().model_inputs(subject.batches[0])
        model = apply_transform(subject.model, change, example=inputs, data=subject.problem)
        changed = subject.of(model)
        optimizer = subject.training.optimizer
        if isinstance(optimizer, Remade):
            remade = replace(subject.training, optimizer=optimizer.of_changed(changed.model))
            changed = replace(changed, training=remade)
        how = None if runs is None else replace(runs, subject=changed)
        return _measured(changed, text, how)
    except KeyboardInterrupt:
        return Variant(text, reason=INTERRUPTED, ended=INTERRUPTED)
    except Exception as error:  # whatever a changed network raises: its row says so
        return Variant(text, reason=said(error))


def _measured(subject: Subject, text: str, runs: TrainingRuns | None) -> Variant:
    curvature = largest_curvature(subject)
    kappa, layer, reason = _worst(subject)
    found = Variant(
        change=text,
        loss=subject.risk().value(),
        lambda_max=curvature.largest,
        lambda_error=float(curvature.bounds[0]),
        threshold=descent(subject).threshold(curvature)[0],
        kappa=kappa,
        kappa_layer=layer,
        reason=reason,
    )
    return found if runs is None else _trained(found, runs)


def _worst(subject: Subject) -> tuple[float, str, str]:
    """Largest kappa_80% of the hidden layers, where it is, and why there is none."""
    try:
        found = probed(subject, conditioning)
    except NormscopeError as error:
        return math.nan, "", f"no conditioning: {said(error)}"
    layers = found.layers[:-1] or found.layers  # the last one is singular under softmax
    worst = max(layers, key=lambda layer: layer.fisher.kappa(SHARE))
    return worst.fisher.kappa(SHARE), worst.name, ""


def _trained(found: Variant, runs: TrainingRuns) -> Variant:
    if runs.seconds is not None and runs.seconds <= 0:
        return _noted(replace(found, ended=USED_UP), USED_UP)
    try:
        limit = runs.limit()
    except NormscopeError as error:
        return _noted(found, f"no limit: {said(error)}")
    # A bisection trains next to the limits, where networks learn badly or not at all.
    race = runs.race(limit, steps=runs.steps)
    sound = [t for t in (*limit.trials, *race.trials) if not t.diverged]
    best = min(sound, key=lambda t: (not t.learned, t.final), default=None)
    one, other = limit.diverges, limit.does_not_learn
    found = replace(found, ended=race.ended, diverges=one, does_not_learn=other)
    if best is not None:
        found = replace(found, learned=best.learned, reached=best.final, reached_lr=best.lr)
        found = found if race.ended else _repeated(found, runs)
    return _noted(found, *dict.fromkeys([one.reason, other.reason]))


def _repeated(found: Variant, runs: TrainingRuns) -> Variant:
    """The same with its losses at the best rate, one per seed, as many as time allows."""
    bench = runs.bench(steps=runs.steps, tick=lambda: None)
    first, ended = runs.subject.seed, ""
    try:
        for seed in range(first, first + max(PAIRS, len(runs.seeds))):
            bench.run(found.reached_lr, seed)
    except (SearchEnded, KeyboardInterrupt) as signal:
        ended = str(signal) or INTERRUPTED
    finals = tuple(math.inf if t.diverged else t.final for t in bench.trials)
    return replace(found, finals=finals, ended=ended)


def _noted(found: Variant, *notes: str) -> Variant:
    return replace(found, reason="; ".join(filter(None, [found.reason, *notes])))


def _refuse_nothing(after: Sequence[Variant]) -> None:
    if after and not any(v.made or v.ended for v in after):
        reasons = " ".join(f"{v.change}: {v.reason}" for v in after)
        raise InputError(f"None of the changes could be made. {reasons}")


def _text(change: Change) -> str:
    alone = isinstance(change, str | Transform)
    several = [change] if alone else checked_list(change, "A change")
    return ", ".join(one.text if isinstance(one, Transform) else str(one) for one in several)
