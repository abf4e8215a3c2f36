"""The engine measures what the theory predicts, on networks of the papers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.measure.gram import gram_spectrum


def network(widths, activation, *, weight_variance, bias_variance, gamma=None, generator):
    """A random network as the theory describes it; weights in float32 unless the default says."""
    layers = []
    for number, (before, after) in enumerate(pairwise(widths)):
        linear = nn.Linear(before, after)
        linear.weight.data.normal_(0, (weight_variance / before) ** 0.5, generator=generator)
        linear.bias.data.normal_(0, bias_variance**0.5, generator=generator)
        layers.append(linear)
        if number < len(widths) - 2:
            if gamma is not None:
                norm = nn.BatchNorm1d(after, eps=1e-12)
                norm.weight.data.fill_(gamma)
                layers.append(norm)
            layers.append(activation())
    return nn.Sequential(*layers)


# measured once with an independent Lanczos on hand-written networks (two networks each)
@pytest.mark.parametrize(("gamma", "reference"), [(0.1, 1.610), (1.0, 161.0), (3.0, 1448.8)])
def test_train_mode_batch_norm_of_wei(gamma, reference):
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(1)
    widths = [784, 1000, 1000, 1000, 10]
    model = network(widths, nn.ReLU, weight_variance=2.0, bias_variance=0.5, gamma=gamma,
                    generator=generator)  # fmt: skip
    x = torch.randn(400, 784, generator=generator)
    risk = ns.Risk(model, x, loss="mse", statistics="batch", parameters="weights")
    measured = ns.top_eigenvalues(ns.fisher(risk)).values[0]
    spec = ns.mlp(widths, weight_variance=2.0, bias_variance=0.5, norm="batch", gamma=gamma)
    predicted = ns.predict(spec, samples=400, theory="corrected").lambda_max
    assert measured == pytest.approx(reference, rel=0.02)
    assert measured == pytest.approx(predicted, rel=0.02)


# (activation, variances, width, networks, mean, band, mean after mean subtraction, band)
FIGURE_1 = [
    (nn.ReLU, 2.0, 0.0, 100, 60, 74.353, 7.612, 8.4456, 0.7763),
    (nn.ReLU, 2.0, 0.0, 200, 40, 144.778, 14.192, 8.5099, 0.6553),
    (nn.ReLU, 2.0, 0.0, 400, 24, 281.433, 22.296, 8.4398, 0.5486),
    (nn.Tanh, 3.0, 0.64, 100, 60, 26.487, 2.0762, 5.6721, 0.3716),
    (nn.Tanh, 3.0, 0.64, 200, 40, 50.113, 4.0696, 5.8904, 0.3821),
    (nn.Tanh, 3.0, 0.64, 400, 24, 96.580, 5.4682, 5.8654, 0.3882),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", FIGURE_1, ids=lambda c: f"{c[0].__name__}-{c[3]}")
def test_karakida_figure_1(case):
    activation, weight, bias, width, count, mean, band, centred_mean, centred_band = case
    generator = torch.Generator().manual_seed(width)
    found = []
    for _ in range(count):
        model = network([width, width, width, 1], activation, weight_variance=weight,
                        bias_variance=bias, generator=generator)  # fmt: skip
        x = torch.randn(width, width, generator=generator)
        risk = ns.Risk(model, x, loss="mse", statistics="batch", parameters="weights")
        found.append([gram_spectrum(risk, last_norm=n).largest for n in (None, "mean")])
    plain, centred = np.mean(found, axis=0)
    assert abs(plain - mean) <= band
    assert abs(centred - centred_mean) <= centred_band


def test_variance_norm_on_the_outputs_only_rescales():
    """Networks against the leading order on their own outputs; the mean removes the outlier."""
    spec, t = ns.mlp([400, 400, 400, 1], bias_variance=0.1, last_norm="variance"), 50
    found = []
    for seed in range(12):
        model = ns.build(replace(spec, last_norm=None), seed)
        x = torch.randn(t, 400, generator=torch.Generator().manual_seed(seed))
        risk = ns.Risk(model, x, loss="mse", statistics="batch", parameters="weights")
        varied, both = gram_spectrum(risk, last_norm=("variance", "batch"))
        theory = ns.predict(spec, outputs=model(x).detach(), theory="corrected")
        assert both.largest < 0.2 * varied.largest
        found.append([varied.largest / theory.lambda_max, varied.trace / theory.trace])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(12)
    assert (np.abs(mean - 1) < 4 * error).all(), (mean, error)
    built = ns.Risk(ns.build(spec, 11), x, loss="mse", statistics="batch", parameters="weights")
    top = ns.top_eigenvalues(ns.fisher(built)).values[0]
    assert top == pytest.approx(varied.largest, rel=1e-4)  # the module that the spec builds
