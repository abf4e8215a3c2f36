"""One definition per option, read from flags and from a TOML file alike; flags win."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.cli.parser import Parser
from normscope.errors import InputError
from normscope.registry import near_match


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        name: its key in a TOML file and in the settings; the flag is ``--name`` with dashes.
        convert: from text, or from a TOML value, to what the API takes.
        help: one line.
        metavar: what the help shows in the place of the value; empty for an on/off switch.
        default: as the help shows it, converted where neither flag nor file gives another.
        group: heading in the help.
        positional: given by its place instead of a flag.
    """

    name: str
    convert: Callable[[Any], Any]
    help: str
    metavar: str = ""
    default: Any = None
    group: str = "output"
    positional: bool = False

    @property
    def flag(self) -> str:
        """The flag as it is typed, such as ``--num-batches``."""
        return "--" + self.name.replace("_", "-")

    def from_text(self, typed: str) -> Any:
        """The converted value, for argparse: our message instead of its own."""
        if typed is argparse.SUPPRESS:  # argparse converts the default of a place, too
            return typed
        try:
            return self.convert(typed)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        """Declare the option; one that is left out leaves no trace in the namespace."""
        shown = "" if self.default is None else f" (default: {self.default})"
        common: dict[str, Any] = {"help": self.help + shown, "default": argparse.SUPPRESS}
        if self.positional:
            group.add_argument(
                self.name, nargs="?", type=self.from_text, metavar=self.metavar, **common
            )
        elif not self.metavar:
            group.add_argument(self.flag, dest=self.name, action="store_true", **common)
        else:
            group.add_argument(
                self.flag, dest=self.name, type=self.from_text, metavar=self.metavar, **common
            )


def defaults(options: Sequence[Option]) -> dict[str, Any]:
    """The value of every option that nobody gave."""
    return {o.name: None if o.default is None else o.convert(o.default) for o in options}


def command_parser(
    command: str, options: Sequence[Option], *, description: str, epilog: str
) -> Parser:
    """The parser of one subcommand; its ``parse`` also reads the file named by ``--config``."""
    parser = _CommandParser(command, options, description=description, epilog=epilog)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        option.add_to(groups[option.group])
    parser.add_argument(
        "--config",
        metavar="FILE.toml",
        default=argparse.SUPPRESS,
        help="read options from a file; keys are the flags' names, table "
        f"[{command}] overrides the top level, flags override both",
    )
    return parser


def _of_another(name: str) -> bool:
    """Whether some command has an option of that name: the top level of a file is for all."""
    from normscope.cli.main import COMMANDS

    modules = (importlib.import_module(COMMANDS[command][0]) for command in COMMANDS)
    return any(option.name == name for module in modules for option in module.OPTIONS)


class _CommandParser(Parser):
    def __init__(self, command: str, options: Sequence[Option], **kwargs: Any) -> None:
        places = " ".join(option.metavar for option in options if option.positional)
        super().__init__(
            prog=f"normscope {command}", usage=f"normscope {command} {places} [options]", **kwargs
        )
        self.command, self.options = command, {option.name: option for option in options}

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        given = super().parse(words)
        path = given.pop("config", None)
        return given if path is None else self._from_file(Path(path)) | given

    def _unknown(self, words: list[str]) -> str:
        hints = (self._instead(word.split("=")[0].lstrip("-")) for word in words)
        return next(filter(None, hints), "") or super()._unknown(words)

    def _instead(self, name: str) -> str:
        """What took the place of ``--output FILE``, which meant a page here and data there."""
        if name != "output":
            return ""
        file = PAGE if "page" in self.options else SAVE_DATA
        return f"--output is for a folder. To write a file use {file.flag} {file.metavar}."

    def _from_file(self, path: Path) -> dict[str, Any]:
        from normscope.cli.main import COMMANDS

        data = _toml(path)
        own = data.pop(self.command, {})
        if not isinstance(own, dict):
            raise InputError(f"{path}, key {self.command!r}: a command's options are a table.")
        shared = {key: value for key, value in data.items() if key not in COMMANDS}
        values = {}
        for key, value in (shared | own).items():
            name = key.replace("-", "_")
            of_old = name == "output" and str(value).lower().endswith((".html", ".json"))
            if name not in self.options and key not in own and _of_another(name) and not of_old:
                continue
            if name not in self.options:
                known = self._instead(name) or near_match(name, list(self.options))
                raise InputError(f"Unknown key {key!r} in {path}. {known}")
            try:
                values[name] = self.options[name].convert(value)
            except InputError as error:
                raise InputError(f"{path}, key {key!r}: {error}") from None
        return values


