"""Commands and training runs that are interrupted, killed or run out of disk at random moments.

Every attempt starts from old files that are whole, and ends with a list of what went wrong.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import random
import resource
import signal
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fingerprints import fingerprint, process
from injection import Injection
from normscope.cli import delivery, main
from normscope.report import html
from normscope.results import Examination, StabilityLimit
from normscope.train import fit
from normscope.train.checkpoint import Checkpoint

OLD_PAGE = "<html>old</html>"
X, Y = torch.randn(16, 6), torch.randint(3, (16,))
PAIR = (X, Y)
QUICK = ["--steps", "2", "--num-seeds", "1", "--tol", "1"]


def network():
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


def prepared(monkeypatch):
    """A module of the user's to import, and charts without their slow converter."""
    torch.manual_seed(0)
    user = types.ModuleType("stormy")
    user.model = network()
    user.data = [PAIR] * 2
    monkeypatch.setitem(sys.modules, "stormy", user)
    monkeypatch.setattr(html, "svg", lambda spec: b"<svg></svg>")
    monkeypatch.setattr(html, "javascript_bundle", lambda: "")
    return user


class Logged:
    """What was done by the time of a signal: one line per step, that outlives the process."""

    def __init__(self, path: Path):
        self.path = path
        self.path.write_text("")

    def add(self, word):
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{word}\n".encode())
        os.close(handle)

    def words(self):
        return self.path.read_text().split()

    def follow(self, monkeypatch, said):
        """Note what a command has saved before its end."""
        keep = delivery.Delivery.keep

        def kept(deliver, found):
            keep(deliver, found)
            if not deliver._complaint:
                self.add(said(found))

        monkeypatch.setattr(delivery.Delivery, "keep", kept)


class Examining:
    """``normscope examine --save-data --page``."""

    def __init__(self, folder: Path, user, monkeypatch):
        self.data, self.page, self.model = folder / "d.json", folder / "p.html", user.model
        self.log = Logged(folder / "log")
        self.log.follow(monkeypatch, lambda found: ",".join(found.measurements))
        self.words = ["examine", "stormy:model", "--data", "stormy:data", "--num-batches", "1"]
        self.words += ["--save-data", str(self.data), "--page", str(self.page)]
        assert main(self.words) == 0
        whole = Examination.from_json(self.data.read_text())
        self.old = replace(whole, measurements={}).to_json()

    def reset(self):
        self.data.write_text(self.old)
        self.page.write_text(OLD_PAGE)
        self.log.path.write_text("")

    def run(self):
        return main(self.words)

    def wrong(self):
        found = Examination.from_json(self.data.read_text())  # an error if it is broken
        kept = self.log.words()[-1:]
        missing = {*kept[0].split(",")} - {*found.measurements} if kept else set()
        broken = [] if self.page.read_text().endswith("</html>") else ["page"]
        return broken + sorted(missing)


class Searching:
    """``normscope max-lr --save-data``."""

    def __init__(self, folder: Path, user, monkeypatch):
        self.data, self.model = folder / "m.json", user.model
        self.log = Logged(folder / "log")
        self.log.follow(monkeypatch, lambda found: len(found.trials))
        self.words = ["max-lr", "stormy:model", "--data", "stormy:data", *QUICK]
        self.words += ["--save-data", str(self.data)]
        assert main(self.words) == 0
        self.old = replace(StabilityLimit.from_json(self.data.read_text()), trials=()).to_json()

    def reset(self):
        self.data.write_text(self.old)
        self.log.path.write_text("")

    def run(self):
        return main(self.words)

    def wrong(self):
        found, made = StabilityLimit.from_json(self.data.read_text()), self.log.words()
        enough = len(found.trials) >= int((made or [0])[-1])
        return [] if enough else [f"{len(found.trials)} of {made[-1]} trials"]


