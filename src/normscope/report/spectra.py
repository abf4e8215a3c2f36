"""Charts of measured eigenvalues, with their errors."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np

from normscope.errors import InputError
from normscope.report.style import (
    PALETTE,
    inline,
    log_axis,
    number_label,
    plain_axis,
    positive,
    tips,
    whole_axis,
)
from normscope.results import GramSpectrum, SpectralDensity, Spectrum

WIDTH, HEIGHT = 460, 300
ROUNDING = 1e-6  # of the largest eigenvalue, above which a negative one is real
WIDE = 10.0  # ratio of eigenvalues above which their axis is logarithmic


def spectrum_chart(spectrum: Spectrum) -> Any:
    """Eigenvalues by rank, each with its residual as error bar."""
    rows = [
        {"rank": rank, "value": float(value), "residual": float(error), "bound": float(bound)}
        | {"low": float(value - error), "high": float(value + error)}
        for rank, (value, error, bound) in enumerate(
            zip(spectrum.values, spectrum.residuals, spectrum.bounds, strict=True), start=1
        )
    ]
    y = {"title": "eigenvalue λ", **_value_axis(rows)}
    x = alt.X("rank:Q", title="rank", **whole_axis(1, len(rows)))
    rank = alt.Tooltip("rank:Q", format="d")
    told = tips(rank, "value:Q", "residual:Q", "bound:Q", form=".5~g")
    base = alt.Chart(inline(rows)).encode(x=x, tooltip=told)
    bars = base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    dots = base.mark_point(filled=spectrum.converged, size=70, opacity=1, color=PALETTE[0])
    which = "largest in magnitude" if spectrum.which == "magnitude" else spectrum.which
    heading = f"The {len(rows)} {which} of {spectrum.dimension:,} eigenvalues"
    return alt.layer(bars, dots.encode(y=alt.Y("value:Q", **y))).properties(
        width=WIDTH, height=HEIGHT, title=alt.Title(heading, subtitle=_spectrum_notes(spectrum))
    )


def gram_chart(spectrum: GramSpectrum) -> Any:
    """Every non-zero eigenvalue by rank, both axes logarithmic."""
    rows = [{"rank": i, "value": float(v)} for i, v in enumerate(spectrum.values, start=1) if v > 0]
    if not rows:
        raise InputError("There is nothing to draw: the matrix is zero, no eigenvalue is positive.")
    x = alt.X("rank:Q", title="rank", **log_axis([1.0, float(len(rows))]))
    y = alt.Y("value:Q", title="eigenvalue λ", **log_axis([row["value"] for row in rows]))
    lower, upper = spectrum.bounds
    notes = [
        f"{len(rows)} of {spectrum.size} rows: {spectrum.samples} samples x {spectrum.outputs} "
        f"outputs; trace {spectrum.trace:.4g}",
        f"bounds of λ_max from the trace of the square: {lower:.4g} to {upper:.4g}",
    ]
    heading = f"All non-zero eigenvalues, λ_max = {spectrum.largest:.4g}"
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=40, opacity=0.9, color=PALETTE[0])
    told = tips(alt.Tooltip("rank:Q"), "value:Q eigenvalue", form=".5g")
    return dots.encode(x=x, y=y, tooltip=told).properties(
        width=WIDTH, height=HEIGHT, title=alt.Title(heading, subtitle=notes)
    )


def density_chart(density: SpectralDensity, *, decades: float = 8.0) -> Any:
    """The density on a log axis over eigenvalues on a symmetric log axis, with its error band.

    ``decades`` is how far below the highest point the density is shown.
    """
    if not decades > 0:
        raise InputError(f"decades must be above 0. Got {decades!r}.")
    floor = float(np.max(density.density)) * 10.0**-decades
    if not positive(floor):
        raise InputError("There is nothing to draw: the density is zero on its whole grid.")
    rows = _density_rows(density, floor)
    start = 0.0 if _never_negative(density) else alt.Undefined
    y = {"title": "density of eigenvalues", **log_axis([floor, *(row["high"] for row in rows)])}
    scale = alt.Scale(
        type="symlog", constant=density.width, nice=False, zero=False, domainMin=start
    )
    axis = alt.Axis(values=_symlog_ticks(density), labelExpr=number_label(), labelOverlap="greedy")
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("t:Q", title="eigenvalue λ", scale=scale, axis=axis), detail="piece:N"
    )
    band = base.mark_area(opacity=0.25, color=PALETTE[0], clip=True)
    line = base.mark_line(strokeWidth=2, color=PALETTE[0], clip=True)
    dots = base.mark_point(filled=True, size=60, opacity=0, color=PALETTE[0])
    told = tips("t:Q λ", "density:Q density", "error:Q s.e.")
    layers = [
        band.encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        line.encode(y=alt.Y("density:Q", **y)),
        dots.encode(y=alt.Y("density:Q", **y), tooltip=told),
    ]
    heading = alt.Title(
        f"Spectral density of {density.dimension:,} eigenvalues",
        subtitle=_density_notes(density, decades),
    )
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def _value_axis(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A log axis where positive values span decades, else a linear one."""
    values = [row["value"] for row in rows]
    if not (min(values) > 0 and max(values) > WIDE * min(values)):
        return plain_axis()
    for row in rows:  # an error bar down to zero ends where a log axis still reaches
        row["low"] = max(row["low"], min(values) / 10)
    return log_axis(end for row in rows for end in (row["low"], row["high"]))


