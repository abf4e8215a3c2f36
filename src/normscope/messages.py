"""Words for messages: what kind of thing was given, and what failed where."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from normscope.errors import NormscopeError

OWN = str(Path(__file__).parent)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
WORKER = "Original Traceback"  # how torch passes on what a worker process raised


def kind_of(value: Any) -> str:
    """The type with its article.

    Example:
        >>> kind_of(3), kind_of({}), kind_of(dict)
        ('an int', 'a dict', 'the class dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """A name behind ``a`` or ``an``."""
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def counted(count: int, noun: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def failure(error: BaseException) -> str:
    """The error of a user's code in one line, with the user's own file and line if there is one."""
    text = str(error).strip()
    if WORKER in text:
        return text.splitlines()[-1]
    place = _place(error)
    where = f" ({Path(place[0]).name}, line {place[1]})" if place else ""
    return f"{type(error).__name__}: {' '.join(text.split())}{where}"


def said(error: BaseException) -> str:
    """An error in one line: ours speaks for itself, that of other code as ``failure`` has it."""
    return " ".join(str(error).split()) if isinstance(error, NormscopeError) else failure(error)


def _place(error: BaseException) -> tuple[str, int] | None:
    """The innermost file and line that is neither ours nor installed."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((OWN, "<", *INSTALLED)):
            found = file, trace.tb_lineno
        trace = trace.tb_next
    return found
