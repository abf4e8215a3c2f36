"""What a rule is: from stored measurements to a finding, or to nothing if it cannot judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from normscope.diagnose._race import TRAINED
from normscope.refs import Reference
from normscope.registry import Registry
from normscope.results import Evidence, Finding, Layout, Spectrum

STARTED = 0.5  # of chance: from a loss below on a network has learned something


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
    def lr(self) -> float | None:
        """The learning rate asked about."""
        return self.convention.get("lr")

    @property
    def momentum(self) -> float:
        """Of sgd."""
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
        """Whether every hidden layer has a norm behind it."""
        layout: Layout | None = self.results.get("layout")
        return layout is not None and 0 < layout.hidden_layers <= layout.normalized

    def what_if(self, *changes: str) -> str:
        """The call that would measure ``changes`` on this network."""
        loss = "" if self.classifies else ", loss"
        return f"ns.what_if(model, data, {list(changes)}{loss})"

    @property
    def samples(self) -> int:
        """In a batch."""
        return int(self.convention.get("batch") or 0)


Judge = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: as findings carry it.
        needs: results without which it cannot judge.
        judge: gives findings; severity ``"ok"`` where nothing is wrong.
        reference: paper and equation.
    """

    name: str
    needs: tuple[str, ...]
    judge: Judge
    reference: str


RULES: Registry[Rule] = Registry("rule")


def rule(name: str, *needs: str, source: Reference, where: str) -> Callable[[Judge], Judge]:
    """Decorator that adds a rule.

    Args:
        name: of the rule.
        needs: results it looks at.
        source: the paper behind it.
        where: equation, theorem, table or section.
    """

    def add(judge: Judge) -> Judge:
        RULES.add(name, Rule(name, needs, judge, f"{str(source).rstrip('.')}, {where}"))
        return judge

    return add


def evidence(
    quantity: str,
    value: float,
    threshold: float | None = None,
    *,
    source: str,
    low: float = float("nan"),
    high: float = float("nan"),
) -> Evidence:
    """Evidence as rules write it."""
    return Evidence(quantity, float(value), threshold, float(low), float(high), source)
