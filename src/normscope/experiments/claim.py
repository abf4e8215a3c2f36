"""Claims of the papers, as data: one file per paper."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.results.ledger import PAPERS
from normscope.results.rules import RULES

_TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"
KINDS = ("paper", "ours", "guard")
GROUPS = ("theorem", "equation", "figure", "table", "text", "misprint")


@dataclass(frozen=True)
class Claim:
    """One falsifiable statement of a paper, and the rule that decides it.

    Attributes:
        id: paper and name, such as ``"wei2019/fig1a"``.
        place: where it stands in the paper.
        statement: what would have to be true.
        experiment: id of the experiment that it reads; empty for what is decided by reading.
        rule: name of the rule.
        reads: name of the observation; by default the part of the id behind the paper.
        expected: the number or words that the paper gives, or a theory.
        source: where the expected value comes from, if not from the place itself.
        kind: ``"paper"``, ``"ours"`` (a control or a correction) or ``"guard"`` (cannot fail).
        group: ``"theorem"``, ``"equation"``, ``"figure"``, ``"table"``, ``"text"``, ``"misprint"``.
        limits: what the row does *not* show, stand-ins, choices where the paper is silent.
        changed: what was changed in the claim or its rule after the run had been seen; empty if
            nothing was.
        wrong: for "what the paper got wrong": the correction in one sentence.
        stand_in: for a row that is blocked by scale: id of the row that was run in its place, or
            why none can exist.
        parameters: what the rule is called with.
    """

    id: str
    place: str
    statement: str
    rule: str
    experiment: str = ""
    reads: str = ""
    expected: float | str | None = None
    source: str = ""
    kind: str = "paper"
    group: str = "text"
    limits: str = ""
    changed: str = ""
    wrong: str = ""
    stand_in: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Key of the paper."""
        return self.id.partition("/")[0]

    @property
    def observation(self) -> str:
        """Name of the observation that it reads."""
        return self.reads or self.id.partition("/")[2]


@cache
def claims() -> dict[str, Claim]:
    """All claims by id, in the order of the papers and of their files."""
    found: dict[str, Claim] = {}
    for paper in PAPERS:
        for claim in read_claims(paper):
            if claim.id in found:
                raise InputError(f"Two claims are called {claim.id}.")
            found[claim.id] = claim
    return found


def read_claims(paper: str) -> list[Claim]:
    """The claims in the file of a paper; a claim that cannot be judged is refused by name."""
    return [_claim(paper, row) for row in paper_file(paper).get("claim", [])]


@cache
def paper_file(paper: str) -> dict[str, Any]:
    """What the file of a paper says of its experiments and claims."""
    folder = resources.files("normscope.experiments") / paper
    text = (folder / "claims.toml").read_text(encoding="utf-8")
    return dict(importlib.import_module(_TOML).loads(text))


def _claim(paper: str, row: dict[str, Any]) -> Claim:
    known = {f.name for f in fields(Claim)} - {"parameters"}
    rule = row.get("rule", {})
    rule = {"name": rule} if isinstance(rule, str) else dict(rule)
    given = {k: v for k, v in row.items() if k != "rule"}
    name = given.get("id", "?")
    if strange := set(given) - known:
        raise InputError(f"{name} of {paper}: unknown key {sorted(strange)[0]!r}.")
    for needed in ("id", "place", "statement"):
        if not given.get(needed):
            raise InputError(f"{name} of {paper} lacks {needed!r}.")
    claim = Claim(rule=rule.pop("name", ""), parameters=rule, **given)
    if claim.paper != paper:
        raise InputError(f"{name} stands in the file of {paper}.")
    check_choice(f"rule of {name}", claim.rule, list(RULES))
    expected = inspect.signature(RULES[claim.rule]).parameters
    if strange := set(rule) - set(expected):
        raise InputError(f"{name}: the rule {claim.rule!r} has no parameter {min(strange)!r}.")
    check_choice(f"kind of {name}", claim.kind, KINDS)
    check_choice(f"group of {name}", claim.group, GROUPS)
    return claim
