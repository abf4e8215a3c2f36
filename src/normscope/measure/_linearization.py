"""J v and J^T u of one batch, each by the cheapest route that its operations allow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.measure._fused import fuse_batch_norms
from normscope.measure._tape import Tape, UntapedError, directional, record
from normscope.measure.operators.base import Groups
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.losses import flat
from normscope.subject.memory import Piece
from normscope.subject.session import recomputed


class Linearization:
    """The Jacobian of the flat outputs of one batch at one point.

    ``push`` is J v. It replays a recorded forward-mode pass; where the pass cannot be replayed it
    runs afresh, and where an operation has no forward-mode derivative it differentiates J^T u in
    u. ``pull`` is J^T u, backwards through one saved graph. Without ``keep`` nothing is saved
    and each call runs the network again.

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
        self._pair: tuple[Tensor, Tensor] | None = None  # (u, J^T u), to certify a replay
        self._doubtful = True  # no replay has been certified yet
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
            out = self._pull_through(self._graph, vectors)
        else:
            with self._function.open(blocks=recomputed if self._checkpointed else None):
                leaves, outputs = self._function.with_graph(self._batch)
                out = self._pull_through((leaves, flat(outputs)), vectors)
        if self._doubtful:
            self._pair = (vectors[0].clone(), out[0].clone())
        return out

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
        safe_point()
        if not self._forward_mode:
            return self._push_backward(vector)
        if self._tape is not None:
            out = self._replay(vector)
            if self._certified(vector, out):
                return out
            self._tape, self._taped = None, False
        try:
            return self._push_forward(vector)
        except UntapedError:
            self._taped = False
            return self._push_one(vector)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an operation without a forward-mode derivative
            self._forward_mode = False
            return self._push_backward(vector)

    def _push_forward(self, vector: Tensor) -> Tensor:
        function = self._function
        pieces = function.parameters.split(vector)

        def outputs(values: Any) -> Tensor:
            return function.flat(values, self._batch)

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
            leaves, outputs = self._graph or _flattened(self._function.with_graph(self._batch))
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

    def _certified(self, vector: Tensor, pushed: Tensor) -> bool:
        """<u, J v> = <J^T u, v> for the last u that was pulled: free, and it checks the replay."""
        if self._pair is None:
            return True
        u, pulled = self._pair
        gap = float((u @ pushed - pulled @ vector).abs())
        scale = float(u.norm() * pushed.norm() + pulled.norm() * vector.norm())
        if not gap <= torch.finfo(vector.dtype).eps ** 0.5 * max(scale, 1e-30):
            return not bool(pushed.isfinite().all())  # a NaN is the caller's to explain
        self._pair, self._doubtful = None, False
        return True

    def close(self) -> None:
        """Drop the saved graphs; later calls run the network again."""
        self._graph = self._transposed = self._tape = self._pair = None
        self._keep = self._taped = False


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _flattened(graph: tuple[list[Tensor], Any]) -> tuple[list[Tensor], Tensor]:
    return graph[0], flat(graph[1])
