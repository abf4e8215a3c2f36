"""Fig. 2a as a heat map, and small gamma with the same function at the start."""

from normscope.experiments.wei2019._map import experiment

NETWORKS = "digits-fc", "mnist-fc", "mnist-fc"
EXPERIMENT = experiment("a", "MNIST, fully connected", NETWORKS, (2560, 60000), (1000.0, 1.6e5))
