"""The files a command is asked for: one flag each, checked early, written before printing."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examinations import hostile
from normscope.cli import main
from normscope.cli.main import COMMANDS
from normscope.results import Examination

NET = ["mlp:64-6-10,norm=batch", "--data", "digits"]
QUICK = ["--steps", "2", "--num-seeds", "1", "--tol", "1"]
WORDS = {
    "examine": NET,
    "max-lr": [*NET, *QUICK],
    "what-if": [*NET, "--changes", "gamma=0.5", "--no-limits"],
    "regularization": [*NET, "--batch-sizes", "8", "--num-batches", "2", "--max-samples", "40"],
    "predict": ["mlp:5-4-3"],
    "phase-diagram": ["relu", "--weight-variances", "1:2:3", "--bias-variances", "0:1:3"],
    "compare": ["SAVED", "SAVED"],
    "report": ["SAVED"],
}
FILES = {
    "examine": {"--page": "p.html", "--save-data": "d.json"},
    "compare": {"--page": "p.html", "--save-data": "d.json"},
    "report": {"--page": "p.html"},
}
BOTH = {"--save-data": "d.json", "--chart": "c.svg"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return hostile().save(tmp_path_factory.mktemp("saved") / "a.json")


def asked(command, saved, folder):
    """The words of a command that is asked for every file it can write, and the files."""
    files = {flag: str(folder / name) for flag, name in FILES.get(command, BOTH).items()}
    words = [str(saved) if word == "SAVED" else word for word in WORDS[command]]
    return [command, *words, *(word for pair in files.items() for word in pair)], files.values()


# ---- flags


def test_every_command_is_tested_here():
    others = ("sweep", "reproduce")  # they write into a folder of their own
    assert set(WORDS) == {name for name in COMMANDS if not name.startswith(others)}


@pytest.mark.parametrize("command", WORDS)
def test_the_old_output_flag_is_refused_with_the_new_one(command, capsys, tmp_path):
    new = "--page FILE.html" if "--page" in FILES.get(command, ()) else "--save-data FILE.json"
    assert main([command, "--output", "x.html"]) == 2
    assert f"--output is for a folder. To write a file use {new}." in capsys.readouterr().err
    (tmp_path / "a.toml").write_text("output = 'x.html'")
    assert main([command, "--config", str(tmp_path / "a.toml")]) == 2
    assert f"To write a file use {new}." in capsys.readouterr().err


def test_help_lists_examine_first(capsys):
    main(["--help"])
    commands = capsys.readouterr().out.split("commands:\n")[1].splitlines()
    assert commands[0].split()[0] == "examine"


@pytest.mark.parametrize("flag", ["--data", "--weights"])
def test_two_dashes_are_no_value(flag, capsys):
    assert main(["what-if", "mlp:64-6-10", f"{flag}=--"]) == 2
    assert f"{flag}: expected one argument" in capsys.readouterr().err


# ---- saved first, then printed


class Gone(io.StringIO):
    """A stream that nobody reads any more, or a full one."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, _):
        raise OSError(self.number, os.strerror(self.number))

    def fileno(self):
        raise io.UnsupportedOperation


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("command", WORDS)
def test_files_are_written_before_anything_is_printed(
    command, number, saved, tmp_path, monkeypatch
):
    words, files = asked(command, saved, tmp_path)
    monkeypatch.setattr(sys, "stdout", Gone(number))
    monkeypatch.setattr(sys, "stderr", Gone(number))  # that it is gone too must not matter
    shown = ["--text"] if command == "report" else []
    assert main([*words, *shown]) == (141 if number == errno.EPIPE else 2)
    assert all(Path(file).stat().st_size for file in files)


