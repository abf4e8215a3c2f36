"""Theory beside the measured J^T J / T over the same parameters, and the scale of cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.diagnose.comparison import TOLERANCE, compared, loss_scale, predictions
from normscope.diagnose.subject import as_subject
from normscope.errors import TheoryError

CLASSES = 4


def net(norm: str = "none", seed: int = 0) -> nn.Module:
    return ns.network(f"mlp:64-24-24-{CLASSES},norm={norm}", seed=seed)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(40, 64, generator=generator), torch.arange(40) % CLASSES


def dense(model: nn.Module, x: torch.Tensor, curvature: torch.Tensor) -> float:
    """lambda_max of mean_t J_t^T H_t J_t over the weights, all derivatives by torch.func."""
    model = model.train()
    values = {n: p.detach() for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    weights = {n: p for n, p in values.items() if p.ndim > 1}
    rest = {n: p for n, p in values.items() if p.ndim == 1}

    def outputs(free, buffers):
        return torch.func.functional_call(model, {**free, **rest, **buffers}, (x,))

    found = torch.func.jacfwd(outputs)(weights, buffers)
    jacobian = torch.cat([j.flatten(2) for j in found.values()], dim=2)  # (T, C, n)
    fisher = torch.einsum("tcn,tcd,tdm->nm", jacobian, curvature, jacobian) / len(x)
    return float(torch.linalg.eigvalsh(fisher)[-1])


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_both_matrices_against_dense_ones(norm):
    model, (x, y) = net(norm), batch()
    subject = as_subject(model, (x, y), "cross_entropy")
    found = compared(subject, {"prediction": predictions(subject)})
    p = model.train()(x).softmax(1).detach()
    identity = torch.eye(CLASSES).expand(len(x), -1, -1)
    softmax = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert found.measured == pytest.approx(dense(model, x, identity), rel=TOLERANCE)
    assert found.loss_measured == pytest.approx(dense(model, x, softmax), rel=TOLERANCE)
    scale = torch.linalg.eigvalsh(torch.diag(p.mean(0)) - p.T @ p / len(p))[-1]
    assert found.loss_scale == pytest.approx(float(scale), rel=1e-6)
    assert found.loss_predicted == found.loss_scale * found.predicted


def test_the_squared_loss_has_no_scale():
    subject = as_subject(net(), (batch()[0], torch.randn(40, CLASSES)), "mse")
    found = compared(subject, {"prediction": predictions(subject)})
    assert loss_scale(subject) == found.loss_scale == 1
    assert found.loss_measured == found.measured


def test_a_loss_of_its_own_scale_is_not_known():
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert loss_scale(as_subject(net(), batch(), loss)) != 1


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_scale_approximates_cross_entropy(norm):
    """Only that: a mean over samples is taken where each has a curvature of its own."""
    data = ns.load_data("digits").subset(128)
    for seed in range(3):
        model = ns.network(f"mlp:64-200-200-10,norm={norm}", seed=seed)
        subject = as_subject(model, data, "cross_entropy")
        found = compared(subject, {"prediction": predictions(subject)})
        true = found.loss_measured / found.measured
        assert 0.1 < true < 0.25
        assert 2 / 3 < found.loss_scale / true < 3 / 2


def test_an_earlier_measurement_of_the_same_matrix_is_used():
    found = ns.examine(net("batch"), batch(), preset="standard")
    assert found["comparison"].measured == found["outliers"].values[0]
    with pytest.raises(TheoryError, match="no prediction"):
        compared(as_subject(net(), batch(), "cross_entropy"), {})
