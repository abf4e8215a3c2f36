"""Alignment by depth: the gap of gradients without batch norm is an effect of depth."""

import statistics

import pytest
import torch

from golden.measurements_bjorck import DEPTH_PROBE
from normscope.data import load_data
from normscope.measure.probes.gradients import gradients
from normscope.nn import network

BATCH, SEEDS = 32, (0, 1, 2)


def random_images(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator, dtype=torch.float32)
    return images, torch.randint(10, (BATCH,), generator=generator)


def real_images(seed):
    return load_data("cifar10").subset(BATCH, seed=seed)


def middle(depth):
    """The first convolution of the middle block of the second stage."""
    blocks = (depth - 2) // 6
    return 2 * (blocks + (blocks + 1) // 2)


def probed(depth, norm, seed, data):
    model = network(f"resnet{depth}:norm={norm}", init="xavier", seed=seed).float()
    layer = middle(depth)
    return gradients(model, data(seed), "cross_entropy", layers=layer)[layer]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(random_images, marks=pytest.mark.slow),
        pytest.param(real_images, marks=pytest.mark.real_data),
    ],
)
def test_alignment_separates_at_every_depth_magnitude_only_deep(data):
    gaps = {}
    for depth, (printed_norm, _, _) in DEPTH_PROBE.items():
        pairs = [[probed(depth, n, seed, data) for n in ("none", "batch")] for seed in SEEDS]
        assert all(plain.alignment > 2 * normed.alignment for plain, normed in pairs)
        aligned = statistics.median(normed.alignment for _, normed in pairs)
        assert aligned == pytest.approx(statistics.median(printed_norm), rel=0.5)
        gaps[depth] = [plain.t4 / normed.t4 for plain, normed in pairs]
    assert max(gaps[20]) < 1.5
    assert min(gaps[110]) > 50
    medians = [statistics.median(values) for values in gaps.values()]
    assert medians == sorted(medians)
