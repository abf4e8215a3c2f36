"""From outcomes to rows of the ledger, and back: is every verdict what its observation gives?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from normscope.experiments.claim import Claim, claims
from normscope.experiments.experiment import Experiment, experiments
from normscope.experiments.reproduce import Outcome, judged, verdict_without_run
from normscope.experiments.rules import Judgement
from normscope.results.ledger import PAPERS, Ledger, LedgerRow, PaperLedger


def updated(old: Ledger, outcomes: Iterable[Outcome]) -> Ledger:
    """The ledger of the catalogue as it is now, with these outcomes.

    Rows of experiments that were not run keep what the old ledger says, if claim and settings are
    the same; otherwise they are not run.
    """
    new = {row.id: row for one in outcomes for row in rows_of(one)}
    panels = {one.experiment.id: one.panels for one in outcomes}
    known, before = experiments(), {row.id: row for row in old}
    made = []
    for paper in PAPERS:
        own = [claim for claim in claims().values() if claim.paper == paper]
        rows = tuple(new.get(c.id) or _kept(c, before.get(c.id), known) for c in own)
        titles = {k: e.title for k, e in known.items() if k.startswith(f"{paper}/")}
        stood = old.papers[paper].panels if paper in old.papers else {}
        drawn = {k: tuple(panels.get(k, stood.get(k, ()))) for k in titles}
        made.append(PaperLedger(paper, rows, titles, drawn))
    return Ledger(made)


def rows_of(outcome: Outcome) -> list[LedgerRow]:
    """The rows of the claims that read an experiment."""
    all_claims = claims()
    return [
        row_of(
            all_claims[key], outcome.experiment, one,
            scale=outcome.scale, settings=outcome.settings, versions=outcome.versions,
            cpu_seconds=round(outcome.seconds, 1),
            observation=outcome.observations.get(all_claims[key].observation, {}),
        )
        for key, one in outcome.judgements.items()
    ]  # fmt: skip


def row_of(claim: Claim, experiment: Experiment | None, one: Judgement, **run: Any) -> LedgerRow:
    """The row of a claim and its judgement; ``run`` says how it was run."""
    expected = claim.expected if claim.expected is not None else one.expected
    return LedgerRow(
        claim.id, claim.place, claim.statement, claim.kind, claim.group, expected, one.observed,
        one.error, one.tolerance, one.verdict, one.reason, claim.rule, dict(claim.parameters),
        claim.experiment, seeds=one.seeds, seeds_needed=one.seeds_needed, limits=claim.limits,
        wrong=claim.wrong, stand_in=claim.stand_in,
        hours=experiment.hours if experiment else None, **run,
    )  # fmt: skip


def _kept(claim: Claim, old: LedgerRow | None, known: Mapping[str, Experiment]) -> LedgerRow:
    experiment = known.get(claim.experiment)
    if old is not None and old.scale and not difference(claim, old, known):
        return old
    return row_of(claim, experiment, verdict_without_run(claim, known))


def verify(ledger: Ledger) -> list[str]:
    """What is wrong with a ledger, one line for each row; empty if nothing is.

    Every verdict is computed again from the observation in the row; texts, rules and settings are
    compared with the catalogue.
    """
    known, all_claims = experiments(), claims()
    troubles = [
        f"{key}: the row was edited: its checksum does not fit"
        for one in ledger.papers.values()
        for key in one.altered
    ]
    seen = {row.id: row for row in ledger}
    troubles += [f"{key}: not in the ledger" for key in all_claims if key not in seen]
    for key, row in seen.items():
        if key not in all_claims:
            troubles.append(f"{key}: no such claim in the catalogue")
        elif words := difference(all_claims[key], row, known):
            troubles.append(f"{key}: {words}")
    return troubles


def difference(claim: Claim, row: LedgerRow, known: Mapping[str, Experiment]) -> str:
    """What a row says otherwise than the catalogue, in words; empty if nothing."""
    experiment = known.get(claim.experiment)
    if row.scale and experiment is not None:
        if experiment.plan(row.scale).identity != row.settings:
            return "the experiment has other settings now"
        if not row.observation and row.verdict != "not run":
            return "the observation is missing"
        one = judged(claim, {claim.observation: row.observation} if row.observation else {})
    else:
        one = verdict_without_run(claim, known)
    how = {name: getattr(row, name) for name in RUN}
    fresh = replace(row_of(claim, experiment, one), **how)
    for name in ("verdict", "statement", "rule", "kind", "group", "expected", "item"):
        if getattr(fresh, name) != getattr(row, name):
            return f"{name} is {getattr(row, name)!r} there and {getattr(fresh, name)!r} here"
    return "" if fresh.checksum == row.checksum else "texts or numbers differ from the catalogue"


RUN = ("scale", "settings", "versions", "cpu_seconds", "observation")
