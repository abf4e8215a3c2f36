"""Charts of products of random matrices: conditioning by depth, singular values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, tips, whole_axis
from normscope.results.randmat import DepthConditioning, ProductSpectrum

WIDTH, HEIGHT = 380, 280
BAND = 2.0  # standard errors on either side
BINS = 60
HEADROOM = 1.15  # of the highest bar
DECADES = 300.0  # of a number that a picture can place
Rows = list[dict[str, Any]]
BAR_TIPS = tips("left:Q", "right:Q", "density:Q", "least:Q", "most:Q", form=".4~f")
MEANS = ("mean:Q mean", "median:Q median", "low:Q − 2 s.e.", "high:Q + 2 s.e.")
MEAN_TIPS = tips(alt.Tooltip("depth:Q", format="d", title="factors"), *MEANS, form=".4~f")


def conditioning_chart(result: DepthConditioning) -> Any:
    """Condition number, and largest singular value beside the predicted edge, by depth."""
    if not np.isfinite(result.log10_condition).any():
        raise InputError(f"There is nothing to draw: at every depth {result.reason}.")
    panels = alt.hconcat(_condition_panel(result), _largest_panel(result))
    heading = "Products of matrices: conditioning by depth"
    return panels.properties(title=alt.Title(heading, subtitle=_depth_notes(result)))


def product_chart(spectrum: ProductSpectrum, *, bins: int = BINS) -> Any:
    """Histogram of the singular values, mean over the runs, with the predicted density."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InputError(f"bins must be a whole number from 1. Got {bins!r}.")
    bars = _histogram(spectrum, bins)
    x, y = _product_axes(spectrum, bars)
    floor, top = y["scale"].domain
    for row in bars:  # zero cannot stand on a log axis
        row |= {"floor": floor, "least": max(row["least"], floor)}
    shown = [row for row in bars if row["density"] > floor]
    base = alt.Chart(inline(shown)).encode(tooltip=BAR_TIPS)
    curve = [
        {"s": float(s), "density": float(d)}
        for s, d in zip(spectrum.grid, spectrum.density, strict=True)
        if floor <= d <= top  # it diverges at 0 and ends at 0
    ]
    line = alt.Chart(inline(curve)).mark_line(strokeWidth=2, color=PALETTE[1])
    layers = [
        base.mark_rect(color=PALETTE[0], opacity=0.45).encode(
            x=alt.X("left:Q", **x), x2="right:Q", y=alt.Y("density:Q", **y), y2="floor:Q"
        ),
        base.mark_rule(strokeWidth=1.2).encode(
            x=alt.X("middle:Q", **x), y=alt.Y("least:Q", **y), y2="most:Q"
        ),
        line.encode(x=alt.X("s:Q", **x), y=alt.Y("density:Q", **y)),
    ]
    heading = alt.Title(_product_heading(spectrum), subtitle=_product_notes(spectrum))
    return alt.layer(*layers).properties(width=460, height=HEIGHT, title=heading)


