"""Figure XI (b): a 110-layer VGG-style network with BN in its first seven updates."""

from normscope.experiments.huang2020._deep import experiment

EXPERIMENT = experiment(
    "Fig. XI (b)",
    "Gradient explosion and weight domination in a 110-layer VGG-style network with BN",
    {"net": "vgg32:width=4", "init": "he-fan-out", "measured": 64},
    {"net": "vgg110", "init": "he-fan-out", "measured": 64, "batch": 64}, "cifar10",
    seconds=200)  # fmt: skip
