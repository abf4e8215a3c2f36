"""Gamma decay that follows the network: its values, its place in a training, its resumption."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian

from normscope.errors import InputError
from normscope.measure import bn_regularization
from normscope.nn import PopulationNorm, PopulationRefresher, refresh_population
from normscope.train import adaptive_gamma_decay, fit, gamma_decay


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 3), PopulationNorm(3), nn.Softplus(), nn.Linear(3, 5), PopulationNorm(5),
        nn.Softplus(), nn.Linear(5, 3),
    )  # fmt: skip


def data(size=60):
    generator = torch.Generator().manual_seed(1)
    x = torch.empty(size, 4).exponential_(generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


def decay(model, **options):
    given = {"batch_size": 16, "num_samples": None} | options
    return adaptive_gamma_decay(model, data(), "cross_entropy", **given)


def test_the_strengths_are_half_the_variance_times_the_curvature():
    """Second derivatives of the population-norm loss in gamma and beta, by dense autograd."""
    model, (x, y) = network(), data()
    refresh_population(model, x)
    model.eval()
    found = decay(model)
    found.step()
    for index in (1, 4):
        layer = model[index]

        def loss(gamma, beta, index=index):
            parameters = {f"{index}.weight": gamma, f"{index}.bias": beta}
            outputs = torch.func.functional_call(model, parameters, (x,))
            return nn.functional.cross_entropy(outputs, y)

        table = hessian(loss, (layer.weight.detach(), layer.bias.detach()))
        by_scale, by_shift = torch.diagonal(table[0][0]), torch.diagonal(table[1][1])
        with torch.no_grad():
            h = model[:index](x)
            n = (h - h.mean(0)) / (h.var(0, unbiased=False) + layer.eps).sqrt()
        v_mu, v_sigma = n.var(0, unbiased=False) / 16, (n**2).var(0, unbiased=False) / 64
        expected = (0.5 * (v_sigma * by_scale + v_mu * by_shift)).clamp(min=0)
        assert torch.allclose(found.strength[str(index)], expected, rtol=1e-9)
    penalty = sum((found.strength[str(i)] * model[i].weight.square()).sum().item() for i in (1, 4))
    assert found(model).item() == pytest.approx(penalty, rel=1e-12)


def test_it_is_the_decay_of_batch_norm_of_that_size():
    """Population norm exchanged for batch norm: zeta as `bn_regularization` measures it."""
    model = network()
    found = decay(model, batch_size=20)
    found.refresh()
    twin = nn.Sequential(*[
        nn.BatchNorm1d(m.num_features) if isinstance(m, PopulationNorm) else m for m in model
    ])  # fmt: skip
    measured = bn_regularization(
        twin, data(), "cross_entropy", batch_size=20, num_batches=2, max_samples=None
    )
    for layer in measured.layers:
        # variances over 1000 drawn batches: 4.5 % each; of order 1/M^2 for the deviation
        zeta = found.strength[layer.layer].numpy()
        assert layer.zeta[0] == pytest.approx(zeta, rel=5 * np.sqrt(2 / 1000) + 1 / 20)


def test_one_object_is_penalty_and_refresher():
    model, (x, y) = network(), data()
    population = PopulationRefresher(model, x, num_samples=None)
    found = decay(model, every=3)
    taken = []
    fit(
        model, (x, y), "cross_entropy", lr=0.1, steps=7, batch_size=20, penalty=found,
        refreshers=[population, found],
        callbacks=[lambda e: taken.append(found.strength["1"].clone()) if e.kind == "step" else 0],
    )  # fmt: skip
    assert found.steps == 7
    # measured before steps 1, 4 and 7
    same = [torch.equal(a, b) for a, b in itertools.pairwise(taken)]
    assert same == [True, True, False, True, True, False]


def test_it_changes_the_training_by_its_gradient_on_gamma():
    updates = []
    for with_decay in (False, True):
        model, (x, y) = network(), data()
        refresh_population(model, x)
        found = decay(model)
        options = {"penalty": found, "refreshers": [found]} if with_decay else {}
        before = model[1].weight.detach().clone()
        fit(model, (x, y), "cross_entropy", lr=0.1, steps=1, batch_size=60, **options)
        updates.append(model[1].weight.detach() - before)
    expected = -0.1 * 2 * found.strength["1"] * before
    assert torch.allclose(updates[1] - updates[0], expected, rtol=1e-9)


def test_a_killed_training_goes_on_as_if_it_had_not_been(tmp_path):
    def run(steps, **options):
        model, (x, y) = network(), data()
        refreshers = [PopulationRefresher(model, x, num_samples=None), decay(model, every=4)]
        fit(
            model, (x, y), "cross_entropy", lr=0.1, steps=steps, batch_size=20,
            penalty=refreshers[1], refreshers=refreshers, **options,
        )  # fmt: skip
        return model

    class KillError(Exception):
        pass

    def kill(event):
        if event.kind == "step" and event.step == 6:
            raise KillError

    whole = run(9)
    file = tmp_path / "run.pt"
    with pytest.raises(KillError):
        run(9, checkpoint=file, checkpoint_every=1, callbacks=[kill])
    resumed = run(9, checkpoint=file, checkpoint_every=1)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_strengths_are_never_negative():
    model = network()
    with torch.no_grad():  # labels that the model denies: the loss curves down somewhere
        model[6].weight.mul_(-30)
    found = decay(model)
    found.refresh()
    assert min(float(zeta.min()) for zeta in found.strength.values()) >= 0


def test_arrays_of_a_measurement_are_strengths():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    report = bn_regularization(
        model, data(), "cross_entropy", batch_size=[8, 32], num_batches=2, max_samples=None
    )
    zeta = report.restoring_decay(8, 32)
    penalty = gamma_decay(zeta)(model)
    assert penalty.item() == pytest.approx(zeta["1"].sum())  # gamma is 1


def test_a_network_of_which_some_norms_have_scales():
    model = network()
    model[1] = PopulationNorm(3, parts=("mean", "variance"))
    refresh_population(model, data()[0])
    found = decay(model)
    found.step()
    assert list(found.strength) == ["4"]
    assert found(model).item() == pytest.approx(float(found.strength["4"].sum()))  # gamma is 1


BAD = {
    "text": (lambda: gamma_decay("strong"), "A strength is a number"),
    "nothing": (lambda: gamma_decay({"1": None}), "A strength is a number"),
    "not measured": (lambda: decay(network())(network()), "has not been measured yet"),
    "batch size": (lambda: decay(network(), batch_size=1), "no deviation"),
    "size as text": (lambda: decay(network(), batch_size="16"), "batch_size must be a whole"),
    "every": (lambda: decay(network(), every=0), "every"),
    "no norm": (lambda: decay(nn.Linear(4, 3)).step(), "no batch-norm layer"),
    "curvature": (lambda: decay(network(), curvature="no"), "Unknown curvature"),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_bad_input(make, text):
    with pytest.raises(InputError, match=text):
        make()
