"""Run experiments in a folder that survives kills, and judge the claims that read them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.experiments.claim import Claim, claims
from normscope.experiments.experiment import Experiment, experiments
from normscope.registry import near_match
from normscope.results.ledger import PAPERS, near_id
from normscope.results.panel import Panel
from normscope.results.rules import BLOCKED, NOT_RUN, Judgement, judge
from normscope.sweeps import Sweep, Table, Trial, sweep
from normscope.sweeps.plan import grid


@dataclass(frozen=True)
class Outcome:
    """What one experiment came to.

    Attributes:
        experiment: what was run.
        scale: at which scale.
        observations: what was observed, by name.
        panels: its charts, as data.
        judgements: what the rules say of every claim that reads it, by id.
        settings: hash of all settings.
        seconds: CPU-seconds of all trials.
        versions: versions of the packages that ran them.
        failures: trials that failed, as the last line of each error.
    """

    experiment: Experiment
    scale: str
    observations: Mapping[str, Any]
    panels: tuple[Panel, ...]
    judgements: Mapping[str, Judgement]
    settings: str
    seconds: float
    versions: Mapping[str, str]
    failures: tuple[str, ...]


def chosen(names: Iterable[str]) -> list[Experiment]:
    """The experiments behind names of papers, experiments and claims, each once."""
    known, all_claims = experiments(), claims()
    found: dict[str, Experiment] = {}
    for name in names:
        if name in PAPERS:
            found |= {k: e for k, e in known.items() if k.startswith(f"{name}/")}
        elif name in known:
            found[name] = known[name]
        elif name in all_claims:
            if key := all_claims[name].experiment:
                found[key] = known[key]
        else:
            kind = "claim or experiment" if "/" in name else "paper"
            raise InputError(f"Unknown {kind} {name!r}. {near_id(name, [*known, *all_claims])}")
    return list(found.values())


def run(experiment: Experiment, scale: str, output: str | os.PathLike[str],
        **options: Any) -> Outcome:  # fmt: skip
    """Run what is missing of an experiment, and judge.

    Args:
        experiment: what to run.
        scale: ``"smoke"``, ``"desk"`` or ``"paper"``.
        output: folder for the results of all experiments; each scale and each version of the
            settings has a folder of its own in it, so that nothing is mixed.
        options: options of ``sweep``: ``executor``, ``workers``, ``retry_failed``, ``address``, ...
    """
    plan, at = experiment.plan(scale), experiment.at(scale)
    folder = folder_of(experiment, scale, output)
    trial = Trial(experiment.trial, experiment.version)
    found = sweep(trial, grid(at.settings, at.seeds), output=folder, **options)
    return outcome(experiment, scale, found, plan.identity)


def outcome(experiment: Experiment, scale: str, found: Sweep, settings: str) -> Outcome:
    """Judge the claims of an experiment from its finished trials."""
    failures = tuple(error.strip().splitlines()[-1] for error in found.errors().values())
    table = Table.of(found)
    observations: Mapping[str, Any] = {}
    panels: tuple[Panel, ...] = ()
    if found.complete:
        observations = rounded(experiment.observe(table))
        panels = tuple(experiment.panels(table))
    judgements = {claim.id: judged(claim, observations) for claim in claims_of(experiment.id)}
    abouts = [line["about"] for line in found.lines()]
    seconds = sum(about.get("cpu_seconds", about["seconds"]) for about in abouts)
    versions = abouts[-1]["versions"] if abouts else {}
    return Outcome(experiment, scale, observations, panels, judgements, settings, seconds, versions,
                   failures)  # fmt: skip


def rounded(value: Any) -> Any:
    """Plain data with numbers of nine digits, as the ledger keeps them."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def claims_of(experiment: str) -> list[Claim]:
    """The claims that read an experiment."""
    return [claim for claim in claims().values() if claim.experiment == experiment]


def folder_of(experiment: Experiment, scale: str, output: str | os.PathLike[str]) -> Path:
    """The folder of an experiment's trials; other settings have another."""
    identity = experiment.plan(scale).identity[:8]
    return Path(output) / experiment.id.replace("/", "-") / f"{scale}-{identity}"


def verdict_without_run(claim: Claim, known: Mapping[str, Experiment]) -> Judgement:
    """What can be said of a claim that nothing was run for."""
    if not claim.experiment:
        return judge(claim.rule, {}, claim.parameters)
    behind = known[claim.experiment]
    if "desk" not in behind.scales and not behind.own_scale:
        return Judgement(BLOCKED, reason=claim.stand_in)
    return Judgement(NOT_RUN)


def judged(claim: Claim, observations: Mapping[str, Any]) -> Judgement:
    """What its rule says of a claim; not run if there are no observations."""
    if not observations:
        return Judgement(NOT_RUN, reason="trials are missing or failed")
    if claim.observation not in observations:
        raise InputError(
            f"{claim.id} reads {claim.observation!r}, which {claim.experiment} does not observe. "
            f"{near_match(claim.observation, list(observations))}"
        )
    parameters = dict(claim.parameters)
    if claim.rule == "number" and isinstance(claim.expected, int | float):
        parameters.setdefault("expected", claim.expected)
    return judge(claim.rule, observations[claim.observation], parameters)
