"""The loss and the channel moments of a network along lines and planes of its parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import Array
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.measure.probes._landscape_directions import State, by_filter, random_direction
from normscope.measure.probes._landscape_terrain import Terrain, Visit
from normscope.measure.probes.run import Layers
from normscope.measure.progress import progress
from normscope.results.landscape import Landscape
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.statistics import check_statistics

RULE = Divergence()
HALVINGS = 10  # of the stretch in which the loss diverges
STEPS = (0.0, *(float(f"{m}e{e}") for e in range(-5, 1) for m in (1, 3)), 10.0)
Direction = str | State
Distances = Sequence[float] | Array


@measurement
def landscape(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    direction: Direction | tuple[Direction, Direction] = "gradient",
    distances: Distances | tuple[Distances, Distances] | None = None,
    start: State | None = None,
    end: State | None = None,
    normalize: str | None = None,
    divergence: Divergence = RULE,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
) -> Landscape:
    r"""The loss, and how large the signals are, on the way from a network in some direction.

    .. math:: L(\theta + t\,d),\qquad \text{mean}_c |\mu_c|,\ \text{mean}_c \sigma_c^2
              \text{ of the output of every weighted layer}

    with channel means and variances over samples and positions, as batch norm takes them (Bjorck
    et al. 2018, Figs 5, 6 and 24). Overflow is a result: the loss is then infinite or NaN, and
    so are the moments from the layer on that is named. The model itself is never changed.

    The first distance at which the loss diverges (not finite, or above max(1000, 10 times the loss
    at 0)) is located on the grid and narrowed by bisection to 1/1000 of the stretch, for positive
    distances.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss or ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        direction: ``"gradient"``: minus the gradient of the loss at the start, so that a distance
            is the learning rate of one step of gradient descent. ``"random"``: normal numbers.
            A dict of tensors by parameter name, zero where it has none. Two of these: a plane.
        distances: t; for a plane two lists, or one for both axes. None: 0 and 1e-5 to 10 for the
            gradient, 0 to 1 on the way to ``end``, -1 to 1 otherwise.
        start: a state dict to start from; None is the model as it is.
        end: a state dict; the path is then ``start + t (end - start)``.
        normalize: ``"filter"`` gives each filter of the direction the length of that of the network
            and leaves biases and norm parameters where they are (Li et al. 2018); ``"none"``. None
            is ``"filter"`` for random directions, ``"none"`` for others.
        divergence: the rule that tells a diverged loss.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"`` (constants of
            the start, all the way).
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for random directions, dropout and the order of a data set.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(net.weight, 2.0)
        >>> x = torch.ones(1, 1)
        >>> landscape(net, (x, 0 * x), "mse", distances=[0, 0.5, 1, 2]).loss  # (2 - 2t)^2 / 2
        array([2. , 0.5, 0. , 2. ])
    """
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed)
    check_statistics(problem.model, statistics)
    _check_normalize(normalize)
    terrain = Terrain(problem, num_batches, statistics, layers, start)
    if end is not None and direction != "gradient":
        raise InputError("Pass either direction= or end=: the way to a state is its own direction.")
    kinds = direction if isinstance(direction, tuple) else (direction,)
    if len(kinds) > 2 or not kinds:
        raise InputError(f"A slice has one or two directions. Got {len(kinds)}.")
    compass = _Compass(terrain, end, normalize, seed)
    steps = [compass.direction(kind, index) for index, kind in enumerate(kinds)]
    if not isinstance(divergence, Divergence):
        raise InputError(f"divergence must be a rule such as Divergence(). Got {divergence!r}.")
    axes = _axes(distances, kinds, to_end=end is not None)
    origin = terrain.visit(terrain.start)
    points = list(itertools.product(*(axis.tolist() for axis in axes)))
    visits = []
    with progress("points of the landscape", len(points)) as tick:
        for point in points:
            visits.append(terrain.visit(_moved(terrain, steps, point)) if any(point) else origin)
            tick()
    edge = None
    if len(axes) == 1:
        edge = _edge(
            dict(zip(axes[0].tolist(), (v.loss for v in visits), strict=True)),
            lambda t: terrain.visit(_moved(terrain, steps, (t,))).loss,
            lambda loss: bool(divergence.reason(loss, origin.loss)),
        )
    return _record(terrain, axes, visits, origin, edge, compass.words, divergence, seed)


@dataclass(frozen=True, eq=False)
class _Compass:
    """Makes directions, and says in words what they are."""

    terrain: Terrain
    end: State | None
    normalize: str | None
    seed: int
    words: list[str] = field(default_factory=list)

    def direction(self, kind: Any, index: int) -> list[Tensor]:
        """One tensor per parameter."""
        step, words = self._raw(kind, index)
        wanted = self.normalize or ("filter" if kind == "random" else "none")
        if wanted == "filter":
            terrain = self.terrain
            step = by_filter(terrain.model, terrain.parameters.names, terrain.start, step)
            words += ", filters as long as the network's"
        self.words.append(words)
        return step

    def _raw(self, kind: Any, index: int) -> tuple[list[Tensor], str]:
        terrain = self.terrain
        if self.end is not None:
            pairs = zip(terrain.start, terrain.given(self.end, terrain.start, "end"), strict=True)
            return [end - start for start, end in pairs], "the way to the end state"
        if isinstance(kind, Mapping):
            zeros = [torch.zeros_like(value) for value in terrain.start]
            return terrain.given(kind, zeros, "direction"), "the direction given"
        if kind == "gradient":
            return [-g for g in terrain.gradient()], "minus the gradient"
        if kind == "random":
            return random_direction(terrain.start, self.seed, index), "a random direction"
        raise InputError(
            "direction must be 'gradient', 'random', a dict of tensors by parameter name, or a "
            f"tuple of two of these. Got {kind!r}."
        )


def _moved(terrain: Terrain, steps: Sequence[list[Tensor]], point: Sequence[float]) -> list[Tensor]:
    values = terrain.start
    for t, step in zip(point, steps, strict=True):
        values = [v + t * d for v, d in zip(values, step, strict=True)]
    return values


def _edge(
    seen: dict[float, float], loss_at: Callable[[float], float], diverged: Callable[[float], bool]
) -> tuple[float, float] | None:
    """The stretch of positive distances within which the loss first diverges."""
    ways = sorted(t for t in seen if t > 0)
    unsafe = next((t for t in ways if diverged(seen[t])), None)
    if unsafe is None:
        return None
    safe = max((t for t in ways if t < unsafe), default=0.0)
    for _ in range(HALVINGS):
        middle = (safe + unsafe) / 2
        if diverged(loss_at(middle)):
            unsafe = middle
        else:
            safe = middle
    return safe, unsafe


def _record(
    terrain: Terrain,
    axes: Sequence[Array],
    visits: Sequence[Visit],
    origin: Visit,
    edge: tuple[float, float] | None,
    words: Sequence[str],
    rule: Divergence,
    seed: int,
) -> Landscape:
    shape = tuple(len(axis) for axis in axes)
    names = [layer.name for layer in terrain.coverage.ok]

    def table(what: int, among: Sequence[Visit]) -> Array:
        rows = [[v.moments.get(name, (math.inf,) * 2)[what] for v in among] for name in names]
        return np.array(rows, np.float64).reshape(len(names), -1)

    return Landscape(
        axes=tuple(axes),
        loss=np.array([v.loss for v in visits], np.float64).reshape(shape),
        initial_loss=origin.loss,
        layers=tuple(names),
        mean_abs=table(0, visits).reshape(len(names), *shape),
        variance=table(1, visits).reshape(len(names), *shape),
        initial_mean_abs=table(0, [origin])[:, 0],
        initial_variance=table(1, [origin])[:, 0],
        first_nonfinite=tuple(v.first_nonfinite or "" for v in visits),
        diverges_between=edge,
        limit=rule.limit(origin.loss),
        directions=tuple(words),
        seed=seed,
        coverage=terrain.coverage,
        convention=terrain.convention,
    )


def _axes(given: Any, kinds: Sequence[Any], *, to_end: bool) -> list[Array]:
    if isinstance(given, tuple) and len(given) == len(kinds) == 2 and not _is_number(given[0]):
        return [_axis(part, kind, to_end=to_end) for part, kind in zip(given, kinds, strict=True)]
    return [_axis(given, kind, to_end=to_end, plane=len(kinds) == 2) for kind in kinds]


def _axis(given: Any, kind: Any, *, to_end: bool, plane: bool = False) -> Array:
    if given is None:
        if to_end:
            return np.linspace(0.0, 1.0, 21)
        if isinstance(kind, str) and kind == "gradient" and not plane:
            return np.array(STEPS)
        return np.linspace(-1.0, 1.0, 11 if plane else 21)
    try:
        axis = np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError):
        axis = np.array(math.nan)
    if axis.ndim != 1 or not len(axis) or not np.isfinite(axis).all():
        raise InputError(
            f"distances must be a list of finite numbers, for a plane two lists. Got {given!r:.60}."
        )
    return axis


def _is_number(thing: Any) -> bool:
    return isinstance(thing, int | float | np.number)


def _check_normalize(normalize: str | None) -> None:
    if normalize not in (None, "filter", "none"):
        raise InputError(f"normalize must be 'filter', 'none' or None. Got {normalize!r}.")