class Fitting:
    """``fit`` with a checkpoint after every update, continued afterwards."""

    words = ()

    def __init__(self, folder: Path, user, monkeypatch):
        self.path, self.model = folder / "c.pt", user.model
        self.log = Logged(folder / "log")
        self.options = {"lr": 0.1, "steps": 4, "checkpoint": self.path, "checkpoint_every": 1}
        save = Checkpoint.save

        def saved(checkpoint, state):
            save(checkpoint, state)
            self.log.add(state["place"][0])

        monkeypatch.setattr(Checkpoint, "save", saved)
        self.wanted = self.trained(copy.deepcopy(self.model))
        self.reset()

    def trained(self, model):
        fit(model, PAIR, "cross_entropy", batch_size=8, **self.options)
        return model.state_dict()

    def reset(self):
        self.fresh = copy.deepcopy(self.model)  # torch does not shield its own copying
        self.path.unlink(missing_ok=True)
        self.log.path.write_text("")

    def run(self):
        try:
            self.trained(self.fresh)
        except KeyboardInterrupt:  # before the first update, or behind the last
            return 130
        return 3

    def wrong(self):
        steps = 0
        if self.path.exists():
            steps = torch.load(self.path, weights_only=True)["state"]["place"][0]
        made = int((self.log.words() or [0])[-1])
        lost = [f"step {steps} of {made}"] if steps < made else []
        again = self.trained(copy.deepcopy(self.model))
        return lost + [n for n, v in self.wanted.items() if not torch.equal(v, again[n])]


CASES = {"examine": Examining, "max-lr": Searching, "fit": Fitting}


def _silently(run, *at):
    silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with silent[0], silent[1], Injection(*at) as injection:
        return run(), injection.count


def _leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


def interrupts(case, folder, count, *, several=False):
    """What went wrong in ``count`` runs, each with one Ctrl-C or up to three in a row."""
    draw, wrong, codes = random.Random(type(case).__name__), [], []
    _, total = _silently(case.run)
    for _ in range(count):
        case.reset()
        before = fingerprint(case.model, *PAIR), process()
        first = draw.randrange(1, total)
        later = [first + draw.randrange(1, 3000) for _ in range(draw.randrange(3))]
        try:
            codes.append(_silently(case.run, first, *(later if several else []))[0])
        except KeyboardInterrupt:  # behind the end of the command
            codes.append(130)
        except BaseException as error:
            wrong.append((first, repr(error)))
        if (fingerprint(case.model, *PAIR), process()) != before:
            wrong.append((first, "the model or the process has changed"))
        wrong += [(first, found) for found in (*case.wrong(), *_leftovers(folder))]
    return wrong, codes


def _forked(run):
    """A copy of this process that runs this and ends; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code = run()
    finally:
        os._exit(code)


def kills(case, folder, count):
    """What went wrong in ``count`` runs that were killed at a random time."""
    draw, wrong = random.Random(0), []
    began = time.perf_counter()
    os.waitpid(_forked(case.run), 0)
    span, killed = time.perf_counter() - began, 0
    for _ in range(count):
        case.reset()
        child = _forked(case.run)
        time.sleep(draw.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        wrong += case.wrong()
    case.reset()
    os.waitpid(_forked(case.run), 0)  # the next run clears up what killed ones left
    return wrong + _leftovers(folder), killed


def full_disks(case, folder, count):
    """What went wrong in ``count`` runs that could not write beyond a random size."""
    draw, wrong, codes = random.Random(0), [], []
    case.reset()
    os.waitpid(_forked(case.run), 0)
    largest = max(path.stat().st_size for path in folder.iterdir())

    def limited(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return case.run()

    for _ in range(count):
        case.reset()
        size = draw.randrange(64, int(1.1 * largest))
        status = os.waitpid(_forked(lambda size=size: limited(size)), 0)[1]
        codes.append(os.waitstatus_to_exitcode(status))
        wrong += [*case.wrong(), *_leftovers(folder)]
    return wrong, codes


__all__ = ["CASES", "full_disks", "interrupts", "kills", "prepared"]