def run(redirected, *words, cwd):
    command = f"exec {sys.executable} -m normscope {' '.join(words)} {redirected}"
    return subprocess.run(
        ["bash", "-c", command], check=False, cwd=cwd, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("redirected", "code"), [(">&-", 0), (">&- 2>&-", 0), (">/dev/full", 2), ("2>/dev/full", 0)]
)
def test_streams_that_are_closed_or_full(redirected, code, tmp_path):
    done = run(redirected, "predict", "mlp:5-4-3", "--save-data", "d.json", cwd=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert json.loads((tmp_path / "d.json").read_text())["architecture"] == "mlp:5-4-3"


# ---- unwritable targets


UNWRITABLE = {
    "/sys/x": "cannot be written",
    "nowhere/x": "There is no folder nowhere",
    "dangling": "cannot be written: No such file or directory",
    "loop": "cannot be written: Too many levels of symbolic links",
    "folder": "is a folder",
    "pipe": "is a pipe or a device",
}


@pytest.mark.parametrize("name", UNWRITABLE)
@pytest.mark.parametrize("ending", [".json", ".html"])
def test_what_cannot_be_written_is_found_before_anything_is_measured(
    name, ending, saved, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    target = Path(name + ending)
    make = {
        "dangling": lambda: target.symlink_to(Path("nowhere") / "x.json"),
        "loop": lambda: target.symlink_to(target),
        "folder": target.mkdir,
        "pipe": lambda: os.mkfifo(target),
    }
    make.get(name, lambda: None)()
    monkeypatch.setattr("normscope.cli.targets.data_target", lambda *_, **__: pytest.fail("read"))
    monkeypatch.setattr(Examination, "save", lambda *_: pytest.fail("drawn"))
    both = {".json": "good.json", ".html": "good.html"} | {ending: str(target)}
    assert main(["examine", *NET, "--page", both[".html"], "--save-data", both[".json"]]) == 2
    assert UNWRITABLE[name] in capsys.readouterr().err
    if ending == ".html":
        assert main(["report", str(saved), "--page", str(target)]) == 2
        assert UNWRITABLE[name] in capsys.readouterr().err
    assert not any(Path(f"good{ending}").exists() for ending in both)


def test_looking_leaves_nothing_and_a_link_to_a_new_file_is_followed(tmp_path, capsys):
    (tmp_path / "link.json").symlink_to(tmp_path / "new.json")
    before = sorted(tmp_path.iterdir())
    assert main(["predict", "mlp:5-x-3", "--save-data", str(tmp_path / "link.json")]) == 2
    assert sorted(tmp_path.iterdir()) == before
    assert main(["predict", "mlp:5-4-3", "--save-data", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "new.json").is_file()
    capsys.readouterr()


@pytest.mark.parametrize("lost", ["d.json", "p.html"])
def test_a_file_that_fails_at_the_end_does_not_stop_the_next(lost, tmp_path, monkeypatch, capsys):
    real = os.replace

    def full(source, target):
        if Path(target).name == lost:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    words, files = asked("examine", None, tmp_path)
    assert main(words) == 2
    said = capsys.readouterr()
    assert f"{tmp_path / lost} was not written: No space left on device" in said.err
    assert "lambda_max" in said.out
    assert [Path(file).name for file in files if Path(file).exists()] == [
        name for name in ("p.html", "d.json") if name != lost
    ]


# ---- what was saved after each measurement


def test_the_data_are_saved_after_each_measurement(tmp_path, monkeypatch, capsys):
    from normscope.cli import delivery

    seen, real = [], delivery.write_atomically

    def noted(path, content):
        real(path, content)
        seen.append(Examination.from_json(Path(path).read_text()))

    monkeypatch.setattr(delivery, "write_atomically", noted)
    assert main(["examine", *NET, "--save-data", str(tmp_path / "d.json")]) == 0
    steps = [step.name for step in seen[-1].plan.steps]
    made = [f"interrupted after {name!r}" for name in steps[:-1]]
    assert [found.partial for found in seen] == [*made, "", ""]
    statuses = [step.status for step in seen[0].plan.steps]
    assert statuses == ["ok", *["left out"] * (len(steps) - 1)]
    assert {"layout", "sharpness"} <= {*seen[steps.index("sharpness")].measurements}
    assert "sharpness" not in seen[steps.index("sharpness") - 1].measurements
    assert capsys.readouterr().err.count("Wrote") == 1


def test_names_in_a_saved_file_do_not_steer_the_terminal(saved, tmp_path, capsys):
    data = json.loads(saved.read_text()) | {"model": "net\x1b]0;X\x07\x1b[2J\x9b2J"}
    (tmp_path / "b.json").write_text(json.dumps(data))
    assert main(["report", str(tmp_path / "b.json"), "--text"]) == 0
    assert main(["compare", str(tmp_path / "b.json"), str(saved)]) == 0
    shown = capsys.readouterr()
    assert "net\ufffd]0;X" in shown.out
    assert not {*"\x1b\x07\x9b"} & {*shown.out, *shown.err}
