"""Charts of the teacher-student model: learning paths, learning rates, generalization errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from normscope.errors import InputError
from normscope.report.style import NEUTRAL, PALETTE, inline, number_label, tips
from normscope.results import (
    ErrorCurve,
    GeneralizationPanel,
    LearningComparison,
    LearningPath,
    LearningRates,
    OverlapSlopes,
    SimulatedErrors,
)

WIDTH, HEIGHT = 460, 300
NAMES = {
    "gamma": "γ, gain",
    "correlation": "R, overlap with the teacher",
    "length": "L, weight length",
}
METHODS = {"bn": PALETTE[0], "wn": PALETTE[1], "sgd": PALETTE[2]}
TOP = 2.0  # twice the error of a student that always says 0
DOTS = {"filled": True, "size": 55, "opacity": 1}


def path_chart(path: LearningPath) -> Any:
    """gamma, R and L against time: a line for the ODE, points with error bars for simulations."""
    drawn = {"runs": path} if path.num_inputs else {"theory": path}
    heading = "Order parameters of online learning"
    return _paths(path.method, heading=heading, notes=[path.title], **drawn)


def comparison_chart(comparison: LearningComparison) -> Any:
    """The ODE as lines, simulated students as points."""
    runs = comparison.simulated
    notes = [
        runs.title,
        "lines: ODE; points: mean of the runs, bars ± 1 s.e.; largest |R error| "
        f"{comparison.max_error['correlation']:.4f}",
    ]
    heading = "Online learning: ODE and simulated students"
    return _paths(runs.method, theory=comparison.theory, runs=runs, heading=heading, notes=notes)


def rates_chart(rates: LearningRates) -> Any:
    """lambda_R against the learning rate; below the line the fixed point attracts."""
    rows = [
        {"lr": float(lr), "rate": float(rate), "method": method}
        for method, line in zip(rates.methods, rates.overlap_rate, strict=True)
        for lr, rate in zip(rates.lr, line, strict=True)
    ]
    points = [row for slopes in rates.measured for row in _slope_rows(slopes)]
    notes = [f"{rates.student} student, ζ = {rates.zeta:g}, L0 = {rates.length:g}"]
    if np.array_equal(rates.overlap_rate[1], rates.overlap_rate[2]):
        notes.append("wn and sgd coincide at L0 = 1")
    notes += ["points: simulated, bars ± 1 s.e."] if points else []
    layers = [_zero(rows + points), *_rate_layers(rows, points)]
    heading = alt.Title("Rate at which R approaches 1", subtitle=notes)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def slopes_chart(slopes: OverlapSlopes) -> Any:
    """Measured slopes of ln(1 - R) with their errors."""
    rows = _slope_rows(slopes)
    runs = f"{len(slopes.slopes)} runs of {slopes.num_inputs} inputs from R = {slopes.start:g}"
    heading = alt.Title(
        "Measured rate of ln(1 − R)",
        subtitle=[f"{slopes.method}, {slopes.student} student: {runs}, bars ± 1 s.e."],
    )
    layers = [_zero(rows), *_rate_layers([], rows)]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def curve_chart(curve: ErrorCurve, *, top: float = TOP) -> Any:
    """One theory against the load."""
    return _errors([curve], [], top=top)


def simulated_chart(simulated: SimulatedErrors, *, top: float = TOP) -> Any:
    """One simulation against the load."""
    return _errors([], [simulated], top=top)


def panel_chart(panel: GeneralizationPanel, *, top: float = TOP) -> Any:
    """Theory as lines, simulation as points; errors above ``top`` are cut and counted."""
    return _errors(panel.curves, panel.simulated, top=top)


def _paths(
    method: str,
    *,
    heading: str,
    notes: list[str],
    theory: LearningPath | None = None,
    runs: LearningPath | None = None,
) -> Any:
    names = [name for name in NAMES if method != "sgd" or name != "length"]
    panels = []
    for name in names:
        label = "Q, length" if method == "sgd" and name == "gamma" else NAMES[name]
        layers = []
        if theory is not None:
            rows = _path_rows(theory, name)
            layers.append(_over_time(rows, label).mark_line(strokeWidth=2.2, color=PALETTE[0]))
        if runs is not None:
            rows = _path_rows(runs, name)
            layers += [*_bars(_over_time(rows, label), rows, label, PALETTE[1])]
        panels.append(alt.layer(*layers).properties(width=240, height=230))
    reasons = [part.reason for part in (theory, runs) if part is not None and part.reason]
    return alt.hconcat(*panels).properties(title=alt.Title(heading, subtitle=[*notes, *reasons]))


def _path_rows(path: LearningPath, name: str) -> list[dict[str, Any]]:
    columns = zip(path.time, path.mean(name), path.standard_error(name), strict=True)
    return [
        {"x": float(t), "value": float(value), "error": float(error)} | _span(value, error)
        for t, value, error in columns
    ]


def _span(value: float, error: float) -> dict[str, float]:
    return {"low": float(value - error), "high": float(value + error)}


def _over_time(rows: list[dict[str, Any]], label: str) -> Any:
    value = alt.Tooltip("value:Q", title=label, format=".4~f")
    error = alt.Tooltip("error:Q", title="s.e.", format=".2~g")
    scale = alt.Scale(zero=False)
    return alt.Chart(inline(rows)).encode(
        x=alt.X("x:Q", title="time, steps / N"),
        y=alt.Y("value:Q", title=label, scale=scale),
        tooltip=tips("x:Q time", value, error),
    )


def _bars(base: Any, rows: list[dict[str, Any]], label: str, colour: str) -> list[Any]:
    """Points, and their error bars where the error is known."""
    dots = base.mark_point(color=colour, filled=True, size=32, opacity=1)
    if not any(np.isfinite(row["error"]) for row in rows):
        return [dots]
    spans = base.mark_rule(color=colour, strokeWidth=1.5).encode(
        y=alt.Y("low:Q", title=label, scale=alt.Scale(zero=False)), y2="high:Q"
    )
    return [spans, dots]


def _slope_rows(slopes: OverlapSlopes) -> list[dict[str, Any]]:
    columns = zip(slopes.lr, slopes.mean, slopes.standard_error, strict=True)
    return [
        {"lr": float(lr), "rate": float(rate), "method": slopes.method, "error": float(error)}
        | _span(rate, error)
        for lr, rate, error in columns
    ]


def _zero(rows: list[dict[str, Any]]) -> Any:
    """The line between attraction and repulsion, over the whole width."""
    ends = inline([{"lr": end(row["lr"] for row in rows), "rate": 0.0} for end in (min, max)])
    line = alt.Chart(ends).mark_line(strokeDash=[4, 4], color=NEUTRAL, strokeWidth=1.2)
    return line.encode(x="lr:Q", y="rate:Q")


def _rate_layers(rows: list[dict[str, Any]], points: list[dict[str, Any]]) -> list[Any]:
    found = [name for name in METHODS if any(row["method"] == name for row in rows + points)]
    colours = alt.Scale(domain=found, range=[METHODS[name] for name in found])
    colour = alt.Color("method:N", title="method", scale=colours)
    x = alt.X("lr:Q", title="learning rate η", scale=alt.Scale(zero=False, nice=False))
    title = "λ_R, rate of ln(1 − R)"
    y = alt.Y("rate:Q", title=title, axis=alt.Axis(labelExpr=number_label()))
    told = tips("method:N", "lr:Q", "rate:Q", "error:Q")
    layers = []
    if rows:
        # dashes keep a line visible under another that coincides with it
        dash = alt.StrokeDash(
            "method:N",
            title="method",
            scale=alt.Scale(domain=list(METHODS), range=[[1, 0], [1, 0], [6, 4]]),
        )
        lines = alt.Chart(inline(rows)).mark_line(strokeWidth=2.2)
        layers.append(lines.encode(x=x, y=y, color=colour, strokeDash=dash, tooltip=told[:3]))
    if points:
        base = alt.Chart(inline(points)).encode(x=x, color=colour, tooltip=told)
        layers.append(
            base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
        )
        layers.append(base.mark_point(**DOTS).encode(y=y))
    return layers


def _errors(
    curves: Sequence[ErrorCurve], simulated: Sequence[SimulatedErrors], *, top: float
) -> Any:
    if not top > 0:
        raise InputError(f"top is the highest error drawn and must be above 0. Got {top!r}.")
    lines = [row for curve in curves for row in _curve_rows(curve)]
    points = [row for part in simulated for row in _simulated_rows(part)]
    labels = list(dict.fromkeys(row["method"] for row in lines + points))
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(labels))]
    colour = alt.Color(
        "method:N", title="student", sort=labels, scale=alt.Scale(domain=labels, range=colours)
    )
    x = alt.X("alpha:Q", title="load α = P/N", scale=_padded([r["alpha"] for r in lines + points]))
    scale = alt.Scale(domain=[_foot(lines + points, top), top], nice=False)
    y: dict[str, Any] = {"title": "generalization error ε", "scale": scale}
    told = tips("method:N student", "alpha:Q α", "error:Q ε")
    layers = []
    if lines:
        base = alt.Chart(inline(lines)).mark_line(strokeWidth=2, clip=True)
        layers.append(base.encode(x=x, y=alt.Y("error:Q", **y), color=colour, tooltip=told))
    if points:
        base = alt.Chart(inline(points)).encode(x=x, color=colour, tooltip=told)
        spans = base.mark_rule(strokeWidth=1.4, clip=True)
        layers.append(spans.encode(y=alt.Y("low:Q", **y), y2="high:Q"))
        layers.append(base.mark_point(**DOTS, clip=True).encode(y=alt.Y("error:Q", **y)))
    heading = alt.Title(
        "Generalization error against the load", subtitle=_notes(curves, simulated, top)
    )
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT + 40, title=heading)


def _padded(values: list[float]) -> Any:
    """A range with room for half a point at both ends."""
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 0.1
    return alt.Scale(domain=[low - room, high + room], nice=False, zero=False)


def _foot(rows: list[dict[str, Any]], top: float) -> float:
    """Zero, unless all errors are far above it."""
    least = min((row["error"] for row in rows), default=0.0)
    return 0.8 * least if least > 0.25 * top else 0.0


def _curve_rows(curve: ErrorCurve) -> list[dict[str, Any]]:
    return [
        {"method": curve.label, "alpha": float(a), "error": float(e)}
        for a, e in zip(curve.alpha, curve.error, strict=True)
    ]


def _simulated_rows(part: SimulatedErrors) -> list[dict[str, Any]]:
    columns = zip(part.alpha, part.mean, part.standard_error, strict=True)
    return [
        {"method": part.label, "alpha": float(a), "error": float(e)} | _span(e, s)
        for a, e, s in columns
    ]


def _notes(
    curves: Sequence[ErrorCurve], simulated: Sequence[SimulatedErrors], top: float
) -> list[str]:
    some = curves[0] if curves else simulated[0]
    notes = [f"{some.student} student, noise variance {some.noise_variance:g}"]
    if simulated:
        part = simulated[0]
        notes.append(
            f"points: {part.num_inputs} inputs, mean of {len(part.errors)} seeds, bars ± 1 s.e."
            + ("; lines: theory" if curves else "")
        )
    above = sum(int(np.sum(part.mean > top)) for part in simulated)
    if above:
        notes.append(f"not drawn, above {top:g}: {above} of the points")
    infinite = sorted({float(a) for c in curves for a in c.alpha[np.isinf(c.error)]})
    if infinite:
        notes.append("theory diverges at α = " + ", ".join(f"{a:g}" for a in infinite))
    return notes
