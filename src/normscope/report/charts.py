"""Which chart a result has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from normscope.errors import InputError
from normscope.registry import Registry, near_match
from normscope.report import (
    activations,
    comparison,
    conditioning,
    difference,
    gradients,
    landscape,
    layout,
    learning_rate,
    modes,
    monitor,
    noise,
    order_parameters,
    outliers,
    panels,
    phases,
    predictions,
    randmat,
    regularization,
    spectra,
    stability,
    stability_map,
    teacher_student,
    trial,
    units,
    what_if,
)
from normscope.report.style import theme

# type of result -> drawing(result, **options) with its own title, without theme
CHARTS: Registry[Callable[..., Any]] = Registry("kind of chart")
CHARTS.add("Prediction", predictions.layer_chart)
CHARTS.add("PredictionSet", predictions.comparison_chart)
CHARTS.add("PhaseDiagram", phases.phase_chart)
CHARTS.add("Spectrum", spectra.spectrum_chart)
CHARTS.add("SpectralDensity", spectra.density_chart)
CHARTS.add("GramSpectrum", spectra.gram_chart)
CHARTS.add("Ablation", units.ablation_chart)
CHARTS.add("Activations", activations.activation_chart)
CHARTS.add("Comparison", comparison.comparison_chart)
CHARTS.add("ExaminationDifference", difference.ratio_chart)
CHARTS.add("Layout", layout.layout_chart)
CHARTS.add("LeadingDirections", outliers.outlier_chart)
CHARTS.add("Conditioning", conditioning.conditioning_chart)
CHARTS.add("Gradients", gradients.gradient_chart)
CHARTS.add("GradientNoise", noise.noise_chart)
CHARTS.add("Landscape", landscape.landscape_chart)
CHARTS.add("DepthConditioning", randmat.conditioning_chart)
CHARTS.add("ProductSpectrum", randmat.product_chart)
CHARTS.add("LearningPath", teacher_student.path_chart)
CHARTS.add("LearningComparison", teacher_student.comparison_chart)
CHARTS.add("LearningRates", teacher_student.rates_chart)
CHARTS.add("OverlapSlopes", teacher_student.slopes_chart)
CHARTS.add("ErrorCurve", teacher_student.curve_chart)
CHARTS.add("SimulatedErrors", teacher_student.simulated_chart)
CHARTS.add("GeneralizationPanel", teacher_student.panel_chart)
CHARTS.add("Panel", panels.panel_chart)
CHARTS.add("OrderProfile", order_parameters.order_chart)
CHARTS.add("Modes", modes.modes_chart)
CHARTS.add("MonitorLog", monitor.monitor_chart)
CHARTS.add("StabilityLimit", stability.stability_chart)
CHARTS.add("StabilityMap", stability_map.map_chart)
CHARTS.add("LRRange", stability.range_chart)
CHARTS.add("LRAdvice", learning_rate.advice_chart)
CHARTS.add("Trial", trial.trial_chart)
CHARTS.add("UnitStatistics", units.unit_chart)
CHARTS.add("WhatIf", what_if.what_if_chart)
CHARTS.add("BatchNormRegularization", regularization.gap_chart)


def chart(result: object, **options: Any) -> Any:
    """The Altair chart of a result.

    Args:
        result: a ``Prediction``, ``PredictionSet``, ``PhaseDiagram``, ``Spectrum``,
            ``BatchNormRegularization``,
            ``Comparison``, ``ExaminationDifference``, ``Layout``, ``LeadingDirections``,
            ``Activations``, ``Conditioning``, ``Gradients``, ``GradientNoise``, ``Landscape``,
            ``StabilityLimit``, ``StabilityMap``, ``LRRange``, ``LRAdvice``, ``WhatIf``,
            ``GramSpectrum``, ``SpectralDensity``, ``DepthConditioning``,
            ``ProductSpectrum``, ``LearningPath``, ``LearningComparison``,
            ``LearningRates``, ``MonitorLog``, ``OrderProfile``, ``OverlapSlopes``, ``ErrorCurve``,
            ``SimulatedErrors``, ``Panel``, ``Ablation``, ``Trial``,
            ``UnitStatistics`` or ``GeneralizationPanel``.
        options: drawing options, e.g. ``momentum=0.9`` for predictions, ``title="..."`` for all.

    Returns:
        An ``altair`` chart: shown in a notebook, written to a file by ``save``.
    """
    draw = CHARTS[type(result).__name__]
    known = [*list(inspect.signature(draw).parameters)[1:], "title"]
    for name in options:
        if name not in known:
            raise InputError(
                f"The chart of a {type(result).__name__} has no option {name!r}. "
                f"{near_match(name, known)}"
            )
    title = options.pop("title", None)
    drawn = draw(result, **options)
    if title:
        drawn.title.text = title
    return drawn.configure(**theme())
