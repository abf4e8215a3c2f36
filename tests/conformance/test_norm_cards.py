"""One card per normalization layer, made by what the layer does, and what all others say of it."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from norm_layers import (
    NORMS,
    OTHERS,
    C,
    LlamaLike,
    Stubborn,
    TheirBatchNorm,
    TwoInputsNorm,
    Vector,
)
from normscope.errors import InputError
from normscope.subject.norms import NormCard, finding, known, norm_card, norm_cards, register_norm


def example(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", NORMS)
def test_the_card(name):
    make, _, expected = NORMS[name]
    card = norm_card(make())
    assert {field: getattr(card, field) for field in expected} == expected
    assert expected.get("channels", C) == card.channels
    assert card.plain


@pytest.mark.parametrize("name", [n for n, (_, shape, _) in NORMS.items() if shape])
def test_data_do_not_change_the_card(name):
    make, shape, _ = NORMS[name]
    assert norm_card(make(), example(shape)) == norm_card(make())


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("data", [False, True])
def test_what_only_looks_like_a_norm(name, data):
    make, shape = OTHERS[name]
    assert norm_card(make(), example(shape) if data else None) is None


def model():
    return nn.Sequential(
        nn.Linear(C, C), nn.Sequential(LlamaLike(), nn.ReLU()), nn.Linear(C, C), nn.LayerNorm(C)
    )


def test_the_norms_of_a_model_are_the_innermost_modules():
    assert {n: c.kind for n, c in norm_cards(model()).items()} == {"1.0": "rms", "3": "layer"}
    assert list(norm_cards(torch.compile(model(), backend="eager"))) == [
        "_orig_mod.1.0", "_orig_mod.3",
    ]  # fmt: skip


def test_norms_of_weights_are_no_norms_of_signals():
    class Unit(Vector):
        def forward(self, weight):
            return self.weight * weight / weight.norm(dim=-1, keepdim=True)

    layer = nn.Linear(C, C)
    nn.utils.parametrize.register_parametrization(layer, "weight", Unit())
    assert norm_cards(nn.Sequential(layer, nn.BatchNorm1d(C))).keys() == {"1"}


def test_one_layer_stands_for_all_equal_ones(monkeypatch):
    class Counted(LlamaLike):
        copies = 0

        def __deepcopy__(self, memo):
            Counted.copies += 1
            return LlamaLike(len(self.weight), self.variance_epsilon)

    layers = nn.ModuleList([Counted() for _ in range(100)] + [Counted(7), Counted(eps=1e-3)])
    cards = norm_cards(layers)
    assert len(cards) == 102
    assert Counted.copies == 3
    assert (cards["99"].eps, cards["101"].eps, cards["100"].channels) == (1e-6, 1e-3, 7)


def test_a_layer_that_counts_its_calls_fills_no_memory():
    layer = Loud()
    for layer.calls in range(finding.MOST + 5):
        assert norm_card(layer).kind == "rms"
    assert len(finding._TESTED[Loud]) <= finding.MOST


def test_a_class_that_nobody_uses_is_let_go():
    class Mine(LlamaLike):
        def forward(self, x):
            return super().forward(x)

    layer = Mine()
    assert norm_card(layer).kind == "rms"
    gone = weakref.ref(Mine)
    del Mine, layer
    gc.collect()
    assert gone() is None


def test_a_recorded_input_helps_where_shapes_are_refused():
    x = example((3, 4, 9, C))
    assert norm_card(Stubborn()) is None
    card = norm_card(Stubborn(), x)
    assert (card.kind, card.channel_axis, card.channels) == ("rms", -1, C)
    assert norm_card(Stubborn(), x.long()) is None
    assert norm_card(Stubborn(), torch.zeros(3, 4, 9, C)).kind == "rms"
    assert norm_card(Stubborn(), x[:1]) == card
    with pytest.raises(InputError, match=r"TwoInputsNorm 'a' .*register_norm\(TwoInputsNorm"):
        norm_cards(nn.ModuleDict({"a": TwoInputsNorm()}), strict=True)
    assert norm_cards(nn.ModuleDict({"a": TwoInputsNorm()})) == {}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(known, "CLASSES", dict(known.CLASSES))


def test_a_class_is_registered(table):
    layer = TwoInputsNorm()
    register_norm(TwoInputsNorm, "layer")
    card = norm_card(layer)
    assert (card.kind, card.channels, card.channel_axis, card.scale) == ("layer", C, -1, "weight")
    register_norm(TwoInputsNorm, lambda layer: NormCard("batch", over_batch=True, eps=layer.eps))
    layer.eps = 0.5
    assert norm_card(layer).eps == 0.5
    register_norm(TwoInputsNorm, NormCard("rms"))
    assert norm_card(layer) == NormCard("rms")
    register_norm(TwoInputsNorm, None)
    assert norm_cards(nn.ModuleList([layer]), strict=True) == {}
    register_norm(LlamaLike, None)
    assert norm_card(LlamaLike()) is None


def test_what_cannot_be_registered():
    with pytest.raises(InputError, match="class of torch modules"):
        register_norm(LlamaLike(), "rms")
    with pytest.raises(InputError, match=r"Did you mean 'layer'"):
        register_norm(LlamaLike, "leyer")


class Loud(LlamaLike):
    """Draws random numbers, counts its calls and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(C))

    def forward(self, x):
        self.calls += 1
        self.seen.add_(1)
        return super().forward(x) + 0 * torch.rand(1)


