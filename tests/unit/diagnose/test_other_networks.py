"""Networks that the rules were not made from: healthy ones are left alone, others found."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

from normscope.diagnose import examine
from normscope.diagnose.findings import answer_of, not_judged
from normscope.measure.probes.layout import norm_layout
from normscope.results import SEVERITIES, Examination

WORDS, LENGTH, CLASSES = 24, 8, 5


def tokens(count=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(WORDS, (count, LENGTH), generator=generator)
    return x, x[:, 0] % CLASSES


def images(count=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    return x, x.mean((1, 2, 3)).gt(0).long()


class Encoder(nn.Module):
    """torch's transformer; with ``norm_first`` a norm has to stand behind it."""

    def __init__(self, *, norm_first, final, layers=4, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, batch_first=True, norm_first=norm_first
        )
        self.embed = nn.Embedding(WORDS, width)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        for index, block in enumerate(self.body.layers):  # copies of one
            torch.manual_seed(index)
            for parameter in block.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)
        self.norm = nn.LayerNorm(width) if final else nn.Identity()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.body(self.embed(x))).mean(1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Linear(channels, channels // 4), nn.Linear(channels // 4, channels)
        self.act = nn.ReLU()

    def forward(self, x):
        gate = torch.sigmoid(self.up(self.act(self.down(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.gate = SqueezeExcite(after)
        self.shortcut = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(self.gate(y) + self.shortcut(x))


def gated_resnet():
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body = [Block(16, 16), Block(16, 32), Block(32, 32)]
    return nn.Sequential(
        *stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)
    )  # fmt: skip


class TwoHeads(nn.Module):
    """Classes, and a number that is learned beside them."""

    def __init__(self, *, bare=False):
        super().__init__()
        layers, before = [], 3 * 64
        for _ in range(3):
            layers += [nn.Linear(before, 48), nn.BatchNorm1d(48), nn.ReLU()]
            before = 48
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.between = nn.Linear(48, 48) if bare else nn.Identity()
        self.classes, self.number = nn.Linear(48, 2), nn.Linear(48, 1)

    def forward(self, x):
        h = self.body(x)
        return self.classes(h), self.number(self.between(h))


def first_output(model, batch):
    return model(batch[0])[0], batch[1]


class LayerDrop(nn.Module):
    """Each block is left out in half of the training steps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(192, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU()) for _ in range(8)
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            if self.training and torch.rand(()) < 0.5:
                continue
            x = x + block(x)
        return self.head(self.norm(x))


class GatedMLP(nn.Module):
    """Gated linear units between RMS norms, with a residual stream."""

    def __init__(self, *, final=True, gain=1.0):
        super().__init__()
        self.first = nn.Linear(192, 32)
        self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(4))
        self.gates, self.ups, self.downs = (
            nn.ModuleList(nn.Linear(*shape, bias=False) for _ in range(4))
            for shape in ((32, 64), (32, 64), (64, 32))
        )
        self.norm = nn.RMSNorm(32) if final else nn.Identity()
        self.head = nn.Linear(32, 2)
        with torch.no_grad():
            for down in self.downs:
                down.weight *= gain

    def forward(self, x):
        x = self.first(x.flatten(1))
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            y = norm(x)
            x = x + down(nn.functional.silu(gate(y)) * up(y))
        return self.head(self.norm(x))


class TiedLanguageModel(nn.Module):
    """The head has the weight of the embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        nn.init.normal_(self.embed.weight, 0, 0.2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 24, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.lstm(self.embed(x))[0][:, -1]))


class FrozenBatchNorm2d(nn.Module):
    """As in torchvision: a fixed affine map."""

    def __init__(self, channels):
        super().__init__()
        values = {"weight": 1.0, "bias": 0.0, "running_mean": -0.5, "running_var": 0.1}
        for name, value in values.items():
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


def frozen():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), FrozenBatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
        FrozenBatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2),
    )  # fmt: skip


def words(model, batch):
    return model(batch[0]), batch[0]


# name -> (network, data, how it is run, last layer, norm before it, "8 of 9 normalized")
HEALTHY = {
    "pre-norm": (
        lambda: Encoder(norm_first=True, final=True), tokens, {}, "head", "norm", (9, 17)),
    "post-norm": (
        lambda: Encoder(norm_first=False, final=False), tokens, {}, "head",
        "body.layers.3.norm2", (8, 17)),
    "squeeze-excite": (gated_resnet, images, {}, "8", "5.bn2", (8, 8)),
    "two-heads": (TwoHeads, images, {"outputs_fn": first_output}, "classes", "body.8", (4, 4)),
    "layer-drop": (LayerDrop, images, {}, "head", "norm", (9, 9)),
    "gated-mlp": (GatedMLP, images, {}, "head", "norm", (9, 13)),
    "tied-head": (TiedLanguageModel, tokens, {"outputs_fn": words}, "head", "norm", (4, 7)),
    "lstm": (Recurrent, tokens, {}, "head", "norm", (1, 2)),
}  # fmt: skip


def severity(found, rule):
    return max((f.severity for f in found.findings if f.rule == rule),
               key=SEVERITIES.index, default=None)  # fmt: skip


@functools.cache
def examined(name):
    torch.manual_seed(1)
    make, data, how, *_ = HEALTHY[name]
    x, y = data()
    batches = [(x, y)]
    return examine(make(), batches, **how, optimizer="adam", lr=1e-3)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_network_gets_no_warning(name):
    assert not examined(name).above("warning"), examined(name).summary()


@pytest.mark.parametrize("name", HEALTHY)
def test_its_layout_is_that_of_the_graph(name):
    *_, last, norm, (normalized, hidden) = HEALTHY[name]
    found = examined(name)["layout"]
    assert (found.last, found.last_input_norm) == (last, norm)
    assert (found.normalized, found.hidden_layers) == (normalized, hidden)
    assert not found.unused
    assert severity(examined(name), "last-layer-unnormalized") == "ok"
    assert examined(name).plan.coverage > 0.99


def test_a_forgotten_final_norm_is_found():
    torch.manual_seed(0)
    for net, data in (
        (Encoder(norm_first=True, final=False, layers=12), tokens()),
        (GatedMLP(final=False, gain=8.0), images()),
    ):
        found = examine(net, data, optimizer="adam", lr=1e-3)
        [one] = [f for f in found.findings if f.rule == "last-layer-unnormalized"]
        assert (one.severity, one.layer) == ("note", "head"), found.summary()


def test_every_head_is_looked_at():
    torch.manual_seed(0)
    found = examine(TwoHeads(bare=True), [images()], outputs_fn=first_output)
    [one] = [f for f in found.findings if f.rule == "last-layer-unnormalized"]
    assert (one.severity, one.layer) == ("note", "number")


def test_gates_and_heads_are_told_from_the_path():
    found = examined("squeeze-excite")["layout"]
    assert {"3.gate.down", "3.gate.up", "3.gate.act"} <= set(found.side)
    depths = {layer.name: layer.depth for layer in found.layers if layer.name not in found.side}
    assert depths["8"] == 8
    assert depths["4.shortcut.0"] == depths["4.conv1"] == 4
    heads = [layer.name for layer in examined("two-heads")["layout"].layers if layer.head]
    assert heads == ["classes", "number"]


def test_a_gate_written_with_functions_is_one_too():
    """The first and the last of three rectifiers are on the path."""

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.down, self.up = (
                nn.Linear(*shape) for shape in ((192, 32), (32, 4), (4, 32))
            )
            self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 2)

        def forward(self, x):
            x = torch.relu(self.first(x.flatten(1)))
            x = x * torch.sigmoid(self.up(self.down(x).relu_()))
            return self.head(nn.functional.relu(self.second(x)))

    found = norm_layout(Written(), [images()])
    assert set(found.side) == {"down", "up", "relu#2", "sigmoid"}
    torch.manual_seed(0)
    net = Written()
    nn.init.constant_(net.down.bias, -99.0)  # shut
    assert severity(examine(net, images()), "dead-units") != "problem"


