"""The oracle itself: three routes to the Fisher matrix of the same network agree."""

import pytest
import torch

import normscope as ns
import simulation as sim

UNCOUPLED = {
    "plain": ns.mlp([7, 6, 5, 3], activation="tanh", bias_variance=0.2),
    "layer norm": ns.mlp([7, 6, 5, 3], norm="layer", gamma=1.3),
    "residual": ns.residual_mlp([7, 6, 6, 6, 3], branch_scale=0.5),
    "layer norm on outputs": ns.mlp([7, 6, 5, 3], norm="layer", last_norm="layer"),
}
COUPLED = {
    "batch norm": ns.mlp([7, 6, 5, 3], norm="batch", gamma=0.7),
    "pooled convolutions": ns.cnn(
        (2, 9, 9), channels=[3, 4], stride=2, outputs=3, head="pool", norm="batch"
    ),
    "mean subtraction": ns.mlp([7, 6, 5, 3], last_norm="mean"),
}


@pytest.mark.parametrize("name", UNCOUPLED)
def test_product_of_grams_is_the_jacobian_gram(name):
    net = sim.draw(UNCOUPLED[name], 0, 4)
    dense = sim.dense_grams(net)
    for number, gram in enumerate(sim.layer_grams(net), start=1):
        torch.testing.assert_close(gram.permute(1, 0, 3, 2), dense[f"weight.{number}"])


@pytest.mark.parametrize("name", [*UNCOUPLED, *COUPLED])
def test_lanczos_and_mean_direction_agree_with_the_jacobian(name):
    net = sim.draw((UNCOUPLED | COUPLED)[name], 1, 5)
    dense = sim.dense_grams(net)
    total = sum(g for k, g in dense.items() if k.startswith("weight"))
    top = sim.lanczos_lambda_max(net, "weight", steps=60)
    assert top == pytest.approx(sim.largest(total, 5), rel=1e-10)
    terms = sim.mean_direction_terms(net)
    for key, gram in dense.items():
        oracle = float(torch.einsum("skuk->", gram)) / 25 / 3
        assert terms[key] == pytest.approx(oracle, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [*UNCOUPLED, *COUPLED])
@pytest.mark.parametrize("frozen", [False, True])
def test_random_probes_average_to_the_jacobian(name, frozen):
    """One network under an orthonormal basis of probes: their mean is exact."""
    spec, samples = (UNCOUPLED | COUPLED)[name], 5
    net = sim.draw(spec, 3, samples)
    others = torch.linalg.svd(torch.ones(1, samples))[2][1:]
    probes = others[:, None, :].expand(-1, spec.outputs, -1)
    found = sim.own_and_along(
        spec, [3] * len(others), samples, frozen=frozen, probes=probes, dtype=torch.float64
    )
    held = frozen and spec.norm is not None and spec.norm.kind == "batch"
    for key, gram in sim.dense_grams(net.frozen() if held else net).items():
        own, pair = sim.entries(gram)
        mean = (own + (samples - 1) * pair) / samples
        assert found[key].mean(axis=0) == pytest.approx((own, mean), rel=1e-9, abs=1e-12)


def test_frozen_statistics_keep_the_outputs_and_change_the_gradients():
    net = sim.draw(COUPLED["batch norm"], 2, 6)
    frozen = net.frozen()
    torch.testing.assert_close(net.outputs(net.params), frozen.outputs(net.params))
    changed = sim.dense_grams(net)["weight.1"] - sim.dense_grams(frozen)["weight.1"]
    assert changed.abs().max() > 1e-3
    assert sim.dense_grams(net)["bias.1"].abs().max() < 1e-20
