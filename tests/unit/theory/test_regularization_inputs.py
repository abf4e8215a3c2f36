"""Gamma decay and gaps: what is no number, of another length, or no law is refused by name."""

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.theory import regularization as reg

N = np.random.default_rng(0).standard_normal((20, 3))
ONE = N[:, 0]
FLAT = np.ones(20)
NAN = float("nan")
SIX = np.ones((20, 3, 3))


def gap(**changed):
    given = {"slope": FLAT, "curvature": FLAT, "normalized": ONE, "gamma": 1.0, "batch_size": 8}
    return reg.loss_gap(**(given | changed))


def linear(**changed):
    return reg.linear_gap_in_batch(8, **changed)


def softplus(**changed):
    given = {"gamma": 1.0, "beta": 0.0, "batch_size": 8, "target_scale": 1.0, "target_shift": 0.0}
    return reg.softplus_gap(**(given | changed))


def weight_norm(**changed):
    given = {"gamma": 1.0, "beta": 0.0, "population_mean": 0.0, "weight_norm": 1.0}
    return reg.population_to_weight_norm(**(given | {"input_variance": 1.0} | changed))


def first(**changed):
    given = {"sample_means": N, "sample_squares": N**2, "batch_size": 8}
    return reg.correlated_first_order(N, N, **(given | changed))


def decay(mean=0.1, scale=1.0):
    return reg.measured_decay(scale, 1.0, mean_variance=mean, deviation_variance=0.1)


BAD = {
    "size text": (lambda: reg.deviation_mean("x"), "batch_size must be real numbers"),
    "size nan": (lambda: reg.mean_variance(NAN), "batch_size must be finite"),
    "skewness nan": (lambda: reg.mean_deviation_covariance(8, skewness=NAN), "skewness"),
    "variance nan": (lambda: reg.effective_batch_size(NAN), "mean_variance must be finite"),
    "gamma nan": (lambda: gap(gamma=NAN), "gamma must be finite"),
    "given skewness": (lambda: gap(skewness=NAN), "skewness must be finite"),
    "two gammas": (lambda: gap(gamma=[1.0, 2.0]), "gamma must be one number"),
    "lengths": (lambda: gap(normalized=ONE[:5]), "normalized must hold one number per sample, 20"),
    "curvatures": (lambda: gap(curvature=FLAT[:5]), "one number per sample, 5"),
    "no samples": (lambda: gap(slope=[], curvature=[], normalized=[]), "no samples"),
    "weights of 0": (lambda: gap(weights=0 * FLAT), "not all of them are 0"),
    "weights below 0": (lambda: gap(weights=-FLAT), "not negative"),
    "linear gamma": (lambda: linear(gamma=NAN), "gamma must be finite"),
    "correlation": (lambda: linear(correlation=1.5), "between -1 and 1. Got 1.5"),
    "scale": (lambda: reg.linear_scale_in_batch(8, correlation=NAN), "correlation must be finite"),
    "decayed": (lambda: reg.linear_scale_decayed(-1.0), "zeta must be at least 0"),
    "softplus": (lambda: softplus(target_scale=NAN), "target_scale must be finite"),
    "softplus beta": (lambda: reg.softplus_decay(1.0, NAN, 8), "beta must be finite"),
    "mean nan": (lambda: weight_norm(population_mean=NAN), "population_mean must be finite"),
    "norm 0": (lambda: weight_norm(weight_norm=0.0), "weight_norm must be above 0"),
    "deep gammas": (lambda: reg.deep_first_order(N, N, np.ones(2), 8), "one per neuron: 3"),
    "deep gammas 2": (lambda: reg.deep_second_order(N, SIX, np.ones(2), 8), "one per neuron: 3"),
    "hessian nan": (lambda: reg.deep_second_order(N, SIX * NAN, 1.0, 8), "hessian must be finite"),
    "empty": (lambda: reg.deep_decay(N[:0], N[:0], 8), "not empty"),
    "curvature nan": (lambda: decay(scale=NAN), "scale_curvature must be finite"),
    "variance below 0": (lambda: decay(mean=-0.1), "not negative"),
    "moments": (lambda: first(sample_means=N[:4], sample_squares=N[:4]), "same samples"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_one_gamma_stands_for_all_neurons():
    assert reg.deep_first_order(N, N**2, 2.0, 8) == pytest.approx(
        reg.deep_first_order(N, N**2, [2.0, 2.0, 2.0], 8), rel=1e-12
    )
