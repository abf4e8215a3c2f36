"""Sharpness along a training run, beside the value that the optimizer is stable at."""

from __future__ import annotations

import math

import torch

from normscope.checks import checked_count
from normscope.errors import InputError, MeasurementError
from normscope.measure import fisher, hessian
from normscope.measure.risk import Risk, checked_risk
from normscope.measure.spectral import top_eigenvalues
from normscope.registry import check_choice
from normscope.train.monitor.probes import MonitorProbe, Readings, Update

MATRICES = {"hessian": hessian, "fisher": fisher}


class SharpnessProbe(MonitorProbe):
    """Largest eigenvalue of the Hessian on fixed batches, before each recorded step.

    It is the number that ``top_eigenvalues(hessian(risk))`` gives at that moment. Weight decay is
    no part of it.

    Args:
        risk: the model that is trained with data, loss and ``statistics`` (``"batch"`` is train
            mode, ``"running"`` evaluation mode). It follows the model as it trains.
        matrix: ``"hessian"``, or ``"fisher"``: the Gauss-Newton matrix, as ``examine`` measures.
        tol: relative error, as in ``top_eigenvalues``.
        seed: as in ``top_eigenvalues``.
        every: measure on recorded steps whose number is a multiple of it.

    Example:
        >>> net = torch.nn.Linear(3, 1)
        >>> x, y = torch.eye(3), torch.ones(3, 1)
        >>> risk = Risk(net, x, y, loss="mse", statistics="batch")
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        >>> from normscope.train import Monitor
        >>> with Monitor(net, every=1, probes=SharpnessProbe(risk)) as monitor:
        ...     (net(x) - y).square().mean().backward()
        ...     optimizer.step()
        >>> [round(float(s.values[0]), 4) for s in monitor.result().series]
        [1.3333, 7.6]
    """

    def __init__(
        self,
        risk: Risk,
        *,
        matrix: str = "hessian",
        tol: float = 1e-3,
        seed: int = 0,
        every: int = 1,
    ) -> None:
        check_choice("matrix", matrix, MATRICES)
        self._risk, self._matrix = checked_risk(risk, "SharpnessProbe"), MATRICES[matrix]
        self._options = {"tol": tol, "seed": seed}
        self._every = checked_count(every, "every")
        self._value: float | None = None
        name = {"hessian": "Hessian", "fisher": "Fisher matrix"}[matrix]
        said = "; ".join(risk.convention[name] for name in ("loss", "statistics", "samples"))
        self.meaning = {  # type: ignore[misc]
            "sharpness": f"largest eigenvalue of the {name} before the step ({said})",
            "sharpness_limit": "2 (1 + momentum) / lr: gradient descent leaves a quadratic minimum "
            "that is sharper",
        }

    def stepping(self, update: Update) -> None:
        """Measure at the weights that the step starts from."""
        self._value = None
        if update.step % self._every:
            return
        own = {id(p) for p in self._risk.model.parameters()}
        if not any(id(p) in own for weights in update.layers.values() for p in weights):
            raise InputError("it was given the risk of another model; pass that of the one trained")
        try:
            found = top_eigenvalues(self._matrix(self._risk), **self._options)  # type: ignore[arg-type, operator]
            self._value = found.largest
        except MeasurementError:
            self._value = math.nan
            raise

    def readings(self, update: Update) -> Readings:
        """Sharpness, and its limit for gradient descent with one learning rate."""
        if self._value is not None:
            yield "", "sharpness", self._value
            if (limit := _limit(update.optimizer)) is not None:
                yield "", "sharpness_limit", limit


def _limit(optimizer: torch.optim.Optimizer | None) -> float | None:
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else []
    known = {(float(group["lr"]), float(group["momentum"])) for group in groups}
    other = any(group[key] for group in groups for key in ("nesterov", "dampening", "maximize"))
    if len(known) != 1 or other:
        return None
    [(lr, momentum)] = known
    return 2 * (1 + momentum) / lr if lr > 0 else None
