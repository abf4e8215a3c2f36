"""The claims of docs/results/advice.md in small: networks on the embedded data, both losses."""

import copy
import math

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.diagnose._training_runs import TrainingRuns
from normscope.diagnose.learning_rate import suggest_lr
from normscope.diagnose.subject import as_subject
from normscope.train import fit

pytestmark = pytest.mark.slow

NETWORKS = {
    "none": {"norm": None},
    "batch": {"norm": "batch"},
    "small gamma": {"norm": "batch", "gamma": 0.2},
}
LOSSES = ("cross_entropy", "mse")
ORDERS = (101, 102)  # of the samples; the advice was found with another
BATCH = 32


@pytest.fixture(scope="module")
def advised():
    torch.set_default_dtype(torch.float64)
    found = {}
    for name, options in NETWORKS.items():
        for loss in LOSSES:
            model = ns.network("mlp:64-40-40-40-10", seed=7, **options)
            found[name, loss] = model, suggest_lr(model, "digits", loss, batch_size=BATCH)
    return found


def reached(model, loss, lr):
    """Mean of the last 20 of 200 losses, over two orders; infinite if one diverged."""
    runs = [
        fit(copy.deepcopy(model), "digits", loss, lr=lr, steps=200, batch_size=BATCH, seed=seed)
        for seed in ORDERS
    ]
    return float(np.mean([math.inf if r.diverged else r.losses[-20:].mean() for r in runs]))


def test_the_recommended_rate_is_safe_and_nearly_the_best(advised):
    ratios = {}
    for key, (model, advice) in advised.items():
        assert advice.ok, (key, advice.reason)
        here = reached(model, key[1], advice.lr)
        assert math.isfinite(here), key
        top = min(advice.bound("does-not-learn").high, advice.bound("diverges").high)
        grid = [top * 2.0**k for k in range(-5, 1)]  # what is lower or higher is far worse
        ratios[key] = here / min(reached(model, key[1], lr) for lr in grid)
    assert sum(ratio > 1.25 for ratio in ratios.values()) <= 1, ratios


def test_far_above_a_limit_training_fails_its_criterion(advised):
    outcomes = []
    for (_, loss), (model, advice) in advised.items():
        for name in ("diverges", "does-not-learn"):
            lr = 4 * advice.bound(name).high
            if lr == math.inf:
                continue
            subject = as_subject(model, "digits", loss, batch_size=BATCH)
            bench = TrainingRuns(subject, 50, ORDERS, 0.2).bench(steps=50, tick=lambda: None)
            for seed in ORDERS:
                bench.run(lr, seed)
            outcomes += [t.diverged if name == "diverges" else not t.learned for t in bench.trials]
    assert len(outcomes) >= 2 * len(advised)
    assert np.mean(outcomes) >= 0.9


def test_the_cost_is_that_of_about_thirty_training_runs(advised):
    updates = [advice.updates for _, advice in advised.values()]
    assert np.median(updates) <= 30 * 50 * 1.3
    assert max(updates) <= 2 * 30 * 50
