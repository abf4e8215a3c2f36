"""The measurements of the Bjorck experiments that are not the library's own, against oracles."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from normscope import gradient_noise, gradients, network
from normscope.data import load_data
from normscope.experiments.bjorck2018 import _common, ceilings, equations, init, products, sgd_noise
from normscope.results.panel import Curve, Panel


@pytest.fixture(scope="module")
def passed():
    """A convolution behind a ReLU: weight, input, and output with its gradient."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 2, 3, padding=1, bias=False)
    x = torch.randn(4, 3, 5, 5).relu()
    out = conv(x)
    out.retain_grad()
    out.pow(3).sum().backward()
    return conv.weight, x, out


def all_terms(weight, x, out):
    """Terms d of every weight by plain loops, (weights, samples times positions)."""
    padded, rows = functional.pad(x, (1, 1, 1, 1)), []
    for o, i, k, m in itertools.product(*map(range, weight.shape)):
        d = [out.grad[b, o, y, z] * padded[b, i, y + k, z + m]
             for b, y, z in itertools.product(range(4), range(5), range(5))]  # fmt: skip
        rows.append(torch.stack(d))
    return torch.stack(rows).double()


def test_share_of_the_majority_sign(passed):
    terms = all_terms(*passed)
    counts = torch.stack([(terms > 0).sum(1), (terms < 0).sum(1)]).double()
    expected = (counts.max(0).values / counts.sum(0)).median()
    assert init._same_sign(*passed) == pytest.approx(float(expected), rel=1e-6)


def test_terms_of_single_weights(passed):
    terms = all_terms(*passed)
    size, share = terms.sum(1).abs(), terms.sum(1).abs() / terms.abs().sum(1)
    aligned = [i for i in range(54) if share[i] >= min(0.9, float(share.max()))]
    large = max(aligned, key=lambda i: size[i])
    small = int((size - size.sort().values[5]).abs().argmin())
    found = init._summands(*passed)
    for name, index in (("large", large), ("small", small)):
        d = terms[index]
        assert found[f"{name}_shift"] == pytest.approx(float(d.mean().abs() / d.std()), rel=1e-4)
        sides = sorted([int((d > 0).sum()), int((d < 0).sum())])
        assert found[f"{name}_sign"] == pytest.approx(sides[1] / sum(sides))


def test_gradients_of_classes_are_those_of_the_library():
    net = _common.resnet(110, "none", 0, data="digits", width=2)
    data = load_data("digits").subset(8)
    z = net(data.images)
    z.retain_grad()
    functional.cross_entropy(z, data.labels).backward(retain_graph=True)
    found = init._by_class(net, z)
    kept = gradients(net, data, "cross_entropy", quantities=("classes",), class_layer=35).classes
    np.testing.assert_allclose(found["classes"][1], kept.mean_abs, rtol=1e-4)
    assert found["class_error"] < 1e-4


def test_layers_by_number_are_those_of_the_library():
    net = _common.resnet(110, "batch", 0, data="digits", width=2, shortcut="projection")
    names = {module: name for name, module in net.named_modules()}
    found = gradients(net, load_data("digits").subset(4), "cross_entropy", quantities=())
    for number in range(1, 110):
        assert found[number].name == names[_common.layer(net, number)]


def test_products_of_gradients_of_samples():
    data = load_data("digits").subset(12).flat().to(dtype=torch.float64)
    net = network("mlp:64-32-10", norm=None).double()
    rows = []
    for x, y in zip(data.images, data.labels, strict=True):
        loss = functional.cross_entropy(net(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(net.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    own = torch.stack(rows)
    own = own - own.mean(0)
    gram = sgd_noise._gram(net, data)
    np.testing.assert_allclose(gram, own @ own.T, atol=1e-10 * gram.max())
    noise = gradient_noise(net, data, "cross_entropy").total
    assert np.trace(gram) / 12 == pytest.approx(noise, rel=1e-9)


def test_centred_cross_entropy_has_no_common_output_gradient():
    z = torch.randn(6, 10, requires_grad=True)
    labels = torch.arange(6)
    loss = ceilings._centred(z, labels)
    torch.testing.assert_close(loss, functional.cross_entropy(z, labels))
    (found,) = torch.autograd.grad(loss, z)
    (whole,) = torch.autograd.grad(functional.cross_entropy(z, labels), z)
    torch.testing.assert_close(found, whole - whole.mean(0))


def test_distance_to_the_printed_law():
    values = np.random.default_rng(0).uniform(0, 2, 50)
    expected = stats.kstest(values, lambda x: products.randmat.squared_cdf(x, 1)).statistic
    assert products._printed_distance(values, 1) == pytest.approx(expected)


def test_least_squares_takes_the_steps_of_its_slowest_direction():
    """log(loss) falls as 2 t log(1 - 1 / kappa^2) in the end."""
    steps = [equations._descent(np.random.default_rng(s), 30)[0] for s in range(5)]
    slowest = np.log(1e-6) / (2 * np.log(1 - 1 / 30**2))
    assert all(0.2 * slowest < s < slowest for s in steps)
    assert equations._descent(np.random.default_rng(0), 30)[1] == pytest.approx(2 / 30)


def test_clouds_of_points_are_not_joined():
    pytest.importorskip("altair")
    from normscope.report.panels import panel_chart

    x = tuple(float(i) for i in range(15))
    for places, joined in ((x, True), (x[::-1], False)):
        rows = panel_chart(Panel("a", "b", "c", (Curve("d", places, x),))).to_dict()
        assert f"'many': {joined}" in str(rows)
