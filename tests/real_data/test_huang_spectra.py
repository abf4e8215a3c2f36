"""Huang's 8-layer MLP on MNIST: the full Fisher matrix of 7152 weights, its blocks and factors."""

import math
import time

import numpy as np
import pytest
import torch
from torch.nn import functional

from golden.measurements_huang import DEEP_SLOPE, FIGURE_I
from normscope.data import load_data
from normscope.measure.probes.conditioning import conditioning
from normscope.nn import network

pytestmark = pytest.mark.real_data
WIDTHS = "-".join(map(str, [144, *[24] * 7, 10]))


def images(count):
    """The central 24 x 24 pixels as 12 x 12 means, standardized."""
    data = load_data("mnist", standardize=((0.1307,), (0.3081,)))
    small = functional.avg_pool2d(data.images[:count, :, 2:26, 2:26].double(), 2)
    return small.flatten(1), data.labels[:count]


@pytest.fixture(scope="module")
def figure():
    """Plain and batch-norm network, 10000 images, sampled labels."""
    x, y = images(10_000)
    found = {}
    for norm in (None, "batch"):
        net = network(f"mlp:{WIDTHS}", norm=norm, bias=False, init="lecun-uniform").double()
        start = time.process_time()
        found[norm] = conditioning(net, [(x, y)], "cross_entropy", kind="sampled", exact="full")
        seconds = time.process_time() - start
        print(f"{norm}: {seconds:.1f} CPU seconds\n{found[norm].summary()}")
        assert found[norm].full.size == 7152
        assert seconds < 120
    return found


@pytest.mark.parametrize("norm", [None, "batch"])
def test_blocks_are_those_of_the_reference(norm):
    """It drew other weights and labels: the logarithms lie within the scatter over seeds."""
    x, y = images(10_000)
    column = 0 if norm is None else 1
    drawn: dict[tuple[str, str], list[float]] = {}
    for seed in range(12):
        net = network(f"mlp:{WIDTHS}", norm=norm, bias=False, init="lecun-uniform", seed=seed)
        found = conditioning(
            net.double(), [(x, y)], "cross_entropy", kind="sampled", exact="blocks", seed=seed,
            layers=[f"layer{k}" for k in range(2, 9)],
        )  # fmt: skip
        for layer in found:
            spectrum = found.block(layer.name).spectrum
            drawn.setdefault((layer.name, "lambda_max"), []).append(spectrum.largest)
            drawn.setdefault((layer.name, "kappa_50"), []).append(spectrum.kappa(0.5))
            drawn.setdefault((layer.name, "kappa_80"), []).append(spectrum.kappa(0.8))
    for (name, what), values in drawn.items():
        reference = getattr(FIGURE_I[name][column], what)
        if what == "kappa_80" and reference > 1e5:  # dead units decide, by rounding
            continue
        logs = np.log(values)
        scatter = logs.std(ddof=1) * math.sqrt(1 + 1 / len(logs))
        print(f"{name} {what}: {math.exp(logs.mean()):.3g}, reference {reference:.3g}")
        assert abs(math.log(reference) - logs.mean()) < 4.5 * scatter


def test_whole_is_of_the_size_of_the_reference(figure):
    for norm, column in ((None, 0), ("batch", 1)):
        row, spectrum = FIGURE_I["full"][column], figure[norm].full.spectrum
        for found, expected in (
            (spectrum.largest, row.lambda_max),
            (spectrum.kappa(0.5), row.kappa_50),
            (spectrum.kappa(0.8), row.kappa_80),
        ):
            assert 1 / 8 < found / expected < 8


def test_a_plain_gradients_vanish(figure):
    """(a) lambda_max of the plain network lies far below."""
    ratio = figure["batch"].lambda_max("exact") / figure[None].lambda_max("exact")
    assert (ratio > 1e3).all()
    assert figure["batch"].full.spectrum.largest > 1e4 * figure[None].full.spectrum.largest


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_b_batch_norm_is_better_conditioned(figure, p):
    """(b) kappa_p is smaller with batch norm; (c) in the full matrix and in every block."""
    assert figure["batch"].full.spectrum.kappa(p) < figure[None].full.spectrum.kappa(p)
    assert (figure["batch"].kappa(p, "exact") < figure[None].kappa(p, "exact")).all()
    hidden = slice(1, 7)
    assert (figure["batch"].kappa(p)[hidden] < figure[None].kappa(p)[hidden]).all()  # factored


def test_factors_approximate_the_blocks(figure):
    """lambda_max of Sigma_x (x) Sigma_grad is near that of the exact block."""
    for found in figure.values():
        ratio = found.lambda_max("fisher") / found.lambda_max("exact")
        assert (ratio > 0.6).all()
        assert (ratio < 1.7).all()


def test_blocks_interlace(figure):
    for found in figure.values():
        largest, full = found.lambda_max("exact"), found.full.spectrum
        assert largest.max() * (1 - 1e-8) <= full.largest <= largest.sum() * (1 + 1e-8)
        traces = sum(block.spectrum.trace for block in found.blocks)
        assert full.trace == pytest.approx(traces, rel=1e-8)


def test_d_labels_of_the_data_tell_the_same(figure):
    """(d) The second moment M agrees with the Fisher matrix qualitatively, block by block."""
    x, y = images(2000)
    measured = {}
    for norm in (None, "batch"):
        net = network(f"mlp:{WIDTHS}", norm=norm, bias=False, init="lecun-uniform").double()
        measured[norm] = conditioning(net, [(x, y)], "cross_entropy", exact="blocks")
    hidden = slice(1, 7)
    plain, normed = measured[None], measured["batch"]
    assert (normed.lambda_max("exact") > 1e3 * plain.lambda_max("exact")).all()
    for p in (0.5, 0.8):
        assert (normed.kappa(p, "exact")[hidden] < plain.kappa(p, "exact")[hidden]).all()
    ratio = normed.lambda_max("exact") / figure["batch"].lambda_max("exact")
    assert (np.abs(np.log(ratio)) < math.log(3)).all()


def test_gradient_explosion_at_full_size():
    """Fig. XI(a): 100 layers of 256 units, 1024 images."""
    data = load_data("mnist")
    x, y = data.images[:1024].flatten(1).double(), data.labels[:1024]
    widths = "-".join(map(str, [784, *[256] * 99, 10]))
    net = network(f"mlp:{widths}", norm="batch", bias=False, init="lecun-uniform").double()
    found = conditioning(net, [(x, y)], "cross_entropy")
    height = np.log10(found.lambda_max("fisher"))
    slope = np.polyfit(np.arange(1, 101), height, 1)[0]
    print(f"slope {slope:.4f} per layer, lambda_max 10^{height[0]:.1f} to 10^{height[-1]:.1f}")
    assert DEEP_SLOPE[0] < slope < DEEP_SLOPE[1]
    assert torch.isfinite(torch.from_numpy(height)).all()
