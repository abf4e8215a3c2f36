"""The sums of gradient terms against every term written out, and against autograd."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.measure.probes import _alignment
from normscope.measure.probes._alignment import alignment_terms, single_terms, weight_gradient
from normscope.measure.probes.sites import Geometry, Site

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

# kernel, stride, padding, dilation, groups, input size
CONVOLUTIONS = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), 1, (5, 4)),
    "stride": ((3, 3), (2, 1), (1, 0), (1, 1), 1, (6, 5)),
    "stride-leaves-a-rest": ((2, 3), (3, 2), (0, 1), (1, 1), 1, (7, 6)),
    "dilation": ((3, 2), (1, 1), (2, 1), (2, 3), 1, (6, 7)),
    "groups": ((3, 3), (1, 2), (1, 1), (1, 1), 2, (5, 6)),
    "same-even-kernel": ((2, 4), (1, 1), "same", (1, 1), 1, (5, 6)),
    "same-groups-dilation": ((2, 3), (1, 1), "same", (2, 1), 2, (5, 4)),
    "valid": ((3, 3), (1, 1), "valid", (1, 1), 1, (5, 5)),
    "1d": ((3,), (2,), (1,), (2,), 2, (11,)),
    "3d": ((2, 3, 1), (1, 2, 1), (1, 0, 0), (1, 1, 2), 2, (3, 5, 2)),
    "one-position": ((3, 3), (1, 1), (0, 0), (1, 1), 1, (3, 3)),
}
FUNCTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conv_site(case):
    kernel, stride, padding, dilation, groups, _ = CONVOLUTIONS[case]
    geometry = Geometry(kernel, stride, padding, dilation, groups)
    return Site("conv", "conv", f"conv{len(kernel)}d", 1, axis=1, geometry=geometry)


def conv_signals(case, samples=3):
    """Input (4 channels), the gradient at the output (6 channels), and autograd's own."""
    kernel, stride, padding, dilation, groups, size = CONVOLUTIONS[case]
    x = normal(samples, 4, *size)
    weight = torch.zeros(6, 4 // groups, *kernel, requires_grad=True)
    run = FUNCTIONS[len(kernel) - 1]
    out = run(x, weight, None, stride, padding, dilation, groups)
    g = normal(*out.shape, seed=1)
    (expected,) = torch.autograd.grad(out, weight, g)
    return x, g, expected


def all_terms(site, x, g):
    """Every d(b, p) of every weight by plain loops: (samples, positions, out, in, *kernel)."""
    way = site.geometry
    padding = way.padding
    if isinstance(padding, str):
        whole = [d * (k - 1) if padding == "same" else 0 for d, k in
                 zip(way.dilation, way.kernel, strict=True)]  # fmt: skip
        before = [w // 2 for w in whole]
    else:
        before = list(padding)
    out, inside = g.shape[1], x.shape[1] // way.groups
    places = list(itertools.product(*map(range, g.shape[2:])))
    made = torch.zeros(len(x), len(places), out, inside, *way.kernel)
    for p, place in enumerate(places):
        for offset in itertools.product(*map(range, way.kernel)):
            at = [s * a + d * o - q for s, a, d, o, q in
                  zip(way.stride, place, way.dilation, offset, before, strict=True)]  # fmt: skip
            if any(a < 0 or a >= n for a, n in zip(at, x.shape[2:], strict=True)):
                continue  # padding is zero
            for o in range(out):
                first = o // (out // way.groups) * inside
                seen = x[(slice(None), slice(first, first + inside), *at)]
                made[(slice(None), p, o, slice(None), *offset)] = (
                    g[(slice(None), o, *place)][:, None] * seen
                )
    return made


def assert_sums(terms, d):
    torch.testing.assert_close(terms.absolute, d.abs().sum((0, 1)))
    torch.testing.assert_close(terms.by_sample, d.sum(1).abs().sum(0))
    torch.testing.assert_close(terms.by_position, d.sum(0).abs().sum(0))
    torch.testing.assert_close(terms.total, d.sum((0, 1)))
    assert terms.count == d.shape[0] * d.shape[1]


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("samples", [1, 3])
def test_convolutions_against_all_terms(case, samples):
    site = conv_site(case)
    x, g, expected = conv_signals(case, samples)
    terms = alignment_terms(site, x, g)
    assert_sums(terms, all_terms(site, x, g))
    torch.testing.assert_close(terms.total, expected)
    torch.testing.assert_close(weight_gradient(site, x, g)[0], expected)


@pytest.mark.parametrize("case", ["3x3", "groups", "3d", "1d", "same-even-kernel"])
def test_pieces_of_one_number(case, monkeypatch):
    """However small the pieces, the sums are the same."""
    site = conv_site(case)
    x, g, _ = conv_signals(case)
    whole = alignment_terms(site, x, g)
    monkeypatch.setattr(_alignment, "PIECE", 1)
    pieces = alignment_terms(site, x, g)
    for name in ("absolute", "by_sample", "by_position", "total"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name))


@pytest.mark.parametrize("case", ["3x3", "groups", "stride", "same-even-kernel"])
def test_terms_of_one_weight(case):
    site = conv_site(case)
    x, g, _ = conv_signals(case)
    d = all_terms(site, x, g)
    for index in [(0, 0, 0, 0), (5, 1, 1, 1), (3, 0, 1, 0)]:
        found = single_terms(site, x, g, index)
        torch.testing.assert_close(found, d[(slice(None), slice(None), *index)])


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3), (2, 3, 2), (1, 4)])
def test_linear_against_all_terms(shape):
    x, g = normal(*shape, 3), normal(*shape, 2, seed=1)
    site = Site("fc", "linear", "linear", 1)
    rows_x, rows_g = site.rows(x), site.rows(g)
    d = rows_g[..., :, None] * rows_x[..., None, :]
    terms = alignment_terms(site, x, g)
    assert_sums(terms, d)
    torch.testing.assert_close(single_terms(site, x, g, (1, 2)), d[..., 1, 2])


