"""Figure XI (a): a 100-layer MLP with BN in its first seven updates."""

import math

from normscope.experiments.huang2020._deep import experiment
from normscope.experiments.huang2020.mlp_training import mlp

EXPERIMENT = experiment(
    "Fig. XI (a)", "Gradient explosion and weight domination in a 100-layer MLP with BN",
    {"net": mlp(64, 20, 32)}, {"net": mlp(784, 100, 256), "measured": 1024, "batch": 1024}, "mnist",
    seconds=240, theory=-math.log10(math.pi / (math.pi - 1)))  # fmt: skip
