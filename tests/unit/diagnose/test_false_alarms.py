"""What healthy networks were once warned of, and what was said of broken ones that cannot help."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.data import load_data
from normscope.diagnose import examine
from normscope.diagnose.what_if import promising_changes

CLASSES = 10


def digits(count=128):
    data = load_data("digits")
    return data.images[:count].float(), data.labels[:count]


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def mlp(width=128, layers=4, norm=None):
    """He's initial weights."""
    made: list[nn.Module] = [nn.Flatten()]
    for before in [64, *[width] * (layers - 1)]:
        made += [nn.Linear(before, width), *([norm(width)] if norm else []), nn.ReLU()]
    net = nn.Sequential(*made, nn.Linear(width, CLASSES))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def trained(net, steps, lr=0.05):
    x, y = digits(1437)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    for _ in range(steps):
        chosen = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return net


@pytest.fixture(autouse=True)
def _single_precision(_float64_and_seed):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)


def the(found, rule):
    [one] = [f for f in found.findings if f.rule == rule]
    return one


@pytest.mark.parametrize("momentum", [0.1, 0.01, None])
@pytest.mark.parametrize("updates", [0, 1, 5])
def test_a_few_passes_in_train_mode_are_no_disagreement(updates, momentum):
    net, (x, y) = cnn(), digits()
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = momentum
    for _ in range(updates):
        net(x[:64])
    one = the(examine(net, (x, y)), "running-statistics")
    assert one.severity == "ok", one
    rate = 1 if momentum is None else momentum
    if (1 - rate) ** updates > 0.05:
        assert one.title == "Running statistics have had too few updates yet"
        assert one.evidence[0].value == pytest.approx((1 - rate) ** updates)
    else:
        assert one.title == "Running statistics fit"


def test_trained_weights_without_their_statistics_are_a_problem():
    """An average of the weights that leaves out the buffers."""
    net = cnn()
    average = copy.deepcopy(net)
    trained(net, 60)
    for mine, other in zip(average.parameters(), net.parameters(), strict=True):
        mine.data.copy_(other.data)
    found = examine(average, digits())
    assert (found.findings[0].rule, found.worst) == ("running-statistics", "problem")
    assert the(examine(net, digits()), "running-statistics").severity == "ok"


# ---- dead units


def test_dead_units_are_counted_on_more_samples_where_there_are_more():
    net, (x, y) = trained(mlp(), 100, 0.02), digits(1437)
    few = examine(net, (x[:128], y[:128]))["activations"]
    assert few.num_samples == 128
    suspect = max(s.dying.mean() for s in few.rectified)
    assert suspect > 0.1
    found = examine(net, (x, y))
    assert found["activations"].num_samples == 512
    assert max(s.dying.mean() for s in found["activations"].rectified) < suspect
    assert not found.above("warning"), found.summary()
    assert examine(net, (x, y), num_batches=1)["activations"].num_samples == 128
    loader = ((x[i : i + 128], y[i : i + 128]) for i in range(0, 1024, 128))
    assert examine(net, loader)["activations"].num_samples == 128  # it can be read only once


def test_the_scale_of_zero_is_named():
    for place in (4, 8):
        net = cnn()
        nn.init.zeros_(net[place].weight)
        found = examine(net, digits())
        [finding] = found.above("warning")  # the rest follows from it
        assert (finding.rule, finding.layer) == ("zero-gamma", str(place))


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.LayerNorm(1)])
def test_a_constant_before_the_last_layer_is_found(norm):
    """A last layer that starts at zero is none."""
    body = list(mlp(32, 2))[:-1]
    if norm.normalized_shape == (1,):
        head = [nn.Linear(32, 1), norm, nn.Linear(1, CLASSES)]
    else:
        head = [norm, nn.Linear(32, CLASSES)]
        nn.init.zeros_(norm.weight)
    nn.init.ones_(norm.bias)
    [one] = examine(nn.Sequential(*body, *head), digits()).above("warning")
    assert one.rule == ("zero-gamma" if norm.normalized_shape == (32,) else "norm-axis")
    zero = mlp(32, 2, nn.LayerNorm)
    nn.init.zeros_(zero[-1].weight)
    assert not examine(zero, digits()).above("warning")


# ---- weights that dominate their gradients


@pytest.mark.parametrize("optimizer", ["adam", "adamw", torch.optim.AdamW])
def test_steps_of_adam_do_not_depend_on_the_size_of_gradients(optimizer):
    net = mlp(norm=nn.BatchNorm1d)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight *= 1e4
    given = optimizer if isinstance(optimizer, str) else optimizer(net.parameters())
    assert the(examine(net, digits()), "weight-domination").severity == "note"
    rules = {f.rule for f in examine(net, digits(), optimizer=given).findings}
    assert "weight-domination" not in rules


class Branches(nn.Module):
    """A stream to which branches are added, scaled by a small factor that is learned."""

    def __init__(self, scale=1e-6):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
            for _ in range(4)
        )
        self.scales = nn.ParameterList(torch.full((64,), scale) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for branch, scale in zip(self.branches, self.scales, strict=True):
            x = x + scale * branch(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_branches_that_start_small_need_nothing(optimizer):
    found = examine(Branches(), digits(1437), optimizer=optimizer, preset="standard")
    assert not found.above("warning"), found.summary()
    for finding in found.above("note"):
        assert finding.rule not in ("weight-domination", "ill-conditioned-layer") or (
            "LayerScale" in finding.advice
        )


# ---- a norm before the last layer


@pytest.mark.parametrize(
    ("norm", "straight", "expected"),
    [
        (nn.BatchNorm1d, False, ("norm-before-last",)),
        (nn.LayerNorm, False, ("norm-before-last=layer",)),
        (nn.RMSNorm, False, ("norm-before-last=rms",)),
        (None, False, ("norm-before-last",)),
        (nn.LayerNorm, True, ()),
    ],
)
def test_a_norm_before_the_last_layer_is_of_the_kind_of_the_others(norm, straight, expected):
    net = mlp(32, 3, norm)
    if straight:
        net[-2] = nn.Identity()  # no activation between norm and last layer
    layout = examine(net, digits())["layout"]
    assert layout.before_last == expected
    changes = promising_changes(layout)
    assert [c for c in changes if c.startswith("norm-before")] == list(expected)
    for change in expected:
        assert ns.apply_transform(net, change)(digits()[0]).shape == (128, CLASSES)


def test_large_inputs_straight_from_a_norm_are_no_matter_of_another_norm():
    net = mlp(32, 3, nn.LayerNorm)
    net[-2] = nn.Identity()
    nn.init.constant_(net[-3].weight, 5.0)
    one = the(examine(net, digits()), "last-layer-unnormalized")
    assert (one.severity, "gamma" in one.advice, "norm-before" in one.advice) == (
        "note", True, False)  # fmt: skip
