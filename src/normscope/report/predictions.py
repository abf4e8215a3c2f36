"""Charts of predictions: the paper's Figure 1, a comparison, and the share of each layer."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.labels import network_labels, setting, sizes
from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, number_label, positive, tips
from normscope.results import Prediction, PredictionSet

ALL = "all, within 1 %"
COLOURS = {"corrected": PALETTE[0], "frozen": PALETTE[1], "wei2019": PALETTE[2]}
COLOURS |= {"wei2019-as-plotted": PALETTE[3], "graph": PALETTE[4]}
DASHES = ([1, 0], [6, 4], [2, 3], [9, 3, 2, 3])
QUANTITIES = {"lambda_max": "λ_max, largest eigenvalue of JᵀJ/T", "critical_lr": "critical lr"}
SAME = 0.01  # relative difference that the eye cannot tell apart on these axes
WIDTH, HEIGHT = 330, 300
FEW = 15  # gammas up to which every one gets a dot


def comparison_chart(results: PredictionSet, *, momentum: float = 0.0) -> Any:
    """lambda_max and the critical learning rate: against gamma if it varies, else side by side."""
    if not len(results):
        raise InputError("There is nothing to draw: the set of predictions is empty.")
    rows = _rows(results, momentum)
    gammas = sorted({row["gamma"] for row in rows if row["gamma"] is not None})
    if len(gammas) > 1:
        # a click on a theory's name in the legend fades the others
        chosen = alt.selection_point(fields=["theory"], bind="legend", name="theory")
        panels = [_over_gamma(rows, gammas, q, momentum, chosen) for q in QUANTITIES]
        panels[0].layer[0] = panels[0].layer[0].add_params(chosen)
        drawn = alt.hconcat(*panels)
    else:
        drawn = alt.hconcat(*(_side_by_side(rows, q, momentum) for q in QUANTITIES))
    over = " against the gain of the norm" if len(gammas) > 1 else ""
    heading = f"Predicted sharpness and critical learning rate{over}"
    subtitle = [setting(results), *_omissions(rows)]
    return drawn.properties(title=alt.Title(heading, subtitle=subtitle))


def layer_chart(prediction: Prediction) -> Any:
    """Each layer's share of lambda_max as bars."""
    total = float(prediction.per_layer.sum())
    spec = prediction.spec
    names = prediction.layers
    if spec is not None:
        names = tuple(f"{before} → {after}" for before, after in pairwise(sizes(spec)))
    rows = [
        {
            "layer": number,
            "sizes": name,
            "value": float(value),
            "share": float(value) / total if total else None,
            "text": _percent(float(value) / total) if total else "",
        }
        for number, (value, name) in enumerate(
            zip(prediction.per_layer, names, strict=True), start=1
        )
    ]
    last = None if spec is None else spec.last_norm
    before = f" before the {last} norm on the outputs" if last else ""
    norm = None if spec is None else spec.norm
    gain = "no norm" if norm is None else f"{norm.kind} norm, γ = {norm.gamma:g}"
    gain = prediction.network if spec is None else gain
    subtitle = [setting([prediction]), f"{gain}; theory: {prediction.theory}"]
    axis = alt.Axis(labelExpr=number_label())
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("value:Q", title=f"contribution to λ_max{before}", axis=axis),
        tooltip=tips(
            "layer:O", "sizes:N", "value:Q contribution", alt.Tooltip("share:Q", format=".1%")
        ),
    )
    bars = base.mark_bar(color=COLOURS[prediction.theory], cornerRadiusEnd=2)
    shares = base.mark_text(dy=-7, fontSize=11).encode(text="text:N")
    drawn = bars + shares if total and len(rows) <= FEW else bars
    heading = alt.Title("Which layers make the network sharp", subtitle=subtitle)
    return drawn.properties(width=max(WIDTH, min(24 * len(rows), 900)), height=260, title=heading)


