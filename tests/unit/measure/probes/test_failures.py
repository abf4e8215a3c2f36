"""Models that cannot be run: every measurement says why in its own words, and the way out."""

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import MeasurementError

X = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(9) % 3
MEASUREMENTS = {
    "activations": ns.activations,
    "gradients": ns.gradients,
    "conditioning": ns.conditioning,
    "gradient_noise": ns.gradient_noise,
    "landscape": ns.landscape,
    "order_parameters": ns.order_parameters,
}
every = pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@every
@pytest.mark.parametrize("statistics", ["batch", "frozen"])
def test_one_sample_has_no_batch_statistics(measure, statistics):
    with pytest.raises(MeasurementError, match=r"single sample: use larger .*drop_last=True"):
        measure(net(), (X[:1], Y[:1]), "cross_entropy", statistics=statistics)
    if measure is not ns.gradient_noise:  # of one sample there is none
        measure(net(), (X[:1], Y[:1]), "cross_entropy", statistics="running")


@every
def test_a_batch_of_one_under_frozen_statistics(measure):
    data = [(X[:8], Y[:8]), (X[8:], Y[8:]), (X[:8], Y[:8])]
    with pytest.raises(MeasurementError, match="drop_last=True"):
        measure(net(), data, "cross_entropy", statistics="frozen")


@every
def test_inputs_that_are_no_real_numbers(measure):
    words = r"inputs int64 \(9, 4\), targets int64 \(9,\); its parameters are float64"
    with pytest.raises(MeasurementError, match=words):
        measure(net(), (X.long(), Y), "cross_entropy")


@every
def test_a_later_batch_that_does_not_fit(measure):
    data = [(X[:4], Y[:4]), (X[5:, :3], Y[5:])]
    with pytest.raises(MeasurementError, match="cannot be run"):
        measure(net(), data, "cross_entropy", statistics="running")


def test_the_error_of_the_model_is_kept():
    with pytest.raises(MeasurementError) as caught:
        ns.activations(net(), (X[:, :3], Y), statistics="frozen")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) in str(caught.value)
