"""Making the record: a ``TorchDispatchMode`` gives nodes and edges; hooks and functions give names.

At the dispatcher every operation is seen, also those of scripted parts, checkpoints and composite
functions. A recurrent call is one node: a record of each step would tell no more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.errors import InputError
from normscope.subject.graph.record import Call, Frame, Node, Nodes, Operand, Record
from normscope.subject.graph.storage import Storages
from normscope.subject.graph.watching import Watching
from normscope.subject.norms.behaviour import small_piece

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_WEIGHTS = {"embedding": 1, "linear": 1, "bilinear": 2}  # position of the weight
_SEVERAL = (list, tuple)


class Recorder(Watching):
    """Records the passes of a model; inside a session, where nothing that it writes is kept."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.record = Record()
        self._storages = Storages()
        self._operations = _Operations(self)
        self._open: list[int] = []  # frames
        self._call = -1
        self._schemas: dict[Any, tuple[str, list[str], set[int], bool]] = {}

    def listen(self) -> None:
        """Start to record operations."""
        super().listen()
        if not self.record.nodes:
            self._leaves("parameter", self.model.named_parameters(remove_duplicate=False))
            self._leaves("buffer", self.model.named_buffers(remove_duplicate=False))
        self._operations.__enter__()  # type: ignore[no-untyped-call]

    def stop_listening(self) -> None:
        """Stop recording operations."""
        if dispatch._get_current_dispatch_mode() is self._operations:
            self._operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        super().stop_listening()

    # ---- leaves

    def _leaves(self, op: str, named: Iterable[tuple[str, Tensor]]) -> None:
        tied: dict[int, tuple[Tensor, list[str]]] = {}
        for name, tensor in named:
            tied.setdefault(id(tensor), (tensor, []))[1].append(name)
        for tensor, names in tied.values():
            self._leaf(op, tensor, tuple(names))
            if op == "parameter":
                self.record.sizes[names[0]] = tensor.numel()

    def _leaf(self, op: str, tensor: Tensor, names: tuple[str, ...] = ()) -> Nodes:
        node = self._node(op, (), (), tensor, names)
        self._storages.made(tensor, node)
        return (node,)

    def _node(
        self,
        op: str,
        operands: tuple[Operand, ...],
        scalars: tuple[Any, ...],
        out: Tensor | None,
        names: tuple[str, ...] = (),
    ) -> int:
        shape = () if out is None else tuple(out.shape)
        floating = out is not None and (out.is_floating_point() or out.is_complex())
        frame, index = self._open[-1] if self._open else -1, len(self.record.nodes)
        node = Node(index, op, frame, self._call, operands, scalars, shape, floating, names)
        self.record.nodes.append(node)
        return index

    def _makers(self, tensor: Tensor, leaf: str = "constant") -> Nodes:
        return self._storages.makers(tensor) or self._leaf(leaf, tensor)

    # ---- modules

    def entering_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Begin a frame; what comes from outside are inputs, of which the model gets copies."""
        outermost = not self._open
        if outermost:
            _check_plain(args, kwargs)
            with dispatch._pop_mode_temporarily():
                args, kwargs = self._copied(args, kwargs)
        parent = self._open[-1] if self._open else -1
        frame = Frame(self.names[module], parent, module)
        tensors = tensors_in((args, kwargs))
        made = [self._makers(t, "input" if outermost else "constant") for t in tensors]
        self._open.append(len(self.record.frames))
        self.record.frames.append(frame)
        if tensors:
            frame.inputs, frame.in_shape = made[0], tuple(tensors[0].shape)
            if tensors[0].is_floating_point():
                with dispatch._pop_mode_temporarily():
                    frame.example = small_piece(module, tensors[0].detach()).clone()
        return (args, kwargs) if outermost else None

    def _copied(self, *given: Any) -> Any:
        """Tensors, caches and whatever else a pass could write into; its modules stay."""
        memo: dict[int, Any] = {id(module): module for module in self.names}
        memo |= {id(t): t.clone() for t in tensors_in(given)}

        def copied(value: Any) -> Any:
            try:
                return copy.deepcopy(value, memo)
            except Exception:  # a lock, a generator, a file: no data
                return value

        return pytree.tree_map(copied, given)

    def leaving_module(self, module: nn.Module, args: Any, out: Any) -> None:
        """Close the frame of a module's call."""
        while self._open:
            frame = self.record.frames[self._open.pop()]
            if frame.module is module:
                break
        if tensors := tensors_in(out):
            frame.outputs, frame.out_shape = self._makers(tensors[0]), tuple(tensors[0].shape)
        if not self._open:
            for key, value in _named(out):
                self.record.outputs += [(key, self._makers(t)) for t in tensors_in(value)]

    # ---- functions

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the call; the operations inside are its own."""
        name = getattr(func, "__name__", str(func))
        call = Call(self.key(name))
        place = _WEIGHTS.get(name, 1 if name.startswith("conv") else None)
        if place is not None:
            weight = kwargs.get("weight", args[place] if len(args) > place else None)
            if isinstance(weight, Tensor):
                call.weight = self._makers(weight)
        before, self._call = self._call, len(self.record.calls)
        self.record.calls.append(call)
        try:
            if name in RECURRENT:
                return self._recurrent(name, call, func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self._call = before

    def _recurrent(self, name: str, call: Call, func: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 5:  # after packing the layers come one place later
            call.layers = int(args[4] if isinstance(args[3], bool) else args[5])
        operands = [self._operand(i, t) for i, t in enumerate(tensors_in((args, kwargs)))]
        with dispatch._pop_mode_temporarily():
            out = func(*args, **kwargs)
        tensors = tensors_in(out)
        node = self._node(name, tuple(operands), (), tensors[0])
        for tensor in tensors:
            self._storages.made(tensor, node)
        return out

    # ---- operations

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and make its node."""
        name, names, writes, view = self._schema(func)
        places = list(enumerate(args)) + [(names.index(k), v) for k, v in kwargs.items()]
        operands: list[Operand] = []
        scalars, written = [], []
        for position, value in places:
            tensors = [value] if isinstance(value, Tensor) else []
            if isinstance(value, _SEVERAL):
                tensors = [v for v in value if isinstance(v, Tensor)]
            if not tensors:
                scalars.append(value)
            operands += [self._operand(position, tensor) for tensor in tensors]
            written += tensors if position in writes else []
        out = func(*args, **kwargs)
        tensors = tensors_in(out)
        node = self._node(name, tuple(operands), tuple(scalars), tensors[0] if tensors else None)
        for tensor in written:
            self._storages.made(tensor, node)
        for tensor in tensors:
            if not any(tensor is w for w in written):
                self._storages.made(tensor, node, view=view)
        return out

    def _operand(self, position: int, tensor: Tensor) -> Operand:
        nodes = self._makers(tensor)
        return Operand(position, nodes, tuple(tensor.shape), tensor.is_floating_point())

    def _schema(self, func: Any) -> tuple[str, list[str], set[int], bool]:
        if func not in self._schemas:
            schema = func._schema
            aliases = [a.alias_info for a in schema.arguments]
            writes = {i for i, alias in enumerate(aliases) if alias and alias.is_write}
            view = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
            name = schema.name.split("::")[1]
            name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
            self._schemas[func] = name, [a.name for a in schema.arguments], writes, view
        return self._schemas[func]


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping imports the compiler: a second of start-up for nothing

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # asking a tensor for its shape is no call
            return self._recorder.operate(func, args, kwargs or {})


def _check_plain(*values: Any) -> None:
    for tensor in tensors_in(values):
        kinds = {"nested": tensor.is_nested, "sparse": tensor.layout != torch.strided,
                 "quantized": tensor.is_quantized, "meta": tensor.is_meta}  # fmt: skip
        for kind in [kind for kind, found in kinds.items() if found]:
            raise InputError(
                f"The model is given a {kind} tensor. How a network runs can be read on plain "
                "tensors with values: pass a dense one, padded if need be."
            )


def tensors_in(value: Any, depth: int = 0) -> list[Tensor]:
    """All tensors in nested containers, dataclasses and caches, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, _SEVERAL):
        plain = (
            isinstance(value, nn.Module | type) or type(value).__module__.split(".")[0] == "torch"
        )
        if plain or depth > 3 or not hasattr(value, "__dict__"):
            return []
        value, depth = list(vars(value).values()), depth + 1
    return [tensor for item in value for tensor in tensors_in(item, depth)]


def _named(out: Any) -> list[tuple[str, Any]]:
    if isinstance(out, dict) or hasattr(out, "items"):
        return [(str(key), value) for key, value in out.items()]
    return [("", value) for value in out] if isinstance(out, _SEVERAL) else [("", out)]
