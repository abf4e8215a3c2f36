"""The papers' networks: sizes, numbering, places of norms and dropout."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import InputError
from normscope.nn import BatchNorm, network
from normscope.nn.zoo import (
    ZOO,
    cifar_preresnet,
    cifar_resnet,
    cnn6,
    imagenet_resnet,
    mlp_network,
    resnet18,
    vgg16,
)
from normscope.subject.describe import describe
from normscope.subject.layers import numbered_layers
from normscope.subject.norms import norm_cards


def size(model):
    return sum(p.numel() for p in model.parameters())


def images(count=2, channels=3):
    return torch.randn(count, channels, 32, 32, generator=torch.Generator().manual_seed(1))


def norms(model):
    return [n for n, m in model.named_modules() if "Norm" in type(m).__name__]


PUBLISHED = {20: 269722, 32: 464154, 44: 658586, 56: 853018, 110: 1727962}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_parameter_counts_of_the_resnets(depth):
    assert size(network(f"resnet{depth}")) == PUBLISHED[depth]


@pytest.mark.slow
def test_parameter_count_and_numbering_of_resnet1202():
    model = network("resnet1202")
    assert size(model) == 19421274
    assert numbered_layers(model)[1202][0] == "fc"


def test_parameter_counts_of_the_others():
    """Counted by hand from the layer sizes."""
    assert size(network("resnet18")) == 11173962
    convs = [3 * 32, 32 * 32, 32 * 64, 64 * 64]
    fc = 64 * 16 * 16 * 512
    assert size(network("cnn6", norm=None)) == 9 * sum(convs) + 192 + fc + 512 + 5130
    assert size(network("cnn6")) == 9 * sum(convs) + 2 * 192 + fc + 2 * 512 + 5130
    assert size(network("mlp:784-256-256-10", norm=None)) == 784 * 256 + 256 * 257 + 256 + 2570
    channels = [3, *[64] * 3, *[128] * 3, *[256] * 3, *[512] * 6]
    weights = sum(9 * a * b for a, b in itertools.pairwise(channels))
    assert size(network("vgg16", norm=None)) == weights + 5130
    assert size(network("preresnet20")) == 269722  # norms of the same sizes, moved
    assert size(network("vgg20")) == size(network("resnet20"))
    assert size(network("resnet20", norm=None)) == 269722 - 2 * (7 * 16 + 6 * 32 + 6 * 64)


def test_layer_numbers_of_depth_110():
    layers = numbered_layers(network("resnet110", norm=None))
    assert list(layers) == list(range(1, 111))
    assert layers[1][0] == "conv1"
    assert layers[110][0] == "fc"
    for block in range(1, 55):
        stage, index = divmod(block - 1, 18)
        for offset, name in ((0, "conv1"), (1, "conv2")):
            assert layers[2 * block + offset][0] == f"stage{stage + 1}.{index}.{name}"
    widths = [layers[n][1].out_channels for n in range(1, 110)]
    assert widths == [16] * 37 + [32] * 36 + [64] * 36


def test_projections_have_no_number():
    layers = numbered_layers(network("resnet18"))
    assert len(layers) == 18
    assert not any("shortcut" in name for name, _ in layers.values())


def test_projection_shortcuts_of_a_cifar_resnet():
    """Parameters as published for option B, and the shortcut is the written formula."""
    model = network("resnet20", shortcut="projection")
    assert size(model) == 272474
    assert list(numbered_layers(model)) == list(range(1, 21))
    block = cifar_resnet(8, norm=None, shortcut="projection").stage2[0]
    x = images(4)[:, :1].expand(-1, 16, -1, -1)
    y = functional.relu(functional.conv2d(x, block.conv1.weight, padding=1, stride=2))
    y = functional.conv2d(y, block.conv2.weight, padding=1)
    skip = functional.conv2d(x, block.shortcut[0].weight, stride=2)
    torch.testing.assert_close(block(x), functional.relu(y + skip))
    with pytest.raises(InputError, match=r"shortcut 'projecton'.*'projection'"):
        cifar_resnet(8, shortcut="projecton")


def test_numbers_of_a_model_that_cannot_be_traced():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(self.a(x)) if x.sum() > 0 else x

    assert [name for name, _ in numbered_layers(Branching()).values()] == ["a", "b"]


def test_a_resnet_is_the_written_formula():
    """Depth 8 with option-A shortcuts, against functional calls."""
    model = cifar_resnet(8, width=4, seed=3).double().eval()
    x = images().double()

    def bn(y, norm):
        return functional.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias)

    h = functional.relu(bn(functional.conv2d(x, model.conv1.weight, padding=1), model.norm1))
    for stage, stride in ((model.stage1, 1), (model.stage2, 2), (model.stage3, 2)):
        block = stage[0]
        y = functional.conv2d(h, block.conv1.weight, padding=1, stride=stride)
        y = functional.relu(bn(y, block.norm1))
        y = bn(functional.conv2d(y, block.conv2.weight, padding=1), block.norm2)
        skip = h[:, :, ::stride, ::stride]
        missing = y.shape[1] - h.shape[1]
        skip = torch.cat([skip, torch.zeros(len(x), missing, *skip.shape[2:])], 1)
        h = functional.relu(y + skip)
    torch.testing.assert_close(model(x), model.fc(h.mean((2, 3))))


def test_vgg_style_is_the_resnet_without_additions():
    a, b = network("resnet8", seed=2), network("vgg8", seed=2)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    for module in a.modules():
        if hasattr(module, "shortcut"):
            module.shortcut = None
    torch.testing.assert_close(a(images(4)), b(images(4)))


def test_places_of_extra_norms():
    model = network("resnet8", norm=None, norm_options={"eps": 0.0},
                    extra_norms=["top", "before-last", "output"])  # fmt: skip
    assert norms(model) == ["top_norm", "before_last_norm", "output_norm"]
    order = [name for name, _ in model.named_children()]
    assert order[-7:] == ["stage3", "top_norm", "pool", "flatten", "before_last_norm", "fc",
                          "output_norm"]  # fmt: skip
    features = []
    model.fc.forward = lambda x: features.append(x) or functional.linear(x, model.fc.weight)
    model(images(8))
    second = features[0].T @ features[0] / 8
    assert float(second.trace().detach()) == pytest.approx(64, rel=1e-12)


def test_preresnet_with_and_without_the_final_norm():
    full, bare = cifar_preresnet(8), cifar_preresnet(8, final_norm=False)
    assert set(norms(full)) - set(norms(bare)) == {"final_norm"}
    block = full.stage2[0]
    x = torch.randn(3, 16, 8, 8)
    y = block.conv1(torch.relu(block.norm1(x)))
    y = block.conv2(torch.relu(block.norm2(y)))
    torch.testing.assert_close(block(x), y + block.shortcut(x))
    projected = cifar_preresnet(8, shortcut="projection").stage2[0].shortcut
    assert [type(layer).__name__ for layer in projected] == ["Conv2d", "BatchNorm2d"]
    assert projected(x).shape == block(x).shape


def test_norms_at_chosen_layers_only():
    assert norms(cnn6(norm_layers=[3])) == ["norm3"]
    assert norms(mlp_network([4, 3, 3, 2], norm_layers=(2,))) == ["norm2"]
    assert norms(network("resnet8:norm_layers=1+4")) == ["norm1", "stage2.0.norm1"]
    bare = cnn6(norm_layers=[3])
    assert bare.layer3.bias is None
    assert bare.layer2.bias is not None
    with pytest.raises(InputError, match="layer 6"):
        cnn6(norm_layers=[6])


def test_dropout_at_the_chosen_place():
    def drops(model):
        return [n for n, m in model.named_modules() if isinstance(m, nn.Dropout)]

    blocks = drops(resnet18(dropout=0.1, width=4))
    assert blocks == [f"stage{s}.{b}.drop" for s in (1, 2, 3, 4) for b in (0, 1)]
    assert drops(resnet18(dropout=0.3, dropout_at="last", width=4)) == ["drop"]
    assert drops(mlp_network([4, 3, 3, 2], dropout=0.5)) == ["drop1", "drop2"]
    assert drops(mlp_network([4, 3, 3, 2], dropout=0.5, dropout_at=[2])) == ["drop2"]
    assert drops(resnet18(width=4)) == []
    assert resnet18(dropout=0.1, width=4).stage1[0].drop.p == 0.1


KINDS = ["batch", "layer", "group4", "rms", "mean", "variance", "weight", "weight-mean",
         "weight-variance", "alternating", None]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_norm_in_a_network(kind):
    model = network("resnet8", norm=kind, width=8, seed=1)
    out = model(images(4))
    assert out.shape == (4, 10)
    assert bool(out.isfinite().all())
    out.square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_weight_norm_does_not_change_the_network_it_starts_from():
    plain, normed = network("cnn6", norm=None, seed=4), network("cnn6", norm="weight", seed=4)
    torch.testing.assert_close(normed(images()), plain(images()))


def test_gamma_and_options_reach_every_norm():
    model = network("resnet8:gamma=0.1")
    found = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(found) == 7
    assert all(bool((m.weight == 0.1).all()) for m in found)
    exact = network("resnet8", norm_options={"eps": 0.0})
    assert all(m.eps == 0 for m in exact.modules() if isinstance(m, BatchNorm))


def test_initializers():
    """He fan-out in the convolutions: variance 2 / (9 C_out)."""
    weight = network("resnet8", init="he-fan-out", seed=1).stage3[0].conv2.weight.detach()
    expected = 2 / (9 * 64)
    assert abs(float(weight.square().mean()) / expected - 1) < 4.5 * (2 / weight.numel()) ** 0.5


@pytest.mark.parametrize("name", ["resnet8", "preresnet8", "vgg8", "cnn6", "mlp:3072-20-10",
                                  "wei-cnn", "resnet18:width=4", "vgg16:width=4"])  # fmt: skip
def test_seeds_and_the_global_generator(name):
    state = torch.get_rng_state()
    first, second, other = network(name), network(name), network(name, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(first.parameters(), second.parameters(), other.parameters(), strict=True)
    same, changed = True, False
    for a, b, c in pairs:
        same, changed = same and torch.equal(a, b), changed or not torch.equal(a, c)
    assert same
    assert changed
    assert first(images()).shape == (2, 10)


def test_no_two_layers_share_their_weights_values():
    model = network("resnet20")
    blocks = [block.conv2.weight.flatten()[:5] for block in model.stage1]
    assert len({tuple(b.tolist()) for b in blocks}) == len(blocks)


def test_weis_networks_are_those_of_the_paper():
    cnn = network("wei-cnn", gamma=0.5)
    assert [m.out_channels for m in cnn.modules() if isinstance(m, nn.Conv2d)] == [30, 60, 90]
    assert bool((cnn.norm1.weight == 0.5).all())
    assert network("wei-mlp", norm=None).layer4.in_features == 1000


def test_vgg16_has_five_groups_of_three():
    model = vgg16(width=4)
    groups = [n for n, _ in model.named_children() if n.startswith("group")]
    assert len(groups) == 5
    for name in groups:
        assert sum(isinstance(m, nn.Conv2d) for m in getattr(model, name)) == 3
    assert len(numbered_layers(model)) == 16


def test_any_depth_and_the_registry():
    assert len(numbered_layers(network("resnet26:norm=none,width=4"))) == 26
    assert {"resnet20", "mlp", "cnn6", "vgg16", "preresnet110"} <= set(ZOO)


BAD = [
    ("resnet21", "6n \\+ 2"),
    ("resnet2", "6n \\+ 2"),
    ("resnt20", "Did you mean 'resnet20'"),
    ("resnet20:nrom=none", "Did you mean 'norm'"),
    ("mlp", "list of widths"),
    ("mlp:784", "input and output widths"),
    ("mlp:784-x-10", "784-256-10"),
    ("mlp:784-0-10", "positive integers"),
    ("cnn6:norm=bach", "batch"),
    ("cnn6:dropout=1.5", "ratio"),
    ("cnn6:dropout=0.1,dropout_at=block", "blocks"),
    ("resnet8:extra_norms=topp", "top"),
    ("cnn6:extra_norms=top", "does not have. Its places: before-last, output"),
    ("mlp:4-3-2,extra_norms=top", "does not have"),
    ("resnet8:dropout=0.1,dropout_at=2+8", "dropout_at names layer 8"),
    ("preresnet8:norm=weight", "belongs behind a layer"),
    ("resnet8:activation=rleu", "relu"),
    ("resnet8:init=hee", "he"),
    (17, "text"),
]


@pytest.mark.parametrize(("name", "message"), BAD)
def test_bad_input_says_what_and_why(name, message):
    with pytest.raises(InputError, match=message):
        network(name)


@pytest.mark.parametrize("name", [
    "cnn6:classes=0.5", "cnn6:classes=x", "cnn6:classes=-1", "cnn6:classes=true", "cnn6:channels=0",
    "cnn6:side=none", "mlp:4-99999999999-2", "vgg8:width=nan", "vgg8:width=1e9", "vgg16:width=none",
    "preresnet8:width=0", "resnet20:width=2.5", "cnn6:init=9", "cnn6:extra_norms=3",
    "cnn6:norm_options=3", "vgg8:norm=layer,norm_options=3", "preresnet8:norm=layer,norm_options=3",
    "cnn6:norm_layers=x", "cnn6:norm_layers=0.5", "mlp:3-2,norm_layers=1+x", "cnn6:gamma=x",
    "cnn6:gamma=1e300", "cnn6:gamma=99999999999999999999999999999999999999999", "cnn6:gamma=nan",
    "cnn6:dropout_at=0.5", "mlp:3-2,dropout_at=none", "preresnet8:norm=3", "cnn6:activation=3",
    "mlp:3-2,bias=3", "resnet99998", "wei-mlp:gamma=x", "wei-mlp:norm=3",
])  # fmt: skip
def test_options_of_a_wrong_kind_are_refused(name):
    with pytest.raises(InputError) as caught:
        network(name)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["resnet50", "resnet152:classes=100"])
def test_names_of_imagenet_networks_are_refused(name):
    with pytest.raises(InputError, match=r"'imagenet-resnet.*torchvision\.models\.resnet"):
        network(name)
    assert size(cifar_resnet(50)) > 0


IMAGENET = {18: 11689512, 34: 21797672, 50: 25557032}  # torchvision's


@pytest.mark.parametrize("depth", IMAGENET)
def test_parameter_counts_and_numbers_of_the_imagenet_networks(depth):
    model = network(f"imagenet-resnet{depth}")
    assert size(model) == IMAGENET[depth]
    assert len(numbered_layers(model)) == depth
    assert numbered_layers(model)[depth][0] == "fc"


@pytest.mark.parametrize("norm", ["batch", "layer", None])
@pytest.mark.parametrize("name", ["imagenet-resnet18", "imagenet-resnet50"])
def test_an_imagenet_network_on_small_images(name, norm):
    model = network(name, width=8, classes=7, norm=norm)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert model(x).shape == (2, 7)
    h = model.act1(model.norm1(model.conv1(x)))
    sides = [h.shape[-1]]
    h = model.maxpool(h)
    for stage in (model.stage1, model.stage2, model.stage3, model.stage4):
        sides.append(h.shape[-1])
        h = stage(h)
    assert [*sides, h.shape[-1]] == [32, 16, 16, 8, 4, 2]
    assert len(norm_cards(model)) == len(norms(model))
    found = describe(model, x)
    assert found.total_parameters == size(model)
    assert found.reason


def test_a_bottleneck_is_the_written_formula():
    block = network("imagenet-resnet50", width=4).double().eval().stage2[0]
    x = torch.randn(3, 16, 8, 8, dtype=torch.float64)
    inner, (projection, norm) = block.inner, block.shortcut
    y = torch.relu(inner.norm1(functional.conv2d(x, inner.conv1.weight)))
    y = functional.conv2d(y, inner.conv2.weight, stride=2, padding=1)
    y = inner.norm3(functional.conv2d(torch.relu(inner.norm2(y)), inner.conv3.weight))
    skip = norm(functional.conv2d(x, projection.weight, stride=2))
    torch.testing.assert_close(block(x), torch.relu(y + skip))


def test_huangs_imagenet_networks():
    """Table A: a batch norm before the last layer; dropout stands before that layer too."""
    model = network("imagenet-resnet18:width=4,extra_norms=before-last,dropout=0.3")
    children = [name for name, _ in model.named_children()]
    assert children[-5:] == ["pool", "flatten", "before_last_norm", "drop", "fc"]
    assert [n for n, m in model.named_modules() if isinstance(m, nn.Dropout)] == ["drop"]
    inside = network("imagenet-resnet50", width=4, dropout=0.1, dropout_at=[2, 4])
    drops = [n for n, m in inside.named_modules() if isinstance(m, nn.Dropout)]
    assert drops == ["stage1.0.inner.drop2", "stage1.0.drop"]
    with pytest.raises(InputError, match="18, 34, 50, 101, 152"):
        imagenet_resnet(20)


def test_papers_networks_in_other_sizes():
    x = torch.randn(4, 3, 16, 16)
    small = network("cnn6", width=8, side=16)
    shapes = [tuple(p.shape)[:2] for p in small.parameters() if p.ndim > 1]
    assert shapes == [(8, 3), (8, 8), (16, 8), (16, 16), (128, 16 * 64), (10, 128)]
    assert small(x).shape == (4, 10)
    wei = network("wei-mlp:inputs=768,width=20,classes=3")
    assert [p.shape[1] for p in wei.parameters() if p.ndim > 1] == [768, 20, 20, 20]
    assert wei(x.flatten(1)).shape == (4, 3)
    conv = network("wei-cnn", channels=3, side=16, width=4, classes=5)
    assert conv(x).shape == (4, 5)
    assert [p.shape[0] for p in conv.parameters() if p.ndim == 4] == [4, 8, 12]
    full = network("wei-cnn", side=32)  # the paper's own by default
    assert [p.shape[0] for p in full.parameters() if p.ndim == 4] == [30, 60, 90]
