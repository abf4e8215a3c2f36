"""Checkpoints: whole or not there at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from normscope.errors import InputError
from normscope.files import write_atomically

FORMAT = 1


def config_hash(config: dict[str, Any]) -> str:
    """A name for the settings: equal settings, equal name."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


class Checkpoint:
    """The checkpoint file of one training.

    Args:
        path: the file; its folder is made if needed.
        config: the settings that must be the same for a training to be continued.
        every: updates between two checkpoints; None is every epoch and about every minute, 0 is
            about every minute only.
    """

    SECONDS = 60.0

    def __init__(
        self, path: str | os.PathLike[str], config: dict[str, Any], *, every: int | None
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"checkpoint must be the name of a file. Got {path!r}.")
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(
                f"checkpoint={str(path)!r} is a folder. Name a file in it, such as "
                f"{str(self.path / 'training.pt')!r}."
            )
        self._config = config
        self._every = every
        self._latest = time.monotonic()

    def due(self, step: int, *, epoch_ended: bool) -> bool:
        """Whether it is time to save after update number ``step``."""
        if self._every:
            return step % self._every == 0
        return (epoch_ended and self._every is None) or self._minute_ago

    @property
    def due_at_end(self) -> bool:
        """Whether the state after the last update is worth a file."""
        return self._every != 0 or self.path.exists() or self._minute_ago

    @property
    def _minute_ago(self) -> bool:
        return time.monotonic() - self._latest > self.SECONDS

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file by one that holds ``state``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"format": FORMAT, "hash": config_hash(self._config)}
        stream = io.BytesIO()
        torch.save({**head, "config": json.dumps(self._config), "state": state}, stream)
        write_atomically(self.path, stream.getvalue())
        self._latest = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The state in the file; None if there is no file.

        Raises:
            InputError: the file is no checkpoint, or one of a training with other settings.
        """
        if not self.path.exists():
            return None
        try:
            if not zipfile.is_zipfile(self.path):
                raise ValueError("not in torch's format")
            found = torch.load(self.path, map_location="cpu", weights_only=True)
            stored, state = json.loads(found["config"]), found["state"]
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, *_UNREADABLE) as error:
            raise InputError(
                f"{self.path} is not a checkpoint of a training ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no text'}). Name another file, "
                "or pass resume=False to start again and replace it."
            ) from None
        if found.get("format") != FORMAT or found.get("hash") != config_hash(self._config):
            self._refuse(stored)
        return state

    def _refuse(self, stored: dict[str, Any]) -> None:
        keys = sorted({*stored, *self._config})
        differ = [k for k in keys if stored.get(k) != self._config.get(k)]
        shown = "; ".join(
            f"{k}: {stored.get(k)!r} there, {self._config.get(k)!r} here" for k in differ
        )
        raise InputError(
            f"{self.path} belongs to a training with other settings ({shown or 'another format'}), "
            "so that continuing it would be neither of the two. Use the same settings, another "
            "file, or resume=False to start again and replace it."
        )


_UNREADABLE = (pickle.UnpicklingError, EOFError, zipfile.BadZipFile)
