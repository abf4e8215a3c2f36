"""ResNet-20 learns CIFAR-10: the loss falls over 200 steps."""

import math

import pytest

from normscope.data import FlipAndCrop, load_data
from normscope.nn import network
from normscope.train import fit

pytestmark = pytest.mark.real_data


def test_resnet20_trains():
    model = network("resnet20").float()
    assert sum(p.numel() for p in model.parameters()) == 269722
    run = fit(
        model,
        load_data("cifar10"),
        "cross_entropy",
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        steps=200,
        batch_size=64,
        augment=FlipAndCrop(),
    )
    assert run.outcome == "finished"
    first, last = run.losses[:20], run.losses[-50:]
    print(f"{first.mean():.3f} -> {last.mean():.3f} in {run.seconds:.0f} s")
    errors = [(part.var(ddof=1) / len(part)) ** 0.5 for part in (first, last)]
    assert last.mean() < first.mean() - 5 * math.hypot(*errors)
    assert last.mean() + 5 * errors[1] < math.log(10)  # better than chance