def test_nothing_of_the_layer_is_touched():
    layer, called = Loud(), []
    layer.register_forward_hook(lambda *a: called.append(a))
    layer.weight.grad = torch.ones(C)
    state = copy.deepcopy(layer.state_dict())
    versions = [t._version for t in layer.state_dict().values()]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert norm_card(layer).kind == "rms"
    assert torch.equal(torch.get_rng_state(), before)
    assert (layer.calls, called, layer.training) == (0, [], True)
    assert all(torch.equal(layer.state_dict()[n], t) for n, t in state.items())
    assert [t._version for t in layer.state_dict().values()] == versions
    assert torch.equal(layer.weight.grad, torch.ones(C))


def test_hooks_are_not_copied():
    class Held:
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

        def __call__(self, *args):
            raise AssertionError("called")

    layer = LlamaLike(9)
    layer.register_forward_pre_hook(Held())
    layer.register_full_backward_hook(Held())
    assert norm_card(layer).kind == "rms"


def test_modes_around_see_nothing():
    class Watch(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Watch.seen += func in (torch.rsqrt, torch.Tensor.pow, torch.Tensor.copy_)
            return func(*args, **(kwargs or {}))

    class Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Dispatched.seen += 1
            return func(*args, **(kwargs or {}))

    layer = LlamaLike(11)
    with torch.inference_mode(), Watch(), Dispatched():
        Watch.seen = Dispatched.seen = 0
        assert norm_card(layer).kind == "rms"
        assert (Watch.seen, Dispatched.seen) == (0, 0)


def test_whatever_a_copy_raises_means_not_recognized():
    class Broken(Vector):
        def __deepcopy__(self, memo):
            raise RuntimeError

    class Odd(Vector):
        def forward(self, x):
            return x, x

    assert norm_card(Broken()) is None
    assert norm_card(Odd(), example((8, C))) is None
    assert norm_card(nn.LazyLinear(3)) is None
    lazy = nn.LazyBatchNorm1d()
    assert norm_card(lazy).over_batch
    assert norm_card(LlamaLike().to("meta")).kind == "rms"


def test_other_threads_are_not_disturbed():
    failures, stop, layer = [], threading.Event(), nn.Sequential(nn.Linear(C, C), LlamaLike(13))
    other = nn.Sequential(nn.Linear(C, C), TheirBatchNorm()).eval()
    x = example((4, C, 3, C))
    expected = other(x)

    def run():
        while not stop.is_set():
            if not torch.equal(other(x), expected):
                failures.append("changed")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for eps in range(30):
            layer[1].variance_epsilon = 1e-6 * (eps + 1)
            assert norm_cards(layer)["1"].kind == "rms"
    finally:
        stop.set()
        thread.join()
    assert not failures
