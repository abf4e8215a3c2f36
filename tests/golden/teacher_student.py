"""Reference values of the teacher-student model, copied as numbers.

``THEORY``: quantity, inputs, value, relative tolerance; lists in the order of the comments.
``SIMULATED``: means of finite systems with the relative band in which a rerun must fall, its own
standard error added.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Value(NamedTuple):
    quantity: str
    inputs: dict[str, Any]
    value: Any
    relative: float


THEORY = (
    Value("I1", {"Q": 0.8, "R": 0.5}, -0.07640088758230829, 1e-8),
    Value("I1", {"Q": 1.3, "R": -0.4}, -0.751314341861342, 1e-8),
    Value("I2", {"Q": 0.8, "R": 0.5}, 0.23505122042567395, 1e-8),
    Value("I2", {"Q": 1.3, "R": -0.4}, 0.7837865775898567, 1e-8),
    Value("I3", {"Q": 0.8, "R": 0.5}, 0.20224944526105737, 1e-8),
    Value("I3", {"Q": 1.3, "R": -0.4}, 0.3861578938671727, 1e-8),
    Value("gamma0", {"zeta": 0.25}, 0.6666666666666666, 1e-9),
    Value("lambda_Q", {"eta": 0.5, "zeta": 0.25}, -0.375, 1e-9),
    Value("lambda_R", {"eta": 0.5, "zeta": 0.25}, -0.2962962962962963, 1e-9),
    Value("lambda_R, complete", {"eta": 0.5, "zeta": 0.25}, -0.2993827160493827, 1e-9),
    Value("lambda_R", {"eta": 1.5, "zeta": 0.0}, -0.375, 1e-9),
    Value("eta_max", {"zeta": 0.25}, 3.0, 1e-9),
    Value("eta_max", {"zeta": 0.0}, 2.0, 1e-9),
    Value("eta_raw_max", {"zeta": 0.25}, 4.5, 1e-9),
    Value("bn_R_deficit", {"eta": 0.5, "zeta": 0.25}, 0.00925925926, 1e-6),
    # gamma, R
    Value("bn_steady", {"eta": 0.5, "zeta": 0.25}, (0.659472565107486, 0.9888555812346601), 1e-4),
    Value("bn_steady", {"eta": 1.0, "zeta": 0.05}, (0.9060100618967588, 0.9965502503603204), 1e-4),
    # gamma, R, L
    Value(
        "ode_end, bn",
        {"Q": 0.5, "R": 0.1, "eta": 0.5, "zeta": 0.25, "T": 16},
        (0.4929137009761992, 0.7755345889783344, 1.0659220356807364),
        1e-4,
    ),
    # Q, R
    Value(
        "ode_end, sgd",
        {"Q": 0.5, "R": 0.1, "eta": 1.0, "T": 12},
        (0.9978739956772862, 0.9973771889931852),
        1e-4,
    ),
    Value("eps_sgd_linear", {"alpha": 0.5, "S": 0.25}, 0.75, 1e-9),
    Value("eps_sgd_linear", {"alpha": 2.0, "S": 0.25}, 0.25, 1e-9),
    Value("G_mp", {"lam": 0.25, "alpha": 0.5}, 2.56155281280883, 1e-8),
    Value("eps_ridge", {"lam": 0.25, "alpha": 0.5, "S": 0.25}, 0.6403882032022075, 1e-7),
    Value("eps_ridge", {"lam": 0.25, "alpha": 2.0, "S": 0.25}, 0.17539052967910618, 1e-7),
    Value("eps_wn_gd", {"zeta": 0.015625, "alpha": 0.9, "S": 0.25}, 0.9462355956198267, 1e-7),
    Value("eps_wn_gd", {"zeta": 0.015625, "alpha": 1.5, "S": 0.25}, 0.3995983432469983, 1e-7),
    # gamma^2, gamma R
    Value("relu_op_paper", {"alpha": 0.8, "S": 0.25}, (0.5666666666666667, 0.4), 1e-8),
    Value(
        "relu_op_paper",
        {"alpha": 0.8, "S": 0.25, "a": 1.5},
        (0.24144144144144142, 0.26666666666666666),
        1e-8,
    ),
    Value("relu_op_paper", {"alpha": 4.0, "S": 0.25}, (1.25, 1.0), 1e-6),
    Value("eps_relu_paper", {"alpha": 1.0, "S": 0.25}, 0.875, 1e-8),
    Value("eps_relu_paper", {"alpha": 1.5, "S": 0.25}, 1.0, 1e-8),
    # gamma^2, u, eps, regime
    Value(
        "relu_erm",
        {"alpha": 0.5, "S": 0.25},
        (0.363972822125999, 0.28880548862449407, 0.8931809224385053, "interp"),
        1e-4,
    ),
    Value(
        "relu_erm",
        {"alpha": 1.0, "S": 0.25},
        (0.9199884749841232, 0.6121106171392939, 0.8478836203527677, "interp"),
        1e-4,
    ),
    Value(
        "relu_erm",
        {"alpha": 2.5, "S": 0.25},
        (1.3787614501521965, 0.993262230005235, 0.6961184950708632, "noninterp"),
        1e-4,
    ),
    Value("relu_alpha_c", {"S": 0.25}, 1.4649089819740202, 1e-4),
    # the text beside the table of values
    Value("relu_alpha_c", {"S": 0.0}, 2.0, 1e-3),
    Value("relu_alpha_c", {"S": 0.05}, 1.608, 1e-3),
    Value("relu_alpha_c", {"S": 0.5}, 1.417, 1e-3),
    Value("relu_alpha_c", {"S": 1.0}, 1.382, 1e-3),
    Value("I2", {"Q": 1.0, "R": 1.0}, 0.0, 1e-12),
    Value("bn_steady", {"eta": 2.0, "zeta": 0.05}, (0.8882, 0.9759), 1e-4),
    Value("bn_steady", {"eta": 2.178, "zeta": 0.05}, (0.8777, 0.9633), 1e-4),
    Value(
        "ode_end, bn",
        {"Q": 0.5, "R": 0.1, "eta": 1.5, "zeta": 0.1, "T": 12},
        (0.8007, 0.9729, 1.3675),
        1e-4,
    ),
    Value(
        "ode_end, bn",
        {"Q": 0.5, "R": 0.1, "eta": 1.0, "zeta": 0.0, "T": 12},
        (0.9119, 0.9608, 1.2405),
        1e-4,
    ),
    Value("ode_end, sgd", {"Q": 0.5, "R": 0.1, "eta": 0.5, "T": 16}, (0.9774, 0.9970), 1e-4),
)

SIMULATED = {
    "slope, sgd, lr 1": Value(
        "slope_log_1mR", {"method": "sgd", "lr": 1.0, "N": 2000, "R0": 0.9999}, -0.503, 0.04
    ),
    "slope, wn, lr 1.8": Value(
        "slope_log_1mR", {"method": "wn", "lr": 1.8, "N": 2000, "R0": 0.9999}, -0.179, 0.05
    ),
    "online, bn": Value(
        "online_sgd_end",
        {"N": 4000, "Q": 0.5, "R": 0.1, "L": 1.0, "eta": 0.5, "zeta": 0.25, "T": 16},
        (0.4893, 0.7745, 1.0655),
        0.03,
    ),
    "convexified ReLU": Value("eps_relu_convex", {"N": 400, "alpha": 1.0, "S": 0.25}, 0.848, 0.08),
    "batch norm over least squares": Value(
        "eps_bn_linear_over_ls",
        {"alpha": 0.9, "M": 32, "S": 0.25, "N": 512, "steps": 20000, "seeds": 3, "lr": 0.1},
        1.0,
        0.15,
    ),
}
