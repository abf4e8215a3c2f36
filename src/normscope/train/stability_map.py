"""From a sweep of training runs to the map of where they are stable."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.registry import check_choice
from normscope.results.stability_map import StabilityMap, bound_of
from normscope.sweeps import Sweep
from normscope.theory import predict
from normscope.train.trial import TRAINING, spec_of

CRITERIA = ("diverges", "does-not-learn")
# theory -> parameters; the paper has weights only
THEORIES = {"corrected": None, "wei2019": "weights"}
CNN_THEORIES = {"corrected": None, "wei2019-as-plotted": "weights"}  # its Fig. 2c is not its (45)


def stability_map(
    sweep: Sweep | str | os.PathLike[str], *, axis: str | None = None, criterion: str = "diverges"
) -> StabilityMap:
    """The map of a sweep over learning rate and one more setting.

    Theories are those of the squared loss, for plain networks trained by gradient descent: the
    corrected one for the parameters that are trained, with the batch as its samples, and that of
    Wei et al. (2019): as printed, or for convolutions as plotted in their figures.

    Args:
        sweep: a sweep of ``training_trial``, or its folder.
        axis: the other setting; by default the only one that varies besides ``lr`` and ``seed``.
            No third one may vary.
        criterion: ``"diverges"``, or ``"does-not-learn"`` for losses with bounded gradients.
    """
    check_choice("criterion", criterion, CRITERIA)
    found = sweep if isinstance(sweep, Sweep) else Sweep(sweep)
    rows = _rows(found)
    axis = _axis(found, axis)
    values, lrs, seeds = (_levels(found, name) for name in (axis, "lr", "seed"))
    shape = len(values), len(lrs), len(seeds)
    loss, failed = np.full(shape, np.nan), np.full(shape, np.nan)
    for row in rows:
        place = tuple(
            levels.index(row.get(name))
            for levels, name in ((values, axis), (lrs, "lr"), (seeds, "seed"))
        )
        bad = row["diverged"] or (criterion != "diverges" and not row["learned"])
        failed[place], loss[place] = bad, row["test_loss"]
    rates = np.array(lrs, np.float64)
    bounds = [bound_of(rates, row, criterion) for row in failed]
    common = {k: v for k, v in found.plan.rows[0].items() if k not in found.plan.varying}
    known = ~np.isnan(failed)
    with np.errstate(invalid="ignore"):
        share = np.nansum(failed, axis=2) / np.where(known.any(2), known.sum(2), np.nan)
    return StabilityMap(
        axis=axis,
        values=np.array(values, np.float64),
        lrs=rates,
        loss=np.where(share == 0, loss.mean(axis=2), np.nan),
        failed=share,
        seeds=len(seeds),
        criterion=criterion,
        bounds=tuple(bound for bound, _ in bounds),
        limits=np.stack([limits for _, limits in bounds]),
        theories=_theories([common | {axis: value} for value in values]),
        chance=float(rows[0]["chance"]) if rows else np.nan,
        missing=len(found.plan.rows) - len(rows),
        convention=common,
    )


def _rows(found: Sweep) -> list[dict[str, Any]]:
    if found.plan.function != TRAINING.name:
        raise InputError(
            f"A stability map needs training runs. {found.store.folder} holds trials of "
            f"{found.plan.function}: take its table, to_frame()."
        )
    rows = found.to_frame()
    return [] if rows.empty else rows[rows["status"] == "done"].to_dict("records")


def _axis(found: Sweep, named: str | None) -> str:
    if named is not None:
        check_choice("setting", named, found.plan.rows[0])
    others = [n for n in found.plan.varying if n not in ("lr", "seed", "data_checksum", named)]
    axes = [named, *others] if named else others
    if len(axes) != 1:
        names = ", ".join(axes) or "none"
        raise InputError(
            "A stability map is over the learning rate and one more setting. Besides lr and seed "
            f"this sweep has: {names}. "
            + ("Take its table, or one sweep for each map." if axes else "Name a setting.")
        )
    return axes[0]


def _levels(found: Sweep, name: str) -> list[Any]:
    levels = {row.get(name) for row in found.plan.rows}
    if any(not isinstance(v, int | float) for v in levels) and len(levels) > 1:
        raise InputError(f"The setting {name} is no number in all trials, so that it is no axis.")
    return sorted(levels) if len(levels) > 1 else list(levels)


def _theories(settings: list[dict[str, Any]]) -> dict[str, Array]:
    """Critical rates over the other setting, of every theory that covers all of them."""
    first = settings[0]
    if first.get("loss", "cross_entropy") != "mse" or first.get("optimizer", "sgd") != "sgd":
        return {}
    made: dict[str, Array] = {}
    chosen = CNN_THEORIES if first["network"].startswith("cnn:") else THEORIES
    for theory, parameters in chosen.items():
        counted = parameters or first.get("trained", "all")
        try:
            rates = [_critical(row, theory, counted) for row in settings]
        except (TheoryError, InputError):
            continue
        if None not in rates:
            made[theory] = np.array(rates, np.float64)
    return made


def _critical(row: dict[str, Any], theory: str, parameters: str) -> float | None:
    spec = spec_of(row)
    if spec is None:
        return None
    samples = row.get("batch_size", 128)
    made = predict(spec, samples=samples, theory=theory, parameters=parameters)
    return made.critical_lr(row.get("momentum", 0.0))
