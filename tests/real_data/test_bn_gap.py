"""Loss gaps of networks trained on real data: measured against formula and prediction.

One norm layer under batch statistics, the others under population statistics.
"""

import numpy as np
import pytest

from normscope.data import load_data
from normscope.measure import bn_regularization
from normscope.nn import PopulationRefresher, network, refresh_population
from normscope.subject.transforms import apply_transform
from normscope.train import adaptive_gamma_decay, evaluate, fit

pytestmark = pytest.mark.real_data
SIZES = [16, 32, 64, 128, 256]


@pytest.fixture(scope="module")
def mnist():
    return load_data("mnist")


def trained(mnist, activation, loss):
    """An MLP, trained so far that more training still pays: the labels are not yet its own."""
    model = network("mlp:784-48-32-10", activation=activation, seed=1).float()
    decay, lr = (0.03, 0.05) if loss == "cross_entropy" else (0.0, 0.01)
    run = fit(
        model, mnist, loss, lr=lr, momentum=0.9, steps=300, batch_size=128, weight_decay=decay
    )
    assert run.outcome == "finished"
    return model


def gaps(mnist, activation, loss):
    model = trained(mnist, activation, loss)
    found = bn_regularization(
        model, mnist, loss, batch_size=SIZES, num_batches=600, max_samples=4000
    )
    print(f"\n{activation}, {loss}\n{found.summary()}")
    return found


def off(found, name, least):
    """Largest distance of measured/``name`` from 1 over layers and M >= least."""
    return max(
        np.abs(layer.measured / getattr(layer, name) - 1)[layer.batch_sizes >= least].max()
        for layer in found.layers
    )


def test_softplus_with_the_squared_loss(mnist):
    found = gaps(mnist, "softplus", "mse")
    assert off(found, "formula", 16) < 0.10
    assert off(found, "predicted", 16) < 0.10
    for layer in found.layers:  # T1: the gap falls like 1/M
        slope = np.polyfit(np.log(SIZES), np.log(layer.measured), 1)[0]
        assert slope == pytest.approx(-1, abs=0.1)
        assert abs(layer.paper[-1] / layer.measured[-1] - 1) > 0.05  # the diagonal form is off


def test_softplus_with_cross_entropy(mnist):
    # at M = 16 the order 1/M^2 is 5 % in the first and 11 % in the second layer
    found = gaps(mnist, "softplus", "cross_entropy")
    assert off(found, "formula", 32) < 0.10
    assert off(found, "formula", 16) < 0.15
    for layer in found.layers:
        assert layer.paper[-1] < 0.5 * layer.measured[-1]  # neurons see the same batch


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_relu(mnist, loss):
    found = gaps(mnist, "relu", loss)
    assert off(found, "predicted", 64) < 0.10
    # the Hessian alone lacks the kinks, and what it lacks does not vanish with M
    assert off(found, "formula", 256) > 0.03


def test_cnn6_with_correlated_positions(mnist):
    model = network("cnn6", channels=1, side=28, seed=1).float()
    fit(model, mnist, "cross_entropy", lr=0.02, momentum=0.9, steps=40, batch_size=64)
    found = bn_regularization(
        model, mnist, "cross_entropy", batch_size=64, layers=["norm4", "norm5"],
        num_batches=240, max_samples=512, probes=6, chunk_size=128, seed=7,
    )  # fmt: skip
    print(f"\nCNN6\n{found.summary()}")
    for layer in found.layers:
        print(layer.layer, "ratio", layer.ratio, "+-", layer.ratio_error)
        assert abs(layer.ratio[0] - 1) < 4 * layer.ratio_error[0]
        assert layer.ratio_error[0] < 0.1
    conv = found.layer("norm4")
    assert 64 < conv.effective_batch_size[0] < 64 * conv.positions


def test_gamma_decay_makes_up_for_batch_norm(mnist):
    """T3: validation loss of population norm with gamma decay is nearer to that of batch norm."""
    data, test = mnist.subset(5000, seed=0), load_data("mnist", "test")
    size = 16
    differences = []
    for seed in range(3):
        results = {}
        for kind in ("batch", "population", "decay"):
            model = network("mlp:784-64-64-10", seed=seed).float()
            options = {}
            if kind != "batch":
                model = apply_transform(model, "replace:batch->population")
                inputs = data.flat().images
                options["refreshers"] = [
                    PopulationRefresher(model, inputs, num_samples=1000, every=5)
                ]
            if kind == "decay":
                decay = adaptive_gamma_decay(
                    model, data, "cross_entropy", batch_size=size, every=100, num_samples=1000
                )
                options["refreshers"].append(decay)
                options["penalty"] = decay
            fit(
                model, data, "cross_entropy", lr=0.02, momentum=0.9, epochs=6, batch_size=size,
                seed=seed, **options,
            )  # fmt: skip
            if kind != "batch":
                refresh_population(model, inputs)
            results[kind] = evaluate(model, test).loss
        print(seed, results)
        differences.append(
            (results["population"] - results["batch"], results["decay"] - results["batch"])
        )
    without, with_decay = np.mean(differences, axis=0)
    print("without", without, "with", with_decay)
    assert abs(with_decay) < abs(without)
