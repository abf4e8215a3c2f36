"""The pass through graphs: chains, invariances, levels, what is refused."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import normscope as ns
from graph_networks import network, residual_mlp, resnet
from normscope.errors import InputError, TheoryError
from normscope.theory.graph import nodes as n
from normscope.theory.graph.algebra import (
    Gram,
    Homogeneous,
    Positions,
    algebra,
    input_kernel,
    white_kernel,
)
from normscope.theory.graph.forward import Passed, propagate
from normscope.theory.graph.rules import register_node
from normscope.theory.graph.specs import graph_of


def data(samples: int, *size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((samples, *size))


def on(graph: n.Graph, x: np.ndarray, level: str = "gram", **options: object) -> Passed:
    return propagate(graph, *input_kernel(x, level), **options)  # type: ignore[arg-type]


def slices(found: Passed) -> dict[tuple[str, str], np.ndarray]:
    return {(s.layer, s.kind): t for s, t in zip(found.sources, found.theta, strict=True)}


CHAINS = {
    "relu": ns.mlp([20, 50, 40, 30, 3], bias_variance=0.4),
    "tanh": ns.mlp([20, 50, 40, 3], activation="tanh", weight_variance=1.5, bias_variance=0.2),
    "residual": ns.residual_mlp([20, 30, 30, 30, 30, 2], branch_scale=0.5, bias_variance=0.1),
    "layer norm": ns.mlp([20, 50, 40, 3], norm="layer", gamma=1.3, bias_variance=0.2),
    "cnn": ns.cnn((3, 11, 11), channels=[4, 6], stride=2, outputs=3, bias_variance=0.3),
}


@pytest.mark.parametrize("parameters", ["weights", "all"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_without_batch_norm_are_the_recursions(name: str, parameters: str) -> None:
    spec = CHAINS[name]
    samples = 50
    kernel, level = white_kernel("homogeneous", samples, spec.input_shape[1:])
    found = propagate(graph_of(spec, parameters=parameters), kernel, level)
    total = found.theta.sum(0)
    known = ns.predict(spec, samples=samples, parameters=parameters, theory="corrected")
    assert total[0] == pytest.approx(known.A1, rel=1e-10)
    assert total[2] == pytest.approx(known.A2, rel=1e-10)


@pytest.mark.parametrize("spec", [CHAINS["relu"], CHAINS["tanh"], CHAINS["layer norm"]])
def test_chains_on_data_are_the_pairwise_kernel(spec: ns.NetworkSpec) -> None:
    x = data(12, 20) + 0.3
    found = on(graph_of(spec, parameters="all"), x).theta.sum(0)
    known = ns.predict(spec, data=x, parameters="all", theory="corrected")
    assert np.linalg.eigvalsh(found)[-1] / 12 == pytest.approx(known.lambda_max, rel=1e-10)
    assert np.trace(found) / 12 * 3 == pytest.approx(known.trace, rel=1e-10)


def test_frozen_batch_norm_on_data_is_the_pairwise_kernel() -> None:
    spec, x = ns.mlp([20, 50, 40, 3], norm="batch", gamma=1.2), data(12, 20)
    found = on(graph_of(spec, parameters="all"), x, statistics="frozen").theta.sum(0)
    known = ns.predict(spec, data=x, parameters="all", theory="frozen")
    assert np.linalg.eigvalsh(found)[-1] / 12 == pytest.approx(known.lambda_max, rel=1e-6)
    assert np.trace(found) / 12 * 3 == pytest.approx(known.trace, rel=1e-6)


def test_train_mode_becomes_the_recursion_for_many_samples() -> None:
    spec = ns.mlp([400, 400, 400, 400, 4], norm="batch")
    gaps = []
    for samples in (100, 1000, 10_000):
        found = propagate(graph_of(spec), *white_kernel("homogeneous", samples, ()))
        known = ns.predict(spec, samples=samples, theory="corrected")
        gaps.append(abs(4 * found.theta.sum(0)[0] / known.trace - 1))
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]
    assert gaps[2] < 1e-3


def test_few_samples_keep_every_order_of_one_over_t() -> None:
    """400-400-400-400-4, T = 30: measured trace 4875 +- 46, by layer 1952, 1284, 840, 799."""
    found = on(graph_of(ns.mlp([400] * 4 + [4], norm="batch")), data(30, 400))
    traces = [4 * np.trace(part) / 30 for part in found.theta]
    assert sum(traces) == pytest.approx(4840, rel=0.01)
    for trace, (measured, error) in zip(
        traces, [(1952, 33), (1284, 13), (840, 8), (799, 1)], strict=True
    ):
        assert abs(trace - measured) < 3 * error


@pytest.mark.parametrize("style", ["pre", "post"])
def test_bias_in_front_of_batch_norm_has_no_gradient(style: str) -> None:
    graph = residual_mlp((10,), 20, 2, style=style, norm="batch")
    biased = [
        replace(node, bias_variance=0.3) if isinstance(node, n.Dense) else node
        for node in graph.nodes
    ]
    found = slices(on(n.Graph(tuple(biased)), data(8, 10)))
    behind = {node.inputs[0] for node in graph.nodes if isinstance(node, n.BatchNorm)}
    for node in biased[:-1]:
        if isinstance(node, n.Dense) and node.name in behind:
            part = found[node.name, "bias"]
            only_norms = style == "post" or node.name == "dense1"
            if only_norms:
                assert np.abs(part).max() < 1e-9 * np.abs(found[node.name, "weight"]).max()


def test_weights_in_front_of_batch_norm_have_no_scale() -> None:
    graph, x = residual_mlp((10,), 20, 2, style="post", eps=0.0), data(8, 10)
    first = graph.nodes[1]
    larger = n.Graph((graph.nodes[0], replace(first, weight_variance=18.0), *graph.nodes[2:]))
    before, after = slices(on(graph, x)), slices(on(larger, x))
    for key, part in before.items():
        share = 9.0 if key == (first.name, "weight") else 1.0
        assert after[key] * share == pytest.approx(part, rel=1e-8, abs=1e-10)


def test_order_of_samples_does_not_matter() -> None:
    graph, x = residual_mlp((10,), 20, 3, style="post"), data(8, 10)
    order = np.random.default_rng(1).permutation(8)
    here, there = on(graph, x), on(graph, x[order])
    assert there.theta == pytest.approx(here.theta[:, order][:, :, order], rel=1e-8, abs=1e-9)


VALUES = np.array([1.0, 0.3, 0.1, 0.05])


def of_class(samples: int, side: int, level: str) -> tuple[np.ndarray, object]:
    """One kernel made of four numbers, at each level."""
    same = np.full((side**2, side**2), VALUES[1])
    other = np.full((side**2, side**2), VALUES[3])
    np.fill_diagonal(same, VALUES[0])
    np.fill_diagonal(other, VALUES[2])
    kernels = {
        "homogeneous": VALUES,
        "positions": np.stack([same, other]),
        "gram": np.kron(np.eye(samples), same - other) + np.kron(np.ones((samples,) * 2), other),
    }
    return kernels[level], algebra(level, samples, (side, side))


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
@pytest.mark.parametrize(
    "options",
    [
        {"style": "pre", "shortcut": "B"},
        {"style": "post", "shortcut": "A"},
        {"style": "post", "shortcut": "B", "head": "flatten"},
        {"style": "post", "shortcut": "A", "norm": "none"},
    ],
    ids=["pre", "post", "flatten", "none"],
)
def test_positions_are_the_gram_of_equal_samples(options: dict, statistics: str) -> None:
    graph = resnet((3, 4, 4), (4, 8, 16), 1, **options)
    found = [
        propagate(graph, *of_class(6, 4, level), statistics=statistics)
        for level in ("positions", "gram")
    ]
    for part in ("largest", "mean_direction", "mean_diagonal"):
        values = [float(getattr(f.algebra, part)(f.theta.sum(0))) for f in found]
        assert values[0] == pytest.approx(values[1], rel=1e-7)


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
def test_without_padding_homogeneous_is_exact(statistics: str) -> None:
    conv = {"weight_variance": 2.0, "kernel": 1}
    graph = n.Graph(
        (
            n.Input("x", size=(3, 4, 4)),
            n.Conv("stem", ("x",), outputs=8, **conv),
            n.BatchNorm("bn1", ("stem",)),
            n.Activate("act1", ("bn1",), activation="relu"),
            n.Conv("c1", ("act1",), outputs=8, **conv),
            n.Add("add", ("stem", "c1")),
            n.BatchNorm("bn2", ("add",)),
            n.Activate("act2", ("bn2",), activation="relu"),
            n.AveragePool("pool", ("act2",), kernel=2),
            n.GlobalPool("gap", ("pool",)),
            n.Dense("head", ("gap",), outputs=1, weight_variance=1.0),
        )
    )
    found = [
        propagate(graph, *of_class(6, 4, level), statistics=statistics)
        for level in ("homogeneous", "positions", "gram")
    ]
    for part in ("largest", "mean_direction", "mean_diagonal"):
        values = [float(getattr(f.algebra, part)(f.theta.sum(0))) for f in found]
        assert values == pytest.approx([values[0]] * 3, rel=1e-6)


WINDOWS = [
    n.Conv("c", ("x",), outputs=2, weight_variance=1.0, kernel=3, padding=1),
    n.Conv("c", ("x",), outputs=2, weight_variance=1.0, kernel=2, stride=2, dilation=2),
    n.Conv("c", ("x",), outputs=2, weight_variance=1.0, kernel=(3, 1), padding=((0, 2), 0)),
    n.AveragePool("c", ("x",), kernel=2),
    n.AveragePool("c", ("x",), kernel=3, stride=2, padding=1),
]


@pytest.mark.parametrize("node", WINDOWS, ids=lambda node: type(node).__name__)
def test_windows_are_those_of_torch(node: n.Conv | n.AveragePool) -> None:
    """K behind a window is the mean over random weights of products of torch's outputs."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    x = torch.as_tensor(data(3, 2, 5, 5))
    kernel, gram = input_kernel(x.numpy(), "gram")
    window = node.window((5, 5))
    pads = [p for pair in reversed(window.padding) for p in pair]
    wide = functional.pad(x, pads)
    if isinstance(node, n.AveragePool):
        out = functional.avg_pool2d(wide, window.kernel, window.stride)
        rows = out.permute(0, 2, 3, 1).reshape(-1, 2).numpy()
        expected = rows @ rows.T / 2
        found = gram.pool(kernel, window)
    else:
        columns = functional.unfold(
            wide, window.kernel, dilation=window.dilation, stride=window.stride
        )
        rows = columns.permute(0, 2, 1).reshape(-1, columns.shape[1]).numpy()
        expected = rows @ rows.T / 2
        found = gram.slide(kernel, window)
    assert found == pytest.approx(expected, abs=1e-12)
    for level in ("positions", "homogeneous"):
        coarse, made = input_kernel(x.numpy(), level)
        moved = (made.pool if isinstance(node, n.AveragePool) else made.slide)(coarse, window)
        after = made.on(window.after((5, 5)))
        if level == "positions":
            exact = gram.on(window.after((5, 5))).mean_diagonal(found)
            assert after.mean_diagonal(moved) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("style", ["pre", "post"])
