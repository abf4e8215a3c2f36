"""argparse, with errors of one line and near matches for a mistyped flag."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn


class UsageError(Exception):
    """The words typed are not a command; the message is all the user sees."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ``UsageError`` instead of printing its usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The arguments that were given, by name; those left out are left out."""
        namespace, unknown = self.parse_known_args(words)
        if unknown:
            self.error(self._unknown(unknown))
        for name, value in vars(namespace).items():
            if value == []:  # what argparse makes of --name=--
                self.error(f"argument --{name.replace('_', '-')}: expected one argument")
        return vars(namespace)

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``; the caller prints one line and sets the exit code."""
        raise UsageError(f"{message.rstrip('.')}. See: {self.prog} --help")

    def _unknown(self, words: list[str]) -> str:
        flags = [word.split("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"unexpected argument {words[0]!r}"
        known = [flag for action in self._actions for flag in action.option_strings]
        close = difflib.get_close_matches(flags[0], known, n=2, cutoff=0.6)
        hint = f"; did you mean {' or '.join(close)}" if close else ""
        return f"unknown flag {flags[0]}{hint}"
