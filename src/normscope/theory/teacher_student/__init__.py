"""Teacher and student: how normalization changes online learning and generalization.

Online learning: ``bn_path``, ``wn_path``, ``sgd_path`` solve the order-parameter ODEs;
``simulate_bn``, ``simulate_sgd``, ``with_simulation`` run real students; ``learning_rates`` is the
table of fixed points, eigenvalues and bounds. Generalization: ``least_squares_error``,
``ridge_error``, ``weight_norm_error``, ``published_relu_error``, ``relu_error`` are theory;
``simulated_errors`` trains or solves students; ``linear_panel`` and ``relu_panel`` show both.
"""

from normscope.theory.teacher_student.dynamics import Start as Start
from normscope.theory.teacher_student.dynamics import bn_drift as bn_drift
from normscope.theory.teacher_student.dynamics import bn_path as bn_path
from normscope.theory.teacher_student.dynamics import sgd_drift as sgd_drift
from normscope.theory.teacher_student.dynamics import sgd_path as sgd_path
from normscope.theory.teacher_student.dynamics import wn_path as wn_path
from normscope.theory.teacher_student.linear_errors import (
    least_squares_error as least_squares_error,
)
from normscope.theory.teacher_student.linear_errors import resolvent as resolvent
from normscope.theory.teacher_student.linear_errors import ridge_error as ridge_error
from normscope.theory.teacher_student.linear_errors import student_error as student_error
from normscope.theory.teacher_student.linear_errors import weight_norm_error as weight_norm_error
from normscope.theory.teacher_student.online import simulate_bn as simulate_bn
from normscope.theory.teacher_student.online import simulate_sgd as simulate_sgd
from normscope.theory.teacher_student.online import simulated_overlap_rate as simulated_overlap_rate
from normscope.theory.teacher_student.online import with_simulation as with_simulation
from normscope.theory.teacher_student.panels import linear_panel as linear_panel
from normscope.theory.teacher_student.panels import relu_panel as relu_panel
from normscope.theory.teacher_student.rates import complete_overlap_rate as complete_overlap_rate
from normscope.theory.teacher_student.rates import effective_lr as effective_lr
from normscope.theory.teacher_student.rates import fixed_gamma as fixed_gamma
from normscope.theory.teacher_student.rates import gain_rate as gain_rate
from normscope.theory.teacher_student.rates import late_length as late_length
from normscope.theory.teacher_student.rates import learning_rates as learning_rates
from normscope.theory.teacher_student.rates import max_effective_lr as max_effective_lr
from normscope.theory.teacher_student.rates import max_lr as max_lr
from normscope.theory.teacher_student.rates import overlap_deficit as overlap_deficit
from normscope.theory.teacher_student.rates import overlap_rate as overlap_rate
from normscope.theory.teacher_student.rates import steady_state as steady_state
from normscope.theory.teacher_student.relu_errors import (
    published_relu_error as published_relu_error,
)
from normscope.theory.teacher_student.relu_errors import relu_error as relu_error
from normscope.theory.teacher_student.relu_errors import relu_threshold as relu_threshold
from normscope.theory.teacher_student.samples import Data as Data
from normscope.theory.teacher_student.samples import simulated_errors as simulated_errors
from normscope.theory.teacher_student.solved import ConvexRelu as ConvexRelu
from normscope.theory.teacher_student.solved import LinearSolutions as LinearSolutions
from normscope.theory.teacher_student.students import STUDENTS as STUDENTS
from normscope.theory.teacher_student.students import cross_moment as cross_moment
from normscope.theory.teacher_student.students import (
    gradient_along_student as gradient_along_student,
)
from normscope.theory.teacher_student.students import (
    gradient_along_teacher as gradient_along_teacher,
)
from normscope.theory.teacher_student.students import gradient_power as gradient_power
from normscope.theory.teacher_student.students import target_moment as target_moment
from normscope.theory.teacher_student.trained import BatchNormSgd as BatchNormSgd
from normscope.theory.teacher_student.trained import ReluDescent as ReluDescent