def _density_rows(density: SpectralDensity, floor: float) -> list[dict[str, Any]]:
    """Points above the floor; a gap starts a new piece, so that no line bridges it."""
    rows, piece, before = [], 0, True
    least = 0.0 if _never_negative(density) else -math.inf
    for t, value, error in zip(density.grid, density.density, density.density_error, strict=True):
        above = bool(value >= floor and t >= least)
        piece += above and not before
        before = above
        if above:
            low = max(float(value - density.band * error), floor)
            rows.append(
                {"t": float(t), "density": float(value), "error": float(error)}
                | {"low": low, "high": float(value + density.band * error), "piece": piece}
            )
    return rows


def _never_negative(density: SpectralDensity) -> bool:
    """Whether all eigenvalues are positive or zero: smoothing alone puts some below."""
    return bool(density.nodes.min() >= -ROUNDING * np.abs(density.nodes).max())


def _symlog_ticks(density: SpectralDensity) -> list[float]:
    """Zero and powers of ten on both sides: Vega's own symlog ticks crowd at one end."""
    low, high = float(density.grid.min()), float(density.grid.max())
    reach = max(abs(low), abs(high), density.width)
    powers = range(math.ceil(math.log10(density.width)), math.floor(math.log10(reach)) + 1)
    steps = (1, 5) if len(powers) < 4 else (1,)
    ticks = [step * 10.0**k for k in powers for step in steps]
    return sorted(t for t in (0.0, *ticks, *(-t for t in ticks)) if low <= t <= high)


def _spectrum_notes(spectrum: Spectrum) -> list[str]:
    state = "converged" if spectrum.converged else "NOT converged (hollow)"
    notes = [f"{state} to {spectrum.tol:g}; bars: residual ‖Ay − θy‖; {spectrum.matvecs} products"]
    return notes + ([spectrum.reason] if spectrum.reason else [])


def _density_notes(density: SpectralDensity, decades: float) -> list[str]:
    runs = "exact" if density.exact else f"{len(density.nodes)} random vectors, 95 % band"
    steps = "" if density.exact else f"resolution: {density.nodes.shape[1]} Lanczos steps; "
    notes = [f"{steps}smoothing width {density.width:.2g}; {runs}; {density.matvecs} products"]
    if density.zero_mass > 0:
        notes.append(f"not drawn: {density.zero_mass:.1%} of the eigenvalues are exactly 0")
    return [*notes, f"cut {decades:g} decades below the highest point"]
