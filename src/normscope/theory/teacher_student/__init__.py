"""Teacher and student: how normalization changes online learning and generalization.

Online learning: ``bn_path``, ``wn_path``, ``sgd_path`` solve the order-parameter ODEs;
``simulate_bn``, ``simulate_sgd``, ``with_simulation`` run real students; ``learning_rates`` is the
table of fixed points, eigenvalues and bounds. Generalization: ``least_squares_error``,
``ridge_error``, ``weight_norm_error``, ``published_relu_error``, ``relu_error`` are theory;
``simulated_errors`` trains or solves students; ``linear_panel`` and ``relu_panel`` show both.
"""

from normscope.theory.teacher_student.dynamics import (
    Start,
    bn_drift,
    bn_path,
    sgd_drift,
    sgd_path,
    wn_path,
)
from normscope.theory.teacher_student.linear_errors import (
    least_squares_error,
    resolvent,
    ridge_error,
    student_error,
    weight_norm_error,
)
from normscope.theory.teacher_student.online import (
    simulate_bn,
    simulate_sgd,
    simulated_overlap_rate,
    with_simulation,
)
from normscope.theory.teacher_student.panels import linear_panel, relu_panel
from normscope.theory.teacher_student.rates import (
    complete_overlap_rate,
    effective_lr,
    fixed_gamma,
    gain_rate,
    late_length,
    learning_rates,
    max_effective_lr,
    max_lr,
    overlap_deficit,
    overlap_rate,
    steady_state,
)
from normscope.theory.teacher_student.relu_errors import (
    published_relu_error,
    relu_error,
    relu_threshold,
)
from normscope.theory.teacher_student.samples import Data, simulated_errors
from normscope.theory.teacher_student.solved import ConvexRelu, LinearSolutions
from normscope.theory.teacher_student.students import (
    STUDENTS,
    cross_moment,
    gradient_along_student,
    gradient_along_teacher,
    gradient_power,
    target_moment,
)
from normscope.theory.teacher_student.trained import BatchNormSgd, ReluDescent

__all__ = [
    "STUDENTS",
    "BatchNormSgd",
    "ConvexRelu",
    "Data",
    "LinearSolutions",
    "ReluDescent",
    "Start",
    "bn_drift",
    "bn_path",
    "complete_overlap_rate",
    "cross_moment",
    "effective_lr",
    "fixed_gamma",
    "gain_rate",
    "gradient_along_student",
    "gradient_along_teacher",
    "gradient_power",
    "late_length",
    "learning_rates",
    "least_squares_error",
    "linear_panel",
    "max_effective_lr",
    "max_lr",
    "overlap_deficit",
    "overlap_rate",
    "published_relu_error",
    "relu_error",
    "relu_panel",
    "relu_threshold",
    "resolvent",
    "ridge_error",
    "sgd_drift",
    "sgd_path",
    "simulate_bn",
    "simulate_sgd",
    "simulated_errors",
    "simulated_overlap_rate",
    "steady_state",
    "student_error",
    "target_moment",
    "weight_norm_error",
    "with_simulation",
    "wn_path",
]
