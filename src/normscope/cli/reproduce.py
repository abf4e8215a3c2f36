"""``normscope reproduce``: the claims of five papers, run again, with a verdict on each."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import PARTIAL
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.subject.interrupts import interruptible

FAILED_CHECK = 1
WIDTH = 100  # columns of a table
SIDES = {"sign": ("above", "below"), "bound": ("at least", "at most")}
WHAT, RUN, CLUSTER = "what", "run", "cluster"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise InputError(f"Names are texts such as karakida2019 or wei2019/fig1a. Got {value!r}.")
    return tuple(names)


def _seconds(value: Any) -> float:
    """``90s``, ``20m`` or ``2h`` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    if not match:
        raise InputError(f"A budget is a time such as 90s, 20m or 2h. Got {value!r}.")
    return float(match[1]) * UNITS[match[2] or "s"]


OPTIONS = (
    Option("names", _names, "papers, experiments or claims, such as karakida2019 or "
           "wei2019/fig1a; several are allowed. Without one: list all experiments", "[ID ...]",
           group=WHAT, positional=True),
    Option("all", opt.switch, "every experiment", group=WHAT),
    Option("scale", opt.text, "smoke (seconds, checks the code only), desk (minutes) or paper (as "
           "the authors)", "SCALE", "desk", WHAT),
    Option("budget", _seconds, "run for about this time, such as 20m: the cheapest experiments "
           "whose claims have no verdict yet", "TIME", group=WHAT),
    Option("ledger", opt.switch, "show the ledger that comes with the package; run nothing",
           group=WHAT),
    Option("verify", opt.switch, "compute every verdict of the ledger again from what was "
           "observed, and compare it with the catalogue", group=WHAT),
    Option("output", opt.text, "folder for the results; the same command continues there", "DIR",
           "reproduced", RUN),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group=RUN),
    Option("workers", opt.whole, "processes of one thread each (default: one for each core)", "N",
           group=RUN),
    Option("executor", opt.text, "processes, serial or ray", "NAME", "processes", RUN),
    Option("retry_failed", opt.switch, "run failed trials again", group=RUN),
    Option("address", opt.text, "Ray at: local, auto, HOST:PORT", "ADDRESS", "local", CLUSTER),
    Option("pages", opt.text, "write papers.html and a page for each paper", "DIR"),
    Option("update_ledger", opt.text, "for maintainers: write what was run into the ledger in this "
           "folder", "DIR"),
    opt.JSON,
)  # fmt: skip
PASSED = ("executor", "workers", "retry_failed", "address")
DESCRIPTION = """Run the claims of five papers on batch normalization again, and say which hold.
Without a name it lists the experiments and what they cost."""
EPILOG = """exit codes: 0 done, 1 --verify found something, 2 bad input, 3 done in part (a data set
is missing, or a trial failed), 130 interrupted

example:
  normscope reproduce --ledger
  normscope reproduce huang2020/kronecker --scale smoke"""


def prepared(words: Sequence[str]) -> list[str]:
    """Several names as one word with commas."""
    names, rest, taken = list[str](), list[str](), set[int]()
    flags = {option.flag for option in OPTIONS if option.metavar and not option.positional}
    for place, word in enumerate(words):
        if place in taken:
            continue
        if word.startswith("-"):
            rest.append(word)
            if word in (*flags, "--config") and place + 1 < len(words):
                rest.append(words[place + 1])
                taken.add(place + 1)
        else:
            names.append(word)
    return [",".join(names), *rest] if names else rest


def run(given: dict[str, Any]) -> int | None:
    """List, show, verify, or run and judge."""
    from normscope.results.ledger import shipped_ledger

    if "data_dir" in given:  # so that worker processes find it too
        os.environ["NORMSCOPE_DATA"] = os.path.abspath(given["data_dir"])
    if given.get("verify"):
        return _verify(given)
    if given.get("ledger"):
        ledger = shipped_ledger()
        if edited := [key for one in ledger.papers.values() for key in one.altered]:
            many = f"{len(edited)} entries" if len(edited) > 1 else "one entry"
            output.note(
                f"Warning: checksums do not match for {many} of the ledger: {_listed(edited)}. "
                "Somebody edited the file; --verify says more."
            )
        chosen = _rows(ledger, given.get("names", ()))
        _pages(ledger, given)
        if given.get("json"):
            output.print_json({"claims": [row.to_json() for row in chosen]})
            return None
        _print_rows(chosen)
        if count := sum(bool(row.changed) for row in chosen):
            output.write(f"* the claim or its rule was changed after the run ({count} of the rows "
                         "above; --json says how)")  # fmt: skip
        _print_totals(ledger)
        return None
    if not (given.get("names") or given.get("all") or "budget" in given):
        _list(given)
        return None
    return _run(given)


