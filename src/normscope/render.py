"""The one upward door: results reach their charts through a renderer looked up by name.

``results`` lies below ``report`` and may not import it. A result's ``chart()`` calls
:func:`chart_of`, which imports ``normscope.report`` only at that moment.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from normscope.errors import NormscopeError


def report_package() -> Any:
    """``normscope.report``; an error that names the extra if a package under it is missing."""
    try:
        return importlib.import_module("normscope.report")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("normscope"):
            raise
        raise NormscopeError(
            f"Drawing a chart needs the package {error.name!r}, which is not installed. "
            "Install it with: pip install 'normscope[report]'"
        ) from None
    except Exception as error:
        if sys.flags.optimize < 2:
            raise
        raise NormscopeError(
            "Charts cannot be drawn by a Python that drops docstrings, which altair reads. Use "
            f"PYTHONOPTIMIZE=1 or none in place of {sys.flags.optimize}, or python without -OO."
        ) from error


def chart_of(result: object, **options: Any) -> Any:
    """The Altair chart of a result, drawn by ``normscope.report``."""
    return report_package().chart(result, **options)
