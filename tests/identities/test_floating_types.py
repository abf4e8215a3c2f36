"""Numbers take the type that a model is computed in, whatever gives them; half becomes float32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import MeasurementError
from normscope.record import Record
from normscope.train import fit, lr_range_test

LOSS = "cross_entropy"
QUICK: dict[str, Any] = {"steps": 4, "tol": 2.0}
PROBES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "activations": ns.activations,
    "bn_regularization": lambda m, d: ns.bn_regularization(m, d, LOSS, batch_size=8),
    "conditioning": lambda m, d: ns.conditioning(m, d, LOSS),
    "gradient_noise": lambda m, d: ns.gradient_noise(m, d, LOSS),
    "gradients": lambda m, d: ns.gradients(m, d, LOSS),
    "landscape": lambda m, d: ns.landscape(m, d, LOSS),
    "loss_fn": lambda m, d: ns.gradients(
        m, d, loss_fn=lambda model, b: model(b[0]).square().mean()
    ),
    "order_parameters": ns.order_parameters,
    "risk": lambda m, d: ns.Risk.from_batches(m, d, loss=LOSS, statistics="batch").value(),
}
TRAININGS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "lr_range_test": lambda m, d: lr_range_test(m, d, LOSS, steps=12),
    "max_stable_lr": lambda m, d: ns.max_stable_lr(m, d, LOSS, seeds=1, **QUICK),
    "max_stable_lr, loss_fn": lambda m, d: ns.max_stable_lr(
        m, d, loss_fn=lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]),
        seeds=1, **QUICK,
    ),
    "max_stable_lr, factory": lambda m, d: ns.max_stable_lr(lambda: m, d, LOSS, seeds=1, **QUICK),
    "suggest_lr": lambda m, d: ns.suggest_lr(m, d, LOSS, **QUICK),
    "what_if": lambda m, d: ns.what_if(m, d, ["norm-before-last", "gamma=0.5"], LOSS, **QUICK),
}  # fmt: skip


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def batches(dtype: torch.dtype) -> list[Any]:
    """Numbers that every type holds exactly."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randint(-8, 9, (3, 16, 6), generator=draw) / 4
    return [(x.to(dtype), torch.arange(16) % 3) for x in inputs]


def plain(result: Any) -> Any:
    """All but times and settings."""
    if isinstance(result, Record):
        result = result.to_dict()
    if isinstance(result, dict):
        left = ("seconds", "convention")
        return {key: plain(value) for key, value in result.items() if key not in left}
    return [plain(item) for item in result] if isinstance(result, list) else result


@pytest.mark.parametrize("measure", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize("given", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("own", [torch.float32, torch.float64])
def test_measurements_convert(measure: Any, given: torch.dtype, own: torch.dtype) -> None:
    assert plain(measure(net().to(own), batches(given))) == plain(
        measure(net().to(own), batches(own))
    )


@pytest.mark.parametrize("given", [torch.float16, torch.float32])
def test_fit_converts_what_a_loader_gives(given: torch.dtype) -> None:
    """As it does with tensors and data sets."""
    runs = [fit(net(), batches(kind), LOSS, lr=0.1, steps=5) for kind in (given, torch.float64)]
    assert runs[0].losses.tolist() == runs[1].losses.tolist()


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_of_half_precision(name: str) -> None:
    """As if the same weights were stored in float32, whatever the loader gives."""
    train, half = TRAININGS[name], torch.bfloat16 if "," in name else torch.float16
    model = net().to(half)
    before = copy.deepcopy(model.state_dict())
    wanted = plain(train(copy.deepcopy(model).float(), batches(torch.float32)))
    given = half if "factory" in name else torch.float32
    assert plain(train(model, batches(given))) == wanted
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == half


def test_half_precision_that_cannot_be_copied() -> None:
    class Single(nn.Sequential):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("only once")

    model = Single(*net()).half()
    before = [p.clone() for p in model.parameters()]
    found = ns.max_stable_lr(model, batches(torch.float32), LOSS, seeds=1, **QUICK)
    wanted = ns.max_stable_lr(net().half().float(), batches(torch.float32), LOSS, seeds=1, **QUICK)
    assert found.trials == wanted.trials
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_results_say_so() -> None:
    model, words = net().half(), "float32 (the model is in float16)"
    for name in ("lr_range_test", "max_stable_lr", "suggest_lr"):
        found = TRAININGS[name](model, batches(torch.float32))
        assert found.convention["precision"] == words
        assert words in found.summary()
    single = TRAININGS["lr_range_test"](net(), batches(torch.float32))
    assert "precision" not in single.convention
    assert "precision" not in single.summary()


@pytest.mark.slow
def test_a_full_examination_of_half_precision() -> None:
    found = ns.examine(net().half(), batches(torch.float32), preset="full", seed=1)
    assert not found.missing, found.summary()
    assert {"stability", "advice", "what_if"} <= set(found.measurements)


def test_types_that_differ_within_a_model_are_left_alone() -> None:
    """Then no type is right for all, and the model's own conversions decide."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 5).float(), nn.Linear(5, 3).double()

        def forward(self, x: torch.Tensor) -> Any:
            return self.last(self.first(x).double())

    found = ns.activations(Mixed(), batches(torch.float32))
    assert len(found.outputs) == 2
    with pytest.raises(MeasurementError, match=r"float64 \(16, 6\).* float32 and float64"):
        ns.activations(Mixed(), batches(torch.float64))
