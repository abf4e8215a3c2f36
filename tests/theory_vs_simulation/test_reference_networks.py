"""The golden numbers of kind mc: networks drawn afresh, within the band of each entry."""

import numpy as np
import pytest
import torch

import normscope as ns
import simulation as sim
from golden.fisher import SIMULATED

pytestmark = pytest.mark.slow
FIGURE = ["relu_100", "relu_200", "relu_400", "tanh_100", "tanh_200", "tanh_400"]
TRAINED = [k for k, e in SIMULATED.items() if e.function == "lambda_max, BN"]


def within(name, values):
    entry = SIMULATED[name]
    gap = np.abs(np.mean(values, axis=0) - np.asarray(entry.value))
    assert (gap <= np.asarray(entry.band)).all(), (np.mean(values, axis=0), entry.value)


@pytest.mark.parametrize("name", FIGURE)
def test_plain_networks_with_and_without_mean_subtraction(name):
    entry = SIMULATED[f"mc_fig1_{name}"]
    i = entry.inputs
    spec = ns.mlp(
        i["widths"],
        activation=i["act"],
        weight_variance=i["sigma_w2"],
        bias_variance=i["sigma_b2"],
    )
    t = i["T"]
    plain, centred = [], []
    for seed in range(entry.networks):
        total = sum(sim.layer_grams(sim.draw(spec, seed, t))).reshape(t, t)
        plain.append(sim.largest(total, t))
        total = total - total.mean(dim=0)
        centred.append(sim.largest(total - total.mean(dim=1, keepdim=True), t))
    within(f"mc_fig1_{name}", plain)
    within(f"mc_fig1_ms_{name}", centred)
    theory = ns.predict(spec, samples=t, theory="corrected")
    mean = sim.mean_of(plain)
    # the top eigenvalue mixes with the bulk, which shifts it by an amount that does not grow
    assert mean.value > theory.lambda_max - 4 * mean.error
    assert mean.value < theory.lambda_max + 4 * mean.error + 5.0


@pytest.mark.parametrize("name", TRAINED)
def test_batch_norm_networks(name):
    entry = SIMULATED[name]
    i = entry.inputs
    common = {"weight_variance": 2.0, "norm": "batch", "gamma": i["gamma"]}
    if i["kind"] == "fc":
        spec = ns.mlp(i["w"], bias_variance=i.get("sb2", 0.5), **common)
    else:
        spec = ns.cnn(
            (3, 32, 32),
            channels=i["chan"][1:],
            kernel=i["kernel"],
            stride=i["stride"],
            outputs=i["C"],
            bias_variance=0.5,
            **common,
        )
    nets = {"mc_cnn_frozen_g1.0_T200": 3, "mc_fc_mnist_frozen_g1.0": 2}.get(name, entry.networks)
    values = []
    for seed in range(nets):
        net = sim.draw(spec, seed, i["T"], dtype=torch.float32)
        net = net.frozen() if i["mode"] == "frozen" else net
        values.append(sim.lanczos_lambda_max(net, "weight", steps=24))
    within(name, values)
    theory = "frozen" if i["mode"] == "frozen" else "corrected"
    made = ns.predict(spec, samples=i["T"], theory=theory)
    assert made.lower * 0.98 <= np.mean(values) <= made.upper


def test_train_mode_layer_by_layer():
    first = SIMULATED["mc_bnhid_layer1"]
    t = first.inputs["T"]
    spec = ns.mlp(first.inputs["widths"], norm="batch", gamma=1.0)
    rows = []
    for seed in range(first.networks):
        grams = sim.dense_grams(sim.draw(spec, seed, t))
        pairs = [sim.entries(grams[f"weight.{layer}"]) for layer in (1, 2, 3, 4)]
        rows.append([(d, o, (d + (t - 1) * o) / t) for d, o in pairs])
    for layer in (1, 2, 3, 4):
        within(f"mc_bnhid_layer{layer}", [row[layer - 1] for row in rows])


@pytest.mark.parametrize("name", ["mc_layers_fc_vanilla", "mc_layers_cnn_vanilla"])
def test_mean_direction_layer_by_layer(name):
    entry = SIMULATED[name]
    i = entry.inputs
    variances = {"weight_variance": 2.0, "bias_variance": 0.5}
    if "w" in i:
        spec = ns.mlp(i["w"], **variances)
    else:
        spec = ns.cnn((3, 32, 32), channels=i["ch"][1:], stride=2, outputs=i["C"], **variances)
    rows = []
    for seed in range(entry.networks):
        net = sim.draw(spec, seed, i["T"], dtype=torch.float32)
        terms = sim.mean_direction_terms(net)
        rows.append([terms[f"weight.{layer}"] for layer in range(1, spec.depth + 1)])
    within(name, rows)
    theory = ns.predict(spec, samples=i["T"], theory="corrected").per_layer
    for layer in range(1, spec.depth):  # layer 1 carries an O(1) term of its own
        mean = sim.mean_of([row[layer] for row in rows])
        assert mean.sigmas(theory[layer]) < 4


def test_residual_networks():
    entry = SIMULATED["mc_resnet_relu"]
    i = entry.inputs
    spec = ns.residual_mlp(
        [i["M"]] * i["L"] + [i["C"]],
        branch_scale=i["beta"],
        weight_variance=i["sigma_w2"],
        bias_variance=i["sigma_b2"],
    )
    t = i["T"]
    values = [
        sim.largest(sum(sim.layer_grams(sim.draw(spec, seed, t))), t)
        for seed in range(entry.networks)
    ]
    within("mc_resnet_relu", values)
    assert (
        sim.mean_of(values).sigmas(ns.predict(spec, samples=t, theory="corrected").lambda_max) < 4
    )
