"""Figures I and II: an MLP with eight layers of 24 units."""

from normscope.experiments.huang2020._matrices import experiment

FIGURES = {"F": "Fig. I", "M": "Fig. II"}
EXPERIMENT = experiment(depth=8, width=24, samples=8000, figures=FIGURES, seconds=760)
