"""Rules about curvature: its outlier, and what the theory says of gamma."""

from __future__ import annotations

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import KARAKIDA2019, WEI2019
from normscope.results import Comparison, Evidence, Finding, LeadingDirections, Variant

MOSTLY = 0.5  # share of lambda_max in the mean-gradient directions
LAST = ("norm-output", "norm-before-last", "norm-on-top")
WIDE_GAMMA = 2.0  # root mean square of a scale that is called large
USUAL_GAMMA = 1.0  # where scales start
FLATTER = 1.5  # factor from which a remedy is called one
AGREES = 2.0  # factor between theory and measurement
MARGIN = 1.25  # factor beyond the theory's bounds that finite width explains


@rule(
    "pathological-sharpness",
    "outliers",
    order=30,
    kind="note",
    source=KARAKIDA2019,
    where="Theorem 3.1",
)
def pathological(case: Case) -> Finding | None:
    """The share of lambda_max explained by the directions of the mean gradients."""
    found: LeadingDirections = case["outliers"]
    top, bound = float(found.values[0]), float(found.bounds[0])
    if top <= 0 or case.silent:
        return None
    share, least = found.explained, found.span / max(top + bound, found.span)
    name = "share of lambda_max along the mean gradients"
    of_all = "lambda_max of J^T J / T over the weights"
    shown = (
        Evidence(name, share, MOSTLY, least, share),
        Evidence(of_all, top, None, top - bound, top + bound),
    )
    if share < MOSTLY:
        meaning = "Normalizing the outputs would not flatten the loss much."
        return ok(
            title="The sharpness does not come from the mean gradient",
            evidence=shown,
            meaning=meaning,
        )
    limit, rates = case.threshold[0], [case.lr] if case.lr is not None else []
    if "advice" in case and case["advice"].settled:
        rates.append(case["advice"].lr)
    if rates and not max(rates) > limit:  # NaN: no curvature bounds this optimizer
        title = "The sharpness comes from the mean gradients, and does not matter here"
        meaning = "The curvature does not limit the learning rate of this optimizer."
        if limit > 0:
            meaning = "The learning rate is stable in the sharpest direction."
        return ok(title=title, evidence=shown, meaning=meaning)
    remedies, advice = _measured_remedy(case)
    # The outputs of a regression are what is asked for: no norm there.
    # A norm that is there already is none either.
    normed = "layout" in case and case["layout"].output_norm is not None
    remedy = [*case.before_last]
    if case.classifies and not normed:
        remedy.insert(0, "norm-output")
    return note(
        title="Most of the sharpness comes from the mean of the outputs",
        evidence=(*shown, *remedies),
        meaning="A few directions, which move the outputs of all samples together, are much "
        "sharper than "
        "the rest. They alone set the local threshold of the learning rate.",
        advice=advice
        or (remedy and f"{case.what_if(*remedy)} shows whether a norm at the last layer helps.")
        or "",
    )


def _measured_remedy(case: Case) -> tuple[list[Evidence], str]:
    """What norms at the last layer did to a copy, as evidence and in words."""
    if "what_if" not in case:
        return [], ""
    found = case["what_if"]
    tried = [v for v in found.after if _at_last(v) and found.curvature_ratio(v) > 0]
    if not tried:
        return [], ""
    ratios = {f"lambda_max before / after {v.change!r}": found.curvature_ratio(v) for v in tried}
    shown = [Evidence(name, ratio, source="what_if") for name, ratio in ratios.items()]
    good = [v for v in tried if found.learns_as_well(v)]
    best = max(good, key=found.curvature_ratio, default=None)
    if best is not None and found.curvature_ratio(best) > FLATTER:
        gain = found.curvature_ratio(best)
        return shown, (
            f"Normalize the last layer: {best.change!r} makes the loss {gain:.2g} times flatter."
        )
    if found.best is not None and _at_last(found.best):
        return shown, f"{found.best.change!r} does not flatten the loss, but lets it learn better."
    best = max(tried, key=found.curvature_ratio)
    gain = found.curvature_ratio(best)
    if gain > FLATTER and best.diverges is None:
        return shown, (
            f"{best.change!r} makes the loss {gain:.2g} times flatter at the start; whether it "
            "learns as well was not measured."
        )
    if gain > FLATTER:
        return shown, (
            f"{best.change!r} makes the loss {gain:.2g} times flatter, but copies with it learned "
            "worse: leave the last layer as it is."
        )
    how = f"{1 / gain:.2g} times sharper" if gain < 1 / FLATTER else "about as sharp"
    return shown, f"Normalizing the last layer does not help: with {best.change!r} it is {how}."


def _at_last(variant: Variant) -> bool:
    return variant.change.partition("=")[0] in LAST


