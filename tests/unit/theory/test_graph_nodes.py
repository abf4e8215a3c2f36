"""The list of nodes: shapes, counts, what does not fit, and specs as lists."""

import pytest

import normscope as ns
from normscope.errors import InputError, TheoryError
from normscope.theory.graph import nodes as n
from normscope.theory.graph.specs import graph_of


def block(*more: n.Node, size: tuple[int, ...] = (3, 9, 8)) -> n.Graph:
    return n.Graph((n.Input("x", size=size), *more))


def test_shapes_of_windows_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    cases = [
        {"kernel": 3, "stride": 2, "padding": 1, "dilation": 1},
        {"kernel": (3, 2), "stride": (2, 1), "padding": (0, 2), "dilation": (2, 3)},
    ]
    for case in cases:
        conv = n.Conv("c", ("x",), outputs=5, weight_variance=2.0, **case)
        names = {"kernel": "kernel_size", "stride": "stride", "padding": "padding"}
        theirs = torch.nn.Conv2d(3, 5, **{names.get(k, k): v for k, v in case.items()}, bias=False)
        found = theirs(torch.zeros(1, 3, 9, 8)).shape[1:]
        assert conv.shape([(3, 9, 8)]) == tuple(found)
        assert conv.counts([(3, 9, 8)]) == {"weight": theirs.weight.numel()}


def test_a_graph_counts_what_f_is_taken_over() -> None:
    net = block(
        n.Conv("c", ("x",), outputs=4, weight_variance=2.0, bias_variance=0.0, kernel=3),
        n.BatchNorm("bn", ("c",), parameters=("beta",)),
        n.GlobalPool("pool", ("bn",)),
        n.Dense("head", ("pool",), outputs=2, weight_variance=1.0, parameters=()),
    )
    counts = {("c", "weight"): 108, ("c", "bias"): 4, ("bn", "beta"): 4}
    assert net.counts() == counts
    assert net.num_parameters() == sum(counts.values())
    assert net.shapes["c"] == (4, 7, 6)
    assert n.Graph.from_json(net.to_json()) == net


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((n.Flatten("f", ("y",)),), "reads 'y', which is no node before it"),
        ((n.Flatten("x", ("x",)),), "Two nodes are called 'x'"),
        ((n.Input("y", size=(3,)),), "one Input"),
        ((n.Flatten("f", ("x",)), n.Add("a", ("f",))), "adds two nodes or more"),
        ((n.GlobalPool("f", ("x",)), n.Add("a", ("f", "x"))), "inputs of one shape"),
        ((n.Flatten("f", ("x",)), n.AveragePool("p", ("f",), kernel=2)), "needs positions"),
        ((n.AveragePool("p", ("x",), kernel=20),), "leaves no positions"),
        ((n.AveragePool("p", ("x",), kernel=(2, 2, 2)),), "3 entries, but the image has 2"),
        ((n.Identity("i", ("x", "x")),), "reads one node"),
    ],
)
def test_what_does_not_fit_is_said(nodes: tuple[n.Node, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        block(*nodes)


def test_positions_left_and_nodes_without_a_rule_are_outside_the_theory() -> None:
    with pytest.raises(TheoryError, match="positions left"):
        block(n.Identity("last", ("x",)))
    with pytest.raises(TheoryError, match="no rule for max pooling, node 'pool1'"):
        block(n.Unsupported("pool1", ("x",), what="max pooling"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: n.Dense("d", outputs=0, weight_variance=1.0), "outputs of Dense 'd'"),
        (lambda: n.Dense("d", outputs=3, weight_variance=-1.0), "weight_variance of Dense 'd'"),
        (lambda: n.BatchNorm("b", parameters=("weight",)), "parameter of BatchNorm 'b'"),
        (lambda: n.BatchNorm("b", statistics="train"), "statistics of BatchNorm 'b'"),
        (lambda: n.BatchNorm("b", gamma=float("nan")), "gamma of BatchNorm 'b'"),
        (lambda: n.LayerNorm("l", over="channel"), "over of LayerNorm 'l'"),
        (lambda: n.Scale("s", factor=float("inf")), "factor of Scale 's'"),
        (lambda: n.Activate("a", activation="rulu"), "Did you mean 'relu'"),
    ],
)
def test_values_that_cannot_be_used(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("parameters", ["weights", "all"])
@pytest.mark.parametrize(
    "spec",
    [
        ns.mlp([20, 50, 30, 3], norm="batch"),
        ns.mlp([20, 50, 3], norm="layer", activation="leaky_relu(0.1)"),
        ns.cnn((3, 12, 12), channels=[4, 6], padding=1, stride=2, outputs=5),
        ns.cnn((3, 12, 12), channels=[4, 6], head="pool", norm="batch"),
        ns.residual_mlp([20, 30, 30, 30, 2], branch_scale=0.5),
    ],
    ids=["mlp", "layer-norm", "flatten", "pool", "residual"],
)
def test_a_spec_as_nodes_has_its_parameters(spec: ns.NetworkSpec, parameters: str) -> None:
    net = graph_of(spec, parameters=parameters)
    assert net.num_parameters() == spec.num_parameters(parameters)
    assert net.outputs == spec.outputs
    assert sum(isinstance(node, n.Add) for node in net.nodes) == (
        spec.depth - 2 if spec.branch_scale is not None else 0
    )
