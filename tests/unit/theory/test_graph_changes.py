"""Changed graphs: norms replaced, gains scaled, blocks twice."""

import numpy as np
import pytest

import normscope as ns
from graph_networks import residual_mlp, resnet
from normscope.theory.graph import changes
from normscope.theory.graph import nodes as n
from normscope.theory.graph.answer import affordable_level, predict_graph
from normscope.theory.graph.specs import graph_of


def kinds(graph):
    return [type(node).__name__ for node in graph.nodes]


DEEPER = {
    "mlp": (graph_of(ns.mlp([20, 50, 50, 50, 3], norm="batch")),
            graph_of(ns.mlp([20, 50, 50, 50, 50, 50, 3], norm="batch")), 2),
    "pre": (residual_mlp((10,), 20, 3), residual_mlp((10,), 20, 6), 3),
    "post": (residual_mlp((10,), 20, 2, style="post"), residual_mlp((10,), 20, 4, style="post"), 2),
    "cnn": (graph_of(ns.cnn((3, 8, 8), channels=[5, 5], outputs=3, padding=1)),
            graph_of(ns.cnn((3, 8, 8), channels=[5, 5, 5], outputs=3, padding=1)), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEPER)
def test_twice_as_deep_is_the_deeper_network(name):
    shallow, deep, count = DEEPER[name]
    made, found = changes.deeper(shallow)
    assert found == count
    assert kinds(made) == kinds(deep)
    of = [predict_graph(graph, samples=20, level="homogeneous") for graph in (made, deep)]
    assert of[0].lambda_max == pytest.approx(of[1].lambda_max, rel=1e-9)
    assert of[0].trace == pytest.approx(of[1].trace, rel=1e-9)


def test_blocks_that_change_the_shape_stand_once():
    graph = resnet((3, 8, 8), (4, 8, 16), 3)
    made, count = changes.deeper(graph)
    assert count == 7  # three blocks, then two and two without stride
    assert sum(isinstance(v, n.Conv) for v in made.nodes) == 19 + 2 * 7
    assert changes.deeper(graph_of(ns.mlp([20, 50, 3])))[1] == 0


def test_norms_are_replaced_by_name():
    graph = residual_mlp((10,), 20, 2, gamma=0.7)
    x = np.random.default_rng(0).standard_normal((12, 10))
    layer = changes.with_norms(graph, changes.layer_in_place)
    assert kinds(layer).count("LayerNorm") == kinds(graph).count("BatchNorm")
    back = changes.with_norms(layer, changes.batch_in_place)
    plain = residual_mlp((10,), 20, 2, norm="none")
    halved = changes.with_norms(graph, changes.scaled_gain(0.5))

    def top(one):
        return predict_graph(one, data=x).lambda_max

    assert top(back) == pytest.approx(top(graph))
    assert top(changes.with_norms(graph, changes.without)) == pytest.approx(top(plain))
    assert top(halved) == pytest.approx(top(residual_mlp((10,), 20, 2, gamma=0.35)))


def test_the_finest_level_that_is_cheap():
    graph = resnet((3, 32, 32), (16, 32, 64), 3)
    assert affordable_level(graph, 64, 1e9) == "positions"
    assert affordable_level(graph, 64, 1e-9) == "homogeneous"
    assert affordable_level(residual_mlp((10,), 20, 2), 40, 5.0) == "gram"
