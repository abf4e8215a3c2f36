"""Figure IV: an MLP with four layers of 36 units."""

from normscope.experiments.huang2020._matrices import experiment

FIGURES = {"F": "Fig. IV", "M": "Fig. IV"}
EXPERIMENT = experiment(depth=4, width=36, samples=9000, figures=FIGURES, seconds=1100)
