"""One claim in words and numbers: what was expected, what we found, part by part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normscope.report.wording import number
from normscope.results.ledger import VERDICTS, LedgerRow
from normscope.results.rules import Judgement, judge, judge_parts

# what stands beside our number; a sign or a bound has its noise there already
LABELS = {
    "identity": "rounding allows",
    "number": "error (allowed)",
    "formula": "error for large sizes (allowed)",
    "boundary": "off by a factor (allowed)",
}
SIDES = {"sign": ("above", "below"), "bound": ("at least", "at most")}
MOST_OPEN = 4  # parts that are shown without a click
MOST_BRIEF = 2  # parts in a line of the list of all papers
WORST = ("not reproduced", "partly", "undecided", "reproduced")
LOGARITHMS = re.compile(r"[^.;]*\b(?:log10|decades?)\b[^.;]*")


@dataclass(frozen=True)
class Part:
    """One part of a claim.

    Attributes:
        name: name of the part; empty if the claim has only one.
        expected: what the paper or a theory says.
        found: what we found, with its noise where the rule compares with that.
        distance: from what was expected, and how much is allowed.
        verdict: verdict on this part alone.
    """

    name: str
    expected: str
    found: str
    distance: str
    verdict: str


@dataclass(frozen=True)
class Card:
    """A row of the ledger as a page shows it.

    Attributes:
        row: the row.
        parts: its numbers; none if nothing was run.
        label: what ``distance`` of the parts is; empty if they have none.
        unit: what the claim says of logarithms, in its own words.
    """

    row: LedgerRow
    parts: tuple[Part, ...]
    label: str = ""
    unit: str = ""

    @property
    def folded(self) -> bool:
        """Whether the parts are too many to be shown without a click."""
        return len(self.parts) > MOST_OPEN

    @property
    def headline(self) -> str:
        """How many parts have which verdict."""
        count, n = Counter(part.verdict for part in self.parts), len(self.parts)
        if len(count) == 1:
            return f"{n} of {n} parts {self.parts[0].verdict}"
        return f"{n} parts: " + ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])

    @property
    def brief(self) -> list[Part]:
        """The parts that decided, in one line each: the worst first."""
        order = sorted(self.parts, key=lambda part: WORST.index(part.verdict))
        return order[:MOST_BRIEF]


def card(row: LedgerRow) -> Card:
    """The numbers behind a row, judged again from its observation."""
    if not row.observation:
        return Card(row, ())
    given = dict(row.parameters)
    if row.rule == "number" and isinstance(row.expected, int | float):
        given.setdefault("expected", row.expected)
    seen = row.observation.get("parts", {"": row.observation})
    whole = "parts" not in row.observation
    judged = (
        {"": judge(row.rule, row.observation, given)}
        if whole
        else judge_parts(row.rule, row.observation, given)
    )
    parts = tuple(_part(row.rule, name, one, given, seen[name]) for name, one in judged.items())
    label = LABELS["boundary" if given.get("log10") else row.rule] if row.rule in LABELS else ""
    logarithms = None if given.get("log10") else LOGARITHMS.search(row.limits)
    unit = logarithms[0].strip() if logarithms and row.rule in ("sign", "number") else ""
    return Card(row, parts, label if any(p.distance for p in parts) else "", unit)


def _part(
    rule: str, name: str, one: Judgement, given: Mapping[str, Any], seen: Mapping[str, Any]
) -> Part:
    expected, found = _shown(one.expected), _shown(one.observed)
    error, allowed = one.error, one.tolerance
    distance = ""
    if rule in SIDES:
        expected = f"{SIDES[rule][given.get('direction') == 'negative']} {expected}"
        found += f" ± {_rough(allowed)}" if allowed else ""
    elif rule == "identity":
        expected = "0 to rounding" if given.get("holds", True) else "not 0: claimed not to hold"
        distance = _rough(allowed)
    elif rule == "count":
        expected, found = f"true in {expected}", f"true in {found}"
    elif rule == "within":
        low, high = seen["interval"]
        expected += f" ± {number(given['slack'])}"
        found += f" ({number(low)} to {number(high)})" if found else ""
    elif rule in LABELS and error is not None and allowed is not None:
        shown = [_rough(v) for v in (error, allowed)]
        if rule == "boundary" or given.get("log10"):
            shown = [f"{10**v:.3g}" for v in (error, allowed)]
        elif rule == "formula" and given.get("relative", True):
            shown = [f"{_rough(100 * v)} %" for v in (error, allowed)]
        distance = f"{shown[0]} ({shown[1]})"
    if one.verdict == "undecided" and (error is None or one.reason.startswith("too noisy")):
        distance = f"{distance} {one.reason.partition(':')[0]}".strip()
    return Part(name, expected, found, distance, one.verdict)


def _shown(value: Any) -> str:
    return "" if value is None else number(value)


def _rough(value: float | None) -> str:
    return "" if value is None else number(float(f"{value:.2g}"))
