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
        title: title of its section.
        short: in the line of links.
        reading: how to read its chart.
    """

    title: str
    short: str
    reading: str = ""


SECTIONS = {
    "wiring": Wording("The training set-up", "Set-up"),
    "start": Wording("Scales at the start", "Scales"),
    "data": Wording("The data", "Data"),
    "layout": Wording(
        "Where it is normalized",
        "Norms",
        "Squares are layers with weights, by depth; a norm is drawn above the layer it follows. "
        "A layer is normalized if its input is.",
    ),
    "sharpness": Wording(
        "Sharpness and the learning rate",
        "Sharpness",
        "The sharpest direction of the loss limits the learning rate of gradient descent. The "
        "limit is local: only training runs tell whether a rate above it diverges.",
    ),
    "activations": Wording(
        "Signals by depth",
        "Signals",
        "Flat lines are healthy. A straight rise or fall on these log axes means that the signal "
        "is multiplied by the same factor in every layer. Dead units are zero for every sample; "
        "units that are always active act linearly.",
    ),
    "gradients": Wording(
        "Gradients by depth",
        "Gradients",
        "First the mean size of the terms of a weight's gradient (T1) and of their sum (T4), then "
        "their ratio. Near 1, all samples give nearly the same gradient.",
    ),
    "signals": Wording("Signals and gradients", "Signals"),
    "modes": Wording(
        "Train and evaluation mode",
        "Modes",
        "The loss on the same batches in each mode. Where running statistics do worse than those "
        "of the batch, they do not fit.",
    ),
    "trial": Wording(
        "The trial of the learning rate",
        "Trial",
        "Copies made a few updates with your optimizer, at your learning rate and at others. A run "
        "that learns ends below the loss of the best constant prediction.",
    ),
    "hessian": Wording(
        "Curvature of the loss itself",
        "Hessian",
        "The Hessian is the Gauss-Newton matrix plus the part from the network's second "
        "derivatives.",
    ),
    "outliers": Wording(
        "What makes it sharp",
        "Outliers",
        "Points near the dashed line mean that the sharpest direction moves the outputs of all "
        "samples together. Normalizing the input of the last layer may remove it; what_if "
        "measures whether it does.",
    ),
    "conditioning": Wording(
        "Conditioning of each layer",
        "Conditioning",
        "First how large signals and gradients are in each layer, then how much the curvature "
        "differs between the directions of a layer. One learning rate cannot suit directions "
        "that differ a lot.",
    ),
    "density": Wording(
        "All eigenvalues",
        "Spectrum",
        "Most directions are nearly flat (the peak at 0). The few far to the right limit the "
        "learning rate.",
    ),
    "regularization": Wording(
        "Regularization by batch norm",
        "Regularization",
        "The noise of batch statistics adds to the loss: the smaller the batch, the more.",
    ),
    "prediction": Wording(
        "What theory predicts",
        "Theory",
        "Mean-field theory of wide, random networks, for this network and for the same one "
        "without its norms.",
    ),
    "comparison": Wording(
        "Predicted and measured",
        "Comparison",
        "The closer the diamond is to the dot, the better the theory describes this network.",
    ),
    "order_parameters": Wording(
        "Power of signals and gradients",
        "Power",
        "Dots are measured, lines are the theory of a random network of the same variances. Where "
        "they agree, depth does what the theory says; training moves the dots off the lines.",
    ),
    "changes": Wording("What theory says of changes", "Changes"),
    "stability": Wording(
        "Learning rates tried in training",
        "Stability",
        "Each point is a short training run on a copy. A limit lies between the largest rate that "
        "works and the smallest that does not.",
    ),
    "what_if": Wording(
        "What changes would do",
        "What if",
        "Learning rates at which changed copies are stable. Curvature describes the start only: "
        "where the two differ, trust the training runs.",
    ),
    "advice": Wording(
        "Which learning rate",
        "Learning rate",
        "Each point is a training run on a copy. The recommended rate and the limits are below.",
    ),
}

# What the numbers at the top of a page mean
HEADLINE = {
    "lambda_max of the loss": "curvature of the loss in its sharpest direction",
    "local threshold of the learning rate": "2 (1 + momentum) / lambda_max: above it gradient "
    "descent overshoots in the sharpest direction",
    "recommended learning rate": "from short training runs on copies; rates in the "
    "interval train almost as well",
    "diverges at": "learning rate at which the loss of training runs on copies blows up",
    "stops learning above": "learning rate above which training runs on copies do not learn",
    "loss": "on the batches that were measured",
    "loss with batch statistics": "as in training, dropout left out",
    "loss with running statistics": "as in evaluation mode",
    "accuracy with batch statistics": "as in training, dropout left out",
    "accuracy with running statistics": "as in evaluation mode",
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
    "full": "always active units",
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
    "sharper": "λ_max against now",
    "rate_against_now": "stable rate against now",
}

DIGITS = 3  # of a number without an interval
LARGEST_RATE = 1000.0  # learning rates above it say that there is no limit in practice
_RATES = re.compile(r"(?!your|.* / \().*learning rate|diverges at|stops learning|2 / lambda_max")

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "eta": "η", "zeta": "ζ", "kappa": "κ", "mu": "μ",
    "sigma": "σ",
}  # fmt: skip
_WORDS = (
    (re.compile(r"\blambda_max\b"), "λ<sub>max</sub>"),
    (re.compile(r"\blambda\b"), "λ"),
    (re.compile(r"\bkappa_(\d)(?![\d%])"), r"κ<sub>\1</sub>"),  # of the theory, no percentage
    (re.compile(r"\bkappa_(\d+)(?:\s?%)?"), r"κ<sub>\1%</sub>"),
    (re.compile(r"J\^T J"), "JᵀJ"),
    *(
        (re.compile(rf"(?<![\w.]){name}(?=_[a-z]\b|_[a-z]\^|\b)(?!_\w\w)"), sign)
        for name, sign in _GREEK.items()
    ),
    (re.compile(r"([α-ω])_([a-z])(?![a-z0-9_])"), r"\1<sub>\2</sub>"),
    (re.compile(r"([α-ω]|[α-ω]<sub>[a-z]</sub>)\^2"), r"\1²"),
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


def number(value: float, digits: int = 4) -> str:
    """So many digits; powers of ten where they are far from one."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    mantissa, mark, exponent = f"{value:.{digits}g}".partition("e")
    power = f" × 10{_superscript(int(exponent))}" if mark else ""
    return mantissa.replace("-", "−") + power


def is_rate(quantity: str) -> bool:
    """Whether a quantity in words is a learning rate."""
    return _RATES.match(quantity) is not None


def amount(value: float, quantity: str, low: float = math.nan, high: float = math.nan) -> str:
    """The value of a quantity in words, with the digits that its interval supports."""
    if is_rate(quantity) and math.isfinite(value) and abs(value) > LARGEST_RATE:
        return f"above {LARGEST_RATE:g}"
    if quantity.startswith("share") and math.isfinite(value):
        return f"{amount(100 * value, '', 100 * low, 100 * high)} %"
    width = high - low
    if not (0 < width < math.inf and math.isfinite(value) and value):
        return number(value, DIGITS)
    least = 1 if low <= 0 <= high else 2  # digits; one for what may as well be zero
    place = min(_exponent(width) - 1, _exponent(value) - least + 1)
    return number(round(value, -place))


def spread(low: float, high: float, quantity: str = "") -> str:
    """An interval, empty if there is none; both ends with the digits that its width supports."""
    if math.isnan(low) or math.isnan(high) or low == high:
        return ""
    ends = [amount(end, quantity, low, high) if end else "0" for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def cell(value: Any) -> str:
    """What stands in a cell of a table."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | int):
        return number(value, DIGITS)
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
