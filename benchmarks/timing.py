"""CPU and wall seconds, interleaved so that a busy machine is equally busy for everyone."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Times", "interleaved", "machine", "timed", "version"]


@dataclass
class Times:
    """Seconds of each repeat."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def add(self, cpu: float, wall: float) -> None:
        self.cpu.append(cpu)
        self.wall.append(wall)

    def summary(self) -> dict[str, float]:
        return {
            "cpu": statistics.median(self.cpu),
            "cpu_least": min(self.cpu),
            "cpu_most": max(self.cpu),
            "wall": statistics.median(self.wall),
            "repeats": len(self.cpu),
        }


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, CPU seconds and wall seconds of one call."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def interleaved(jobs: dict[str, tuple[Callable[[], Any], int]]) -> dict[str, Times]:
    """Time each job its number of times, round by round."""
    times = {name: Times() for name in jobs}
    for turn in range(max(repeats for _, repeats in jobs.values())):
        for name, (function, repeats) in jobs.items():
            if turn < repeats:
                _, cpu, wall = timed(function)
                times[name].add(cpu, wall)
    return times


def version(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    cpus = [
        line.partition(":")[2].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    packages = ("normscope", "torch", "numpy", "scipy")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": cpus[0] if cpus else platform.processor() or platform.machine(),
        "cores": str(len(cpus) or "unknown"),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) or "missing" for name in packages},
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []
