"""From outcomes to rows of the ledger, and back: is every verdict what its observation gives?"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from normscope.experiments.claim import Claim, claims
from normscope.experiments.experiment import Experiment, experiments
from normscope.experiments.reproduce import Outcome, judged, verdict_without_run
from normscope.record import plain_data
from normscope.results.ledger import PAPERS, Ledger, LedgerRow, PaperLedger
from normscope.results.rules import NOT_RUN, Judgement


def updated(old: Ledger, outcomes: Iterable[Outcome]) -> Ledger:
    """The ledger of the catalogue as it is now, with these outcomes.

    Rows of experiments that were not run keep what the old ledger observed, with the texts of the
    catalogue. If settings, rule or expected value are others now, they are not run.
    """
    outcomes = list(outcomes)
    new = {row.id: row for one in outcomes for row in rows_of(one)}
    panels = {one.experiment.id: one.panels for one in outcomes}
    known, before = experiments(), {row.id: row for row in old}
    made = []
    for paper in PAPERS:
        own = [claim for claim in claims().values() if claim.paper == paper]
        rows = tuple(new.get(c.id) or _kept(c, before.get(c.id), known) for c in own)
        titles = {k: e.title for k, e in known.items() if k.startswith(f"{paper}/")}
        stood = old.papers[paper].panels if paper in old.papers else {}
        kept = {row.experiment for row in rows if row.scale}
        drawn = {k: tuple(panels.get(k, stood.get(k, ()))) for k in titles if k in kept}
        made.append(PaperLedger(paper, rows, titles, drawn))
    return Ledger(made)


def rows_of(outcome: Outcome) -> list[LedgerRow]:
    """The rows of the claims that read an experiment."""
    all_claims = claims()
    return [row_of(all_claims[key], outcome.experiment, one, scale=outcome.scale,
                   settings=outcome.settings, versions=outcome.versions,
                   cpu_seconds=round(outcome.seconds, 1),
                   observation=outcome.observations.get(all_claims[key].observation, {}))
            for key, one in outcome.judgements.items()]  # fmt: skip


def rows_by_reading() -> list[LedgerRow]:
    """The rows of claims that are decided by reading: nothing is run for them."""
    return [row_of(claim, None, verdict_without_run(claim, {})) for claim in claims().values()
            if not claim.experiment]  # fmt: skip


def row_of(claim: Claim, experiment: Experiment | None, one: Judgement, **run: Any) -> LedgerRow:
    """The row of a claim and its judgement; ``run`` says how it was run."""
    expected = claim.expected if claim.expected is not None else one.expected
    return LedgerRow(claim.id, claim.place, claim.statement, claim.kind, claim.group, expected,
                     one.observed, one.error, one.tolerance, one.verdict, one.reason, claim.rule,
                     dict(claim.parameters), claim.experiment, claim.observation if experiment
                     else "", seeds=one.seeds, seeds_needed=one.seeds_needed, limits=claim.limits,
                     changed=claim.changed, wrong=claim.wrong, stand_in=claim.stand_in,
                     hours=experiment.hours if experiment else None, **run)  # fmt: skip


def _kept(claim: Claim, old: LedgerRow | None, known: Mapping[str, Experiment]) -> LedgerRow:
    experiment = known.get(claim.experiment)
    if old is None or not old.scale or experiment is None or _stale(claim, old, experiment):
        return row_of(claim, experiment, verdict_without_run(claim, known))
    run = {name: getattr(old, name) for name in RUN}
    return row_of(claim, experiment, _again(claim, old), **run)


def _stale(claim: Claim, row: LedgerRow, experiment: Experiment) -> str:
    """Why an observation cannot be judged by the claim as it is now; empty if it can."""
    scales = {*experiment.scales, *(["paper"] if experiment.own_scale else [])} - {"smoke"}
    if row.scale not in scales:
        return f"no verdict comes from the scale {row.scale!r}"
    if experiment.plan(row.scale).identity != row.settings:
        return "the experiment has other settings now"
    fresh = row_of(claim, experiment, Judgement(NOT_RUN))
    names = ["rule", "parameters", "experiment", "reads"]
    return _first_difference(row, fresh, names + ["expected"] * (claim.expected is not None))


def _again(claim: Claim, row: LedgerRow) -> Judgement:
    return judged(claim, {claim.observation: row.observation} if row.observation else {})


def _first_difference(row: LedgerRow, fresh: LedgerRow, names: Iterable[str]) -> str:
    for name in names:
        there, here = getattr(row, name), getattr(fresh, name)
        if plain_data(there) != plain_data(here):
            return _differs(name, there, here)
    return ""


def _differs(name: str, there: Any, here: Any) -> str:
    computed = "computed from the observations" if name in COMPUTED else "the catalogue"
    return f"{name}: the file says {there!r}; {computed}: {here!r}"


def verify(ledger: Ledger) -> list[str]:
    """What is wrong with a ledger, one line for each row; empty if nothing is.

    Every verdict is computed again from the observation in the row; texts, rules and settings are
    compared with the catalogue.
    """
    known, all_claims = experiments(), claims()
    edited = [key for one in ledger.papers.values() for key in one.altered]
    troubles = [f"{key}: edited by hand: its checksum does not fit" for key in edited]
    counts = Counter(row.id for row in ledger)
    troubles += [f"{key}: not in the ledger" for key in all_claims if key not in counts]
    troubles += [f"{key}: {n} times in the ledger" for key, n in counts.items() if n > 1]
    for paper, one in ledger.papers.items():
        titles = {k: e.title for k, e in known.items() if k.startswith(f"{paper}/")}
        wrong = {k for k, _ in titles.items() ^ one.titles.items()}
        troubles += [f"{key}: title or list of experiments differ" for key in sorted(wrong)]
    for row in ledger:
        if row.id not in all_claims:
            troubles.append(f"{row.id}: no such claim in the catalogue")
        elif words := difference(all_claims[row.id], row, known):
            troubles.append(f"{row.id}: {words}")
    return troubles


def difference(claim: Claim, row: LedgerRow, known: Mapping[str, Experiment]) -> str:
    """What a row says otherwise than the catalogue, in words; empty if nothing."""
    experiment = known.get(claim.experiment)
    if row.scale and experiment is not None:
        if words := _stale(claim, row, experiment):
            return words
        if not row.observation and row.verdict != NOT_RUN:
            return "the observation is missing"
        one = _again(claim, row)
    else:
        one = verdict_without_run(claim, known)
    fresh = row_of(claim, experiment, one)
    texts = [f.name for f in fields(LedgerRow) if f.name not in (*RUN, *ROUNDED, "reason")]
    if words := _first_difference(row, fresh, ["verdict", *texts]):
        return words
    # other machines and other versions of scipy differ in the last digits
    sizes = [abs(v) for v in (row.observed, row.expected) if isinstance(v, float | int)]
    slack = 1e-9 * max((v for v in sizes if math.isfinite(v)), default=0.0)
    for name in ROUNDED:
        there, here = getattr(row, name), getattr(fresh, name)
        if not _close(there, here, slack + 1e-6 * abs(row.tolerance or 0.0)):
            return _differs(name, there, here)
    return "" if NUMBER.sub("", row.reason) == NUMBER.sub("", fresh.reason) else "other reason"


def _close(there: Any, here: Any, slack: float) -> bool:
    if not all(isinstance(v, float | int) and math.isfinite(v) for v in (there, here)):
        return bool(plain_data(there) == plain_data(here))
    return math.isclose(there, here, rel_tol=1e-6, abs_tol=slack)


RUN = ("scale", "settings", "versions", "cpu_seconds", "observation")
COMPUTED = ("verdict", "observed", "error", "tolerance", "seeds", "seeds_needed", "reason")
ROUNDED = ("expected", "observed", "error", "tolerance", "seeds_needed")
NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)")
