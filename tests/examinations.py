"""Small real examinations, made once per process: what pages and comparisons are tested on."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from normscope.diagnose.examine import examine
from normscope.results import Examination

# names that torch accepts and that would break a careless page
SCRIPT = "<script>alert(1)</script>"
QUOTES = "it's \"q\" \\ & ; '"
GREEK = "Gewicht ß λ 层 </style>"


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(48, 8, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def _linear(inputs: int, outputs: int, gain: float, seed: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.normal_(std=(gain / inputs) ** 0.5, generator=generator)
        layer.bias.zero_()
    return layer


@cache
def normalized() -> Examination:
    """A batch-normalized network, nothing left out but trainings."""
    layers: list[nn.Module] = []
    for depth in range(3):
        width = 16 if depth else 8
        layers += [_linear(width, 16, 2.0, depth), nn.BatchNorm1d(16), nn.ReLU()]
    model = nn.Sequential(*layers, _linear(16, 3, 1.0, 9))
    return examine(model, _data(), lr=0.1, momentum=0.9, preset="standard")


@cache
def complete() -> Examination:
    """All that there is to measure, trainings too."""
    layers = [_linear(8, 16, 2.0, 0), nn.BatchNorm1d(16), nn.ReLU(), _linear(16, 3, 1.0, 9)]
    return examine(nn.Sequential(*layers), _data(), lr=0.1, preset="full")


@cache
def hostile() -> Examination:
    """Growing signals, no norms, and names that are markup, quotes and foreign letters."""
    model = nn.Sequential()
    for depth in range(6):
        name = (SCRIPT, QUOTES, GREEK, "d", "e", "f")[depth]
        model.add_module(name, _linear(16 if depth else 8, 16, 20.0, depth))
        model.add_module(f"relu{depth}", nn.ReLU())
    model.add_module("last <b>", _linear(16, 3, 1.0, 9))
    return examine(model, _data(), lr=50.0, preset="standard")
