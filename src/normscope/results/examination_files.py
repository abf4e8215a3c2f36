"""Saved examinations, read back."""

from __future__ import annotations

import json
import re
from pathlib import Path

from normscope._version import __version__
from normscope.errors import InputError
from normscope.results.examination import Examination

HINT = "A saved examination is written by examination.save('name.json')."


def read_examination(path: str | Path) -> Examination:
    """The examination that ``Examination.save`` wrote as .json.

    Args:
        path: the file, or a folder that holds one saved examination.
    """
    source = _file(Path(path))
    try:
        return Examination.from_json(source.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{source} is no text file. {HINT}") from None
    except (InputError, TypeError, LookupError, AttributeError, ValueError, OverflowError) as error:
        if _calls_settings_config(source):
            raise InputError(
                f"{source} was written by an earlier version of normscope, whose examinations hold "
                "'config' where those of this one hold 'convention': examine again and save."
            ) from None
        raise InputError(f"{source} cannot be read: {error}{_made_by(source)} {HINT}") from None


def _file(path: Path) -> Path:
    if path.is_dir():
        return _only(path)
    if not path.is_file():
        raise InputError(f"There is no file or folder {path}. {HINT}")
    if path.suffix.lower() == ".html":
        raise InputError(
            f"{path} is a page; the data it was made from is needed. {HINT} "
            "Give that file, or its folder."
        )
    return path


def _only(folder: Path) -> Path:
    """The one saved examination of a folder; other files may lie there too."""
    found = [path for path in sorted(folder.glob("*.json")) if _opens_as_examination(path)]
    if not found:
        raise InputError(f"The folder {folder} holds no saved examination. {HINT}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5]) + (", ..." if found[5:] else "")
        raise InputError(f"The folder {folder} holds {len(found)} examinations: {names}. Name one.")
    return found[0]


def _opens_as_examination(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return '"Examination"' in file.read(100)


def _calls_settings_config(path: Path) -> bool:
    """Whether the file is a whole examination from before ``convention`` had its name."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    known = isinstance(data, dict) and data.get("type") == Examination.__name__
    return known and "config" in data and "convention" not in data


def _made_by(path: Path) -> str:
    """Which version wrote the file, if it says so and it is not this one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    versions = re.findall(r'"version": "([^"]{1,40})"', text[-5000:])
    if not versions or versions[-1] == __version__:
        return ""
    return f" It was written by normscope {versions[-1]}; this is {__version__}."
