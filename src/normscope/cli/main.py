"""From the words typed to the subcommand, and from its failure to an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from normscope._version import __version__
from normscope.cli.options import command_parser
from normscope.cli.output import note
from normscope.cli.parser import Parser, UsageError
from normscope.errors import NormscopeError
from normscope.registry import Registry
from normscope.subject.interrupts import held

OK, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 2, 130, 141

# name -> (module with OPTIONS, DESCRIPTION, EPILOG and run(arguments), one line for the overview);
# run may return an exit code: 1 for a check that failed, 3 for a result that is not complete
_LINES = {
    "examine": "what is wrong with a network, and what to do about it",
    "max-lr": "the largest stable learning rate, found by short training runs",
    "what-if": "what named changes would do to a network, before and after",
    "predict": "sharpness and critical learning rate of a network, by theory",
    "phase-diagram": "order and chaos over a grid of variances",
    "regularization": "how strongly batch norm regularizes, by batch size",
    "sweep": "training runs over a grid of settings, in a folder that survives crashes",
    "sweep status": "how far a sweep is, also while it runs",
    "sweep export": "the table of a sweep as CSV",
    "sweep chart": "where training is stable, as a picture",
    "reproduce": "the claims of five papers, run again, with a verdict on each",
    "report": "rebuild the page of a saved examination, without the model",
    "compare": "two saved examinations, number by number and finding by finding",
}
COMMANDS: Registry[tuple[str, str]] = Registry(
    "command",
    {name: (f"normscope.cli.{re.sub('[ -]', '_', name)}", line) for name, line in _LINES.items()},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``normscope``; returns the exit code.

    0 done, 1 a check failed (if one was asked for), 2 bad input, 3 done in part, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    code = INTERRUPTED
    # Held: a signal ends marked code only, never what is between a measurement and its file.
    with contextlib.suppress(KeyboardInterrupt), _ended_by_signals(), held():
        code = _code(words)
    return code


def _code(words: list[str]) -> int:
    command = words[0] if words and not words[0].startswith("-") else None
    name = "normscope" if command is None else f"normscope {command}"
    try:
        code = _overview(words) if command is None else _run(command, words[1:])
        sys.stdout.flush()  # a closed pipe is found here, not at interpreter exit
    except (NormscopeError, UsageError) as error:
        note(f"{name}: error: {' '.join(str(error).split())}")
        return USAGE
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            return PIPE_CLOSED  # the reader (``head``, ``less``) has gone: quiet, as others are
        where = f": {error.filename}" if error.filename else ""
        note(f"{name}: error: {error.strerror or error}{where}")
        return USAGE
    except KeyboardInterrupt:
        note(f"{name}: interrupted")
        return INTERRUPTED
    except SystemExit as stop:  # --help and --version end this way
        return stop.code if isinstance(stop.code, int) else OK
    return code


def _run(command: str, words: list[str]) -> int:
    if words and f"{command} {words[0]}" in COMMANDS:
        command, words = f"{command} {words[0]}", words[1:]
    module = importlib.import_module(COMMANDS[command][0])
    texts = {"description": module.DESCRIPTION, "epilog": module.EPILOG}
    parser = command_parser(command, module.OPTIONS, **texts)
    code: int | None = module.run(parser.parse(getattr(module, "prepared", list)(words)))
    return OK if code is None else code


def _overview(words: list[str]) -> int:
    lines = [f"  {name:<15}{line}" for name, line in _LINES.items()]
    parser = Parser(
        prog="normscope",
        usage="normscope COMMAND [options]\n       normscope COMMAND --help",
        description="What normalization does to a neural network: predicted and measured.",
        epilog="commands:\n" + "\n".join(lines),
    )
    parser.add_argument("--version", action="version", version=f"normscope {__version__}")
    parser.parse(words)
    sys.stderr.write(parser.format_help())
    return USAGE


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, unless they are ignored (nohup)."""
    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        try:
            _put_back(taken)
        finally:  # again, in case another signal came in between
            _put_back(taken)


def _put_back(numbers: list[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _replace_closed_streams() -> None:
    """Give a command started with closed streams (``>&-``) some that lead nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the whole process


def _drop_output() -> None:
    """What is still to be written cannot be: Python would try once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
