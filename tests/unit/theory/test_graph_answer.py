"""What a prediction of theory="graph" says: levels, cost, widths, flags, terms."""

import json

import numpy as np
import pytest

import normscope as ns
from graph_networks import residual_mlp, resnet
from normscope.errors import InputError, TheoryError
from normscope.results import Prediction
from normscope.results.gradient_kernel import overlap_factor
from normscope.theory.graph import nodes as n
from normscope.theory.graph.answer import planned_cost, predict_graph

WIDE = ns.mlp([30, 60, 60, 60, 3], norm="batch")


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_a_spec_gives_the_same_answer_at_each_level() -> None:
    found = {
        level: ns.predict(WIDE, samples=200, theory="graph", level=level)
        for level in ("homogeneous", "positions", "gram")
    }
    assert found["homogeneous"].trace == pytest.approx(found["positions"].trace, rel=1e-6)
    assert found["gram"].trace == pytest.approx(found["homogeneous"].trace, rel=0.05)
    assert ns.predict(WIDE, samples=200, theory="graph").level == "gram"
    assert ns.predict(WIDE, samples=2000, theory="graph").level == "homogeneous"
    assert ns.predict(WIDE, theory="graph").samples is None


def test_infinitely_many_samples_are_the_limit() -> None:
    for spec in (WIDE, ns.mlp([30, 60, 60, 3], bias_variance=0.3)):
        limit = ns.predict(spec, theory="graph")
        known = ns.predict(spec, theory="corrected")
        assert limit.lambda_max == pytest.approx(known.lambda_max, rel=1e-6)
        assert limit.trace == pytest.approx(known.trace, rel=1e-6)


def test_terms_add_up() -> None:
    made = ns.predict(WIDE, data=gaussian(40, 30), theory="graph", parameters="all")
    assert made.level == "gram"
    assert made.samples == 40
    assert made.per_layer.sum() == pytest.approx(made.lambda_max)
    assert sum(made.per_kind.values()) == pytest.approx(made.lambda_max)
    parts = made.contributions
    assert sum(p.trace for p in parts) == pytest.approx(made.trace)
    assert sum(p.mean_direction for p in parts) == pytest.approx(made.mean_direction)
    assert sum(p.parameters for p in parts) == made.num_parameters == WIDE.num_parameters("all")
    assert made.layers == ("layer1", "layer2", "layer3", "layer4")
    assert made.lower <= made.lambda_max <= made.upper
    assert made.critical_lr(0.9) == pytest.approx(3.8 / made.lambda_max)
    assert len(made.to_frame()) == WIDE.depth
    again = Prediction.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made


