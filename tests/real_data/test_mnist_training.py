"""A batch-norm MLP learns MNIST in one epoch."""

import pytest

from normscope.data import load_data
from normscope.nn import network
from normscope.train import evaluate, fit

pytestmark = pytest.mark.real_data


def test_one_epoch_reaches_96_percent():
    data, test = load_data("mnist"), load_data("mnist", "test")
    accuracies = []
    for seed in range(3):
        model = network("mlp:784-256-256-10", norm="batch", seed=seed).float()
        run = fit(
            model, data, "cross_entropy", lr=0.1, momentum=0.9, epochs=1, batch_size=128, seed=seed
        )
        assert run.outcome == "finished"
        accuracies.append(evaluate(model, test).accuracy)
    print("accuracies", accuracies)
    assert sum(accuracies) / 3 >= 0.96
