"""Functions to sweep, for tests: some count their runs, some kill their process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from normscope.record import Record

__all__ = ["Product", "deadly", "failing", "logged", "product", "remembering"]


@dataclass(frozen=True, eq=False)
class Product(Record):
    """Of two numbers."""

    value: float
    diverged: bool = False
    padding: str = ""


def product(x: float, y: float = 1.0, seed: int = 0) -> Product:
    return Product(x * y + seed, diverged=x * y > 1e6)


def failing(x: int) -> Product:
    if x % 3 == 0:
        raise ValueError(f"{x} is a multiple of three")
    return Product(float(x))


def logged(x: int, log: str, seconds: float = 0.0, seed: int = 0, padding: int = 0) -> Product:
    """Says in a file of its own that it ran; the record is a function of the settings alone."""
    folder = Path(log)
    (folder / f"{x}-{seed}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(seconds)
    return Product(x * 1.5 + seed, diverged=x % 5 == 0, padding="x" * padding)


def deadly(x: int, deadly: int, log: str, seconds: float = 0.0) -> Product:
    """Kills its process if x is ``deadly``."""
    if x == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return logged(x, log, seconds)


def remembering(x: int, checkpoint: Path | None) -> dict:
    """Counts its attempts in its checkpoint, and kills its process at the first."""
    before = int(checkpoint.read_text()) if checkpoint.exists() else 0
    checkpoint.write_text(str(before + 1))
    if before == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": x, "attempts": before + 1}
