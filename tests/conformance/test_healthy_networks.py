"""Sixteen networks that train: none gets a warning. They are trained here on the digits."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns

CLASSES, WIDTH = 10, 128
SGD, SLOW_SGD = {"lr": 0.05, "momentum": 0.9}, {"lr": 0.02, "momentum": 0.9}
ADAMW = {"optimizer": "adamw", "lr": 1e-3}


@pytest.fixture(autouse=True)
def _single_precision(_float64_and_seed):
    """As these networks are used."""
    torch.set_default_dtype(torch.float32)


@functools.cache
def digits():
    data = ns.load_data("digits")
    return data.images.float(), data.labels


def mlp(norm=None, activation=nn.ReLU, *, he=True):
    layers: list[nn.Module] = [nn.Flatten()]
    for before in (64, *[WIDTH] * 3):
        layers += [nn.Linear(before, WIDTH), *([norm(WIDTH)] if norm else []), activation()]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    for layer in net if he else ():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def cnn(norm=nn.BatchNorm2d):
    def layer(before, after):
        return nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU()

    return nn.Sequential(
        *layer(1, 16), *layer(16, 32), nn.MaxPool2d(2), *layer(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """Two convolutions with batch norm, and a skip connection."""

    def __init__(self, before, after, stride=1):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.skip = nn.Identity()
        if stride > 1:
            projection = nn.Conv2d(before, after, 1, stride, bias=False)
            self.skip = nn.Sequential(projection, nn.BatchNorm2d(after))

    def forward(self, x):
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.skip(x))


def resnet():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 16),
        Block(16, 32, 2), Block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


class PreNorm(nn.Module):
    """A transformer that reads the rows of an image."""

    def __init__(self, layers, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, batch_first=True, norm_first=True
        )
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, CLASSES)
        self.place = nn.Parameter(0.02 * torch.randn(8, width))
        self.body = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )

    def forward(self, x):
        return self.head(self.body(self.embed(x.reshape(-1, 8, 8)) + self.place).mean(1))


def trained(net, steps, optimizer="sgd", lr=0.05, momentum=0.0):
    x, y = digits()
    kinds = {"sgd": lambda p: torch.optim.SGD(p, lr, momentum), "adamw": torch.optim.AdamW}
    chosen = kinds[optimizer](net.parameters())
    for _ in range(steps):
        i = torch.randint(len(x), (128,))
        chosen.zero_grad()
        functional.cross_entropy(net(x[i]), y[i]).backward()
        chosen.step()
    return net


def looked_at(net):
    """After the one forward pass by which people check shapes."""
    net(digits()[0][:8])
    return net


def grouped(channels):
    return nn.GroupNorm(4, channels)


# name -> network, how it is trained
HEALTHY = {
    "mlp, He": (mlp, SLOW_SGD),
    "mlp, He, trained": (lambda: trained(mlp(), 200, **SLOW_SGD), SLOW_SGD),
    "mlp, torch": (lambda: mlp(he=False), SGD),
    "mlp, batch norm": (lambda: mlp(nn.BatchNorm1d), SGD),
    "mlp, layer norm and gelu": (lambda: mlp(nn.LayerNorm, nn.GELU), SGD),
    "cnn, untrained": (cnn, SGD),
    "cnn, one forward pass": (lambda: looked_at(cnn()), SGD),
    "cnn, 10 updates": (lambda: trained(cnn(), 10, **SGD), SGD),
    "cnn, 30 updates": (lambda: trained(cnn(), 30, **SGD), SGD),
    "cnn, 300 updates": (lambda: trained(cnn(), 300, **SGD), SGD),
    "cnn, group norm": (lambda: cnn(grouped), SGD),
    "resnet": (resnet, SGD),
    "resnet, trained": (lambda: trained(resnet(), 150, **SGD), SGD),
    "pre-norm, 4 layers": (lambda: PreNorm(4), ADAMW),
    "pre-norm, 4 layers, trained": (lambda: trained(PreNorm(4), 200, **ADAMW), ADAMW),
    "pre-norm, 12 layers": (lambda: PreNorm(12), ADAMW),
}


@pytest.mark.parametrize("preset", ["fast", pytest.param("standard", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HEALTHY)
def test_no_warning(name, preset):
    make, how = HEALTHY[name]
    torch.manual_seed(3)
    found = ns.examine(make(), digits(), **how, preset=preset)
    assert not found.above("warning"), found.summary()
    assert found.worst != "unjudged"
    assert len(found.findings) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in HEALTHY if not n.endswith(("updates", ", trained"))])
def test_they_train(name):
    """Which is why a warning would be a false one."""
    make, how = HEALTHY[name]
    torch.manual_seed(3)
    net, (x, y) = trained(make(), 200, **how), digits()
    with torch.no_grad():
        assert functional.cross_entropy(net(x), y) < 0.3
