"""The public predict: specs without torch, modules on their data, and what neither can do."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from fingerprints import fingerprint
from normscope.errors import InputError, MeasurementError, TheoryError
from normscope.nn.init import initialize
from normscope.nn.zoo.residual import cifar_preresnet, cifar_resnet
from normscope.results import Prediction, PredictionSet


def vectors(samples=40, features=30):
    return torch.randn(samples, features, generator=torch.Generator().manual_seed(1))


def images(samples=8, size=8):
    return torch.randn(samples, 3, size, size, generator=torch.Generator().manual_seed(2))


def dense(*norms, width=64, activation=nn.ReLU):
    middle = [nn.Linear(30, width), *norms, activation(), nn.Linear(width, width), activation()]
    return nn.Sequential(*middle, nn.Linear(width, 3))


def measured(model, x, **options):
    risk = ns.Risk(model, x, loss="mse", statistics="batch", **options)
    return ns.top_eigenvalues(ns.fisher(risk)).largest


def test_specs_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import normscope as ns\n"
        "spec = ns.mlp([20, 30, 3], norm='batch')\n"
        "print(repr(ns.predict(spec, samples=50)), repr(ns.predict([spec], theory='corrected')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "theory='graph', samples=50" in done.stdout
    assert "PredictionSet(1 predictions)" in done.stdout


@pytest.mark.parametrize("norm", [None, "batch"])
def test_a_built_spec_and_its_spec_agree(norm):
    spec = ns.mlp([30, 400, 400, 3], norm=norm)
    x = vectors()
    net = ns.build(spec)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):  # the variance of the spec, to the last digit
            wanted = 2 / layer.in_features
            layer.weight.data *= (wanted / layer.weight.data.square().mean()).sqrt()
    of_spec = ns.predict(spec, x.numpy())
    of_module = ns.predict(net, (x, None), parameters="weights")
    assert of_module.level == of_spec.level == "gram"
    assert of_module.lambda_max == pytest.approx(of_spec.lambda_max, rel=1e-6)
    assert of_module.trace == pytest.approx(of_spec.trace, rel=1e-6)
    assert of_module.num_parameters == of_spec.num_parameters
    assert isinstance(ns.predict([spec, spec], x.numpy()), PredictionSet)


def test_what_the_answer_for_a_module_holds():
    net = cifar_resnet(8, width=8)
    made = ns.predict(net, (images(), None))
    assert made.spec is None
    assert (made.network, made.level, made.statistics) == (type(net).__name__, "positions", "batch")
    assert made.samples == 8
    assert made.parameters == "all"
    assert made.num_parameters == sum(p.numel() for p in net.parameters())
    assert set(made.per_kind) == {"weight", "bias", "gamma", "beta"}
    assert made.layers[0] == "conv1"
    assert sum(part.trace for part in made.contributions) == pytest.approx(made.trace)
    assert made.per_layer.sum() == pytest.approx(made.lambda_max)
    assert made.critical_lr(0.9) == pytest.approx(3.8 / made.lambda_max)
    assert any("8 of 8 layers agree with initialization 'he'" in a for a in made.assumptions)
    assert any("train mode" in a for a in made.assumptions)
    assert made.equations
    assert Prediction.from_json(made.to_json()) == made


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
def test_residual_networks_and_what_is_measured(statistics):
    x, ratios = images(64), []
    for seed in range(4):
        net = initialize(cifar_preresnet(8, width=16), "he", seed=seed)
        made = ns.predict(net, (x, None), statistics=statistics)
        risk = ns.Risk(net, x, loss="mse", statistics=statistics)
        found = ns.top_eigenvalues(ns.fisher(risk), tol=0.02).largest
        ratios.append(np.log(found / made.lambda_max_split))
    assert made.ok
    error = np.std(ratios, ddof=1) / 4**0.5
    assert abs(np.mean(ratios)) < 0.15 + 3 * error  # width 16


def test_eps_of_the_size_of_the_variance_is_kept():
    x = vectors()
    lambdas = {}
    for eps in (1e-5, 0.5):
        net = initialize(dense(nn.BatchNorm1d(600, eps=eps), width=600), "he")
        lambdas[eps] = ns.predict(net, (x, None), parameters="weights").lambda_max_split
        assert measured(net, x, parameters="weights") == pytest.approx(lambdas[eps], rel=0.1)
    assert lambdas[0.5] < 0.9 * lambdas[1e-5]


def test_one_pass_gives_the_wider_network():
    def of(width):
        return ns.predict(cifar_resnet(8, width=width), (images(), None), level="homogeneous")

    scaled, wide = of(8).scaled(width=4), of(32)
    assert scaled.num_parameters == wide.num_parameters
    for name in ("lambda_max", "lambda_max_split", "mean_direction", "trace"):
        assert getattr(scaled, name) == pytest.approx(getattr(wide, name), rel=0.15), name
    assert wide.trace > 3 * of(8).trace


def test_a_module_takes_its_data_as_measurements_do():
    net = ns.network("mlp:64-32-10")
    assert ns.predict(net, "digits", samples=50).samples == 50
    loader = [(vectors(20, 64), None), (vectors(30, 64), None)]
    assert ns.predict(net, loader).samples == 20


def test_lower_estimates_say_so():
    made = ns.predict(dense(activation=nn.Tanh, width=200), (vectors(), None))
    assert made.lambda_max > 1.05 * made.mean_direction
    assert "lambda_max is a lower estimate" in made.reason
    assert "10 to 50 %" in made.reason


def trained():
    net, x = dense(), vectors()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        (net(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
    return net


def orthogonal():
    net = dense()
    nn.init.orthogonal_(net[2].weight)
    return net


def tied():
    net = dense()
    net.insert(3, nn.ReLU())
    net.insert(4, net[2])
    return net


@pytest.mark.parametrize(
    ("make", "words"),
    [(trained, "look trained"), (orthogonal, "orthogonal"), (tied, "uses the weights of 2")],
)
def test_weights_that_are_no_independent_draws_are_flagged(make, words):
    made = ns.predict(make(), (vectors(), None))
    assert not made.ok
    assert words in made.reason


class Sums(nn.Module):
    """x + relu(x): both branches are made of one random layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(30, 20), nn.Linear(20, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(h + torch.relu(h))


def pooled():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(72, 3))  # fmt: skip


