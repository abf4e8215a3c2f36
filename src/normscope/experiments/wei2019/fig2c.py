"""Fig. 2c: the convolutional network on CIFAR-10."""

from normscope.experiments.wei2019._boundary import GAMMAS, experiment

EXPERIMENT = experiment("c", "convolutional", "cifar-cnn", "digits-cnn", [None, *GAMMAS])
