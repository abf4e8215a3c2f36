"""Which rule belongs to which kind of node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.theory.graph.averages import theta_of
from normscope.theory.graph.nodes import WAY_OUT, Node
from normscope.theory.graph.state import Group

Groups = list[Group]


@dataclass
class Run:
    """One pass: what the rules share.

    Attributes:
        slots: where the source of (node, kind) stands in every stack of kernels; a kind that is
            missing is held constant.
        sources: length of these stacks.
        statistics: what batch norm does where its node does not say.
        probes: by node, the slot of a unit source behind each layer with weights, which gives the
            power of its gradients.
        notes: approximations that the pass made, for the answer.
    """

    slots: dict[tuple[str, str], int]
    sources: int
    statistics: str = "batch"
    probes: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    _numbers: int = 0
    _known: dict[int, tuple[Group, Array]] = field(default_factory=dict)

    def number(self) -> int:
        """A number for a new factor."""
        self._numbers += 1
        return self._numbers - 1

    def slot(self, node: Node, kind: str) -> int | None:
        """Where a source of this node goes; None if F is not taken over it."""
        return self.slots.get((node.name, kind))

    def theta(self, group: Group) -> Array:
        """Theta of a group, computed once for all readers."""
        if id(group) not in self._known:
            self._known[id(group)] = (group, theta_of(group, self.sources))
        return self._known[id(group)][1]

    def forget(self, groups: Groups) -> None:
        """No reader is left."""
        for group in groups:
            self._known.pop(id(group), None)

    def note(self, text: str) -> None:
        """Say once what is approximate."""
        self.notes[text] = None


Rule = Callable[..., Groups]
R = TypeVar("R", bound=Rule)
RULES: dict[type[Node], Rule] = {}


def rule(*kinds: type[Node]) -> Callable[[R], R]:
    """The rule of these kinds of node."""

    def register(function: R) -> R:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def register_node(kind: type[Node], function: Rule, *, replace: bool = False) -> None:
    """Make a kind of node of your own known to the theory.

    Args:
        kind: a frozen dataclass derived from ``Node``, with ``shape`` if it changes shapes.
        function: ``function(node, inputs, run)``; ``inputs`` holds the groups of each node it
            reads, and it returns the groups behind it.
        replace: allow a rule to be redefined.
    """
    if not (isinstance(kind, type) and issubclass(kind, Node)):
        raise InputError(f"A kind of node is a class derived from Node. Got {kind!r}.")
    if kind in RULES and not replace:
        raise InputError(f"{kind.__name__} has a rule already. Pass replace=True to redefine it.")
    RULES[kind] = function


def rule_of(node: Node) -> Rule:
    """The rule of a node; a node without one is refused by name."""
    for kind in type(node).__mro__:
        if kind in RULES:
            return RULES[kind]
    raise TheoryError(
        f"Mean-field theory has no rule for {node.label}. {WAY_OUT}, or add one with register_node."
    )


def merged(groups: Groups, run: Run) -> tuple[int, Array, Array]:
    """Channels, K and Theta of all groups together, as fresh weights see them."""
    channels = sum(g.channels for g in groups)
    kernel = np.sum([g.channels / channels * g.kernel for g in groups], axis=0)
    if len(groups) == 1:
        return channels, kernel, run.theta(groups[0])
    theta = np.sum([g.channels / channels * run.theta(g) for g in groups], axis=0)
    return channels, kernel, theta
