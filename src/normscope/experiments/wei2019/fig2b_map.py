"""Fig. 2b as a heat map; at desk scale with a width of 300."""

from normscope.experiments.wei2019._map import experiment

NETWORKS = "digits-fc", "cifar-narrow", "cifar-fc"
EXPERIMENT = experiment("b", "CIFAR-10, fully connected", NETWORKS, (10000, 50000), (650.0, 2.3e5))
