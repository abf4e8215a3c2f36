"""Networks as people write them, with torch's own layers: each is examined, none is changed."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from fingerprints import fingerprint
from normscope.diagnose import examine
from normscope.errors import InputError
from normscope.results import Examination

VOCABULARY, LENGTH = 20, 6


class Transformer(nn.Module):
    """Token classifier on torch's encoder."""

    def __init__(self, *, norm_first=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(
            16, 2, dim_feedforward=32, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))


class BasicBlock(nn.Module):
    """As in torchvision."""

    def __init__(self, before, after, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """torchvision's, with an eighth of the channels."""

    def __init__(self, classes=5, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        before = width
        for stage, stride in enumerate((1, 2, 2, 2), start=1):
            after = width * 2 ** (stage - 1)
            blocks = nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after))
            setattr(self, f"layer{stage}", blocks)
            before = after
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Recurrent(nn.Module):
    """LSTM classifier."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 4)

    def forward(self, tokens):
        _, (hidden, _) = self.lstm(self.embed(tokens))
        return self.head(torch.cat([hidden[-2], hidden[-1]], 1))


def double_conv(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Two scales, skip connections, one label per pixel."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = double_conv(3, 6), double_conv(6, 12)
        self.bottom = double_conv(12, 24)
        self.up2, self.join2 = nn.ConvTranspose2d(24, 12, 2, 2), double_conv(24, 12)
        self.up1, self.join1 = nn.ConvTranspose2d(12, 6, 2, 2), double_conv(12, 6)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(bottom), second], 1))
        return self.head(self.join1(torch.cat([self.up1(x), first], 1)))


class DictTuple(nn.Module):
    """Takes a dict, returns (logits, features)."""

    def __init__(self):
        super().__init__()
        self.image = nn.Linear(12, 16)
        self.text = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, batch):
        features = self.norm(
            functional.relu(self.image(batch["image"])) + self.text(batch["tokens"]).mean(1)
        )
        return self.head(features), {"features": features}


def dict_loss(model, batch):
    logits, rest = model(batch)
    return (
        functional.cross_entropy(logits, batch["label"]) + 1e-3 * rest["features"].square().mean()
    )


class LanguageModel(nn.Module):
    """Next-token model with tied embeddings and causal attention."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, 16))
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.RMSNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm2(x)))


def next_token(model, tokens):
    logits = model(tokens)[:, :-1]
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def frozen_backbone():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24)),
        nn.ReLU(),
        nn.Linear(24, 4),
    )
    model[0].requires_grad_(False)
    model[0].eval()
    return model


def weight_normed():
    return nn.Sequential(
        weight_norm(nn.Linear(12, 24)), nn.ReLU(), weight_norm(nn.Linear(24, 24)), nn.ReLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(24, 4)),
    )  # fmt: skip


def mlp():
    return nn.Sequential(
        nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4)
    )


