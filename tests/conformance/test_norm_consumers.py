"""Every function that asks what a norm is gives the answer of the norm's card."""

import pytest
import torch
from torch import nn

import normscope as ns
from norm_layers import (
    MAPS,
    NORMS,
    OTHERS,
    ROWS,
    C,
    FrozenBatchNorm2d,
    LlamaLike,
    NormalizedLinear,
    PlainFilterResponse,
    TheirBatchNorm,
)
from normscope.errors import InputError
from normscope.measure.probes.layout import norm_layout
from normscope.measure.regularization._sites import sites_of
from normscope.nn import BatchNorm, GroupNorm
from normscope.subject.norms import norm_card, norm_cards
from normscope.subject.parameters import parameter_kinds, select_parameters
from normscope.subject.statistics import batch_norms, coupling_layers
from normscope.subject.transforms import NoNorm
from normscope.train import scales

ALL = {**{n: v[:2] for n, v in NORMS.items()}, **OTHERS}
RUNS = [name for name, (_, shape) in ALL.items() if shape]


def network(name):
    """A small network around the layer, and its input."""
    make, shape = ALL[name]
    shape = shape or ROWS
    conv = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    first = nn.Linear(C, C) if shape[-1] == C else conv[len(shape)](C, C, 1)
    size = torch.Size(shape[1:]).numel()
    layers = [first, make().to(torch.get_default_dtype()), nn.Flatten(), nn.Linear(size, 2)]
    return nn.Sequential(*layers), torch.randn(shape)


@pytest.mark.parametrize("name", ALL)
def test_parameters(name):
    model, _ = network(name)
    norms = norm_cards(model)
    owners = {n for n, kind in parameter_kinds(model).items() if kind == "norm"}
    assert owners == {
        n for n, _ in model.named_parameters() for m in norms if n.startswith(f"{m}.")
    }
    weights = select_parameters(model, "weights").names
    assert {"0.weight", "3.weight"} <= set(weights)
    assert not owners & set(weights)


@pytest.mark.parametrize("name", ALL)
def test_transforms(name):
    model, _ = network(name)
    cards = norm_cards(model)
    scaled = {n for n, card in cards.items() if card.scale}
    assert set(scales(model)) == scaled
    if not cards:
        for change in ("remove-norms", "gamma=0.5", "replace:any->layer"):
            with pytest.raises(InputError, match="has no normalization layer"):
                ns.apply_transform(model, change)
        return
    removed = ns.apply_transform(model, "remove-norms")
    assert not norm_cards(removed)
    assert all(isinstance(removed.get_submodule(n), NoNorm) for n in cards)
    if scaled:
        changed = ns.apply_transform(model, "gamma=0.25")
        assert all(bool((gamma == 0.25).all()) for gamma in scales(changed).values())


@pytest.mark.parametrize("name", ALL)
def test_statistics_and_regularization(name):
    model, _ = network(name)
    cards = norm_cards(model)
    coupled = {n for n, card in cards.items() if card.over_batch}
    assert set(batch_norms(model)) == coupled
    frozen = {n for n in coupled if not model.get_submodule(n).training and not cards[n].always}
    assert set(coupling_layers(model)) == coupled - frozen
    usable = {n for n in coupled - frozen if cards[n].formula}
    if usable:
        assert {site.name for site in sites_of(model)} == usable
    else:
        with pytest.raises(InputError):
            sites_of(model)


@pytest.mark.parametrize("name", [n for n in RUNS if "compiled" not in n])
def test_describe(name):
    model, x = network(name)
    rows = ns.describe(model, x).layers
    found = [row for row in rows if row.norm is not None or row.kind == "norm"]
    # a norm that a module computes by a function is no module, and has a name of its own
    inside = [row for row in found if row.name in ("1.rms_norm", "1.layer_norm")]
    assert len(inside) == (name in ("cosine classifier", "post-norm"))
    assert len(found) - len(inside) == len(norm_cards(model))


