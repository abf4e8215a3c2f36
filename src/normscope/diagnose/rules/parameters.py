"""Rules about parameters: which are trained, which the optimizer holds, which the loss reaches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscope.diagnose.rules.base import Case, note, ok, problem, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.start import is_position
from normscope.results.wiring import ParameterUse, Wiring


@dataclass(frozen=True)
class ShareLimits:
    """Thresholds of rules about parameters that are left out.

    Attributes:
        share: share of all parameters; a query that is never used may be less.
        unused: share of those without effect on the loss: experts that were not chosen and
            poolers are no trouble.
    """

    share: float = 0.002
    unused: float = 0.5


@rule("unregistered-layers", "wiring", order=1.9, kind="fact")
def unregistered(case: Case) -> Finding | None:
    """Layers in a plain list."""
    found: Wiring = case["wiring"]
    shown = (Evidence("parameters that the model does not know", found.unregistered, 0.0),)
    if not found.unregistered:
        return ok(
            title="The model knows all parameters that the loss depends on",
            evidence=shown,
            meaning="No layer is kept where model.parameters() does not find it.",
        )
    return warning(
        title=f"The loss depends on {found.unregistered:,} parameters that the model does not "
        "know: they are not trained",
        evidence=shown,
        meaning="Their layers are kept in a plain list or dict, or made anew in every forward "
        "pass: the optimizer does not get them.",
        advice="Make layers in __init__, and keep them in nn.ModuleList or nn.ModuleDict.",
    )


@rule("missing-in-optimizer", "wiring", order=2, kind="fact", limits=ShareLimits())
def missing(case: Case, limits: ShareLimits) -> Finding | None:
    """Trainable parameters that the optimizer does not hold, and foreign ones that it does."""
    found: Wiring = case["wiring"]
    if found.optimizer.names is None:
        return None
    left, share = found.missing, found.share(found.missing)
    shown: tuple[Evidence, ...] = (
        Evidence("share of the parameters missing from the optimizer", share, limits.share),
        Evidence("parameters it holds that are not the model's", found.optimizer.foreign),
    )
    if not any(p.held and p.trainable for p in found.parameters) and left:
        frozen = any(p.held for p in found.parameters)
        return problem(
            title="The optimizer holds none of the model's trainable parameters: they are missing "
            "from the optimizer, which has "
            + ("frozen ones" if frozen else "those of another model"),
            evidence=shown,
            meaning="Those that it holds are frozen (requires_grad is False): no update changes "
            "this model."
            if frozen
            else "It belongs to another model, or was made before these parameters were put in "
            "place: no update changes this model.",
            advice="Make the optimizer from model.parameters(), after the model is complete.",
        )
    if share > limits.share:
        return warning(
            title=f"{_percent(share)} of the parameters are trainable but missing from the "
            f"optimizer (first {left[0].name!r})",
            evidence=shown,
            meaning="No update ever changes them.",
            advice="Add them to the optimizer, or freeze them with requires_grad_(False) if that "
            "is meant.",
            layer=_layer(left[0]),
        )
    if left or found.optimizer.foreign:
        others, titles = found.optimizer.foreign, list[str]()
        if left:
            titles.append(f"missing from the optimizer: {left[0].name!r}, {len(left)} in all")
        if others:
            titles.append(f"in the optimizer, but not in the model: {others}")
        return note(
            title=f"Parameters {'; '.join(titles)}",
            evidence=shown,
            meaning="Parameters of a loss or of another model are trained along."
            if others
            else "They are few, and no update changes them.",
            advice="Check that this is meant.",
        )
    return ok(
        title="The optimizer holds all trainable parameters",
        evidence=shown,
        meaning="Every one of them is updated.",
    )


@rule("no-gradient", "wiring", order=2, kind="fact", limits=ShareLimits())
def no_gradient(case: Case, limits: ShareLimits) -> Finding | None:
    """Parameters that the loss does not reach."""
    found: Wiring = case["wiring"]
    left, share = found.unreached, found.share(found.unreached)
    if not np.isfinite(found.loss):
        return None
    name = "share of the parameters that get no gradient"
    shown = (Evidence(name, share, limits.share),)
    idle, rest = found.unused, found.share(found.unused)
    lost = next((p for p in idle if is_position(p.name)), None)
    if share <= limits.share and lost is not None:
        return warning(
            title=f"The position embedding {lost.name!r} is never used: the order of the tokens is "
            "lost",
            evidence=(Evidence("share of the parameters that are not used", rest, 0.0),),
            meaning="It has no effect on the loss.",
            advice="Add it to the tokens in forward, or remove it.",
            layer=_layer(lost),
        )
    if share <= limits.share and rest > limits.share:
        return (warning if rest > limits.unused else note)(
            title=f"{_percent(rest)} of the parameters (first {idle[0].name!r}) have no effect on "
            "the loss",
            evidence=(Evidence("share of the parameters that are not used", rest, limits.unused),),
            meaning="They get no gradient: their layers are not called, or the loss leaves out "
            "what they give.",
            advice="Call their layers in forward, or remove them.",
            layer=_layer(idle[0]),
        )
    if share <= limits.share:
        return ok(
            title="The loss reaches the parameters",
            evidence=shown,
            meaning="A backward pass gives them gradients.",
        )
    return warning(
        title=f"{_percent(share)} of the parameters get no gradient (first {left[0].name!r}): the "
        "loss does not reach them",
        evidence=shown,
        meaning="They are used in the forward pass, and cut off behind it by detach, no_grad or "
        ".data: they are never trained.",
        advice="Remove the detach() or no_grad() between them and the loss.",
        layer=_layer(left[0]),
    )


@dataclass(frozen=True)
class FrozenLimits:
    """Thresholds of ``frozen-parameters``: share of the parameters."""

    most: float = 0.5


@rule("frozen-parameters", "wiring", order=2.2, kind="fact", limits=FrozenLimits())
def frozen(case: Case, limits: FrozenLimits) -> Finding | None:
    """Most of the network frozen, and the rest does not learn."""
    found: Wiring = case["wiring"]
    share = found.share(found.frozen)
    if not share:
        return None
    shown = (Evidence("share of the parameters that are frozen", share, limits.most),)
    initial = found.share(tuple(p for p in found.frozen if p.initial))
    if initial > limits.most:
        return warning(
            title=f"{_percent(share)} of the parameters are frozen (requires_grad is False), and "
            "they hold untrained initial values",
            evidence=(
                Evidence("share of the parameters that are frozen initial weights", initial,
                         limits.most),
            ),
            meaning="Random layers are never trained: only what stands behind them learns.",
            advice="Load pretrained weights first, or unfreeze: parameter.requires_grad_(True).",
            layer=_layer(found.frozen[0]),
        )  # fmt: skip
    tables = [p for p in found.frozen if p.table]
    if tables:
        return warning(
            title=f"{len(tables)} embedding{'s are' if len(tables) > 1 else ' is'} frozen "
            f"(first {tables[0].name!r}; requires_grad is False) with random initial values",
            evidence=shown,
            meaning="nn.Embedding.from_pretrained freezes its weights, and these look like those "
            "that torch draws: mean 0 and deviation 1.",
            advice="Pass freeze=False, or load pretrained vectors.",
            layer=_layer(tables[0]),
        )
    if share <= limits.most or not case.fails:
        return note(
            title=f"{_percent(share)} of the parameters are frozen",
            evidence=shown,
            meaning="Their requires_grad is False. What is left learns."
            if case.learns
            else "Their requires_grad is False.",
        )
    return warning(
        title=f"{_percent(share)} of the parameters are frozen (requires_grad is False), and what "
        "is left does not learn",
        evidence=shown,
        meaning="The trainable part alone does not lower the loss.",
        advice="Unfreeze more layers: parameter.requires_grad_(True).",
        layer=_layer(found.frozen[0]),
    )


@dataclass(frozen=True)
class CutLimits:
    """Thresholds of ``zero-gradient``: share of the parameters."""

    share: float = 0.10


@rule(
    "zero-gradient", "wiring", order=5.45, kind="fact", limits=CutLimits(),
    suppressed_by=("zero-weights", "zero-gamma", "dead-units", "norm-axis", "weak-norms",
                   "constant-inputs", "output-range", "signal-lost", "no-gradient",
                   "missing-in-optimizer", "saturated-units"),
)  # fmt: skip
def zero_gradient(case: Case, limits: CutLimits) -> Finding | None:
    """A gradient of exactly zero, which is not due to weights of zero."""
    found: Wiring = case["wiring"]
    if not np.isfinite(found.loss):
        return None
    still = case.trial.unmoved if case.trial is not None and case.trial.judged else None
    left = tuple(p for p in found.cut if still is None or p.name in still)
    share = found.share(left)
    stuck = tuple(p for p in found.parameters
                  if p.weight == 0 and p.gradient == 0 and p.name in (still or ()))  # fmt: skip
    if found.share(stuck) > limits.share:
        return warning(
            title=f"{_percent(found.share(stuck))} of the parameters (first {stuck[0].name!r}) "
            "start at zero, get a gradient of exactly zero, and stay there",
            evidence=(Evidence("share of the parameters that stay zero", found.share(stuck),
                               limits.share),),
            meaning="They are multiplied with one another: each is the gradient of the other.",
            advice="Start all but one factor of a product at small random values.",
            layer=_layer(stuck[0]),
        )  # fmt: skip
    shown = (Evidence("share of the parameters with a gradient of exactly zero", share,
                      limits.share),)  # fmt: skip
    if share <= limits.share:
        return ok(
            title="No gradient is cut on its way",
            evidence=shown,
            meaning="Gradients that are zero come from weights that start at zero.",
        )
    return warning(
        title=f"{_percent(share)} of the parameters (first {left[0].name!r}) get a gradient of "
        "exactly zero: it is cut on the way by round, argmax or sign",
        evidence=shown,
        meaning="An operation whose derivative is zero everywhere stands between them and the "
        "loss: they are never trained.",
        advice="Use a differentiable operation behind the last of these layers.",
        layer=_layer(left[-1]),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share > 0.005 else f"{100 * share:.1f} %"


def _layer(parameter: ParameterUse) -> str:
    return parameter.name.rpartition(".")[0] or parameter.name
