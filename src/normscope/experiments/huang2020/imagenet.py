"""Figures X and XIV and Table A: ResNet-18 and -50 on ImageNet.

The paper scale reads the folder ``imagenet`` below that of the variable ``NORMSCOPE_DATA``, with
``train`` and ``val``, one folder for each class.
"""

import os

import numpy as np

import normscope as ns
from normscope.data import FlipAndCrop, load_data
from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.huang2020.printed import ARMS, TABLE_A
from normscope.experiments.observing import Panel, Panels, Table, Values, curve

SETUPS = dict(zip(ARMS, ((1e-4, 0.0), (2e-4, 0.0), (1e-4, 0.3)), strict=True))
HELD = 50_000
DATA, MADE = "folder:$DATA/imagenet,size=224", "random:3x224x224,samples=4,classes=1000"
ERRORS = ("training", "test")


def trial(depth: int, norm: str, last: bool, setup: str, data: str, batch: int, steps: int, at: str,
          width: int, seed: int) -> Values:  # fmt: skip
    """Train one network; ``steps`` 0 is 100 epochs. Errors are top-1, as shares."""
    place = data.replace("$DATA", os.environ.get("NORMSCOPE_DATA", "."))
    seen, held = (load_data(place, split) for split in ("train", "test"))
    decay, dropout = SETUPS[setup]
    model = ns.network(f"imagenet-resnet{depth}", norm=None if norm == "none" else norm,
                       dropout=dropout, extra_norms=("before-last",) if last else (),
                       init="he-fan-out", seed=seed, classes=seen.num_classes,
                       width=width)  # fmt: skip
    moments = runs.second_moments(model, seen, at, batch)
    run = ns.fit(model, seen, "cross_entropy", lr=0.1, momentum=0.9, weight_decay=decay,
                 schedule="epoch", steps=steps or 100 * (len(seen) // batch), batch_size=batch,
                 drop_last=True, seed=seed, augment=FlipAndCrop(),
                 callbacks=[moments] if at else [])  # fmt: skip
    sample = seen.rows(np.arange(min(HELD, len(seen))))
    shares = [ns.evaluate(model, part).accuracy for part in (sample, held)]
    errors: Values = {n: 1 - (v or 0.0) for n, v in zip(ERRORS, shares, strict=True)}
    errors |= {"training images": len(sample), "test images": len(held)}
    thin = run.losses[:: max(1, len(run.losses) // 500)]
    return errors | {"losses": thin, "late": runs.late(run)} | (moments.result() if at else {})


def gain(table: Table, name: str, depth: int, setup: str) -> Values:
    """By how much BN before the last layer lowers an error, with the binomial standard error."""
    arm = {"depth": depth, "setup": setup, "norm": "batch", "at": ""}
    errors = [table(name, last=last, **arm) for last in (False, True)]
    images = table(f"{name} images", last=True, **arm).sum()
    se = np.sqrt(sum(np.mean(e * (1 - e)) for e in errors) / images)
    return {"mean": float(np.mean(errors[0] - errors[1])), "se": float(se), "n": int(images)}


def observe(table: Table) -> Values:
    """Observations of Fig. X, Fig. XIV and Table A."""
    measured = Table([row for row in table.rows if row[0]["at"]])
    plain, bn = {"norm": "none"}, {"norm": "batch"}
    late = [runs.late_of(measured, **arm) for arm in (plain, bn)]
    made: Values = {"fig10-a": runs.kappa_parts(measured, "kappa_x", (1.0,), plain, bn),
                    "fig10-b": runs.kappa_parts(measured, "kappa_g", (1.0,), plain, bn),
                    "fig10-c": {"values": late[0] - late[1]}}  # fmt: skip
    cells = [(depth, setup) for depth in TABLE_A for setup in ARMS]
    made |= {f"tableA-{k}": gain(table, "test", *cell) for k, cell in enumerate(cells, 1)}
    figures = zip(("fig14-a", "fig14-b"), TABLE_A, strict=True)
    return made | {name: gain(table, "training", depth, "standard") for name, depth in figures}


def panels(table: Table) -> Panels:
    """Fig. X, the losses of Fig. XIV, and Table A beside what was measured."""
    measured = Table([row for row in table.rows if row[0]["at"]])
    yield from runs.step_panels(
        measured, "Fig. X", {"Plain": {"norm": "none"}, "BN": {"norm": "batch"}}, 1.0)  # fmt: skip
    for depth, rows in TABLE_A.items():
        arm = {"depth": depth, "norm": "batch", "at": ""}
        names = {"ResNet": False, "ResNet_LastBN": True}
        arms = {n: arm | {"setup": "standard", "last": last} for n, last in names.items()}
        yield runs.loss_panel(table, f"Fig. XIV, depth {depth}", arms)
        lines = [curve(f"{n}, printed", ARMS, row, style="dashed")
                 for n, row in zip(names, rows, strict=True)]  # fmt: skip
        for n, last in names.items():
            errors = [100 * table("test", setup=setup, last=last, **arm) for setup in ARMS]
            lines.append(curve(n, ARMS, errors))
        yield Panel(f"Table A, depth {depth}", "setting", "top-1 error, %", tuple(lines))
