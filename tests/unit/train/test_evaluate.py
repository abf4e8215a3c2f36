"""Evaluation: sums written out, and a model that is left as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.data import load_data
from normscope.train import Evaluation, evaluate


def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 10)
    )
    with torch.no_grad():
        net[2].running_mean.normal_()
    return net


@pytest.mark.parametrize("batch_size", [None, 7, 1, 400])
def test_loss_and_accuracy_do_not_depend_on_the_batches(batch_size):
    data = load_data("digits", "test")
    net = model()
    found = evaluate(net, data, batch_size=batch_size)
    with torch.no_grad():
        outputs = net.eval()(data.images.double())
    assert found.loss == pytest.approx(float(functional.cross_entropy(outputs, data.labels)))
    hits = (outputs.argmax(1) == data.labels).double().mean()
    assert found.accuracy == pytest.approx(float(hits))
    assert found.num_samples == 360


def test_any_kind_of_data():
    data = load_data("digits", "test").to(dtype=torch.float64)
    net = model()
    expected = evaluate(net, data)
    pair = (data.images, data.labels)
    dataset = torch.utils.data.TensorDataset(*pair)
    for same in (pair, data.batches(64), torch.utils.data.DataLoader(dataset, 64), [pair]):
        found = evaluate(net, same)
        assert found.loss == pytest.approx(expected.loss, rel=1e-12)
        assert (found.accuracy, found.num_samples) == (expected.accuracy, 360)


def test_conventions_are_told():
    found = evaluate(model(), "digits", "mse", batch_size=500, seed=3)
    assert found.convention["loss"].startswith("mse")
    assert found.convention["statistics"].startswith("running: evaluation mode, stored")
    assert found.convention["samples"] == f"{found.num_samples} in 3 batches"
    assert found.convention["seed"] == 3
    assert Evaluation.from_json(found.to_json()) == found
    bare = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False))
    told = evaluate(bare, (torch.randn(8, 64), torch.arange(8))).convention
    assert "statistics of the batch in 1" in told["statistics"]
    assert told["samples"] == "8 in 1 batch"


def test_other_losses():
    data = load_data("digits", "test").to(dtype=torch.float64)
    net = model()
    with torch.no_grad():
        outputs = net.eval()(data.images)
    squares = 0.5 * (outputs - data.one_hot()).square().sum(1).mean()
    labelled = evaluate(net, data, "mse", batch_size=50)
    assert labelled.loss == pytest.approx(float(squares))
    assert labelled.accuracy == evaluate(net, data).accuracy
    summed = evaluate(net, data, nn.CrossEntropyLoss(reduction="sum"), batch_size=50)
    assert summed.loss == pytest.approx(evaluate(net, data).loss)
    targets = torch.randn(360, 10)
    assert evaluate(net, (data.images, targets), nn.MSELoss()).accuracy is None


def test_nothing_is_left_behind():
    net = model().train()
    net[2].eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    modes, rng = [m.training for m in net.modules()], torch.get_rng_state()
    evaluate(net, load_data("digits", "test"))
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(p.grad is None for p in net.parameters())
