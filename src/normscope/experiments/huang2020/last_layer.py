"""Figure XV and Section D.3: the input of the last layer, with and without a BN before it."""

from typing import Any

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Array, Panel, Scale, Table, curve, parts

NETS = {
    "ResNet": "resnet{depth}:width={width}",
    "ResNet_LastBN": "resnet{depth}:width={width}:extra_norms=before-last",
    "PreResNet": "preresnet{depth}:width={width}",
    "PreResNet without the last BN": "preresnet{depth}:width={width}:final_norm=false",
}
PLAIN = {"VGG": ("vgg{small}:width={width}", "he-fan-out"),
         "ResNet": ("resnet{small}:width={width}", "lecun-uniform")}  # fmt: skip


def of(table: Table, name: str, title: str) -> Array:
    """log10 of a number at the steps, seeds first, of one of the networks with BN."""
    values = table(name, arm=title)
    return np.asarray(np.log10(values[:, :, 0] if name == "kappa_x" else values)[:, :, 0])


def spread(values: Array) -> Array:
    """Largest minus smallest over the steps that were reached."""
    return np.asarray(np.nanmax(values, 1) - np.nanmin(values, 1))


def observe(table: Table) -> dict[str, Any]:
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


def panels(table: Table) -> list[Panel]:
    """lambda_max and kappa_50 of the last layer's input over training, and the loss."""
    made = []
    plain = [f"plain {name}{end}" for name in PLAIN for end in ("", "_LastBN")]
    for figure, titles in (("Fig. XV", [*NETS]), ("Sec. D.3", plain)):
        for name, label in (("lambda_x", "lambda_max"), ("kappa_x", "kappa_50")):
            values = {title: 10 ** of(table, name, title).T for title in titles}
            lines = tuple(curve(t, runs.steps_of(table), v, log=True) for t, v in values.items())
            shown = f"{figure}: input of the last layer"
            made.append(Panel(shown, "update", label, lines, log_y=True))
        made.append(runs.loss_panel(table, figure, {title: {"arm": title} for title in titles}))
    return made


def named(arm: str, width: int, **settings: Any) -> dict[str, Any]:
    """The training run of one arm; ``arm`` and ``width`` are kept for the table."""
    return runs.trial(**settings)


def _arms(depth: int, small: int, width: int, at: str, **settings: Any) -> list[dict[str, Any]]:
    size = {"depth": depth, "small": small, "width": width}
    made: list[dict[str, Any]] = [{"arm": title, "net": net, "norm": "batch", "init": "he-fan-out",
                                   "lr": 0.1} for title, net in NETS.items()]  # fmt: skip
    for title, (net, init) in PLAIN.items():
        for end, extra in (("", ""), ("_LastBN", ":extra_norms=before-last")):
            made.append(
                {"arm": f"plain {title}{end}", "net": net + extra, "init": init, "lr": 0.01}
            )
    common = {"momentum": 0.9, "layers": "fc", "width": width, "at": at} | settings
    common["steps"] = runs.last_step(at)
    return [arm | common | {"net": arm["net"].format(**size)} for arm in made]


_DESK = _arms(56, 20, 8, " ".join(map(str, range(0, 61, 5))), data="cifar10", images=5000, shrink=2)
_PAPER = _arms(1202, 110, 16, "0 1 10 100 1000 10000 62400", data="cifar10", batch=128)
TITLE = "The input of the last layer in training, with and without a BN before it"
trial = named
SMOKE = Scale(_arms(8, 8, 4, "0 2", batch=32, measured=32), 1, 3)
DESK = Scale(_DESK, 5, 250, ("cifar10",))
PAPER = Scale(_PAPER, 5, 1e7, ("cifar10",))
