"""What a rule is: from stored measurements to a finding, or to nothing if it cannot judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from normscope.diagnose._race import TRAINED
from normscope.refs import Reference
from normscope.registry import Registry, check_choice
from normscope.results import (
    SEVERITIES,
    ChannelStatistics,
    Evidence,
    Finding,
    Layout,
    Spectrum,
    Trial,
)

STARTED = 0.5  # of chance: from a loss below on a network has learned something


class Named(Protocol):
    """A layer or a signal of a result."""

    @property
    def name(self) -> str: ...  # noqa: D102


Of = TypeVar("Of", bound=Named)


@dataclass(frozen=True)
class Case:
    """What a rule may look at: results by name, and the settings of the examination.

    Both are stored in an examination, so that every finding can be found again from it.
    """

    results: dict[str, Any]
    convention: dict[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.results

    def __getitem__(self, name: str) -> Any:
        return self.results[name]

    @property
    def trial(self) -> Trial | None:
        """A few updates of a copy with the user's optimizer; None if there were none."""
        found: Trial | None = self.results.get("trial")
        return found

    @property
    def learns(self) -> bool:
        """Whether the trial shows that it learns; False where there was none."""
        return self.trial is not None and self.trial.learns

    @property
    def fails(self) -> bool:
        """Whether the trial shows that it does not learn; False where there was none."""
        return self.trial is not None and self.trial.judged and not self.trial.learns

    @property
    def clear(self) -> bool:
        """Whether the trial shows beyond doubt that it learns."""
        return self.trial is not None and self.trial.clear

    @property
    def untrained(self) -> bool:
        """Whether it is at its start, as far as its loss tells."""
        if self.trial is not None and self.trial.judged:
            return not self.trial.trained
        return "wiring" not in self or not self["wiring"].loss < STARTED * self.chance

    @property
    def lr(self) -> float | None:
        """The learning rate asked about."""
        return self.convention.get("lr")

    @property
    def momentum(self) -> float:
        """The SGD momentum."""
        return float(self.convention.get("momentum") or 0.0)

    @property
    def threshold(self) -> tuple[float, float, float]:
        """2 (1 + momentum) / lambda_max: value, low, high; NaN where it is not known."""
        if "sharpness" not in self or self.convention.get("no_threshold"):
            return math.nan, math.nan, math.nan
        found: Spectrum = self["sharpness"]
        return found.lr_threshold(self.momentum)

    @property
    def classifies(self) -> bool:
        """Whether the loss is cross-entropy."""
        return self.convention.get("loss_kind") == "cross_entropy"

    @property
    def trained(self) -> bool:
        """Whether the loss is far below chance: the network's start is long past."""
        return "gradients" in self and bool(self["gradients"].loss < TRAINED * self.chance)

    @property
    def chance(self) -> float:
        """Loss of the best constant answer; NaN if that is not known."""
        found = self.convention.get("chance")
        return math.nan if found is None else float(found)

    @property
    def normalized(self) -> bool:
        """Whether no hidden layer is far from a norm."""
        return "layout" in self and bool(self["layout"].everywhere)

    def on_path(self, layers: Sequence[Of]) -> list[Of]:
        """Those of ``layers`` that make up the depth: without gates, and of heads only the last."""
        layout: Layout | None = self.results.get("layout")
        if layout is None:
            return list(layers)
        heads = {x.name for x in layout.layers if x.head and x.name != layout.last}
        return [x for x in layers if x.name not in layout.side and _plain(x.name) not in heads]

    def hidden(self, layers: Sequence[Of]) -> list[Of]:
        """Those on the path before the last layer."""
        last = self["layout"].last if "layout" in self else "".join(x.name for x in layers[-1:])
        return [x for x in self.on_path(layers) if _plain(x.name) != last]

    @property
    def silent(self) -> list[ChannelStatistics]:
        """The last layers in a row whose outputs do not vary: skip connections lead past others.

        A last layer alone that starts at zero is no trouble.
        """
        if "activations" not in self:
            return []
        ordered = sorted(self.on_path(self["activations"].outputs), key=lambda s: s.number)
        varying = [i for i, s in enumerate(ordered) if s.variance.any()]
        found = ordered[varying[-1] + 1 if varying else 0 :]
        return found if len(found) > 1 else []

    def what_if(self, *changes: str) -> str:
        """The call that would measure ``changes`` on this network."""
        loss = "" if self.classifies else ", loss"
        return f"ns.what_if(model, data, {list(changes)}{loss})"

    @property
    def before_last(self) -> tuple[str, ...]:
        """The transform that puts a norm before the last layer; empty if one is there."""
        return self["layout"].before_last if "layout" in self else ("norm-before-last",)

    @property
    def before_last_advice(self) -> str:
        """What to do about large inputs of the last layer."""
        if self.before_last:
            return f"{self.what_if(*self.before_last)} shows what a norm before it gains."
        return "Make the scale (gamma) of the norm before it smaller."

    @property
    def samples(self) -> int:
        """Number of samples in a batch."""
        return int(self.convention.get("batch") or 0)


