"""Every signal is seen once, under a name one can guess, and nothing stays behind."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from cases import BY_NAME, ROSTER
from fingerprints import fingerprint, prepared
from normscope.measure.probes.capture import Capture, Watcher
from normscope.measure.probes.sites import Site
from normscope.subject.batch import call_arguments
from normscope.subject.graph import read_graph
from normscope.subject.layers import numbered_layers


class Notes(Watcher):
    """Keeps copies of everything, as no probe may."""

    def __init__(self):
        self.sites, self.x, self.out = [], {}, {}

    def entering(self, site, x):
        self.x[site.name] = x.detach().clone()

    def leaving(self, site, x, out):
        self.sites.append(site)
        self.out[site.name] = out.detach().clone()

    def named(self, kind):
        return [(s.layer, s.operation, s.name) for s in self.sites if s.kind == kind]


def watched(model, *inputs, graph=False, **kwargs):
    def run():
        return model(*inputs, **kwargs)

    notes = Notes()
    with Capture(model, notes, read_graph(model, run) if graph else None), torch.no_grad():
        run()
    return notes


class Functional(nn.Module):
    """The same steps as a Sequential, written with functions and methods."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, x):
        h = functional.relu(self.norm(self.conv(x)))
        h = torch.tanh(h.flatten(1)).clamp(min=0)
        h = functional.layer_norm(h, (8,))
        return functional.linear(h.sigmoid_(), self.fc.weight)


def test_modules_and_functions_are_seen_alike():
    notes = watched(Functional(), torch.randn(4, 1, 4, 4))
    assert [(s.kind, s.layer, s.name) for s in notes.sites] == [
        ("conv", 1, "conv"),
        ("norm", 1, "norm"),
        ("activation", 1, "relu"),
        ("activation", 1, "tanh"),
        ("activation", 1, "relu#2"),
        ("norm", 1, "layer_norm"),
        ("activation", 1, "sigmoid"),
        ("linear", 2, "fc"),
    ]


def test_in_place_activation_shows_its_input_before_it_is_overwritten():
    x = torch.randn(6, 3)
    notes = watched(nn.Sequential(nn.ReLU(inplace=True)), x.clone())
    torch.testing.assert_close(notes.x["0"], x)
    torch.testing.assert_close(notes.out["0"], x.relu())


@pytest.mark.parametrize("shared_keys", [True, False], ids=["self", "cross"])
def test_projections_of_attention_are_layers(shared_keys):
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x, other = torch.randn(3, 5, 4), torch.randn(3, 2, 4)
    keys = x if shared_keys else other
    original = functional.linear
    notes = watched(layer, x, keys, keys, need_weights=False)
    assert functional.linear is original
    names = [name for _, _, name in notes.named("linear")]
    assert names == (
        ["in_proj", "out_proj"] if shared_keys else ["in_proj", "in_proj#2", "out_proj"]
    )
    rows = sum(o.shape[-1] for n, o in notes.out.items() if n.startswith("in_proj"))
    assert rows == layer.in_proj_weight.shape[0]
    assert {s.weight for s in notes.sites} == {"in_proj_weight", "out_proj.weight"}


def test_attention_goes_back_to_the_plain_function_after_an_error():
    original = functional.linear
    layer = nn.MultiheadAttention(4, 2)
    with pytest.raises(Exception, match=r"."), Capture(layer, Notes()):
        layer(torch.randn(3, 5, 4), torch.randn(3, 5, 3), torch.randn(3, 5, 3))
    assert functional.linear is original
    assert torch.overrides._get_current_function_mode() is None


def test_shared_layer_is_numbered_by_use():
    notes = watched(BY_NAME["tied-weights"].build(), BY_NAME["tied-weights"].inputs)
    assert [name for _, _, name in notes.named("linear")] == [
        "encoder", "middle", "middle#2", "encoder#2"
    ]  # fmt: skip


def test_parametrized_weight_keeps_the_name_of_its_layer():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    notes = watched(nn.Sequential(layer, nn.Tanh()), torch.randn(4, 3))
    assert notes.sites[0].name == "0"
    assert notes.sites[0].weight is None


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "cnn6", "mlp:784-32-10"])
def test_numbers_are_those_of_the_zoo(name):
    model = ns.network(name)
    shape = (2, 784) if name.startswith("mlp") else (2, 3, 32, 32)
    notes = watched(model, torch.randn(*shape), graph=True)
    found = {s.name: s.layer for s in notes.sites if s.kind in ("linear", "conv")}
    numbered = numbered_layers(model)
    assert {name: found[name] for name, _ in numbered.values()} == {
        name: number for number, (name, _) in numbered.items()
    }
    assert max(found.values()) == max(numbered)  # projections on shortcuts are no steps


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_what_is_seen_at_a_layer_is_what_it_computes(case):
    """Recomputed from the noted input and the weight; whatever is seen must be right."""
    model = case.build().eval()
    notes = Notes()
    inputs = case.inputs
    with Capture(model, notes), torch.no_grad():
        args, kwargs = call_arguments(model, inputs)
        model(*args, **kwargs)
    weights = dict(model.named_parameters())
    for site in notes.sites:
        owner = dict(model.named_modules()).get(site.name)
        if site.kind in ("linear", "conv") and isinstance(owner, nn.Linear | nn.Conv2d | nn.Conv1d):
            torch.testing.assert_close(owner(notes.x[site.name]), notes.out[site.name])
        if site.weight is not None:
            assert site.weight in weights
        assert site.rows(notes.out[site.name]).ndim == 3


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_nothing_stays_behind_also_after_an_error(case):
    model = prepared(case)
    before = fingerprint(model)

    class Failing(Notes):
        def leaving(self, site, x, out):
            raise KeyboardInterrupt

    args, kwargs = call_arguments(model, case.inputs)
    model.eval()
    with contextlib.suppress(KeyboardInterrupt), Capture(model, Failing()), torch.no_grad():
        model(*args, **kwargs)
    assert torch.overrides._get_current_function_mode() is None
    for module in model.modules():
        assert not module._forward_hooks_always_called
    model.train(case.name != "mlp-tanh")
    next(iter(model.children())).eval()
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "forward")
    after = fingerprint(model)
    for name, state in before[0].items():
        for key in hooks:
            assert state.get(key) == after[0][name].get(key)


def test_rows_put_channels_last():
    conv = Site("c", "conv", "conv2d", 1, axis=1)
    linear = Site("l", "linear", "linear", 1)
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert conv.rows(x).shape == (2, 4, 3)
    torch.testing.assert_close(conv.rows(x)[1, 2], x[1, :, 1, 0])
    assert linear.rows(x).shape == (2, 6, 2)
    assert conv.rows(x[:, :, 0, 0]).shape == (2, 1, 3)
    assert linear.rows(torch.ones(5)).shape == (1, 1, 5)
