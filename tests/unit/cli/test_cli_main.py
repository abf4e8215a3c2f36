"""The command as a whole: help, exit codes, imports, pipes."""

import os
import subprocess
import sys

import pytest

import normscope
from normscope.cli import main
from normscope.cli.main import COMMANDS

HEAVY = ("torch", "numpy", "scipy", "pandas", "altair", "rich")
NETWORK = "mlp:20-30-30-5"


def run(*words: str):
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"normscope {normscope.__version__}\n"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"normscope {command}" in shown
    assert "example:" in shown
    assert "--json" in shown


def test_no_command_shows_the_help_as_an_error(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "commands:" in captured.err


def test_words_come_from_the_command_line_by_default(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["normscope", "--version"])
    assert main() == 0
    assert normscope.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["predcit"], ["Unknown command 'predcit'", "Did you mean 'predict'"]),
        (["phase"], ["Unknown command 'phase'", "phase-diagram"]),
        (["--versoin"], ["unknown flag --versoin", "did you mean --version"]),
        (["predict", NETWORK, "--gama", "1"], ["unknown flag --gama", "did you mean --gamma"]),
        (["predict", NETWORK, "--wieght-variance=2"], ["did you mean --weight-variance"]),
        (["predict", NETWORK, "surplus"], ["unexpected argument 'surplus'"]),
        (["predict", NETWORK, "--samples"], ["--samples", "expected one argument"]),
        (["predict", NETWORK, "--gam", "1"], ["unknown flag --gam"]),  # no silent abbreviation
    ],
)
def test_usage_errors_are_one_line_and_exit_2(words, parts, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err


def test_interrupt_ends_cleanly(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.theory.predict", interrupted)
    assert main(["predict", NETWORK]) == 130
    assert capsys.readouterr().err == "normscope predict: interrupted\n"


def test_a_file_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    chart = tmp_path / "chart.svg"
    assert main(["predict", NETWORK, "--chart", str(chart)]) == 2
    assert capsys.readouterr().err == f"error: {chart} was not written: No space left on device\n"


def test_a_bug_is_not_swallowed(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("normscope.theory.predict", broken)
    with pytest.raises(ZeroDivisionError):
        main(["predict", NETWORK])


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "normscope", "predict", NETWORK, "--json"]
    reader, writer = os.pipe()
    os.close(reader)  # it has left before the first word
    done = subprocess.run(command, check=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 141


def test_module_and_exit_code_of_the_process():
    done = run("-m", "normscope", "predict", "mpl:3-4")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("normscope predict: error: Unknown architecture 'mpl:3-4'.")


@pytest.mark.parametrize(
    "start",
    [
        "import normscope",
        "from normscope.cli import main; main(['--help'])",
        "from normscope.cli import main; main(['predict', '--help'])",
        "from normscope.cli import main; main(['phase-diagram', '--help'])",
        "from normscope.cli import main; main(['examine', '--help'])",
        "from normscope.cli import main; main(['max-lr', '--help'])",
        "from normscope.cli import main; main(['what-if', '--help'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(start):
    end = f"import sys; print('\\n', sorted({set(HEAVY)!r} & sys.modules.keys()))"
    done = run("-c", f"{start}; {end}")
    assert done.stdout.splitlines()[-1].strip() == "[]", done.stderr


def test_prediction_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from normscope.cli import main; "
        f"sys.exit(main(['predict', {NETWORK!r}]))"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


WHOLE = "import runpy; runpy.run_module('normscope', run_name='__main__')"


@pytest.mark.parametrize("start", ["import normscope", f"sys.argv[1:] = ['--help']; {WHOLE}"])
def test_start_reads_few_modules_and_none_of_other_packages(start):
    """A start is as fast as what it imports: 100 small modules are about 0.1 seconds."""
    code = (
        "import atexit, sys; before = set(sys.modules); "
        "atexit.register(lambda: print(*sys.modules.keys() - before, sep='\\n', file=sys.stderr)); "
    )
    done = run("-c", code + start)
    assert done.returncode == 0, done.stderr
    imported = done.stderr.split()
    packages = {name.partition(".")[0] for name in imported}
    assert "normscope" in packages
    assert packages <= {"normscope", *sys.stdlib_module_names}
    assert len(imported) < 100
