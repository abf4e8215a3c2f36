"""Charts to pictures without a browser: the one door to vl-convert."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt

from normscope.errors import NormscopeError

SCALE = 2.0  # pixels per point of a png, so that text is sharp on today's screens


def converter() -> Any:
    """The package vl_convert; an error that names what to install if it is missing."""
    try:
        return importlib.import_module("vl_convert")
    except ModuleNotFoundError:
        raise NormscopeError(
            "Writing a chart needs the package 'vl-convert-python', which is not installed. "
            "Install it with: pip install 'normscope[report]'"
        ) from None


def started_converter() -> Any:
    """The converter, if it can start; an error where there is a limit of memory that it breaks.

    Its engine reserves far more addresses than it uses, and ends the whole process if it cannot.
    """
    package, limit = converter(), _address_limit()
    if limit is not None and not _starts_within(limit):
        raise NormscopeError(
            "Charts cannot be drawn under this limit of the address space (ulimit -v). Lift the "
            "limit, or save the data (.json) and run normscope report where there is none."
        )
    return package


def _address_limit() -> int | None:
    """Bytes of addresses that this process may use; None if there is no limit."""
    try:
        resource: Any = importlib.import_module("resource")
    except ModuleNotFoundError:  # not on Windows
        return None
    limit = int(resource.getrlimit(resource.RLIMIT_AS)[0])
    return None if limit == resource.RLIM_INFINITY else limit


@cache
def _starts_within(limit: int) -> bool:
    """Whether the engine starts in a process that has what is left of ``limit`` here."""
    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * os.sysconf("SC_PAGESIZE") if pages.exists() else 0
    code = (
        "import resource, sys, vl_convert; left = int(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_AS, (left, left)); vl_convert.javascript_bundle()"
    )
    command = [sys.executable, "-c", code, str(max(limit - used, 0))]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _version() -> str:
    """The Vega-Lite version of Altair's charts, as the converter names it."""
    major, minor, *_ = alt.SCHEMA_VERSION.lstrip("v").split(".")
    return f"{major}.{minor}"


def png(spec: dict[str, Any]) -> bytes:
    """A chart as a picture of pixels."""
    picture: bytes = started_converter().vegalite_to_png(spec, vl_version=_version(), scale=SCALE)
    return picture


def svg(spec: dict[str, Any]) -> bytes:
    """A chart as a picture of lines and text."""
    picture: str = started_converter().vegalite_to_svg(spec, vl_version=_version())
    return picture.encode()


def pdf(spec: dict[str, Any]) -> bytes:
    """A chart as a page."""
    picture: bytes = started_converter().vegalite_to_pdf(spec, vl_version=_version())
    return picture


def javascript_bundle() -> str:
    """Vega and its embedder as one script, to stand once in a page."""
    bundle: str = started_converter().javascript_bundle(vl_version=_version())
    return bundle.replace("</script", "<\\/script")
