"""Mean-field theory: specs to numbers, in numpy and scipy, without torch."""

from normscope.theory.phase import phase_diagram
from normscope.theory.predict import PARAMETER_SETS, THEORIES, predict

__all__ = ["PARAMETER_SETS", "THEORIES", "phase_diagram", "predict"]
