"""An error behind the measurements costs nothing that was measured."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import normscope as ns
from examinations import normalized
from normscope.diagnose.rules import RULES
from normscope.report import page
from normscope.report.charts import CHARTS

X, Y = torch.randn(32, 6), torch.randint(3, (32,))


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("dead", [(2,), (0, 2, 4)])
def test_a_dead_network_is_examined_to_the_end(dead):
    model = net()
    for place in dead:
        nn.init.zeros_(model[place].weight)
        nn.init.zeros_(model[place].bias)
    found = ns.examine(model, (X, Y), preset="standard")
    assert found["sharpness"] is not None
    assert not any("failed and is left out" in line for line in found.notes)
    assert page(found).endswith("</html>")


def test_a_rule_that_raises_becomes_a_note(monkeypatch):
    def broken(case, *_):
        raise ZeroDivisionError("division by zero")

    name = next(iter(RULES))
    monkeypatch.setitem(RULES._entries, name, replace(RULES[name], judge=broken, needs=()))
    found = ns.examine(net(), (X, Y))
    assert f"The check {name!r} failed and is left out: ZeroDivisionError" in found.notes[-1]
    assert found.findings
    assert set(found.measurements) >= {"layout", "sharpness", "activations"}


def test_numbers_that_cannot_be_summed_up_become_a_note(monkeypatch):
    module = sys.modules["normscope.diagnose.examine"]
    monkeypatch.setattr(module, "headline", lambda *_: 1 / 0)
    found = ns.examine(net(), (X, Y))
    assert found.numbers == ()
    assert any("could not be summed up: ZeroDivisionError" in line for line in found.notes)


@pytest.mark.parametrize("part", ["chart", "to_frame"])
def test_a_part_of_the_page_that_raises_becomes_a_note(part, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("<b>division</b> by zero")

    whole = page(normalized())
    if part == "chart":
        monkeypatch.setitem(CHARTS._entries, "Activations", broken)
    else:
        monkeypatch.setattr(type(normalized()["activations"]), part, broken)
    made = page(normalized())
    assert "Left out here: ZeroDivisionError: &lt;b&gt;division&lt;/b&gt; by zero" in made
    assert made.count("<section") == whole.count("<section")
    assert made.count("<figure") == whole.count("<figure") - (part == "chart")


def test_the_callback_sees_every_measurement_and_the_last_is_the_answer():
    seen = []
    found = ns.examine(net(), (X, Y), after_step=seen.append)
    assert [len(one.measurements) for one in seen] == sorted(len(one.measurements) for one in seen)
    assert len(seen) == sum(step.status == "ok" for step in found.plan.steps)
    assert [one.interrupted for one in seen] == [True] * (len(seen) - 1) + [False]
    assert seen[-1].findings == found.findings
    assert seen[-1].measurements == found.measurements
