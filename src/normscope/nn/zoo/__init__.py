"""The papers' own networks, by function and by name."""

from normscope.nn.zoo.catalogue import ZOO, network
from normscope.nn.zoo.maker import EXTRA_NORMS, Design
from normscope.nn.zoo.plain import cnn6, mlp_network, vgg16
from normscope.nn.zoo.residual import cifar_preresnet, cifar_resnet, cifar_vgg, resnet18

__all__ = [
    "EXTRA_NORMS",
    "ZOO",
    "Design",
    "cifar_preresnet",
    "cifar_resnet",
    "cifar_vgg",
    "cnn6",
    "mlp_network",
    "network",
    "resnet18",
    "vgg16",
]