REFUSED = {
    "max pooling": (pooled, images(), {}, TheoryError, "max pooling, node '2'"),
    "a shared factor": (Sums, vectors(), {}, TheoryError, "add"),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(216, 3)),
        images(), {}, TheoryError, "'0'",
    ),
    "wrong shape": (dense, vectors(features=29), {}, MeasurementError, "30"),
    "a batch of one": (
        lambda: dense(nn.BatchNorm1d(64)), vectors(1), {}, InputError, "one sample",
    ),
    "no data": (dense, None, {}, InputError, r"running it on a batch.*torch\.randn"),
    "another theory": (dense, vectors(), {"theory": "frozen"}, InputError, "theory='graph'"),
    "outputs": (dense, vectors(), {"outputs": np.ones((40, 3))}, InputError, "Leave outputs out"),
    "level": (dense, vectors(), {"level": "grams"}, InputError, "Did you mean 'gram'"),
    "statistics": (dense, vectors(), {"statistics": "moving"}, InputError, "'moving'"),
    "parameters": (dense, vectors(), {"parameters": "conv"}, InputError, "selects nothing"),
    "budget": (
        lambda: cifar_resnet(8, width=4), images(16, 32), {"level": "gram"}, InputError,
        "level='gram' would take about .* Use level='positions'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_a_clear_error_and_leaves_the_model(what):
    make, x, options, kind, words = REFUSED[what]
    net = make()
    sample = torch.zeros(4, 30) if x is None or x.ndim == 2 else x[:2]
    before = fingerprint(net, sample)
    with pytest.raises(kind, match=words):
        ns.predict(net, None if x is None else (x, None), **options)
    assert fingerprint(net, sample) == before


def test_the_model_is_left_as_it_was():
    net = cifar_resnet(8, width=4).train()
    before = fingerprint(net, images())
    ns.predict(net, (images(), None), level="homogeneous")
    assert fingerprint(net, images()) == before


@pytest.mark.parametrize("network", [5, None, "resnet20"])
def test_what_is_neither_spec_nor_module(network):
    with pytest.raises(InputError, match="NetworkSpec"):
        ns.predict(network)
