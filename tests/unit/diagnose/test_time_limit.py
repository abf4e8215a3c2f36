"""``max_seconds`` holds in every search for a learning rate, however many updates it asks for."""

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.train import max_stable_lr

LIMIT = 5.0  # seconds of the machine on paper
STEP = 0.05  # that one batch takes to load


class SlowBatches:
    """A loader that takes its time for every batch."""

    def __init__(self, machine):
        torch.manual_seed(0)
        self.batches = [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(4)]
        self.machine = machine

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.machine.spend(STEP)
            yield batch


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


SEARCHES = {
    "max_stable_lr": lambda data, steps: max_stable_lr(
        net(), data, "cross_entropy", steps=steps, max_seconds=LIMIT
    ),
    "suggest_lr": lambda data, steps: ns.suggest_lr(net(), data, steps=steps, max_seconds=LIMIT),
    "what_if": lambda data, steps: ns.what_if(
        net(), data, ["scale-weights=0.5", "norm-output"], steps=steps, max_seconds=LIMIT
    ),
}


@pytest.mark.parametrize("steps", [50, 20_000, 10**9])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_searches_end_in_time(search, steps, machine):
    found = search(SlowBatches(machine), steps)
    assert machine.seconds < LIMIT + 2 * STEP
    assert found.ended
    assert any(word in found.ended for word in ("out of time", "max_seconds"))


def test_what_was_known_by_then_is_returned(machine):
    found = ns.suggest_lr(net(), SlowBatches(machine), steps=10, max_seconds=15.0)
    assert machine.seconds < 15 + 2 * STEP
    assert found.limit.trials
    assert found.bound("threshold").ok
    assert found.ended


def test_an_examination_ends_in_time(machine):
    found = ns.examine(net(), SlowBatches(machine), lr=0.1, preset="full", max_seconds=LIMIT)
    assert machine.seconds < LIMIT + 2 * STEP
    assert found.partial
    assert "sharpness" in found.measurements
