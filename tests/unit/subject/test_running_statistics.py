"""Running statistics made again by one pass, and held constant."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import InputError, MeasurementError
from normscope.subject.running import running_norms
from normscope.subject.transforms import undo_transform


class Twice(nn.Module):
    """A norm that is called twice in a pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.norm(self.norm(x) * 3 + 1))


def plain(**options):
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.ReLU(), nn.Linear(5, 6),
        nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2),
    )  # fmt: skip


def ours():
    return nn.Sequential(nn.Linear(6, 5), ns.BatchNorm(5), nn.ReLU(), nn.Linear(5, 2))


def batches(count=5, size=16):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=generator) * 2 + 1, torch.zeros(size, dtype=torch.long))
        for _ in range(count)
    ]


def used(model, seed=0):
    """A model whose statistics have seen other data."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 6, generator=generator))
    return model


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("make", [plain, lambda: plain(momentum=None), Twice])
@pytest.mark.parametrize("mode", [True, False])
def test_it_is_what_update_bn_does(make, mode):
    model = used(make()).train(mode)
    before = state(model)
    expected = copy.deepcopy(model)
    update_bn(batches(), expected)
    made = ns.apply_transform(model, "recompute-statistics", data=batches())
    assert made.training == mode
    assert same(state(model), before)
    for name, tensor in made.state_dict().items():
        assert torch.allclose(tensor, expected.state_dict()[name], rtol=1e-5, atol=1e-6), name
        moved = name.rpartition(".")[2] in ("running_mean", "running_var")
        assert torch.equal(tensor, before[name]) != moved or "tracked" in name
    assert int(made.state_dict()[next(n for n in before if "tracked" in n)]) in (5, 10)


def test_layers_in_evaluation_mode_are_made_again_too():
    model = used(plain()).train()
    model[1].eval()
    expected = copy.deepcopy(model)
    update_bn(batches(), expected)
    made = ns.apply_transform(model, "recompute-statistics", data=batches())
    assert torch.allclose(made[1].running_mean, expected[1].running_mean, atol=1e-6)
    assert not made[1].training
    one = ns.apply_transform(model, "recompute-statistics:1", data=batches())
    assert torch.equal(one[4].running_mean, model[4].running_mean)
    assert not torch.equal(one[1].running_mean, model[1].running_mean)


def test_our_norms_and_instance_norms_take_part():
    model, twin = used(ours()), used(plain())
    made = ns.apply_transform(model, "recompute-statistics", data=batches())
    twin[0].load_state_dict(model[0].state_dict())
    update_bn(batches(), twin)
    assert torch.allclose(made[1].running_mean, twin[1].running_mean, atol=1e-6)
    assert torch.allclose(made[1].running_var, twin[1].running_var, rtol=1e-5)
    maps = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Conv1d(2, 1, 1))
    x = [torch.randn(4, 2, 9, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    made = ns.apply_transform(maps, "recompute-statistics", data=[(one, None) for one in x])
    every = torch.cat(x)  # each sample has statistics of its own
    assert torch.allclose(made[0].running_mean, every.mean(2).mean(0), atol=1e-6)
    assert torch.allclose(made[0].running_var, every.var(2).mean(0), rtol=1e-5)
    assert torch.equal(maps[0].running_mean, torch.zeros(2))


def test_it_can_be_taken_back_and_reads_any_data():
    model = used(plain())
    before = state(model)
    x, y = (torch.cat(part) for part in zip(*batches(), strict=True))
    loader = DataLoader(TensorDataset(x, y), 16)
    made = ns.apply_transform(model, "recompute-statistics", data=loader, inplace=True)
    assert made is model
    expected = used(plain())
    update_bn(batches(), expected)
    assert torch.allclose(model[1].running_mean, expected[1].running_mean, atol=1e-6)
    undo_transform(model)
    assert same(state(model), before)
    rng = torch.get_rng_state()
    pair = ns.apply_transform(model, "recompute-statistics", data=(x, y))  # batches of 128
    assert int(pair[1].num_batches_tracked) == 1
    assert torch.allclose(pair[1].running_mean, model[0](x).mean(0), atol=1e-5)
    assert torch.equal(torch.get_rng_state(), rng)


class Fails(nn.Module):
    """Fails after some calls, which are counted where no session puts the number back."""

    left, error = 0, None

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.norm(x)
        if Fails.error is not None:
            Fails.left -= 1
            if Fails.left < 0:
                raise Fails.error
        return self.last(x)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_leaves_nothing_behind(error, monkeypatch):
    model = used(Fails())
    before = state(model)
    monkeypatch.setattr(Fails, "error", error)
    kind = MeasurementError if isinstance(error, RuntimeError) else KeyboardInterrupt
    for calls in (0, 1, 3):
        monkeypatch.setattr(Fails, "left", calls)
        rng = torch.get_rng_state()
        with pytest.raises(kind):
            ns.apply_transform(model, "recompute-statistics", data=batches(), inplace=True)
        assert same(state(model), before)
        assert (model.training, model.norm.momentum, model.norm.track_running_stats) == (
            True, 0.1, True,
        )  # fmt: skip
        assert "forward" not in vars(model.norm)
        assert torch.equal(torch.get_rng_state(), rng)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(InputError, match="Pass it: apply_transform"):
        ns.apply_transform(plain(), "recompute-statistics")
    with pytest.raises(InputError, match="no norm with running statistics"):
        ns.apply_transform(nn.Linear(6, 2), "recompute-statistics", data=batches())
    with pytest.raises(InputError, match="No norm with running statistics is named 'conv'"):
        ns.apply_transform(plain(), "recompute-statistics:conv", data=batches())
    with pytest.raises(InputError, match="takes no value"):
        ns.apply_transform(plain(), "recompute-statistics=1", data=batches())
    with pytest.raises(InputError, match="has no batch norm whose statistics"):
        ns.apply_transform(nn.Sequential(nn.Linear(6, 2), nn.LayerNorm(2)), "freeze-statistics")
    with pytest.raises(InputError, match="No batch norm is named 'conv'"):
        ns.apply_transform(plain(), "freeze-statistics:conv")


def test_frozen_statistics_are_used_and_kept_in_training():
    model = used(plain()).train()
    x = batches()[0][0]
    frozen = ns.apply_transform(model, "freeze-statistics")
    before = state(frozen)
    assert torch.allclose(frozen.train()(x), copy.deepcopy(model).eval()(x), atol=1e-5)
    assert same(state(frozen), before)
    assert int(frozen[1].num_batches_tracked) == 3
    one = ns.apply_transform(model, "freeze-statistics:4")
    assert type(one[1]) is nn.BatchNorm1d
    assert not torch.equal(one(x), frozen(x))
    again = ns.apply_transform(frozen, "recompute-statistics", data=batches())
    expected = copy.deepcopy(model)
    update_bn(batches(), expected)
    assert torch.allclose(again[1].running_mean, expected[1].running_mean, atol=1e-6)
    assert again[1].every is None


def test_layers_without_running_statistics_are_left_alone():
    net = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.LayerNorm(6), plain())
    assert [*running_norms(net)] == ["2.1", "2.4"]


def test_what_if_takes_both():
    pair = tuple(torch.cat(part) for part in zip(*batches(8), strict=True))
    model = used(plain()).train()
    table = ns.what_if(
        model, pair, ["freeze-statistics", ["freeze-statistics", "recompute-statistics"]],
        "cross_entropy", limits=False,
    )  # fmt: skip
    start, frozen, remade = table.variants
    assert not start.reason
    assert not frozen.reason
    assert frozen.loss != pytest.approx(start.loss, rel=1e-3)
    assert remade.loss == pytest.approx(start.loss, rel=0.02)
