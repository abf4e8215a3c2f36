"""Optimizers by name, and what cannot be asked of them."""

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.train.optim import build_optimizer


def test_names_and_settings():
    model = nn.Linear(2, 2)
    sgd = build_optimizer(model, "sgd", lr=0.3, momentum=0.9, weight_decay=0.01)
    assert isinstance(sgd, torch.optim.SGD)
    group = sgd.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.9, 0.01)
    assert isinstance(build_optimizer(model, "adam", lr=0.1), torch.optim.Adam)
    assert isinstance(build_optimizer(model, "adamw", lr=0.1), torch.optim.AdamW)
    own = build_optimizer(model, lambda p: torch.optim.Adagrad(p, lr=2.0), lr=None)
    assert own.param_groups[0]["lr"] == 2.0


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    (group,) = build_optimizer(model, "sgd", lr=0.1).param_groups
    assert [id(p) for p in group["params"]] == [id(model.weight)]


BAD = {
    "unknown": (lambda m: build_optimizer(m, "sdg", lr=0.1), "Did you mean 'sgd'"),
    "no rate": (lambda m: build_optimizer(m, "sgd", lr=None), "needs a learning rate"),
    "negative rate": (lambda m: build_optimizer(m, "sgd", lr=-1), "lr must be a number from 0"),
    "nan rate": (lambda m: build_optimizer(m, "sgd", lr=float("nan")), "lr must be"),
    "text rate": (lambda m: build_optimizer(m, "sgd", lr="big"), "lr must be"),
    "momentum 1": (lambda m: build_optimizer(m, "sgd", lr=1, momentum=1.0), "below 1"),
    "adam momentum": (lambda m: build_optimizer(m, "adam", lr=1, momentum=0.9), "betas="),
    "decay": (lambda m: build_optimizer(m, "sgd", lr=1, weight_decay=-1), "weight_decay"),
    "factory and lr": (lambda m: build_optimizer(m, torch.optim.Adam, lr=1), "its own lr"),
    "bad factory": (lambda m: build_optimizer(m, lambda p: 3, lr=None), "gave a int"),
    "nothing": (lambda m: build_optimizer(m.requires_grad_(False), "sgd", lr=1), "no trainable"),
}


@pytest.mark.parametrize(("call", "text"), BAD.values(), ids=BAD)
def test_bad_input(call, text):
    with pytest.raises(InputError, match=text):
        call(nn.Linear(2, 2))
