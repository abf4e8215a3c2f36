"""Files of a data set: where they lie, what they must hold, and what to say if they do not."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path

from normscope.errors import InputError

VARIABLE = "NORMSCOPE_DATA"


def cache_folder() -> Path:
    """Where downloads go when no folder is named."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "normscope"


def data_folder(data_dir: str | os.PathLike[str] | None) -> Path:
    """The folder to read from: the argument, else ``NORMSCOPE_DATA``, else the cache folder."""
    if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
        raise InputError(f"data_dir must be a folder. Got {data_dir!r}.")
    if data_dir is not None:
        return _existing(Path(data_dir).expanduser(), f"data_dir={str(data_dir)!r}")
    if os.environ.get(VARIABLE):
        return _existing(Path(os.environ[VARIABLE]).expanduser(), f"{VARIABLE} of the environment")
    return cache_folder()


def _existing(folder: Path, named_by: str) -> Path:
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"{named_by} must be a folder, but {folder} is a file. Name the folder that holds the "
            "data sets (the root= of torchvision's data sets)."
        )
    return folder


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in ``.gz``."""
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be unpacked ({error}): the file is truncated or is not gzip "
            f"({len(raw)} bytes found). Delete it and fetch it again."
        ) from None


def check_content(content: bytes, md5: str, path: Path) -> None:
    """Refuse content whose MD5 is not the published one."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise InputError(
            f"{path} is damaged, or another file under this name: its content has MD5 {found}, "
            f"the published file {md5}. Delete it and fetch it again; for data of your own in this "
            "layout pass verify=False."
        )
