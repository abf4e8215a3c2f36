"""The probe of `conditioning`: moments of inputs as they pass, of gradients as they return."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from normscope.checks import Array
from normscope.errors import InputError
from normscope.measure.probes._conditioning_exact import ExactCurvature
from normscope.measure.probes._conditioning_factors import patch_gram
from normscope.measure.probes._conditioning_factors import patches as window_patches
from normscope.measure.probes._conditioning_moments import LARGEST, RawMoment
from normscope.measure.probes._conditioning_slopes import KINDS, LABELS
from normscope.measure.probes.moments import SecondMoment
from normscope.measure.probes.probe import Pass, Probe, SkipLayer
from normscope.measure.probes.sites import Site
from normscope.measure.probes.spectra import moment_spectrum
from normscope.results.conditioning import LayerConditioning
from normscope.results.eigenvalues import MomentSpectrum
from normscope.seeds import checked_seed, numpy_generator
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.memory import readable_bytes

SCALES = {
    "example": "gradient of each example's own loss",
    "position": "gradient of each example's own loss, times the number of positions (a loss "
    "averaged over positions: lambda_max grows by its square)",
}
COPIES = 4  # of a moment that exist at once: the sum, a batch's, LAPACK's copy and work space
PIECE = 2**22  # numbers in rows of patches that are laid out at a time


class _Layer:
    """The moments of one site."""

    def __init__(self, site: Site, dtype: torch.dtype, *, centred: bool) -> None:
        self.site = site
        self.dtype = dtype
        make = SecondMoment if centred else RawMoment
        self.inputs: SecondMoment | RawMoment = make()
        self.gradients: SecondMoment | RawMoment = make()
        self.failure = ""
        self.complete = False  # both moments are known to fit


@dataclass(eq=False)
class MomentProbe(Probe, ABC):
    """Sums Sigma_x as signals pass, and Sigma_g in backward passes that its subclasses make."""

    kind: str
    centered: bool
    spatial_scale: str
    patches: bool
    exact: ExactCurvature | None
    keep_batches: bool
    budget: int
    seed: int

    def __post_init__(self) -> None:
        self._used = self._samples = 0
        self._layers: dict[str, _Layer] = {}
        self._certified = False
        self.generator = numpy_generator(checked_seed(self.seed), "labels of conditioning")
        self.batches: list[Any] = []

    # ---- forward

    def starting(self, batch: Batch) -> None:
        self._samples = batch.size

    def entering(self, site: Site, x: Tensor) -> None:
        if not site.matrix:
            raise SkipLayer("its weight is no single matrix that meets the signal at each position")
        layer = self._layers.get(site.name)
        if layer is None:
            layer = self._layers[site.name] = _Layer(site, x.dtype, centred=self.centered)
            width = _width(site, x, self.patches)
            self._reserve(width, "input", rows=site.rows(x).shape[:2].numel())
        if self.patches and site.geometry is not None:
            _add_patches(layer.inputs, site, x)
        else:
            layer.inputs.add(site.rows(x))
        if self.exact is not None:
            self.exact.enter(site, x)

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        layer = self._layers[site.name]
        if not layer.complete:
            rows = site.rows(out)
            self._reserve(rows.shape[-1], "gradient", rows=rows.shape[:2].numel())
            layer.complete = True

    def _reserve(self, width: int, what: str, *, rows: int) -> None:
        wide = width > LARGEST and not self.centered  # then rows are kept, or nothing
        held = 8 * width * min(width, rows if wide else width)
        needed = COPIES * held
        if self._used + needed > self.budget:
            raise SkipLayer(
                f"its {what} moment of {width} x {width} needs {readable_bytes(needed)}, and the "
                f"budget leaves {readable_bytes(max(self.budget - self._used, 0))}; raise "
                "memory=... or choose layers=..."
            )
        self._used += held

    # ---- backward

    def take(self, site: Site, g: Tensor) -> None:
        """``g``: the gradient of each example's own loss in what came out of ``site``."""
        layer = self._layers.get(site.name)
        if layer is None or layer.failure:
            return
        if not bool(g.sum().isfinite()) and not bool(g.isfinite().all()):
            layer.failure = "the gradient of its output is not finite"
            return
        rows = site.rows(g)
        if self.spatial_scale == "position":
            rows = rows * (rows.shape[:2].numel() / max(self._samples, 1))
        layer.gradients.add(rows)
        if self.exact is not None:
            self.exact.take(site, g, self._samples)

    def finished(self, run: Pass) -> None:
        if self.keep_batches:
            self.batches.append(run.batch)
        self.send_back(run)
        if self.exact is not None:
            self.exact.release()

    @abstractmethod
    def send_back(self, run: Pass) -> None:
        """Make the backward passes, if they are not made yet."""

    # ---- results

    def verdict(self, site: Site) -> tuple[str, str] | None:
        layer = self._layers.get(site.name)
        if layer is None:
            return ("skipped", "no signal reaches it")
        if layer.failure:
            return ("failed", layer.failure)
        if layer.gradients.count == 0:
            return ("skipped", "no gradient of the loss reaches its output")
        for moment, what in ((layer.inputs, "input"), (layer.gradients, "gradient")):
            if isinstance(moment, RawMoment) and moment.too_large:
                return (
                    "skipped",
                    f"its {what} moment of {moment.size} x {moment.size} takes too long to "
                    f"diagonalize; with at most {moment.size // 2} rows in all it can be done",
                )
        return None

    def layer(self, name: str, *, keep: bool) -> LayerConditioning:
        """The spectra of one site."""
        one = self._layers[name]
        # The score has mean zero over the model's labels: rows of kind "true" are not draws of it.
        mean_free = self.centered and self.kind != "true"
        return LayerConditioning(
            name=name,
            number=one.site.layer,
            kind=one.site.kind,
            weight=one.site.weight,
            inputs=_spectrum(one.inputs, one.dtype, centred=self.centered),
            gradients=_spectrum(one.gradients, one.dtype, centred=mean_free),
            rows=one.gradients.count,
            input_moment=_array(one.inputs, centred=self.centered) if keep else None,
            gradient_moment=_array(one.gradients, centred=mean_free) if keep else None,
        )

    @property
    def convention(self) -> dict[str, str]:
        """What the moments are, in words."""
        return {
            "labels": LABELS[self.kind],
            "moments": "covariances" if self.centered else "uncentred second moments E[v v^T]",
            "gradient scale": SCALES[self.spatial_scale],
            "convolutions": "patches under the window" if self.patches else "one row per position",
        }


