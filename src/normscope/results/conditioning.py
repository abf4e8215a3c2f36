"""Layer-wise conditioning of a network: spectra of input and output-gradient moments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import check_choice, near_match
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.eigenvalues import KroneckerSpectrum, MomentSpectrum, SignedSpectrum
from normscope.results.layers import Coverage

PARTS = ("inputs", "gradients", "fisher", "exact")


@dataclass(frozen=True, eq=False, repr=False)
class CurvatureBlock(Record):
    """The exact curvature matrix of the weights of one layer, or of all layers together.

    Attributes:
        name: name of the weight; of the full matrix ``"all weights"``.
        size: number of weights, rows of the matrix.
        spectrum: all its eigenvalues; None if it was left out.
        reason: why it was left out.
    """

    name: str
    size: int
    spectrum: MomentSpectrum | SignedSpectrum | None
    reason: str = ""

    def __repr__(self) -> str:
        return f"CurvatureBlock({self.name!r}, {self.spectrum or self.reason})"


@dataclass(frozen=True, eq=False, repr=False)
class LayerConditioning(Record):
    """One use of one layer: Sigma_x of what goes in, Sigma_grad of the gradient of what comes out.

    Attributes:
        name: name of the layer, ``#2`` for its second use.
        number: number of the weighted layer, from 1 in forward order.
        kind: ``"linear"`` or ``"conv"``.
        weight: name of the weight, None if it is computed from others.
        inputs: spectrum of Sigma_x.
        gradients: spectrum of Sigma_grad.
        rows: examples x positions that Sigma_grad is a mean over.
        input_moment: Sigma_x itself, if asked for.
        gradient_moment: Sigma_grad itself, if asked for.
    """

    name: str
    number: int
    kind: str
    weight: str | None
    inputs: MomentSpectrum
    gradients: MomentSpectrum
    rows: int
    input_moment: Array | None = None
    gradient_moment: Array | None = None

    @property
    def fisher(self) -> KroneckerSpectrum:
        """Spectrum of Sigma_x (x) Sigma_grad, the factored Fisher matrix of the layer."""
        return KroneckerSpectrum(self.inputs, self.gradients)

    def __repr__(self) -> str:
        return (
            f"LayerConditioning({self.number} {self.name!r}: lambda_max {self.inputs.largest:.3g} "
            f"in, {self.gradients.largest:.3g} gradient)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Conditioning(Drawable):
    """Spectra of all layers, in forward order.

    The chart: lambda_max and kappa_p by layer.

    Attributes:
        layers: those that were measured.
        coverage: all layers, with the reasons for those left out.
        convention: what was measured and how.
        p: the shares of kappa_p shown in tables and charts; others can be asked for.
        blocks: exact curvature matrices of single weights, if asked for.
        full: the exact matrix of all weights, if asked for.
        hessians: exact Hessians of single weights, if asked for.
        seed: seed for labels, dropout and order.
    """

    layers: tuple[LayerConditioning, ...]
    coverage: Coverage
    convention: dict[str, str]
    p: tuple[float, ...]
    blocks: tuple[CurvatureBlock, ...] = field(default=())
    full: CurvatureBlock | None = None
    hessians: tuple[CurvatureBlock, ...] = field(default=())
    seed: int = 0

    def __getitem__(self, layer: str | int) -> LayerConditioning:
        for one in self.layers:
            if layer in (one.name, one.number):
                return one
        known = [one.name for one in self.layers]
        raise InputError(f"No measured layer {layer!r}. {near_match(str(layer), known)}")

    def __iter__(self) -> Iterator[LayerConditioning]:
        return iter(self.layers)

    def block(self, layer: str | int) -> CurvatureBlock:
        """The exact matrix of the weight of a layer, by its name or number."""
        return self._block_of(self[layer], self.blocks, "exact='blocks'")

    def hessian(self, layer: str | int) -> CurvatureBlock:
        """The exact Hessian of the weight of a layer, by its name or number."""
        return self._block_of(self[layer], self.hessians, "hessian=True")

    def _block_of(
        self, layer: LayerConditioning, blocks: tuple[CurvatureBlock, ...], option: str
    ) -> CurvatureBlock:
        for block in blocks:
            if block.name == (layer.weight or layer.name):
                return block
        raise InputError(f"There is no such matrix of {layer.name!r}. Measure with {option}.")

    def spectra(self, of: str) -> list[MomentSpectrum | KroneckerSpectrum | None]:
        """Of each layer: ``"inputs"``, ``"gradients"``, ``"fisher"`` (factored) or ``"exact"``."""
        check_choice("part", of, PARTS)
        if of != "exact":
            return [getattr(layer, of) for layer in self.layers]
        found = [self._block_of(layer, self.blocks, "exact='blocks'") for layer in self.layers]
        return [b.spectrum if isinstance(b.spectrum, MomentSpectrum) else None for b in found]

    def lambda_max(self, of: str = "fisher") -> Array:
        """The largest eigenvalue of each layer; NaN where there is none."""
        return np.array([math.nan if s is None else s.largest for s in self.spectra(of)])

    def kappa(self, p: float = 1.0, of: str = "fisher") -> Array:
        """kappa_p of each layer; NaN where there is none.

        Infinite where the matrix has a lower rank than p times its size, as with fewer samples
        than that; ``finite_share`` of a spectrum is the largest p for which it is finite.
        """
        return np.array([math.nan if s is None else s.kappa(p) for s in self.spectra(of)])

    def to_frame(self) -> DataFrame:
        """One row per layer, those left out included, with the reason."""
        measured = {layer.name: self._columns(layer) for layer in self.layers}
        layers = self.coverage.layers
        return framed([layer.numbered_row(**measured.get(layer.name, {})) for layer in layers])

    def _columns(self, layer: LayerConditioning) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "d_in": len(layer.inputs.values),
            "d_out": len(layer.gradients.values),
            "rows": layer.rows,
        }
        for of in PARTS[:3]:
            columns |= self._numbers(getattr(layer, of), of)
        if self.blocks:
            block = self._block_of(layer, self.blocks, "")
            if isinstance(block.spectrum, MomentSpectrum):
                columns |= self._numbers(block.spectrum, "exact")
            columns["exact_reason"] = block.reason
        if self.hessians:
            spectrum = self._block_of(layer, self.hessians, "").spectrum
            if isinstance(spectrum, SignedSpectrum):
                columns["hessian_max"], columns["hessian_min"] = spectrum.largest, spectrum.smallest
        return columns

    def _numbers(self, spectrum: MomentSpectrum | KroneckerSpectrum, of: str) -> dict[str, float]:
        numbers = {f"lambda_max_{of}": spectrum.largest, f"trace_{of}": spectrum.trace}
        return numbers | {f"kappa_{100 * p:g}_{of}": spectrum.kappa(p) for p in self.p}

    def summary(self) -> str:
        """A few lines for a terminal."""
        p = self.p[0]
        lines = [
            f"Conditioning of {len(self.layers)} layers, {self.convention.get('samples', '')}",
            f"  {'layer':25s}  lambda_max: inputs  gradients  F_k      kappa_{100 * p:g}% F_k",
        ]
        shown = self.layers if len(self.layers) <= 12 else (*self.layers[:6], *self.layers[-6:])
        lines += [_line(layer, p) for layer in shown]
        if len(shown) < len(self.layers):
            lines.insert(8, f"  ... {len(self.layers) - 12} more")
        if self.full is not None and isinstance(self.full.spectrum, MomentSpectrum):
            spectrum = self.full.spectrum
            lines.append(
                f"  all {self.full.size} weights, exact: lambda_max {spectrum.largest:.4g}, trace "
                f"{spectrum.trace:.4g}, kappa_{100 * p:g}% {spectrum.kappa(p):.3g}"
            )
        lines += self._singular(p)
        lines.append(
            "F_k = Sigma_x (x) Sigma_grad; lambda_max F_k is the size of the layer's gradients, "
            "kappa_p how much the curvature differs between its directions"
        )
        return "\n".join([*lines, self.coverage.summary()])

    def _singular(self, p: float) -> list[str]:
        """Why kappa_p is infinite, and for which p it is not."""
        found: list[tuple[str, MomentSpectrum | KroneckerSpectrum]] = []
        found += [(layer.name, layer.fisher) for layer in self.layers]
        if self.full is not None and isinstance(self.full.spectrum, MomentSpectrum):
            found.append(("all weights", self.full.spectrum))
        found = [(name, s) for name, s in found if math.isinf(s.kappa(p))]
        if not found:
            return []
        name, least = min(found, key=lambda pair: pair[1].finite_share)
        share = math.floor(1000 * least.finite_share) / 10
        return [
            f"  kappa_{100 * p:g}% is infinite in {len(found)} of these matrices, because of their "
            f"low rank ({name!r}: rank {least.rank} of {least.size}); kappa_{share:g}% is finite "
            "in all of them. More samples raise the rank."
        ]

    def __repr__(self) -> str:
        largest = self.lambda_max("fisher")
        return (
            f"Conditioning({len(self.layers)} layers, lambda_max of F_k {largest.min():.3g} to "
            f"{largest.max():.3g})"
        )


def _line(layer: LayerConditioning, p: float) -> str:
    return (
        f"  {layer.number:4d} {layer.name:32.32s}  {layer.inputs.largest:<8.3g}  "
        f"{layer.gradients.largest:<9.3g}  {layer.fisher.largest:<8.3g} {layer.fisher.kappa(p):.3g}"
    )


@dataclass(frozen=True, eq=False)
class ConditioningCost(Record):
    r"""What a conditioning analysis costs, in multiplications up to constants (Huang, sec. B).

    For ``depth`` layers of ``width`` units and ``samples`` examples, as (assembling, eigenvalues):

    .. math:: N (L d^2)^2 + (L d^2)^3,\quad N L (d^2)^2 + L (d^2)^3,\quad N L d^2 + L d^3

    for the full matrix, its diagonal blocks, and the Kronecker factors.

    Example:
        >>> cost = ConditioningCost(depth=8, width=24, samples=10000)
        >>> cost.full[1] // cost.blocks[1], cost.blocks[1] // cost.factored[1]
        (64, 13824)
    """

    depth: int
    width: int
    samples: int

    def __post_init__(self) -> None:
        for name in ("depth", "width", "samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number from 1 on. Got {value!r}.")

    @property
    def full(self) -> tuple[int, int]:
        """Of the matrix of all weights."""
        size = self.depth * self.width**2
        return self.samples * size**2, size**3

    @property
    def blocks(self) -> tuple[int, int]:
        """Of one exact matrix per layer."""
        size = self.width**2
        return self.samples * self.depth * size**2, self.depth * size**3

    @property
    def factored(self) -> tuple[int, int]:
        """Of Sigma_x and Sigma_grad of each layer."""
        return self.samples * self.depth * self.width**2, self.depth * self.width**3
