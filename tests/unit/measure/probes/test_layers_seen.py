"""Layers are seen by what they compute, whichever module or function makes it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.measure.probes.capture import Capture, Watcher
from normscope.subject.graph import read_graph


class Notes(Watcher):
    def __init__(self):
        self.sites, self.x, self.out = {}, {}, {}

    def entering(self, site, x):
        self.x[site.name] = x.detach().clone()

    def leaving(self, site, x, out):
        self.sites[site.name] = site
        self.out[site.name] = out.detach().clone()


def seen(model, *inputs, graph=True, again=None):
    """What is noted in a pass; the graph is that of another one if ``again`` is given."""
    found = read_graph(model, lambda: model(*inputs)) if graph else None
    notes = Notes()
    with Capture(model, notes, found), torch.no_grad():
        model(*(inputs if again is None else again))
    return notes


class Written(nn.Module):
    """One linear layer with a weight of its own, in the words of ``how``."""

    def __init__(self, how, *shape):
        super().__init__()
        self.how, self.w = how, nn.Parameter(torch.randn(*shape))
        self.b = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return self.how(self, x)


PRODUCTS = {
    "linear": (lambda m, x: functional.linear(x, m.w, m.b), (5, 4), False),
    "linear of a transposed": (lambda m, x: functional.linear(x, m.w.T), (4, 5), True),
    "matmul": (lambda m, x: x @ m.w, (4, 5), True),
    "matmul of a transposed": (lambda m, x: torch.matmul(x, m.w.T), (5, 4), False),
    "addmm": (lambda m, x: torch.addmm(m.b, x.flatten(0, 1), m.w).unflatten(0, (3, 2)), (4, 5),
              True),
    "mm": (lambda m, x: x.flatten(0, 1).mm(m.w), (4, 5), True),
    "einsum": (lambda m, x: torch.einsum("bpi,oi->bpo", x, m.w), (5, 4), False),
    "einsum in the other order": (lambda m, x: torch.einsum("io,bpi->bpo", m.w, x), (4, 5), True),
    "weight first": (lambda m, x: (m.w @ x.mT).mT, (5, 4), False),
}  # fmt: skip


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "none"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_parameter_is_a_linear_layer(name, graph):
    how, shape, transposed = PRODUCTS[name]
    model = Written(how, *shape)
    notes = seen(model, torch.randn(3, 2, 4), graph=graph)
    [site] = notes.sites.values()
    assert (site.name, site.kind, site.layer, site.weight) == ("w", "linear", 1, "w")
    assert (site.matrix, site.transposed) == (True, transposed)
    x, out = site.rows(notes.x["w"]), site.rows(notes.out["w"])
    assert x.shape == (3, 2, 4)  # samples and positions, also where they share an axis
    weight = model.w.T if transposed else model.w
    bias = model.b if site.bias else 0
    torch.testing.assert_close(out, x @ weight.T + bias)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_square_weight_may_be_stored_either_way(transposed):
    """Its shape does not tell, and some libraries keep it as (in, out)."""
    model = Written(lambda m, x: functional.linear(x, m.w.T if transposed else m.w), 4, 4)
    [site] = seen(model, torch.randn(3, 4)).sites.values()
    assert site.transposed == transposed


QUERIES = {
    "first": lambda m, x: torch.mm(m.b.expand(len(x), 5), m.w) + x,
    "second": lambda m, x: torch.mm(m.w, m.b.expand(len(x), 5).T).T + x,
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_learned_query_is_a_signal_on_either_side(name):
    model = Written(QUERIES[name], 5, 5)
    notes = seen(model, torch.randn(3, 5))
    [site] = notes.sites.values()
    assert site.weight == "w"
    assert {*notes.x["w"].flatten().tolist()} == {*model.b.tolist()}  # what goes in is the query


FOLDED = {
    "samples": (lambda x: x, None),
    "samples and positions": (lambda x: x[:, None].expand(2, 6, 4), None),
    "both in one axis": (lambda x: x.repeat(6, 1), 2),
    "one row for all": (lambda x: x.mean(0, keepdim=True), None),
    "rows that are no multiple": (lambda x: x.repeat(3, 1)[:5], None),
    "a vector": (lambda x: x[0], None),
    "positions before samples": (lambda x: x.expand(6, 2, 4), None),
}


@pytest.mark.parametrize("name", FOLDED)
def test_samples_that_share_an_axis_with_positions(name):
    change, samples = FOLDED[name]
    model = Written(lambda m, x: functional.linear(change(x), m.w), 5, 4)
    [site] = seen(model, torch.randn(2, 4)).sites.values()
    assert site.samples == samples


def test_samples_of_a_model_without_inputs():
    model = Written(lambda m, _: functional.linear(torch.ones(6, 4), m.w), 5, 4)
    [site] = seen(model, None).sites.values()
    assert site.samples is None


def test_products_of_signals_and_of_weights_are_no_layers():
    class Low(nn.Module):
        """A weight of low rank that is multiplied out, and attention."""

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(5, 2))

        def forward(self, x):
            h = functional.linear(x, self.b @ self.a)
            return (h @ h.mT).softmax(-1) @ h

    notes = seen(Low(), torch.randn(6, 7, 4))
    [site] = notes.sites.values()
    assert site.weight is None
    assert {*site.parameters} == {"a", "b"}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_and_embeddings(kind, first):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.rnn = nn.Embedding(9, 4), kind(4, 6, batch_first=first)

        def forward(self, x):
            h = self.words(x)
            return self.rnn(h if first else h.transpose(0, 1))[0]

    notes = seen(Words(), torch.randint(9, (3, 5)))
    words, rnn = notes.sites["words"], notes.sites["rnn"]
    assert (words.kind, words.layer, rnn.kind, rnn.layer) == ("embedding", 1, "recurrent", 2)
    assert len(rnn.parameters) == 4
    rows = rnn.rows(notes.out["rnn"])
    assert rows.shape == (3, 5, 6)
    torch.testing.assert_close(rows, notes.out["rnn"] if first else notes.out["rnn"].mT.permute(2, 0, 1))  # fmt: skip  # noqa: E501


def test_a_table_that_is_indexed_is_an_embedding():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(7, 3))

        def forward(self, x):
            return self.table[x]

    notes = seen(Table(), torch.randint(7, (2, 4)))
    assert notes.sites["table"].kind == "embedding"
    assert notes.out["table"].shape == (2, 4, 3)


class Experts(nn.Module):
    """Each sample goes to the expert that its first entry names."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 5, 4))

    def forward(self, x):
        chosen = x[:, 0].long()
        out = x.new_zeros(len(x), 5)
        for i in chosen.unique().tolist():
            out[chosen == i] = functional.linear(x[chosen == i], self.w[i])
        return out


