"""Two set-ups of the benchmark of findings that take no time, and two that cost their process."""

import os
import time

import torch
from benchmarks.findings.setup import Parts, Setup
from torch import nn


def _made(seed, bias=0.0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(model[2].bias, bias)
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long()
    return Parts(
        model, [(x, y)], torch.optim.SGD(model.parameters(), 0.5), "cross_entropy",
        score=lambda m: float((m(x).argmax(1) == y).float().mean()),
    )  # fmt: skip


HEALTHY = Setup("tiny", "mlp", _made, updates=100)
BROKEN = Setup("tiny-dead", "mlp", lambda seed: _made(seed, -50.0), "No ReLU fires.",
               (r"\bdead\b",), "tiny", 100)  # fmt: skip
EXITS = Setup("exits", "mlp", lambda seed: os._exit(3))
HANGS = Setup("hangs", "mlp", lambda seed: time.sleep(3600))
SETUPS = [HEALTHY, BROKEN, EXITS, HANGS]
