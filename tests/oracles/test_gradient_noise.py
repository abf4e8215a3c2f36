"""Gradient noise against a loop of single-sample gradients, and against batches drawn by hand."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from cases import BY_NAME, ROSTER
from normscope.measure.probes._noise_groups import GroupSums
from normscope.measure.probes.noise import gradient_noise
from normscope.subject.batch import call_arguments
from normscope.subject.objective import as_loss
from normscope.subject.statistics import coupling_layers

LOST = {
    "loss-module-ce-smooth": "class weights: a batch's loss is no mean of its samples' losses",
    "bn-functional": "batch norm without a layer couples the samples",
}


def separable(case):
    coupled = case.statistics == "batch" and coupling_layers(case.build())
    return not coupled and case.statistics != "frozen" and case.name not in LOST


SEPARABLE = [case for case in ROSTER if separable(case)]


def single_gradients(case):
    """One row per sample: autograd on a batch of one, on a copy of the model."""
    model = copy.deepcopy(case.build()).train(case.statistics != "running")
    loss = as_loss(case.loss)
    size = len(pytree.tree_leaves(case.targets)[0])
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    rows = []
    for i in range(size):
        inputs, targets = pytree.tree_map(
            lambda t, i=i: t[i : i + 1].clone(), (case.inputs, case.targets)
        )
        args, kwargs = call_arguments(model, inputs)
        value = loss.value(model(*args, **kwargs), targets)
        parameters = [p for p in model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(value, parameters, allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, parameters, strict=True)
            ]
        )
    return {name: torch.stack([row[k].flatten() for row in rows]) for k, name in enumerate(names)}


def noise_of(rows):
    return float(rows.sub(rows.mean(0)).square().sum(1).mean())


@pytest.mark.parametrize("case", SEPARABLE, ids=str)
def test_exact_noise_is_that_of_a_loop_of_single_samples(case):
    rows = single_gradients(case)
    found = gradient_noise(
        case.build(), (case.inputs, case.targets), case.loss, statistics=case.statistics
    )
    assert not found.coupled, found.coupling
    whole = torch.cat(list(rows.values()), 1)
    assert found.total == pytest.approx(noise_of(whole), rel=1e-9)
    assert found.gradient2[0] == pytest.approx(float(whole.mean(0).square().sum()), rel=1e-9)
    assert found.noise[1:].sum() == pytest.approx(found.total, rel=1e-9)
    # sixteen batches are not cut, so that layers see all samples of a batch together
    repeated = gradient_noise(
        case.build(), [(case.inputs, case.targets)] * 16, case.loss, statistics=case.statistics
    )
    np.testing.assert_allclose(repeated.noise, found.noise, rtol=1e-9, atol=1e-25)
    np.testing.assert_allclose(repeated.gradient2, found.gradient2, rtol=1e-9, atol=1e-25)
    owned = {}
    for name, own in rows.items():
        owner = name.partition(".parametrizations.")[0] if "parametriz" in name else name
        layer = owner if owner != name else name.rpartition(".")[0]
        owned.setdefault(layer or "(model)", []).append(own)
    assert set(owned) == set(found.layers)
    for layer, value in found.by_layer.items():
        assert value == pytest.approx(noise_of(torch.cat(owned[layer], 1)), rel=1e-9, abs=1e-25)


@pytest.mark.parametrize("name", LOST)
def test_samples_that_are_coupled_out_of_sight_are_not_taken_for_separate(name):
    case = BY_NAME[name]
    found = gradient_noise(case.build(), (case.inputs, case.targets), case.loss, draws=6)
    assert "not the mean" in found.coupling or "cannot be run alone" in found.coupling
    assert np.isnan(found.total)
    assert (found.without_replacement >= 0).all()


def test_frozen_statistics_are_constants_of_the_whole_batch():
    case = BY_NAME["bn1d-frozen"]
    found = gradient_noise(case.build(), (case.inputs, case.targets), "mse", statistics="frozen")
    model = copy.deepcopy(case.build())
    hidden = model[0](case.inputs).detach()
    model[1].running_mean.copy_(hidden.mean(0))
    model[1].running_var.copy_(hidden.var(0, unbiased=False))
    same = gradient_noise(model, (case.inputs, case.targets), "mse", statistics="running")
    np.testing.assert_allclose(found.noise, same.noise, rtol=1e-10)


def gradient_rows(model, inputs, targets, batches):
    """Gradient of the mean cross-entropy of each batch of indices, train mode, on a copy."""
    twin = copy.deepcopy(model).train()
    rows = []
    for index in batches:
        loss = nn.functional.cross_entropy(twin(inputs[index]), targets[index])
        grads = torch.autograd.grad(loss, list(twin.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def test_noise_under_batch_norm_is_that_of_all_possible_batches():
    case = BY_NAME["bn1d-batch-ce"]
    model = case.build()
    subsets = [list(s) for s in itertools.combinations(range(6), 3)]
    rows = gradient_rows(model, case.inputs, case.targets, subsets)
    mean = rows.mean(0)
    variance = float((rows - mean).square().sum(1).mean())
    found = gradient_noise(
        model, (case.inputs, case.targets), "cross_entropy", batch_sizes=[3, 6], draws=400
    )
    assert "BatchNorm1d '1'" in found.coupling
    error = found.without_replacement_error[0, 0]
    assert error < 0.3 * variance
    assert abs(found.without_replacement[0, 0] - variance) < 5 * error
    assert abs(found.signal[0, 0] - float(mean.square().sum())) < 5 * found.signal_error[0, 0]
    # the batch of all six is always the same one: a difference of equal squares is left
    [all_rows] = gradient_rows(model, case.inputs, case.targets, [list(range(6))])
    rounding = 8 * np.finfo(float).eps * float(all_rows.square().sum())
    assert found.without_replacement[0, 1] == pytest.approx(0, abs=rounding)
    assert found.signal[0, 1] == pytest.approx(float(all_rows.square().sum()), rel=1e-9)


def test_simulated_batches_have_the_noise_of_the_formula():
    """Section 2.2's table: B E|g_B - g|^2 / M with and without replacement, 1500 draws."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
    x = torch.randn(2000, 10, generator=generator)
    y = torch.randint(5, (2000,), generator=generator)
    sizes = [1, 8, 64, 512]
    found = gradient_noise(model, (x, y), "cross_entropy", batch_sizes=sizes)
    [whole] = gradient_rows(model, x, y, [slice(None)])
    rng = np.random.default_rng(0)
    for column, size in enumerate(sizes):
        for replace in (True, False):
            drawn = [torch.from_numpy(rng.choice(2000, size, replace=replace)) for _ in range(1500)]
            squares = (gradient_rows(model, x, y, drawn) - whole).square().sum(1)
            error = float(squares.std()) / len(squares) ** 0.5
            kind = found.with_replacement if replace else found.without_replacement
            assert abs(float(squares.mean()) - kind[0, column]) < 4.5 * error
            if replace and size < 512:  # the reference: within 5 % with 1500 draws
                assert size * float(squares.mean()) / found.total == pytest.approx(1, abs=0.05)


