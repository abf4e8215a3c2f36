"""The progress bar: silent off a terminal, late on one, never two at once."""

from __future__ import annotations

import contextlib
import io

import pytest

from normscope.measure import progress as module
from normscope.measure.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    monkeypatch.setenv("TERM", "xterm")


def shown(work, stream):
    with contextlib.redirect_stderr(stream):
        work()
    return stream.getvalue()


def two_steps():
    with progress("products", 2) as tick:
        tick()
        tick()


def test_silent_without_a_terminal():
    assert shown(two_steps, io.StringIO()) == ""


def test_drawn_on_a_terminal():
    assert "products" in shown(two_steps, Terminal())


@pytest.mark.parametrize(("seconds", "drawn"), [(0.9, False), (1.1, True)])
def test_short_work_is_not_drawn(seconds, drawn, monkeypatch, machine):
    monkeypatch.setattr(module, "PATIENCE", 2.0)

    def work():
        with progress("products", 2) as tick:
            for _ in range(2):
                machine.spend(seconds)
                tick()

    assert ("products" in shown(work, Terminal())) == drawn


def nested_with_an_error():
    with progress("outer") as outer:
        outer()
        two_steps()
        raise ValueError("stop")


def test_one_bar_at_a_time_also_after_an_error():
    stream = Terminal()
    with pytest.raises(ValueError, match="stop"):
        shown(nested_with_an_error, stream)
    assert "outer" in stream.getvalue()
    assert "products" not in stream.getvalue()
    assert "products" in shown(two_steps, Terminal())
