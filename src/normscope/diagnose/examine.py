"""`examine`: measure, predict, compare, and say what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from normscope._version import __version__
from normscope.checks import checked_count, checked_positive, checked_seconds
from normscope.diagnose._curvature import descent
from normscope.diagnose.findings import answer_of, headline, judged, not_judged
from normscope.diagnose.planning import plan_of, timed_gradient
from normscope.diagnose.rules.signals import too_few
from normscope.diagnose.running import Run, carried_out, within_memory
from normscope.diagnose.settings import settings_of
from normscope.diagnose.steps import Measurement, steps_of
from normscope.diagnose.subject import POPULATION, Allowance, Subject, as_subject
from normscope.diagnose.trial import BATCHES, SECONDS, UPDATE
from normscope.messages import failure
from normscope.results import Examination, Plan
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.parameters import half_precision
from normscope.subject.process import measurement

Made = TypeVar("Made")
KEPT = {"fast": 1, "standard": 4, "full": 8}  # batches that are kept and looked at


@measurement
def examine(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    eval_data: Any = None,
    batch_size: int | None = None,
    num_batches: int | None = None,
    optimizer: Any = None,
    lr: float | None = None,
    momentum: float | None = None,
    preset: str = "fast",
    max_seconds: float | None = None,
    trial_seconds: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    after_step: Callable[[Examination], object] | None = None,
) -> Examination:
    """Say how sharp a network is, which learning rate it is stable at, and what its norms do.

    The model is left as it was, bit by bit. What cannot be measured is named with the reason; an
    interruption (Ctrl-C) gives what is known by then, with ``partial`` set. Meanwhile no other
    thread may use the model, nor draw from torch's default generator, whose numbers would repeat.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. A batch is what one training step sees.
        loss: ``"cross_entropy"`` (the default), ``"mse"``, ``"bce"`` (of scores, with the sigmoid
            inside), a torch loss or ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets), such as the dicts of Hugging Face: nothing is lost with it.
        eval_data: what the model is evaluated on, of any form that ``data`` may have: its loss
            stands beside that of ``data``, and data that was prepared in another way is found.
            Nothing is trained on it.
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: how many batches the measurements look at; by default 1, 4 and 8 in the
            presets fast, standard and full. Copies are trained on all of them.
        optimizer: a name (``"sgd"``), or your torch optimizer, whose learning rate and momentum
            are read.
        lr: the learning rate you train with, or plan to.
        momentum: SGD momentum.
        preset: ``"fast"``: sharpness, signals, alignment of gradients. ``"standard"`` adds
            conditioning, spectral density, regularization by batch norm, and what the theory
            predicts. ``"full"`` adds the stability limit by bisection and what-ifs.
        max_seconds: time limit; measurements that do not fit are skipped and listed.
        trial_seconds: time limit of the trial, which makes 25 to 250 updates of copies with your
            optimizer; by default 10 in fast, otherwise 60. It is decided from the time of one
            gradient; 0 leaves the trial out.
        device: measure there, on a copy.
        seed: seed for all random numbers.
        after_step: called after each measurement with what is known by then, such as
            ``lambda found: found.save("run.json")``: a run that is killed leaves that file.

    Returns:
        Findings, most severe first, with all measurements behind them.

    Example:
        >>> import normscope as ns
        >>> net = ns.network("mlp:64-32-32-10")
        >>> found = examine(net, "digits")
        >>> found["sharpness"].largest > 0
        True
    """
    began = time.monotonic()
    deadline = began + checked_seconds(max_seconds)
    measurements = steps_of(preset)
    seconds = _trial_seconds(trial_seconds, preset)
    subject = as_subject(
        model,
        data,
        loss,
        loss_fn=loss_fn,
        outputs_fn=outputs_fn,
        eval_data=eval_data,
        batch_size=batch_size,
        num_batches=_checked_number(num_batches, preset),
        population=POPULATION if num_batches is None else 0,
        practice=BATCHES if seconds else 0,
        optimizer=optimizer,
        lr=lr,
        momentum=momentum,
        device=device,
        seed=seed,
        deadline=deadline,
    )
    plan, subject, notes = _planned(subject, measurements, seconds)
    conditions = _conditions(subject)
    convention = {
        **settings_of(subject),
        "preset": preset,
        "max_seconds": max_seconds,
        "trial_seconds": seconds,
    }

    def found(run: Run, partial: str) -> Examination:
        settings = {**convention, "batch": run.samples}
        findings, failed = judged(run.results, settings)
        numbers = _tried(lambda: headline(run.results, settings), failed)
        cautions = _tried(lambda: too_few(run.results), failed)
        done = replace(plan, steps=tuple(run.ended_by(partial)))
        findings = (*not_judged(done, run.results, findings), *findings)
        return Examination(
            model=plan.model,
            answer=answer_of(findings, run.results, subject.lr, done.steps),
            numbers=numbers,
            findings=findings,
            measurements=dict(run.results),
            plan=done,
            convention=settings,
            seconds=time.monotonic() - began,
            partial=partial if any(s.missing for s in done.steps) else "",
            version=__version__,
            notes=(*conditions, *cautions, *notes, *run.notes, *failed),
        )

    def told(run: Run, partial: str) -> None:
        if after_step is not None:
            try:
                after_step(found(run, partial))
            except Exception as error:  # must not cost what was measured
                run.notes.append(f"after_step failed: {failure(error)}")

    run = carried_out(subject, measurements, plan, deadline, told)
    return found(run, run.partial)


@measurement
def plan_examination(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = None,
    preset: str = "fast",
    trial_seconds: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Plan:
    """What ``examine`` could measure, what not and why, and about how long it would take.

    Takes one gradient of the loss and one look at the layers.
    """
    measurements, seconds = steps_of(preset), _trial_seconds(trial_seconds, preset)
    subject = as_subject(
        model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, batch_size=batch_size,
        num_batches=_checked_number(num_batches, preset),
        population=POPULATION if num_batches is None else 0,
        practice=BATCHES if seconds else 0, device=device, seed=seed,
    )  # fmt: skip
    return _planned(subject, measurements, seconds)[0]


def _trial_seconds(seconds: float | None, preset: str) -> float:
    if seconds is None or seconds == 0:
        return SECONDS[preset] if seconds is None else 0.0
    return checked_positive(seconds, "trial_seconds")


def _checked_number(num_batches: int | None, preset: str) -> int:
    return KEPT[preset] if num_batches is None else checked_count(num_batches, "num_batches")


def _tried(make: Callable[[], Iterable[Made]], failed: list[str]) -> tuple[Made, ...]:
    """What it makes; where it fails a note, as no error may cost what was measured."""
    try:
        return tuple(make())
    except Exception as error:
        failed.append(f"Some of what was measured could not be summed up: {failure(error)}")
        return ()


def _conditions(subject: Subject) -> list[str]:
    """What differs between model, data and optimizer as they are and as they were taken."""
    model, notes = subject.model, list(subject.notes)
    if (obstacle := descent(subject).obstacle) != "":
        notes.append(f"There is no local threshold of the learning rate: {obstacle}.")
    if half := half_precision(model):
        notes.append(f"The model is in {half}; it was measured in float32.")
    if not model.training:
        notes.append("The model is in evaluation mode; it was measured in train mode.")
    return notes


def _planned(
    subject: Subject, measurements: list[Measurement], trial_seconds: float
) -> tuple[Plan, Subject, list[str]]:
    """The plan, the subject it fits in memory with, and what to know of that."""

    def made(subject: Subject) -> tuple[Plan, Allowance]:
        seconds = timed_gradient(subject)
        allowed = Allowance(trial_seconds, UPDATE * seconds / len(subject.batches))
        return plan_of(replace(subject, allowance=allowed), measurements, seconds), allowed

    (plan, allowed), fitting, notes = within_memory(subject, "the first gradient", made)
    return plan, replace(fitting, allowance=allowed), notes
