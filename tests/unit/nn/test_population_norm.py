"""Population norm: exact statistics, in chunks or at once, with and without their gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from normscope import Risk, fisher
from normscope.errors import InputError
from normscope.nn import PopulationNorm, PopulationRefresher, initialize, refresh_population


def net(stat_grad="detach", norm=PopulationNorm):
    def layer(width):
        return norm(width, stat_grad=stat_grad) if norm is PopulationNorm else norm(width)

    model = nn.Sequential(
        nn.Linear(3, 5), layer(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 4), layer(4), nn.Tanh(),
        nn.Linear(4, 2),
    )  # fmt: skip
    return initialize(model, "he", seed=4)


def population(count=50):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(8)) + 0.4


def test_population_statistics_are_batch_norm_on_the_whole_population():
    """With the population as the batch, train-mode batch norm is population norm."""
    model, twin = net(), net(norm=nn.BatchNorm1d)
    refresh_population(model, population())
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    expected = twin(population())
    torch.testing.assert_close(model.eval()(population()), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(model(population()[:1]), expected[:1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunk_size", [1, 7, 49, 50, 1000])
def test_chunks_give_the_same_statistics(chunk_size):
    once, chunked = net(), net()
    refresh_population(once, population())
    refresh_population(chunked, population(), chunk_size=chunk_size)
    for a, b in zip(once.buffers(), chunked.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_mean_square_merges_too():
    x = population()
    for layer in (PopulationNorm(3, parts=["variance"], deviation="rms"), PopulationNorm(3)):
        refresh_population(layer, x, chunk_size=9)
        expected = x.square().mean(0) if layer.deviation == "rms" else x.var(0, correction=0)
        torch.testing.assert_close(layer.population_var, expected)


def test_a_refresh_changes_nothing_else():
    model = net().train()
    model[3].eval()
    modes = [m.training for m in model.modules()]
    parameters = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    refresh_population(model, population(), chunk_size=10)
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(parameters, model.parameters(), strict=True))


def test_gradient_through_the_statistics_is_that_of_batch_norm_on_the_population():
    """L(theta) = loss(batch; statistics(theta)): against finite differences of the whole."""
    batch, inputs = population()[:6], population(20)

    def loss(model):
        refresh_population(model, inputs)
        return model(batch).sin().sum()

    for stat_grad, exact in (("through", True), ("detach", False)):
        model = net(stat_grad)
        model[3].p = 0.0
        weight = model[0].weight
        (found,) = torch.autograd.grad(loss(model), weight)
        step, difference = 1e-6, torch.zeros_like(weight)
        with torch.no_grad():
            for index in range(weight.numel()):
                values = []
                for sign in (1, -1):
                    other = copy.deepcopy(model)
                    other[0].weight.view(-1)[index] += sign * step
                    values.append(loss(other))
                difference.view(-1)[index] = (values[0] - values[1]) / (2 * step)
        error = (found - difference).abs().max() / difference.abs().max()
        assert (error < 1e-7) == exact, (stat_grad, error)
        if not exact:
            assert error > 1e-2  # the gradient through the statistics is not a small part


def gradients(model, x, weights):
    """Gradients of a training step after a refresh; the batch norm of torch needs none."""
    if any(isinstance(m, PopulationNorm) for m in model.modules()):
        refresh_population(model.train(), population())
    model[3].p = 0.0
    loss = (model.train()(x).sin() * weights).sum()
    return torch.autograd.grad(loss, [*model.parameters()])


def test_with_the_population_as_the_batch_batch_gradients_are_those_of_batch_norm():
    x, weights = population(), torch.linspace(-1, 2, 50).double()[:, None]
    expected = gradients(net(norm=nn.BatchNorm1d), x, weights)
    for stat_grad in ("batch", "through"):
        for a, b in zip(gradients(net(stat_grad), x, weights), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("parts", [["mean"], ["variance"], ["mean", "variance"]])
def test_batch_gradients_are_those_of_batch_renormalization(parts):
    """Against Ioffe's formula, whose corrections r and d are constants."""
    layer = PopulationNorm(3, parts=parts, stat_grad="batch", eps=0.0, dtype=torch.float64)
    refresh_population(layer, population() * 1.3 - 0.2)
    x = population(7).clone().requires_grad_()
    mean, sigma = x.mean(0), x.var(0, correction=0).sqrt()
    if "mean" not in parts:
        mean = torch.zeros_like(mean)
    goal = layer.population_mean if "mean" in parts else torch.zeros_like(mean)
    if "variance" in parts:
        target = layer.population_var.sqrt()
        renormed = (x - mean) / sigma * (sigma / target).detach()
        renormed = renormed + ((mean - goal) / target).detach()
    else:
        renormed = x - mean + (mean - goal).detach()
    torch.testing.assert_close(layer(x), renormed, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(layer(x), layer.eval()(x), rtol=1e-12, atol=1e-13)
    weights = torch.linspace(-1, 2, 21).double().view(7, 3)
    expected, found = (
        torch.autograd.grad((y.sin() * weights).sum(), x, retain_graph=True)[0]
        for y in (renormed, layer.train()(x))
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_channel_that_is_constant_in_a_batch_has_finite_gradients():
    layer = PopulationNorm(3, stat_grad="batch")
    refresh_population(layer, population())
    x = torch.ones(4, 3, requires_grad=True)
    (found,) = torch.autograd.grad(layer(x).sin().sum(), x)
    assert found.isfinite().all()


def test_detached_statistics_spend_the_step_on_what_the_next_refresh_undoes():
    """Why deep networks stall: a shift, or a scale, of a channel before its norm changes nothing.

    A layer's bias only shifts, its weights' own direction only scales what the norm receives, and
    with refreshed statistics the loss depends on neither. Detached gradients follow them.
    """
    x, weights = population()[:16], torch.linspace(-1, 2, 16).double()[:, None]
    moved = {}
    for stat_grad in ("detach", "through", "batch"):
        model = net(stat_grad)
        model[1].eps = model[5].eps = 0.0
        weight, bias = gradients(model, x, weights)[:2]
        along = (weight * model[0].weight).sum(1) + bias * model[0].bias
        moved[stat_grad] = [float(v.detach().abs().max() / weight.abs().max())
                            for v in (bias, along)]  # fmt: skip
        refresh_population(model, population())
        before = model.eval()(x)
        with torch.no_grad():
            model[0].bias.add_(0.7)
            model[0].weight.mul_(1.9)
        refresh_population(model, population())
        torch.testing.assert_close(model.eval()(x), before, rtol=1e-10, atol=1e-12)
    assert max(moved["through"] + moved["batch"]) < 1e-12
    assert min(moved["detach"]) > 0.05  # not a small part of the step


def test_under_torch_func_batch_gradients_are_those_of_constant_statistics():
    x, found = population()[:6], []
    for stat_grad in ("batch", "detach"):
        model = net(stat_grad)
        model[3].p = 0.0
        refresh_population(model.train(), population())

        def loss(values, model=model):
            return torch.func.functional_call(model, values, x).sin().sum()

        found.append(torch.func.grad(loss)(dict(model.named_parameters())))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_live_statistics_serve_one_pass():
    model = net("through")
    refresh_population(model, population())
    model(population()[:5]).sum().backward()
    with pytest.raises(InputError, match="before every training pass"):
        model(population()[:5])
    model.eval()(population()[:5])  # evaluation needs no graph


def test_refresher_counts_steps_and_resumes():
    model = net()
    refresher = PopulationRefresher(model, population(), num_samples=20, every=3, seed=1)
    assert [refresher.step() for _ in range(5)] == [True, False, False, True, False]
    resumed = PopulationRefresher(model, population(), num_samples=20, every=3, seed=1)
    resumed.load_state_dict(refresher.state_dict())
    assert torch.equal(resumed.population, refresher.population)
    assert len(resumed.population) == 20
    assert [resumed.step() for _ in range(3)] == [False, True, False]


def test_state_dict_says_whether_there_are_statistics():
    layer = PopulationNorm(3)
    other = PopulationNorm(3)
    other.load_state_dict(layer.state_dict())
    with pytest.raises(InputError, match="no population statistics yet"):
        other(population())
    refresh_population(layer, population())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(population()), layer(population()))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = PopulationNorm(3)

    def forward(self, x):
        return self.norm(torch.tanh(self.norm(x)))


BAD = [
    (lambda: PopulationNorm(3, stat_grad="thru"), "through"),
    (lambda: refresh_population(nn.Linear(3, 2), population()), "no PopulationNorm"),
    (lambda: refresh_population(net(), population()[:1]), "at least two samples"),
    (lambda: refresh_population(net("through"), population(), chunk_size=5), "in chunks"),
    (lambda: refresh_population(net(), population(), chunk_size=0), "chunk_size"),
    (lambda: refresh_population(Shared(), population()), "used twice"),
    (lambda: refresh_population(Shared(), population(), chunk_size=10), "used twice"),
    (lambda: PopulationRefresher(net(), [population()], num_samples=None), "Got a list"),
    (lambda: PopulationRefresher(net(), population(), num_samples=51), "only 50 samples"),
    (lambda: PopulationRefresher(net(), population(), num_samples=5, every=0), "every"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_says_what_and_why(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_an_error_on_the_way_leaves_no_collector():
    model = nn.Sequential(PopulationNorm(3), nn.Linear(4, 2))  # does not fit
    with pytest.raises(RuntimeError):
        refresh_population(model, population())
    assert model[0]._collector is None
    assert not model[0].ready


def test_a_measurement_holds_population_statistics_constant():
    """In train mode too: the Fisher matrix is that of the function that the network computes."""
    data, found = (population(), torch.arange(50) % 2), {}
    for stat_grad in ("detach", "through", "batch"):
        model = net(stat_grad)
        model[3].p = 0.0
        refresh_population(model.train(), population())
        risk = Risk(model, *data, loss="cross_entropy", statistics="batch")
        found[stat_grad] = fisher(risk).to_dense()
        assert model[1].stat_grad == stat_grad
    assert torch.equal(found["batch"], found["detach"])
    torch.testing.assert_close(found["through"], found["detach"], rtol=1e-10, atol=1e-13)
