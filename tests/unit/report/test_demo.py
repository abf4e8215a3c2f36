"""What ``make demo`` runs."""

import runpy
from pathlib import Path

import pytest
import torch

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


def shown(tmp_path, capsys, **settings):
    torch.set_default_dtype(torch.float32)
    main = runpy.run_path(str(DEMO))["main"]
    main.__globals__.update(settings, PAGES=tmp_path / "out")
    main()
    return capsys.readouterr().out


def test_one_network_diverges_and_its_twin_learns(tmp_path, capsys):
    text = shown(tmp_path, capsys, PRESET="fast")
    lines = text.splitlines()
    assert lines[0].startswith("Trained at lr 2 without norms: diverged after")
    assert lines[1].startswith("Trained at lr 2 with batch norm: trained 100 steps")
    first, last = map(float, lines[1].rpartition("loss ")[2].split(" -> "))
    assert last < 0.5 * first
    boxes = [
        line for line in lines if line and line[0] in "╭│╰"
    ]  # the path below may be of any length
    assert boxes
    assert {len(line) for line in boxes} == {120}  # side by side when piped
    assert "without norms" in lines[2]
    assert "with batch norm" in lines[2]
    for name in ("without-norms", "with-batch-norm"):
        page = (tmp_path / "out" / f"{name}.html").read_bytes()
        assert page.startswith(b"<!DOCTYPE html>") or page.startswith(b"<!doctype html>")
        assert len(page) < 3_000_000


@pytest.mark.slow
def test_the_whole_demo_takes_less_than_a_minute_and_says_what_is_wrong(tmp_path, capsys, machine):
    """A minute of an ordinary core."""
    text = shown(tmp_path, capsys)
    print(f"{machine.seconds:.0f} s")
    assert 1 < machine.seconds < 60
    assert "PROBLEM  Training diverges at the learning rate 2" in text
    assert text.count("PROBLEM") == 1
    assert "NOT COMPLETE" not in text
