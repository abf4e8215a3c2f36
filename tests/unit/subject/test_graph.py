"""The record of one forward pass: right on models that could mislead it, and without a trace."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from fingerprints import fingerprint, process
from models.plain import PLAIN, Calling
from models.truth import layer_of, mismatches, outputs_of
from normscope.errors import InputError
from normscope.subject.graph import read_graph

SAME = ("pre-norm encoder", "language model with einsum", "squeeze and excite", "checkpointed")


def made(name):
    torch.manual_seed(1)
    return PLAIN[name]()


def read(example):
    return read_graph(example.model, example.call)


def lived(example):
    """In the middle of its life: gradients, moved generators, a part in another mode."""
    for parameter in example.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    next(iter(example.model.children())).eval()
    torch.rand(3), random.random()
    return example


def told(graph):
    """What a graph says, to compare two."""
    layers = [
        (x.name, x.kind, x.parameters, x.depth, x.side, x.state, x.norm, x.uses)
        for x in graph.layers
    ]
    norms = [(x.name, x.kind, x.uses) for x in graph.norms]
    rest = graph.last.name, graph.last_norm, graph.attention, graph.residuals, graph.coverage
    return layers, norms, rest


# ---- what it says


@pytest.mark.parametrize("name", PLAIN)
def test_structure(name):
    example = made(name)
    assert mismatches(read(example), example.model, example.truth) == []


@pytest.mark.parametrize("name", PLAIN)
def test_the_mode_it_is_found_in_does_not_matter(name):
    training, evaluated = made(name), made(name)
    training.model.train(), evaluated.model.eval()
    assert told(read(training)) == told(read(evaluated))


@pytest.mark.parametrize("name", SAME)
def test_with_or_without_gradients(name):
    example = made(name)
    expected = told(read(example))
    with torch.no_grad():
        assert told(read(example)) == expected
    with torch.inference_mode():
        assert told(read(example)) == expected
    example.model.requires_grad_(False)
    assert told(read(example)) == expected


@pytest.mark.parametrize("name", SAME)
def test_twice_the_same(name):
    example = made(name)
    assert told(read(example)) == told(read(example))


def test_only_the_model_is_read():
    """Neither its loss nor what else the call runs."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    other, x = nn.Linear(6, 6), torch.randn(5, 6)
    graph = read_graph(
        model, lambda: functional.cross_entropy(model(other(x)), torch.arange(5) % 3)
    )
    assert [layer.name for layer in graph.layers] == ["0", "2"]
    assert (graph.last.depth, graph.coverage["layers"]) == (2, 1.0)


def test_weights_of_many_devices_and_types():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(torch.bfloat16)
    graph = read_graph(model, lambda: model(torch.randn(5, 6, dtype=torch.bfloat16)))
    assert (graph.last.depth, graph.last_norm) == (2, "1")


def test_layers_are_in_forward_order():
    model = Calling(
        lambda m, x: m.c(torch.tanh(m.a(torch.tanh(m.b(x))))),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, 6),
        c=nn.Linear(6, 6),
    )
    graph = read_graph(model, lambda: model(torch.randn(5, 6)))
    assert [layer.name for layer in graph.layers] == ["b", "a", "c"]


def test_parameters_of_a_layer_are_all_that_make_its_weight():
    example = made("weights made from parameters")
    names = layer_of(read(example), "0").parameters
    root = "0.parametrizations.weight.original"
    assert set(names) == {"0.bias", f"{root}0", f"{root}1"}


def test_uses_of_a_norm_are_counted():
    [norm] = read(made("norm called twice")).norms
    assert (norm.name, norm.uses) == ("norm", 2)


def test_a_small_batch():
    """Batch norm of a single sample, which only runs in evaluation mode."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    graph = read_graph(model, lambda: model(torch.randn(1, 6)))
    assert [(norm.name, norm.kind) for norm in graph.norms] == [("1", "batch")]
    assert graph.last_norm == "1"


def test_nothing_of_the_pass_is_kept():
    example = made("residual")
    seen = []
    for module in example.model.modules():
        module.register_forward_hook(lambda module, args, out: seen.append(weakref.ref(out)))
    graph = read(example)
    gc.collect()
    assert len(seen) > 10
    assert all(reference() is None for reference in seen)
    assert graph.layers


# ---- what it leaves behind


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_is_changed(name):
    example = lived(made(name))
    data = example.inputs, example.keywords
    before = fingerprint(example.model, data), process()
    read(example)
    assert (fingerprint(example.model, data), process()) == before


class StopError(Exception):
    """Of a user's layer."""


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
@pytest.mark.parametrize("name", PLAIN)
def test_nothing_is_changed_by_an_error_in_the_forward_pass(name, error):
    example = lived(made(name))
    if "scripted" not in name:  # takes no hooks of ours
        last = [m for m in example.model.modules() if not list(m.children())][-1]
        last.register_forward_hook(_raiser(error))
    data = example.inputs, example.keywords

    def call():
        example.call()
        raise error

    before = fingerprint(example.model, data), process()
    with pytest.raises(error):
        read_graph(example.model, call)
    assert (fingerprint(example.model, data), process()) == before


def _raiser(error):
    def hook(*_):
        raise error

    return hook


