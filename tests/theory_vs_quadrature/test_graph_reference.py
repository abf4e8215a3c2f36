"""Residual networks: the values of an independent implementation, and what was measured."""

import pytest

from graph_networks import reference_data, reference_graph, references
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


def numbers(found: Passed, outputs: int) -> dict[str, float]:
    total, samples = found.theta.sum(0), found.algebra.samples
    head = sum(t for t, s in zip(found.theta, found.sources, strict=True) if s.head)
    split = head + overlap_factor(outputs, found.head_channels) * (total - head)
    return {
        "lambda_max": float(found.algebra.largest(total)) / samples,
        "lambda_max_split": float(found.algebra.largest(split)) / samples,
        "mean_direction": float(found.algebra.mean_direction(total)) / samples,
        "trace": outputs * float(found.algebra.mean_diagonal(total)),
    }


# Minutes each, hours together: too long for CI, and not run to the end yet (pytest -m bench).
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
    known = ENTRIES[name]["predicted"][level]
    found = numbers(passed(name, level), ENTRIES[name]["outputs"])
    for key, value in found.items():
        assert value == pytest.approx(known[key], rel=known["tolerance"]), key


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