def test_closed_branches_leave_their_gain(style: str) -> None:
    """gamma = 0 behind every block: the network without branches, plus the gains' own part."""
    options = {"style": "post", "shortcut": "A"}
    closed = on(resnet((3, 4, 4), (4, 8), 1, last_gamma=0.0, **options), data(4, 3, 4, 4))
    parts = slices(closed)
    assert np.isfinite(closed.theta).all()
    branch = [key for key in parts if key[0] in ("conv4", "conv10")]
    assert branch
    for key in branch:
        assert np.abs(parts[key]).max() == 0


def test_zero_gain_equals_the_network_without_branches() -> None:
    x = data(40, 50)
    closed = residual_mlp((50,), 20, 2, style="post", last_gamma=0.0)
    plain = residual_mlp((50,), 20, 0, style="post")
    found, known = slices(on(closed, x)), slices(on(plain, x))
    head = closed.nodes[-1].name
    pairs = [("dense1", "dense1"), (head, plain.nodes[-1].name)]
    for here, there in pairs:
        part, whole = found[here, "weight"], known[there, "weight"]
        assert np.abs(part - whole).max() < 0.005 * np.abs(whole).max()
    last = [node.name for node in closed.nodes if getattr(node, "gamma", 1.0) == 0.0]
    assert len(last) == 2
    assert all(np.trace(found[name, "gamma"]) > 0 for name in last)


