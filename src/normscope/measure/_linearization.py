"""J v and J^T u of one batch, each by the cheapest route that its operations allow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.errors import MeasurementError
from normscope.measure._fused import fuse_batch_norms
from normscope.measure._tape import Tape, directional, record
from normscope.measure.operators.base import Groups
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.losses import flat
from normscope.subject.memory import Piece
from normscope.subject.session import recomputed

NONLINEAR = 2e-2  # relative; models that compute in bfloat16 inside stay below


class Linearization:
    """The Jacobian of the flat outputs of one batch at one point.

    ``pull`` is J^T u, backwards through one saved graph: what training uses. ``push`` is J v. It
    replays a recorded forward-mode pass; where the pass cannot be replayed it runs afresh, and
    where forward mode is missing or differs from the backward pass (``padding_idx``, ``no_grad``
    inside the model, tensor hooks), it differentiates J^T u in u. The first call compares push
    and pull along one random vector. Without ``keep`` nothing is saved and each call runs the
    network again.

    Attributes:
        outputs: what the model returned, detached.
    """

    def __init__(self, function: ModelFunction, piece: Piece) -> None:
        batch, keep = piece.batch, piece.keep
        self._function, self._batch = function, batch
        self._keep, self._checkpointed = keep, piece.checkpointed
        self._pushed = Groups(piece.num_bytes)
        self._pulled = Groups(torch.inf if piece.checkpointed else piece.num_bytes)
        self._graph: tuple[list[Tensor], Tensor] | None = None
        self._transposed: tuple[list[Tensor | None], Tensor] | None = None
        self._tape: Tape | None = None
        self._forward_mode = True
        self._taped = keep
        self._certified = False
        with function.open():
            if keep:
                leaves, outputs = function.with_graph(batch)
                self._graph = (leaves, flat(outputs))
            else:
                with torch.no_grad():
                    outputs = function(function.values, batch)
        self.outputs: Any = pytree.tree_map(_detached, outputs)
        function.check_finite(flat(self.outputs), batch)

    @property
    def size(self) -> int:
        """Length of the flat outputs."""
        return flat(self.outputs).numel()

    def push(self, vectors: Tensor) -> Tensor:
        """J v for a stack of vectors, (k, parameters) -> (k, n)."""
        first = self._push_one(vectors[0])
        if len(vectors) == 1:
            return first[None]
        if self._tape is None:
            rows = [self._push_one(vector) for vector in vectors[1:]]
            return torch.stack([first, *rows])
        rest = self._pushed.apply(self._replay_group, self._push_one, vectors[1:])
        return torch.cat([first[None], rest])

    def pull(self, vectors: Tensor) -> Tensor:
        """J^T u for a stack of vectors, (k, n) -> (k, parameters)."""
        if self._graph is not None:
            return self._pull_through(self._graph, vectors)
        with self._function.open(blocks=recomputed if self._checkpointed else None):
            return self._pull_through(self._new_graph(), vectors)

    def _new_graph(self) -> tuple[list[Tensor], Tensor]:
        leaves, outputs = self._function.with_graph(self._batch)
        return leaves, flat(outputs)

    def _pull_through(self, graph: tuple[list[Tensor], Tensor], vectors: Tensor) -> Tensor:
        leaves, outputs = graph
        if not outputs.requires_grad:
            return vectors.new_zeros(len(vectors), self._function.parameters.total)

        def one(vector: Tensor) -> Tensor:
            safe_point()
            # A scalar, because torch imports a second's worth of code to check `grad_outputs`.
            with torch.enable_grad():
                along = torch.dot(outputs, vector)
            grads = torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True)
            return self._function.parameters.join(grads, like=vector)

        def group(stack: Tensor) -> Tensor:
            safe_point()
            grads = torch.autograd.grad(
                outputs, leaves, stack, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
            return self._function.parameters.join_stacks(grads, like=stack)

        return self._pulled.apply(group, one, vectors)

    def _push_one(self, vector: Tensor) -> Tensor:
        out = self._push_by_route(vector)
        while not self._certified:
            self._certified = self._agrees()
            if not self._certified:
                self._take_next_route()
                out = self._push_by_route(vector)
        return out

    def _push_by_route(self, vector: Tensor) -> Tensor:
        safe_point()
        if not self._forward_mode:
            return self._push_backward(vector)
        try:
            return self._push_forward(vector) if self._tape is None else self._replay(vector)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # what cannot be replayed, or has no forward-mode derivative
            self._take_next_route()
            return self._push_by_route(vector)

    def _take_next_route(self) -> None:
        """From the replay to a fresh pass, from forward mode to backward mode."""
        self._forward_mode, self._taped, self._tape = self._taped, False, None

    def _agrees(self) -> bool:
        """Whether ||J v||^2 = <v, J^T J v> for a random v, with J v by the present route."""
        total, like = self._function.parameters.total, self._function.values[0]
        vector = torch.randn(total, generator=torch.Generator().manual_seed(0))
        pushed = self._push_by_route(vector.to(like.device, self._function.parameters.dtype))
        pulled = self.pull(pushed[None])[0]
        square = float(pushed.double().square().sum())
        gap = abs(square - float(pulled.double() @ vector.to(like.device, torch.float64)))
        rounding = torch.finfo(pushed.dtype).eps ** 0.5
        if not self._forward_mode and gap > NONLINEAR * square:
            raise MeasurementError(
                f"J^T u is not a linear function of u (v^T J^T J v is off by {gap / square:.1%}), "
                "so the Jacobian and the Fisher matrix are not defined. A tensor hook or the "
                "backward of a custom autograd.Function clips, normalizes or detaches gradients: "
                "take it out for the measurement."
            )
        # A NaN is the caller's to explain.
        return not self._forward_mode or gap <= rounding * square or not math.isfinite(gap)

    def _push_forward(self, vector: Tensor) -> Tensor:
        function = self._function
        pieces = function.parameters.split(vector)

        def outputs(values: Any) -> Tensor:
            return flat(function(values, self._batch))

        with function.open(change=fuse_batch_norms):
            if not self._taped:
                return directional(outputs, function.values, pieces)
            self._tape, out = record(outputs, function.values, pieces)
            return out

    def _replay(self, vector: Tensor) -> Tensor:
        assert self._tape is not None
        with torch.no_grad():
            return self._tape.replay(self._function.parameters.split(vector))

    def _replay_group(self, vectors: Tensor) -> Tensor:
        assert self._tape is not None
        safe_point()
        pieces = self._function.parameters.split_stacks(vectors)
        with torch.no_grad():
            return torch.func.vmap(self._tape.replay)(pieces)

    def _push_backward(self, vector: Tensor) -> Tensor:
        """J v as the derivative of the linear map u -> J^T u."""
        if self._transposed is not None:
            return self._pull_transposed(*self._transposed, vector)
        with self._function.open():
            leaves, outputs = self._graph or self._new_graph()
            dummy = torch.zeros_like(outputs, requires_grad=True)
            if not outputs.requires_grad:
                return outputs.detach() * 0
            grads = torch.autograd.grad(
                outputs, leaves, dummy, create_graph=True, allow_unused=True
            )
            if self._keep:
                self._transposed = (list(grads), dummy)
            return self._pull_transposed(list(grads), dummy, vector)

    def _pull_transposed(self, grads: list[Tensor | None], dummy: Tensor, vector: Tensor) -> Tensor:
        pieces = self._function.parameters.split(vector)
        pairs = [(g, v) for g, v in zip(grads, pieces, strict=True) if g is not None]
        pairs = [(g, v) for g, v in pairs if g.requires_grad]
        if not pairs:
            return torch.zeros_like(dummy).detach()
        heads, weights = [g for g, _ in pairs], [v for _, v in pairs]
        (out,) = torch.autograd.grad(heads, dummy, weights, retain_graph=True, allow_unused=True)
        return torch.zeros_like(dummy).detach() if out is None else out

    def close(self) -> None:
        """Drop the saved graphs; later calls run the network again."""
        self._graph = self._transposed = self._tape = None
        self._keep = self._taped = False


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
