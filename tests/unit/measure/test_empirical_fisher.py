"""The empirical Fisher matrix means the same whichever way a loss is written."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns


def empirical(model, x, y, loss):
    risk = ns.Risk(model, x, y, loss=loss, statistics="batch")
    return ns.fisher(risk, kind="empirical").to_dense()


def close(a, b, tolerance=1e-8):
    return float((a - b).norm() / b.norm()) < tolerance


class TestSegmentation:
    model = staticmethod(lambda: nn.Conv2d(2, 3, 3, padding=1))
    x, y = torch.randn(4, 2, 5, 5).double(), torch.randint(3, (4, 5, 5))

    @pytest.mark.parametrize(
        "loss",
        [
            nn.CrossEntropyLoss(),
            nn.CrossEntropyLoss(ignore_index=255),
            nn.CrossEntropyLoss(label_smoothing=1e-12),
            nn.CrossEntropyLoss(weight=torch.ones(3).double()),
            functional.cross_entropy,
        ],
        ids=["plain", "ignoring-none", "smoothed-by-nothing", "weighted-by-one", "function"],
    )
    def test_a_sample_is_a_pixel(self, loss):
        model = self.model()
        expected = empirical(model, self.x, self.y, "cross_entropy")
        assert close(empirical(model, self.x, self.y, loss), expected)

    def test_sums(self):
        model = self.model()
        plain, other = (
            empirical(model, self.x, self.y, nn.CrossEntropyLoss(reduction="sum", **options))
            for options in ({}, {"ignore_index": 255})
        )
        assert close(other, plain)

    @pytest.mark.parametrize("ignored", [1, -100])
    def test_ignored_pixels_do_not_count(self, ignored):
        model, y = self.model(), self.y.clone()
        y[:, 2:] = ignored
        loss = (
            nn.CrossEntropyLoss(ignore_index=ignored) if ignored > 0 else functional.cross_entropy
        )
        z = model(self.x)
        each = functional.cross_entropy(z, y, ignore_index=ignored, reduction="none").flatten()
        each = each[(y != ignored).flatten()]
        rows = torch.stack([
            torch.cat([g.flatten() for g in torch.autograd.grad(
                one, list(model.parameters()), retain_graph=True)])
            for one in each
        ])  # fmt: skip
        assert close(empirical(model, self.x, y, loss), rows.T @ rows / len(rows))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_of_the_model_give_the_true_matrix_on_average(reduction):
    model, x = nn.Linear(2, 2), torch.randn(2, 2)
    loss = nn.BCEWithLogitsLoss(reduction=reduction)
    p, total = model(x).sigmoid().detach(), 0.0
    for labels in itertools.product([0.0, 1.0], repeat=4):
        y = torch.tensor(labels).reshape(2, 2)
        chance = float((p * y + (1 - p) * (1 - y)).prod())
        total = total + chance * empirical(model, x, y, loss)
    assert close(total, ns.fisher(ns.Risk(model, x, loss=loss, statistics="batch")).to_dense())


@pytest.mark.parametrize(
    "loss",
    [
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(3).double()),
        functional.binary_cross_entropy_with_logits,
    ],
    ids=["weighted-by-one", "function"],
)
def test_yes_or_no(loss):
    model, x, y = nn.Linear(2, 3), torch.randn(6, 2), torch.randint(2, (6, 3)).double()
    assert close(empirical(model, x, y, loss), empirical(model, x, y, nn.BCEWithLogitsLoss()))
