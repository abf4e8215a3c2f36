"""Figure XV and Section D.3: the input of the last layer, with and without a BN before it."""

from typing import Any

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts

NETS = ("ResNet", "ResNet_LastBN", "PreResNet", "PreResNet without the last BN")
PLAIN = ("VGG", "ResNet")


def of(table: Table, name: str, title: str) -> Array:
    """log10 of a number at the steps, seeds first, of one of the networks with BN."""
    values = table(name, arm=title)
    return np.asarray(np.log10(values[:, :, 0] if name == "kappa_x" else values)[:, :, 0])


def spread(values: Array) -> Array:
    """Largest minus smallest over the steps that were reached."""
    return np.asarray(np.nanmax(values, 1) - np.nanmin(values, 1))


def observe(table: Table) -> Values:
    """Observations of Fig. XV, the trace at initialization, and Section D.3."""
    res, _last, pre, bare = (of(table, "lambda_x", title) for title in NETS)
    top = {name: np.nanmax(v, 1) for name, v in (("res", res), ("pre", pre), ("bare", bare))}
    kappas = [np.nanmean(of(table, "kappa_x", title), 1) for title in [*NETS][2:]]
    near, far = np.abs(top["bare"] - top["res"]), np.abs(top["bare"] - top["pre"])
    rank = table("trace_x", arm="ResNet_LastBN")[:, 0, 0] / (4 * table.rows[0][0]["width"])
    larger = {}
    for name, v in (("ResNet", res), ("PreResNet without the last BN", bare)):
        larger[f"largest, {name}"] = np.nanmax(v, 1) - top["pre"]
        larger[f"range, {name}"] = spread(v) - spread(pre)
    varying = {}
    for name in PLAIN:
        ranges = [spread(of(table, "lambda_x", f"plain {name}{end}")) for end in ("", "_LastBN")]
        varying[name] = ranges[0] - ranges[1]
    return {"fig15-lambda": parts(larger), "fig15-kappa": {"values": kappas[1] - kappas[0]},
            "fig15-component": {"values": far - near},
            "fig15-lastbn-trace": {"values": np.abs(rank - 1), "threshold": 0.01},
            "secD3-varying": parts(varying)}  # fmt: skip


def panels(table: Table) -> Panels:
    """lambda_max and kappa_50 of the last layer's input over training, and the loss."""
    plain = [f"plain {name}{end}" for name in PLAIN for end in ("", "_LastBN")]
    for figure, titles in (("Fig. XV", [*NETS]), ("Sec. D.3", plain)):
        for name, label in (("lambda_x", "lambda_max"), ("kappa_x", "kappa_50")):
            values = {title: 10 ** of(table, name, title).T for title in titles}
            lines = tuple(curve(t, runs.steps_of(table), v, log=True) for t, v in values.items())
            shown = f"{figure}: input of the last layer"
            yield Panel(shown, "update", label, lines, log_y=True)
        yield runs.loss_panel(table, figure, {title: {"arm": title} for title in titles})


def named(arm: str, width: int, **settings: Any) -> Values:
    """The training run of one arm; ``arm`` and ``width`` are kept for the table."""
    return runs.trial(**settings)


trial = named