def test_channels_last_and_a_sample_without_a_batch():
    site = conv_site("3x3")
    x, g, _ = conv_signals("3x3", 1)
    plain = alignment_terms(site, x, g)
    last = alignment_terms(site, x.to(memory_format=torch.channels_last),
                           g.to(memory_format=torch.channels_last))  # fmt: skip
    alone = alignment_terms(site, x[0], g[0])
    for other in (last, alone):
        torch.testing.assert_close(other.by_sample, plain.by_sample)
        torch.testing.assert_close(other.by_position, plain.by_position)


def test_reference_example():
    """Worked out by hand: two 2 x 2 images, one channel, 3 x 3 kernel."""
    x = torch.tensor([[[[1.0, 2], [3, 4]]], [[[0.0, 1], [0, 1]]]])
    g = torch.tensor([[[[1.0, -1], [1, -1]]], [[[2.0, 2], [-1, 0]]]])
    terms = alignment_terms(conv_site("3x3"), x, g)
    assert terms.total[0, 0].tolist() == [[-1, -1, 1], [-4, 0, 7], [-3, 1, 6]]
    sums = (terms.absolute, terms.by_sample, terms.by_position, terms.total.abs())
    assert [float(s.sum()) for s in sums] == [50, 32, 38, 24]
    assert terms.count == 8


def test_float32_agrees_with_autograd():
    conv = nn.Conv2d(8, 6, 3, padding=1, bias=False).float()
    x = normal(16, 8, 12, 12).float()
    out = conv(x)
    g = normal(*out.shape, seed=1).float()
    (expected,) = torch.autograd.grad(out, conv.weight, g)
    terms = alignment_terms(conv_site("3x3"), x, g)
    assert float((terms.total - expected).abs().max()) < 1e-5 * float(expected.abs().max())
