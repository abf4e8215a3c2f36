"""Residual networks: the values of an independent implementation, and what was measured."""

import numpy as np
import pytest

from golden import graph_theory as golden
from graph_networks import Drawn, measured_numbers, reference_data, reference_graph, references
from normscope.results.gradient_kernel import overlap_factor
from normscope.theory.graph.algebra import input_kernel
from normscope.theory.graph.forward import Passed, propagate

ENTRIES = references()


def passed(name: str, level: str, width: int | None = None) -> Passed:
    entry = ENTRIES[name]
    graph = reference_graph(entry, width)
    kernel, algebra = input_kernel(reference_data(entry["data"]), level)
    return propagate(
        graph, kernel, algebra, statistics=entry["statistics"], by_layer=level != "gram"
    )


def numbers(found: Passed, outputs: int, factor: float = 1.0) -> dict[str, float]:
    """The numbers of an entry, and those of a network ``factor`` times as wide."""
    pairs = zip(found.theta, found.sources, strict=True)
    parts = [(t * factor if s.grows else t, s.head) for t, s in pairs]
    total, samples = sum(part for part, _ in parts), found.algebra.samples
    head = sum(part for part, of_head in parts if of_head)
    split = head + overlap_factor(outputs, round(found.head_channels * factor)) * (total - head)
    return {
        "lambda_max": float(found.algebra.largest(total)) / samples,
        "lambda_max_split": float(found.algebra.largest(split)) / samples,
        "mean_direction": float(found.algebra.mean_direction(total)) / samples,
        "trace": outputs * float(found.algebra.mean_diagonal(total)),
    }


# Minutes each, hours together: too long for CI (pytest -m bench).
BY_HAND = pytest.mark.bench


def cases() -> list:
    made = []
    for name, entry in ENTRIES.items():
        for level in entry["predicted"]:
            large = level == "gram" and "x3x" in str(entry["data"].get("shape", "x3x"))
            large |= level == "positions" and name.startswith("r20")
            marks = [BY_HAND] if large else []
            if entry["data"]["kind"] == "cifar":
                marks = [pytest.mark.real_data]
            made.append(pytest.param(name, level, marks=marks, id=f"{name}-{level}"))
    return made


@pytest.mark.parametrize(("name", "level"), cases())
def test_predictions(name: str, level: str) -> None:
    """At the largest width; the smaller ones from the same pass."""
    entry = ENTRIES[name]
    known, found = entry["predicted"][level], passed(name, level)
    widths = {entry["width"]: known}
    widths |= {width: v for (of, width), v in entry["narrow"].items() if of == level}
    assert set(widths) == set(entry["measured"])
    for width, expected in widths.items():
        made = numbers(found, entry["outputs"], width / entry["width"])
        for key, value in made.items():
            assert value == pytest.approx(expected[key], rel=known["tolerance"]), (width, key)


@pytest.mark.parametrize("line", golden.INPUT_CLASSES.strip().splitlines())
def test_data_of_the_references(line: str) -> None:
    seed, shape, *known = line.split()
    x = reference_data({"kind": "gauss", "seed": int(seed), "shape": shape})
    kernel, _ = input_kernel(x, "homogeneous")
    assert list(kernel) == pytest.approx([float(value) for value in known], abs=1e-8)


MEASURED = [
    pytest.param(name, marks=[BY_HAND] if name.startswith("r20") else [])
    for name, entry in ENTRIES.items()
    if entry["data"]["kind"] == "gauss"
]


@pytest.mark.parametrize("name", MEASURED)
def test_measured_traces_and_mean_directions(name: str) -> None:
    """At the largest width; the top eigenvalue too where the mean direction leads."""
    entry = ENTRIES[name]
    level = "gram" if "x3x" not in entry["data"]["shape"] else "positions"
    found = numbers(passed(name, level), entry["outputs"])
    measured = entry["measured"][entry["width"]]
    for key in ("mean_direction", "trace"):
        mean, _, room = measured[key]
        assert abs(found[key] - mean) <= room, (key, found[key], measured[key])
    if found["lambda_max"] <= 1.01 * found["mean_direction"]:
        mean, _, room = measured["lambda_max"]
        assert abs(found["lambda_max_split"] - mean) <= room


def drawn() -> list:
    """Those that take seconds run in CI; the others minutes to hours."""
    made = []
    for name, entry in ENTRIES.items():
        quick = entry["outputs"] == 1 and entry["data"]["kind"] == "gauss" and name[:3] != "r20"
        for width in entry["networks"]:
            mark = pytest.mark.slow if quick and width == min(entry["networks"]) else BY_HAND
            made.append(pytest.param(name, width, marks=[mark], id=f"{name}-{width}"))
    return made


@pytest.mark.parametrize(("name", "width"), drawn())
def test_fresh_networks(name: str, width: int) -> None:
    """As many networks as were measured for the reference, drawn afresh in plain torch."""
    entry = ENTRIES[name]
    data, graph = reference_data(entry["data"]), reference_graph(entry, width)
    found = [
        measured_numbers(Drawn(graph, 1000 + seed, entry["statistics"]), data)
        for seed in range(entry["networks"][width])
    ]
    for key, (mean, _, room) in entry["measured"][width].items():
        own = float(np.mean([one[key] for one in found]))
        assert abs(own - mean) <= room, (key, own, mean, room)