@pytest.mark.parametrize("name", PLAIN)
def test_outputs_afterwards_are_those_of_a_model_never_read(name):
    untouched, example = made(name), made(name)
    read(example)
    for a, b in zip(outputs_of(untouched), outputs_of(example), strict=True):
        assert torch.equal(a, b)


def test_gradients_of_an_earlier_pass_can_still_be_taken():
    """Writes into saved tensors would be noticed by their version counters."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(8, 4)
    model.eval()
    loss = model(x).sum()
    model.train()
    read_graph(model, lambda: model(x))
    loss.backward()


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, past):
        past = getattr(past, "kept", past)
        past.append(self.layer(x.x.mul_(2)))
        return self.head(torch.cat(past, 1).mean(1))


@pytest.mark.parametrize("past", [[torch.randn(2, 4, 6)], types.SimpleNamespace(kept=[])])
def test_what_is_given_stays_as_it_was(past):
    model, batch = Cached(), Batch(torch.randn(2, 1, 6))
    kept = getattr(past, "kept", past)
    length, before = len(kept), batch.x.clone()
    graph = read_graph(model, lambda: model(batch, past))
    assert [layer.name for layer in graph.layers] == ["layer", "head"]
    assert len(kept) == length
    assert torch.equal(batch.x, before)


def test_what_cannot_be_copied_is_handed_on():
    model = Calling(
        lambda m, x, lock: m.head(x) if lock.acquire(blocking=False) else None,
        head=nn.Linear(6, 3),
    )
    lock = threading.Lock()

    def call():
        with contextlib.suppress(RuntimeError):
            lock.release()
        return model(torch.randn(2, 6), lock)

    assert read_graph(model, call).last.name == "head"


# ---- two modes


class Modes(nn.Module):
    """Parts that run in one mode only."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.training_head, self.other_head = nn.Linear(8, 5), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x)
        return self.training_head(self.norm(x)) if self.training else self.other_head(x)


def test_parts_of_one_mode_only_are_used():
    model = Modes()
    graph = read_graph(model, lambda: model(torch.randn(5, 6)))
    assert graph.unused == ()
    assert set(graph.other) == {"other_head.weight", "other_head.bias"}
    assert (graph.last.name, graph.last_norm) == ("training_head", "norm")
    assert graph.coverage["unused"] == pytest.approx(0)
    assert sum(graph.coverage.values()) == pytest.approx(1)


def test_classes_in_place_of_outputs_in_evaluation_mode():
    """Then the pass in train mode shows which layer is the last."""
    model = Calling(
        lambda m, x: m.head(torch.tanh(m.body(x))) if m.training else m.head(m.body(x)).argmax(-1),
        body=nn.Linear(6, 8),
        head=nn.Linear(8, 3),
    )
    graph = read_graph(model, lambda: model(torch.randn(5, 6)))
    assert (graph.last.name, graph.last.depth) == ("head", 2)


def test_the_error_is_that_of_evaluation_mode():
    """Batch norm of one sample is an error of train mode, and not what is wrong here."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(7, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        read_graph(model, lambda: model(torch.randn(1, 6)))


# ---- what it refuses


def chain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def refusal(model, call):
    with pytest.raises(InputError) as caught:
        read_graph(model, call)
    return str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 6))])
def test_scripted_models_are_refused(how):
    model = how(chain())
    text = refusal(model, lambda: model(torch.randn(5, 6)))
    assert "script" in text.lower()
    assert "Pass the nn.Module" in text  # the way out


def test_exported_models_are_refused():
    program = torch.export.export(chain(), (torch.ones(2, 6),))
    text = refusal(program, lambda: program.module()(torch.ones(2, 6)))
    assert "export" in text.lower()


def test_lazy_parameters_are_refused():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))
    text = refusal(model, lambda: model(torch.randn(5, 6)))
    assert "'0.weight'" in text
    assert "Run the model once" in text
    assert isinstance(model[0], nn.LazyLinear)


def test_meta_parameters_are_refused():
    model = nn.Sequential(nn.Linear(6, 8, device="meta"), nn.Linear(8, 3))
    text = refusal(model, lambda: model(torch.randn(5, 6)))
    assert "meta" in text
    assert "'0.weight'" in text


def test_models_without_parameters_are_refused():
    model = nn.Sequential(nn.ReLU(), nn.Softmax(-1))
    assert "parameter" in refusal(model, lambda: model(torch.randn(5, 6)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_are_refused():
    model = nn.Linear(6, 3)
    nested = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)])
    assert "nested" in refusal(model, lambda: model(nested))


def test_sparse_inputs_are_refused():
    model = nn.Linear(6, 3)
    sparse = torch.randn(5, 6).relu().to_sparse()
    assert "sparse" in refusal(model, lambda: model(sparse))


def test_a_call_that_leaves_the_model_out_is_refused():
    model = chain()
    assert "was not run" in refusal(model, lambda: nn.Linear(6, 3)(torch.randn(5, 6)))


@pytest.mark.parametrize("thing", [torch.relu, 3, None, chain])
def test_what_is_no_module_is_refused(thing):
    assert "Module" in refusal(thing, lambda: None)


def test_state_after_a_refusal():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    sparse = torch.randn(5, 6).relu().to_sparse()
    before = fingerprint(model), process()
    refusal(model, lambda: model(sparse))
    assert (fingerprint(model), process()) == before
