"""A small catalogue in place of the real one: experiments that take no time, and their claims."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from normscope.experiments import claim, experiment, ledger, reproduce
from normscope.experiments.claim import Claim
from normscope.experiments.experiment import Experiment, Scale
from normscope.results.panel import Panel, curve
from normscope.sweeps import Table

__all__ = ["CLAIMS", "EXPERIMENTS", "install"]


def draw(seed: int, shift: float = 1.0) -> dict:
    """A number that depends on its settings alone; a log of the runs, where one is asked for."""
    if folder := os.environ.get("CATALOGUE_LOG"):
        (Path(folder) / f"{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(3600 * (os.environ.get("CATALOGUE_HANGS") == str(seed)))
    value = shift + 0.1 * float(np.random.default_rng(seed).standard_normal())
    return {"gain": value, "exact": {"error": [1e-17], "size": 3}}


def fail(seed: int) -> dict:
    raise ValueError(f"seed {seed} went wrong")


def panels(table: Table) -> list[Panel]:
    points = curve("measured", [1.0], [table("gain")])
    theory = curve("theory", [1.0, 2.0], [1.0, 1.0], style="line")
    return [Panel("Fig. 1", "width", "gain", (points, theory))]


EXPERIMENTS = {
    "wei2019/gains": Experiment(
        "Gains of five networks", draw,
        {"smoke": Scale(seeds=2, seconds=1.0), "desk": Scale(seeds=5, seconds=30.0)},
        panels=panels, own_scale=True,
    ),
    "wei2019/slow": Experiment(
        "Gains of five other networks", draw,
        {"smoke": Scale({"shift": -1.0}, 2), "desk": Scale({"shift": -1.0}, 5, 400.0)},
    ),
    "luo2019/real": Experiment(
        "Gains on real images", draw,
        {"smoke": Scale(seeds=2), "desk": Scale({"shift": 3.0}, 5, 60.0, ("mnist",))},
    ),
    "luo2019/broken": Experiment(
        "Always fails", fail, {"smoke": Scale(seeds=2), "paper": Scale(seeds=9)}, hours=500.0
    ),
}  # fmt: skip
for key, one in EXPERIMENTS.items():
    object.__setattr__(one, "id", key)

MADE = [
    Claim("wei2019/fig1", "Fig. 1", "The gain is above zero.", "sign", "wei2019/gains", "gain",
          group="figure", limits="Two networks at most."),
    Claim("wei2019/fig1-one", "Fig. 1", "The gain is 1.", "number", "wei2019/gains", "gain", 1.0,
          group="figure"),
    Claim("wei2019/eq2", "(2)", "Both sides agree.", "identity", "wei2019/gains", "exact",
          kind="guard", group="equation"),
    Claim("wei2019/eq3", "(3)", "The gain is below zero.", "sign", "wei2019/gains", "gain",
          group="misprint", wrong="The sign is the other one.",
          parameters={"direction": "negative"}),
    Claim("wei2019/slow", "Fig. 2", "The gain is below zero.", "sign", "wei2019/slow", "gain",
          group="figure", parameters={"direction": "negative"}),
    Claim("wei2019/read", "(4)", "Two places agree.", "reading", group="text",
          parameters={"verdict": "not reproduced", "reason": "They differ"}),
    Claim("luo2019/real", "Fig. 3", "The gain is above zero.", "sign", "luo2019/real", "gain",
          group="figure"),
    Claim("luo2019/table9", "Table 9", "It works.", "count", "luo2019/broken", "holds",
          group="table", stand_in="wei2019/fig1"),
]  # fmt: skip
CLAIMS = {one.id: one for one in MADE}


def install(monkeypatch, known=None, said=None) -> None:
    """Put a catalogue in the place of the real one, wherever it is asked for."""
    known, said = known or EXPERIMENTS, said or CLAIMS
    for module in (claim, experiment, reproduce, ledger):
        for name, value in (("experiments", known), ("claims", said)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda value=value: value)
