"""The files that a command was asked for: checked before it measures, written before it prints."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normscope.cli.output import note, print_result, print_summary
from normscope.errors import InputError
from normscope.files import write_atomically
from normscope.subject.interrupts import interruptible, safe_point

CANNOT_WRITE, PARTIAL = 2, 3  # exit codes
WRITTEN = ("save_data", "chart", "page")  # the data first: quick, and most important


class Delivery:
    """Writes and prints a result; a file that cannot be written is found when it is made.

    Args:
        given: the options that were given.
        show: prints a result where no JSON is asked for.
    """

    def __init__(self, given: dict[str, Any], show: Callable[[Any], None] = print_summary) -> None:
        self._given, self._show = given, show
        self._paths = {name: given[name] for name in WRITTEN if name in given}
        for name, path in self._paths.items():
            _check(name, path)
        if len({os.path.realpath(path) for path in self._paths.values()}) < len(self._paths):
            raise InputError("Two of the files have the same name. Give each its own.")
        self._complaint = ""

    def __call__(self, result: Any, **chart_options: Any) -> int | None:
        """Write all files, even if one fails, then print; an exit code, or None.

        Ctrl-C while a file is drawn skips that file only.
        """
        code = None
        for name, path in self._paths.items():
            try:
                self._write(name, path, result, chart_options)
                note(f"Wrote {path}")
            except KeyboardInterrupt:
                note(f"Skipped {path}")
                code = code or PARTIAL
            except Exception as error:  # the next file must not be lost too
                note(f"error: {path} was not written: {_said(error)}")
                code = CANNOT_WRITE
        with contextlib.suppress(KeyboardInterrupt):
            safe_point()  # what came while files were written has skipped what it could
        try:
            with interruptible():  # the files are written; a reader may never come
                print_result(result, self._given, self._show)
        except KeyboardInterrupt:
            code = code or PARTIAL
        return code

    def keep(self, result: Any) -> None:
        """Write the data of a result that is not complete yet, and go on if that fails."""
        if "save_data" in self._paths:
            try:
                _save_data(result, self._paths["save_data"])
            except Exception as error:
                if self._complaint != (complaint := _said(error)):  # once, not after each step
                    note(f"{self._paths['save_data']} could not be written yet: {complaint}")
                self._complaint = complaint

    def _write(self, name: str, path: str, result: Any, chart_options: dict[str, Any]) -> None:
        if name == "save_data":
            _save_data(result, path)
            return
        from normscope.render import report_package

        if getattr(result, "interrupted", False):
            note(f"Drawing the {name}; press Ctrl-C again to skip it")
        with interruptible():
            if name == "page":
                result.save(path)
            else:
                report_package().save(result.chart(**chart_options), path)


def _save_data(result: Any, path: str) -> None:
    write_atomically(path, json.dumps(result.to_dict(), allow_nan=False))


def _check(name: str, path: str) -> None:
    if name != "save_data":
        from normscope.render import report_package

        report_package().check_path(path, *([(".html",)] if name == "page" else []))
        return
    from normscope.checks import checked_target  # numpy, which --help can do without

    if Path(path).suffix.lower() != ".json":
        raise InputError(f"Data is saved as JSON, in a file that ends in .json. Got {path!r}.")
    checked_target(path)


def _said(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