def test_a_sum_of_branches_with_a_common_layer_is_refused() -> None:
    nodes = (
        n.Input("x", size=(5,)),
        n.Dense("fc", ("x",), outputs=8, weight_variance=2.0),
        n.Activate("act", ("fc",), activation="relu"),
        n.Add("sum", ("fc", "act")),
        n.Dense("head", ("sum",), outputs=1, weight_variance=1.0),
    )
    with pytest.raises(TheoryError, match="Add 'sum' adds branches that share a random layer"):
        on(n.Graph(nodes), data(4, 5))
    normed = (*nodes[:2], n.BatchNorm("act", ("fc",)), *nodes[3:])
    with pytest.raises(TheoryError, match="share a random layer"):
        on(n.Graph(normed), data(4, 5))


def test_what_the_theory_cannot_follow_is_named() -> None:
    def chain(*nodes: n.Node, size: tuple[int, ...] = (3, 4, 4)) -> n.Graph:
        names = ["x", *(node.name for node in nodes)]
        linked = [replace(v, inputs=(names[i],)) for i, v in enumerate(nodes)]
        return n.Graph((n.Input("x", size=size), *linked))

    head = n.Dense("head", outputs=1, weight_variance=1.0)
    act = n.Activate("relu", activation="relu")
    conv = n.Conv("conv", outputs=4, weight_variance=2.0, kernel=3)
    pooled = chain(conv, n.AveragePool("pool", kernel=2), act, n.Flatten("flat"), head)
    with pytest.raises(TheoryError, match="Activate 'relu' follows the data, a pooling"):
        on(pooled, data(4, 3, 4, 4))
    norm = n.BatchNorm("bn")
    with pytest.raises(TheoryError, match="BatchNorm 'bn' normalizes the data itself"):
        on(chain(norm, n.Flatten("flat"), head), data(4, 3, 4, 4))
    dense = n.Dense("fc", outputs=4, weight_variance=2.0)
    with pytest.raises(InputError, match="'bn' has one value a channel"):
        on(chain(dense, norm, head, size=(6,)), data(1, 6))
    with pytest.raises(TheoryError, match=r"'bn' sees values that span 1 direction"):
        on(chain(dense, norm, head, size=(6,)), data(2, 6))
    silent = data(3, 6)
    silent[1] = 0
    with pytest.raises(InputError, match="LayerNorm 'ln' would divide by zero"):
        on(chain(dense, n.LayerNorm("ln"), act, head, size=(6,)), silent)


