"""Do samples, or tokens, see one another where they must not? A few rows, in evaluation mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import out_of_memory
from normscope.measure.probes.run import function_of
from normscope.measure.setup.inner_calls import DropoutCalls, InnerCalls
from normscope.subject.batch import Batch
from normscope.subject.graph.recorder import tensors_in
from normscope.subject.norms import norm_card
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import Problem
from normscope.subject.statistics import batch_norms

GIVEN_TARGETS = ("labels", "label_ids", "target", "targets")  # of models that know their loss
ROWS = 16  # that are run: exact all the same
SHIFTED = 0.95  # share of the targets that are the next token
COPIED = 0.9  # share that are the token itself: then the data repeats, and says nothing
APART = 1e-3  # relative difference of losses, from which on a line through them is known
UNSEEN = 1e-3  # change of outputs, relative, that is no more than rounding
LEAST = 4  # tokens in a sequence
SHIFTS = (0, 1, 2, 3, -1)  # tokens by which targets may be ahead
JOINED = "the rows of the batch are joined, as the nodes of a graph"
SCALES = (
    10.0,
    -10.0,
    100.0,
    -100.0,
)  # of outputs, at which the loss is asked whether it has a lower bound
NO_CALL = "loss_fn does not call the model as a whole"


@dataclass
class Looks:
    """What was found, NaN where it was not tested, and why not.

    Attributes: see `Wiring`.
    """

    mixing: float = math.nan
    mixing_by: str = ""
    across: float = math.nan
    leak: float = math.nan
    shift: int | None = None
    linear: float = math.nan
    ordered: float = math.nan
    dropping: float = 0.0
    beside: float = math.nan
    doubling: float = math.nan
    falling: float = math.nan
    padded: float = 0.0
    skipped: dict[str, str] | None = None


def looks(problem: Problem, batch: Batch, given: Any, target: Tensor | None) -> Looks:
    """Exchange rows and tokens, and halve the batch.

    Args:
        problem: model and loss.
        batch: a batch.
        given: (args, kwargs) that the model was called with on it; None if it was not.
        target: what the loss compared the outputs with.
    """
    found = Looks(skipped={})
    if batch.size < 2:
        found.skipped = {"mixing": "the batch has a single sample", "doubling": "the same"}
        return found
    _try(found, "mixing", lambda: _mixing(found, problem, given))
    _try(found, "linear", lambda: _linear(found, problem, given))
    _try(found, "ordered", lambda: _ordered(found, problem, given))
    _try(found, "leak", lambda: _leak(found, problem, given, target))
    _try(found, "doubling", lambda: _doubling(found, problem, batch))
    found.padded = _padded(given, target)
    _try(found, "falling", lambda: _falling(found, problem, batch))
    return found


def _try(found: Looks, what: str, look: Callable[[], str]) -> None:
    """Note why it cannot be tested: what a model does in evaluation mode is its own affair."""
    try:
        reason = look()
    except Exception as error:
        if out_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [""])[0][:150].rstrip(".")
        reason = f"the model cannot be run on other rows in evaluation mode ({first})"
    if reason:
        assert found.skipped is not None
        found.skipped[what] = reason


class _Evaluated:
    """The model called as it was, in evaluation mode, with the same random numbers each time."""

    def __init__(self, problem: Problem) -> None:
        def run(model: nn.Module, given: Any) -> Any:
            args, kwargs = given
            return model(*args, **kwargs)

        self._function = function_of(problem, every_parameter(problem.model), "running", run)

    def __call__(self, given: Batch) -> list[Tensor]:
        """The floating-point outputs."""
        with self._function.open(), torch.no_grad():
            out = self._function(self._function.values, given)
        return [t.detach() for t in tensors_in(out) if t.is_floating_point()]


def _mixing(found: Looks, problem: Problem, given: Any) -> str:
    if given is None:
        return NO_CALL
    batch = Batch(given)
    joined = any(b.shape == (batch.size, batch.size) for b in problem.model.buffers())
    if reason := JOINED if joined else _no_rows(batch):
        return reason
    run, size = _Evaluated(problem), batch.size
    rows = min(size, ROWS)
    drops = DropoutCalls()
    try:
        few = batch.part(0, rows)
        with drops:
            out = _with_rows(run(few), rows)
        found.dropping = drops.rate
    except Exception:
        if rows == size:
            raise
        few, rows = batch, size  # it takes no other number of samples
        out = _with_rows(run(few), rows)
    if out is None:
        return "the outputs have no row for each sample"
    place, before = out

    def changed(axis: int) -> float:
        largest = 0.0
        length = _first(few).shape[axis]
        for low, high in ((0, length // 2), (length // 2, length)):
            index = torch.arange(length)
            index[:low], index[high:] = low, low
            other = run(_picked(few, index, axis))[place]
            kept = slice(low, high)
            own, new = (t[:, kept] if axis else t[kept] for t in (before, other))
            largest = max(largest, _relative(own, new, before))
        return largest

    found.mixing = changed(0)
    first = _first(few)
    if (
        found.mixing
        and first.ndim > 1
        and before.ndim > 1
        and first.shape[1] == before.shape[1] > 1
    ):
        found.across = changed(1)
    norms = batch_norms(problem.model)
    always = [n for n, m in norms.items() if (card := norm_card(m)) is not None and card.always]
    found.mixing_by = always[0] if always else ""
    return ""


def _first(batch: Batch) -> Tensor:
    return next(t for t in tensors_in(batch.inputs) if t.ndim)


def _no_rows(batch: Batch) -> str:
    """Why the first axis may not be that of independent samples; empty if it may."""
    tensors = [t for t in tensors_in(batch.inputs) if t.ndim]
    if not tensors:
        return "the model is given no tensor"
    size = batch.size
    for tensor in tensors:
        pairs = tensor.ndim == 2 and tensor.shape[0] == 2 and not tensor.is_floating_point()
        square = tensor.shape == (size, size) and len(tensors) > 1
        joins = square and (torch.equal(tensor, tensor.T) or bool((tensor == tensor.bool()).all()))
        if (pairs and size != 2) or joins:
            return JOINED
    return ""


def _with_rows(outputs: list[Tensor], rows: int) -> tuple[int, Tensor] | None:
    """The first output with a row for each sample, and its place."""
    return next(((i, t) for i, t in enumerate(outputs) if t.ndim and len(t) == rows), None)


def _picked(batch: Batch, index: Tensor, axis: int) -> Batch:
    if axis == 0:
        return batch.rows(index)
    shape = _first(batch).shape[:2]

    def picked(leaf: Any) -> Any:
        fits = isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.shape[:2] == shape
        return leaf[:, index.to(leaf.device)] if fits else leaf

    return replace(batch, inputs=pytree.tree_map(picked, batch.inputs))


def _relative(own: Tensor, new: Tensor, scale: Tensor) -> float:
    largest = float(scale.abs().max())
    change = float((own - new).abs().max())
    return change / largest if largest > 0 and math.isfinite(change) else 0.0


def _leak(found: Looks, problem: Problem, given: Any, target: Tensor | None) -> str:
    """Where the targets are tokens shifted by one: do later tokens reach earlier outputs?"""
    if given is None or target is None:
        return "" if given is not None else NO_CALL
    batch = Batch(given)
    args, named = given
    seen = tensors_in((args, {k: v for k, v in named.items() if k not in GIVEN_TARGETS}))
    known = ((t, _shift_of(t, target)) for t in seen)
    tokens, found.shift = next((pair for pair in known if pair[1] is not None), (None, None))
    if tokens is None or found.shift not in (0, 1):
        return ""
    if tokens.is_floating_point() and found.shift == 0:  # autoencoders
        found.shift = None
        return ""
    rows, half = min(len(tokens), ROWS), tokens.shape[1] // 2
    later = tokens.clone()
    later[:, half + 1 :] = later[:, half + 1 :].flip(1).roll(1, 0)
    run = _Evaluated(problem)
    swapped = pytree.tree_map(lambda leaf: later if leaf is tokens else leaf, batch.inputs)
    both = [run(Batch(inputs).part(0, rows)) for inputs in (batch.inputs, swapped)]
    for before, after in zip(*both, strict=True):
        if before.ndim >= 2 and before.numel() % (rows * tokens.shape[1]) == 0:
            one, two = (t.reshape(rows, tokens.shape[1], -1) for t in (before, after))
            change = _relative(one[:, : half + 1], two[:, : half + 1], one)
            if found.shift == 1:
                found.leak = change
            elif change > UNSEEN:  # tokens may be copied, masked or denoised
                found.shift = None
            return ""
    return "the outputs have no row for each token"


def _shift_of(tokens: Tensor, target: Tensor) -> int | None:
    """By how many tokens the targets are ahead of these; None if they are other ones."""
    same_kind = tokens.is_floating_point() == target.is_floating_point()
    if not same_kind or tokens.ndim != 2 or tokens.shape[1] < LEAST:
        return None
    rows, length = tokens.shape
    for cut in (0, 1, 2):  # tokens that were cut off
        if length > cut and target.numel() == rows * (length - cut):
            goal = target.reshape(rows, length - cut).to(tokens)
            same = {by: _agreement(tokens, goal, by) for by in SHIFTS}
            best = max(same, key=same.__getitem__)
            others = max(share for by, share in same.items() if by != best)
            return best if same[best] > SHIFTED and others < COPIED else None
    return None


def _agreement(tokens: Tensor, goal: Tensor, by: int) -> float:
    """Share of the targets that are the tokens so many places later; ignored ones do not count."""
    length = min(tokens.shape[1] - max(by, 0), goal.shape[1] + min(by, 0))
    one = tokens[:, max(by, 0) :][:, :length]
    two = goal[:, max(-by, 0) :][:, :length]
    counted = torch.ones_like(two, dtype=torch.bool) if two.is_floating_point() else two >= 0
    return float((one == two)[counted].float().mean()) if counted.any() else 0.0


def _linear(found: Looks, problem: Problem, given: Any) -> str:
    """Is the output for a mean of two samples the mean of their outputs?"""
    if given is None:
        return NO_CALL
    leaves = [t for t in tensors_in(given) if t.ndim]
    if len(leaves) != 1 or not leaves[0].is_floating_point():
        return ""
    size = min(len(leaves[0]), ROWS)
    few = Batch(given).part(0, size)
    run = _Evaluated(problem)
    middle = few.mapped(lambda t: 2 * t - t.roll(1, 0) if t.ndim and t.is_floating_point() else t)
    pair = _with_rows(run(few), size)
    if pair is None:
        return ""
    place, plain = pair
    expected, spread = 2 * plain - plain.roll(1, 0), plain - plain.roll(1, 0)
    change = float((run(middle)[place] - expected).abs().max())
    scale = float(spread.abs().max())
    found.linear = change / scale if scale > 0 and math.isfinite(change) else math.nan
    return ""


def _ordered(found: Looks, problem: Problem, given: Any) -> str:
    """Do the outputs change when two tokens in the middle of every sample change places?"""
    if given is None:
        return NO_CALL
    leaves = [t for t in tensors_in(given) if t.ndim]
    tokens = leaves[0] if leaves else None
    if tokens is None or tokens.is_floating_point() or tokens.ndim != 2 or tokens.shape[1] < LEAST:
        return ""
    rows = min(len(tokens), ROWS)
    turned = tokens.clone()
    turned[:, :LEAST] = tokens[:, :LEAST].flip(1)
    swapped = pytree.tree_map(lambda leaf: turned if leaf is tokens else leaf, given)
    run = _Evaluated(problem)
    both = [run(Batch(inputs).part(0, rows)) for inputs in (given, swapped)]
    pair = _with_rows(both[0], rows)
    if pair is not None and pair[1].ndim == 2 and bool((turned != tokens).any()):
        found.ordered = _relative(pair[1], both[1][pair[0]], pair[1])
    return ""


def _doubling(found: Looks, problem: Problem, batch: Batch) -> str:
    """Loss of an even number of samples over the mean of its two halves."""
    half = min(batch.size, ROWS) // 2
    parts = [batch.part(0, 2 * half), batch.part(0, half), batch.part(half, 2 * half)]
    function = function_of(
        problem, every_parameter(problem.model), "running", problem.objective.run
    )
    values, inner = [], list[float]()
    for part in map(function.prepared, parts):
        calls = InnerCalls(lambda: None)
        with function.open(), torch.no_grad(), calls:
            values.append(float(function.loss(function(function.values, part), part)))
        inner += [o["value"] for _, o, _, _ in calls.seen if "value" in o and len(calls.seen) == 1]
    whole, halves = values[0], (values[1] + values[2]) / 2
    if abs(halves) > 1e-12 and math.isfinite(whole / halves):
        found.doubling = whole / halves
    if len(inner) == len(parts) and abs(inner[1] - inner[2]) > APART * abs(inner[1]):
        slope = (values[1] - values[2]) / (inner[1] - inner[2])  # a multiple is no other term
        found.beside = 1 - slope * inner[0] / whole
    return ""


def _falling(found: Looks, problem: Problem, batch: Batch) -> str:
    """Loss at outputs of twice the size over that at once, where both are below zero.

    2 of a loss that is linear in them, more where it falls faster and faster.
    """
    few, model = batch.part(0, min(batch.size, ROWS)), problem.model
    factor = 1.0

    def scaled(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        def grown(leaf: Any) -> Any:
            real = isinstance(leaf, Tensor) and leaf.is_floating_point()
            return leaf * factor if real else leaf

        return pytree.tree_map(grown, outputs)

    function = function_of(problem, every_parameter(model), "running", problem.objective.run)
    few = function.prepared(few)
    ratios = []
    for scale in SCALES:
        values = []
        for times in (1, 2):
            factor = scale * times
            with function.open(), torch.no_grad():
                model.register_forward_hook(scaled)  # gone with the session
                values.append(float(function.loss(function(function.values, few), few)))
        if -math.inf < values[0] < 0:
            ratios.append(values[1] / values[0])
    found.falling = max(ratios, default=math.nan)
    return ""


def _padded(given: Any, target: Tensor | None) -> float:
    """Share of the targets at padding: one token that stands only at ends, with one label."""
    tokens = next((t for t in tensors_in(given) if t.ndim == 2 and not t.is_floating_point()), None)
    if tokens is None or target is None or target.shape != tokens.shape or len(tokens) < LEAST:
        return 0.0
    inside = tokens == tokens[:, -1].mode().values
    behind = inside.flip(1).cummin(1).values.flip(1)
    labels = target[inside]
    alone = bool((inside == behind).all()) and bool((labels == labels[0]).all())
    return float(inside.float().mean()) if alone and labels[0] >= 0 else 0.0
