"""normscope: what normalization does to a neural network, predicted and measured.

Nothing heavy is imported here: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from normscope._version import __version__

# name -> module that defines it, grouped as a reader would look for it
_HOME = {
    # what a network is
    "NetworkSpec": "normscope.spec",
    "NormSpec": "normscope.spec",
    "mlp": "normscope.spec",
    "cnn": "normscope.spec",
    "residual_mlp": "normscope.spec",
    # prediction
    "predict": "normscope.prediction",
    "phase_diagram": "normscope.theory",
    "Prediction": "normscope.results",
    # measurement
    "Risk": "normscope.measure",
    "jacobian": "normscope.measure",
    "fisher": "normscope.measure",
    "hessian": "normscope.measure",
    "layer_blocks": "normscope.measure",
    "top_eigenvalues": "normscope.measure",
    "spectral_density": "normscope.measure",
    "trace": "normscope.measure",
    "gram_spectrum": "normscope.measure",
    "leading_directions": "normscope.measure",
    # probes
    "activations": "normscope.measure",
    "gradients": "normscope.measure",
    "conditioning": "normscope.measure",
    "gradient_noise": "normscope.measure",
    "landscape": "normscope.measure",
    "order_parameters": "normscope.measure",
    "bn_regularization": "normscope.measure",
    # networks
    "build": "normscope.nn",
    "describe": "normscope.subject.describe",
    "network": "normscope.nn",
    "apply_transform": "normscope.subject.transforms",
    "BatchNorm": "normscope.nn",
    "PopulationNorm": "normscope.nn",
    "register_norm": "normscope.subject.norms",
    # data and training
    "load_data": "normscope.data",
    "fit": "normscope.train",
    "evaluate": "normscope.train",
    "max_stable_lr": "normscope.train",
    "Monitor": "normscope.train",
    # many trials
    "sweep": "normscope.sweeps",
    # advice
    "examine": "normscope.diagnose",
    "plan_examination": "normscope.diagnose",
    "what_if": "normscope.diagnose",
    "suggest_lr": "normscope.diagnose",
    # errors
    "NormscopeError": "normscope.errors",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from normscope.registry import near_match

        raise AttributeError(
            f"module 'normscope' has no attribute {name!r}. {near_match(name, list(_HOME))}"
        )
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
