"""What share of a model a probe has seen, and why it left out the rest."""

from __future__ import annotations

from torch import nn

from normscope.errors import MeasurementError
from normscope.measure.probes._listener import Listener
from normscope.measure.probes.sites import Site
from normscope.messages import with_article
from normscope.results import Coverage, LayerStatus


def coverage_of(model: nn.Module, listener: Listener, index: int, reached: set[str]) -> Coverage:
    """The layers of probe ``index``; an error with all reasons if not one is ok."""
    probe = listener.probes[index]
    sites = [s for s in listener.sites.values() if s.name in listener.watched]
    layers = [
        LayerStatus(
            s.name,
            s.layer,
            s.kind,
            *(listener.troubles.get((index, s.name)) or probe.verdict(s) or ("ok", "")),
        )
        for s in sites
        if s.kind in probe.watches
    ]
    counts = {name: p.numel() for name, p in model.named_parameters()}
    owners = {name: owner_of(name) for name in counts}
    all_seen = {owner for s in listener.sites.values() for owner in _owners_of(s)}
    if len(listener.watched) == len(listener.sites):  # all layers were asked for
        layers += _unseen(model, all_seen, set(owners.values()), reached)
    ok = {layer.name for layer in layers if layer.status == "ok"}
    measured = {owner for s in sites if s.name in ok for owner in _owners_of(s)}
    total = sum(counts.values())
    share = sum(n for name, n in counts.items() if owners[name] in measured) / max(total, 1)
    coverage = Coverage(tuple(layers), share, total)
    if not ok:
        kinds = ", ".join(probe.watches)
        raise MeasurementError(
            f"Not one layer of {type(model).__name__} could be measured (kinds looked for: "
            f"{kinds}). {coverage.summary()}"
        )
    return coverage


def _owners_of(site: Site) -> tuple[str, ...]:
    plain = site.name.partition("#")[0]
    return (plain,) if site.weight is None else (plain, owner_of(site.weight))


def owner_of(parameter: str) -> str:
    """The module a parameter belongs to, as a user would say it."""
    if ".parametrizations." in parameter:
        return parameter.partition(".parametrizations.")[0]
    return parameter.rpartition(".")[0]


def _unseen(
    model: nn.Module, seen: set[str], with_parameters: set[str], reached: set[str]
) -> list[LayerStatus]:
    found = []
    for name, module in model.named_modules():
        if name not in with_parameters or name in seen:
            continue
        kind = type(module).__name__
        if name in reached:
            reason = f"what {with_article(kind)} does is not measured"
        else:
            reason = "never reached in the forward pass"
        found.append(LayerStatus(name or kind, 0, "other", "skipped", reason))
    return found
