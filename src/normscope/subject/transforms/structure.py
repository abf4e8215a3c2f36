"""Where in a user's model a transform that joins layers has to act."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.subject.graph import Graph, Step, graph_on, steps_of
from normscope.subject.graph.record import Frame


class Structure:
    """How the layers of a model are joined, if it could be run."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        self._model, self._kind = model, type(model).__name__
        self._steps: list[Step] = []
        self._graph: Graph | None = None
        self._failure = ""
        try:
            self._graph = graph_on(model, example)
            self._steps = steps_of(self._graph)
        except InputError as error:
            self._failure = str(error)

    def affine_before(self, norm: nn.Module) -> nn.Module:
        """The linear or convolutional layer whose result, and nothing else, ``norm`` takes."""
        name = next(n for n, m in self._model.named_modules() if m is norm)
        places = [step for step in self._steps if step.module is norm]
        if self._graph is None:
            return self._neighbour(norm, name)
        if len(places) != 1:
            raise InputError(
                f"Norm {name!r} is used {len(places)} times in the forward pass, so that it "
                "belongs to no single layer. Leave it out with a glob, as in 'fold:stage1.*'."
            )
        before = places[0].sources[0]
        if not isinstance(before.module, AFFINE):
            raise InputError(
                f"Norm {name!r} follows {before.kind} {before.name!r}, not a linear or "
                "convolutional layer, so that there are no weights it could be joined with. Leave "
                "it out with a glob, as in 'fold:stage1.*'."
            )
        if len(before.users) != 1 or self._uses(before) != 1:
            raise InputError(
                f"Layer {before.name!r} before norm {name!r} is also used elsewhere, where its "
                "weights must not change. Leave the norm out with a glob."
            )
        return before.module

    def last_layer(self, *, is_output: bool = False) -> Frame:
        """The last layer, which has to be linear and a module that is called once.

        With ``is_output`` its result has to be that of the model.
        """
        if self._graph is None:
            raise InputError(f"The last layer is not known. {self._failure}")
        heads, last = [layer.name for layer in self._graph.heads], self._graph.last
        if last is None or last.kind != "linear":
            what = "no layer" if last is None else f"{last.name!r} ({last.kind}), no linear layer,"
            raise InputError(f"{self._kind} has {what} at its end. Insert the norm by hand.")
        if len(heads) > 1:
            raise InputError(
                f"{self._kind} has {len(heads)} last layers ({', '.join(heads)}), and a norm at "
                "one of them is another change than at all. Insert it by hand."
            )
        step = next(step for step in self._steps if step.layer is last)
        node, inputs = last.nodes[0], self._graph.flow.weighted[last.nodes[0]].inputs
        ends = [self._graph.flow.nodes[i].shape[-1] for i in (inputs[0], node)]
        if step.frame is None or [step.frame.in_shape[-1], step.frame.out_shape[-1]] != ends:
            raise InputError(
                f"The last layer {last.name!r} is no module of its own that could be exchanged. "
                "Insert the norm by hand."
            )
        if is_output:
            _check_is_output(step)
        return self._used_once(step, step.frame)

    def last_pool(self) -> Frame:
        """The last pooling, which has to be a module."""
        if self._graph is None:
            raise InputError(f"The place before pooling is not known. {self._failure}")
        pools = [step for step in self._steps if step.kind in ("pool", "other pool")]
        if not pools:
            raise InputError(
                f"{self._kind} has no pooling, and so no feature map at its top. Use "
                "'norm-before-last'."
            )
        if (frame := pools[-1].frame) is None or frame.module is self._model:
            raise InputError(
                f"The pooling of {self._kind} is a function ({pools[-1].name}), not a layer that "
                "could be exchanged. Make it nn.AdaptiveAvgPool2d(1), or use 'norm-before-last'."
            )
        return self._used_once(pools[-1], frame)

    def _uses(self, step: Step) -> int:
        return sum(other.module is step.module for other in self._steps)

    def _used_once(self, step: Step, frame: Frame) -> Frame:
        if self._uses(step) > 1:
            raise InputError(
                f"Layer {step.name!r} is used {self._uses(step)} times in the forward pass, and a "
                "norm beside it would be too. Give each use a layer of its own."
            )
        return frame

    def _neighbour(self, norm: nn.Module, name: str) -> nn.Module:
        for parent in self._model.modules():
            layers = list(parent.children()) if isinstance(parent, nn.Sequential) else []
            for before, after in itertools.pairwise(layers):
                if after is norm and isinstance(before, AFFINE):
                    return before
        raise InputError(
            f"The layer before norm {name!r} is not known, and the two are not neighbours in an "
            f"nn.Sequential. {self._failure}"
        )


def _check_is_output(step: Step) -> None:
    name = step.name
    while step.kind != "output":
        if len(step.users) != 1:
            raise InputError(
                f"The result of the last linear layer {name!r} is used {len(step.users)} times "
                "on its way to the output. Insert the norm by hand."
            )
        step = step.users[0]
        if step.kind not in ("output", "dropout", "reshape"):
            raise InputError(
                f"The last linear layer {name!r} is followed by {step.kind} {step.name!r}, so "
                "that its result is not the output. Insert the norm by hand."
            )