def _run(given: dict[str, Any]) -> int | None:
    from normscope.experiments.experiment import SCALES
    from normscope.experiments.ledger import rows_by_reading, rows_of, updated
    from normscope.results.ledger import shipped_ledger

    scale, names = given.get("scale", "desk"), given.get("names", ())
    check_choice("scale", scale, SCALES)
    if "update_ledger" in given and scale == "smoke":
        raise InputError("A smoke run checks the code only: its verdicts never enter the ledger.")
    folder, ledger = given.get("output", "reproduced"), shipped_ledger()
    if Path(folder).exists() and not Path(folder).is_dir():
        raise InputError(f"--output is a folder for results. {folder!r} is a file: name another.")
    wanted, left = _wanted(given, scale, names)
    outcomes = _outcomes(wanted, scale, folder, given)
    rows = [row for one in outcomes for row in rows_of(one)]
    if "pages" in given:
        drawn = [_unjudged(one) for one in outcomes] if scale == "smoke" else outcomes
        _pages(updated(ledger, drawn), given)
    if scale == "smoke":
        rows = [replace(r, verdict="ran" if r.observation else "failed") for r in rows]
    rows += [] if "budget" in given else rows_by_reading()
    asked = [row for row in rows if _asked(row, names)]
    if outcomes:
        output.note(f"The results are in {folder}; the same command runs only what is missing.")
        if scale == "smoke":
            output.note("A smoke run checks the code only; --scale desk or paper gives verdicts.")
    if given.get("json"):
        output.print_json({"claims": [row.to_json() for row in asked]})
    else:
        _print_rows(asked, {row.id: row.verdict for row in ledger})
    return PARTIAL if left or any(one.failures for one in outcomes) else None


def _unjudged(outcome: Any) -> Any:
    """A smoke run for the pages, which show its numbers and charts: no verdict comes from it."""
    why = "a smoke run checks the code only"
    made = {k: replace(j, verdict="not run", reason=why) for k, j in outcome.judgements.items()}
    return replace(outcome, judgements=made)


def _wanted(given: dict[str, Any], scale: str, names: Sequence[str]) -> tuple[list[Any], list[str]]:
    """What is to be run, and what was asked for and cannot be."""
    from normscope.experiments.experiment import experiments
    from normscope.experiments.reproduce import chosen

    with interruptible():
        wanted = chosen(names) if names else list(experiments().values())
        if "budget" in given:
            wanted = _open(wanted, scale)
    wanted, left = _possible(wanted, scale, named=bool(names))
    if "budget" in given and (wanted or not left):
        wanted = _within(wanted, scale, given["budget"], given.get("workers"))
    return wanted, left


def _outcomes(wanted: list[Any], scale: str, folder: str, given: dict[str, Any]) -> list[Any]:
    """Run one experiment after the other, until all is done or the time is over."""
    from normscope.experiments.ledger import updated
    from normscope.experiments.reproduce import run as run_one
    from normscope.results.ledger import read_ledger, write_ledger

    passed = {name: given[name] for name in PASSED if name in given}
    began, outcomes = time.monotonic(), list[Any]()
    for experiment in wanted:
        if "budget" in given and time.monotonic() - began > given["budget"]:
            output.note(f"The time is over: {experiment.id} and what follows are left for later.")
            break
        output.note(f"{experiment.id}: {experiment.title}")
        try:
            with interruptible():
                one = run_one(experiment, scale, folder, **passed)
        except KeyboardInterrupt:
            output.note(_saved(experiment, scale, folder))
            raise
        outcomes.append(one)
        for line in one.failures[:3]:
            output.note(f"{experiment.id}: a trial failed: {line}")
        if "update_ledger" in given:  # after each, so that nothing is lost
            target = given["update_ledger"]
            write_ledger(updated(read_ledger(target), outcomes), target)
    return outcomes


def _saved(experiment: Any, scale: str, folder: str) -> str:
    """What is left of a run that was interrupted."""
    from normscope.experiments.reproduce import folder_of
    from normscope.sweeps import Sweep

    place = folder_of(experiment, scale, folder)
    done = 0
    with contextlib.suppress(InputError):  # interrupted before it had begun
        done = len(Sweep(place).found.done)
    total = len(experiment.plan(scale).rows)
    return (
        f"Interrupted: {done} of {total} trials of {experiment.id} are saved in {place}. "
        "The same command goes on from there."
    )


