"""ResNet-20 learns CIFAR-10: the loss falls over 200 steps."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.data import FlipAndCrop, load_data
from normscope.train import fit

pytestmark = pytest.mark.real_data


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm; the shortcut subsamples and pads channels."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.stride, self.extra = stride, outer - inner

    def forward(self, x):
        short = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + short)


def resnet20():
    widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)]
    widths += [(64, 64, 1)] * 2
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *(Block(*w) for w in widths), *head)


def test_resnet20_trains():
    torch.manual_seed(0)
    model = resnet20().float()
    assert sum(p.numel() for p in model.parameters()) == 269722
    run = fit(
        model,
        load_data("cifar10"),
        "cross_entropy",
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        steps=200,
        batch_size=64,
        augment=FlipAndCrop(),
    )
    assert run.outcome == "finished"
    first, last = run.losses[:20], run.losses[-50:]
    print(f"{first.mean():.3f} -> {last.mean():.3f} in {run.seconds:.0f} s")
    error = (first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last)) ** 0.5
    assert last.mean() < first.mean() - 5 * error
    assert last.mean() + 5 * error < math.log(10)  # better than chance
