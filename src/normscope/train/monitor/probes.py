"""What is read off a training at a step: updates, signals, and the input of the last layer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import InputError
from normscope.measure.probes.moments import ChannelMoments, SecondMoment
from normscope.measure.probes.sites import ACTIVATION, LINEAR, Site
from normscope.measure.probes.spectra import moment_spectrum, rounding_share
from normscope.registry import Registry
from normscope.results.eigenvalues import MomentSpectrum

Readings = Iterable[tuple[str, str, float]]  # layer, quantity, value


@dataclass(frozen=True)
class Update:
    """One step of one optimizer.

    Attributes:
        step: steps that it made before.
        layers: the weights it holds, by layer: parameters of two or more dimensions, or all
            parameters of a layer that has only others (gamma and beta of a norm layer).
        closure: whether gradients are computed inside the step (as LBFGS does).
        scale: what gradients are multiplied by, if the optimizer itself takes that out.
        optimizer: the one that makes it.
    """

    step: int
    layers: dict[str, list[nn.Parameter]]
    closure: bool = False
    scale: float = 1.0
    optimizer: Optimizer | None = None

    def gradients(self) -> dict[str, list[Tensor]]:
        """Of the weights at this moment, by layer; those that have none are left out."""
        found = {
            name: [_dense(p.grad) for p in weights if p.grad is not None]
            for name, weights in self.layers.items()
        }
        return {name: some for name, some in found.items() if some}


class MonitorProbe(ABC):
    """Reads numbers off a training; told of signals only on steps that are recorded.

    It must not change what it is given. A probe that raises is reported once, and the training
    goes on.
    """

    watches: ClassVar[tuple[str, ...]] = ()  # kinds of sites; none if it needs no signals
    meaning: ClassVar[dict[str, str]] = {}  # of its quantities

    def entering(self, site: Site, x: Tensor) -> None:  # noqa: B027 - most need one of these
        """``x`` is about to go into the operation at ``site``, in train mode."""

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:  # noqa: B027
        """``out`` came out of it."""

    def returned(self) -> None:  # noqa: B027
        """A forward pass in train mode has ended."""

    def stepping(self, update: Update) -> None:  # noqa: B027
        """The optimizer is about to change the weights (probes without ``watches``)."""

    @abstractmethod
    def readings(self, update: Update) -> Readings:
        """(layer, quantity, value) of the step that was made; what was seen is then forgotten."""


class UpdateProbe(MonitorProbe):
    """Sizes of weights, gradients and updates of every layer."""

    meaning: ClassVar[dict[str, str]] = {
        "weight_norm": "norm of the weights before the step",
        "gradient_norm": "norm of their gradient as the optimizer sees it",
        "gradient_ratio": "gradient norm / weight norm",
        "update_ratio": "norm of the change of the weights / weight norm; 1e-3 is usual",
    }

    def __init__(self) -> None:
        self._before: dict[str, list[Tensor]] = {}
        self._gradients: dict[str, float] = {}

    def stepping(self, update: Update) -> None:
        self._before = {n: [p.detach().clone() for p in ps] for n, ps in update.layers.items()}
        self._gradients = {} if update.closure else _norms(update.gradients())

    def readings(self, update: Update) -> Readings:
        gradients = _norms(update.gradients()) if update.closure else self._gradients
        weights = _norms(self._before)
        pairs = {n: zip(ps, self._before[n], strict=True) for n, ps in update.layers.items()}
        moved = _norms({n: [p.detach() - old for p, old in both] for n, both in pairs.items()})
        self._before = {}
        for name, weight in weights.items():
            yield name, "weight_norm", weight
            yield name, "update_ratio", _ratio(moved[name], weight)
            if name in gradients:
                gradient = gradients[name] / update.scale
                yield name, "gradient_norm", gradient
                yield name, "gradient_ratio", _ratio(gradient, weight)


class ActivationProbe(MonitorProbe):
    """Mean, variance and dead units behind every activation."""

    watches: ClassVar[tuple[str, ...]] = (ACTIVATION,)
    meaning: ClassVar[dict[str, str]] = {
        "activation_mean": "mean over samples, positions and units",
        "activation_variance": "variance over samples, positions and units",
        "dead_fraction": "share of units that are zero for every sample of the step",
    }
    rectifiers: ClassVar[tuple[str, ...]] = ("relu", "relu6", "threshold")

    def __init__(self) -> None:
        self._moments: dict[str, ChannelMoments] = {}
        self._alive: dict[str, Tensor] = {}

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        rows = site.rows(out if out.dtype in (torch.float32, torch.float64) else out.float())
        mean = rows.mean((0, 1))
        # torch.var is one number at a time on a CPU, sixty times slower than two passes
        spread = torch.linalg.vector_norm(rows - mean, dim=(0, 1))
        moments = self._moments.setdefault(site.name, ChannelMoments())
        count = rows.shape[0] * rows.shape[1]
        moments.merge(count, mean.double().cpu(), spread.double().square().cpu())
        if site.operation in self.rectifiers:
            alive = ~(rows.amax((0, 1)) <= 0).cpu()  # NaN is not zero
            before = self._alive.get(site.name)
            self._alive[site.name] = alive if before is None else alive | before

    def readings(self, update: Update) -> Readings:
        for name, moments in self._moments.items():
            yield name, "activation_mean", float(moments.mean.mean())
            spread = moments.variance.mean() + moments.mean.var(correction=0)
            yield name, "activation_variance", float(spread)
            if name in self._alive:
                yield name, "dead_fraction", float((~self._alive[name]).double().mean())
        self._moments, self._alive = {}, {}


class LastLayerProbe(MonitorProbe):
    """How well conditioned the input of the last linear layer is (Huang et al. 2020)."""

    watches: ClassVar[tuple[str, ...]] = (LINEAR,)
    meaning: ClassVar[dict[str, str]] = {
        "last_input_lambda_max": "largest eigenvalue of E[x x^T], x the input of the last linear",
        "last_input_kappa_50": "lambda_max over the eigenvalue in the middle",
        "last_input_kappa_80": "lambda_max over the eigenvalue with 80 % of them above it",
    }
    largest = 1024  # eigenvalues; an eigenvalue problem of this size takes a tenth of a second

    def __init__(self) -> None:
        self._latest: tuple[str, Tensor] | None = None
        self._rows: list[Tensor] = []
        self._moment = SecondMoment()
        self._name = ""

    def entering(self, site: Site, x: Tensor) -> None:
        self._latest = (site.name, site.rows(x).flatten(0, 1))

    def returned(self) -> None:
        if self._latest is None:
            return
        (self._name, rows), self._latest = self._latest, None
        self._rows.append(rows)
        # Fewer rows than entries stay as they are: their Gram matrix is the smaller one.
        if sum(map(len, self._rows)) >= rows.shape[1]:
            self._fold()

    def _fold(self) -> None:
        if self._rows:
            self._moment.add(torch.cat(self._rows))
        self._rows = []

    def readings(self, update: Update) -> Readings:
        try:
            yield from self._spectrum()
        finally:
            self._rows, self._moment = [], SecondMoment()

    def _spectrum(self) -> Readings:
        if not self._rows and not self._moment.count:
            return
        if self._moment.count:
            self._fold()
            matrix, width = self._moment.matrix(), len(self._moment.mean)
        else:
            rows = torch.cat(self._rows).double()
            matrix, width = rows @ rows.T / len(rows), rows.shape[1]
        if len(matrix) > self.largest:
            raise InputError(
                f"the input of {self._name!r} has {width} entries, and its spectrum takes "
                f"{len(matrix)} eigenvalues, above the limit of {self.largest} on every step"
            )
        names = list(self.meaning)
        if not bool(matrix.isfinite().all()):
            yield from ((self._name, name, math.nan) for name in names)
            return
        found = moment_spectrum(matrix)
        values = np.concatenate([found.values, np.zeros(width - len(found.values))])
        spectrum = MomentSpectrum.of(values, rtol=rounding_share(width, torch.float32))
        yield self._name, names[0], spectrum.largest
        for name, share in zip(names[1:], (0.5, 0.8), strict=True):
            yield self._name, name, spectrum.kappa(share)


# name -> probe
PROBES: Registry[Callable[[], MonitorProbe]] = Registry(
    "monitor probe",
    {"updates": UpdateProbe, "activations": ActivationProbe, "last_layer": LastLayerProbe},
)


def as_probes(probes: Any) -> dict[str, MonitorProbe]:
    """The probes that a user named, each under its name."""
    alone = isinstance(probes, str | MonitorProbe) or not isinstance(probes, Iterable)
    several: Sequence[Any] = [probes] if alone else list(probes)
    if not several:
        raise InputError("probes is empty: nothing would be recorded. Leave it out for all.")
    found: dict[str, MonitorProbe] = {}
    for probe in several:
        if probe == "sharpness":
            raise InputError(
                "The probe 'sharpness' needs data and a loss. Pass it as SharpnessProbe(ns.Risk("
                "model, inputs, targets, loss=..., statistics='batch')), of normscope.train."
            )
        if isinstance(probe, str):
            found[probe] = PROBES[probe]()
        elif isinstance(probe, MonitorProbe):
            name = type(probe).__name__
            found[name if name not in found else f"{name} {len(found) + 1}"] = probe
        else:
            raise InputError(
                f"A probe is a name ({', '.join(PROBES)}) or a MonitorProbe. Got {probe!r}."
            )
    return found


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _norms(tensors: dict[str, list[Tensor]]) -> dict[str, float]:
    """Norm of each group, read from the device in one go."""
    if not tensors:
        return {}
    norms = [
        torch.stack([torch.linalg.vector_norm(t.detach(), dtype=_wide(t)) for t in group]).norm()
        for group in tensors.values()
    ]
    return dict(zip(tensors, torch.stack([n.double() for n in norms]).tolist(), strict=True))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype.itemsize < 4 else tensor.dtype


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return math.nan if above == 0 else math.inf
    return above / below


def quantities(probes: Iterable[MonitorProbe]) -> Iterator[tuple[str, str]]:
    """What each quantity of ``probes`` means."""
    for probe in probes:
        yield from probe.meaning.items()
