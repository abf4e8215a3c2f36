"""Charts as files: png, svg and pdf without a browser, html without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from normscope.checks import checked_target
from normscope.errors import InputError
from normscope.files import write_atomically
from normscope.registry import near_match
from normscope.report.converter import converter, pdf, png, started_converter, svg
from normscope.report.html import chart_page

FORMATS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    ".png": png,
    ".svg": svg,
    ".pdf": pdf,
    ".html": chart_page,
}


def save(chart: Any, path: str | Path) -> Path:
    """Write a chart to ``path``; its ending chooses the format.

    Args:
        chart: an Altair chart.
        path: a file ending in .png, .svg, .pdf or .html. The html is one self-contained file:
            it loads nothing, follows the reader's light or dark setting, and shows the chart as
            a still picture where JavaScript is off.

    Returns:
        The path written.
    """
    target = check_path(path)
    write_atomically(target, FORMATS[target.suffix.lower()](chart.to_dict()))
    return target


def check_path(path: str | Path, endings: tuple[str, ...] = tuple(FORMATS)) -> Path:
    """``path`` if a picture can be written there, otherwise an error that says why not."""
    target = Path(path)
    if target.suffix.lower() not in endings:
        one = "ends in" if len(endings) == 1 else "ends in one of"
        raise InputError(
            f"{'A page' if endings == ('.html',) else 'A chart'} file {one} {', '.join(endings)}. "
            f"Got {target.name!r}. {near_match(target.suffix.lower(), [*endings])}"
        )
    checked_target(target)
    converter() if endings == (".html",) else started_converter()  # a page can do without charts
    return target
