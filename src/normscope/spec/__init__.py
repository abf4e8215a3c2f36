"""What a network is: plain data, no torch."""

from normscope.spec.activations import ACTIVATIONS as ACTIVATIONS
from normscope.spec.activations import Activation as Activation
from normscope.spec.activations import activation as activation
from normscope.spec.activations import register_activation as register_activation
from normscope.spec.constructors import cnn as cnn
from normscope.spec.constructors import mlp as mlp
from normscope.spec.constructors import residual_mlp as residual_mlp
from normscope.spec.network import LayerSpec as LayerSpec
from normscope.spec.network import NetworkSpec as NetworkSpec
from normscope.spec.norms import LAST_NORMS as LAST_NORMS
from normscope.spec.norms import NormSpec as NormSpec
