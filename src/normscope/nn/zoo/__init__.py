"""The papers' own networks, by function and by name."""

from normscope.nn.zoo.catalogue import ZOO as ZOO
from normscope.nn.zoo.catalogue import network as network
from normscope.nn.zoo.imagenet import imagenet_resnet as imagenet_resnet
from normscope.nn.zoo.maker import EXTRA_NORMS as EXTRA_NORMS
from normscope.nn.zoo.maker import Design as Design
from normscope.nn.zoo.plain import cnn6 as cnn6
from normscope.nn.zoo.plain import mlp_network as mlp_network
from normscope.nn.zoo.plain import vgg16 as vgg16
from normscope.nn.zoo.residual import cifar_preresnet as cifar_preresnet
from normscope.nn.zoo.residual import cifar_resnet as cifar_resnet
from normscope.nn.zoo.residual import cifar_vgg as cifar_vgg
from normscope.nn.zoo.residual import resnet18 as resnet18
