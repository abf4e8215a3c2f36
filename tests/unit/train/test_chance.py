"""Loss of the best constant answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.subject.objective import as_loss
from normscope.train.stability.judge import chance_loss


def best_constant(module, outputs, targets):
    """By gradient descent over constant answers."""
    answer = torch.zeros(outputs.shape[1:], requires_grad=True)
    optimizer = torch.optim.LBFGS([answer], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = module(answer.expand_as(outputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(closure().detach())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("columns", [1, 3])
def test_yes_or_no(reduction, columns):
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(40, columns, generator=generator) < 0.3).double()
    outputs = torch.randn(40, columns, generator=generator)
    module = nn.BCEWithLogitsLoss(reduction=reduction)
    found = chance_loss(as_loss(module), [(outputs, targets)])
    assert found == pytest.approx(best_constant(module, outputs, targets), rel=1e-6)


def test_numbers_and_labels():
    outputs, numbers = torch.randn(40, 3), torch.randn(40, 3)
    found = chance_loss(as_loss(nn.MSELoss()), [(outputs, numbers)])
    assert found == pytest.approx(best_constant(nn.MSELoss(), outputs, numbers), rel=1e-6)
    labels = torch.arange(40) % 3
    found = chance_loss(as_loss("cross_entropy"), [(outputs, labels)])
    assert found == pytest.approx(best_constant(nn.CrossEntropyLoss(), outputs, labels), rel=1e-6)


def test_where_it_says_nothing():
    same = torch.ones(8, 1)
    assert math.isnan(chance_loss(as_loss(nn.BCEWithLogitsLoss()), [(same, same)]))
    assert math.isnan(chance_loss(as_loss(nn.L1Loss()), [(same, same)]))
