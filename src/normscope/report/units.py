"""Units by depth, and what is left of a network without some of them."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np

from normscope.errors import InputError
from normscope.report.panels import panel_chart
from normscope.results.panel import Curve, Panel
from normscope.results.units import NUMBERS, Ablation, UnitStatistics

WIDTH, HEIGHT = 330, 280
KINDS = {"norm": "norms", "activation": "activations"}  # the others are layers with weights


def unit_chart(found: UnitStatistics) -> Any:
    """Correlation, kurtosis and variation of the rms by depth, by what the units come out of."""
    panels = []
    for name in ("mean_abs_correlation", "mean_kurtosis", "rms_variation"):
        points: dict[str, list[tuple[int, float]]] = {}
        for signal in found.signals:
            if math.isfinite(value := getattr(signal, name)):
                kind = KINDS.get(signal.kind, "layers with weights")
                points.setdefault(kind, []).append((signal.number, value))
        curves = [
            Curve(kind, tuple(x for x, _ in pairs), tuple(y for _, y in pairs))
            for kind, pairs in points.items()
        ]
        panels += [Panel("", "layer", NUMBERS[name], tuple(curves))] if curves else []
    seen = "every position" if found.positions else "mean over positions"
    return _beside("Units by depth", panels, f"{found.num_samples} samples, {seen}")


def ablation_chart(found: Ablation) -> Any:
    """Accuracy and loss over the share of units that are ablated."""
    panels = []
    for name in ("accuracy", "loss"):
        mean, error = getattr(found, f"mean_{name}"), getattr(found, f"{name}_error")
        half = 2 * np.nan_to_num(error)
        if np.isfinite(mean).all():
            ends = tuple(mean - half), tuple(mean + half)
            percent = tuple((100 * found.shares).round(6))
            curve = Curve(name, percent, tuple(mean), *ends)
            panels.append(Panel("", "units ablated, %", name, (curve,)))
    value = "zero" if found.replace == "zero" else "their means"
    note = f"{sum(found.units)} units set to {value}, {found.orders} orders; bars ± 2 s.e."
    return _beside("Ablation of units", panels, note)


def _beside(title: str, panels: list[Panel], note: str) -> Any:
    if not panels:
        raise InputError("There is nothing to draw: no number is finite.")
    drawn = [panel_chart(panel).properties(width=WIDTH, height=HEIGHT) for panel in panels]
    return alt.hconcat(*drawn).properties(title=alt.Title(title, subtitle=[note]))
