"""Weights, biases, gamma and beta of every layer against drawn networks.

Each entry of T F* (mean diagonal, mean direction) must lie within 4.5 standard errors plus an
allowance for the remainder of the theory: 5/width for all networks, and 5/n more where n values
stand behind a batch statistic.

The theory gives the order of the remainder, not its size: the factor 5 was chosen after first runs
of these networks. So this test finds a missing or wrong term, not an error of a few per cent; a
fit of the remainder over several widths would be the stronger test.
"""

import numpy as np
import pytest

import normscope as ns
import simulation as sim
from normscope.theory.grams import gram_of
from normscope.theory.meanfield.networks import stack
from normscope.theory.meanfield.order import backward
from normscope.theory.meanfield.vanilla import plain_forward

VARIANCES = {"weight_variance": 1.8, "bias_variance": 0.3}
DENSE = [200, 200, 200, 2]
IMAGE = {"channels": [80, 80], "stride": 2, "outputs": 2}


def batch(gamma=1.3, **options):
    return {"norm": "batch", "gamma": gamma} | options


DEEP = [200, 200, 200, 200, 1]
PIXELS = (12, 17, 17)
SPECS = {
    "plain relu": ns.mlp(DENSE, **VARIANCES),
    "plain tanh": ns.mlp(DENSE, activation="tanh", **VARIANCES),
    "residual": ns.residual_mlp([200] * 4 + [2], branch_scale=0.6, **VARIANCES),
    "layer norm relu": ns.mlp(DENSE, norm="layer", gamma=1.5, **VARIANCES),
    "layer norm tanh": ns.mlp(DENSE, norm="layer", gamma=0.6, activation="tanh", **VARIANCES),
    "frozen relu": ns.mlp(DENSE, **batch(), **VARIANCES),
    "frozen gelu": ns.mlp(DENSE, **batch(activation="gelu"), **VARIANCES),
    "train relu": ns.mlp(DEEP, **batch(), **VARIANCES),
    "train gelu": ns.mlp(DEEP, **batch(activation="gelu"), **VARIANCES),
    "conv plain flatten": ns.cnn(PIXELS, **IMAGE, **VARIANCES),
    "conv plain pool": ns.cnn(PIXELS, head="pool", **IMAGE, **VARIANCES),
    "conv layer norm pool": ns.cnn(
        PIXELS, head="pool", norm="layer", gamma=1.3, **IMAGE, **VARIANCES
    ),
    "conv frozen pool": ns.cnn(PIXELS, head="pool", **batch(), **IMAGE, **VARIANCES),
    "conv train flatten": ns.cnn(PIXELS, **batch(), **IMAGE, **VARIANCES),
    "conv train pool": ns.cnn(PIXELS, head="pool", **batch(), **IMAGE, **VARIANCES),
}


def simulated(spec, theory, samples, nets):
    """(diagonal, mean direction) of T F*, per parameter tensor, one row per network."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in range(nets):
        net = sim.draw(spec, seed, samples)
        net = net.frozen() if theory == "frozen" else net
        for key, gram in sim.dense_grams(net).items():
            own, pair = sim.entries(gram)
            rows.setdefault(key, []).append((own, (own + (samples - 1) * pair) / samples))
    return {key: np.array(row) for key, row in rows.items()}


def overlap_term(spec, samples):
    """What random input overlaps add to the mean direction of layer 1 (their variance is 1/N_0)."""
    nets, step = stack([spec], samples), 1e-4
    high, low = (
        backward(nets, plain_forward(nets, overlap=s)).same_st[0, 0] for s in (step, -step)
    )
    return (samples - 1) / samples * float(high - low) / (2 * step)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_parameter(name):
    spec = SPECS[name]
    theory = "frozen" if "frozen" in name else "corrected"
    samples = 16 if "conv" in name else 60 if "train" in name else 40
    gram = gram_of(stack([spec], samples), theory, "all")
    width = min(spec.widths[1:-1])
    behind = samples * min(spec.positions[1:-1]) if spec.norm and spec.norm.kind == "batch" else 0
    remainder = 5 / width + (5 / behind if behind else 0)
    for key, rows in simulated(spec, theory, samples, nets=16).items():
        kind, layer = key.split(".")
        terms = gram.kinds[kind]
        own, pair = (x[int(layer) - 1, 0] for x in (terms.diagonal, terms.offdiagonal))
        expected = np.array([own, (own + (samples - 1) * pair) / samples])
        if (rows < 1e-20).all():  # hidden biases under train-mode batch norm
            assert theory == "corrected"
            assert kind == "bias"
            assert (expected == 0).all()
            continue
        error = rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
        allowed = 4.5 * error + remainder * np.abs(expected) + 1e-12
        gap = np.abs(rows.mean(axis=0) - expected)
        if key == "weight.1" and not (behind and theory == "corrected"):
            gap = gap[:1]  # its mean direction has an O(1) overlap term: tested below
        assert (gap <= allowed[: len(gap)]).all(), (key, rows.mean(axis=0), expected, error)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [50, 400])
def test_overlap_term_of_the_first_layer(inputs):
    """It does not depend on the input width, and is no part of the leading order."""
    spec = ns.mlp([inputs, 400, 400, 1], weight_variance=2.0, bias_variance=0.5)
    samples = 300
    values = [
        sim.mean_direction_terms(sim.draw(spec, seed, samples))["weight.1"] for seed in range(24)
    ]
    leading = ns.predict(spec, samples=samples).per_layer[0]
    mean = sim.mean_of(values)
    assert mean.value - leading > 5 * mean.error
    assert mean.sigmas(leading + overlap_term(spec, samples)) < 4.5


def test_hidden_biases_vanish_exactly_behind_train_mode_batch_norm():
    spec = ns.mlp([6, 8, 8, 2], norm="batch", bias_variance=0.3, activation="tanh")
    grams = sim.dense_grams(sim.draw(spec, 0, 9))
    assert float(grams["bias.1"].abs().max()) < 1e-25
    assert float(grams["bias.2"].abs().max()) < 1e-25
    made = ns.predict(spec, samples=9, parameters="all")
    assert made.per_kind["bias"] == 1.0