class Drawn:
    """Random data from one generator."""

    def __init__(self, dtype=torch.float32):
        self.generator, self.dtype = torch.Generator().manual_seed(0), dtype

    def real(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def whole(self, high, *shape):
        return torch.randint(high, shape, generator=self.generator)

    def vectors(self, count=32):
        return self.real(count, 12), self.whole(4, count)

    def tokens(self, count=32):
        return self.whole(VOCABULARY, count, LENGTH), self.whole(4, count)

    def images(self, count=12, size=32):
        return self.real(count, 3, size, size), self.whole(5, count)

    def masks(self, count=6, size=16):
        return self.real(count, 3, size, size), self.whole(3, count, size, size)

    def dicts(self, count=32):
        return {"image": self.real(count, 12), "tokens": self.whole(VOCABULARY, count, LENGTH),
                "label": self.whole(4, count)}  # fmt: skip


# name -> (network, batches, loss)
MODELS = {
    "transformer-encoder": (Transformer, lambda d: [d.tokens(), d.tokens()], "cross_entropy"),
    "transformer-pre-norm-eval": (
        lambda: Transformer(norm_first=True).eval(), lambda d: [d.tokens()], "cross_entropy"),
    "resnet18": (ResNet18, lambda d: [d.images(), d.images()], "cross_entropy"),
    "resnet18-eval": (lambda: ResNet18().eval(), lambda d: [d.images()], nn.CrossEntropyLoss()),
    "lstm": (Recurrent, lambda d: [d.tokens()], "cross_entropy"),
    "u-net": (UNet, lambda d: [d.masks(), d.masks()], "cross_entropy"),
    "dict-and-tuple": (DictTuple, lambda d: [d.dicts(), d.dicts()], dict_loss),
    "language-model": (LanguageModel, lambda d: [d.tokens()[0]], next_token),
    "frozen-backbone": (frozen_backbone, lambda d: [d.vectors()], "cross_entropy"),
    "weight-norm": (weight_normed, lambda d: [d.vectors()], "cross_entropy"),
    "bfloat16": (lambda: mlp().bfloat16(), lambda d: [d.vectors()], "cross_entropy"),
    "float16": (lambda: mlp().half(), lambda d: [d.vectors()], "cross_entropy"),
}  # fmt: skip


NO_THEORY = {"prediction", "comparison", "order_parameters", "changes"}
HIDDEN = {"outliers", "density"} | NO_THEORY  # by loss_fn(model, batch)
# name -> what makes no sense for it (beside regularization without batch norm), share known
EXPECTED = {
    "transformer-encoder": (NO_THEORY, 1.0),
    "transformer-pre-norm-eval": (NO_THEORY, 1.0),
    "resnet18": (NO_THEORY, 1.0),
    "resnet18-eval": (NO_THEORY, 1.0),
    "lstm": (NO_THEORY, 1.0),
    "u-net": (NO_THEORY | {"outliers"}, 1.0),
    "dict-and-tuple": (HIDDEN, 1.0),
    "language-model": (HIDDEN, 1 - 96 / 2624),  # all but the positions
    "frozen-backbone": (set(), 1.0),
    "weight-norm": (NO_THEORY, 1.0),
    "bfloat16": (set(), 1.0),
    "float16": (set(), 1.0),
}


def built(name):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    make, batches, loss = MODELS[name]
    model = make()
    kind = next(model.parameters()).dtype
    return model, batches(Drawn(kind)), {"loss_fn" if inspect.isfunction(loss) else "loss": loss}


@functools.cache
def examined(name):
    """The examination, and whether all was afterwards as it had been before."""
    model, batches, loss = built(name)
    before = fingerprint(model, batches)
    preset = "fast" if name.endswith("eval") else "standard"
    found = examine(model, batches, **loss, lr=0.1, momentum=0.9, preset=preset)
    return found, before == fingerprint(model, batches)


@pytest.mark.parametrize("name", MODELS)
def test_examined_without_error(name):
    found, unchanged = examined(name)
    assert unchanged
    assert not found.missing, found.summary()
    assert found["sharpness"].largest > 0
    assert "learning-rate" in {finding.rule for finding in found.findings}
    assert len(found.findings) >= (1 if name == "lstm" else 4)
    assert Examination.from_json(found.to_json()) == found


@pytest.mark.parametrize("name", MODELS)
def test_coverage_is_honest(name):
    found, _ = examined(name)
    left_out, share = EXPECTED[name]
    planned = {step.name for step in found.plan.steps}
    if not any(norm.over_batch for norm in found["layout"].norms):
        left_out = left_out | {"regularization"}
    reasons = {step.name: step.reason for step in found.plan.steps if step.status == "skipped"}
    assert set(reasons) == left_out & planned
    assert all(reasons.values())
    assert found.plan.coverage == pytest.approx(share)
    shown = found.summary()
    lines = shown.splitlines()
    for step, reason in reasons.items():  # in one line of 100 characters, whole in the plan
        [line] = [line for line in lines if step in line.partition(" skipped: ")[0].split(", ")]
        start = line.partition(": ")[2].removesuffix(" ...")
        assert start
        assert reason.startswith(start)
    assert (f"cover {share:.0%} of the parameters" in shown) == (share < 1)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_is_measured_as_its_weights_are(name):
    model, batches, loss = built(name)
    exact = examine(
        model.double(), [(x.double(), y) for x, y in batches], **loss, lr=0.1, preset="fast"
    )
    found, wanted = examined(name)[0]["sharpness"], exact["sharpness"]
    # rounding of activations to 8 bits, and each eigenvalue to its own bound
    gap = 2**-7 * wanted.largest + found.bounds[0] + wanted.bounds[0]
    assert abs(found.largest - wanted.largest) < gap


def test_an_operation_without_second_derivative_leaves_the_rest(capsys):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 16), nn.LayerNorm(16), nn.Linear(16, 4))

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    found = examine(model, [Drawn().tokens()], loss_fn=loss, preset="standard")
    assert {step.name for step in found.missing} == {"sharpness", "hessian"}
    assert all("_embedding_bag_backward" in step.reason for step in found.missing)
    assert {"layout", "activations", "gradients", "conditioning"} <= set(found.measurements)
    start = "sharpness, hessian failed: "
    [line] = [line for line in found.summary().splitlines() if line.startswith(start)]
    assert "NotImplementedError" in line


def test_several_outputs_without_a_loss_that_picks_one():
    model, (batch, _), _ = built("dict-and-tuple")
    with pytest.raises(InputError, match="the model gives 2"):
        examine(model, [(batch, batch["label"])], "cross_entropy")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if "resnet" not in name])
def test_trainings_and_what_ifs(name, tmp_path):
    model, batches, loss = built(name)
    before = fingerprint(model, batches)
    found = examine(model, batches, **loss, lr=0.1, preset="full")
    assert fingerprint(model, batches) == before
    assert not found.missing, found.summary()
    assert found["advice"].ok
    assert found["advice"].lr < found["stability"].diverges.low
    assert any(variant.made for variant in found["what_if"].after)
    assert found.save(tmp_path / "page.html").stat().st_size < 3_000_000