def _possible(wanted: list[Any], scale: str, *, named: bool) -> tuple[list[Any], list[str]]:
    """What can be run at this scale with the data that are there, and what not; says why."""
    from normscope.data import load_data

    ready, left, missing = list[Any](), list[str](), dict[str, str]()
    lacking = dict[str, list[str]]()
    for experiment in wanted:
        if not _has(experiment, scale):
            hours = f", about {experiment.hours:g} hours on one GPU" if experiment.hours else ""
            there = next(s for s in ("paper", "desk", "smoke") if s in experiment.scales)
            output.note(
                f"{experiment.id} has no scale {scale!r}. "
                f"Run normscope reproduce {experiment.id} --scale {there}{hours}."
            )
            left += [experiment.id] if named else []
            continue
        for name in experiment.at(scale).data:
            if name not in missing:
                try:
                    load_data(name)
                    missing[name] = ""
                except InputError as error:
                    missing[name] = str(error)
            if missing[name]:
                lacking.setdefault(name, []).append(experiment.id)
        if any(missing[name] for name in experiment.at(scale).data):
            left.append(experiment.id)
        else:
            ready.append(experiment)
    for name, keys in lacking.items():
        why = missing[name]
        if "was not found" in why:  # the rest of it is for other commands
            why = (
                f"{why.partition('. ')[0]}. Name the folder of the data sets, as torchvision lays "
                "them out, by --data-dir DIR or NORMSCOPE_DATA."
            )
        output.note(f"{why} Left out, as they need {name}: {', '.join(keys)}.")
    return ready, left


def _has(experiment: Any, scale: str) -> bool:
    return scale in experiment.scales or (scale == "paper" and experiment.own_scale)


def _open(wanted: list[Any], scale: str) -> list[Any]:
    """Experiments with claims that a run at this scale may decide: it gives the same every time."""
    from normscope.experiments.reproduce import claims_of
    from normscope.results.ledger import shipped_ledger

    settled = {row.id: "" if row.judged else row.settings for row in shipped_ledger()
               if row.judged or row.settings}  # fmt: skip
    found = []
    for one in wanted:
        if _has(one, scale):
            same = ("", one.plan(scale).identity)
            if any(settled.get(claim.id, "new") not in same for claim in claims_of(one.id)):
                found.append(one)
    return found


def _within(wanted: list[Any], scale: str, budget: float, workers: int | None) -> list[Any]:
    """The cheapest of them, as many as fit; says which."""
    from normscope.sweeps.executors import usable_cores

    cores, spent, fit = workers or usable_cores(), 0.0, list[Any]()
    ordered = sorted(wanted, key=lambda e: e.at(scale).seconds)
    for one in ordered:
        cost = one.at(scale).seconds / cores
        if spent + cost <= budget:
            spent += cost
            fit.append(one)
    if fit:
        plural = "s" * (len(fit) > 1)
        names = ", ".join(one.id for one in fit)
        output.note(f"{len(fit)} experiment{plural}, about {_spoken(spent)}: {names}.")
    elif ordered:
        least = ordered[0]
        output.note(
            f"Nothing without a verdict fits into {_spoken(budget)}: the shortest, {least.id}, "
            f"takes about {_spoken(least.at(scale).seconds / cores)}."
        )
    else:
        output.note(f"There is nothing that a run at scale {scale!r} could still decide.")
    return fit