class SlopeMoments(MomentProbe):
    """Sends chosen slopes of the outputs back."""

    keeps_graph = True

    def sees(self, site: Site, *, selected: bool, gradients: bool) -> bool:
        return selected and site.kind in self.watches

    def send_back(self, run: Pass) -> None:
        if not any(leaf.requires_grad for leaf in float_leaves(run.outputs)):
            raise InputError(
                "The outputs do not depend on any parameter of the model: every gradient is zero. "
                "Are they detached?"
            )
        for slopes in KINDS[self.kind](run, self.generator):
            if self.exact is not None and not self._certified:
                self._certify(run, slopes, self.exact)
            run.replayed(slopes, self.take, parameters=False)
            if self.exact is not None:
                self.exact.flush()

    def _certify(self, run: Pass, slopes: list[Tensor], exact: ExactCurvature) -> None:
        """One sample sent back alone must leave no trace at the others."""
        self._certified = True
        by_sample = all(s.ndim > 0 and s.shape[0] == self._samples for s in slopes)
        alone = by_sample and not run.function.coupled
        if alone:
            slopes = [torch.cat([s[:1], torch.zeros_like(s[1:])]) for s in slopes]

        def tell(site: Site, g: Tensor) -> None:
            _take_checked(exact, site, g, self._samples, sure=alone)

        exact.certify(run.replayed(slopes, tell), alone=alone)
        exact.forget()


class LossMoments(MomentProbe):
    """For ``loss_fn(model, batch)``: the gradient of the loss, times the size of the batch."""

    needs_gradients: ClassVar[bool] = True

    def gradient(self, site: Site, x: Tensor, g: Tensor) -> None:
        scaled = g * self._samples
        if self.exact is not None and not self._certified:
            _take_checked(self.exact, site, scaled, 0, sure=False)
        self.take(site, scaled)

    def send_back(self, run: Pass) -> None:
        if self.exact is None:
            return
        if not self._certified:
            self._certified = True
            found = run.gradients.items()
            scaled = {name: None if g is None else g * self._samples for name, g in found}
            self.exact.certify(scaled, alone=False)
        self.exact.flush()


def _take_checked(
    exact: ExactCurvature, site: Site, g: Tensor, samples: int, *, sure: bool
) -> None:
    """Take a gradient; leave out sequences where nothing can show which axis counts samples."""
    if not sure and site.geometry is None and g.ndim > 2:
        exact.doubtful(
            site, "samples and positions cannot be told apart here; use statistics='frozen'"
        )
    elif samples:
        exact.take(site, g, samples)


def _spectrum(
    moment: SecondMoment | RawMoment, signals: torch.dtype, *, centred: bool
) -> MomentSpectrum:
    if isinstance(moment, RawMoment):
        return moment.spectrum(signals)
    return moment_spectrum(moment.matrix(centred=centred), signals=signals)


def _array(moment: SecondMoment | RawMoment, *, centred: bool) -> Array:
    found: Array = moment.matrix(centred=centred).cpu().numpy()
    return found


def _width(site: Site, x: Tensor, windows: bool) -> int:
    width = site.rows(x).shape[-1]
    if not windows or site.geometry is None:
        return width
    if site.geometry.transposed or site.geometry.groups > 1:
        raise SkipLayer("patches are defined here for convolutions of one group, not transposed")
    return width * math.prod(site.geometry.kernel)


def _add_patches(moment: SecondMoment | RawMoment, site: Site, x: Tensor) -> None:
    geometry = site.geometry
    assert geometry is not None
    step = max(1, PIECE // max(1, x[0].numel() * math.prod(geometry.kernel)))
    for part in torch.split(x.double(), step):
        if isinstance(moment, RawMoment) and geometry.stride[0] == 1:
            moment.add_sum(*patch_gram(part, geometry))
        else:
            moment.add(window_patches(part, geometry))
