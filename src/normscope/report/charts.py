"""Which chart a result has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from normscope.errors import InputError
from normscope.registry import Registry, near_match
from normscope.report import phases, predictions, randmat, spectra
from normscope.report.style import theme

__all__ = ["CHARTS", "chart"]

# type of result -> drawing(result, **options) without theme
CHARTS: Registry[Callable[..., Any]] = Registry("kind of chart")
CHARTS.add("Prediction", predictions.layer_chart)
CHARTS.add("PredictionSet", predictions.comparison_chart)
CHARTS.add("PhaseDiagram", phases.phase_chart)
CHARTS.add("Spectrum", spectra.spectrum_chart)
CHARTS.add("SpectralDensity", spectra.density_chart)
CHARTS.add("GramSpectrum", spectra.gram_chart)
CHARTS.add("DepthConditioning", randmat.conditioning_chart)
CHARTS.add("ProductSpectrum", randmat.product_chart)


def chart(result: object, **options: Any) -> Any:
    """The Altair chart of a result.

    Args:
        result: a ``Prediction``, ``PredictionSet``, ``PhaseDiagram``, ``Spectrum``,
            ``GramSpectrum``, ``SpectralDensity``, ``DepthConditioning`` or ``ProductSpectrum``.
        options: of the drawing, e.g. ``momentum=0.9`` for predictions, ``title="..."`` for all.

    Returns:
        An ``altair`` chart: shown in a notebook, written to a file by ``save``.
    """
    draw = CHARTS[type(result).__name__]
    known = list(inspect.signature(draw).parameters)[1:]
    for name in options:
        if name not in known:
            raise InputError(
                f"The chart of a {type(result).__name__} has no option {name!r}. "
                f"{near_match(name, known)}"
            )
    return draw(result, **options).configure(**theme())
