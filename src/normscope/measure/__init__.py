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

# questions about operators, loaded when first asked
_HOME = {
    "activations": "normscope.measure.probes.activations",
    "bn_regularization": "normscope.measure.regularization",
    "conditioning": "normscope.measure.probes.conditioning",
    "decay_strengths": "normscope.measure.regularization",
    "frobenius_norm": "normscope.measure.spectral",
    "gradient_noise": "normscope.measure.probes.noise",
    "gradients": "normscope.measure.probes.gradients",
    "gram_matrix": "normscope.measure.gram",
    "gram_spectrum": "normscope.measure.gram",
    "landscape": "normscope.measure.probes.landscape",
    "leading_directions": "normscope.measure.outliers",
    "mean_gradients": "normscope.measure.outliers",
    "order_parameters": "normscope.measure.probes.order_parameters",
    "residual_term": "normscope.measure.outliers",
    "spectral_bounds": "normscope.measure.outliers",
    "spectral_density": "normscope.measure.spectral",
    "top_eigenvalues": "normscope.measure.spectral",
    "trace": "normscope.measure.spectral",
    "trace_of_square": "normscope.measure.spectral",
}

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
