"""Fig. 2c as a heat map."""

from normscope.experiments.wei2019._map import experiment

NETWORKS = "digits-cnn", "cifar-cnn", "cifar-cnn"
EXPERIMENT = experiment("c", "CIFAR-10, convolutional", NETWORKS, (5120, 50000), (1250.0, 1.6e5))
