"""Sharpness along a training run: the numbers of `top_eigenvalues`, and nothing of it changes."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import InputError
from normscope.train.monitor import Monitor, SharpnessProbe


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def samples(n=32):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 4, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


def steps(model, optimizer, count, each=lambda: None):
    x, y = samples()
    for _ in range(count):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        each()  # running statistics have moved by now
        optimizer.step()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def risk_of(model, statistics="batch"):
    return ns.Risk(model, *samples(), loss="cross_entropy", statistics=statistics)


@pytest.mark.parametrize("statistics", ["batch", "running", "frozen"])
@pytest.mark.parametrize("matrix", ["hessian", "fisher"])
def test_the_numbers_of_top_eigenvalues(statistics, matrix):
    net, twin, expected = network(), network(), []
    probe = SharpnessProbe(risk_of(net, statistics), matrix=matrix)
    with Monitor(net, every=2, probes=["activations", probe]) as monitor:
        steps(net, sgd(net), 5)

    def each():
        made = getattr(ns, matrix)(risk_of(twin, statistics))
        expected.append(ns.top_eigenvalues(made).largest)

    steps(twin, sgd(twin), 5, each)
    log = monitor.result()
    assert log.of("sharpness").steps.tolist() == [0, 2, 4]
    assert log.of("sharpness").values.tolist() == expected[::2]  # to the last bit
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), twin.state_dict().values(), strict=True)
    )
    assert matrix in log.meaning["sharpness"].lower()
    assert statistics in log.meaning["sharpness"]


def test_training_is_the_same_to_the_last_bit():
    """Random numbers, gradients and momentum buffers included."""
    found = []
    for watched in (False, True):
        net = nn.Sequential(*network(), nn.Dropout(0.3))
        optimizer, torch_state = sgd(net, momentum=0.9), torch.manual_seed(7)
        probe = SharpnessProbe(risk_of(net)) if watched else "updates"
        with Monitor(net, every=1, probes=probe):
            steps(net, optimizer, 4)
        moved = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
        gradients = [p.grad for p in net.parameters()]
        found.append([*net.state_dict().values(), *gradients, *moved, torch_state.get_state()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_number_of_an_examination():
    net, pair = network(), samples(128)
    found = ns.examine(net, pair, "cross_entropy")["sharpness"]
    risk = ns.Risk.from_data(net, pair, "cross_entropy", num_batches=1, statistics="batch")
    probe = SharpnessProbe(risk, matrix="fisher", tol=0.05)
    with Monitor(net, every=1, probes=probe) as monitor:
        steps(net, sgd(net), 1)
    assert monitor.result().of("sharpness").values.tolist() == [found.largest]


def test_closed_form_and_dense_hessian():
    """f = a b x with half the squared error: the Hessian of (a, b) is known."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    x, y = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[3.0], [1.0]]).double()
    risk = ns.Risk(net, x, y, loss="mse", statistics="running")
    optimizer, expected, dense = sgd(net, lr=0.01), [], []

    def loss(a, b):
        return (a * b * x - y).square().sum() / 4

    with Monitor(net, every=1, probes=SharpnessProbe(risk, tol=1e-9)) as monitor:
        for _ in range(4):
            a, b = (layer.weight.item() for layer in net)
            s, t = (x * x).mean().item(), (x * y).mean().item()
            off = 2 * a * b * s - t
            expected.append(((b * b + a * a) * s + math.hypot((b * b - a * a) * s, 2 * off)) / 2)
            full = torch.autograd.functional.hessian(loss, tuple(torch.tensor([a, b]).double()))
            dense.append(np.linalg.eigvalsh(np.array([[float(h) for h in row] for row in full])))
            optimizer.zero_grad()
            risk_now = (net(x) - y).square().sum() / 4
            risk_now.backward()
            optimizer.step()
    found = monitor.result().of("sharpness").values
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    np.testing.assert_allclose(found, [values[-1] for values in dense], rtol=1e-7)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [20.0, 10.0]),
        ({"momentum": 0.9}, [38.0, 19.0]),
        ({"momentum": 0.9, "nesterov": True}, None),
        ({"momentum": 0.9, "dampening": 0.5}, None),
    ],
)
def test_the_limit_of_the_optimizer(options, expected):
    net = network()
    optimizer = sgd(net, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=2.0)
    with Monitor(net, every=1, probes=SharpnessProbe(risk_of(net))) as monitor:
        for _ in range(2):
            steps(net, optimizer, 1)
            schedule.step()
    log = monitor.result()
    if expected is None:
        assert "sharpness_limit" not in log.quantities
    else:
        np.testing.assert_allclose(log.of("sharpness_limit").values, expected)


def test_no_limit_for_adam_or_two_rates():
    for make in (
        lambda net: torch.optim.Adam(net.parameters()),
        lambda net: torch.optim.SGD(
            [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[3].parameters()}], lr=0.2
        ),
    ):
        net = network()
        with Monitor(net, every=1, probes=SharpnessProbe(risk_of(net))) as monitor:
            steps(net, make(net), 1)
        assert monitor.result().quantities == ("sharpness",)


def test_measurements_inside_the_loop_are_no_passes_of_the_training():
    """Neither those of the probe nor those a user makes."""
    alone, together = network(), network()
    with Monitor(alone, every=1, probes="activations") as first:
        steps(alone, sgd(alone), 2)
    probe = SharpnessProbe(risk_of(together))
    with Monitor(together, every=1, probes=["activations", probe]) as second:
        steps(together, sgd(together), 2, lambda: ns.activations(together, samples()))
    for series in first.result().series:
        again = second.result().of(series.quantity, series.layer)
        assert again.values.tolist() == series.values.tolist()


def test_seldom():
    net = network()
    with Monitor(net, every=1, probes=["updates", SharpnessProbe(risk_of(net), every=3)]) as found:
        steps(net, sgd(net), 7)
    log = found.result()
    assert log.of("sharpness").steps.tolist() == [0, 3, 6]
    assert log.of("weight_norm", "0").steps.tolist() == list(range(7))


def test_a_diverged_network_is_nan_with_a_reason():
    net = network()
    probe = SharpnessProbe(risk_of(net))
    with torch.no_grad():
        net[0].weight.fill_(math.nan)
    with (
        pytest.warns(UserWarning, match="SharpnessProbe failed, and training goes on"),
        Monitor(net, every=1, probes=probe) as monitor,
    ):
        steps(net, sgd(net), 2)
    log = monitor.result()
    assert np.isnan(log.of("sharpness").values).all()
    assert "not finite" in log.troubles[0].reason


def test_bad_input():
    net = network()
    with pytest.raises(InputError, match=r"SharpnessProbe\(ns\.Risk"):
        Monitor(net, probes="sharpness")
    with pytest.raises(InputError, match="takes a Risk"):
        SharpnessProbe(net)
    with pytest.raises(InputError, match="Unknown matrix 'kfac'"):
        SharpnessProbe(risk_of(net), matrix="kfac")
    with pytest.raises(InputError, match="every"):
        SharpnessProbe(risk_of(net), every=0)
    other = SharpnessProbe(risk_of(network()))
    with (
        pytest.warns(UserWarning, match="risk of another model"),
        Monitor(net, every=1, probes=["updates", other]) as monitor,
    ):
        steps(net, sgd(net), 1)
    assert "sharpness" not in monitor.result().quantities
