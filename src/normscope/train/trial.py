"""One training run as a trial of a sweep: plain settings in, a record out."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.data import checksum, load_data
from normscope.data.dataset import DataSet
from normscope.errors import InputError
from normscope.nn import build, network
from normscope.record import Record
from normscope.registry import check_choice
from normscope.spec import NetworkSpec
from normscope.spec.names import ARCHITECTURES, OWN_OPTIONS
from normscope.spec.names import network as named_spec
from normscope.subject.objective import as_objective
from normscope.sweeps import Trial
from normscope.train.evaluate import evaluate
from normscope.train.loop import fit
from normscope.train.options import TrainingOptions
from normscope.train.stability.judge import chance_loss

TRAINED = ("all", "weights")
# settings that are arguments of a network of a spec, and those of them that the zoo takes too
ZOO_OPTIONS = ("norm", "gamma", "activation")
SPEC_OPTIONS = (
    *(*ZOO_OPTIONS, "weight_variance", "bias_variance", "last_norm"),
    *(option for own in OWN_OPTIONS.values() for option in own),
)


@dataclass(frozen=True, eq=False)
class TrialRun(Record):
    """What one training run of a sweep came to.

    Attributes:
        diverged: the loss broke the divergence rule.
        diverged_at: number of updates made by then; None if it did not.
        reason: how it ended, in words where that is not plain.
        updates: number of updates made.
        initial_loss: loss of the first mini-batch.
        final_loss: mean over the mini-batches of the last quarter; the last one if it diverged.
        test_loss: in evaluation mode after the last update; NaN if it diverged.
        test_accuracy: likewise; NaN if it diverged.
        chance: test loss of the best constant answer.
        learned: it did not diverge, and the test loss is below chance.
    """

    diverged: bool
    diverged_at: int | None
    reason: str
    updates: int
    initial_loss: float
    final_loss: float
    test_loss: float
    test_accuracy: float
    chance: float
    learned: bool


def training_trial(
    *,
    network: str,
    data: str,
    lr: float,
    loss: str = "cross_entropy",
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 128,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
    samples: int | None = None,
    test_samples: int | None = None,
    standardize: str = "channel",
    trained: str = "all",
    norm: str | None = None,
    gamma: float | None = None,
    activation: str = "relu",
    weight_variance: float | None = None,
    bias_variance: float | None = None,
    last_norm: str | None = None,
    kernel: int | None = None,
    stride: int | None = None,
    padding: int | None = None,
    outputs: int | None = None,
    head: str | None = None,
    branch_scale: float | None = None,
    seed: int = 0,
    device: str | None = None,
    data_checksum: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> TrialRun:
    """Train a network by name and evaluate it on the test split.

    Args:
        network: ``"mlp:784-1000-10"``, ``"cnn:3x32x32:30-60-90"`` or ``"resmlp:500x4-10"``, with
            the variances that follow, or a network of the zoo such as ``"resnet20"``.
        data: name of a data set.
        lr: learning rate.
        loss: ``"cross_entropy"`` or ``"mse"``.
        steps: updates; or pass ``epochs``.
        epochs: passes over the training samples.
        batch_size: samples in a batch.
        optimizer: as in ``fit``.
        momentum: momentum of sgd.
        weight_decay: as in torch.
        schedule: how the learning rate changes, as in ``fit``.
        samples: so many training samples, the same ones for every seed; None is all.
        test_samples: so many test samples; None is all.
        standardize: as in ``load_data``.
        trained: ``"all"`` parameters, or ``"weights"`` without biases, gamma and beta.
        norm: norm of all hidden layers.
        gamma: the norm's initial gain.
        activation: activation of all hidden layers.
        weight_variance: weights are N(0, this / fan-in), 2 by default; networks of a spec only.
        bias_variance: biases are N(0, this), 0 by default; networks of a spec only.
        last_norm: on the outputs; networks of a spec only.
        kernel: side of the kernels of a cnn.
        stride: stride of the convolutions of a cnn.
        padding: zeros on every side of a cnn's maps.
        outputs: number of classes of a cnn.
        head: ``"flatten"`` or ``"pool"`` before the last layer of a cnn.
        branch_scale: factor of the branches of a resmlp.
        seed: seed of the weights and of the order of the samples.
        device: where to train.
        data_checksum: what ``checksum_of`` gave; other data are refused.
        checkpoint: file for the state of a run that takes over a minute.
    """
    given = {k: v for k, v in locals().items() if k in SPEC_OPTIONS and v is not None}
    training, testing = _data(data, standardize, samples, test_samples)
    found = _checksum(data, standardize, samples, test_samples)
    if data_checksum is not None and data_checksum != found:
        raise InputError(
            f"The data set {data!r} has the checksum {found} on this machine. The sweep was begun "
            f"with {data_checksum}."
        )
    model = _network(network, given, seed, trained)
    run = fit(
        model, training, loss, lr=lr, optimizer=optimizer, momentum=momentum,
        weight_decay=weight_decay, steps=steps, epochs=epochs, batch_size=batch_size,
        schedule=schedule, device=device, seed=seed, checkpoint=checkpoint, checkpoint_every=0,
    )  # fmt: skip
    if run.outcome == "interrupted":
        raise KeyboardInterrupt
    judged = None if run.diverged else evaluate(model, testing, loss, batch_size=1000)
    chance = _chance(loss, testing)
    test_loss = judged.loss if judged else math.nan
    final = run.losses[-1 if run.diverged else -max(1, run.updates // 4) :]
    return TrialRun(
        diverged=run.diverged,
        diverged_at=run.diverged_at,
        reason=run.reason,
        updates=run.updates,
        initial_loss=run.initial_loss,
        final_loss=float(np.mean(final)),
        test_loss=test_loss,
        test_accuracy=math.nan if judged is None or judged.accuracy is None else judged.accuracy,
        chance=chance,
        learned=test_loss < chance,
    )


def checksum_of(settings: dict[str, Any]) -> str:
    """A checksum of the training and test samples that a trial with these settings uses."""
    return _checksum(*_source(settings))


def spec_of(settings: dict[str, Any]) -> NetworkSpec | None:
    """The spec of the network of a trial; None for a network of the zoo."""
    if settings["network"].partition(":")[0] not in ARCHITECTURES:
        return None
    options = {k: settings[k] for k in SPEC_OPTIONS if settings.get(k) is not None}
    return named_spec(settings["network"], options, given=options)


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse what no trial could be run with: network, data, their shapes, optimizer, length."""
    TRAINING.check(settings)
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    options = TrainingOptions(**{k: v for k, v in settings.items() if k in names})
    options.require_length()
    as_objective(settings.get("loss", "cross_entropy"), None, None)
    chosen = {k: v for k, v in settings.items() if k in SPEC_OPTIONS}
    model = _network(settings["network"], chosen, 0, settings.get("trained", "all"))
    options.build_optimizer(model)
    training, _ = _data(*_source(settings))
    evaluate(model, training.subset(min(2, len(training))), settings.get("loss", "cross_entropy"))


