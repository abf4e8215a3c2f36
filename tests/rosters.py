"""All entries of the numeric roster: importing this module reads every ``roster*.py``."""

from __future__ import annotations

import importlib
from pathlib import Path

from roster import NOT_FORMULAS, NUMERIC

__all__ = ["NOT_FORMULAS", "NUMERIC"]

for path in sorted(Path(__file__).parent.glob("roster_*.py")):
    importlib.import_module(path.stem)
