"""Frozen records: every answer of normscope, numpy and plain numbers only."""

from normscope.results.density import SpectralDensity
from normscope.results.estimate import Estimate
from normscope.results.gram import GramSpectrum
from normscope.results.layers import Coverage, LayerStatus
from normscope.results.outliers import LeadingDirections, SpectralBounds
from normscope.results.phase import PhaseDiagram
from normscope.results.prediction import Prediction, PredictionSet
from normscope.results.randmat import DepthConditioning, LinearReduction, ProductSpectrum
from normscope.results.spectrum import Spectrum

__all__ = [
    "Coverage",
    "DepthConditioning",
    "Estimate",
    "GramSpectrum",
    "LayerStatus",
    "LeadingDirections",
    "LinearReduction",
    "PhaseDiagram",
    "Prediction",
    "PredictionSet",
    "ProductSpectrum",
    "SpectralBounds",
    "SpectralDensity",
    "Spectrum",
]