def _plain(name: str) -> str:
    """Without the number of the use."""
    return name.partition("#")[0]


Judge = Callable[..., Finding | None]
KINDS = ("fact", "guess", "symptom", "note")
ANY = "*"  # in ``suppressed_by``: every other rule
DESIGN = "docs/design/0008-examine.md"  # where rules that rest on no paper are explained


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: as findings carry it.
        needs: results without which it cannot judge.
        judge: takes a case, and ``limits`` if there are any; gives a finding, ``"ok"`` where
            nothing is wrong, or None if it cannot judge.
        reference: paper and equation.
        order: causes come before what follows from them; of findings that warn, or do not, the
            smaller one is reported first.
        kind: ``"fact"``: warns whatever the trial says. ``"guess"``: a note where the trial is
            clearly good. ``"symptom"``: a guess that follows from what ``suppressed_by`` names.
            ``"note"``: never warns.
        suppressed_by: rules whose warning says it already: this finding is then left out.
        promoted_by: rules whose warning turns its note into a warning, as it is the likely cause.
        limits: its thresholds, as a frozen dataclass.
    """

    name: str
    needs: tuple[str, ...]
    judge: Judge
    reference: str
    order: float
    kind: str = "guess"
    suppressed_by: tuple[str, ...] = ()
    limits: Any = None
    promoted_by: tuple[str, ...] = ()

    def found(self, case: Case) -> Finding | None:
        """What it finds, with the names of rule, reference and results."""
        if not all(need in case for need in self.needs):
            return None
        finding = self.judge(case) if self.limits is None else self.judge(case, self.limits)
        if finding is None:
            return None
        source = self.needs[-1] if self.needs else ""
        shown = [replace(e, source=e.source or source) for e in finding.evidence]
        return replace(finding, rule=self.name, evidence=tuple(shown), reference=self.reference)


RULES: Registry[Rule] = Registry("rule")


def rule(
    name: str,
    *needs: str,
    order: float,
    kind: str = "guess",
    source: Reference | None = None,
    where: str = "",
    suppressed_by: tuple[str, ...] = (),
    promoted_by: tuple[str, ...] = (),
    limits: Any = None,
) -> Callable[[Judge], Judge]:
    """Decorator that adds a rule.

    Args:
        name: name of the rule.
        needs: results it looks at.
        order: its place in the report, see ``Rule``.
        kind: ``"fact"``, ``"guess"``, ``"symptom"`` or ``"note"``.
        source: the paper behind it, if there is one.
        where: equation, theorem, table or section of it.
        suppressed_by: rules whose warning makes this one superfluous.
        promoted_by: rules whose warning turns its note into a warning.
        limits: its thresholds, a frozen dataclass: the second argument of the function.
    """
    check_choice("kind of rule", kind, KINDS)
    reference = DESIGN if source is None else f"{str(source).rstrip('.')}, {where}"

    def add(judge: Judge) -> Judge:
        made = Rule(name, needs, judge, reference, order, kind, suppressed_by, limits, promoted_by)
        RULES.add(name, made)
        return judge

    return add


def _finding(
    severity: str,
    *,
    title: str,
    evidence: tuple[Evidence, ...],
    meaning: str,
    advice: str = "",
    layer: str | None = None,
) -> Finding:
    """A finding; the registry adds the name of its rule."""
    return Finding("", severity, title, evidence, meaning, advice, layer)


ok, note, _, warning, problem = (partial(_finding, s) for s in SEVERITIES)
