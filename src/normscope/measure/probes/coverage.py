"""What share of a model a probe has seen, and why it left out the rest."""

from __future__ import annotations

from dataclasses import replace

from normscope.errors import MeasurementError
from normscope.measure.probes._listener import Listener
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.sites import LAYERS, Site, module_of
from normscope.messages import with_article
from normscope.results import Coverage, LayerStatus

Row = tuple[LayerStatus, tuple[str, ...]]  # with the names of its parameters


def coverage_of(capture: Capture, listener: Listener, index: int) -> Coverage:
    """The layers of probe ``index``; an error with all reasons if not one is ok."""
    model, probe = capture.model, listener.probes[index]
    rows = [row for s in listener.sites.values() for row in _rows(listener, index, s)]
    if len(listener.watched) == len(listener.sites):  # all layers were asked for
        rows += _unseen(capture, {n for s in listener.sites.values() for n in s.parameters})
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(sizes.values())
    # a parameter counts once: where it is measured, if it is anywhere
    shares = {}
    for layer, names in sorted(rows, key=lambda row: row[0].status != "ok"):
        shares[layer] = sum(sizes.pop(name, 0) for name in names) / max(total, 1)
    layers = tuple(replace(layer, share=shares[layer]) for layer, _ in rows)
    coverage = Coverage(layers, sum(x.share for x in layers if x.status == "ok"), total)
    if not coverage.ok:
        kinds = ", ".join(probe.watches)
        raise MeasurementError(
            f"Not one layer of {type(model).__name__} could be measured (kinds looked for: "
            f"{kinds}). {coverage.summary()}"
        )
    return coverage


def _rows(listener: Listener, index: int, site: Site) -> list[Row]:
    probe = listener.probes[index]
    if site.name not in listener.watched or site.kind not in (*probe.watches, *LAYERS):
        return []
    status = "skipped", f"layers of the kind {site.kind!r} are not covered by this measurement"
    if site.kind in probe.watches:
        found = listener.troubles.get((index, site.name)) or probe.verdict(site)
        status = found or ("ok", "")
    return [(LayerStatus(site.name, site.layer, site.kind, *status), site.parameters)]


def _unseen(capture: Capture, seen: set[str]) -> list[Row]:
    owned: dict[str, list[str]] = {}
    for name, _ in capture.model.named_parameters():
        if name not in seen:
            owned.setdefault(module_of(name), []).append(name)
    found = []
    for owner, names in owned.items():
        kind = type(capture.model.get_submodule(owner)).__name__
        reason = f"what {with_article(kind)} does is not measured"
        if capture.graph is not None and all(n in capture.graph.unused for n in names):
            reason = "never reached in the forward pass"
        elif owner not in capture.reached:
            reason = "not reached in this forward pass"
        found.append((LayerStatus(owner or kind, 0, "other", "skipped", reason), tuple(names)))
    return found
