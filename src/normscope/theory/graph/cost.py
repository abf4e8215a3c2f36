"""What a prediction costs, said before it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.errors import InputError
from normscope.theory.graph.algebra import LEVELS
from normscope.theory.graph.nodes import Activate, Add, Affine, BatchNorm, Graph

MEMORY = 2e9  # bytes a prediction may take
SECONDS = 600.0  # on one core
BY_LAYER = (1e9, 60.0)  # memory and seconds up to which every layer has slices of its own
RATE = 4e10  # products and sums a second in matrix products
ENTRIES = 1.5e8  # entries a second through the formulas of one tau
TAUS = 8.0  # typical number
STACKS, WORK = 10, 20  # stacks, and kernels beside them, that are held at a time
STREAM = (20, 70)  # the same where activations act on sums: terms of Theta wait for later slopes


@dataclass(frozen=True)
class Cost:
    """Estimated memory in bytes and time in seconds on one core."""

    level: str
    memory: float
    seconds: float

    def __str__(self) -> str:
        return f"about {_bytes(self.memory)} and {_time(self.seconds)} on one core"


def cost_of(graph: Graph, samples: float, level: str, *, by_layer: bool, trains: bool) -> Cost:
    """Memory and time of one pass at this level.

    Args:
        graph: the nodes.
        samples: T.
        level: homogeneous, positions or gram.
        by_layer: one slice for each parameter, instead of two in all.
        trains: whether batch norm is in train mode.
    """
    shapes = graph.shapes
    sources = len(graph.counts()) if by_layer else 2
    probes = sum(isinstance(node, Affine) for node in graph.nodes) if by_layer else 0
    added = {node.name for node in graph.nodes if isinstance(node, Add)}
    stacks, work = STACKS, WORK
    if any(isinstance(n, Activate) and added.intersection(n.inputs) for n in graph.nodes):
        stacks, work = STREAM
    memory, seconds, live = 0.0, 0.01 * len(graph.nodes), 0
    for node in graph.nodes:
        positions = math.prod(shapes[node.name][1:])
        live += len(node.counts([shapes[name] for name in node.inputs]))
        stack = min(live, sources)
        side, blocks = _side(level, samples, positions)
        size = 8.0 * blocks * side**2
        memory = max(memory, size * (stacks * (sources + probes) + work))
        if isinstance(node, Affine):
            seconds += blocks * side**2 * (stack + 1) * 9 / ENTRIES
        elif isinstance(node, BatchNorm):
            products = 2 * stack + 1 if trains else 1
            seconds += blocks * side**3 * (20 + TAUS * 2 * products) / RATE
            seconds += TAUS * (stack if trains else 1) * 10 * blocks * side**2 / ENTRIES
    return Cost(level, memory, seconds)


def check_cost(cost: Cost) -> None:
    """Refuse what is too large, and name the next coarser level."""
    if cost.memory <= MEMORY and cost.seconds <= SECONDS:
        return
    coarser = LEVELS[LEVELS.index(cost.level) - 1]
    raise InputError(
        f"level={cost.level!r} would take {cost}. The limits are {_bytes(MEMORY)} and "
        f"{_time(SECONDS)}. Use level={coarser!r}, fewer samples or smaller images."
    )


def fits(cost: Cost, memory: float = MEMORY, seconds: float = SECONDS) -> bool:
    """Whether a cost is within limits."""
    return cost.memory <= memory and cost.seconds <= seconds


def _side(level: str, samples: float, positions: int) -> tuple[float, int]:
    if level == "homogeneous":
        return 2.0, 1
    if level == "positions":
        return float(positions), 2
    return samples * positions, 1


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
