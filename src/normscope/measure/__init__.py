"""Measurement: a model and data in, curvature out, without a trace on the model."""

from __future__ import annotations

import importlib
from typing import Any

from normscope.measure.operators.base import LinearOperator, TensorOperator
from normscope.measure.operators.blocks import layer_blocks
from normscope.measure.operators.fisher import FisherOperator, fisher
from normscope.measure.operators.hessian import HessianOperator, hessian
from normscope.measure.operators.jacobian import JacobianOperator, jacobian
from normscope.measure.risk import Risk

# questions about operators and networks, loaded when first asked: module -> names
_LATER = {
    "gram": ("gram_matrix", "gram_spectrum"),
    "norm_effects": ("scale_information", "variance_shift"),
    "outliers": ("leading_directions", "mean_gradients", "residual_term", "spectral_bounds"),
    "probes.ablation": ("ablation",),
    "probes.activations": ("activations",),
    "probes.conditioning": ("conditioning",),
    "probes.gradients": ("gradients",),
    "probes.landscape": ("landscape",),
    "probes.noise": ("gradient_noise",),
    "probes.order_parameters": ("order_parameters",),
    "probes.units": ("unit_statistics",),
    "regularization": ("bn_regularization", "decay_strengths"),
    "spectral": ("frobenius_norm", "spectral_density", "top_eigenvalues"),
    "spectral.trace": ("trace", "trace_of_square"),
}
_HOME = {name: f"normscope.measure.{home}" for home, names in _LATER.items() for name in names}

__all__ = [
    "FisherOperator",
    "HessianOperator",
    "JacobianOperator",
    "LinearOperator",
    "Risk",
    "TensorOperator",
    "fisher",
    "hessian",
    "jacobian",
    "layer_blocks",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
