"""Each node of graph theory against sampled channels: K and Theta behind it, by standard error.

A channel is a Gaussian vector over N sites; its gradients' inner products are Theta. Means over
sampled channels know nothing of the formulas: the norm's Jacobian is a matrix here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from normscope.theory.graph import nodes as n
from normscope.theory.graph.algebra import Gram
from normscope.theory.graph.rules import Run, rule_of
from normscope.theory.graph.state import Factor, Group, Law, Term

CHANNELS = 10_000
PHI = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: (z > 0) * 1.0),
    "leaky_relu(0.2)": (lambda z: np.where(z > 0, z, 0.2 * z), lambda z: np.where(z > 0, 1, 0.2)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    None: (lambda z: z, np.ones_like),
}


def kernels(law: str, sites: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """K of the channels and Theta of their gradients."""
    rng = np.random.default_rng(seed)
    count = {"white": 50 * sites, "wishart": 2 * sites, "five": 5}[law]
    x = rng.standard_normal((sites, count))
    y = rng.standard_normal((sites, 2 * sites))
    k = x @ x.T / count + 0.3 + 0.02 * np.eye(sites) * (law == "five")
    return k, 0.5 * k + y @ y.T / (2 * sites) + 0.5


@dataclass
class Sampled:
    """Mean and standard error of a number of each channel."""

    mean: float
    error: float


def summed(parts: list[np.ndarray]) -> Sampled:
    values = np.concatenate(parts)
    return Sampled(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))


def normalized(x: np.ndarray, theta: np.ndarray, statistics: str) -> tuple[np.ndarray, np.ndarray]:
    """Batch-normalized rows, and their gradients' inner products."""
    sites = x.shape[1]
    g = np.eye(sites) - 1 / sites
    x = x @ g
    s = np.sqrt((x**2).mean(1))[:, None, None]
    h = x / s[:, 0]
    if statistics == "frozen":
        return h, np.broadcast_to(theta / s**2, (len(x), sites, sites))
    jacobian = (g - h[:, :, None] * h[:, None, :] / sites) / s
    return h, jacobian @ theta @ jacobian.transpose(0, 2, 1)


def group_of(run: Run, k: np.ndarray, theta: np.ndarray, slot: int) -> list[Group]:
    algebra = Gram(len(k), ())
    stack = algebra.zeros(run.sources)
    stack[slot] = theta
    number = run.number()
    law = Law({number: Factor(k)})
    return [Group(1, algebra, k, [Term("plain", stack)], law, frozenset({number}))]


def passed(run: Run, node: n.Node, *inputs: list[Group]) -> list[Group]:
    return rule_of(node)(node, list(inputs), run)


def numbers(k: np.ndarray, theta: np.ndarray) -> dict[str, float]:
    """Traces and mean directions."""
    return {
        "K trace": float(np.trace(k)),
        "K mean": float(k.mean()),
        "trace": float(np.trace(theta)),
        "mean": float(theta.sum()) / len(theta),
    }


def rows(v: np.ndarray, theta: np.ndarray) -> dict[str, np.ndarray]:
    """The same numbers of each channel."""
    return {
        "K trace": (v**2).sum(1),
        "K mean": v.mean(1) ** 2,
        "trace": np.einsum("caa->c", theta),
        "mean": theta.sum((1, 2)) / v.shape[1],
    }


