"""Drift of batch statistics, and information of scales."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import normscope as ns
from normscope.measure import scale_information, variance_shift


def test_information_of_the_scales_against_a_difference_quotient():
    """Each sample's loss with the scale of one unit moved, its standardized values fixed."""
    torch.manual_seed(0)
    model = ns.network("mlp:5-4-3-2", norm="batch", seed=1).double()
    x, labels = torch.randn(40, 5).double(), torch.arange(40) % 2
    model(x)  # some running statistics
    model.eval()
    values = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _x, y, name=name: values.setdefault(name, y.detach())
        )
        for name in ("norm1", "norm2")
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    layers = []
    for name, y in values.items():
        n, rows = (y - y.mean(0)) / y.std(0, correction=0), []
        for unit in range(y.shape[1]):
            losses = []
            for sign in (1, -1):
                moved = torch.zeros_like(y)
                moved[:, unit] = sign * 1e-5 * n[:, unit]
                hook = model.get_submodule(name).register_forward_hook(
                    lambda _m, _x, out, moved=moved: out + moved
                )
                losses.append(functional.cross_entropy(model(x), labels, reduction="none").detach())
                hook.remove()
            rows.append(((losses[0] - losses[1]) / 2e-5).square().mean())
        layers.append(float(torch.stack(rows).mean()))
    assert scale_information(model.train(), x, labels) == pytest.approx(np.mean(layers), rel=1e-6)
    assert model.training


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_shift_of_the_variance_by_dropout_is_that_of_centred_values(dropout):
    """Kept values are divided by 1 - p: the variance of what has mean 0 grows by 1 / (1 - p)."""
    torch.manual_seed(1)
    x, norm = torch.randn(4000, 8), torch.nn.BatchNorm1d
    model = torch.nn.Sequential(norm(8), torch.nn.Dropout(dropout), norm(8))
    found = variance_shift(model, x, 100)
    assert model[0].num_batches_tracked == 0  # left as it was
    spread = np.sqrt((3 / (1 - dropout) - 1) / (len(x) * 5 * 8)) / np.log(10)
    assert abs(found + np.log10(1 - dropout)) < 5 * spread
