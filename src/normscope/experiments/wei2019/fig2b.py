"""Fig. 2b: the fully connected network on CIFAR-10."""

from normscope.experiments.wei2019._boundary import experiment

EXPERIMENT = experiment("b", "fully connected", "cifar-fc", "digits-fc", [None, 0.1, 1.0, 3.0])