def _percent(share: float) -> str:
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _rows(results: PredictionSet, momentum: float) -> list[dict[str, Any]]:
    """One row per prediction; theories that agree on a network become one."""
    rows = []
    for prediction, label in zip(results, network_labels(results), strict=True):
        norm = None if prediction.spec is None else prediction.spec.norm
        row = prediction.row(momentum) | {"network": label, "theory": prediction.theory}
        row["gamma"] = None if norm is None else norm.gamma
        factor = 2 * (1 + momentum)
        for bound, name in (("upper", "lr_lower"), ("lower", "lr_upper")):
            row[name] = factor / row[bound] if positive(row[bound]) else None
        rows.append({k: v for k, v in row.items() if k not in ("flags", "last_norm", "norm")})
    return _merged(rows)


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Theories that agree on a network get one grey line, not several on top of one another."""
    every = len({row["theory"] for row in rows})
    merged = []
    for network in dict.fromkeys(row["network"] for row in rows):
        curves: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["network"] == network:
                curves.setdefault(row["theory"], []).append(row)
        groups: list[list[str]] = []
        for name, curve in curves.items():
            same = next((g for g in groups if _agree(curves[g[0]], curve)), None)
            groups.append([name]) if same is None else same.append(name)
        for group in groups:
            whole = len(group) == every > 1
            name = ALL if whole else " = ".join(group)
            merged += [row | {"theory": name} for row in curves[group[0]]]
    return merged


def _agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return len(one) == len(other) and all(
        a["gamma"] == b["gamma"] and math.isclose(_height(a), _height(b), rel_tol=SAME)
        for a, b in zip(one, other, strict=True)
    )


def _height(row: dict[str, Any]) -> float:
    """What is drawn: lambda_max, or its upper bound, or nothing."""
    return float(next((row[key] for key in ("lambda_max", "upper") if row[key] is not None), -1.0))


def _omissions(rows: list[dict[str, Any]]) -> list[str]:
    """What the log axes cannot show, in words."""
    zero = sum(row["lambda_max"] is not None and not positive(row["lambda_max"]) for row in rows)
    bounds = sum(row["lambda_max"] is None for row in rows)
    lines = []
    if zero:
        lines.append(f"{zero} of {len(rows)} values are zero, which a log axis cannot show")
    if bounds:
        lines.append(f"{bounds} of {len(rows)} have bounds only, drawn from lower to upper")
    return lines


def _over_gamma(
    rows: list[dict[str, Any]], gammas: list[float], quantity: str, momentum: float, chosen: Any
) -> Any:
    spread = [
        row | {"gamma": gamma}
        for row in rows
        for gamma in (gammas if row["gamma"] is None else [row["gamma"]])
    ]
    shown = [row for row in spread if positive(row[quantity])]
    low, high = ("lower", "upper") if quantity == "lambda_max" else ("lr_lower", "lr_upper")
    banded = [
        r for r in spread if r["lambda_max"] is None and positive(r[low]) and positive(r[high])
    ]
    extent = [row[quantity] for row in shown] + [row[end] for row in banded for end in (low, high)]
    flat = alt.Scale(nice=False, zero=False)
    x = alt.X("gamma:Q", title="γ, gain of the norm", scale=flat, axis=alt.Axis(format="~g"))
    y = {"title": _title(quantity, momentum), **log_axis(extent)}
    colour, dash = _legends(rows)
    line = alt.Chart(inline(shown)).mark_line(strokeWidth=2.2).encode(
        x=x, y=alt.Y(f"{quantity}:Q", **y), color=colour, strokeDash=dash,
        opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.15)),
    )  # fmt: skip
    dots = line.mark_point(filled=True, size=45 if len(gammas) <= FEW else 60).encode(
        strokeDash=alt.Undefined,
        detail="network:N",
        tooltip=_tooltips(),
        opacity=alt.value(1.0 if len(gammas) <= FEW else 0.0),
    )
    layers = [line, dots]
    if banded:
        layers.insert(0, alt.Chart(inline(banded)).mark_area(opacity=0.25).encode(
            x=x, y=alt.Y(f"{low}:Q", **y), y2=f"{high}:Q", color=colour, detail="network:N",
            tooltip=_tooltips(),
        ))  # fmt: skip
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _side_by_side(rows: list[dict[str, Any]], quantity: str, momentum: float) -> Any:
    """A dot per prediction with its bounds as a line: bars have no foot on a log axis."""
    low, high = ("lower", "upper") if quantity == "lambda_max" else ("lr_lower", "lr_upper")
    named = [row | {"name": _name(row)} for row in rows]
    shown = [row for row in named if positive(row[quantity])]
    banded = [row for row in named if positive(row[low]) and positive(row[high])]
    extent = [row[quantity] for row in shown] + [row[end] for row in banded for end in (low, high)]
    order = list(dict.fromkeys(row["name"] for row in named))
    first = quantity == "lambda_max"
    axis = alt.Axis(labelLimit=320, title=None, labels=first, ticks=first, grid=True)
    y = alt.Y("name:N", sort=order, axis=axis, scale=alt.Scale(domain=order))
    x = {"title": _title(quantity, momentum), **log_axis(extent)}
    colour, _ = _legends(rows)
    base = {"y": y, "color": colour, "tooltip": _tooltips()}
    spans = alt.Chart(inline(banded)).mark_rule(strokeWidth=2, opacity=0.6)
    spans = spans.encode(x=alt.X(f"{low}:Q", **x), x2=f"{high}:Q", **base)
    dots = alt.Chart(inline(shown)).mark_point(filled=True, size=110, opacity=1)
    dots = dots.encode(x=alt.X(f"{quantity}:Q", **x), **base)
    return alt.layer(spans, dots).properties(width=300, height=alt.Step(28))


def _legends(rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Colour is the theory, dashes are the network."""
    found = {row["theory"] for row in rows}
    theories = [name for name in COLOURS if name in found]
    theories += sorted(found - set(theories))  # names of merged lines
    networks = list(dict.fromkeys(row["network"] for row in rows))
    networks.sort(key=lambda name: name.startswith("no norm"))  # the plain network is dashed
    scale = alt.Scale(domain=theories, range=[COLOURS.get(name, NEUTRAL) for name in theories])
    colour = alt.Color(
        "theory:N",
        title="theory",
        scale=scale,
        legend=alt.Legend(symbolType="circle", symbolStrokeWidth=0, symbolOpacity=1),
    )
    dashes = alt.Scale(
        domain=networks, range=[DASHES[i % len(DASHES)] for i in range(len(networks))]
    )
    legend = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeColor=NEUTRAL)
    dash = alt.StrokeDash("network:N", title="network", scale=dashes, legend=legend)
    return colour, dash


def _title(quantity: str, momentum: float) -> str:
    rule = f" = 2 (1 + {momentum:g}) / λ_max" if momentum else " = 2 / λ_max"
    return QUANTITIES[quantity] + (rule if quantity == "critical_lr" else "")


def _name(row: dict[str, Any]) -> str:
    gain = "" if row["gamma"] is None else f", γ = {row['gamma']:g}"
    theory = "" if row["theory"] == ALL else f" · {row['theory']}"
    return f"{row['network']}{gain}{theory}"


def _tooltips() -> list[Any]:
    gamma = alt.Tooltip("gamma:Q", title="γ", format="~g")
    numbers = ("lambda_max:Q λ_max", "lower:Q lower bound", "upper:Q upper bound")
    return tips("network:N", "theory:N", gamma, *numbers, "critical_lr:Q critical lr")
