"""Whether what a tool said names the defect: by the words of the set-up, or corrected by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.findings.contestants import Told
from benchmarks.findings.setup import Setup

__all__ = ["Correction", "Verdict", "corrections", "judged"]

FILE = Path(__file__).with_name("adjudication.json")
ALARMS = ("warning", "problem")


@dataclass
class Correction:
    """Something said of one set-up that words judge wrongly.

    Attributes:
        setup: which.
        contestant: beginning of its name, such as ``"normscope"`` or ``"torchdiag"``.
        title: regular expression that the title matches.
        counts: of a broken set-up: whether it names the defect; of a healthy one: whether it is a
            false alarm.
        why: a sentence.
    """

    setup: str
    contestant: str
    title: str
    counts: bool
    why: str
    used: int = field(default=0, compare=False)

    def fits(self, setup: str, contestant: str, told: Told) -> bool:
        """Whether it speaks about this."""
        return (
            setup == self.setup
            and contestant.startswith(self.contestant)
            and re.search(self.title, told.title, re.IGNORECASE) is not None
        )


def corrections(file: Path = FILE) -> list[Correction]:
    """All corrections; none may go without its sentence."""
    found = [Correction(**entry) for entry in json.loads(file.read_text())]
    for correction in found:
        if not correction.why.strip():
            raise ValueError(f"The correction of {correction.setup!r} needs a sentence in 'why'.")
    return found


@dataclass(frozen=True)
class Verdict:
    """What one answer is worth.

    Attributes:
        alarms: warnings and problems, each with whether it names the defect (of a healthy set-up:
            whether it is right after all).
        noted: whether something that is no alarm names the defect.
        total: how many findings there are, those that say that all is well left out.
        failure: why there is no answer; empty if there is one.
    """

    alarms: tuple[tuple[Told, bool], ...]
    noted: bool
    total: int
    failure: str

    @property
    def place(self) -> int:
        """Place of the first alarm that names the defect, from 1; 0 if none does."""
        return next((n for n, (_, names) in enumerate(self.alarms, 1) if names), 0)

    @property
    def false(self) -> int:
        """How many alarms do not name the defect, or are false on a healthy set-up."""
        return sum(not names for _, names in self.alarms)


def judged(setup: Setup, row: dict[str, Any], corrected: Iterable[Correction] = ()) -> Verdict:
    """The verdict on one row of the raw results."""
    everything = [Told(**told) for told in row.get("told", ())]
    said = [told for told in everything if told.severity != "ok"]
    marked = [(told, names(setup, row["contestant"], told, corrected)) for told in said]
    return Verdict(
        tuple((told, named) for told, named in marked if told.severity in ALARMS),
        any(named for told, named in marked if told.severity not in ALARMS),
        len(said),
        row.get("failure", ""),
    )


def names(setup: Setup, contestant: str, told: Told, corrected: Iterable[Correction]) -> bool:
    """Whether this names the defect; of a healthy set-up, whether it is no false alarm."""
    for correction in corrected:
        if correction.fits(setup.name, contestant, told):
            correction.used += 1
            return correction.counts if setup.defect else not correction.counts
    if not setup.defect:
        return False
    text = f"{told.title}\n{told.advice}"
    return any(re.search(word, text, re.IGNORECASE) for word in setup.words)