def test_pieces_are_unbiased_and_errors_are_of_the_right_size():
    rng = np.random.default_rng(1)
    mean, spread = np.array([0.3, -0.2, 0.5]), np.array([1.0, 0.5, 2.0])
    trace, signal = float((spread**2).sum()), float((mean**2).sum())
    found = []
    for _ in range(400):
        sums = GroupSums([[slice(0, 1)], [slice(1, 3)]])
        for row in mean + spread * rng.standard_normal((160, 3)):
            squares = torch.tensor([row[0] ** 2, row[1] ** 2 + row[2] ** 2])
            sums.add(1, torch.from_numpy(row), squares)
        e = sums.estimate()
        found.append([e.trace[0], e.signal[0], e.ratio[0], e.trace_error[0], e.signal_error[0]])
    found = np.array(found)
    for column, truth in ((0, trace), (1, signal)):
        values, errors = found[:, column], found[:, column + 3]
        assert abs(values.mean() - truth) < 4.5 * values.std(ddof=1) / len(values) ** 0.5
        # the mean squared s.e. is the variance (known to 1/sqrt(2 x 399), 3 %)
        ratio = float((errors**2).mean() / values.var(ddof=1))
        spread_of_ratio = ratio * np.hypot(
            (2 / 399) ** 0.5, (errors**2).std() / (errors**2).mean() / 400**0.5
        )
        assert abs(ratio - 1) < 4.5 * spread_of_ratio


def test_networks_of_one_kind_go_layer_by_layer_and_others_sample_by_sample():
    routes = {}
    for name in ("mlp-tanh", "cnn", "layer-norm", "lstm", "tied-weights", "embedding"):
        case = BY_NAME[name]
        found = gradient_noise(case.build(), (case.inputs, case.targets), case.loss)
        routes[name] = found.convention["noise"].rpartition(", ")[2]
    assert routes == {
        "mlp-tanh": "layer by layer",
        "cnn": "layer by layer",
        "layer-norm": "layer by layer",
        "lstm": "one backward pass per sample",
        "tied-weights": "one backward pass per sample",
        "embedding": "one backward pass per sample",
    }


def test_a_first_axis_that_only_looks_like_samples_is_found_out():
    class TimeFirst(nn.Module):
        """Puts time first; with as many steps as samples the axis has the right length."""

        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.inner(x.transpose(0, 1))).mean(0))

    model, x, y = TimeFirst(), torch.randn(4, 4, 2), torch.randn(4, 2)
    found = gradient_noise(model, [(x, y)] * 16, "mse")
    assert "one backward pass per sample" in found.convention["noise"]
    rows = []
    for i in range(4):
        loss = 0.5 * (model(x[i : i + 1]) - y[i : i + 1]).square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    assert found.total == pytest.approx(noise_of(torch.stack(rows)), rel=1e-9)