def _toml(path: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no file {path}. Give --config an existing TOML file.") from None
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    return data


def number(value: Any) -> float:
    """Convert to a number."""
    try:
        return float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise InputError(f"Expected a number. Got {value!r}.") from None


def whole(value: Any) -> int:
    """Convert to a whole number."""
    try:
        return int(str(value))
    except ValueError:
        raise InputError(f"Expected a whole number. Got {value!r}.") from None


def samples(value: Any) -> int | None:
    """A number of samples; ``inf`` is the limit of infinitely many."""
    return None if str(value).lower() in ("inf", "infinity") else whole(value)


def text(value: Any) -> str:
    """Convert to text."""
    if not isinstance(value, str) or not value:
        raise InputError(f"Expected a word. Got {value!r}.")
    return value


def switch(value: Any) -> bool:
    """On or off; the flag means on."""
    if not isinstance(value, bool):
        raise InputError(f"Expected true or false. Got {value!r}.")
    return value


def names(value: Any) -> tuple[str, ...]:
    """Words separated by commas, or a TOML array of them."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        raise InputError(f"Expected one name or several, separated by commas. Got {value!r}.")
    return tuple(text(word.strip() if isinstance(word, str) else word) for word in words)


PAGE = Option("page", text, "write the page", "FILE.html")
SAVE_DATA = Option("save_data", text, "write the result as JSON", "FILE.json")
CHART = Option("chart", text, "draw it: png, svg, pdf, html", "FILE")
JSON = Option(
    "json", switch, 'print JSON and nothing else (NaN is null, infinities are "inf" and "-inf")'
)


def numbers(value: Any) -> tuple[float, ...]:
    """``0.1,0.5,1``, ``start:stop:count`` evenly spaced with both ends, or a TOML array.

    ``linspace(start,stop,count)`` is the same, ``logspace(a,b,count)`` goes from 10^a to 10^b.
    """
    if isinstance(value, str) and (match := _SPACED.fullmatch(value.strip())):
        if match[2].count(",") != 2:
            raise InputError(f"A range is {match[1]}(a,b,count). Got {value!r}.")
        points = _spaced(":".join(match[2].split(",")))
        return points if match[1] == "linspace" else tuple(10.0**point for point in points)
    if isinstance(value, str) and ":" in value:
        return _spaced(value)
    found = items(value)
    if not found:
        raise InputError("Expected at least one number. Got an empty list.")
    return tuple(number(item) for item in found)


_SPACED = re.compile(r"(linspace|logspace)\((.*)\)")


def items(value: Any) -> list[Any]:
    """What stands between commas, or in a list; a single value is a list of one."""
    found = value.split(",") if isinstance(value, str) else value
    return found if isinstance(found, list) else [found]


def _spaced(value: str) -> tuple[float, ...]:
    parts = value.split(":")
    if len(parts) != 3:
        raise InputError(f"A range is start:stop:count, such as 0.5:4:100. Got {value!r}.")
    start, stop, count = number(parts[0]), number(parts[1]), whole(parts[2])
    if count < 2:
        raise InputError(f"A range needs at least two points. Got {count} in {value!r}.")
    return tuple(start + (stop - start) * i / (count - 1) for i in range(count))
