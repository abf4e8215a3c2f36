"""What a network is: plain data, no torch."""

from normscope.spec.activations import ACTIVATIONS, Activation, activation, register_activation
from normscope.spec.constructors import cnn, mlp, residual_mlp
from normscope.spec.network import LayerSpec, NetworkSpec
from normscope.spec.norms import LAST_NORMS, NormSpec

__all__ = [
    "ACTIVATIONS",
    "LAST_NORMS",
    "Activation",
    "LayerSpec",
    "NetworkSpec",
    "NormSpec",
    "activation",
    "cnn",
    "mlp",
    "register_activation",
    "residual_mlp",
]
