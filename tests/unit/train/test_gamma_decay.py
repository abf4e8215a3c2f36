"""Gamma decay against its formula and its gradient."""

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.train import fit, gamma_decay, scales


def network():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3), nn.LayerNorm(3)
    )
    with torch.no_grad():
        model[1].weight.normal_()
        model[4].weight.normal_()
    return model


def test_which_scales():
    model = network()
    assert list(scales(model)) == ["1", "4"]
    assert list(scales(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.GroupNorm(1, 3)))) == ["1"]
    assert not scales(nn.Sequential(nn.Linear(2, 2)))


class UnitNormLinear(nn.Linear):
    """Has norm in its name and a weight that is no scale."""


class TheirRMSNorm(nn.Module):
    """As other libraries write it."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


def test_norms_of_other_libraries_but_no_layer_that_is_only_called_so():
    layers = {"a": UnitNormLinear(3, 3), "b": TheirRMSNorm(3), "c": nn.LayerNorm((2, 3))}
    assert list(scales(nn.ModuleDict(layers))) == ["b", "c"]


def test_the_scales_of_our_own_layers():
    from normscope.nn import norm

    layers = {
        "batch": norm.BatchNorm(3),
        "population": norm.PopulationNorm(3),
        "layer": norm.LayerNorm(3),
        "group": norm.GroupNorm(1, 3),
        "rms": norm.RMSNorm(3),
        "mean": norm.BatchNorm(3, parts=["mean"]),
    }
    assert list(scales(nn.ModuleDict(layers))) == ["batch", "population", "layer", "group", "rms"]


def test_value_and_gradient():
    model = network()
    penalty = gamma_decay(0.3)(model)
    expected = 0.3 * (model[1].weight.square().sum() + model[4].weight.square().sum())
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-14)
    penalty.backward()
    assert torch.allclose(model[1].weight.grad, 0.6 * model[1].weight, rtol=1e-14)
    assert model[0].weight.grad is None


def test_one_strength_per_neuron():
    model = network()
    zeta = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.1])
    gamma_decay({"1": zeta})(model).backward()
    assert torch.allclose(model[1].weight.grad, 2 * zeta * model[1].weight, rtol=1e-14)
    assert model[4].weight.grad is None


def test_in_a_training_it_acts_on_gamma_alone():
    # With a loss of zero gradient, plain SGD gives gamma_t = (1 - 2 lr zeta)^t gamma_0.
    model = network()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    data = (torch.randn(8, 4), torch.zeros(8, 3))
    fit(
        model,
        data,
        lambda outputs, targets: 0 * outputs.sum(),
        lr=0.1,
        steps=7,
        batch_size=4,
        penalty=gamma_decay(0.3),
    )
    for name, parameter in model.named_parameters():
        factor = (1 - 2 * 0.1 * 0.3) ** 7 if name in ("1.weight", "4.weight") else 1.0
        assert torch.allclose(parameter, factor * before[name], rtol=1e-13), name


BAD = {
    "negative": (lambda: gamma_decay(-0.1), "at least 0"),
    "nan": (lambda: gamma_decay(float("nan")), "finite"),
    "negative neuron": (lambda: gamma_decay({"1": torch.tensor([-1.0])}), "of layer '1'"),
    "no norm": (lambda: gamma_decay(1.0)(nn.Linear(2, 2)), "Linear has none"),
    "no such layer": (lambda: gamma_decay({"7": torch.ones(5)})(network()), "called '7'"),
    "shape": (lambda: gamma_decay({"1": torch.ones(4)})(network()), r"shape \(4,\)"),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_bad_input(make, text):
    with pytest.raises(InputError, match=text):
        make()


def test_an_empty_mapping_is_refused():
    with pytest.raises(InputError, match="got no layer"):
        gamma_decay({})