def sampled(
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]],
) -> dict[str, Sampled]:
    rng = np.random.default_rng(0)
    parts: dict[str, list[np.ndarray]] = {}
    for _ in range(CHANNELS // 2000):
        for name, values in rows(*draw(rng, 2000)).items():
            parts.setdefault(name, []).append(values)
    return {name: summed(values) for name, values in parts.items()}


def agree(
    theory: dict[str, float], found: dict[str, Sampled], slack: dict[str, float] | None = None
) -> None:
    """Within four standard errors, and a stated relative slack where a rule is approximate."""
    for name, value in found.items():
        room = 4 * value.error + (slack or {}).get(name, 2e-4) * abs(value.mean) + 1e-12
        assert abs(theory[name] - value.mean) <= room, (name, theory[name], value)


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
@pytest.mark.parametrize("act", ["relu", "leaky_relu(0.2)", None])
@pytest.mark.parametrize("law", ["white", "wishart", "five"])
@pytest.mark.parametrize("sites", [6, 16])
def test_batch_norm_is_exact(sites: int, law: str, act: str | None, statistics: str) -> None:
    k, theta = kernels(law, sites, seed=sites)
    run = Run({}, 1, statistics)
    groups = passed(run, n.BatchNorm("bn", ("x",)), group_of(run, k, theta, 0))
    if act:
        groups = passed(run, n.Activate("act", ("bn",), activation=act), groups)
    root = np.linalg.cholesky(k + 1e-12 * np.eye(sites))
    phi, slope = PHI[act]

    def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        h, made = normalized(rng.standard_normal((count, sites)) @ root.T, theta, statistics)
        d = slope(h)
        return phi(h), made * d[:, :, None] * d[:, None, :]

    agree(numbers(groups[0].kernel, run.theta(groups[0])[0]), sampled(draw))


@pytest.mark.parametrize("sites", [16, 32])
def test_smooth_activation_behind_batch_norm(sites: int) -> None:
    k, theta = kernels("white", sites, seed=sites)
    run = Run({}, 1)
    groups = passed(run, n.BatchNorm("bn", ("x",)), group_of(run, k, theta, 0))
    groups = passed(run, n.Activate("act", ("bn",), activation="tanh"), groups)
    root = np.linalg.cholesky(k)
    phi, slope = PHI["tanh"]

    def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        h, made = normalized(rng.standard_normal((count, sites)) @ root.T, theta, "batch")
        d = slope(h)
        return phi(h), made * d[:, :, None] * d[:, None, :]

    slack = {"trace": 0.003, "mean": 0.01}
    agree(numbers(groups[0].kernel, run.theta(groups[0])[0]), sampled(draw), slack)


def test_sources_of_gain_and_shift_see_the_same_slopes() -> None:
    sites = 12
    k, theta = kernels("wishart", sites, seed=3)
    run = Run({("bn", "gamma"): 1, ("bn", "beta"): 2}, 3)
    groups = passed(run, n.BatchNorm("bn", ("x",), gamma=1.7), group_of(run, k, theta, 0))
    groups = passed(run, n.Activate("act", ("bn",), activation="relu"), groups)
    root = np.linalg.cholesky(k)

    def draws(of_gain: bool) -> dict[str, Sampled]:
        def draw(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
            h, _ = normalized(rng.standard_normal((count, sites)) @ root.T, theta, "batch")
            f = (h > 0) * (h if of_gain else 1.0)
            return 1.7 * np.maximum(h, 0), f[:, :, None] * f[:, None, :]

        return sampled(draw)

    found = run.theta(groups[0])
    agree(numbers(groups[0].kernel, found[1]), draws(True))
    agree(numbers(groups[0].kernel, found[2]), draws(False))


@pytest.mark.parametrize(("blocks", "slack"), [(1, 0.01), (2, 0.01), (4, 0.015)])
def test_stream_of_normalized_branches(blocks: int, slack: float) -> None:
    """relu(x + bn(branch)), several times: values, slopes and projections depend on one another."""
    sites = 24
    made = [kernels("white", sites, seed=10 + i) for i in range(blocks + 1)]
    run = Run({}, blocks + 1)
    act = n.Activate("act", ("x",), activation="relu")
    groups: list[Group] = []
    for slot, (k, theta) in enumerate(made):
        branch = passed(run, n.BatchNorm("bn", ("x",)), group_of(run, k, theta, slot))
        joined = passed(run, n.Add("add", ("x", "y")), groups, branch) if slot else branch
        groups = passed(run, act, joined)
    found = run.theta(groups[0])
    roots = [np.linalg.cholesky(k) for k, _ in made]
    rng, parts = np.random.default_rng(0), {}
    for _ in range(CHANNELS // 2000):
        x, slots = np.zeros((2000, sites)), []
        for (_, theta), root in zip(made, roots, strict=True):
            h, gradients = normalized(rng.standard_normal((2000, sites)) @ root.T, theta, "batch")
            d = (x + h > 0) * 1.0
            slots = [g * d[:, :, None] * d[:, None, :] for g in (*slots, gradients)]
            x = np.maximum(x + h, 0)
        for slot, gradients in enumerate(slots):
            for name, values in rows(x, gradients).items():
                parts.setdefault((slot, name), []).append(values)
    room = dict.fromkeys(("K trace", "K mean", "trace", "mean"), slack)
    for slot in range(blocks + 1):
        sampled_slot = {name: summed(v) for (at, name), v in parts.items() if at == slot}
        agree(numbers(groups[0].kernel, found[slot]), sampled_slot, room)


def test_moments_of_a_residual_stream() -> None:
    """x_j = relu(x_(j-1) + g_j), g_j ~ N(0, 1): E x_0^2 = .5, E x_1^2 = 1.159, both alive .375."""
    algebra = Gram(2, ())
    run = Run({}, 1)
    act = n.Activate("act", ("x",), activation="relu")
    first = passed(run, act, group_of(run, np.eye(2), np.ones((2, 2)), 0))
    branch = group_of(run, np.eye(2), np.zeros((2, 2)), 0)
    second = passed(run, act, passed(run, n.Add("add", ("x", "y")), first, branch))
    assert algebra.mean_diagonal(first[0].kernel) == pytest.approx(0.5)
    assert algebra.mean_diagonal(second[0].kernel) == pytest.approx(1.159, abs=0.002)
    assert algebra.mean_diagonal(run.theta(second[0])[0]) == pytest.approx(0.375, abs=0.001)
