"""Inside attention positions come before samples: every probe against attention written out."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.measure import conditioning, gradients, order_parameters

SAMPLES, WIDTH = 4, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, bias=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def made(positions):
    torch.manual_seed(positions)
    return Attention(), torch.randn(SAMPLES, positions, WIDTH), torch.arange(SAMPLES) % 3


def by_hand(net, x):
    """(input, output) of both projections, samples first, and the outputs of the network."""
    joint = x @ net.attention.in_proj_weight.T
    heads = [t.unflatten(-1, (2, -1)).transpose(1, 2) for t in joint.chunk(3, -1)]
    mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    projected = mixed @ net.attention.out_proj.weight.T
    return [(x, joint), (mixed, projected)], net.head(projected.mean(1))


def columns(x, g):
    """T1 to T4 from every single term."""
    terms = torch.einsum("bpo,bpi->bpoi", g, x)
    sums = (
        terms.abs().sum((0, 1)),
        terms.sum(1).abs().sum(0),
        terms.sum(0).abs().sum(0),
        terms.sum((0, 1)).abs(),
    )
    return [float(s.mean()) / x[..., 0].numel() for s in sums]


# with as many positions as samples no shape tells them apart
@pytest.mark.parametrize("positions", [5, SAMPLES])
def test_gradient_terms(positions):
    net, x, y = made(positions)
    signals, outputs = by_hand(net, x)
    loss = functional.cross_entropy(outputs, y)
    slopes = torch.autograd.grad(loss, [out for _, out in signals])
    found = gradients(net, (x, y), "cross_entropy")
    for layer, (into, _), slope in zip(found.layers[:2], signals, slopes, strict=True):
        expected = columns(into.detach(), slope)
        assert [layer.t1, layer.t2, layer.t3, layer.t4] == pytest.approx(expected, rel=1e-12)


def test_gradient_terms_over_batches_of_different_size():
    net, x, y = made(5)
    parts = sorted([(x[:3], y[:3]), (x[3:], y[3:])], key=lambda part: len(part[0]))
    found = gradients(net, parts, "cross_entropy")
    single = [gradients(net, part, "cross_entropy") for part in parts]
    for layer, *each in zip(found.layers, *(s.layers for s in single), strict=True):
        assert layer.t2 == pytest.approx(sum(one.t2 for one in each) / 2, rel=1e-12)


@pytest.mark.parametrize("positions", [5, SAMPLES])
def test_overlaps_of_samples(positions):
    net, x, _ = made(positions)
    signals, _ = by_hand(net, x)
    found = order_parameters(net, (x, None))
    assert len(found.names) == 3
    for index, (into, out) in enumerate(signals):
        for name, signal in (("qhat_st", into), ("q_st", out)):
            gram = signal.flatten(1) @ signal.flatten(1).T / signal[0].numel()
            pairs = (gram.sum() - gram.trace()) / (SAMPLES * (SAMPLES - 1))
            assert found.measured[name][index] == pytest.approx(pairs.item(), rel=1e-10)


@pytest.mark.parametrize("positions", [5, SAMPLES])
def test_exact_blocks(positions):
    net, x, y = made(positions)
    found = conditioning(net, (x, y), "cross_entropy", exact="blocks")
    for block, weight in zip(found.blocks, net.parameters(), strict=False):
        rows = []
        for i in range(SAMPLES):
            loss = functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
            rows.append(torch.autograd.grad(loss, weight)[0].flatten())
        expected = torch.linalg.eigvalsh(torch.stack(rows) @ torch.stack(rows).T / SAMPLES)
        assert block.spectrum is not None, block.reason
        assert block.spectrum.largest == pytest.approx(float(expected[-1]), rel=1e-10)


class Flattened(nn.Module):
    """Samples and positions on one axis, as many networks call their linear layers."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, 3)

    def forward(self, x):
        rows = torch.tanh(self.inner(self.flat(x)))
        return self.head(rows.reshape(len(x), -1, 4).mean(1))

    def flat(self, x):
        return x.reshape(-1, WIDTH)


class Apart(Flattened):
    def flat(self, x):
        return x


class Doubled(Flattened):
    """One row more than samples times positions: nobody knows whose."""

    def forward(self, x):
        flat = self.flat(x)
        rows = torch.tanh(self.inner(torch.cat([flat, flat[:1]])))[:-1]
        return self.head(rows.reshape(len(x), -1, 4).mean(1))


@pytest.mark.parametrize("positions", [5, SAMPLES])
def test_samples_and_positions_on_one_axis_are_told_apart(positions):
    _, x, y = made(positions)
    torch.manual_seed(0)
    net, apart = Flattened(), Apart()
    apart.load_state_dict(net.state_dict())
    found, expected = (gradients(m, (x, y), "cross_entropy")["inner"] for m in (net, apart))
    for name in ("t1", "t2", "t3", "t4"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert found.t4 < found.t2 < found.t1


def test_samples_that_cannot_be_told_from_positions_have_no_terms_of_their_own():
    _, x, y = made(5)
    inner, head = gradients(Doubled(), (x, y), "cross_entropy").layers
    assert math.isnan(inner.t2)
    assert math.isnan(inner.t3)
    assert 0 < inner.t4 < inner.t1
    assert head.t2 == head.t1