@pytest.mark.parametrize("name", RUNS)
def test_layout_and_sites(name):
    model, x = network(name)
    cards = norm_cards(model)
    layout = norm_layout(model, [(x, None)])
    found = {norm.name: norm for norm in layout.norms if norm.name in cards}
    assert set(found) == set(cards)
    coupled = coupling_layers(model)
    for n, norm in found.items():
        assert norm.used
        assert norm.over_batch == (n in coupled)
        gamma = cards[n].gamma(model.get_submodule(n))
        size = 1.0 if gamma is None else float(gamma.detach().square().mean().sqrt())
        assert norm.gamma == pytest.approx(size)


BATCHED = [n for n in RUNS if NORMS.get(n, (0, 0, {}))[2].get("kind") == "batch"]


@pytest.mark.parametrize("name", BATCHED)
def test_statistics_held_constant_give_the_same_loss(name):
    model, x = network(name)
    y = torch.randint(2, (len(x),))
    measure = lambda s: ns.Risk(model, x, y, loss="cross_entropy", statistics=s)  # noqa: E731
    if norm_card(model[1]).formula or hasattr(model[1], "batch_statistics"):
        assert float(measure("frozen").value()) == pytest.approx(float(measure("batch").value()))
    else:
        with pytest.raises(InputError, match="in a way of its own"):
            measure("frozen")


SWAPS = [
    n for n in RUNS if n in NORMS and NORMS[n][2].get("channels", C) and "compiled" not in n
]  # fmt: skip


@pytest.mark.parametrize("name", SWAPS)
def test_scale_and_shift_go_on_in_another_norm(name):
    model, x = network(name)
    with torch.no_grad():
        for p in model[1].parameters():
            p.uniform_(0.5, 1.5)
    card = norm_card(model[1])
    after = "layer" if card.kind != "layer" else "batch"
    changed = ns.apply_transform(model, f"replace:{card.kind}->{after}")
    new = norm_card(changed[1])
    assert (new.kind, new.channels, new.channel_axis) == (after, C, card.channel_axis)
    assert changed(x).shape == (len(x), 2)
    for old, made in ((card.gamma, new.gamma), (card.beta, new.beta)):
        before, now = old(model[1]), made(changed[1])
        assert now is None if before is None else torch.allclose(now, before)


# ---- what the definitions used to disagree on


def test_a_layer_that_is_only_called_so_has_weights():
    torch.manual_seed(0)
    model = nn.Sequential(NormalizedLinear(8, 32), nn.ReLU(), NormalizedLinear(32, 2))
    x, y = torch.randn(6, 8), torch.randn(6, 2)
    found = ns.Risk(model, x, y, loss="mse", statistics="batch", parameters="weights")
    assert found.parameters.total == 8 * 32 + 32 * 2


def test_a_frozen_batch_norm_of_torchvision_couples_nothing():
    model = nn.Sequential(nn.Conv2d(C, C, 1), FrozenBatchNorm2d(), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(C * 16, 2))
    x, y = torch.randn(16, *MAPS[1:]), torch.randint(2, (16,))
    found = ns.examine(model, (x, y), "cross_entropy")
    assert found["layout"].norms == ()
    assert "running-statistics" not in {finding.rule for finding in found.findings}


def llama():
    return nn.Sequential(
        nn.Linear(4, C), LlamaLike(), nn.ReLU(), nn.Linear(C, C), LlamaLike(), nn.Linear(C, 2)
    )


def test_norms_of_hugging_face_are_the_same_for_all():
    model = llama()
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    assert len(norm_layout(model, [(x, y)]).norms) == 2
    assert list(scales(model)) == ["1", "4"]
    assert select_parameters(model, "norm").names == ("1.weight", "4.weight")
    found = ns.what_if(model, (x, y), ["remove-norms", "replace:rms->layer"], limits=False)
    assert [variant.reason for variant in found.variants] == [""] * 3
    changed = ns.apply_transform(model, "replace:rms->layer")
    assert {card.kind for card in norm_cards(changed).values()} == {"layer"}


