"""Mean-field theory: specs to numbers, in numpy and scipy, without torch."""

from normscope.theory.fisher import best_lr_range, critical_lr, hessian_from_fisher, kappas
from normscope.theory.meanfield.batchnorm import gradient_growth
from normscope.theory.meanfield.fixed_points import critical_weight_variance
from normscope.theory.phase import phase_diagram
from normscope.theory.predict import PARAMETER_SETS, THEORIES, predict

__all__ = [
    "PARAMETER_SETS",
    "THEORIES",
    "best_lr_range",
    "critical_lr",
    "critical_weight_variance",
    "gradient_growth",
    "hessian_from_fisher",
    "kappas",
    "phase_diagram",
    "predict",
]