def _spoken(seconds: float) -> str:
    """A time as one says it: ``2 min 40 s``."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return " ".join([f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest))


def _verify(given: dict[str, Any]) -> int | None:
    from normscope.experiments.ledger import verify
    from normscope.results.ledger import read_ledger, shipped_ledger

    ledger = read_ledger(given["update_ledger"]) if "update_ledger" in given else shipped_ledger()
    rows = _rows(ledger, given.get("names", ()))
    asked = {row.id for row in rows}
    with interruptible():
        troubles = [line for line in verify(ledger)
                    if not given.get("names") or line.partition(":")[0] in asked]  # fmt: skip
    if given.get("json"):
        output.print_json({"rows": len(rows), "troubles": troubles})
    else:
        for line in troubles:
            output.write(line)
        wrong = {line.partition(":")[0] for line in troubles}
        own = sum(row.kind == "paper" for row in rows)
        counts = f"{own} claims of papers, {len(rows) - own} of our own"
        bad = (
            f"{len(wrong)} {'does' if len(wrong) == 1 else 'do'} not match"
            if wrong
            else "all match"
        )
        output.write(f"{len(rows)} rows checked ({counts}): {bad}.")
    return FAILED_CHECK if troubles else None


def _list(given: dict[str, Any]) -> None:
    from normscope.experiments.experiment import experiments
    from normscope.experiments.reproduce import claims_of

    rows, data = list[list[str]](), list[dict[str, Any]]()
    for key, one in experiments().items():
        costs = {scale: at.seconds for scale, at in one.scales.items()}
        count = len(claims_of(key))
        sets = sorted({name for at in one.scales.values() for name in at.data})
        data.append(
            {"id": key, "title": one.title, "claims": count, "seconds": costs, "data": sets}
        )
        paper = "as desk" if one.own_scale else _duration(costs.get("paper"), one.hours)
        cells = [_duration(costs.get("smoke")), _duration(costs.get("desk")), paper]
        rows.append([key, str(count), *cells, ", ".join(sets) or "-", one.title])
    if given.get("json"):
        output.print_json({"experiments": data})
        return
    heads = ["experiment", "claims", "smoke", "desk", "paper", "data", "what it does"]
    output.print_table(heads, rows, left=True, width=WIDTH)
    output.note("Times are of one core; smoke needs no data. normscope reproduce ID runs one.")


def _duration(seconds: float | None, hours: float | None = None) -> str:
    if hours is not None:
        return f"{hours:g} GPU h"
    if seconds is None:
        return "-"
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _rows(ledger: Any, names: Sequence[str]) -> list[Any]:
    if not names:
        return list(ledger.rows)
    from normscope.results.ledger import PAPERS, near_id

    known = [*PAPERS, *(name for row in ledger.rows for name in (row.experiment, row.id) if name)]
    for name in names:
        if name not in known:
            raise InputError(f"The ledger has no row {name!r}. {near_id(name, known)}")
    return [row for row in ledger.rows if _asked(row, names)]


def _asked(row: Any, names: Sequence[str]) -> bool:
    return not names or any(name in (row.id, row.experiment, row.paper) for name in names)


def _print_rows(rows: Sequence[Any], before: dict[str, str] | None = None) -> None:
    if not rows:
        return
    cells = []
    for row in rows:
        line = [row.id, row.item, _expected(row), _cell(row.observed), _verdict(row)]
        cells.append(line if before is None else [*line, before.get(row.id, "-")])
    heads = ["claim", "place", "expected", "found", "verdict"]
    heads = heads if before is None else [*heads, "in the ledger"]
    output.print_table(heads, cells, left=True, width=WIDTH)


def _verdict(row: Any) -> str:
    """The verdict, and what is to be known of it."""
    if row.rule == "reading" and row.verdict == "not run":
        return "cannot be tested"
    so_far = " so far" if row.verdict != "undecided" else ""
    more = f"{so_far}; about {row.seeds_needed} runs would decide" if row.seeds_needed else ""
    return row.verdict + more + " *" * bool(row.changed)


def _expected(row: Any) -> str:
    """What was expected, with the side that a sign or a bound is about."""
    text, given = _cell(row.expected), row.parameters
    if not isinstance(row.expected, float | int) or "parts" in row.observation:
        return text
    if row.rule in SIDES:
        return f"{SIDES[row.rule][given.get('direction') == 'negative']} {text}"
    return "not 0" if row.rule == "identity" and not given.get("holds", True) else text


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def _cell(value: Any, most: int = 24) -> str:
    text = output.number(value, digits=4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _print_totals(ledger: Any) -> None:
    output.write("")
    heads, rows = ledger.table()
    output.print_table(heads, [list(map(str, row)) for row in rows], left=True, width=WIDTH)
    whole = ledger.totals()[-1]
    output.write("Decided: reproduced, partly, not reproduced, or a misprint (fails as printed).")
    output.write(
        f"Decided, or undecided after five seeds or more: {whole['judged']} of the "
        f"{whole['rows'] - whole['blocked by scale']} claims that are not blocked."
    )


def _pages(ledger: Any, given: dict[str, Any]) -> None:
    if "pages" in given:
        from normscope.render import report_package

        with output.working("Drawing the pages"), interruptible():
            written = report_package().save_papers(ledger, given["pages"])
        output.note(f"Wrote {written[0]} and {len(written) - 1} pages beside it")
