"""Ablation of units against loops with hooks of our own, closed forms and all subsets."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import InputError
from normscope.measure import ablation
from normscope.measure.probes.ablation import unit_order
from normscope.results import Ablation


def network(*, inplace=False, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace), nn.Flatten(), nn.Linear(24, 5),
        nn.ReLU(inplace), nn.Linear(5, 3),
    )  # fmt: skip


def data(n=60):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, 4, 4, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


def by_hooks(net, x, y, gone, values):
    """Accuracy and loss with units ``gone`` by place, through hooks of our own."""

    def hook(name):
        def changed(_, args, out):
            out = out.clone()
            for unit in gone[name]:
                out[:, unit] = values[name][unit]
            return out

        return changed

    handles = [net.get_submodule(name).register_forward_hook(hook(name)) for name in gone]
    with torch.no_grad():
        outputs = net.eval()(x)
    for handle in handles:
        handle.remove()
    right = (outputs.argmax(1) == y).double().mean()
    return float(right), float(functional.cross_entropy(outputs, y))


@pytest.mark.parametrize("replace", ["zero", "mean"])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("layers", "places"),
    [(None, ["2", "5"]), (["0", "5"], ["0", "5"]), ("1", ["1"]), (2, ["5"]), ("[25]", ["2", "5"])],
)
def test_against_a_loop_with_hooks(replace, inplace, layers, places):
    net, (x, y) = network(inplace=inplace), data()
    values = {}
    for place in places:  # each with the rest of the network behind it
        head = network()[: int(place) + 1].eval()
        out = head(x).detach()
        mean = out.mean((0, 2, 3)) if out.ndim == 4 else out.mean(0)
        values[place] = mean if replace == "mean" else torch.zeros_like(mean)
    found = ablation(
        net, (x, y), batch_size=20, layers=layers, shares=[0, 0.3, 0.5, 1], orders=3, seed=4,
        replace=replace,
    )  # fmt: skip
    assert list(found.layers) == places
    for order, point in np.ndindex(3, 4):
        gone = {}
        for place in places:
            units = len(values[place])
            count = math.floor(found.shares[point] * units + 0.5)
            gone[place] = unit_order(4, order, place, units)[:count]
        accuracy, loss = by_hooks(network(), x, y, gone, values)
        assert found.accuracy[order, point] == pytest.approx(accuracy)
        assert found.loss[order, point] == pytest.approx(loss, rel=1e-5)


def test_closed_form_of_a_linear_network():
    """f = sum of n equal units: without a share s it is (1 - s) f, and the loss (s f)^2 / 2."""
    net = nn.Sequential(nn.Linear(1, 8, bias=False), nn.Linear(8, 1, bias=False)).double()
    for layer in net:
        nn.init.constant_(layer.weight, 0.5)  # f(x) = 2 x
    x = torch.linspace(-1, 1, 16).double()[:, None]
    found = ablation(net, (x, 2 * x), "mse", layers="0", shares=np.arange(9) / 8, orders=2)
    expected = 2 * float(x.square().mean()) * found.shares**2
    np.testing.assert_allclose(found.loss, np.stack([expected] * 2), atol=1e-14)
    assert np.isnan(found.accuracy).all()
    # the trapezoids of s^2 with steps h: 1/3 + h^2 / 6
    area = 2 * float(x.square().mean()) * (1 / 3 + 1 / 64 / 6)
    assert found.area("loss") == (pytest.approx(area), 0)
    assert "accuracy" not in found.summary()


def test_mean_over_orders_is_that_of_all_subsets():
    net, (x, y) = network(), data()
    zeros = {"5": torch.zeros(5)}
    subsets = [
        by_hooks(network(), x, y, {"5": s}, zeros) for s in itertools.combinations(range(5), 2)
    ]
    found = ablation(net, (x, y), batch_size=60, layers="5", shares=[0.4], orders=200)
    for mean, error, column in (
        (found.mean_accuracy[0], found.accuracy_error[0], 0),
        (found.mean_loss[0], found.loss_error[0], 1),
    ):
        assert abs(mean - np.mean(subsets, axis=0)[column]) < 4 * error


def test_nothing_ablated_is_evaluate_and_all_ablated_is_the_same_in_every_order():
    net, pair = network(), data()
    ns.fit(net, pair, "cross_entropy", lr=0.1, steps=5)
    found = ablation(net, pair, batch_size=20, orders=3)
    alone = ns.evaluate(net, pair, batch_size=20)
    assert set(found.accuracy[:, 0]) == {alone.accuracy}
    assert set(found.loss[:, 0]) == {alone.loss}
    assert len(set(found.loss[:, -1])) == 1
    assert found.loss_error[0] == found.loss_error[-1] == 0


def test_functions_that_work_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.a(x)
            h.relu_()  # what it returns is not used
            return self.b(h)

    net, x, y = InPlace(), torch.randn(20, 3), torch.randint(2, (20,))
    found = ablation(net, (x, y), shares=[1], orders=1)
    constant = net.b.bias.detach().expand(20, 2)
    assert found.loss[0, 0] == pytest.approx(float(functional.cross_entropy(constant, y)))


def test_a_branch_beside_the_units_is_not_touched():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(x + torch.relu(self.a(x)))

    net, x, y = Residual(), torch.randn(20, 3), torch.randint(2, (20,))
    found = ablation(net, (x, y), shares=[0, 1], orders=1)
    assert found.loss[0, 1] == pytest.approx(float(functional.cross_entropy(net.b(x).detach(), y)))


def test_inputs_and_outputs_are_no_units():
    layers = nn.ReLU(), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0)
    net, x, y = nn.Sequential(*layers), torch.randn(20, 3), torch.rand(20)
    found = ablation(net, (x, y), nn.MSELoss(), shares=[0, 1], orders=1)
    assert found.layers == ("2",)
    constant = torch.sigmoid(net[3].bias.detach()).expand(20)
    assert found.loss[0, 1] == pytest.approx(float(functional.mse_loss(constant, y)))
    asked = ablation(net, (x, y), nn.MSELoss(), shares=[1], orders=1, layers=["0", 2])
    assert asked.layers == ("0", "4")
    assert asked.loss[0, 0] == pytest.approx(float(y.square().mean()))


def test_loss_fn_gives_the_loss_alone():
    net, (x, y) = network(), data()
    named = ablation(net, [(x, y)], shares=[0, 0.5], orders=2)
    found = ablation(
        net, [(x, y)], loss_fn=lambda m, b: functional.cross_entropy(m(b[0]), b[1]),
        shares=[0, 0.5], orders=2,
    )  # fmt: skip
    np.testing.assert_allclose(found.loss, named.loss, rtol=1e-6)
    assert np.isnan(found.accuracy).all()


def test_areas_and_errors():
    accuracy = np.array([[0.8, 0.6, 0.2], [0.8, 0.4, 0.2]])
    found = Ablation(np.array([0, 0.5, 1]), accuracy, 2 * accuracy, ("a",), (4,), "zero", 9, 0)
    # areas 0.55 and 0.45
    assert found.area() == (pytest.approx(0.5), pytest.approx(0.05))
    assert found.area("loss") == (pytest.approx(1.0), pytest.approx(0.1))
    assert found.area(relative=True) == (pytest.approx(0.625), pytest.approx(0.0625))
    np.testing.assert_allclose(found.accuracy_error, [0, 0.1, 0])
    frame = found.to_frame()
    assert list(frame["mean_accuracy"]) == pytest.approx([0.8, 0.5, 0.2])
    assert "area under the curve 0.5 +- 0.05" in found.summary()
    assert len(found.chart().to_dict()["hconcat"]) == 2
    assert Ablation.from_json(found.to_json()).area() == found.area()
    with pytest.raises(InputError, match="Unknown quantity 'auc'"):
        found.area("auc")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"shares": [0.5, 0.2]}, r"each above the one before. Got \[0.5, 0.2\]"),
        ({"shares": [0, 20]}, r"from 0 .* to 1"),
        ({"shares": []}, "shares"),
        ({"shares": 0.5}, "shares must be a list"),
        ({"orders": 0}, "orders"),
        ({"replace": "noise"}, "Unknown replace 'noise'"),
        ({"layers": "nope"}, "No layer of this network is reached under 'nope'"),
        ({"layers": 3}, "layers=3 reaches no hidden activation.*by their names"),
        ({"layers": ["5", 3]}, "layers=3 reaches no hidden activation"),
        ({"statistics": "eval"}, "Unknown statistics 'eval'"),
    ],
)
def test_bad_input(wrong, says):
    with pytest.raises(InputError, match=says):
        ablation(network(), data(), **wrong)


def test_a_network_without_activations():
    with pytest.raises(InputError, match=r"reaches no hidden activation.*: 0, \.\.\."):
        ablation(nn.Sequential(nn.Linear(3, 2)), (torch.randn(4, 3), torch.zeros(4).long()))
