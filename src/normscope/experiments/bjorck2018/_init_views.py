"""ResNet-110 at initialization: what the claims read, and the panels."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import stats

from normscope.experiments.bjorck2018._common import NAMES, slope
from normscope.experiments.claim import paper_file
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts

WAYS = ("pad", "projection")
MAIN, TABLE = (18, 54, 90), (18, 19, 54, 55, 90, 91)
SHOWN = (9, 45, 81, 83)  # layers of Figs 13, 14
CLASSES = (18, 35, 52, 90)
KERNEL = CLASSES.index(52)
PAPER = {norm: {int(k): cells for k, cells in rows.items()}
         for norm, rows in paper_file("bjorck2018")["printed"].items()}  # fmt: skip
DEPTH = np.arange(2, 110).astype(float)  # convolutions but the stem


def _term(table: Table, which: int, number: int) -> Array:
    return np.asarray(table("terms")[:, which - 1, number - 1])


def _lines(rows: Array, start: int = 0, step: int = 1) -> Array:
    """For each network slope of log10 over the layer, and how well a straight line fits."""
    return np.array([slope(DEPTH[start::step], np.log10(r[1:-1])[start::step]) for r in rows])


def _power(rows: Array) -> Array:
    return np.array([slope(np.log10(DEPTH), np.log10(r[1:-1]))[1] for r in rows])


def _early(rows: Array) -> Array:
    """Layers 2 to 20 less layers 91 to 109."""
    return np.asarray(np.mean(rows[:, 1:20], 1) - np.mean(rows[:, 90:109], 1))


def _over(rows: Array) -> Array:
    return np.array([slope(np.array(SHOWN, float), r)[0] for r in rows])


def _share(table: Table) -> Array:
    return np.asarray(table("classes").max(2) / table("classes").sum(2))  # (seed, layer)


def _ranked(table: Table, place: int) -> Array:
    """Decades between the largest class and the one at ``place`` of the sorted ones."""
    rows = np.sort(table("classes")[:, KERNEL])
    other = np.median(rows, 1) if place == 0 else rows[:, -place]
    return np.asarray(np.log10(rows[:, -1] / other))


def _aligned(table: Table) -> Array:
    return np.asarray(table("terms")[:, 3] / table("terms")[:, 0])


# of networks without (a) and with batch norm (b): one value for each seed, or several parts
EACH: dict[str, Callable[[Table, Table], Any]] = {
    "fig2-sign": lambda a, b: np.log10(a("std")[:, 54] / b("std")[:, 54]),
    "fig2-tails": lambda a, b: a("kurtosis")[:, 54] - b("kurtosis")[:, 54],
    "sec3-consistent-tails": lambda a, b: np.mean((a("kurtosis") > b("kurtosis"))[:, 1:-1], 1),
    "fig3-bn-flat": lambda a, b: {
        f"{what}, {half} convolutions": np.abs(_lines(b(what), k, 2)[:, 0])
        for what in ("mean", "variance")
        for k, half in enumerate(("first", "second"))
    },
    "fig3-unnorm-var": lambda a, b: {
        "slope": _lines(a("variance"))[:, 0],
        "fit": _lines(a("variance"))[:, 1] - _power(a("variance")),
    },
    "fig3-unnorm-mean": lambda a, b: _lines(a("mean"))[:, 0],
    "fig4-unnorm": lambda a, b: a("g_std"),
    "fig4-bn": lambda a, b: b("g_std") - a("g_std"),
    "fig4-alignment": lambda a, b: a("g_alignment") - b("g_alignment"),
    "sec3-favoured": lambda a, b: a("predicted"),
    "sec3-constant": lambda a, b: a("g_mean"),
    "sec3-bias": lambda a, b: a("bias") - b("bias"),
    "tab1-plain-factor2": lambda a, b: {f"layer {k}": -np.log10(_aligned(a)[:, k - 1])
                                        for k in MAIN},
    "tab1-alignment": lambda a, b: {f"layer {k}": (_aligned(a) - _aligned(b))[:, k - 1]
                                    for k in TABLE},
    "tab1-deeper": lambda a, b: {
        f"layers {x}, {y}": np.log10(_term(a, 1, y) / _term(a, 1, x))
        for x, y in ((18, 54), (54, 90), (19, 55), (55, 91), (18, 90), (19, 91))},
    "sec3-same-sign": lambda a, b: {
        f"layer {k}": (a("same_sign") - b("same_sign"))[:, i] for i, k in enumerate(MAIN)},
    "fig7-structure": lambda a, b: {
        name: (a("fig7") - b("fig7"))[:, i]
        for i, name in enumerate(("rank-one share", "columns", "rows"))},
    "fig7-small": lambda a, b: np.log10(a("max_over_median") / b("max_over_median")),
    "fig7-bn": lambda a, b: {
        "columns": b("fig7")[:, 1] / 0.5, "rows": b("fig7")[:, 2] / 0.5,
        "max/median": b("max_over_median") / 10},
    "fig13-means": lambda a, b: {
        "|mean|": _lines(a("mean"))[:, 0],
        "|mean| / std": _over(a("relative_mean")[:, [k - 1 for k in SHOWN]])},
    "fig13-multimodal": lambda a, b: _over(a("bimodal")),
    "fig14": lambda a, b: {
        f"layer {k}": (a("relative_mean") - b("relative_mean"))[:, k - 1] for k in SHOWN},
    "appI-onesigned": lambda a, b: a("one_signed") - b("one_signed"),
    "fig18-plain": lambda a, b: {
        "correlation": a("mean_correlation") - 0.5, "range": np.log10(a("channel_ratio")) - 2},
    "fig18-bn": lambda a, b: {
        "correlation": np.abs(b("mean_correlation")) - 0.5,
        "range": np.log10(b("channel_ratio")) - 1},
    "fig19-scale": lambda a, b: _early(np.log10(a("channel"))),
    "fig19-spread": lambda a, b: _early(a("channel_cv")),
    "fig19-bn": lambda a, b: np.abs(_early(np.log10(b("channel")))),
    "fig20": lambda a, b: _share(a)[:, KERNEL],
    "fig21": lambda a, b: {"top / median": _ranked(a, 0), "top / second": _ranked(a, 2)},
    "appL-other-layers": lambda a, b: {f"layer {CLASSES[i]}": _share(a)[:, i] for i in (0, 1, 3)},
    "fig22-skewed": lambda a, b: {
        "|mean| / std": a("large_shift") - 0.5, "sign": a("large_sign") - 0.9},
    "fig22-small": lambda a, b: a("small_shift"),
    "fig23-plain": lambda a, b: {
        "correlation": a("fig23")[:, 0] - 0.7, "share": a("fig23")[:, 1] - 0.2},
    "fig23-bn": lambda a, b: {
        "correlation": (a("fig23") - b("fig23"))[:, 0], "share": (a("fig23") - b("fig23"))[:, 1],
        "gradient": np.log10(_term(a, 4, 54) / _term(b, 4, 54))},
    "appK": lambda a, b: a("contribution")}  # fmt: skip
HOLDS: dict[str, Callable[[Table, Table], Any]] = {
    "sec3-consistent-scale": lambda a, b: np.all((a("std") > b("std"))[:, 1:-1], 1),
    "sec3-sign": lambda a, b: np.maximum(a("lowest_input"), b("lowest_input")) < 0,
    "sec3-sign-corrected": lambda a, b: np.minimum(a("lowest_input"), b("lowest_input")) >= 0,
    "appL-favoured": lambda a, b: a("classes")[:, KERNEL].argmax(1) == a("favoured")}  # fmt: skip


def observe(table: Table) -> Values:
    """What the claims read; of each setting a part."""
    by = {(n, w): table.where(norm=n, shortcut=w) for n in ("none", "batch", "top") for w in WAYS}
    made: Values = {}
    for name, function in (EACH | HOLDS).items():
        found: Values = {}
        for way in WAYS:
            values = function(by["none", way], by["batch", way])
            many = values if isinstance(values, dict) else {"": values}
            kind = "holds" if name in HOLDS else "values"
            found |= {f"{way}, {k}".rstrip(", "): {kind: v} for k, v in many.items()}
        made[name] = parts(found)
    for name, against in (("sec3-top-gradients", "batch"), ("sec3-top-cures", "none")):
        made[name] = parts({
            f"{w}, layer {k}": np.log10(_term(by["top", w], 4, k) / _term(by[against, w], 4, k))
            for w in WAYS for k in MAIN})  # fmt: skip
    errors = [by["none", w]("class_error") for w in WAYS]
    made["appL-linear"] = {"error": np.concatenate(errors), "precision": "float32", "size": 10}
    return made | _printed(by["none", WAYS[1]], by["batch", WAYS[1]])


def _printed(none: Table, batch: Table) -> Values:
    """Numbers that the paper prints, against the setting that is presumably its own."""
    made: Values = {
        "fig2-scale": {"values": none("std")[:, 54] / batch("std")[:, 54]},
        "fig3-scale": {"values": none("largest_output")},
        "tab1-bn-100": parts({f"layer {k}": 1 / _aligned(batch)[:, k - 1] for k in MAIN}),
        "tab1-ratio": parts({f"layer {k}": {"values": _term(none, 4, k) / _term(batch, 4, k),
                                            "expected": PAPER["none"][k][3] / PAPER["batch"][k][3]}
                             for k in TABLE})}  # fmt: skip
    inside = []
    for norm, short, mine in (("batch", "bn", batch), ("none", "plain", none)):
        for k, cells in PAPER[norm].items():
            mean = {f"T{t}": (_term(mine, t, k) * 1e6, cell) for t, cell in enumerate(cells, 1)}
            found = {name: {"values": v, "expected": cell} for name, (v, cell) in mean.items()}
            made[f"{'tab1' if k in MAIN else 'tab4'}-layer{k}-{short}"] = parts(found)
            inside += [_inside(np.log10(v), np.log10(cell)) for v, cell in mean.values()]
    return made | {"tab1-columns": {"holds": inside}}


def _inside(mine: Any, goal: float) -> bool:
    """Whether the number of one network lies in the 95 % prediction interval of ours."""
    allowed = stats.t.ppf(0.975, len(mine) - 1) * mine.std(ddof=1) * np.sqrt(1 + 1 / len(mine))
    return bool(abs(mine.mean() - goal) <= allowed)


def _panels(table: Table) -> Panels:
    """The figures of the paper, with the network of the first seed where it shows one."""
    both = {n: table.where(norm=n, shortcut=WAYS[1]) for n in NAMES}
    one = {n: t.rows[0][1] for n, t in both.items()}
    yield from (*_over_depth(both), *_table_panels(both), *_channel_panels(one))
    images = range(1, len(one["none"]["g_examples"]) + 1)
    examples = [curve(name, images, one[n]["g_examples"]) for n, name in NAMES.items()]
    words = "image of the batch", "dL_b / dz of that class"
    yield Panel("Fig. 4, favoured class", *words, tuple(examples))
    for n, name in NAMES.items():
        yield _density("Fig. 2", name, "gradient of a weight of layer 55", one[n]["entries"])
        x, y = one[n]["fig18"]
        yield Panel(f"Fig. 18, {name}", "mean of an in-channel of layer 35, before ReLU",
                    "mean |gradient| of its weights", (curve(name, x, y),))  # fmt: skip
        x, y = one[n]["points"]
        line = curve("equal", [0, x.max()], [0, x.max()], style="dashed")
        words, curves = ("sum |d| of a weight of layer 54", "|sum d|"), (curve(name, x, y), line)
        yield Panel(f"Fig. 23, {name}", *words, curves)
    for figure, rows in ((20, one["none"]["classes"][None]), (21, both["none"]("classes"))):
        shares = np.sort(rows[:, KERNEL] / rows[:, KERNEL].sum(1)[:, None])[:, ::-1]
        words = "class, sorted", "share of the mean |gradient|"
        line = curve("unnormalized", range(1, shares.shape[1] + 1), shares.T, log=True)
        yield Panel(f"Fig. {figure}, layer 52", *words, (line,), log_y=figure == 21)
    for which, title in (("large", "a well aligned weight"), ("small", "a small gradient")):
        values = one["none"][f"{which}_density"]
        yield _density("Fig. 22", title, "term d of layer 90", values)


def panels(table: Table) -> Panels:
    """Those of ``_panels`` by the numbers of their figures; tables come last."""

    def number(panel: Panel) -> int:
        found = re.search(r"Fig. (\d+)", panel.title)
        return int(found[1]) if found else 99

    return sorted(_panels(table), key=number)


def _density(figure: str, name: str, x: str, values: Array) -> Panel:
    return Panel(f"{figure}, {name}", x, "density", (curve(name, *values),))


def _over_depth(both: Mapping[str, Table]) -> list[Panel]:
    shown = {"mean": ("Fig. 3, means", "mean |channel mean|"),
             "variance": ("Fig. 3, variances", "mean channel variance"),
             "channel": ("Fig. 19", "mean |gradient of a channel|")}  # fmt: skip
    return [Panel(title, "layer", label,
                  tuple(curve(name, range(1, 111), both[n](what).T, log=True)
                        for n, name in NAMES.items()), log_y=True)
            for what, (title, label) in shown.items()]  # fmt: skip


def _table_panels(both: Mapping[str, Table]) -> Panels:
    layers = [str(k) for k in TABLE]
    for t, title in enumerate(("sum |d|", "sum_b |sum_xy d|", "sum_xy |sum_b d|", "|sum d|"), 1):
        curves = []
        for n, name in NAMES.items():
            printed = [PAPER[n][k][t - 1] * 1e-6 for k in TABLE]
            curves.append(curve(name, layers, [_term(both[n], t, k) for k in TABLE], log=True))
            curves.append(curve(f"{name}, paper", layers, printed, style="dashed"))
        yield Panel(f"Tables 1 and 4, {title}", "layer", "mean over the weights", tuple(curves),
                    log_y=True)  # fmt: skip


def _channel_panels(one: Mapping[str, Mapping[str, Any]]) -> Panels:
    for axis, what in ((0, "in"), (1, "out")):
        rows = {n: np.sort(one[n]["matrix"].mean(axis))[::-1] for n in NAMES}
        curves = [curve(NAMES[n], range(1, len(r) + 1), r / r[0]) for n, r in rows.items()]
        yield Panel(f"Fig. 7, {what}-channels of layer 45", "channel, sorted",
                    "mean |gradient|, share of the largest", tuple(curves))  # fmt: skip
    for n, figure in (("none", 13), ("batch", 14)):
        for number, shapes in zip(SHOWN, one[n]["shapes"], strict=True):
            curves = [curve(f"channel {c}", *xy) for c, xy in enumerate(shapes, 1)]
            yield Panel(f"Fig. {figure}, {NAMES[n]}, layer {number}", "output of the layer",
                        "density", tuple(curves))  # fmt: skip
