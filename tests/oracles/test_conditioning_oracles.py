"""Moments, blocks and full matrices against plain autograd, and against the operators."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from cases import ROSTER, ConvResidual, D, Tied, mlp
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.conditioning import conditioning
from normscope.subject.objective import as_loss

WATCHED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
           nn.ConvTranspose3d)  # fmt: skip


def rows_of(module, tensor):
    if isinstance(module, nn.Linear):
        return tensor.reshape(-1, tensor.shape[-1])
    return tensor.flatten(2).transpose(1, 2).reshape(-1, tensor.shape[1])


def by_hand(model, x, loss_sum):
    """Rows of inputs and of gradients of the summed loss, by module hooks: name -> (x, g)."""
    seen = {}

    def remember(name, module):
        def hook(_, args, out):
            out.retain_grad()
            seen[name] = (module, args[0].detach(), out)

        return hook

    handles = [
        module.register_forward_hook(remember(name, module))
        for name, module in model.named_modules()
        if isinstance(module, WATCHED)
    ]
    loss_sum(model(x)).backward()
    for handle in handles:
        handle.remove()
    return {
        n: (rows_of(m, a), rows_of(m, out.grad), a, out.grad) for n, (m, a, out) in seen.items()
    }


def second_moment(rows, *, centred=False):
    rows = rows - rows.mean(0) if centred else rows
    return (rows.T @ rows / len(rows)).numpy()


def deconv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh(),
        nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


def grouped():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", dilation=2, groups=2), nn.Tanh(),
        nn.Conv2d(4, 2, (1, 3), padding=(0, 2), padding_mode="circular"), nn.Flatten(),
        nn.LazyLinear(3),
    )  # fmt: skip


def volume():
    return nn.Sequential(nn.Conv3d(1, 2, 2, stride=2, padding=1), nn.Tanh(), nn.Flatten(),
                         nn.Linear(16, 3))  # fmt: skip


def line():
    return nn.Sequential(nn.Conv1d(3, 2, 3, dilation=2, padding=2), nn.Tanh(),
                         nn.ConvTranspose1d(2, 3, 2, stride=2), nn.Flatten(),
                         nn.Linear(24, 3))  # fmt: skip


def sequence():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), nn.Flatten(),
                         nn.Linear(6, 3))  # fmt: skip


NETS = {
    "mlp": (lambda: mlp(activation=nn.ReLU), D["x"]),
    "batch-norm": (lambda: mlp(nn.BatchNorm1d(4)), D["x"]),
    "conv-residual": (ConvResidual, D["image"]),
    "transposed": (deconv, D["image"]),
    "grouped": (grouped, D["image"]),
    "conv3d": (volume, D["volume"]),
    "conv1d": (line, D["signal"]),
    "sequence": (sequence, D["wide"]),
}
UNCOUPLED = [name for name in NETS if name not in ("batch-norm", "conv-residual")]


def made(name):
    make, x = NETS[name]
    torch.manual_seed(2)
    model = make()
    with torch.no_grad():
        outputs = copy.deepcopy(model).eval()(x)
        model(x[:1].expand_as(x)) if name == "grouped" else None  # lazy layers
    return model, x, torch.arange(len(x)) % outputs.shape[1]


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_moments_are_those_of_plain_autograd(name, centered):
    model, x, y = made(name)
    found = conditioning(model, (x, y), "cross_entropy", centered=centered, moments=True)
    oracle = by_hand(
        copy.deepcopy(model).train(),
        x,
        lambda out: nn.functional.cross_entropy(out, y, reduction="sum"),
    )
    assert [layer.name for layer in found] == list(oracle)
    for layer in found:
        rows_x, rows_g, _, _ = oracle[layer.name]
        sigma_x, sigma_g = (second_moment(r, centred=centered) for r in (rows_x, rows_g))
        np.testing.assert_allclose(layer.input_moment, sigma_x, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(layer.gradient_moment, sigma_g, rtol=1e-10, atol=1e-14)
        assert layer.inputs.largest == pytest.approx(np.linalg.norm(sigma_x, 2), rel=1e-10)
        assert layer.inputs.trace == pytest.approx(np.trace(sigma_x), rel=1e-10)
        assert layer.rows == len(rows_g)


@pytest.mark.parametrize("name", ["transposed", "sequence", "mlp"])
def test_positions_scale_gradients_by_their_number(name):
    model, x, y = made(name)
    plain = conditioning(model, (x, y), "cross_entropy")
    scaled = conditioning(model, (x, y), "cross_entropy", spatial_scale="position")
    for one, other in zip(plain, scaled, strict=True):
        positions = one.rows / len(x)
        ratio = other.gradients.largest / one.gradients.largest
        assert ratio == pytest.approx(positions**2, rel=1e-12)
        assert other.inputs == one.inputs
        assert other.gradients.kappa(0.5) == pytest.approx(one.gradients.kappa(0.5), rel=1e-9)


@pytest.mark.parametrize("kind", ["empirical", "true"])
@pytest.mark.parametrize("name", UNCOUPLED)
def test_exact_matrices_are_those_of_the_operators(name, kind):
    model, x, y = made(name)
    found = conditioning(model, (x, y), "cross_entropy", kind=kind, exact="full")
    risk = ns.Risk(model, x, y, loss="cross_entropy", statistics="batch")
    for layer in found:
        dense = ns.fisher(risk, kind=kind, layers=layer.weight).to_dense().numpy()
        check_spectrum(found.block(layer.name), dense)
    whole = ns.fisher(risk, kind=kind, layers=[layer.weight for layer in found]).to_dense()
    check_spectrum(found.full, whole.numpy())


def check_spectrum(block, dense):
    assert block.reason == ""
    assert block.size == len(dense)
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(block.spectrum.values, values, atol=1e-12 * values[0])


@pytest.mark.parametrize("statistics", ["frozen", "running"])
@pytest.mark.parametrize("kind", ["empirical", "true"])
@pytest.mark.parametrize("name", ["batch-norm", "conv-residual"])
def test_exact_matrices_without_coupling(name, kind, statistics):
    model, x, y = made(name)
    found = conditioning(
        model, (x, y), "cross_entropy", kind=kind, exact="blocks", statistics=statistics
    )
    risk = ns.Risk(model, x, y, loss="cross_entropy", statistics=statistics)
    for layer in found:
        dense = ns.fisher(risk, kind=kind, layers=layer.weight).to_dense().numpy()
        check_spectrum(found.block(layer.name), dense)


@pytest.mark.parametrize("name", ["batch-norm", "conv-residual"])
def test_exact_matrices_with_coupling_follow_the_way_through_each_sample(name):
    model, x, y = made(name)
    found = conditioning(model, (x, y), "cross_entropy", exact="blocks")
    oracle = by_hand(
        copy.deepcopy(model).train(),
        x,
        lambda out: nn.functional.cross_entropy(out, y, reduction="sum"),
    )
    for layer in found:
        _, _, a, g = oracle[layer.name]
        module = model.get_submodule(layer.name)
        rows = torch.stack(
            [own_gradient(module, a[i : i + 1], g[i : i + 1]) for i in range(len(x))]
        )
        check_spectrum(found.block(layer.name), (rows.T @ rows / len(x)).numpy())


def own_gradient(module, x, g):
    """The gradient of the weight when ``g`` comes back from ``module`` after ``x``."""
    (gradient,) = torch.autograd.grad(module(x), module.weight, g)
    return gradient.flatten()


def test_expected_labels_with_coupling_are_the_mean_of_sampled_ones():
    model, x, y = made("batch-norm")
    options = {"exact": "blocks", "moments": True}
    exact = conditioning(model, (x, y), "cross_entropy", kind="true", **options)
    draws = [
        conditioning(model, (x, y), "cross_entropy", kind="sampled", seed=s, **options)
        for s in range(200)
    ]
    for k, layer in enumerate(exact):
        stack = np.stack([d.layers[k].gradient_moment for d in draws])
        error = stack.std(0, ddof=1) / math.sqrt(len(draws))
        assert (np.abs(stack.mean(0) - layer.gradient_moment) <= 5 * error + 1e-14).all()
        traces = np.array([d.blocks[k].spectrum.trace for d in draws])
        gap = abs(traces.mean() - exact.blocks[k].spectrum.trace)
        assert gap <= 5 * traces.std(ddof=1) / math.sqrt(len(draws))


def test_sampled_labels_average_to_the_expected_ones():
    model, x, y = made("grouped")
    exact = conditioning(model, (x, y), "cross_entropy", kind="true", moments=True)
    draws = [
        conditioning(model, (x, None), "cross_entropy", kind="sampled", seed=s, moments=True)
        for s in range(200)
    ]
    for k, layer in enumerate(exact):
        stack = np.stack([d.layers[k].gradient_moment for d in draws])
        error = stack.std(0, ddof=1) / math.sqrt(len(draws))
        assert (np.abs(stack.mean(0) - layer.gradient_moment) <= 5 * error + 1e-14).all()


SUPPORTED = [case for case in ROSTER if case.name not in ("lstm", "gru")]


@pytest.mark.parametrize("case", SUPPORTED, ids=str)
def test_every_network_of_the_roster(case):
    """Traces of exact blocks: the sum over samples of squared gradients, by the operators."""
    model = case.build()
    found = conditioning(
        model, (case.inputs, case.targets), case.loss, statistics=case.statistics, exact="blocks"
    )
    assert found.layers
    risk = ns.Risk(model, case.inputs, case.targets, loss=case.loss, statistics=case.statistics)
    scale = risk.num_samples if as_loss(case.loss).summed else 1
    # its exact blocks are of samples, the empirical Fisher matrix is of labels
    labels = {"cnn-dense-labels": 16, "loss-module-bce": 2}.get(case.name, 1)
    certified = 0
    for layer in found:
        block = found.block(layer.name)
        assert (block.spectrum is None) == bool(block.reason)
        trainable = dict(model.named_parameters()).get(layer.weight)
        known = trainable is not None and trainable.requires_grad and not risk.function().coupled
        if block.spectrum is None or not known or labels > 1:
            continue
        dense = ns.fisher(risk, kind="empirical", layers=layer.weight).to_dense() / scale
        check_spectrum(block, dense.numpy())
        certified += 1
    expected = risk.function().coupled or labels > 1
    assert certified or expected or case.name in ("weight-norm", "bn-functional", "overwriting")


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_are_reported_as_left_out(name):
    (case,) = [case for case in ROSTER if case.name == name]
    found = conditioning(case.build(), (case.inputs, case.targets), case.loss)
    assert [layer.name for layer in found] == ["head"]
    assert [(s.name, s.status) for s in found.coverage.left_out] == [("body", "skipped")]
    assert "body" in set(found.to_frame()["name"])


class Scaled(Tied):
    """Its first weight is no matrix of a layer only."""

    def forward(self, x):
        return super().forward(x) * self.encoder.weight.sum()


def test_a_weight_used_twice_is_summed_over_its_uses_and_in_another_form_has_no_exact_block():
    torch.manual_seed(0)
    found = conditioning(Tied(), (D["x"], D["y3"]), "mse", exact="blocks")
    assert [layer.name for layer in found] == ["encoder", "middle", "middle#2", "encoder#2"]
    assert {block.reason for block in found.blocks} == {""}  # once transposed: see the roster
    found = conditioning(Scaled(), (D["x"], D["y3"]), "mse", exact="blocks")
    reasons = {block.name: block.reason for block in found.blocks}
    assert "another form" in reasons["encoder.weight"]
    assert reasons["middle.weight"] == ""


@pytest.mark.parametrize("name", ["mlp", "batch-norm", "sequence"])
def test_sub_hessians_against_autograd(name):
    model, x, y = made(name)
    found = conditioning(model, (x, y), "cross_entropy", hessian=True)
    for layer in found:
        weight = model.get_parameter(layer.weight)

        def loss(w, key=layer.weight):
            out = torch.func.functional_call(copy.deepcopy(model).train(), {key: w}, (x,))
            return nn.functional.cross_entropy(out, y)

        if name == "batch-norm":
            torch.func.replace_all_batch_norm_modules_(model)
        size = weight.numel()
        dense = torch.autograd.functional.hessian(loss, weight.detach()).reshape(size, size)
        values = torch.linalg.eigvalsh(dense).flip(0).numpy()
        got = found.hessian(layer.name).spectrum
        np.testing.assert_allclose(got.values, values, atol=1e-11 * np.abs(values).max())


def test_batches_merge_to_the_whole():
    model, x, y = made("grouped")
    whole = conditioning(model, (x, y), "cross_entropy", exact="full", moments=True)
    cuts = [slice(0, 1), slice(1, 3), slice(3, None)]
    parts = [(x[cut], y[cut]) for cut in cuts]
    assert len(parts[2][0]) >= 2  # a shorter last one would be left out
    for data in (parts, iter(parts)):
        merged = conditioning(model, data, "cross_entropy", exact="full", moments=True)
        for one, other in zip(whole, merged, strict=True):
            np.testing.assert_allclose(one.input_moment, other.input_moment, rtol=1e-10)
            np.testing.assert_allclose(one.gradient_moment, other.gradient_moment, rtol=1e-10)
        np.testing.assert_allclose(
            merged.full.spectrum.values, whole.full.spectrum.values, atol=1e-13
        )


def test_loss_fn_gives_the_same_as_the_loss():
    model, x, y = made("transposed")
    plain = conditioning(model, (x, y), "cross_entropy", exact="full", hessian=True)

    def loss_fn(net, batch):
        return nn.functional.cross_entropy(net(batch["x"]), batch["y"])

    data = [{"x": x, "y": y}]
    found = conditioning(model, data, loss_fn=loss_fn, exact="full", hessian=True)
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_allclose(one.gradients.values, other.gradients.values, rtol=1e-9)
    for one, other in zip(plain.blocks, found.blocks, strict=True):
        np.testing.assert_allclose(one.spectrum.values, other.spectrum.values, atol=1e-12)
    for one, other in zip(plain.hessians, found.hessians, strict=True):
        np.testing.assert_allclose(one.spectrum.values, other.spectrum.values, atol=1e-12)
    with pytest.raises(InputError, match="hides them"):
        conditioning(model, data, loss_fn=loss_fn, kind="sampled")


def test_patches_are_the_factors_of_kfac():
    model, x, y = made("conv-residual")
    found = conditioning(model, (x, y), "cross_entropy", patches=True, moments=True)
    oracle = by_hand(
        copy.deepcopy(model).train(),
        x,
        lambda out: nn.functional.cross_entropy(out, y, reduction="sum"),
    )
    for name in ("conv1", "conv2"):
        a = oracle[name][2]
        rows = nn.functional.unfold(a, 3, padding=1).transpose(1, 2).reshape(-1, 9 * a.shape[1])
        np.testing.assert_allclose(found[name].input_moment, second_moment(rows), rtol=1e-10)


def test_not_one_layer_can_be_measured():
    with pytest.raises(MeasurementError, match="Not one layer"):
        conditioning(nn.Sequential(nn.BatchNorm1d(3)), (D["x"], D["y3"]), "mse")