def _fingerprint(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"checksum of {settings['data']}": checksum_of(settings)}


TRAINING = Trial(training_trial, version=1, fingerprint=_fingerprint)


def _network(name: str, options: dict[str, Any], seed: int, trained: str) -> nn.Module:
    check_choice("set of trained parameters", trained, TRAINED)
    spec = spec_of({"network": name, **options})
    if spec is not None:
        model = build(spec, seed)
    else:
        foreign = [option for option in options if option not in ZOO_OPTIONS]
        if foreign:
            raise InputError(
                f"{foreign[0]} is a setting of mlp:, cnn: and resmlp: networks. Got {name!r}."
            )
        usual = {"activation": "relu"}
        chosen = {k: v for k, v in options.items() if usual.get(k) != v}
        model = network(name, seed=seed, **chosen)
    if trained == "weights":
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.ndim > 1)
    return model


def _source(settings: dict[str, Any]) -> tuple[str, str, int | None, int | None]:
    how = settings.get("standardize", "channel")
    return settings["data"], how, settings.get("samples"), settings.get("test_samples")


@functools.lru_cache(maxsize=4)
def _data(name: str, how: str, samples: int | None, test: int | None) -> tuple[DataSet, DataSet]:
    """Both splits, read once in each process."""
    splits = load_data(name, "train", standardize=how), load_data(name, "test", standardize=how)
    sizes = (samples, test)
    made = [s if n is None else s.subset(n) for s, n in zip(splits, sizes, strict=True)]
    return made[0], made[1]


@functools.lru_cache(maxsize=4)
def _checksum(name: str, how: str, samples: int | None, test: int | None) -> str:
    value = 0
    for split in _data(name, how, samples, test):
        for part in (split.images, split.labels):
            value = checksum(part, value)
    return f"{value:08x}"


def _chance(loss: str, data: DataSet) -> float:
    outputs = torch.zeros(len(data), data.num_classes)
    return chance_loss(as_objective(loss, None, None).loss, [(outputs, data.labels)])
