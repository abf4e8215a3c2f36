"""``normscope reproduce``: the claims of five papers, run again, with a verdict on each."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import PARTIAL
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.subject.interrupts import interruptible

FAILED_CHECK = 1
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
           "wei2019/fig1a; several with commas. Without one: list all experiments", "ID",
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
        chosen = _rows(ledger, given.get("names", ()))
        _pages(ledger, given)
        if given.get("json"):
            output.print_json({"claims": [row.to_json() for row in chosen]})
            return None
        _print_rows(chosen)
        _print_totals(ledger)
        return None
    if not (given.get("names") or given.get("all") or "budget" in given):
        _list(given)
        return None
    return _run(given)


def _run(given: dict[str, Any]) -> int | None:
    from normscope.experiments.experiment import SCALES, experiments
    from normscope.experiments.ledger import rows_by_reading, rows_of, updated
    from normscope.experiments.reproduce import chosen
    from normscope.experiments.reproduce import run as run_one
    from normscope.results.ledger import read_ledger, shipped_ledger, write_ledger

    scale = given.get("scale", "desk")
    check_choice("scale", scale, SCALES)
    if "update_ledger" in given and scale == "smoke":
        raise InputError("A smoke run checks the code only: its verdicts never enter the ledger.")
    with interruptible():
        names = given.get("names", ())
        wanted = chosen(names) if names else list(experiments().values())
    wanted, left, code = _possible(wanted, scale, named=bool(names))
    if "budget" in given:
        wanted = _within(wanted, scale, given["budget"], given.get("workers"))
    passed = {name: given[name] for name in PASSED if name in given}
    folder, ledger = given.get("output", "reproduced"), shipped_ledger()
    began, outcomes = time.monotonic(), list[Any]()
    for experiment in wanted:
        if "budget" in given and time.monotonic() - began > given["budget"]:
            output.note(f"The time is over: {experiment.id} and what follows are left for later.")
            break
        output.note(f"{experiment.id}: {experiment.title}")
        with interruptible():
            one = run_one(experiment, scale, folder, **passed)
        outcomes.append(one)
        for line in one.failures[:3]:
            output.note(f"{experiment.id}: a trial failed: {line}")
            code = PARTIAL
        if "update_ledger" in given:  # after each, so that nothing is lost
            target = given["update_ledger"]
            write_ledger(updated(read_ledger(target), outcomes), target)
    if left:
        code = PARTIAL
    rows = [row for one in outcomes for row in rows_of(one)] + rows_by_reading()
    asked = [row for row in rows if _asked(row, names)]
    if "pages" in given:
        _pages(updated(ledger, outcomes), given)
    if scale == "smoke" and outcomes:
        output.note("A smoke run checks the code only. Verdicts come from --scale desk or paper.")
    if given.get("json"):
        output.print_json({"claims": [row.to_json() for row in asked]})
    else:
        before = {row.id: row.verdict for row in ledger}
        _print_rows(asked, before)
    return code


def _possible(
    wanted: list[Any], scale: str, *, named: bool
) -> tuple[list[Any], list[str], int | None]:
    """What can be run at this scale with the data that are there; says what cannot."""
    from normscope.data import load_data

    ready, left, missing = list[Any](), list[str](), dict[str, str]()
    for experiment in wanted:
        if scale not in experiment.scales and not (scale == "paper" and experiment.own_scale):
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
                    output.note(str(error))
        if lacking := [name for name in experiment.at(scale).data if missing[name]]:
            output.note(f"{experiment.id} is left out: it needs {', '.join(lacking)}.")
            left.append(experiment.id)
        else:
            ready.append(experiment)
    return ready, left, None


def _within(wanted: list[Any], scale: str, budget: float, workers: int | None) -> list[Any]:
    """The cheapest experiments whose claims have no verdict yet, as many as fit."""
    from normscope.experiments.reproduce import claims_of
    from normscope.results.ledger import shipped_ledger
    from normscope.sweeps.executors import usable_cores

    judged = {row.id for row in shipped_ledger() if row.judged}
    cores, spent, fit = workers or usable_cores(), 0.0, list[Any]()
    for one in sorted(wanted, key=lambda e: e.at(scale).seconds):
        cost = one.at(scale).seconds / cores
        if any(c.id not in judged for c in claims_of(one.id)) and spent + cost <= budget:
            spent += cost
            fit.append(one)
    if not fit:
        output.note("Nothing without a verdict fits into this time.")
    return fit


def _verify(given: dict[str, Any]) -> int | None:
    from normscope.experiments.ledger import verify
    from normscope.results.ledger import read_ledger, shipped_ledger

    ledger = read_ledger(given["update_ledger"]) if "update_ledger" in given else shipped_ledger()
    with interruptible():
        troubles = verify(ledger)
    if given.get("json"):
        output.print_json({"rows": len(ledger.rows), "troubles": troubles})
    else:
        for line in troubles:
            output.write(line)
        wrong = {line.partition(":")[0] for line in troubles}
        output.write(f"{len(ledger.rows)} rows, {len(wrong)} of them wrong.")
    return FAILED_CHECK if troubles else None


def _list(given: dict[str, Any]) -> None:
    from normscope.experiments.experiment import experiments
    from normscope.experiments.reproduce import claims_of

    rows, data = list[list[str]](), list[dict[str, Any]]()
    for key, one in experiments().items():
        costs = {scale: at.seconds for scale, at in one.scales.items()}
        count = len(claims_of(key))
        data.append({"id": key, "title": one.title, "claims": count, "seconds": costs})
        paper = "as desk" if one.own_scale else _duration(costs.get("paper"), one.hours)
        cells = [_duration(costs.get("smoke")), _duration(costs.get("desk")), paper]
        rows.append([key, str(count), *cells, one.title])
    if given.get("json"):
        output.print_json({"experiments": data})
        return
    output.print_table(["experiment", "claims", "smoke", "desk", "paper", "what it does"], rows)
    output.note("Times are of one core. normscope reproduce ID runs one; --ledger shows verdicts.")


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
        more = f" ({row.seeds_needed} runs would decide)" if row.seeds_needed else ""
        line = [row.id, row.item, _cell(row.expected), _cell(row.observed), row.verdict + more]
        cells.append(line if before is None else [*line, before.get(row.id, "-")])
    heads = ["claim", "place", "expected", "found", "verdict"]
    output.print_table(heads if before is None else [*heads, "in the ledger"], cells)


def _cell(value: Any, most: int = 28) -> str:
    text = output.number(value, digits=4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _print_totals(ledger: Any) -> None:
    from normscope.results.ledger import VERDICTS

    output.write("")
    rows = [
        [r["paper"], str(r["rows"]), *(str(r[v]) for v in VERDICTS),
         f"{r['judged']} of {r['rows'] - r['blocked by scale']}"]
        for r in ledger.totals()
    ]  # fmt: skip
    output.print_table(["paper", "claims", *VERDICTS, "judged"], rows)


def _pages(ledger: Any, given: dict[str, Any]) -> None:
    if "pages" in given:
        from normscope.render import report_package

        with output.working("Drawing the pages"), interruptible():
            written = report_package().save_papers(ledger, given["pages"])
        output.note(f"Wrote {written[0]} and {len(written) - 1} pages beside it")
