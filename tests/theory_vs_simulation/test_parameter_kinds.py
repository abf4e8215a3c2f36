"""Weights, biases, gamma and beta of every layer against drawn networks.

Each entry of T F* (mean diagonal, mean direction), over its theory, is simulated at several widths
of the whole network, inputs included, and extrapolated to infinite width (``extrapolation``): the
limit is 1. The theory holds for every T, except behind batch norm in train mode or with a smooth
activation, where it is an expansion in the n values behind a statistic. There several n give
several limits, and the limit of these is 1. E[1/s^2] = n/(n-3)/s_l^2 makes 1/(n-3) the natural
variable of that expansion.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import normscope as ns
import simulation as sim
from extrapolation import Limit, limit, mean_and_error
from normscope.spec import NetworkSpec
from normscope.theory.grams import gram_of
from normscope.theory.meanfield.networks import stack
from normscope.theory.meanfield.order import backward
from normscope.theory.meanfield.vanilla import plain_forward

VARIANCES = {"weight_variance": 1.8, "bias_variance": 0.3}
BATCH = {"norm": "batch", "gamma": 1.3} | VARIANCES
TOGETHER = 50  # networks simulated at once


@dataclass(frozen=True)
class Case:
    """Networks by width, how many of each width, and the numbers of samples."""

    spec_of: Callable[[int], NetworkSpec]
    nets: dict[int, int]  # by width
    samples: tuple[int, ...] = (4,)
    theory: str = "corrected"


def dense(outputs=2, **options):
    return lambda width: ns.mlp([width] * 3 + [outputs], **{**VARIANCES, **options})


def images(*sides, **options):
    """Kernel 2 and stride 1, which all overlap: 4 x 4 pixels, then 9 and 4 positions."""
    kind = {"kernel": 2, "stride": 1, "outputs": 2} | VARIANCES | options
    return lambda width: ns.cnn((width, *(sides or (4, 4))), channels=[width, width], **kind)


WIDE = {16: 2000, 32: 3000, 64: 1000, 128: 1000, 256: 1000}
CHANNELS = {8: 2000, 16: 3000, 32: 1000, 64: 1000, 128: 800}
BEHIND = {32: 1000, 48: 1000, 96: 500, 192: 500, 288: 300}
FEW = {8: 800, 16: 1100, 32: 400, 64: 450, 128: 400}
COUNTS = (8, 16, 32, 64)

QUICK = {
    "plain relu": Case(dense(), WIDE),
    "frozen relu": Case(dense(**BATCH), WIDE, (12,), "frozen"),
    "conv plain pool": Case(images(head="pool"), CHANNELS),
}
THOROUGH = {
    "plain tanh": Case(dense(activation="tanh"), WIDE),
    "residual": Case(
        lambda width: ns.residual_mlp([width] * 4 + [2], branch_scale=0.6, **VARIANCES), WIDE
    ),
    "layer norm tanh": Case(dense(norm="layer", gamma=0.6, activation="tanh"), WIDE),
    "layer norm relu": Case(dense(norm="layer", gamma=1.5), WIDE),
    "frozen gelu": Case(dense(**BATCH, activation="gelu"), BEHIND, COUNTS, "frozen"),
    "train relu": Case(dense(4, **BATCH), BEHIND, COUNTS),
    "train gelu": Case(dense(4, **BATCH, activation="gelu"), BEHIND, COUNTS),
    "conv plain flatten": Case(images(7, 11, kernel=3, stride=2), FEW, (2,)),
    "conv layer norm pool": Case(images(head="pool", norm="layer", gamma=1.3), CHANNELS),
    "conv frozen pool": Case(images(head="pool", **BATCH), CHANNELS, (4,), "frozen"),
    "conv train flatten": Case(images(**BATCH), FEW, (4, 8, 16, 32)),
    "conv train pool": Case(images(head="pool", **BATCH), FEW, (4, 8, 16, 32)),
}


def theory_of(case: Case, spec: NetworkSpec, samples: int) -> dict[str, np.ndarray]:
    """(diagonal, mean direction) of T F*, per parameter tensor."""
    kinds = gram_of(stack([spec], samples), case.theory, "all").kinds
    found = {}
    for kind, terms in kinds.items():
        for row in range(spec.depth):
            own, pair = terms.diagonal[row, 0], terms.offdiagonal[row, 0]
            found[f"{kind}.{row + 1}"] = np.array([own, (own + (samples - 1) * pair) / samples])
    return found


def simulated(
    case: Case, spec: NetworkSpec, samples: int, seeds: np.ndarray
) -> dict[str, np.ndarray]:
    """The same of drawn networks, one row per network."""
    parts = [
        sim.own_and_along(spec, some.tolist(), samples, frozen=case.theory == "frozen")
        for some in np.array_split(seeds, len(seeds) // TOGETHER)
    ]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def width_limits(name: str, case: Case, samples: int) -> dict[str, Limit]:
    """Simulation over theory at infinite width, per parameter tensor."""
    rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for width, nets in case.nets.items():
        spec = case.spec_of(width)
        theory = theory_of(case, spec, samples)
        own = [*name.encode(), width, samples]  # no two simulations share a network
        seeds = np.random.default_rng(own).integers(2**62, size=nets)
        for key, values in simulated(case, spec, samples, seeds).items():
            if not theory[key].any():  # hidden biases under train-mode batch norm
                assert key.startswith("bias")
                assert case.theory == "corrected"
                assert np.abs(values).max() < 1e-9
                continue
            rows.setdefault(key, []).append(mean_and_error(values / theory[key]))
    return {key: limit(list(case.nets), *zip(*row, strict=True)) for key, row in rows.items()}


def check_kinds(name: str, case: Case) -> None:
    at = [width_limits(name, case, samples) for samples in case.samples]
    positions = min(case.spec_of(min(case.nets)).positions[1:-1])
    behind = [samples * positions - 3 for samples in case.samples]
    for key in at[0]:
        found = [limits[key] for limits in at]
        for one in found:
            one.check(one.value, (name, key), resolution=1.0)  # the fits over widths are fits
        last = found[0]
        if len(found) > 1:
            last = limit(behind, [x.value for x in found], [x.error for x in found])
        last.check(1.0, (name, key))


@pytest.mark.parametrize("name", QUICK)
def test_every_kind_of_parameter(name):
    check_kinds(name, QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", THOROUGH)
def test_every_kind_of_parameter_in_more_networks(name):
    check_kinds(name, THOROUGH[name])


def overlap_term(spec, samples):
    """What random input overlaps add to the mean direction of layer 1 (their variance is 1/N_0)."""
    nets, step = stack([spec], samples), 1e-4
    high, low = (
        backward(nets, plain_forward(nets, overlap=s)).same_st[0, 0] for s in (step, -step)
    )
    return (samples - 1) / samples * float(high - low) / (2 * step)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [50, 400])
def test_overlap_term_of_the_first_layer(inputs):
    """It does not depend on the input width, and is no part of the leading order."""
    spec = ns.mlp([inputs, 400, 400, 1], weight_variance=2.0, bias_variance=0.5)
    samples = 300
    values = [
        sim.mean_direction_terms(sim.draw(spec, seed, samples))["weight.1"] for seed in range(24)
    ]
    leading = ns.predict(spec, samples=samples, theory="corrected").per_layer[0]
    mean = sim.mean_of(values)
    assert mean.value - leading > 5 * mean.error
    assert mean.sigmas(leading + overlap_term(spec, samples)) < 4.5


def test_hidden_biases_vanish_exactly_behind_train_mode_batch_norm():
    spec = ns.mlp([6, 8, 8, 2], norm="batch", bias_variance=0.3, activation="tanh")
    grams = sim.dense_grams(sim.draw(spec, 0, 9))
    assert float(grams["bias.1"].abs().max()) < 1e-25
    assert float(grams["bias.2"].abs().max()) < 1e-25
    made = ns.predict(spec, samples=9, parameters="all", theory="corrected")
    assert made.per_kind["bias"] == 1.0