@pytest.mark.parametrize("options", [{"parts": ("scale", "shift")}, {"every": None}])
def test_a_layer_without_statistics_of_the_batch_couples_nothing(options):
    model = nn.Sequential(nn.Linear(4, C), BatchNorm(C, **options), nn.Linear(C, 2))
    assert not coupling_layers(model)
    noise = ns.gradient_noise(model, (torch.randn(8, 4), torch.randint(2, (8,))), "cross_entropy")
    assert not noise.coupled


def test_a_name_that_says_norm_and_cannot_be_tried_out_is_refused():
    from norm_layers import TwoInputsNorm

    model = nn.ModuleDict({"a": nn.Linear(C, C), "b": TwoInputsNorm()})
    for ask in (
        lambda: select_parameters(model, "weights"),
        lambda: scales(model),
        lambda: ns.apply_transform(model, "remove-norms"),
    ):
        with pytest.raises(InputError, match=r"TwoInputsNorm 'b'.*register_norm"):
            ask()


def test_a_norm_with_an_activation_in_it_is_not_removed_alone():
    class NormAct(LlamaLike):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(nn.Linear(4, C), NormAct(), nn.Linear(C, C), nn.LayerNorm(C))
    assert list(norm_cards(model)) == ["1", "3"]
    for change in ("remove-norms", "replace:any->batch", "replace:rms->layer"):
        with pytest.raises(InputError, match="NormAct '1' does more than to normalize"):
            ns.apply_transform(model, change)
    assert list(norm_cards(ns.apply_transform(model, "remove-norms:3"))) == ["1"]
    assert isinstance(ns.apply_transform(model, "replace:layer->batch")[3], BatchNorm)


def test_regularization_by_another_librarys_batch_norm():
    """The same as by torch's: it computes the same."""
    torch.manual_seed(2)
    found = []
    for norm in (TheirBatchNorm(eps=1e-3), nn.BatchNorm2d(C, eps=1e-3)):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(C, C, 1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
        x, y = torch.randn(40, *MAPS[1:]), torch.randint(2, (40,))
        options = {"batch_size": 8, "num_batches": 4}
        found.append(ns.bn_regularization(model, (x, y), "cross_entropy", **options))
    theirs, torchs = ([layer.to_dict() for layer in one.layers] for one in found)
    assert theirs[0].pop("kind", "TheirBatchNorm") == "TheirBatchNorm"
    torchs[0].pop("kind", None)
    assert str(theirs) == str(torchs)


def test_fold_by_another_librarys_batch_norm():
    norm = TheirBatchNorm()
    model = nn.Sequential(nn.Conv2d(C, C, 1), norm, nn.ReLU())
    x = torch.randn(8, *MAPS[1:])
    with torch.no_grad():
        norm.g.uniform_(0.5, 1.5), norm.b.normal_()
        for _ in range(20):
            model(x)
    model.eval()
    folded = ns.apply_transform(model, "fold")
    assert isinstance(folded[1], nn.Identity)
    assert torch.allclose(folded(x), model(x), atol=1e-10)


def test_filter_response_norm_in_place_of_another():
    model = nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.Flatten(), nn.Linear(96, 2))
    with torch.no_grad():
        model[1].weight.uniform_(0.5, 1.5), model[1].bias.normal_()
    changed = ns.apply_transform(model, "replace:batch->frn")
    x = model[0](torch.randn(8, *MAPS[1:]))
    scale, shift = (p.view(1, -1, 1, 1) for p in (model[1].weight, model[1].bias))
    expected = scale * x / (x.square().mean((2, 3), keepdim=True) + 1e-5).sqrt() + shift
    assert torch.allclose(changed[1](x), expected, rtol=1e-12)
    back = ns.apply_transform(changed, "replace:frn->batch")
    assert torch.equal(back[1].weight, model[1].weight)
    theirs = nn.Sequential(nn.Conv2d(C, C, 1), PlainFilterResponse())
    assert isinstance(ns.apply_transform(theirs, "replace:frn->layer")[1], GroupNorm)
    with pytest.raises(InputError, match="over the positions"):
        changed[1](torch.randn(8, C))