def test_attention_and_sums_are_counted():
    assert (examined("pre-norm")["layout"].attention, examined("pre-norm")["layout"].residuals) == (
        4, 8)  # fmt: skip
    assert examined("gated-mlp")["layout"].attention == 0


def test_a_fixed_affine_map_is_no_norm():
    torch.manual_seed(0)
    found = examine(frozen(), images())
    assert found["layout"].norms == ()
    assert {"running-statistics", "gamma-sharpens"}.isdisjoint(f.rule for f in found.findings)
    assert not found.above("warning"), found.summary()


def test_a_norm_that_no_pass_reaches_is_never_used():
    torch.manual_seed(0)
    net = LayerDrop()
    net.forgotten = nn.LayerNorm(7)
    assert [norm.name for norm in norm_layout(net, [images()]).unused] == ["forgotten"]


class Strange(nn.Module):
    """All but a small layer is in operations that are no layers."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(3, 8, 8)), nn.Linear(192, 2)
        self.other = nn.Parameter(torch.randn(1, 3, 8, 8, 20))

    def forward(self, x):
        return self.head((x * self.table + (x[..., None] * self.other).amax(-1)).flatten(1))


def test_what_cannot_be_judged_is_said_first(tmp_path):
    torch.manual_seed(0)
    found = examine(Strange(), images(), optimizer="adam")
    share = found.plan.coverage
    assert share < 0.1
    text = f"Could not judge: only {share:.0%} of the parameters are in layers that are known"
    said_first = text.replace("Could not judge", "COULD NOT JUDGE")
    assert found.answer.startswith(said_first)
    assert found.summary().replace("\n  ", " ").startswith(said_first)
    assert found.worst == "unjudged"
    first = found.findings[0]
    assert (first.rule, first.severity, first.title) == ("coverage", "unjudged", text)
    assert first.evidence[0].value == share
    for said in ("what a Strange does is not measured", "91 % of the parameters"):
        assert said in first.meaning
        assert said in " ".join(found.summary().split())
    assert "No issues found" not in found.summary()
    for page in (found._repr_html_(), found.save(tmp_path / "page.html").read_text()):
        assert text.partition(": ")[2] in page
        assert "COULD NOT JUDGE" in page.upper()
    assert Examination.from_json(found.to_json()).findings[0] == first


def test_no_check_at_all_is_no_clean_bill(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    few = tuple(part[:4] for part in images())
    found = examine(net, few, optimizer="adam")
    findings = not_judged(found.plan, found.measurements, ())
    answer = answer_of(findings, {}, None, found.plan.steps)
    found = replace(found, findings=findings, answer=answer)
    assert found.worst == "unjudged"
    assert found.summary().splitlines()[0] == "COULD NOT JUDGE: no check could be made."
    assert "Not judged (needs" in found.findings[0].meaning
    assert "no check could be made" in found.save(tmp_path / "page.html").read_text()
    assert "checks passed" not in found.summary()


def test_a_network_that_is_covered_is_judged():
    found = examined("squeeze-excite")
    assert not_judged(found.plan, found.measurements, found.findings) == ()
