"""Frozen records: every answer of normscope, numpy and plain numbers only."""

from normscope.results.activations import Activations, ChannelStatistics, Growth
from normscope.results.comparison import Comparison
from normscope.results.conditioning import (
    Conditioning,
    ConditioningCost,
    CurvatureBlock,
    LayerConditioning,
)
from normscope.results.density import SpectralDensity
from normscope.results.eigenvalues import KroneckerSpectrum, MomentSpectrum, SignedSpectrum
from normscope.results.estimate import Estimate
from normscope.results.examination import Examination, Plan, Step
from normscope.results.examination_difference import (
    ExaminationDifference,
    FindingChange,
    NumberChange,
    SettingChange,
    compare_examinations,
)
from normscope.results.examination_files import read_examination
from normscope.results.finding import SEVERITIES, Evidence, Finding
from normscope.results.generalization import ErrorCurve, GeneralizationPanel, SimulatedErrors
from normscope.results.gradients import ClassGradients, Gradients, LayerGradients, OutputGradients
from normscope.results.gram import GramSpectrum
from normscope.results.histograms import Histograms
from normscope.results.key_numbers import KeyNumber, key_numbers
from normscope.results.landscape import Landscape
from normscope.results.layers import Coverage, LayerStatus
from normscope.results.layout import Layout, NormUse
from normscope.results.learning_rate import LRAdvice, LRBound
from normscope.results.monitor import MonitorLog, Reading, Series, Trouble
from normscope.results.noise import GradientNoise
from normscope.results.order_parameters import OrderProfile
from normscope.results.outliers import LeadingDirections, SpectralBounds
from normscope.results.phase import PhaseDiagram
from normscope.results.prediction import Prediction, PredictionSet
from normscope.results.randmat import DepthConditioning, LinearReduction, ProductSpectrum
from normscope.results.regularization import BatchNormRegularization, LayerRegularization
from normscope.results.spectrum import Spectrum
from normscope.results.stability import LRRange, StabilityBound, StabilityLimit, StabilityTrial
from normscope.results.teacher_student import (
    LearningComparison,
    LearningPath,
    LearningRates,
    OverlapSlopes,
)
from normscope.results.what_if import Variant, WhatIf

__all__ = [
    "SEVERITIES",
    "Activations",
    "BatchNormRegularization",
    "ChannelStatistics",
    "ClassGradients",
    "Comparison",
    "Conditioning",
    "ConditioningCost",
    "Coverage",
    "CurvatureBlock",
    "DepthConditioning",
    "ErrorCurve",
    "Estimate",
    "Evidence",
    "Examination",
    "ExaminationDifference",
    "Finding",
    "FindingChange",
    "GeneralizationPanel",
    "GradientNoise",
    "Gradients",
    "GramSpectrum",
    "Growth",
    "Histograms",
    "KeyNumber",
    "KroneckerSpectrum",
    "LRAdvice",
    "LRBound",
    "LRRange",
    "Landscape",
    "LayerConditioning",
    "LayerGradients",
    "LayerRegularization",
    "LayerStatus",
    "Layout",
    "LeadingDirections",
    "LearningComparison",
    "LearningPath",
    "LearningRates",
    "LinearReduction",
    "MomentSpectrum",
    "MonitorLog",
    "NormUse",
    "NumberChange",
    "OrderProfile",
    "OutputGradients",
    "OverlapSlopes",
    "PhaseDiagram",
    "Plan",
    "Prediction",
    "PredictionSet",
    "ProductSpectrum",
    "Reading",
    "Series",
    "SettingChange",
    "SignedSpectrum",
    "SimulatedErrors",
    "SpectralBounds",
    "SpectralDensity",
    "Spectrum",
    "StabilityBound",
    "StabilityLimit",
    "StabilityTrial",
    "Step",
    "Trouble",
    "Variant",
    "WhatIf",
    "compare_examinations",
    "key_numbers",
    "read_examination",
]
