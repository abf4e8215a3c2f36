"""Landscapes: directions, grids, divergence as a result, what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from cases import BY_NAME, ROSTER, mlp
from normscope.errors import InputError, MeasurementError
from normscope.measure.divergence import Divergence
from normscope.measure.probes.landscape import landscape
from normscope.results.landscape import Landscape

GENERATOR = torch.Generator().manual_seed(2)
X = torch.randn(12, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(2, (12,), generator=GENERATOR)


def deep(depth=6, norm=False):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(3, 3), *([nn.BatchNorm1d(3)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(3, 2))


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_every_network_has_one(case):
    model = case.build()
    found = landscape(
        model, [(case.inputs, case.targets)], case.loss,
        statistics=case.statistics, direction="random", distances=[0, 0.1],
    )  # fmt: skip
    assert found.loss.shape == (2,)
    assert found.initial_loss == found.loss[0]
    assert np.isfinite(found.loss).all()
    assert found.mean_abs.shape == (len(found.layers), 2)


def test_a_gradient_step_is_what_sgd_does():
    model = mlp()
    found = landscape(model, (X, Y), "cross_entropy", distances=[0.0, 0.3])
    loss = nn.functional.cross_entropy(model(X), Y)
    assert found.loss[0] == pytest.approx(float(loss.detach()), rel=1e-12)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    with torch.no_grad():
        after = float(nn.functional.cross_entropy(model(X), Y))
        hidden = model[0](X)
    assert found.loss[1] == pytest.approx(after, rel=1e-12)
    assert found.mean_abs[0, 1] == pytest.approx(float(hidden.mean(0).abs().mean()), rel=1e-12)
    assert found.variance[0, 1] == pytest.approx(float(hidden.var(0, correction=0).mean()))


def test_the_way_from_one_state_to_another():
    before, after = mlp(), mlp()
    found = landscape(
        mlp(), (X, Y), "cross_entropy", start=before.state_dict(), end=after.state_dict()
    )
    assert found.distances.tolist() == np.linspace(0, 1, 21).tolist()
    with torch.no_grad():
        for index, model in ((0, before), (-1, after)):
            expected = float(nn.functional.cross_entropy(model(X), Y))
            assert found.loss[index] == pytest.approx(expected, rel=1e-12)
    assert found.directions == ("the way to the end state",)


def test_buffers_of_a_state_are_passed_over_and_parts_will_do():
    model = BY_NAME["bn1d-batch-ce"].build()
    state = {name: value + 0.1 for name, value in model.state_dict().items()}
    found = landscape(model, (X, Y), "cross_entropy", end=state, distances=[1.0])
    part = {name: torch.full_like(p, 0.1) for name, p in model.named_parameters()}
    same = landscape(model, (X, Y), "cross_entropy", direction=part, distances=[1.0])
    assert found.loss[0] == pytest.approx(same.loss[0], rel=1e-12)
    only = {"0.weight": part["0.weight"]}
    other = landscape(model, (X, Y), "cross_entropy", direction=only, distances=[1.0])
    assert other.loss[0] != same.loss[0]


def test_several_batches_are_averaged_each_with_its_own_statistics():
    model = BY_NAME["bn1d-batch-ce"].build()
    halves = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    direction = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    both, *parts = (
        landscape(model, part, "cross_entropy", direction=direction, distances=[0, 0.5])
        for part in (halves, *([half] for half in halves))
    )
    np.testing.assert_allclose(both.loss, (parts[0].loss + parts[1].loss) / 2, rtol=1e-12)


def test_frozen_statistics_are_those_of_the_start():
    model = BY_NAME["bn1d-frozen"].build()
    y = torch.randn(12, 2)
    step = {"0.weight": torch.ones(4, 3)}
    found = landscape(model, (X, y), "mse", direction=step, distances=[0, 0.4], statistics="frozen")
    with torch.no_grad():
        first, norm, act, last = model
        h = first(X)
        mean, var = h.mean(0), h.var(0, correction=0)
        moved = h + 0.4 * X.sum(1, keepdim=True)
        unit = (moved - mean) / (var + norm.eps).sqrt()
        out = last(act(norm.weight * unit + norm.bias))
        expected = float(0.5 * (out - y).square().sum(1).mean())
    assert found.loss[1] == pytest.approx(expected, rel=1e-12)


def test_filters_of_random_directions_are_as_long_as_those_of_the_network():
    model = BY_NAME["bn2d-batch"].build()
    case = BY_NAME["bn2d-batch"]
    data = (case.inputs, case.targets)
    plane = landscape(model, data, "mse", direction=("random", "random"), distances=[-1, 0, 1])
    assert plane.loss.shape == (3, 3)
    assert plane.loss[1, 1] == pytest.approx(plane.initial_loss)
    line = landscape(model, data, "mse", direction="random", distances=[-1, 0, 1])
    np.testing.assert_allclose(line.loss, plane.loss[:, 1], rtol=1e-12)
    # A direction scaled filter by filter does not depend on its own scale, and moves no bias.
    generator = torch.Generator().manual_seed(0)
    step = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
    large = {n: 1e3 * v for n, v in step.items()}
    no_bias = {n: v for n, v in step.items() if n in ("0.weight", "4.weight")}
    found = [
        landscape(model, data, "mse", direction=d, distances=[1], normalize="filter").loss[0]
        for d in (step, large, no_bias)
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    expected = {}
    for name in no_bias:
        own = dict(model.named_parameters())[name].detach()
        rows = step[name].flatten(1)
        unit = rows / rows.norm(dim=1, keepdim=True)
        expected[name] = (unit * own.flatten(1).norm(dim=1, keepdim=True)).view_as(own)
    by_hand = landscape(model, data, "mse", direction=expected, distances=[1])
    assert found[0] == pytest.approx(by_hand.loss[0], rel=1e-12)


def test_seeds_give_directions():
    model = mlp()
    losses = [
        landscape(model, (X, Y), "cross_entropy", direction="random", distances=[1], seed=s).loss[0]
        for s in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_divergence_is_located_and_overflow_is_a_result():
    model = deep(8).float()
    x, y = X.float() * 10, Y
    step = {
        n: torch.eye(p.shape[0], p.shape[1]) for n, p in model.named_parameters() if p.ndim == 2
    }
    distances = [0, 1, 10, 100, 1e3, 1e4, 1e6]
    found = landscape(model, (x, y), "cross_entropy", direction=step, distances=distances)
    low, high = found.diverges_between
    assert 0 < high - low <= (1e3 - 1) / 1024
    rule = Divergence()
    inside, outside = landscape(
        model, (x, y), "cross_entropy", direction=step, distances=[low, high]
    ).loss
    assert not rule.reason(inside, found.initial_loss)
    assert rule.reason(outside, found.initial_loss)
    assert not np.isfinite(found.loss[-1])
    assert found.first_nonfinite[0] == ""
    overflown = found.first_nonfinite[-1]
    assert overflown in found.layers
    k = found.layers.index(overflown)
    assert np.isinf(found.variance[k:, -1]).all()
    assert np.isfinite(found.variance[:k, -1]).all()
    assert f"overflow from {overflown!r} on" in found.summary()
    assert len(found.layers) == len(found.coverage.ok) == 9


def test_a_start_that_is_not_finite():
    model = mlp()
    state = model.state_dict()
    state["2.weight"] = torch.full_like(state["2.weight"], torch.nan)
    found = landscape(model, (X, Y), "cross_entropy", end=state, distances=[0, 0.5, 1])
    assert np.isfinite(found.loss[0])
    assert np.isnan(found.loss[1:]).all()
    assert found.diverges_between[1] < 1e-3
    with pytest.raises(MeasurementError, match="gradient at the start is not finite"):
        landscape(model, (X, Y), "cross_entropy", start=state)


def test_layers_are_chosen_and_left_out_ones_are_named():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    found = landscape(Unused(), (X, Y), "cross_entropy", distances=[0, 1])
    assert found.layers == ("used",)
    [left] = found.coverage.left_out
    assert (left.name, left.reason) == ("spare", "never reached in the forward pass")
    frame = found.to_frame()
    assert frame.layer.tolist() == ["used", "used", "spare"]
    assert frame.status.tolist() == ["ok", "ok", "skipped"]
    one = landscape(deep(), (X, Y), "cross_entropy", distances=[0, 1], layers=[2, "12"])
    assert one.layers == ("2", "12")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"direction": "gradeint"}, "direction must be 'gradient'"),
        ({"direction": ("random",) * 3}, "one or two directions"),
        ({"direction": {"0.wieght": torch.ones(4, 3)}}, "Did you mean '0.weight'"),
        ({"direction": {"0.weight": torch.ones(3, 4)}}, "has shape"),
        ({"direction": {}}, "not one parameter"),
        ({"start": [1]}, "start must map names"),
        ({"end": {"0.weight": torch.ones(4, 3)}, "direction": "random"}, "either direction"),
        ({"distances": []}, "finite numbers"),
        ({"distances": [float("nan")]}, "finite numbers"),
        ({"distances": ["a"]}, "finite numbers"),
        ({"distances": 1.0}, "finite numbers"),
        ({"normalize": "layer"}, "normalize must be"),
        ({"statistics": "no"}, "Unknown statistics"),
        ({"layers": "no"}, "No layer"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        landscape(mlp(), (X, Y), "cross_entropy", **options)


def test_bad_data_is_refused():
    with pytest.raises(InputError, match="no targets"):
        landscape(mlp(), [(X, None)], "cross_entropy")
    with pytest.raises(InputError, match="no batches"):
        landscape(mlp(), [], "cross_entropy")
    with pytest.raises(MeasurementError, match="cannot be run on its data"):
        landscape(mlp(), (X[:, :2], Y), "cross_entropy")


def test_a_start_that_is_not_finite_is_named():
    broken = mlp()
    with torch.no_grad():
        broken[2].weight[0, 0] = torch.nan
    with pytest.raises(MeasurementError, match="first layer with a non-finite output is '2'"):
        landscape(broken, (X, Y), "cross_entropy")


def test_a_loss_function_of_the_model():
    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    model = mlp()
    found = landscape(model, [{"x": X, "y": Y}], loss_fn=loss_fn, distances=[0, 0.1])
    plain = landscape(model, (X, Y), "cross_entropy", distances=[0, 0.1])
    np.testing.assert_allclose(found.loss, plain.loss, rtol=1e-12)


def test_the_record_round_trips_and_describes_itself():
    for direction in ("gradient", ("random", "gradient")):
        found = landscape(mlp(), (X, Y), "cross_entropy", direction=direction, distances=[0, 0.1])
        assert Landscape.from_json(found.to_json()) == found
        assert "at the start" in found.summary()
        assert repr(found).startswith("Landscape(")
    with pytest.raises(InputError, match="two axes"):
        _ = found.distances
    line = landscape(mlp(), (X, Y), "cross_entropy")
    assert line.largest_decrease > 0
    assert (line.growth[:, 0] == 1).all()
