"""What every probe is: something that watches passes of a network and keeps only sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from normscope.measure.probes.sites import WEIGHTED, Site
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.functional import ModelFunction
from normscope.subject.graph import Graph
from normscope.subject.objective import Objective

Tell = Callable[[Site, Tensor], None]


class SkipLayer(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a probe to leave a layer out; its text is the reason that users read."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One batch, run: what a probe is given when all its signals have been seen.

    Attributes:
        objective: how the batch was run, and the loss.
        function: the model as a function of its parameters.
        batch: inputs and targets, as given.
        model_inputs: what the model itself was given.
        targets: where the model lives.
        outputs: what the model returned, with its graph if gradients were asked for.
        loss: one number.
        gradients: gradients of the loss, by parameter name; None where it does not depend on one.
        weights: values of the parameters, by name.
        graph: graph of the model; None where it cannot be read.
    """

    objective: Objective
    function: ModelFunction
    batch: Batch
    model_inputs: Any
    targets: Any
    outputs: Any
    loss: Tensor
    gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]
    graph: Graph | None
    _replay: Callable[[Tell, Callable[[], Any]], Any]
    _spared: frozenset[str] = frozenset()

    def pulled_back(
        self, slopes: Sequence[Tensor], names: Sequence[str]
    ) -> dict[str, Tensor | None]:
        """Gradients of <slopes, outputs> in the named parameters, by a partial backward pass.

        ``slopes`` has one tensor per floating-point output. No probe is told of this pass.
        """
        return self._gradients(float_leaves(self.outputs), slopes, names)

    def _gradients(
        self, outputs: Sequence[Tensor], slopes: Sequence[Tensor], names: Sequence[str]
    ) -> dict[str, Tensor | None]:
        weights = [self.weights[name] for name in names]
        found = torch.autograd.grad(outputs, weights, slopes, retain_graph=True, allow_unused=True)
        return dict(zip(names, found, strict=True))

    def replayed(
        self, slopes: Sequence[Tensor], tell: Tell, *, parameters: bool = True
    ) -> dict[str, Tensor | None]:
        """One more backward pass, of <slopes, outputs>: ``tell(site, g)`` for each site seen.

        ``g`` is the gradient in what came out there; ``slopes`` as for ``pulled_back``. Needs
        ``keeps_graph``, and a ``sees`` that is true of gradients. Returns the gradients of the
        parameters; without ``parameters`` only of those without which the pass would stop before
        it has reached every site, which takes half the time.
        """
        pairs = zip(float_leaves(self.outputs), slopes, strict=True)
        outputs, kept = zip(*((o, s) for o, s in pairs if o.requires_grad), strict=True)
        names = [n for n in self.weights if parameters or n not in self._spared]
        return self._replay(tell, lambda: self._gradients(outputs, kept, names))


class Probe:
    """Watches sites of the kinds it names; its methods do nothing unless it defines them.

    A probe keeps sums, not signals, so that a loader may be of any length. An exception in the
    methods of a site leaves that site out and goes on with the others.
    """

    watches: ClassVar[tuple[str, ...]] = WEIGHTED
    needs_gradients: ClassVar[bool] = False
    keeps_graph: bool = False  # True for ``Pass.pulled_back`` and ``Pass.replayed``

    def sees(self, site: Site, *, selected: bool, gradients: bool) -> bool:
        """Whether it is told of signals (or gradients) at ``site``.

        Sites of other kinds than ``watches`` may be seen too; they have no row in the coverage.
        """
        known = selected and site.kind in self.watches
        return known and (self.needs_gradients or not gradients)

    def starting(self, batch: Batch) -> None:
        """A batch is about to be run."""

    def entering(self, site: Site, x: Tensor) -> None:
        """``x`` is about to go into the operation at ``site``."""

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """``out`` came out; ``x`` is overwritten if the operation works in place."""

    def gradient(self, site: Site, x: Tensor, g: Tensor) -> None:
        """``g`` is the gradient of the batch's loss in what came out; ``x`` went in."""

    def finished(self, run: Pass) -> None:
        """A batch is done, backward pass included."""

    def verdict(self, site: Site) -> tuple[str, str] | None:
        """Status and reason of a site that was seen but has no numbers, after all batches."""
        return None
