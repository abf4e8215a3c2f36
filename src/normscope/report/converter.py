"""Charts to pictures without a browser: the one door to vl-convert."""

from __future__ import annotations

import importlib
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


def _version() -> str:
    """The Vega-Lite version of Altair's charts, as the converter names it."""
    major, minor, *_ = alt.SCHEMA_VERSION.lstrip("v").split(".")
    return f"{major}.{minor}"


def png(spec: dict[str, Any]) -> bytes:
    """A chart as a picture of pixels."""
    picture: bytes = converter().vegalite_to_png(spec, vl_version=_version(), scale=SCALE)
    return picture


def svg(spec: dict[str, Any]) -> bytes:
    """A chart as a picture of lines and text."""
    picture: str = converter().vegalite_to_svg(spec, vl_version=_version())
    return picture.encode()


def pdf(spec: dict[str, Any]) -> bytes:
    """A chart as a page."""
    picture: bytes = converter().vegalite_to_pdf(spec, vl_version=_version())
    return picture


def javascript_bundle() -> str:
    """Vega and its embedder as one script, to stand once in a page."""
    bundle: str = converter().javascript_bundle(vl_version=_version())
    return bundle.replace("</script", "<\\/script")
