"""The theory of the subject's own network on its first batch, and of changed ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from normscope.checks import Array
from normscope.diagnose.subject import Subject
from normscope.errors import InputError, TheoryError
from normscope.results import PredictedChanges, Prediction
from normscope.theory.graph import changes
from normscope.theory.graph.answer import affordable_level, predict_graph
from normscope.theory.graph.nodes import BatchNorm, Graph, Node

WIDTHS = (2, 4, 8)
SECONDS = 5.0  # on one core, by estimate, that one prediction may take; then a coarser level


def predictions_of(subject: Subject) -> list[Prediction]:
    """The network as it is and, if it has norms and the theory covers that, without them."""
    read, x = subject.nodes
    name = type(subject.model).__name__
    made = [_predicted(read.graph, x, name)]
    made[0] = replace(made[0], flags=(*read.flags, *made[0].flags))
    if any(isinstance(node, changes.Norm) for node in read.graph.nodes):
        plain = changes.with_norms(read.graph, changes.without)
        with contextlib.suppress(TheoryError, InputError):  # it explodes with depth
            made.append(_predicted(plain, x, f"{name} without norms"))
    return made


def over_all_parameters(subject: Subject) -> Prediction:
    """The network as it is, F over all that is trained: what a learning rate must suit."""
    read, x = subject.nodes_over(None)
    made = _predicted(read.graph, x, type(subject.model).__name__, "all")
    return replace(made, flags=(*read.flags, *made.flags))


def _predicted(graph: Graph, x: Array, name: str, parameters: str = "weights") -> Prediction:
    level = affordable_level(graph, len(x), SECONDS)
    return predict_graph(graph, data=x, level=level, network=name, parameters=parameters)


def changed(subject: Subject) -> PredictedChanges:
    """What theory says of other widths, gains, norms and of twice the depth."""
    read, x = subject.nodes
    made = _predicted(read.graph, x, type(subject.model).__name__)
    found: list[tuple[str, Prediction | str]] = [("as it is", made)]
    found += [(f"width x {width}", made.scaled(width)) for width in WIDTHS]
    for what, graph in _variants(read.graph):
        try:
            found.append((what, _predicted(graph, x, what)))
        except (TheoryError, InputError) as error:
            found.append((what, str(error)))

    def number(one: Prediction | str, name: str) -> float:
        value = None if isinstance(one, str) else getattr(one, name)
        return math.nan if value is None else float(value)

    return PredictedChanges(
        changes=tuple(what for what, _ in found),
        lambda_max=np.array([number(one, "lambda_max_split") for _, one in found]),
        trace=np.array([number(one, "trace") for _, one in found]),
        reasons=tuple(_remark(one) for _, one in found),
        level=made.level or "",
    )


def _remark(one: Prediction | str) -> str:
    if isinstance(one, str):
        return one
    return "a lower estimate" if "lower estimate" in (one.reason or "") else one.reason or ""


def _variants(graph: Graph) -> Iterator[tuple[str, Graph]]:
    norms = [node for node in graph.nodes if isinstance(node, changes.Norm)]
    twice, count = changes.deeper(graph)
    if count:
        yield f"depth: {count} blocks or layers twice", twice
    if not norms:
        return
    gains: dict[str, Callable[[changes.Norm], Node]] = {
        "gamma x 0.5": changes.scaled_gain(0.5),
        "gamma x 2": changes.scaled_gain(2.0),
    }
    other = changes.layer_in_place if isinstance(norms[0], BatchNorm) else changes.batch_in_place
    which = "layer norm" if isinstance(norms[0], BatchNorm) else "batch norm"
    kinds = {f"{which} in place of the norms": other, "without norms": changes.without}
    for what, make in (gains | kinds).items():
        yield what, changes.with_norms(graph, make)
