"""Figure III: an MLP with four layers of 24 units."""

from normscope.experiments.huang2020._matrices import experiment

FIGURES = {"F": "Fig. III", "M": "Fig. III"}
EXPERIMENT = experiment(depth=4, width=24, samples=6000, figures=FIGURES, seconds=310)
