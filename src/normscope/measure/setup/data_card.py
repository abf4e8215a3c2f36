"""What batches look like, without the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.results.data_card import DataCard
from normscope.subject.batch import Batch
from normscope.subject.graph.recorder import tensors_in

WIDEST = 5000  # numbers in a row, up to which copies are looked for
FEW = 8  # rows, of which so many copies are chance
DISTINCT = 20000  # numbers among which distinct ones are counted
SHUFFLES, SIGMAS = 20, 4.0  # and how far beyond them order is no chance
ENOUGH, SAME = 32, 0.999999  # rows, and correlation from which two columns are the same
ALIKE, MARGIN = 0.5, 0.05  # correlation of pixels, and by how much it is larger
ROWS, OFFSET = 1e-3, 2.0  # of a standardized row, and mean over deviation of a column that is not
MANY = 1000  # classes whose counts are kept
STILL = 1e-8  # deviation, of the largest value, of a feature that does not vary


def data_card(
    batches: Sequence[Batch], given: Tensor | None, target: Tensor | None, classes: int = 0
) -> DataCard:
    """Scale, labels, order and repetitions of batches.

    Args:
        batches: as they come.
        given: what the model was given of the first; None if it is not known.
        target: what the loss compared with.
        classes: how many the model tells apart.
    """
    rows = [tensors_in((b.inputs, b.targets)) for b in batches]
    at, goal = (_place(rows[0], one) for one in (given, target))
    if at is None:
        reason = "the inputs of the model are not among the tensors of a batch"
        return DataCard(batches=len(batches), reason=reason)
    inputs = [tensors[at] for tensors in rows if len(tensors) > at]
    same = [x for x in inputs if x.shape[1:] == inputs[0].shape[1:]]
    found: dict[str, Any] = {"samples": sum(map(len, same)), "batches": len(same)}
    found |= _of_inputs(torch.cat(same))
    if goal is not None:
        targets = [tensors[goal] for tensors in rows if len(tensors) > goal]
        found |= _of_labels(targets)
        found["given_away"] = _given_away(torch.cat(same), torch.cat(targets[: len(same)]))
    return DataCard(batch=len(inputs[0]), classes=classes, **found)


def _place(tensors: list[Tensor], wanted: Tensor | None) -> int | None:
    """Which tensor of a batch it is, in another shape or type perhaps."""
    if wanted is None:
        return None
    wanted = wanted.detach().cpu()
    for place, tensor in enumerate(tensors):
        if tensor.ndim and tensor.numel() == wanted.numel():
            same = tensor.detach().cpu().reshape(-1).to(wanted.dtype)
            if torch.equal(same, wanted.reshape(-1)):
                return place
    return None


def _of_inputs(x: Tensor) -> dict[str, Any]:
    flat = x.reshape(len(x), -1)
    found: dict[str, Any] = {"bits": _bits(flat), "tokens": not x.is_floating_point()}
    if len(flat) >= FEW and flat.shape[1] <= WIDEST:
        found["duplicates"] = 1 - len(torch.unique(flat, dim=0)) / len(flat)
    if not x.is_floating_point():
        constant = len(x) > 1 and bool((flat == flat[:1]).all())
        return found | {"variation": 0.0 if constant else 1.0}
    found["scrambled"] = _scrambled(x)
    found["by_row"] = _by_row(x)
    flat = flat.double()
    square = float(flat.square().mean())
    deviation = float(flat.std(correction=0))
    found["rms"] = math.sqrt(square)
    found["offset"] = abs(float(flat.mean())) / max(deviation, 1e-30)
    if len(flat) > 1:
        spread = float(flat.var(0, correction=0).mean())
        found["variation"] = spread / square if square > 0 else 0.0
    return found | _of_features(x.double())


def _bits(flat: Tensor) -> float:
    distinct = len(torch.unique(flat.reshape(-1)[:DISTINCT]))
    return flat.shape[1] * math.log2(max(distinct, 1))


def _of_features(x: Tensor) -> dict[str, Any]:
    """By feature, or by channel of an image."""
    if x.ndim < 2:
        return {}
    columns = x.movedim(1 if x.ndim > 3 else -1, -1).reshape(-1, x.shape[1 if x.ndim > 3 else -1])
    deviations, sizes = columns.std(0, correction=0), columns.square().mean(0).sqrt()
    live = deviations > STILL * max(float(columns.abs().max()), 1e-300)
    found = {"constant_features": float((~live).double().mean())}
    if int(live.sum()) < 2:
        return found
    places = live.nonzero().reshape(-1)
    ratios = [kind[live] / kind[live].median().clamp_min(1e-300) for kind in (deviations, sizes)]
    best = max(ratios, key=lambda ratio: float(ratio.max()))
    return found | {
        "feature": int(places[int(best.argmax())]), "feature_ratio": float(best.max())
    }  # fmt: skip


def _given_away(x: Tensor, y: Tensor) -> int:
    """The input feature that is the target, but for scale and offset; -1 if none is."""
    if y.numel() != len(y) or len(x) != len(y) or len(x) < ENOUGH or not x.is_floating_point():
        return -1
    columns = torch.cat([x.reshape(len(x), -1).double(), y.reshape(-1, 1).double()], 1)
    columns = columns - columns.mean(0)
    norms = columns.norm(dim=0)
    match = (columns[:, :-1].T @ columns[:, -1]).abs() / (norms[:-1] * norms[-1]).clamp_min(1e-300)
    best = int(match.argmax())
    return best if float(match[best]) > SAME else -1


def _by_row(x: Tensor) -> bool:
    """Whether rows of a table have mean 0 and deviation 1, and most of its columns have not."""
    if x.ndim != 2 or x.shape[1] < FEW // 2 or len(x) < FEW:
        return False
    x = x.double()
    near = (x.mean(1).abs() < ROWS) & ((x.std(1) - 1).abs() * x.shape[1] < 1)
    return bool(near.all()) and bool((x.mean(0).abs() > OFFSET * x.std(0)).double().mean() > 0.5)


def _scrambled(x: Tensor) -> bool:
    """Whether images with the channels last were read as if these came first.

    Neighbours along a row are then the channels of one pixel, and the same channel comes again
    after as many places: values so far apart are more alike than neighbours.
    """
    if x.ndim != 4 or not 1 < x.shape[1] < x.shape[3] // 2 or len(x) < FEW:
        return False
    rows = (x - x.mean((0, 1, 2), keepdim=True)).double()

    def alike(places: int) -> float:
        one, two = rows[..., places:], rows[..., :-places]
        return float((one * two).sum() / (one.norm() * two.norm()).clamp_min(1e-300))

    return alike(x.shape[1]) > max(alike(1) + MARGIN, ALIKE)


def _of_labels(targets: list[Tensor]) -> dict[str, Any]:
    """Where the targets are one label per sample."""
    rows = [t.reshape(len(t), -1) for t in targets]
    if any(t.shape[1] != 1 for t in rows):
        return {}
    whole = [t for t in rows if not t.is_floating_point() or bool(((t == 0) | (t == 1)).all())]
    if len(whole) < len(rows):
        return {}
    labels = torch.cat([t.long().reshape(-1) for t in rows])
    each = [len(torch.unique(t)) for t in rows]
    names, labels = torch.unique(labels, return_inverse=True)
    found: dict[str, Any] = {"labels": len(names), "labels_per_batch": sum(each) / len(each)}
    if int(names.min()) >= 0 and int(names.max()) < MANY:
        found["counts"] = tuple(torch.bincount(torch.cat(rows).reshape(-1).long()).tolist())
    if len(rows) > 1 and len(names) > 1:
        found["sorting"] = _sorting(labels, [len(t) for t in rows])
    return found


def _sorting(labels: Tensor, sizes: list[int]) -> float:
    """How much the batch tells of the label, beyond what it tells of shuffled ones: 0 to 1.

    0 where shuffled ones come as far by chance: few samples in a batch.
    """
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    classes = int(labels.max()) + 1

    def shared(of: Tensor) -> float:
        counts = torch.bincount(batch * classes + of, minlength=len(sizes) * classes)
        joint = counts.reshape(len(sizes), classes).double() / len(of)
        apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        return float(torch.special.xlogy(joint, joint / apart.clamp_min(1e-30)).sum())

    generator = torch.Generator().manual_seed(0)
    shuffled = [shared(labels[torch.randperm(len(labels), generator=generator)])
                for _ in range(SHUFFLES)]  # fmt: skip
    by_chance = sum(shuffled) / SHUFFLES
    scatter = math.sqrt(sum((one - by_chance) ** 2 for one in shuffled) / (SHUFFLES - 1))
    if shared(labels) < by_chance + SIGMAS * scatter:
        return 0.0
    share = torch.bincount(labels).double() / len(labels)
    largest = min(float(-torch.special.xlogy(share, share).sum()), math.log(len(sizes)))
    return (shared(labels) - by_chance) / max(largest - by_chance, 1e-9)