@rule(
    "gamma-sharpens",
    "layout",
    order=5.6,
    kind="guess",
    source=WEI2019,
    where="Claim 3.1 and Fig. 1",
)
def gamma_sharpens(case: Case) -> Finding | None:
    """A gamma so large that batch norm sharpens instead of flattens."""
    scaled = [n for n in case["layout"].norms if n.over_batch]
    if not scaled:
        return None
    widest = max(scaled, key=lambda n: n.gamma)
    name, ratio = "largest gamma (root mean square of a layer)", _against_plain(case)
    shown = [Evidence(name, widest.gamma, WIDE_GAMMA)]
    if ratio is not None:
        name = "predicted lambda_max, with norms / without"
        shown.append(Evidence(name, ratio, 1.0, source="prediction"))
    # Where a network without norms is flatter than one with gamma 1, its signals die: no fault of
    # gamma. And the theory is that of random weights.
    beyond = ratio is not None and 1 < ratio <= widest.gamma**2
    sharpens = beyond and widest.gamma > USUAL_GAMMA and not case.trained
    if not sharpens and widest.gamma < WIDE_GAMMA:
        meaning = "lambda_max grows with the square of gamma."
        return ok(
            title="The scales (gamma) of the norms are moderate",
            evidence=tuple(shown[:1]),
            meaning=meaning,
        )
    wide = widest.gamma >= WIDE_GAMMA
    severity = warning if sharpens and wide else note
    return severity(
        title="By the theory the norms sharpen the loss at this gamma"
        if sharpens
        else "gamma is large",
        evidence=tuple(shown if wide else shown[::-1]),
        meaning="lambda_max grows with gamma squared. Beyond some gamma a network with batch norm "
        "is "
        "sharper than the same network without."
        + (" By the theory this one is beyond." if sharpens else ""),
        advice=f"{case.what_if('gamma=0.5')} shows what a smaller gamma gains.",
        layer=widest.name if widest.gamma > min(n.gamma for n in scaled) else None,
    )


def _against_plain(case: Case) -> float | None:
    """Predicted lambda_max with norms over that without, if the measured one confirms it."""
    if "prediction" not in case or len(case["prediction"]) < 2 or "comparison" not in case:
        return None
    if not 1 / AGREES <= case["comparison"].ratio <= AGREES:
        return None
    normed, plain = (p.lambda_max_split or p.lambda_max for p in case["prediction"][:2])
    return float(normed / plain) if normed and plain else None


@rule(
    "theory-agrees", "comparison", order=40, kind="note", source=KARAKIDA2019, where="Theorem 2.2"
)
def theory_agrees(case: Case) -> Finding | None:
    """The predicted curvature beside the measured one."""
    found: Comparison = case["comparison"]
    if case.trained or not (found.measured > 0 and found.predicted > 0):
        return None  # the theory is that of random weights
    name = "measured / predicted lambda_max of J^T J / T"
    low, high = ((found.measured + n * found.bound) / found.predicted for n in (-1, 1))
    shown = (Evidence(name, found.ratio, AGREES, low, high),)
    if 1 / AGREES <= found.ratio <= AGREES:
        meaning = f"The largest curvature is within a factor {AGREES:.0f} of what the theory says."
        return ok(title="Theory and measurement agree", evidence=shown, meaning=meaning)
    least, most = _bounds(case, found.predicted)
    # beyond its bounds by that factor
    far = max(found.measured / most, least / found.measured)
    if far <= MARGIN:
        return ok(
            title=f"The measured curvature is near the theory's bounds, {least:.3g} to {most:.3g}"
            if far > 1
            else f"The measured curvature is within the theory's bounds, {least:.3g} to {most:.3g}",
            evidence=(Evidence("measured lambda_max of J^T J / T", found.measured), *shown),
            meaning=f"The predicted {found.predicted:.3g} is the curvature along the mean "
            "gradients, the "
            f"bounds hold for all directions.{_sharpest(case)}",
        )
    return note(
        title="The measured curvature is outside the theory's bounds, "
        f"{least:.3g} to {most:.3g}, by a factor {far:.2g}",
        evidence=shown,
        meaning="Mean-field theory holds for wide layers with random weights. This network may be "
        "too "
        "narrow, too deep, or no longer random." + "".join(f" {flag}" for flag in found.flags),
        advice="Rely on what was measured, not on the predictions.",
    )


def _bounds(case: Case, predicted: float) -> tuple[float, float]:
    """The least and the largest lambda_max that the theory allows."""
    ends: list[float | None] = [None, None]
    if "prediction" in case:
        ends = [case["prediction"][0].lower, case["prediction"][0].upper]
    return min(ends[0] or predicted, predicted), max(ends[1] or predicted, predicted)


def _sharpest(case: Case) -> str:
    """Which kind of direction is the sharpest, where that was measured."""
    if "outliers" not in case:
        return ""
    share = case["outliers"].explained
    which = "one of them" if share >= MOSTLY else "another"
    return f" Here they explain {share:.0%} of lambda_max: the sharpest direction is {which}."