def test_users_add_nodes_of_their_own() -> None:
    @dataclass(frozen=True, eq=False, kw_only=True)
    class Doubled(n.Node):
        pass

    nodes = (
        n.Input("x", size=(5,)),
        n.Dense("fc", ("x",), outputs=8, weight_variance=2.0),
        Doubled("twice", ("fc",)),
        n.Dense("head", ("twice",), outputs=1, weight_variance=1.0),
    )
    with pytest.raises(TheoryError, match="no rule for Doubled 'twice'"):
        on(n.Graph(nodes), data(4, 5))

    def rule(node: n.Node, inputs: list, run: object) -> list:
        scale = n.Scale("s", ("x",), factor=2.0)
        from normscope.theory.graph.rules import rule_of

        return rule_of(scale)(scale, inputs, run)

    register_node(Doubled, rule)
    found = on(n.Graph(nodes), data(4, 5))
    known = on(n.Graph((*nodes[:2], n.Scale("twice", ("fc",), factor=2.0), nodes[3])), data(4, 5))
    assert found.theta == pytest.approx(known.theta)
    with pytest.raises(InputError, match="has a rule already"):
        register_node(Doubled, rule)


@pytest.mark.parametrize("kind", [Homogeneous, Positions, Gram])
def test_algebras_agree_with_matrices(kind: type) -> None:
    """Products, centring, eigenvalues of the same kernel written out."""
    samples, side = 5, 2
    kernel, made = of_class(samples, side, kind.level)
    full, gram = of_class(samples, side, "gram")
    centred = gram.center(full)
    product = gram.product(centred, full)
    here = made.product(made.center(kernel), kernel)
    assert made.mean_diagonal(here) == pytest.approx(gram.mean_diagonal(product))
    assert made.mean_direction(here) == pytest.approx(gram.mean_direction(product), abs=1e-12)
    assert made.largest(kernel) == pytest.approx(np.linalg.eigvalsh(full)[-1])
    values, counts, vectors = made.eigen(kernel)
    assert (values * counts).sum() == pytest.approx(np.trace(full))
    assert made.from_eigen(values, vectors) == pytest.approx(kernel)
    assert made.mean_other(kernel) == pytest.approx(VALUES[2])


def test_builders_of_the_tests_follow_the_reference() -> None:
    net = network((3, 8, 8), 4, 1, {"builder": "resnet", "blocks": 1, "shortcut": "A"})
    kinds = [type(node).__name__ for node in net.nodes]
    assert kinds.count("Conv") == 7
    assert kinds.count("Shortcut") == 2
