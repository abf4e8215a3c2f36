"""Exact curvature matrices of weights, from the gradients of single samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.errors import InputError, MeasurementError
from normscope.measure.probes._conditioning_factors import weight_factors, weight_rows
from normscope.measure.probes._conditioning_moments import add_gram
from normscope.measure.probes.sites import Site
from normscope.measure.probes.spectra import rounding_share
from normscope.results.conditioning import CurvatureBlock
from normscope.results.eigenvalues import MomentSpectrum
from normscope.subject.memory import readable_bytes

COPIES = 3  # of a matrix that exist at once: the sum, LAPACK's copy and its work space
PIECE = 2.5e8  # bytes of rows that are multiplied at a time
NOT_SUMMED = (
    "the gradients of single samples do not add up to that of the weight: it is used in another "
    "form too (transposed, or in parts)"
)
NOT_SAMPLES = (
    "the gradient of one sample is unknown: its first axis does not count samples, or they are "
    "tied together outside of known norm layers"
)


@dataclass
class _Weight:
    """One weight: the factors of its uses in the present pass, and what is known of it."""

    name: str
    uses: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    size: int = 0
    reason: str = ""

    def rows(self, part: slice) -> Tensor:
        """Gradients of some samples, summed over the uses, (n, size) float64."""
        found = [weight_rows(a[part].double(), b[part].double()) for a, b in self.uses]
        return torch.stack(found).sum(0) if len(found) > 1 else found[0]


class ExactCurvature:
    """Sums u u^T over samples, u the gradient of one sample in the weights of one or all layers.

    Args:
        full: sum over the weights of all layers together, not layer by layer.
        budget: bytes that all matrices may take.
    """

    def __init__(self, *, full: bool, budget: int) -> None:
        self._full = full
        self._budget = budget
        self._weights: dict[str, _Weight] = {}
        self._inputs: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._dtype = torch.float64

    def enter(self, site: Site, x: Tensor) -> None:
        """``x`` goes into ``site``: kept until the batch is done."""
        self._weights.setdefault(_key(site), _Weight(_key(site)))
        self._inputs[site.name] = x
        self._dtype = x.dtype

    def take(self, site: Site, g: Tensor, samples: int) -> None:
        """``g`` is the gradient of what came out of ``site``."""
        weight = self._weights[_key(site)]
        x = self._inputs.get(site.name)
        if weight.reason or x is None:
            return
        if x.ndim < 2 or len(site.rows(x)) != samples or len(site.rows(g)) != samples:
            weight.reason = NOT_SAMPLES
            return
        weight.uses.append(weight_factors(site, x, g))

    def certify(self, gradients: Mapping[str, Tensor | None], *, alone: bool) -> None:
        """Compare the sum over samples with the gradient of the weight.

        ``alone``: only the first sample was sent back, so that all other rows must vanish.
        """
        for weight in self._weights.values():
            known = gradients.get(weight.name)
            if not weight.reason and weight.uses:
                rows = weight.rows(slice(None))
                total = rows.sum(0)
                scale = float(rows.abs().max())
                if alone and len(rows) > 1 and bool(rows[1:].any()):
                    weight.reason = NOT_SAMPLES
                elif known is not None and not _close(total, known.reshape(-1), scale):
                    weight.reason = NOT_SUMMED

    def forget(self) -> None:
        """Drop what the present pass has given."""
        for weight in self._weights.values():
            weight.uses.clear()

    def doubtful(self, site: Site, reason: str) -> None:
        """Leave out the weight of ``site``."""
        weight = self._weights.setdefault(_key(site), _Weight(_key(site)))
        weight.reason = weight.reason or reason

    def flush(self) -> None:
        """One pass is over: add u u^T of its samples."""
        used = [w for w in self._weights.values() if w.uses and not w.reason]
        if not used:
            return
        samples = len(used[0].uses[0][0])
        for weight in used:
            weight.size = weight.size or weight.rows(slice(0, 1)).shape[1]
        groups = [used] if self._full else [[weight] for weight in used]
        for group in groups:
            self._add(group, samples)
        self._count += samples
        self.forget()

    def _add(self, group: list[_Weight], samples: int) -> None:
        size = sum(weight.size for weight in group)
        key = "" if self._full else group[0].name
        if key not in self._sums and not self._has_room(group, size):
            return
        total = self._sums.setdefault(key, torch.zeros(size, size, dtype=torch.float64))
        if len(total) != size:
            raise MeasurementError(
                "The weights with a gradient differ between batches, so that the full matrix has "
                "no fixed size. Use exact='blocks'."
            )
        step = max(1, int(PIECE / (8 * size)))
        for start in range(0, samples, step):
            part = slice(start, start + step)
            rows = torch.cat([weight.rows(part) for weight in group], dim=1).cpu()
            add_gram(total, rows.T)

    def _has_room(self, group: list[_Weight], size: int) -> bool:
        held = sum(8 * total.numel() for total in self._sums.values())
        needed = COPIES * 8 * size**2
        if held + needed <= self._budget:
            return True
        text = (
            f"its matrix of {size} x {size} needs {readable_bytes(needed)}, and the budget leaves "
            f"{readable_bytes(max(self._budget - held, 0))}"
        )
        if self._full:
            raise InputError(
                f"exact='full': {text}. Use exact='blocks', fewer layers (layers=...), raise "
                "memory=..., or ask for top_eigenvalues(fisher(risk))."
            )
        group[0].reason = f"{text}; raise memory=... or ask for top_eigenvalues(fisher(risk))"
        return False

    def release(self) -> None:
        """The batch is done."""
        self._inputs.clear()

    def result(self) -> tuple[tuple[CurvatureBlock, ...], CurvatureBlock | None]:
        """One block per weight in forward order, and the full matrix if it was summed."""
        for total in self._sums.values():
            total.div_(self._count)
        blocks, full, start = [], None, 0
        for weight in self._weights.values():
            matrix = self._sums.get(weight.name)
            if self._full and weight.size:
                stop = start + weight.size
                matrix = self._sums[""][start:stop, start:stop]
                start = stop
            blocks.append(self._block(weight, matrix))
        if self._full and "" in self._sums:
            everything = _Weight("all weights", size=len(self._sums[""]))
            full = self._block(everything, self._sums[""])
        return tuple(blocks), full

    def _block(self, weight: _Weight, matrix: Tensor | None) -> CurvatureBlock:
        if weight.reason or matrix is None:
            reason = weight.reason or "no gradient reaches its output"
            return CurvatureBlock(weight.name, weight.size, None, reason)
        values = torch.linalg.eigvalsh(matrix, UPLO="U").flip(0).numpy()
        tolerance = rounding_share(len(values), self._dtype)
        return CurvatureBlock(weight.name, weight.size, MomentSpectrum.of(values, rtol=tolerance))


def _key(site: Site) -> str:
    return site.weight or site.name


def _close(found: Tensor, exact: Tensor, scale: float) -> bool:
    tolerance = torch.finfo(exact.dtype).eps ** 0.6
    gap = float((found - exact.to(found)).abs().max())
    return gap <= tolerance * max(scale, float(exact.abs().max()))