def test_powers_of_gradients_are_the_recursion() -> None:
    spec = ns.mlp([30, 60, 50, 3], bias_variance=0.3, activation="tanh")
    made = ns.predict(spec, samples=50, theory="graph", level="homogeneous")
    known = ns.predict(spec, samples=50, theory="corrected")
    for name in ("q", "q_st", "qhat", "qhat_st", "qtilde"):
        assert made.order_parameters[name] == pytest.approx(
            known.order_parameters[name], rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize("level", ["homogeneous", "gram"])
def test_one_pass_gives_all_widths(level: str) -> None:
    def of(width: int) -> Prediction:
        graph = residual_mlp((10,), width, 2, 4, style="post")
        return predict_graph(graph, data=gaussian(12, 10), level=level)

    scaled, wide = of(20).scaled(width=3), of(60)
    for name in ("lambda_max", "lambda_max_split", "mean_direction", "trace", "lower", "upper"):
        assert getattr(scaled, name) == pytest.approx(getattr(wide, name), rel=1e-9), name
    assert scaled.num_parameters == wide.num_parameters
    assert scaled.width == 3
    with pytest.raises(TheoryError, match="predict the wider network"):
        ns.predict(WIDE, theory="corrected").scaled(width=2)
    with pytest.raises(InputError, match="width must be a number above 0"):
        of(20).scaled(width=0)


def test_a_leading_bulk_makes_a_lower_estimate() -> None:
    centred = residual_mlp((50,), 200, 3, activation="tanh", sw2=1.0)
    made = predict_graph(centred, data=gaussian(40, 50))
    assert made.lambda_max > 5 * made.mean_direction
    assert "lower estimate" in made.reason
    plain = predict_graph(residual_mlp((50,), 200, 3, norm="none"), data=gaussian(40, 50))
    assert plain.ok
    net = resnet((3, 8, 8), (8, 16, 32), 1, style="pre", shortcut="B")  # measured: 3 % above
    images = gaussian(16, 3, 8, 8)
    assert predict_graph(net, data=images).ok
    alike = images + 2 * gaussian(16, 1, 1, 1)  # measured: twice that
    assert "lower estimate" in predict_graph(net, data=alike).reason


def test_cost_is_said_and_limited() -> None:
    graph = resnet((3, 32, 32), (16, 32, 64), 3)
    small = planned_cost(graph, 16, level="homogeneous")
    assert small.memory < 1e7
    with pytest.raises(InputError, match=r"level='gram' would take about .* GB.*level='positions'"):
        predict_graph(graph, data=gaussian(16, 3, 32, 32), level="gram")
    assert "on one core" in str(small)


def test_data_that_does_not_fit() -> None:
    graph = residual_mlp((10,), 20, 1)
    with pytest.raises(InputError, match=r"reads samples of shape \(10,\)"):
        predict_graph(graph, data=gaussian(5, 11))
    with pytest.raises(InputError, match="at least two samples"):
        predict_graph(graph, data=gaussian(1, 10))
    with pytest.raises(InputError, match="NaN or infinity"):
        predict_graph(graph, data=gaussian(4, 10) * np.inf)
    with pytest.raises(InputError, match="needs a number of samples"):
        predict_graph(graph, level="gram")
    with pytest.raises(InputError, match="Unknown level 'grams'"):
        predict_graph(graph, samples=5, level="grams")
    with pytest.raises(InputError, match="belong to theory='graph'"):
        ns.predict(WIDE, level="gram", theory="corrected")


def test_constant_parameters_are_left_out() -> None:
    graph = residual_mlp((10,), 20, 1)
    nodes = [
        n.Dense(v.name, v.inputs, outputs=v.outputs, weight_variance=2.0, parameters=())
        if isinstance(v, n.Dense)
        else v
        for v in graph.nodes
    ]
    made = predict_graph(n.Graph(tuple(nodes)), data=gaussian(8, 10))
    assert set(made.per_kind) == {"gamma", "beta"}


@pytest.mark.parametrize("last", ["mean", "variance", "batch", "layer"])
def test_a_norm_on_the_outputs_takes_its_formulas(last: str) -> None:
    spec = ns.mlp([50, 60, 60, 10], bias_variance=0.3, last_norm=last)
    made = ns.predict(spec, samples=30, theory="graph", level="homogeneous")
    known = ns.predict(spec, samples=30, theory="corrected")
    assert made.trace == pytest.approx(known.trace, rel=1e-9)
    assert made.lower == pytest.approx(known.lower, rel=1e-9)


@pytest.mark.parametrize(("outputs", "channels"), [(1, 10), (10, 64), (300, 1000)])
def test_overlaps_of_the_read_out(outputs: int, channels: int) -> None:
    rng = np.random.default_rng(5)
    draws = [
        np.linalg.norm(rng.standard_normal((outputs, channels)), 2) ** 2 / channels
        for _ in range(60)
    ]
    if outputs == 1:
        assert overlap_factor(1, channels) == 1.0
    else:
        error = np.std(draws) / 60**0.5
        found = overlap_factor(outputs, channels)
        assert abs(found - np.mean(draws)) < 4 * error + 0.002 * found


def test_centred_networks_are_not_called_flat() -> None:
    """tanh without biases: no two samples overlap on average, and the bulk leads."""
    spec = ns.mlp([30, 300, 1], activation="tanh")
    limit = ns.predict(spec)
    assert limit.lambda_max is None
    assert "centred" in limit.reason
    with pytest.raises(TheoryError, match="centred"):
        limit.critical_lr()
    few = ns.predict(spec, samples=400)  # four numbers would say 0.5
    assert few.level == "gram"
    assert few.lambda_max > 5
    coarse = ns.predict(spec, samples=400, level="homogeneous")
    assert "may lie several times higher" in coarse.reason
    assert coarse.upper > few.lambda_max > coarse.lambda_max


def test_flags_of_other_widths_are_their_own() -> None:
    made = predict_graph(residual_mlp((50,), 200, 3, activation="tanh", sw2=1.0),
                         data=gaussian(40, 50))  # fmt: skip
    (flag,) = made.scaled(width=100).flags
    assert flag.count("lower estimate") == 1
    mean = made.scaled(width=100).mean_direction
    assert f"({mean:.4g})" in flag


@pytest.mark.parametrize("act", ["relu", "tanh"])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("samples", [None, 8, 300])
def test_lambda_max_lies_between_its_bounds(act: str, norm: str | None, samples: int) -> None:
    spec = ns.mlp([40, 60, 60, 3], activation=act, norm=norm)
    made = ns.predict(spec, samples=samples)
    finer = made if made.level == "gram" else ns.predict(spec, samples=200, level="gram")
    assert made.lower <= finer.lambda_max * (1 + 1e-9)
    assert finer.lambda_max <= made.upper
    assert made.lambda_max is None or made.lower <= made.lambda_max * (1 + 1e-9)


def test_a_norm_with_statistics_of_its_own_is_told_as_that() -> None:
    graph = n.Graph((
        n.Input("data", size=(20,)),
        n.Dense("hidden", ("data",), outputs=50, weight_variance=2.0),
        n.BatchNorm("norm", ("hidden",), statistics="running"),
        n.Activate("relu", ("norm",), activation="relu"),
        n.Dense("head", ("relu",), outputs=3, weight_variance=1.0),
    ))  # fmt: skip
    said = " ".join(predict_graph(graph, samples=50).assumptions)
    assert "stored statistics" in said
    assert "differentiated" not in said
