"""Fetching a published file, checked by its MD5 before it gets its name."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import InputError, NormscopeError


@dataclass(frozen=True)
class Archive:
    """A file on the network and its published MD5."""

    url: str
    md5: str

    def save(self, path: Path) -> None:
        """Fetch it as ``path``; the name appears only when the file is whole and right."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            os.replace(self._fetched(Path(folder)), path)

    def unpack(self, members: Sequence[str], folder: Path) -> None:
        """Fetch it and write these members below ``folder``, each under its name when whole."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            whole = self._fetched(Path(scratch))
            with tarfile.open(whole) as archive:
                for member in members:
                    self._extract(archive, member, Path(scratch) / "member", folder / member)

    def _extract(self, archive: tarfile.TarFile, member: str, scratch: Path, target: Path) -> None:
        try:
            stream = archive.extractfile(member)
        except KeyError:
            stream = None
        if stream is None:
            raise InputError(f"The archive {self.url} holds no file {member}.")
        with stream:
            scratch.write_bytes(stream.read())
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch, target)

    def _fetched(self, folder: Path) -> Path:
        pooch = _pooch()
        try:
            name = pooch.retrieve(self.url, f"md5:{self.md5}", fname="file", path=folder)
        except ValueError as error:  # the MD5 is another
            raise NormscopeError(
                f"The file fetched from {self.url} is not the published one: {error}. Nothing was "
                "kept. Try again later, or fetch it by other means and pass data_dir=."
            ) from None
        except OSError as error:  # every failure of the network, those of requests included
            raise NormscopeError(
                f"{self.url} could not be fetched ({type(error).__name__}: {error}). Nothing was "
                "kept. Without a network, copy the files from another machine and pass data_dir=, "
                "or use the data set 'digits', which comes with the package."
            ) from None
        return Path(name)


def _pooch() -> Any:
    try:
        import pooch
    except ModuleNotFoundError:
        raise NormscopeError(
            "download=True needs the package 'pooch', which is not installed. Install it with: "
            "pip install 'normscope[data]'"
        ) from None
    return pooch
