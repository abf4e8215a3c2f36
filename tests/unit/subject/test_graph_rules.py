"""Single rules of the graph, each on the smallest thing that needs it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode

from models.plain import Calling
from models.truth import layer_of
from normscope.subject.graph import read_graph
from normscope.subject.graph.recorder import Recorder
from normscope.subject.graph.storage import Storages
from normscope.subject.norms import norm_card


def graph_of(model, *shape):
    x = torch.randn(*shape)
    return read_graph(model, lambda: model(x))


# ---- memory


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_neighbours_in_memory_do_not_overlap(order):
    memory, storages = torch.zeros(8), Storages()
    parts = memory[:4].view(2, 2), memory[4:]  # of other strides, so that only the ends tell
    for node, i in enumerate(order):
        storages.made(parts[i], node)
    assert [storages.makers(parts[i]) for i in order] == [(0,), (1,)]


def test_views_that_meet_between_their_rows_overlap():
    memory, storages = torch.zeros(8), Storages()
    row, entry = memory.as_strided((1, 3), (3, 2), 0), memory.as_strided((1, 1), (3, 2), 4)
    assert row[0, 2].data_ptr() == entry.data_ptr()
    storages.made(row, 0)
    storages.made(entry, 1)
    assert storages.makers(row) == (0, 1)


# ---- norms


def test_a_product_of_sums_is_raw():
    def run(m, x):
        h = m.norm(m.first(x))
        return m.head((h + torch.tanh(h)) * (h - torch.sigmoid(h)))

    model = Calling(run, first=nn.Linear(6, 8), norm=nn.LayerNorm(8), head=nn.Linear(8, 3))
    assert layer_of(graph_of(model, 5, 6), "head").state == "raw"


def test_a_product_of_activations_of_one_norm_is_an_activation():
    def run(m, x):
        h = m.norm(m.first(x))
        return m.head(torch.tanh(h) * torch.sigmoid(h))

    model = Calling(run, first=nn.Linear(6, 8), norm=nn.LayerNorm(8), head=nn.Linear(8, 3))
    head = layer_of(graph_of(model, 5, 6), "head")
    assert (head.state, head.norm) == ("act", "norm")


@pytest.mark.parametrize(("added", "norms"), [(1e-3, 1), (0.1, 0), (1.0, 0)])
def test_a_number_of_size_one_beside_the_statistic_makes_it_no_norm(added, norms):
    def run(m, x):
        h = m.first(x)
        return m.head(h / (h.norm(dim=-1, keepdim=True) + added))

    model = Calling(run, first=nn.Linear(6, 8), head=nn.Linear(8, 3))
    assert len(graph_of(model, 5, 6).norms) == norms


class Soft(nn.Module):
    """Divides large signals by their size, and leaves small ones as they are."""

    def __init__(self, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(6)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("example", [None, torch.randn(8, 6)])
def test_a_module_that_leaves_small_signals_as_they_are_is_no_norm(example):
    assert norm_card(Soft(1.0), example) is None
    assert norm_card(Soft(1e-5), example).kind == "rms"


def test_the_norm_of_the_outputs_is_the_last_one():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.RMSNorm(8))
    assert graph_of(model, 5, 6).output_norm == "3"


# ---- connections


def test_what_is_added_to_scores_of_attention_is_no_residual():
    def run(m, x):
        q, k, bias = m.q(torch.tanh(m.below(x))), m.k(x), m.bias(x)
        shares = torch.softmax(q @ k.transpose(1, 2) + bias.transpose(1, 2), -1)
        return m.head(shares @ m.v(x))

    widths = {"below": 6, "q": 6, "k": 6, "v": 6, "bias": 1, "head": 3}
    model = Calling(run, **{name: nn.Linear(6, width) for name, width in widths.items()})
    graph = graph_of(model, 2, 5, 6)
    assert (len(graph.attention), graph.residuals) == (1, ())


# ---- layers


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [True, False])
def test_all_layers_of_a_recurrent_call_count(kind, packed):
    def run(m, x):
        x = pack_padded_sequence(x, [5, 3], batch_first=True) if packed else x
        out, _ = m.rnn(x)
        return m.head(out.data if packed else out)

    model = Calling(run, rnn=kind(6, 8, num_layers=3, batch_first=True), head=nn.Linear(8, 3))
    graph = graph_of(model, 2, 5, 6)
    assert {layer.name: layer.depth for layer in graph.layers} == {"rnn": 3, "head": 4}


QUERIES = {
    "first": lambda m, many: torch.mm(m.query.expand(many, 6), m.w),
    "second": lambda m, many: torch.mm(m.w, m.query.expand(many, 6).T).T,
    "told": lambda m, many: functional.linear(m.query, m.w),
    "told, repeated": lambda m, many: functional.linear(m.query.expand(many, 6), m.w),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_learned_query_is_a_signal_on_either_side(name):
    model = Calling(
        lambda m, x: m.head(torch.tanh(QUERIES[name](m, len(x)) + x)),
        w=nn.Parameter(torch.randn(6, 6)),
        query=nn.Parameter(torch.randn(1, 6)),
        head=nn.Linear(6, 3),
    )
    layers = graph_of(model, 5, 6).layers
    assert [(layer.weight, layer.depth) for layer in layers] == [("w", 1), ("head.weight", 2)]


# ---- watching


class Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_that_a_pass_leaves_behind_stay():
    """A model may switch something on in its forward pass, for later."""
    modes = [Passing(), Passing()]

    def run(m, x):
        for mode in modes:
            mode.__enter__()
        return m.head(x)

    model = Calling(run, head=nn.Linear(6, 3))
    try:
        with Recorder(model), torch.no_grad():
            model(torch.randn(5, 6))
        stack = torch.overrides._get_current_function_mode_stack()
        assert [id(mode) for mode in stack] == [id(mode) for mode in modes]
    finally:
        while torch.overrides._get_current_function_mode_stack():
            torch.overrides._pop_mode()


def test_runs_of_another_thread_are_not_recorded():
    model, x, left = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), torch.randn(5, 6), []

    def run():
        model(x)
        left.extend(torch.overrides._get_current_function_mode_stack())

    with Recorder(model) as recorder, torch.no_grad():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert recorder.record.frames == recorder.record.calls == []
        model(x)
    assert left == []
    assert [frame.path for frame in recorder.record.frames] == ["", "0", "1"]