def _product_axes(spectrum: ProductSpectrum, bars: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    """Linear for one factor; the density of more diverges at 0 and needs a log axis."""
    x = {"scale": alt.Scale(domain=[0, bars[-1]["right"]], nice=False), "title": "singular value s"}
    title = "density of singular values"
    if spectrum.num_factors == 1:
        top = HEADROOM * max(row["most"] for row in bars)
        return x, {"scale": alt.Scale(domain=[0, top], nice=False), "title": title}
    filled = [row["density"] for row in bars if row["density"] > 0]
    return x, {"title": title, **log_axis([min(filled) / 2, max(row["most"] for row in bars)])}


def _condition_panel(result: DepthConditioning) -> Any:
    y = {"title": "log10 condition number", "scale": alt.Scale(zero=True)}
    layers = _runs_and_means(result, result.log10_condition, y, lambda logs: logs)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _largest_panel(result: DepthConditioning) -> Any:
    """s_max on a log axis, means of its logarithm; the edge where the factors are Gaussian."""
    drawable = np.abs(result.log10_largest) < DECADES
    logs = np.where(drawable, result.log10_largest, np.nan)
    known = np.abs(result.log10_edge) < DECADES  # False for NaN: given factors
    edge = 10.0 ** result.log10_edge[known]
    y = {"title": "largest singular value", **log_axis([*(10.0 ** logs[drawable]), *edge])}
    layers = _runs_and_means(result, logs, y, lambda logs: 10.0**logs)
    rows = [
        {"depth": int(m), "edge": float(e)} for m, e in zip(result.depths[known], edge, strict=True)
    ]
    told = tips(alt.Tooltip("depth:Q"), "edge:Q predicted edge", form=".4~f")
    line = alt.Chart(inline(rows)).mark_line(strokeWidth=2, color=PALETTE[2])
    drawn = line.encode(x=_depth_axis(result), y=alt.Y("edge:Q", **y), tooltip=told)
    shown = [drawn, *layers] if rows else layers
    return alt.layer(*shown).properties(width=WIDTH, height=HEIGHT)


def _runs_and_means(
    result: DepthConditioning, logs: Array, y: dict[str, Any], shown: Callable[[Array], Array]
) -> list[Any]:
    """Every run as a faint dot; mean with its bar, and median, of ``shown`` logarithms."""
    x = _depth_axis(result)
    dots = alt.Chart(inline(_run_rows(result, shown(logs)))).mark_point(
        filled=True, size=22, opacity=0.45, color=NEUTRAL
    )
    base = alt.Chart(inline(_mean_rows(result, logs, shown))).encode(x=x, tooltip=MEAN_TIPS)
    means = base.mark_point(filled=True, size=45, opacity=1, color=PALETTE[0])
    shown_runs = [
        dots.encode(x=x, y=alt.Y("value:Q", **y)),
        base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        base.mark_tick(orient="horizontal", thickness=2, size=12, color=PALETTE[1]).encode(
            y=alt.Y("median:Q", **y)
        ),
    ]
    return [*(shown_runs if result.runs > 1 else []), means.encode(y=alt.Y("mean:Q", **y))]


def _run_rows(result: DepthConditioning, values: Array) -> Rows:
    return [
        {"depth": int(m), "run": run, "value": float(value)}
        for run, row in enumerate(values)
        for m, value in zip(result.depths, row, strict=True)
        if np.isfinite(value)
    ]


def _mean_rows(result: DepthConditioning, logs: Array, shown: Callable[[Array], Array]) -> Rows:
    """Means over the runs, BAND standard errors to either side; depths with all runs finite."""
    kept = np.isfinite(logs).all(axis=0)
    values = logs[:, kept]
    mean, half = values.mean(axis=0), np.zeros(values.shape[1])
    if result.runs > 1:
        half = BAND * values.std(axis=0, ddof=1) / np.sqrt(result.runs)
    columns = {"mean": mean, "low": mean - half, "high": mean + half}
    columns["median"] = np.median(values, axis=0)
    drawn = {name: shown(column) for name, column in columns.items()}
    return [
        {"depth": int(m)} | {name: float(column[i]) for name, column in drawn.items()}
        for i, m in enumerate(result.depths[kept])
    ]


def _depth_notes(result: DepthConditioning) -> list[str]:
    edge = "; green: edge predicted for N to infinity" if result.seed is not None else ""
    origin = "given factors" if result.seed is None else f"{result.runs} runs, seed {result.seed}"
    notes = [f"{result.size} x {result.size} matrices, {origin}{edge}"]
    if result.runs > 1:
        mean = f"blue: mean of the logarithm ± {BAND:g} s.e."
        notes.append(f"{mean}; orange: median; grey: every run")
    if not np.isfinite(result.log10_condition).all():
        notes.append(f"not drawn: infinite condition numbers, {result.reason}")
    return notes


def _depth_axis(result: DepthConditioning) -> Any:
    return alt.X("depth:Q", title="factors in the product", **whole_axis(1, len(result.depths)))


def _histogram(spectrum: ProductSpectrum, bins: int) -> Rows:
    """Density of each bin: mean, least and most over the runs."""
    end = max(spectrum.edge, float(spectrum.values.max())) * 1.02
    edges = np.linspace(0, end, bins + 1)
    per_run = np.array([np.histogram(row, edges, density=True)[0] for row in spectrum.values])
    return [
        {"left": float(edges[i]), "right": float(edges[i + 1])}
        | {"middle": float(edges[i : i + 2].mean()), "density": float(column.mean())}
        | {"least": float(column.min()), "most": float(column.max())}
        for i, column in enumerate(per_run.T)
    ]


def _product_heading(spectrum: ProductSpectrum) -> str:
    runs, size = spectrum.values.shape
    factors = f"products of {spectrum.num_factors} Gaussian matrices"
    factors = "1 Gaussian matrix" if spectrum.num_factors == 1 else factors
    return f"Singular values of {factors}, N = {size:,}, {runs} run{'s' * (runs > 1)}"


def _product_notes(spectrum: ProductSpectrum) -> list[str]:
    runs = len(spectrum.values)
    spread = "; black: least and most of the runs" if runs > 1 else ""
    distance = f"KS distance {spectrum.distance.mean():.4f}" + " on average" * (runs > 1)
    return [
        f"bars: simulated{spread}; line: predicted for N to infinity, up to {spectrum.edge:.4g}",
        f"{distance}; largest value {spectrum.values.max():.4g}; seed {spectrum.seed}",
    ]
