"""Ctrl-C between and inside the training runs of a search: what was known by then is returned."""

import sys

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.train.stability.trials import Bench, Recipe


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 6, generator=generator), torch.randint(3, (64,), generator=generator)


SEARCHES = {
    "suggest_lr": lambda: ns.suggest_lr(net(), data(), steps=5, tol=1.0),
    "what_if": lambda: ns.what_if(net(), data(), ["norm-before-last"], steps=5, tol=1.0),
}


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("search", SEARCHES)
def test_an_interrupt_while_the_untrained_model_is_looked_at(search, count, monkeypatch):
    """Each search looks at it several times, the last ones after the bisection."""
    own, calls = Recipe.reference, []

    def reference(self, *given, **options):
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return own(self, *given, **options)

    monkeypatch.setattr(Recipe, "reference", reference)
    found = SEARCHES[search]()
    assert len(calls) >= count
    assert "interrupted" in found.ended


@pytest.mark.parametrize("search", SEARCHES)
def test_an_interrupt_between_two_training_runs(search, monkeypatch):
    own, calls = Bench.run, []

    def run(self, *given, **options):
        calls.append(self.steps)
        if calls.count(calls[-1]) == 2 and calls[-1] != calls[0]:  # in the race of suggest_lr
            raise KeyboardInterrupt
        if search == "what_if" and len(calls) > 30:
            raise KeyboardInterrupt
        return own(self, *given, **options)

    monkeypatch.setattr(Bench, "run", run)
    found = SEARCHES[search]()
    assert "interrupted" in found.ended


def test_an_interrupt_while_the_rate_is_tried(monkeypatch):
    def tried(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["normscope.diagnose.trial"], "train", tried)
    found = ns.examine(net(), data(), lr=1e3)
    assert found.interrupted
    assert "NOT COMPLETE: interrupted during 'trial'" in found.summary()
    assert found["trial"].rungs == ()
    assert found["sharpness"].largest > 0


def test_an_error_after_a_step_costs_nothing():
    def full(_):
        raise OSError(28, "No space left on device")

    found = ns.examine(net(), data(), after_step=full)
    assert found["sharpness"].largest > 0
    assert any("after_step failed" in note and "No space left" in note for note in found.notes)
