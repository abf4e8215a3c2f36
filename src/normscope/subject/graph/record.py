"""What is written down of one forward pass: operations, joined by their tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

Nodes = tuple[int, ...]
Key = tuple[str, int, str, int]  # module, number of its call, function, number of that in this call


class Operand(NamedTuple):
    """One tensor that an operation takes.

    Attributes:
        position: position of the argument in the operation's schema.
        nodes: which operations made its values; several where parts of it were written in place.
        shape: its shape.
        floating: whether it holds floating-point numbers.
    """

    position: int
    nodes: Nodes
    shape: tuple[int, ...]
    floating: bool


@dataclass(slots=True, eq=False)
class Node:
    """One operation, or a leaf: ``"input"``, ``"parameter"``, ``"buffer"`` or ``"constant"``.

    Attributes:
        index: its place in the record.
        op: name of the aten operation, ``relu_`` like ``relu``.
        frame: which call of a module it belongs to; -1 for none.
        call: which call of a torch function it belongs to; -1 for none.
        operands: the tensors that it takes.
        scalars: its other arguments.
        shape: shape of what it gives (the first tensor).
        floating: whether that holds floating-point numbers.
        names: names of a parameter or buffer; tied ones together.
    """

    index: int
    op: str
    frame: int
    call: int
    operands: tuple[Operand, ...]
    scalars: tuple[Any, ...]
    shape: tuple[int, ...]
    floating: bool
    names: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[int]:
        """The nodes behind all operands."""
        return [i for operand in self.operands for i in operand.nodes]


@dataclass(slots=True, eq=False)
class Call:
    """One call of a torch function: how to find it again, and what was found out about it."""

    key: Key
    weight: Nodes = ()  # of a linear layer, a convolution or an embedding
    layers: int = 1  # of a recurrent one


@dataclass(slots=True, eq=False)
class Frame:
    """One call of one module.

    Attributes:
        path: the module's name in the model.
        parent: the frame around it, -1 for none.
        module: itself.
        inputs: nodes of its first tensor, and their shape.
        outputs: nodes of the first tensor that it gives, and their shape.
        example: a small piece of its input, where it might be a norm.
    """

    path: str
    parent: int
    module: nn.Module
    inputs: Nodes = ()
    in_shape: tuple[int, ...] = ()
    outputs: Nodes = ()
    out_shape: tuple[int, ...] = ()
    example: Tensor | None = None


@dataclass(slots=True, eq=False)
class Record:
    """One forward pass.

    Attributes:
        nodes: operations in the order in which they ran, leaves among them.
        frames: calls of modules.
        calls: calls of torch functions.
        outputs: name of each output (empty if it has none) and its nodes.
        sizes: entries of every parameter, by its first name.
    """

    nodes: list[Node] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[tuple[str, Nodes]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def path(self, node: Node) -> str:
        """The innermost module that ran."""
        return self.frames[node.frame].path if node.frame >= 0 else ""

    def function(self, node: Node) -> str:
        """The torch function that was called."""
        return self.calls[node.call].key[2] if node.call >= 0 else ""

    def within(self, frame: int) -> list[int]:
        """A frame and those around it, from the inside out."""
        found = []
        while frame >= 0:
            found.append(frame)
            frame = self.frames[frame].parent
        return found
