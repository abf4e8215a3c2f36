"""The tools that say what is wrong with a network, each used as its documentation says.

Every one gets the same set-ups. Those that watch training are given the author's own loop, for as
many updates as the harm of the defect is shown with (``WATCHED`` where nothing is trained).
"""

from __future__ import annotations

import contextlib
import inspect
import io
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.findings.setup import LOSSES, Parts, loss_of

__all__ = ["NORMSCOPE", "RIVALS", "Told", "adapter", "gradient_seconds"]

WATCHED = 150
RIVALS = ("torchmortem", "neural-observatory", "torchdiag")
NORMSCOPE = "normscope"


@dataclass(frozen=True)
class Told:
    """One thing that a tool said, in the order in which it said it.

    Attributes:
        severity: ``"ok"``, ``"note"``, ``"unjudged"``, ``"warning"`` or ``"problem"``.
        title: what it says first.
        advice: the rest of what it says about the cause and the way out.
        rule: its own name of the check.
    """

    severity: str
    title: str
    advice: str = ""
    rule: str = ""


Answer = dict[str, Any]


def adapter(contestant: str) -> Callable[[Parts, int], Answer]:
    """The function that asks a contestant, such as ``"normscope fast"`` or ``"torchdiag"``."""
    name, *rest = contestant.split()
    if name == NORMSCOPE:  # behind the preset a label may follow
        return lambda parts, updates: examined(parts, rest[0])
    return {"torchmortem": autopsied, "neural-observatory": observed, "torchdiag": diagnosed}[name]


def answer(told: list[Told], seconds: float, **more: Any) -> Answer:
    return {"told": [asdict(t) for t in told], "seconds": seconds, **more}


def examined(parts: Parts, preset: str) -> Answer:
    """``normscope.examine``, with everything that the author has."""
    import normscope as ns

    unit, began = gradient_seconds(parts), time.perf_counter()
    given = {"loss_fn": parts.loss_fn, "optimizer": parts.optimizer, "eval_data": parts.eval_data}
    known = inspect.signature(ns.examine).parameters  # older versions do not know eval_data
    options = {name: value for name, value in given.items() if name in known}
    # "mse" is half the sum over the outputs there
    loss = LOSSES["mse"] if parts.loss == "mse" else parts.loss
    found = ns.examine(parts.model, parts.data, loss, preset=preset, **options)
    seconds = time.perf_counter() - began
    trial = found.measurements.get("trial")
    tried = float(trial.seconds) if trial is not None else 0.0
    return answer(
        [Told(f.severity, f.title, f.advice, f.rule) for f in found.findings],
        seconds,
        gradients={"trial": tried / unit, "rest": (seconds - tried) / unit},
        version=found.version,
        notes=list(found.notes),
    )


def gradient_seconds(parts: Parts) -> float:
    """Wall seconds of one gradient of the loss, the median of three after one to warm up."""
    batch = next(iter(parts.data))
    held = [p for p in parts.model.parameters() if p.requires_grad]
    kept = [(value, value.clone()) for value in parts.model.state_dict().values()]
    random, took = torch.get_rng_state(), []
    for _ in range(4):
        began = time.perf_counter()
        torch.autograd.grad(loss_of(parts, batch), held, allow_unused=True)
        took.append(time.perf_counter() - began)
    with torch.no_grad():
        for value, before in kept:
            if not torch.equal(value, before):  # expanded buffers cannot be written
                value.copy_(before)
    torch.set_rng_state(random)
    return statistics.median(took[1:])


def loop(parts: Parts, updates: int) -> Iterator[Callable[[], float]]:
    """The author's loop: each item, when called, makes one update and gives the loss."""

    def update(batch: Any) -> float:
        parts.optimizer.zero_grad()
        loss = loss_of(parts, batch)
        loss.backward()
        parts.optimizer.step()
        return float(loss.detach())

    made = 0
    while made < (updates or WATCHED):
        for batch in parts.data:
            yield lambda batch=batch: update(batch)
            made += 1
            if made == (updates or WATCHED):
                return


def autopsied(parts: Parts, updates: int) -> Answer:
    """torchmortem: ``Autopsy`` around the loop; what its report holds, in its order."""
    from torchmortem import Autopsy

    began = time.perf_counter()
    with Autopsy(parts.model, optimizer=parts.optimizer) as autopsy:
        for update in loop(parts, updates):
            autopsy.step(loss=update())
    report = autopsy.get_report()
    names = {"INFO": "note", "WARNING": "warning", "CRITICAL": "problem"}
    told = [
        Told("note", i.title, " ".join([i.summary, *i.remediation]), i.rule_name)
        for i in report.insights  # its page shows them above the findings that they join
    ] + [
        Told(names[f.severity.name], f.title, " ".join([f.summary, *f.remediation]), f.detector)
        for f in report.findings
    ]
    return answer(told, time.perf_counter() - began)


def observed(parts: Parts, updates: int) -> Answer:
    """neural-observatory: ``watch``, ``step`` before each forward pass, ``report``."""
    from neural_observatory import Observatory

    began, observatory = time.perf_counter(), Observatory(parts.model)
    observatory.watch()
    for step, update in enumerate(loop(parts, updates)):
        observatory.step(step=step, epoch=0)
        update()
    observatory.stop()
    names = {"info": "note", "warning": "warning", "critical": "problem"}
    told = [
        Told(
            names[r.status.value],
            f"{r.analyzer_name.replace('_', ' ')}, {r.layer_name}: {' '.join(r.warnings)}",
            " ".join(r.info),
            r.analyzer_name,
        )
        for r in observatory.report().filtered(include_healthy=False)
    ]
    return answer(told, time.perf_counter() - began)


class Given:
    """A model that answers with outputs that are known."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.outputs


def diagnosed(parts: Parts, updates: int) -> Answer:
    """torchdiag: the checks of its quick start in their order; issues are read off its output."""
    import torchdiag

    batch = next(iter(parts.data))
    inputs, targets = batch

    def loss(outputs: Any, targets: Any) -> torch.Tensor:
        known = Parts(Given(outputs), None, None, parts.loss, parts.loss_fn)
        return loss_of(known, (inputs, targets))

    def gradients() -> None:
        parts.optimizer.zero_grad()
        loss_of(parts, batch).backward()
        torchdiag.check_gradients(parts.model)

    model, began = parts.model, time.perf_counter()
    checks: dict[str, Callable[[], object]] = {
        "summary": lambda: torchdiag.summary(model),
        "dead neurons": lambda: torchdiag.check_dead_neurons(model, inputs),
        "step": lambda: torchdiag.verify_step(model, parts.optimizer, loss, inputs, targets),
        "gradients": gradients,
    }
    told = []
    for name, check in checks.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            check()
        lines = [line.strip() for line in printed.getvalue().splitlines()]
        told += [Told("warning", line[1:].strip(), "", name) for line in lines if line[:1] == "•"]
    return answer(told, time.perf_counter() - began)
