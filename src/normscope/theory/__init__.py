"""Mean-field theory: specs to numbers, in numpy and scipy, without torch."""

from normscope.theory.fisher import best_lr_range as best_lr_range
from normscope.theory.fisher import critical_lr as critical_lr
from normscope.theory.fisher import hessian_from_fisher as hessian_from_fisher
from normscope.theory.fisher import kappas as kappas
from normscope.theory.fisher import last_batch_norm_bounds as last_batch_norm_bounds
from normscope.theory.layernorm import output_norm_bounds as output_norm_bounds
from normscope.theory.layernorm import output_norm_leading as output_norm_leading
from normscope.theory.layernorm import output_norm_statistics as output_norm_statistics
from normscope.theory.meanfield.batchnorm import gradient_growth as gradient_growth
from normscope.theory.meanfield.fixed_points import (
    critical_weight_variance as critical_weight_variance,
)
from normscope.theory.phase import phase_diagram as phase_diagram
from normscope.theory.predict import PARAMETER_SETS as PARAMETER_SETS
from normscope.theory.predict import THEORIES as THEORIES
from normscope.theory.predict import predict as predict
