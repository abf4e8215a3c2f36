"""Order parameters of wide networks are the theory's: what is left vanishes with the width."""

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.measure.probes.order_parameters import order_parameters

SAMPLES = 24
NAMES = ("q", "q_st", "qhat", "qhat_st", "qtilde", "qtilde_st")


def inputs(generator):
    """Samples of unequal length that overlap, as data do."""
    common = 0.6 * torch.randn(1, 30, generator=generator)
    lengths = torch.rand(SAMPLES, 1, generator=generator) + 0.5
    return common + lengths * torch.randn(SAMPLES, 30, generator=generator)


def deviations(spec_of, width, networks, statistics):
    """Measured over theory, less one: mean and standard error over networks, (6, layers)."""
    ratios = []
    for seed in range(networks):
        x = inputs(torch.Generator().manual_seed(seed))
        net = ns.build(spec_of(width), seed=1000 * width + seed)
        profile = order_parameters(net, (x, None), statistics=statistics)
        assert profile.theory, profile.theory_reason
        ratios.append([profile.ratio(name) for name in NAMES])
    found = np.array(ratios) - 1
    return found.mean(axis=0), found.std(axis=0, ddof=1) / networks**0.5


def plain(activation, weight, bias, **options):
    def spec_of(width):
        widths = [30, width, width, 4]
        return ns.mlp(
            widths, activation=activation, weight_variance=weight, bias_variance=bias, **options
        )

    return spec_of


CASES = {
    "relu": (plain("relu", 2.0, 0.1), "batch"),
    "erf": (plain("erf(0.9)", 3.0, 0.64), "batch"),
    "layer norm": (plain("relu", 2.0, 0.1, norm="layer"), "batch"),
    "batch norm, frozen": (plain("relu", 2.0, 0.1, norm="batch"), "frozen"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_limit_of_infinite_width_is_the_theory(name):
    """deviation = a + b / width, fitted to three widths: a is zero within its error.

    The kernel behind a batch norm is divided by its mean variance, which leaves out O(1/samples).
    """
    spec_of, statistics = CASES[name]
    left_out = 1 / SAMPLES if statistics == "frozen" else 0.0
    widths = (60, 120, 240)
    means, errors = zip(
        *(deviations(spec_of, w, n, statistics) for w, n in zip(widths, (40, 32, 24), strict=True)),
        strict=True,
    )
    design = np.array([[1, 1 / w] for w in widths])
    for index in np.ndindex(means[0].shape):
        y = np.array([m[index] for m in means])
        s = np.array([e[index] for e in errors])
        if (s == 0).all():  # q-tilde of the read-out is 1, q-hat of the inputs is the data's
            np.testing.assert_allclose(y, 0, atol=1e-12)
            continue
        inverse = np.linalg.inv((design / s[:, None]).T @ (design / s[:, None]))
        intercept = (inverse @ (design / s[:, None]).T @ (y / s))[0]
        what = f"{NAMES[index[0]]} of layer {index[1] + 1}"
        assert abs(intercept) < 4.5 * inverse[0, 0] ** 0.5 + left_out, f"{what}: {intercept:.3g}"
        assert inverse[0, 0] ** 0.5 < 0.2, f"{what}: the networks scatter too much to say"


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("batch norm", ns.mlp([200, 200, 200, 200, 4], norm="batch", gamma=0.7)),
        ("residual", ns.residual_mlp([200, 200, 200, 200, 4], branch_scale=0.5)),
        ("conv", ns.cnn((12, 7, 7), channels=[80, 80], outputs=4, bias_variance=0.2)),
        ("conv, pooled", ns.cnn((12, 7, 7), channels=[80, 80], outputs=4, head="pool")),
        ("conv, batch norm", ns.cnn((12, 7, 7), channels=[80, 80], outputs=4, norm="batch")),
    ],
)
def test_networks_whose_inputs_are_alike(name, spec):
    """Independent inputs, where the recursion of numbers holds: 4.5 s.e. plus 5 (1/T + 1/width)."""
    ratios, samples = [], 60
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x = 1.7 * torch.randn(samples, *spec.input_shape, generator=generator)
        profile = order_parameters(ns.build(spec, seed=seed), (x, None))
        rows = {n: np.array(profile.ratio(n)) for n in NAMES}
        for n in ("qhat_st", "q_st"):
            rows[n][0] = np.nan  # inputs do not overlap: a ratio of two chances
        ratios.append([rows[n] for n in NAMES])
    found = np.array(ratios) - 1
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    allowed = 4.5 * error + 5 * (1 / samples + 1 / min(spec.widths[1:-1]))
    assert (np.isnan(mean) | (np.abs(mean) < allowed)).all(), np.round(mean, 3)
    assert np.isnan(mean).sum() == 2
    assert np.nanmax(error[[0, 2, 4], :-1]) < 0.15
