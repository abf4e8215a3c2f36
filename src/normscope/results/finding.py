"""What a measurement means for the one who trains the network, and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.errors import InputError
from normscope.record import Record

UNJUDGED = "unjudged"  # of the one finding that the network could not be judged
SEVERITIES = ("ok", "note", UNJUDGED, "warning", "problem")  # from harmless to severe


@dataclass(frozen=True, eq=False)
class Evidence(Record):
    """The number behind a finding, and the line it was held against.

    Attributes:
        quantity: what was measured, in words.
        value: the number.
        threshold: the line; None where there is none.
        low: lower end of the interval of ``value``; equal to it if exact.
        high: its upper end.
        source: key of the measurement in ``Examination.measurements``.
    """

    quantity: str
    value: float
    threshold: float | None = None
    low: float = math.nan
    high: float = math.nan
    source: str = ""

    def __post_init__(self) -> None:
        """Numbers of numpy and counts become plain numbers, which can be stored."""
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def spread(self) -> str:
        """The interval in words; empty if the value is exact or has none."""
        known = not math.isnan(self.low) and self.low != self.high
        return f"{self.low:.3g} to {self.high:.3g}" if known else ""

    def __str__(self) -> str:
        spread = f" ({self.spread})" if self.spread else ""
        line = "" if self.threshold is None else f", threshold {self.threshold:.3g}"
        return f"{self.quantity} = {self.value:.{self._digits}g}{spread}{line}"

    @property
    def _digits(self) -> int:
        """Digits that the interval supports; three without one."""
        wide = (self.high - self.low) / 2
        if not (self.spread and 0 < wide < math.inf and self.value):
            return 3
        return int(min(max(math.log10(abs(self.value) / wide) + 1, 1), 4))


@dataclass(frozen=True, eq=False)
class Finding(Record):
    """One thing worth knowing about a network.

    Attributes:
        rule: name of the rule that was applied.
        severity: ``"ok"``, ``"note"``, ``"unjudged"``, ``"warning"`` or ``"problem"``.
        title: one line.
        evidence: the numbers; every finding can be found again from them.
        meaning: what that does to training.
        advice: what to do; empty if nothing.
        layer: where, None for the whole network.
        reference: paper and equation behind the rule.
    """

    rule: str
    severity: str
    title: str
    evidence: tuple[Evidence, ...]
    meaning: str
    advice: str = ""
    layer: str | None = None
    reference: str = ""

    def __post_init__(self) -> None:
        """Refuse a severity that has no rank, as a damaged file may hold."""
        if self.severity not in SEVERITIES:
            known = ", ".join(SEVERITIES)
            raise InputError(f"The severity of a finding is one of {known}. Got {self.severity!r}.")

    @property
    def rank(self) -> int:
        """0 for ok to 4 for a problem."""
        return SEVERITIES.index(self.severity)

    @property
    def warns(self) -> bool:
        """Whether something should be changed: a warning or a problem."""
        return self.severity in ("warning", "problem")

    def __str__(self) -> str:
        where = f" [{self.layer}]" if self.layer else ""
        return f"{self.severity}: {self.title}{where}"