def test_experts_are_one_layer_also_those_that_the_graph_has_not_seen():
    x = torch.rand(6, 4)
    x[:, 0] = torch.tensor([0, 0, 1, 1, 0, 1])
    other = x.clone()
    other[:, 0] = 2
    for again in (None, (other,)):
        notes = seen(Experts(), x, again=again)
        assert [(s.name, s.kind, s.layer) for s in notes.sites.values()] == [("w", "experts", 1)]


def test_a_way_that_the_graph_has_not_seen_is_watched_all_the_same():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 2)

        def forward(self, x):
            h = self.a(x) if x.sum() > 0 else self.b(x)
            return self.c(functional.relu(h))

    notes = seen(Fork(), torch.ones(4, 2), again=(-torch.ones(4, 2),))
    found = {s.name: (s.kind, s.layer) for s in notes.sites.values()}
    assert found == {"b": ("linear", 1), "relu": ("activation", 1), "c": ("linear", 2)}


class Excited(nn.Module):
    """Squeeze and excitation, a projection beside the main path, and two heads."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)
        self.beside, self.heads = nn.Conv2d(4, 4, 1), nn.ModuleList([nn.Linear(4, 3) for _ in "ab"])

    def forward(self, x):
        x = torch.relu(self.stem(x))
        h = self.conv(x)
        gate = torch.sigmoid(self.up(torch.relu(self.down(h.mean((2, 3))))))
        x = (h * gate[..., None, None] + self.beside(x)).mean((2, 3))
        return [head(x) for head in self.heads]


def test_numbers_are_depths_of_the_graph():
    notes = seen(Excited(), torch.randn(2, 1, 6, 6))
    found = {s.name: s.layer for s in notes.sites.values() if s.kind in ("conv", "linear")}
    assert found == {
        "stem": 1, "conv": 2, "down": 3, "up": 4, "beside": 2, "heads.0": 3, "heads.1": 3
    }  # fmt: skip
    assert {s.name for s in notes.sites.values() if s.side} == {"down", "up"}
    counted = seen(Excited(), torch.randn(2, 1, 6, 6), graph=False).sites["heads.1"]
    assert counted.layer == 7  # without a graph they are counted


def test_norms_are_seen_behind_the_hooks_of_the_user():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    net[1].register_forward_pre_hook(lambda module, args: (2 * args[0],))
    notes = seen(net, torch.randn(5, 3))
    torch.testing.assert_close(notes.x["1"], 2 * notes.out["0"])


def test_a_watcher_may_replace_what_a_layer_or_a_norm_gives():
    class Plus(Notes):
        def leaving(self, site, x, out):
            return out + 1

    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    x = torch.randn(5, 3)
    with Capture(net, Plus()):
        found = net(x)
    torch.testing.assert_close(found, net[1](net[0](x) + 1) + 1)


def test_another_thread_that_runs_the_same_model_is_not_watched():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU())
    notes = Notes()
    with Capture(net, notes):
        thread = threading.Thread(target=lambda: net(torch.randn(5, 3)))
        thread.start()
        thread.join()
        assert not notes.sites
        net(torch.randn(5, 3))
    assert [*notes.sites] == ["0", "1", "2"]


# ---- coverage


class Mixed(nn.Module):
    """An embedding, a norm, a layer, positions that are added, and a layer that is never used."""

    def __init__(self):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.positions, self.spare = nn.Parameter(torch.zeros(5, 4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.words(x) + self.positions)).mean(1)


WORDS = torch.randint(8, (6, 5), generator=torch.Generator().manual_seed(0))
ANSWERS = torch.arange(6) % 3


def test_what_is_not_covered_is_named_with_its_share():
    total = 32 + 8 + 15 + 20 + 10
    found = ns.activations(Mixed(), (WORDS, None)).coverage
    assert found.parameters == pytest.approx(55 / total)
    assert {x.name: (x.reason.split()[0], round(x.share * total)) for x in found.left_out} == {
        "Mixed": ("what", 20), "spare": ("never", 10)
    }  # fmt: skip
    assert "never reached in the forward pass (12 % of the parameters)" in found.summary()
    found = ns.conditioning(Mixed(), (WORDS, ANSWERS), "cross_entropy").coverage
    assert found.parameters == pytest.approx(15 / total)
    assert "layers of the kind 'embedding' are not covered by" in found.summary()
    assert "not covered: norms or other layers (9 % of the parameters)" in found.summary()


def test_the_gradient_of_an_embedding_is_that_of_its_table():
    model = Mixed()
    found = ns.gradients(model, (WORDS, ANSWERS), "cross_entropy")
    functional.cross_entropy(model(WORDS), ANSWERS).backward()
    gradient = model.words.weight.grad
    assert found["words"].shape == (8, 4)
    assert found["words"].max_abs == pytest.approx(float(gradient.abs().max()))
    ratio = float(gradient.norm() / model.words.weight.detach().norm())
    assert found["words"].weight_ratio == pytest.approx(ratio)


def test_a_layer_that_is_dropped_in_training_is_not_called_unused():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x) if self.training else self.b(self.a(x))

    found = ns.activations(Dropped().train(), (torch.randn(4, 3), None)).coverage
    assert [(x.name, x.reason) for x in found.left_out] == [
        ("b", "not reached in this forward pass")
    ]
