"""Words for readers of a page: titles, how to read a chart, columns, numbers and symbols."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from markupsafe import Markup, escape


class Wording(NamedTuple):
    """What a page says about one measurement.

    Attributes:
        title: of its section.
        short: in the line of links.
        reading: how to read its chart.
    """

    title: str
    short: str
    reading: str = ""


SECTIONS = {
    "layout": Wording(
        "Where it is normalized",
        "Norms",
        "Squares are layers with weights, by depth; a norm stands above the layer that it follows. "
        "A layer is normalized if what goes into it is.",
    ),
    "sharpness": Wording(
        "Sharpness and the learning rate",
        "Sharpness",
        "The sharpest direction of the loss bounds the learning rate of gradient descent from "
        "above. The bound is local: training often passes it unharmed, towards flatter places.",
    ),
    "activations": Wording(
        "Signals by depth",
        "Signals",
        "Flat lines keep signals alive; a straight rise or fall on these log axes multiplies with "
        "every layer. Dead units give zero for every sample, full ones act linearly.",
    ),
    "gradients": Wording(
        "Gradients by depth",
        "Gradients",
        "First the mean size of the terms of a weight's gradient (T1) and of their sum (T4), then "
        "their ratio. Near 1 the gradient hardly depends on the input.",
    ),
    "signals": Wording("Signals and gradients", "Signals"),
    "hessian": Wording(
        "Curvature of the loss itself",
        "Hessian",
        "The Hessian adds to the Gauss-Newton matrix what the network's own bends contribute.",
    ),
    "outliers": Wording(
        "What makes it sharp",
        "Outliers",
        "Where the points come near the dashed line, the sharpest direction is one in which all "
        "samples move together; normalizing the last layer may remove it, and what_if measures "
        "whether it does.",
    ),
    "conditioning": Wording(
        "Conditioning of each layer",
        "Conditioning",
        "First how large signals and gradients are in each layer, then how unevenly a layer's "
        "directions are curved; one learning rate cannot suit directions that differ much.",
    ),
    "density": Wording(
        "All eigenvalues",
        "Spectrum",
        "Most directions are nearly flat (the peak at 0); the few far to the right bound the "
        "learning rate.",
    ),
    "regularization": Wording(
        "Regularization by batch norm",
        "Regularization",
        "The noise of batch statistics adds to the loss; the smaller the batch, the more.",
    ),
    "prediction": Wording(
        "What theory predicts",
        "Theory",
        "Mean-field theory of wide, random networks, for the network as it is and without its "
        "norms.",
    ),
    "comparison": Wording(
        "Predicted and measured",
        "Comparison",
        "The closer diamond and dot, the better the theory describes this network.",
    ),
    "stability": Wording(
        "Learning rates tried in training",
        "Stability",
        "Each point is a short training of a copy. The limits lie between the largest rate that "
        "still works and the smallest that no longer does.",
    ),
    "what_if": Wording(
        "What changes would do",
        "What if",
        "Learning rates that changed copies bear. Curvature tells of the start alone: where it and "
        "the trainings differ, believe the trainings.",
    ),
    "advice": Wording(
        "Which learning rate",
        "Learning rate",
        "Each point is a training of a copy; the recommended rate and the bounds stand below.",
    ),
}

# What the numbers at the top of a page mean
HEADLINE = {
    "lambda_max of the loss": "curvature of the loss in its sharpest direction",
    "local threshold of the learning rate": "2 (1 + momentum) / lambda_max: above it gradient "
    "descent overshoots in the sharpest direction",
    "recommended learning rate": "by short trainings of copies; the interval trains almost as well",
    "diverges at": "learning rate at which trainings of copies leave all bounds",
    "learns no more at": "learning rate from which trainings of copies no longer learn",
    "loss": "on the batches looked at",
}

COLUMNS = {
    "number": "no.",
    "mean_abs_mean": "mean |μ|",
    "std_abs_mean": "spread of |μ|",
    "max_abs_mean": "largest |μ|",
    "mean_variance": "mean σ²",
    "std_variance": "spread of σ²",
    "one_signed": "share of one sign",
    "dying": "dead units",
    "full": "full units",
    "t1": "T1",
    "t2": "T2",
    "t3": "T3",
    "t4": "T4",
    "alignment": "T4 / T1",
    "aligned": "share above 1/2",
    "mean_abs": "mean |gradient|",
    "max_abs": "largest |gradient|",
    "std": "spread",
    "row_cv": "variation over outputs",
    "column_cv": "variation over inputs",
    "lambda_max": "λ_max",
    "lambda_max_split": "λ_max, split",
    "gamma": "γ",
    "zeta": "ζ",
    "t": "eigenvalue",
    "d_in": "inputs",
    "d_out": "outputs",
    "critical_lr": "critical learning rate",
    "lr": "learning rate",
    "max_seconds": "time limit",
    "no_threshold": "no local threshold because",
    "updates": "updates",
}

_WORDS = (
    (re.compile(r"\blambda_max\b"), "λ<sub>max</sub>"),
    (re.compile(r"\blambda\b"), "λ"),
    (re.compile(r"\bkappa_(\d+)\s?%?"), r"κ<sub>\1%</sub>"),
    (re.compile(r"J\^T J"), "JᵀJ"),
    (re.compile(r"\bzeta\b"), "ζ"),
    (re.compile(r"\bgamma\b"), "γ"),
    (re.compile(r"([γζ])\^2"), r"\1²"),
    (re.compile(r"(?<![\w.])([\d.]+)e([+-]?)0*(\d+)\b"), r"\1 × 10<sup>\2\3</sup>"),
    (re.compile(r"10\^(-?[\d.]*\d)"), r"10<sup>\1</sup>"),
    (re.compile(r"<sup>\+"), "<sup>"),
    (re.compile(r"<sup>-"), "<sup>−"),
)
# name(...) with a comma, a quote or dots inside: a call, not a function of mathematics
_CALL = re.compile(r"\b[a-z_][\w.]*\([^()]*(?:[',]|\.\.\.)[^()]*\)(?:\.\w+\([^()]*\))*")


def wording(name: str) -> Wording:
    """The words for a measurement; its own name, made readable, where there are none."""
    plain = name.replace("_", " ").replace("-", " ")
    return SECTIONS.get(name, Wording(plain[:1].upper() + plain[1:], plain))


def meaning(quantity: str) -> str:
    """What a number at the top of a page means; a remark in brackets does not change it."""
    return HEADLINE.get(re.sub(r" \([^()]*\)$", "", quantity), "")


def column(name: str) -> str:
    """The heading of a column."""
    if name in COLUMNS:
        return COLUMNS[name]
    kappa = re.fullmatch(r"kappa_([\d.]+)(?:_(\w+))?", name)
    if kappa:
        return f"κ_{kappa[1]}%" + (f" of {kappa[2]}" if kappa[2] else "")
    lead = re.fullmatch(r"lambda_max_(\w+)", name)
    return f"λ_max of {lead[1]}" if lead else name.replace("_", " ")


def counted(count: int, noun: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: float) -> str:
    """Four digits; powers of ten where they are far from one."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    mantissa, mark, exponent = f"{value:.4g}".partition("e")
    power = f" × 10{_superscript(int(exponent))}" if mark else ""
    return mantissa.replace("-", "−") + power


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def cell(value: Any) -> str:
    """What stands in a cell of a table."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | int):
        return number(value)
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return "" if value is None else str(value).replace("J^T J", "JᵀJ")


def prose(text: object) -> Markup:
    """A sentence with its symbols set as symbols, and calls as code; all else is escaped."""
    safe, parts, end = str(text), [], 0
    for call in _CALL.finditer(safe):
        parts += [_symbols(safe[end : call.start()]), Markup("<code>{}</code>").format(call[0])]
        end = call.end()
    return Markup("").join([*parts, _symbols(safe[end:])])


def _symbols(text: str) -> Markup:
    marked = str(escape(text))
    for pattern, symbol in _WORDS:
        marked = pattern.sub(symbol, marked)
    return Markup(marked)
