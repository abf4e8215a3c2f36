"""Between the capture and the probes: who is told of what, and what became of each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.measure.probes.capture import Watcher
from normscope.measure.probes.probe import Probe, SkipLayer, Tell
from normscope.measure.probes.sites import Selection, Site


class Listener(Watcher):
    """Tells each probe of the sites it watches, and keeps a failure to its own site.

    Attributes:
        probes: who is told.
        deaf: True while probes look at a finished pass: their own passes are not watched.
        sites: every site seen so far, in forward order, by name.
        watched: names of those that were asked for.
        troubles: (index of probe, site name) -> (status, reason).
        first_nonfinite: the first site whose output was not finite.
    """

    def __init__(self, probes: Sequence[Probe], selection: Selection) -> None:
        self.probes = probes
        self._selection = selection
        self._backward = False
        self.deaf = True
        self.sites: dict[str, Site] = {}
        self.watched: set[str] = set()
        self.troubles: dict[tuple[int, str], tuple[str, str]] = {}
        self.first_nonfinite: str | None = None
        self._replayed_to: Tell | None = None
        self._inner: set[str] = set()  # weights of layers behind others
        self._outer: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names of the sites seen."""
        return list(self.sites)

    @property
    def spared(self) -> frozenset[str]:
        """Weights and biases whose gradients no backward pass needs to reach the other sites."""
        weights = self._inner - self._outer
        biases = {name.removesuffix("weight") + "bias" for name in weights}
        return frozenset(weights | biases)

    def begin(self, *, backward: bool) -> None:
        """A pass is about to begin."""
        self.deaf = False
        self._inner, self._outer = set(), set()
        self._backward = backward

    def entering(self, site: Site, x: Tensor) -> None:
        if self.deaf:
            return
        if site.name not in self.sites:
            self.sites[site.name] = site
            if site in self._selection:
                self.watched.add(site.name)
        if self._seen(site) and _finite(x):
            self._tell(site, lambda probe: probe.entering(site, x.detach()))

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        if self.deaf:
            return
        if not _finite(out):
            self.first_nonfinite = self.first_nonfinite or site.name
            reason = f"signals are not finite from {self.first_nonfinite!r} on"
            self._trouble(site, "failed", reason)
            return
        if site.weight is not None:
            (self._inner if x.requires_grad else self._outer).add(site.weight)
        if self._seen(site):
            self._tell(site, lambda probe: probe.leaving(site, x.detach(), out.detach()))
        if self._backward and out.requires_grad and self._seen(site, gradients=True):
            self._expect_gradient(site, x.detach(), out)

    def replayed(self, tell: Tell, backward: Callable[[], Any]) -> Any:
        """What ``backward`` gives; ``tell`` alone is told of its gradients."""
        self._replayed_to = tell
        try:
            return backward()
        finally:
            self._replayed_to = None

    def _seen(self, site: Site, *, gradients: bool = False) -> bool:
        selected = site.name in self.watched
        # no generator, which `any` may leave half-way: an interrupt in its end would be lost
        seen = [p.sees(site, selected=selected, gradients=gradients) for p in self.probes]
        return any(seen)

    def _expect_gradient(self, site: Site, x: Tensor, out: Tensor) -> None:
        version = x._version

        def arrived(g: Tensor) -> None:
            if self._replayed_to is not None:
                self._replayed_to(site, g.detach())
            if self.deaf:
                return
            if x._version != version and site.kind in ("linear", "conv"):
                self._trouble(site, "failed", "its input was overwritten before the backward pass")
            elif not _finite(g):
                self._trouble(site, "failed", "the gradient of its output is not finite")
            else:
                self._tell(site, lambda probe: probe.gradient(site, x, g), gradients=True)

        out.register_hook(arrived)  # type: ignore[no-untyped-call]

    def _tell(self, site: Site, say: Callable[[Probe], Any], *, gradients: bool = False) -> None:
        selected = site.name in self.watched
        for index, probe in enumerate(self.probes):
            seen = probe.sees(site, selected=selected, gradients=gradients)
            if not seen or (index, site.name) in self.troubles:
                continue
            try:
                with torch.no_grad():
                    say(probe)
            except SkipLayer as reason:
                self.troubles[index, site.name] = ("skipped", str(reason))
            except Exception as error:
                self.troubles[index, site.name] = ("failed", f"{type(error).__name__}: {error}")

    def _trouble(self, site: Site, status: str, reason: str) -> None:
        for index in range(len(self.probes)):
            self.troubles.setdefault((index, site.name), (status, reason))


def _finite(tensor: Tensor) -> bool:
    # One pass without a table of flags; a sum that overflows is looked at again.
    return bool(tensor.detach().sum().isfinite()) or bool(tensor.detach().isfinite().all())
