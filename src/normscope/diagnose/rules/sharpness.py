"""Rules about curvature: its outlier, and what the theory says of gamma."""

from __future__ import annotations

from collections.abc import Iterator

from normscope.diagnose.rules.base import Case, evidence, rule
from normscope.refs import KARAKIDA2019, WEI2019
from normscope.results import Evidence, Finding

MOSTLY = 0.5  # share of lambda_max in the mean-gradient directions
LAST = ("norm-output", "norm-before-last", "norm-on-top")
REMEDY = "what_if(model, data, ['norm-output', 'norm-before-last'])"
WIDE_GAMMA = 2.0  # root mean square of a scale that is called large


@rule("pathological-sharpness", "outliers", source=KARAKIDA2019, where="Theorem 3.1")
def pathological(case: Case) -> Iterator[Finding]:
    """The share of lambda_max explained by the directions of the mean gradient."""
    found = case["outliers"]
    top = float(found.values[0])
    share = float(found.rayleigh.max()) / top if top > 0 else 0.0
    shown = (
        evidence("share of lambda_max along the mean gradient", share, MOSTLY, source="outliers"),
        evidence("lambda_max of J^T J / T over the weights", top, source="outliers"),
    )
    if share < MOSTLY:
        yield Finding(
            "",
            "ok",
            "The sharpness is not that of the mean gradient",
            shown,
            "Normalizing the outputs would not flatten the loss much.",
        )
        return
    remedies, advice = _measured_remedy(case)
    yield Finding(
        "",
        "note",
        "Most of the sharpness comes from the mean of the outputs",
        (*shown, *remedies),
        "A few directions, in which all samples move together, are far sharper than the rest, and "
        "they alone bound the learning rate.",
        advice or f"Normalize the last layer: {REMEDY} shows what that gains.",
    )


def _measured_remedy(case: Case) -> tuple[list[Evidence], str]:
    """What norms at the last layer did to a copy, as evidence and in words."""
    if "what_if" not in case:
        return [], ""
    found = case["what_if"]
    tried = [v for v in found.after if v.change in LAST and found.curvature_ratio(v) > 0]
    shown = [
        evidence(f"lambda_max before / after {v.change!r}", found.curvature_ratio(v),
                 source="what_if")
        for v in tried
    ]  # fmt: skip
    if not tried:
        return [], ""
    best = max(tried, key=found.curvature_ratio)
    gain = found.curvature_ratio(best)
    if gain > 1:
        return shown, (
            f"Normalize the last layer: {best.change!r} makes the loss {gain:.2g} times flatter."
        )
    return shown, (
        "Normalizing the last layer does not flatten this loss: with "
        f"{best.change!r} it is {1 / gain:.2g} times sharper."
    )


@rule("gamma-sharpens", "layout", source=WEI2019, where="Claim 3.1 and Fig. 1")
def gamma_sharpens(case: Case) -> Iterator[Finding]:
    """A gamma so large that batch norm sharpens instead of flattens."""
    scaled = [n for n in case["layout"].norms if n.used]
    if not scaled:
        return
    widest = max(scaled, key=lambda n: n.gamma)
    shown = [
        evidence("largest gamma (root mean square of a layer)", widest.gamma, WIDE_GAMMA,
                 source="layout")
    ]  # fmt: skip
    ratio = _against_plain(case)
    if ratio is not None:
        shown.append(
            evidence("predicted lambda_max, with norms / without", ratio, 1.0, source="prediction")
        )
    sharpens = ratio is not None and ratio > 1
    if not sharpens and widest.gamma < WIDE_GAMMA:
        yield Finding(
            "",
            "ok",
            "gamma is not so large that the norms sharpen the loss",
            tuple(shown),
            "lambda_max grows with the square of gamma; here it stays moderate.",
        )
        return
    yield Finding(
        "",
        "warning" if sharpens else "note",
        "The norms sharpen the loss at this gamma" if sharpens else "gamma is large",
        tuple(shown),
        "lambda_max grows with gamma squared. Beyond some gamma a network with batch norm is "
        "sharper than the same network without."
        + (" By the theory this one is beyond." if sharpens else ""),
        "Start gamma lower: what_if(model, data, ['gamma=0.5']) shows what that gains.",
        layer=widest.name,
    )


def _against_plain(case: Case) -> float | None:
    if "prediction" not in case or len(case["prediction"]) < 2:
        return None
    normed, plain = case["prediction"][0], case["prediction"][1]
    if not normed.lambda_max or not plain.lambda_max:
        return None
    return float(normed.lambda_max / plain.lambda_max)
