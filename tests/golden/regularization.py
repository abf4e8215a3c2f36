"""Reference values of batch norm as a regularizer, copied as numbers.

``FORMULAS``: exact values with a relative tolerance. ``SIMULATED``: means over many simulated
batches, with the relative tolerance of a rerun.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Value(NamedTuple):
    function: str
    inputs: dict[str, Any]
    value: Any
    relative: float


MISMATCHED = {"target_scale": 1.5, "target_shift": -0.5}
FORMULAS = {
    "sigma_B mean": Value("deviation_mean", {"batch_size": 32}, 0.9765625, 1e-6),
    "sigma_B variance": Value("deviation_variance", {"batch_size": 32}, 0.015625, 1e-6),
    "sigma_B mean, rho 3": Value(
        "deviation_mean", {"batch_size": 64, "std": 2.0, "excess_kurtosis": 3.0}, 1.96484375, 1e-6
    ),
    "sigma_B variance, rho 3": Value(
        "deviation_variance", {"batch_size": 64, "std": 2.0, "excess_kurtosis": 3.0}, 0.078125, 1e-6
    ),
    "covariance": Value(
        "mean_deviation_covariance", {"batch_size": 256, "skewness": 2.0}, 0.00390625, 1e-6
    ),
    "E sigma_B": Value("gaussian_deviation_mean", {"batch_size": 8}, 0.90270333367641, 1e-8),
    "E sigma_B uncentered": Value(
        "gaussian_deviation_mean", {"batch_size": 32, "centered": False}, 0.9922191984572333, 1e-8
    ),
    "E 1/sigma_B": Value(
        "gaussian_inverse_deviation_mean", {"batch_size": 16}, 1.0882900969192593, 1e-8
    ),
    "E 1/sigma_B^2": Value(
        "gaussian_inverse_variance_mean", {"batch_size": 16}, 1.2307692307692308, 1e-8
    ),
    "zeta softplus": Value(
        "softplus_decay", {"gamma": 1.0, "beta": 0.2, "batch_size": 32}, 0.01258851346754093, 1e-6
    ),
    "zeta softplus, gamma 2": Value(
        "softplus_decay", {"gamma": 2.0, "beta": 0.3, "batch_size": 16}, 0.0251390617600827, 1e-6
    ),
    "gap softplus": Value(
        "softplus_gap",
        {"gamma": 1.0, "beta": 0.2, "batch_size": 32, **MISMATCHED},
        0.015547871484154688,
        1e-6,
    ),
    "gap softplus independent": Value(
        "softplus_gap",
        {"gamma": 1.0, "beta": 0.2, "batch_size": 32, "in_batch": False, **MISMATCHED},
        0.009566461775041071,
        1e-6,
    ),
    "zeta relu": Value("relu_decay", {"batch_size": 16}, 0.0234375, 1e-9),
    "zeta relu uncentered": Value(
        "relu_decay", {"batch_size": 16, "centered": False}, 0.0078125, 1e-9
    ),
    "zeta linear exact": Value("linear_decay_exact", {"batch_size": 32}, 0.02752897283664757, 1e-8),
    "zeta linear exact uncentered": Value(
        "linear_decay_exact", {"batch_size": 32, "centered": False}, 0.009107063958125772, 1e-8
    ),
    "linear gap in batch": Value(
        "linear_gap_in_batch",
        {"batch_size": 16, "gamma": 0.8, "correlation": 0.6},
        0.022918159293911094,
        1e-8,
    ),
    "linear gap independent": Value(
        "linear_gap_independent",
        {"batch_size": 16, "gamma": 0.8, "correlation": 0.6},
        0.05608229194029404,
        1e-8,
    ),
    "weight norm": Value(
        "population_to_weight_norm",
        {
            "gamma": 1.5,
            "beta": 0.1,
            "population_mean": 0.3,
            "weight_norm": 2.0,
            "input_variance": 0.25,
        },
        (3.0, -0.35),
        1e-9,
    ),
}
# R_f + R_q of a softplus unit whose n is Exp(1) - 1, labels as above, M = 32
EXPONENTIAL_GAP = {True: 0.0685272675, False: 0.0196597957}
EFFECTIVE_BATCH = ({"batch_size": 32, "positions": 64, "common": 0.1}, 280.54794520547944)
SIMULATED = {
    "softplus matched in batch": (32, 0.012726, 0.02),
    "softplus matched independent": (32, 0.014733, 0.02),
    "softplus mismatched in batch": (16, 0.031505, 0.02),
    "linear in batch": (16, 0.022881, 0.03),
    "var sigma_B laplace": (256, 0.00479, 0.03),
    "var sigma_B gauss": (32, 0.01551, 0.02),
}
