"""Reading the graph of a model by running it, without leaving a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from normscope.errors import InputError
from normscope.subject.graph.graph import Graph
from normscope.subject.graph.record import Record
from normscope.subject.graph.recorder import Recorder
from normscope.subject.interrupts import interruptible
from normscope.subject.session import session
from normscope.subject.statistics import put_in_train_mode
from normscope.subject.usable import check_usable


def read_graph(model: nn.Module, run: Callable[[], Any]) -> Graph:
    """The graph of ``model`` in the pass that ``run`` makes.

    The pass is made in evaluation mode, in which every layer of a network with layer drop runs. If
    it does not reach every parameter, or fails, another one is made in the mode of training. The
    model, the inputs and the random generators are left as they were.

    Args:
        model: any module that can be run.
        run: calls the model, by itself or inside a loss.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
        >>> graph = read_graph(net, lambda: net(torch.ones(5, 3)))
        >>> [(layer.name, layer.depth, layer.norm) for layer in graph.layers]
        [('0', 1, None), ('3', 2, '1')]
    """
    check_readable(model)
    best = _graph(model, run, training=False)
    if isinstance(best, Graph) and best.last is not None and not best.unused:
        return best
    other = _graph(model, run, training=True)
    if isinstance(best, Exception) and isinstance(other, Exception):
        raise best
    if isinstance(best, Exception) or (isinstance(other, Graph) and _reach(other) > _reach(best)):
        best, other = other, best
    assert isinstance(best, Graph)
    if isinstance(other, Graph):
        best.add_used(set(best.unused).difference(other.unused))
        best.reached |= other.reached
    return best


def _reach(graph: Graph) -> tuple[bool, float]:
    return graph.last is not None, -graph.coverage["unused"]


def _graph(model: nn.Module, run: Callable[[], Any], *, training: bool) -> Graph | Exception:
    try:
        record = _recorded(model, run, training=training)
    except Exception as error:  # whatever a user's model raises
        return error
    if not record.frames:
        return InputError(
            f"The forward pass of {type(model).__name__} was not run, nor that of a part of it: "
            "there is nothing to read. Call the model that is passed."
        )
    graph = Graph(record)
    for frame in record.frames:
        frame.example = None
    return graph


def _recorded(model: nn.Module, run: Callable[[], Any], *, training: bool) -> Record:
    device = next(model.parameters()).device
    recorder = Recorder(model)
    with session(model, seed=0, device=device):
        if training:
            put_in_train_mode(model)
        else:
            model.eval()
        # a pass may write into what it is made of: let it have copies
        copies = {id(t): t.detach().clone() for t in [*model.parameters(), *model.buffers()]}
        plain = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        for table in [t for m in plain for t in (m._parameters, m._buffers)]:
            for name, tensor in table.items():
                table[name] = copies.get(id(tensor))  # type: ignore[assignment]
        with recorder, torch.no_grad(), interruptible():
            run()
    return recorder.record


def check_readable(model: nn.Module) -> None:
    """Refuse what cannot be run, with the way out."""
    check_usable(model)
    if next(model.parameters(), None) is None:
        raise InputError(
            f"{type(model).__name__} has no parameters, so that there is no layer to read."
        )
