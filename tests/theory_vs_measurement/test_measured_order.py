"""Order parameters measured on networks, over the theory's, at the limit of infinite width.

Where the theory is an expansion in the number of samples (q-tilde under batch norm in train mode),
the limits of several numbers of samples are extrapolated in turn, as in
``theory_vs_simulation/test_parameter_kinds``, where the theory itself is tested far more closely:
here it is the measurement that could go wrong.
"""

import numpy as np
import pytest
import torch

import normscope as ns
from extrapolation import Limit, limit, mean_and_error
from normscope.measure.probes.order_parameters import order_parameters

NAMES = ("q", "q_st", "qhat", "qhat_st", "qtilde", "qtilde_st")
NETS = {16: 60, 32: 90, 64: 40, 128: 40, 256: 40}  # by width
CHANNELS = {8: 60, 16: 80, 32: 40, 64: 40, 128: 30}
RESOLUTION = 0.1


def data(shape, samples, generator):
    """Samples of unequal length that overlap, as data do."""
    common = 0.6 * torch.randn(1, *shape, generator=generator)
    lengths = torch.rand(samples, 1, generator=generator) + 0.5
    return common + lengths * torch.randn(samples, *shape, generator=generator)


def alike(shape, samples, generator):
    """Independent samples of one length: the recursion of numbers holds."""
    return 1.7 * torch.randn(samples, *shape, generator=generator)


def ratios(spec, x, seed, statistics):
    """Measured over theory of the six order parameters; overlaps of ``alike`` inputs left out."""
    profile = order_parameters(ns.build(spec, seed=seed), (x, None), statistics=statistics)
    assert profile.theory, profile.theory_reason
    return np.array([profile.ratio(name) for name in NAMES])


def width_limit(name, spec_of, nets, *, samples, inputs=data, statistics="batch"):
    """Limits of the ratios, with the inputs' width if the spec's grows: (ratios that exist,)."""
    rows = []
    for width, count in nets.items():
        spec = spec_of(width)
        found = []
        for seed in np.random.default_rng([*name.encode(), width, samples]).integers(
            2**31, size=count
        ):
            generator = torch.Generator().manual_seed(int(seed))
            x = inputs(spec.input_shape, samples, generator)
            found.append(ratios(spec, x, int(seed) + 1, statistics))
        table = np.array(found)
        if inputs is alike:
            table[:, [NAMES.index("q_st"), NAMES.index("qhat_st")], 0] = np.nan  # 0/0 by chance
        exist = np.isfinite(table).all(axis=0)
        rows.append(mean_and_error(table[:, exist]))
    return limit(list(nets), *zip(*rows, strict=True))


def dense(activation, weight, bias, **options):
    variances = {"weight_variance": weight, "bias_variance": bias}
    return lambda width: ns.mlp(
        [30, width, width, 16], activation=activation, **variances, **options
    )


FIXED_INPUTS = {"batch norm, frozen": (dense("relu", 2.0, 0.1, norm="batch"), "frozen")}
MORE_FIXED_INPUTS = {
    "relu": (dense("relu", 2.0, 0.1), "batch"),
    "erf": (dense("erf(0.9)", 3.0, 0.64), "batch"),
    "layer norm": (dense("relu", 2.0, 0.1, norm="layer"), "batch"),
}


def check_fixed_inputs(name, spec_of, statistics):
    found = width_limit(name, spec_of, NETS, samples=12, statistics=statistics)
    assert found.value.size == 6 * 3
    found.check(1.0, name, resolution=RESOLUTION)


@pytest.mark.parametrize("name", FIXED_INPUTS)
def test_networks_on_data(name):
    check_fixed_inputs(name, *FIXED_INPUTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FIXED_INPUTS)
def test_more_networks_on_data(name):
    check_fixed_inputs(name, *MORE_FIXED_INPUTS[name])


def images(**options):
    kind = {"kernel": 2, "stride": 1, "outputs": 16, "bias_variance": 0.2} | options
    return lambda width: ns.cnn((width, 4, 4), channels=[width, width], **kind)


ANY_NUMBER = {
    "residual": (lambda m: ns.residual_mlp([m, m, m, 16], branch_scale=0.5), NETS),
    "conv": (images(), CHANNELS),
}
MORE_OF_ANY_NUMBER = {"conv, pooled": (images(head="pool"), CHANNELS)}
MANY = {
    "batch norm": (lambda m: ns.mlp([m, m, m, 16], norm="batch", gamma=0.7), NETS, 1),
    "conv, batch norm": (images(norm="batch"), CHANNELS, 4),
}


def check_alike_inputs(name, spec_of, nets):
    found = width_limit(name, spec_of, nets, samples=6, inputs=alike)
    assert found.value.size == 6 * spec_of(8).depth - 2
    found.check(1.0, name, resolution=RESOLUTION)


@pytest.mark.parametrize("name", ANY_NUMBER)
def test_networks_whose_inputs_are_alike(name):
    check_alike_inputs(name, *ANY_NUMBER[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_OF_ANY_NUMBER)
def test_more_networks_whose_inputs_are_alike(name):
    check_alike_inputs(name, *MORE_OF_ANY_NUMBER[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_networks_that_the_theory_has_for_many_samples(name):
    spec_of, nets, positions = MANY[name]
    counts = (8, 16, 32, 64) if positions == 1 else (4, 8, 16, 32)
    nets = {width: count // 2 for width, count in nets.items()}  # of each number of samples
    found = [width_limit(name, spec_of, nets, samples=n, inputs=alike) for n in counts]
    for one in found:
        one.check(one.value, name, resolution=1.0)  # the fits over widths are fits
    behind = [n * positions - 3 for n in counts]
    last: Limit = limit(behind, [x.value for x in found], [x.error for x in found])
    last.check(1.0, name, resolution=0.15)  # the read-out's overlap scatters most
