"""Data that fail: every measurement and training says what, where, and what was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import normscope as ns
from normscope.errors import InputError, MeasurementError
from normscope.train import fit

LOSS = "cross_entropy"
CALLS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "activations": ns.activations,
    "bn_regularization": lambda m, d: ns.bn_regularization(m, d, LOSS, batch_size=8),
    "examine": lambda m, d: ns.examine(m, d, LOSS, preset="standard"),
    "gradient_noise": lambda m, d: ns.gradient_noise(m, d, LOSS),
    "fit": lambda m, d: fit(m, d, LOSS, lr=0.1, epochs=1),
    "max_stable_lr": lambda m, d: ns.max_stable_lr(m, d, LOSS, steps=5, seeds=1),
    "risk": lambda m, d: ns.Risk.from_batches(m, d, loss=LOSS, statistics="batch"),
}
every = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class Disk(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        if index < 16 * self.good:
            return torch.randn(6), index % 3
        raise OSError("disk gone")

    def __init__(self, good: int = 0) -> None:
        self.good = good


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@every
def test_a_loader_that_fails_at_once(call: Any) -> None:
    words = r"loader failed at its first batch: OSError: disk gone \(test_failing_data.py, line \d"
    with pytest.raises(InputError, match=words) as caught:
        call(net(), DataLoader(Disk(), 16))
    assert isinstance(caught.value.__cause__, OSError)


@every
def test_a_loader_that_fails_later(call: Any) -> None:
    with pytest.raises(InputError, match="loader failed at batch 1: OSError: disk gone"):
        call(net(), DataLoader(Disk(1), 16))


def test_a_loader_of_worker_processes() -> None:
    with pytest.raises(InputError, match=r"first batch: OSError: disk gone\. Iterate"):
        ns.activations(net(), DataLoader(Disk(), 16, num_workers=1))


def test_memory_that_runs_out_is_no_fault_of_the_loader() -> None:
    class Full:
        def __iter__(self) -> Iterator[Any]:
            raise MemoryError

    with pytest.raises(MemoryError):
        ns.activations(net(), Full())


@pytest.mark.parametrize("call", [c for n, c in CALLS.items() if n != "fit"])
def test_a_batch_of_the_wrong_shape_or_type(call: Any) -> None:
    labels = torch.arange(16) % 3
    words = r"inputs float64 \(16, 7\), targets int64 \(16,\); its parameters are float64"
    with pytest.raises(MeasurementError, match=words):
        call(net(), [(torch.randn(16, 7), labels)])
    with pytest.raises(MeasurementError, match=r"inputs int64 \(16, 6\), targets int64"):
        call(net(), [(torch.ones(16, 6, dtype=torch.long), labels)])


def test_a_batch_of_many_parts() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, image: Any, size: Any) -> Any:
            return self.inner(image) * size

    inputs = {"image": torch.randn(4, 7), "size": torch.ones(4, 1)}
    with pytest.raises(MeasurementError, match=r"\['image'\] float64 \(4, 7\), inputs\['size"):
        ns.activations(Takes(), [(inputs, torch.arange(4) % 3)])
