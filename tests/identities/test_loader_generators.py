"""A shuffling loader gives the same batches after a measurement as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import normscope as ns

LOSS = "cross_entropy"
MEASUREMENTS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "activations": ns.activations,
    "bn_regularization": lambda m, d: ns.bn_regularization(m, d, LOSS, batch_size=8),
    "conditioning": lambda m, d: ns.conditioning(m, d, LOSS),
    "examine": lambda m, d: ns.examine(m, d, LOSS),
    "gradients": lambda m, d: ns.gradients(m, d, LOSS),
    "max_stable_lr": lambda m, d: ns.max_stable_lr(m, d, LOSS, steps=5, seeds=1),
    "risk": lambda m, d: ns.Risk.from_batches(m, d, loss=LOSS, statistics="batch"),
    "what_if": lambda m, d: ns.what_if(m, d, ["gamma=0.1"], LOSS, steps=5),
}


def own_generator(data: TensorDataset, generator: torch.Generator) -> DataLoader[Any]:
    return DataLoader(data, batch_size=16, shuffle=True, generator=generator)


def own_sampler(data: TensorDataset, generator: torch.Generator) -> DataLoader[Any]:
    sampler = RandomSampler(data, generator=generator)
    return DataLoader(data, batch_sampler=BatchSampler(sampler, 16, drop_last=False))


@pytest.mark.parametrize("make", [own_generator, own_sampler])
@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_a_loaders_own_generator_is_left_alone(measurement: str, make: Any) -> None:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 6, generator=draw)
    data = TensorDataset(inputs, torch.arange(64) % 3)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(2)
    before = generator.get_state()
    MEASUREMENTS[measurement](model, make(data, generator))
    assert torch.equal(generator.get_state(), before)
    next(iter(make(data, generator)))
    assert not torch.equal(generator.get_state(), before)  # it is drawn from at all
