"""Transforms where layers keep other statistics, share tensors, or do not fit together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.nn import BatchNorm, GroupNorm, refresh_population
from normscope.subject.transforms import apply_transform


def off_centre(seed=0):
    """Inputs whose mean square is far from their variance."""
    return torch.randn(40, 3, generator=torch.Generator().manual_seed(seed)) * 0.7 + 2.0


def network(norm):
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))
    for seed in range(200):
        model(off_centre(seed))
    return model


def test_running_statistics_are_converted_to_root_mean_square_and_back():
    model = network(nn.BatchNorm1d(4))
    rms = apply_transform(model, "replace:batch->variance-rms")
    norm = model[1]
    torch.testing.assert_close(rms[1].running_var, norm.running_var + norm.running_mean.square())
    back = apply_transform(rms, "replace:batch->batch")
    torch.testing.assert_close(back[1].running_var, norm.running_var)
    torch.testing.assert_close(back.eval()(off_centre()), model.eval()(off_centre()))


def test_converted_statistics_are_those_that_training_would_have_kept():
    """A moving mean square is a moving variance plus the mean's square, up to the batch noise."""
    model = network(nn.BatchNorm1d(4))
    converted = apply_transform(model, "replace:batch->variance-rms")[1].running_var.clone()
    direct = BatchNorm(4, parts=("variance",), deviation="rms")
    for seed in range(200):
        direct(model[0](off_centre(seed)))
    gap = (converted / direct.running_var - 1).abs().max()
    missed = (model[1].running_var / direct.running_var - 1).abs().max()
    assert gap < 0.1 * missed


def test_population_statistics_go_on_as_running_ones():
    model = apply_transform(network(nn.BatchNorm1d(4)), "replace:batch->population")
    refresh_population(model, off_centre())
    expected = model.eval()(off_centre())
    for after in ("batch", "frozen"):
        changed = apply_transform(model, f"replace:population->{after}").eval()
        torch.testing.assert_close(changed(off_centre()), expected)


def test_scales_that_are_not_trained_stay_so():
    model = network(nn.BatchNorm1d(4))
    model[1].weight.requires_grad_(False)
    changed = apply_transform(model, "replace:batch->layer")
    assert not changed[1].weight.requires_grad
    assert changed[1].bias.requires_grad


def test_a_constant_gain_goes_on():
    model = nn.Sequential(nn.Linear(3, 4), BatchNorm(4, parts=("mean", "variance"), gamma=0.3))
    changed = apply_transform(model, "replace:batch->batch")
    torch.testing.assert_close(changed(off_centre()), model(off_centre()))


def test_groups_are_counted_on_the_layers_of_the_model():
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16))
    changed = apply_transform(model, "replace:batch->group16")
    assert isinstance(changed[1], GroupNorm)
    assert changed[1].num_groups == 16
    with pytest.raises(InputError, match="16 channels cannot be split into 5"):
        apply_transform(model, "replace:batch->group5")


def test_shared_weights_are_scaled_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    changed = apply_transform(model, "scale-weights=2")
    assert torch.equal(changed[0].weight, 2 * model[0].weight)
    assert changed[2].weight is changed[0].weight


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        h = self.layer(x)
        return h * h.sigmoid()


class Responses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 4, 1), nn.LocalResponseNorm(2)

    def forward(self, x):
        return self.norm(self.layer(x))


REFUSED = [
    (Gated, "norm-output", "used 2 times"),
    (Responses, "gamma=0.1", "scale to set"),
    (lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(4)), "fold", "another axis"),
]


@pytest.mark.parametrize(("make", "text", "message"), REFUSED)
def test_refused_with_a_reason(make, text, message):
    with pytest.raises(InputError, match=message):
        apply_transform(make(), text)
