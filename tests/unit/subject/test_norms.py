"""Norm cards where a first guess would be wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn, overrides
from torch.nn import functional

import normscope as ns
from normscope.errors import InputError
from normscope.subject.norms import NormCard, known, norm_card, norm_cards
from normscope.subject.statistics import ConstantStatistics


class Scaled(nn.Module):
    """RMS norm with a second scale."""

    def __init__(self):
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.ones(6)), nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x):
        return functional.rms_norm(x, (6,)) * self.weight * self.extra


class ShiftedFirst(nn.Module):
    """Layer norm whose shift is scaled, too."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return (functional.layer_norm(x, (6,)) + self.bias) * self.weight


class Switched(nn.Module):
    """A norm that a buffer switches on."""

    def __init__(self, on):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("on", torch.tensor(on))

    def forward(self, x):
        return functional.layer_norm(x, (6,), self.weight) if self.on else x * self.weight


@pytest.mark.parametrize("layer", [Scaled, ShiftedFirst])
def test_a_layer_that_does_more_is_not_exchanged_as_if_it_did_not(layer):
    card = norm_card(layer())
    assert card is not None
    assert not card.plain
    net = nn.Sequential(nn.Linear(4, 6), layer(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="does more than to normalize"):
        ns.apply_transform(net, "replace:any->layer")


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_layers_that_a_buffer_tells_apart(order):
    known = {on: norm_card(Switched(on)) is not None for on in order}
    assert known == {True: True, False: False}


def test_a_forward_method_that_is_replaced_later():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.weight

    assert norm_card(Changing()) is None
    Changing.forward = lambda self, x: functional.layer_norm(x, (6,), self.weight)
    assert norm_card(Changing()).kind == "layer"


@pytest.fixture
def own_classes(monkeypatch):
    monkeypatch.setattr(known, "CLASSES", dict(known.CLASSES))


@pytest.mark.usefixtures("own_classes")
def test_what_is_registered_as_no_norm_may_hold_some():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(self.norm(x))

    ns.register_norm(Block, None)
    assert list(norm_cards(nn.Sequential(Block()))) == ["0.norm"]


@pytest.mark.usefixtures("own_classes")
def test_a_registered_layer_may_call_its_scale_gain():
    class Gained(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return functional.rms_norm(x, (6,)) * self.gain

    ns.register_norm(Gained, "rms")
    assert isinstance(norm_card(Gained()), NormCard)


@pytest.mark.parametrize("norm", [5, 1.5, ["rms"]])
def test_what_cannot_be_registered(norm):
    with pytest.raises(InputError, match="a name, a NormCard"):
        ns.register_norm(nn.Linear, norm)


# ---- who asks


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(functional.batch_norm(self.first(x), None, None, training=self.training))


def test_batch_norm_in_a_function_cannot_be_held_constant():
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    with pytest.raises(InputError, match="held constant"):
        ns.gradients(Functional(), (x, y), "cross_entropy", statistics="frozen")
    plain = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    risk = ns.Risk(plain, x, y, loss="cross_entropy", statistics="frozen")
    assert ns.top_eigenvalues(ns.fisher(risk)).values[0] > 0


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        self.norm(x)
        return self.last(x)


def test_a_norm_whose_result_is_thrown_away_is_not_used():
    found = ns.examine(Dropped(), (torch.randn(64, 6), torch.randint(3, (64,))))
    assert [n.name for n in found["layout"].unused] == ["norm"]
    assert any(f.rule == "unused-norm" and f.severity == "warning" for f in found.findings)


def test_running_statistics_that_are_no_numbers():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(64, 6)
    net(x)
    net[1].running_var.fill_(float("nan"))
    found = ns.examine(net, (x, torch.randint(3, (64,))))
    assert any(f.rule == "running-statistics" and f.severity == "warning" for f in found.findings)


def test_a_model_on_the_meta_device_is_refused():
    with torch.device("meta"):
        net = nn.Linear(6, 3)
    with pytest.raises(InputError, match="meta"):
        ns.examine(net, (torch.randn(8, 6), torch.randint(3, (8,))))


def test_a_mode_that_torch_has_taken_away_is_left_without_an_error():
    before = overrides._get_current_function_mode_stack()
    with ConstantStatistics():
        overrides._pop_mode()  # as at an interrupt within a call of torch
    assert overrides._get_current_function_mode_stack() == before
