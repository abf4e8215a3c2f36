"""The theory of the examined network: beside what is measured, and for changes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.diagnose.comparison import compared, predictions
from normscope.diagnose.predicted import changed
from normscope.diagnose.subject import as_subject
from normscope.results import PredictedChanges

GONE = "there is no prediction to compare with"


class Residual(nn.Module):
    def __init__(self, width=64, blocks=2, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.head = nn.Linear(30, width), nn.Linear(width, 4)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(blocks))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        for layer in (self.stem, self.head, *self.layers):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(torch.relu(norm(x)))
        return self.head(x)


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 30, generator=generator), torch.arange(64) % 4


def subject(model):
    return as_subject(model, batch(), "cross_entropy")


def test_a_residual_network_is_predicted_beside_the_measurement():
    of = subject(Residual(width=128))
    found = predictions(of)
    assert [p.theory for p in found] == ["graph", "graph"]
    assert [p.network for p in found] == ["Residual", "Residual without norms"]
    assert found[0].level == "gram"
    assert compared(of, {"prediction": found}).ratio == pytest.approx(1, rel=0.25)
    assert found.chart().to_dict()["datasets"]


def test_changes_are_those_of_networks_that_have_them():
    of = subject(Residual())
    found = changed(of)
    at = dict(zip(found.changes, found.ratios(), strict=True))
    assert at["as it is"] == 1
    assert 1 < at["width x 2"] < at["width x 4"] < at["width x 8"]
    wide = changed(subject(Residual(width=128)))
    measured = wide.lambda_max[0] / found.lambda_max[0]
    assert at["width x 2"] == pytest.approx(measured, rel=0.25)  # other weights
    deep = changed(subject(Residual(blocks=4)))
    assert at["depth: 2 blocks or layers twice"] == pytest.approx(
        deep.lambda_max[0] / found.lambda_max[0], rel=0.25
    )
    assert at["gamma x 0.5"] < 1 < at["gamma x 2"]
    assert {"layer norm in place of the norms", "without norms"} <= set(at)
    assert found.to_frame().shape == (len(at), 6)
    assert "width x 8" in found.summary()
    again = PredictedChanges.from_json(found.to_json())
    assert again.changes == found.changes
    np.testing.assert_array_equal(again.lambda_max, found.lambda_max)


def test_a_network_without_norms_has_no_gains():
    net = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))
    assert changed(subject(net)).changes == ("as it is", "width x 2", "width x 4", "width x 8")


@pytest.mark.slow
def test_the_page_shows_both(tmp_path):
    found = ns.examine(Residual(), batch(), preset="standard", trial_seconds=0)
    profile = found["order_parameters"]
    for name in ("q", "qhat", "qtilde"):
        assert profile.ratio(name) == pytest.approx(1, rel=0.5)
    page = (found.save(tmp_path / "a.html")).read_text(encoding="utf-8")
    for heading in ("Power of signals and gradients", "What theory says of changes"):
        assert heading in page
    assert "width x 8" in page


def test_what_has_no_rule_is_named_once():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)
    )
    x, y = batch()
    plan = ns.plan_examination(net, (x.reshape(-1, 1, 5, 6), y), preset="standard")
    reasons = {step.name: step.reason for step in plan.steps if step.status == "skipped"}
    assert "max pooling, node '2'" in reasons["prediction"]
    assert "\n" not in reasons["prediction"]
    assert reasons["comparison"] == reasons["order_parameters"] == reasons["changes"] == GONE
