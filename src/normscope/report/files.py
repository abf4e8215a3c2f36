"""Charts as files: png, svg and pdf without a browser, html without a network."""

from __future__ import annotations

import base64
import html
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt

from normscope.errors import InputError, NormscopeError
from normscope.registry import near_match
from normscope.report.style import theme

__all__ = ["FORMATS", "check_path", "javascript_bundle", "save", "script_data", "still_picture"]

LARGE = 400_000  # characters of svg above which a page takes a png for its still picture
SCALE = 2.0  # pixels per point of a png, so that text is sharp on today's screens


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
    target.write_bytes(FORMATS[target.suffix.lower()](chart.to_dict()))
    return target


def check_path(path: str | Path) -> Path:
    """``path`` if a chart can be written there, otherwise an error that says why not."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(
            f"A chart file ends in one of {', '.join(FORMATS)}. Got {target.name!r}. "
            f"{near_match(target.suffix.lower(), [*FORMATS])}"
        )
    if not target.parent.is_dir():
        raise InputError(
            f"There is no folder {target.parent} to write {target.name!r} to. Make it first."
        )
    if target.is_dir():
        raise InputError(f"{target} is a folder. Give the name of a file.")
    _converter()
    return target


def _converter() -> Any:
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


def _png(spec: dict[str, Any]) -> bytes:
    png: bytes = _converter().vegalite_to_png(spec, vl_version=_version(), scale=SCALE)
    return png


def _svg(spec: dict[str, Any]) -> bytes:
    svg: str = _converter().vegalite_to_svg(spec, vl_version=_version())
    return svg.encode()


def _pdf(spec: dict[str, Any]) -> bytes:
    pdf: bytes = _converter().vegalite_to_pdf(spec, vl_version=_version())
    return pdf


def _html(spec: dict[str, Any]) -> bytes:
    """One page; its policy forbids every request, so that offline is not a matter of trust."""
    bare = {key: value for key, value in spec.items() if key not in ("config", "$schema")}
    grounds = {name: theme(dark=name == "dark") for name in ("light", "dark")}
    fields = {
        "TITLE": html.escape(_title(spec)),
        "LIGHT": grounds["light"]["background"],
        "DARK": grounds["dark"]["background"],
        "STILL": still_picture(spec),
        "SPEC": script_data(bare),
        "CONFIGS": script_data(grounds),
        "BUNDLE": javascript_bundle(),
    }
    parts = PAGE.split("@@")
    filled = [fields.get(part, part) if odd % 2 else part for odd, part in enumerate(parts)]
    return "".join(filled).encode()


def javascript_bundle() -> str:
    """Vega and its embedder as one script, to stand once in a page."""
    bundle: str = _converter().javascript_bundle(vl_version=_version())
    return bundle.replace("</script", "<\\/script")


def still_picture(spec: dict[str, Any], form: str = "svg") -> str:
    """The picture that stands in a page before, or without, any script.

    ``form`` is ``"svg"`` (a png where that is large), ``"png"`` or ``"none"``.
    """
    if form == "none":
        return f"<p>{html.escape(_title(spec))} (the picture needs JavaScript)</p>"
    svg = _svg(spec).decode() if form == "svg" else ""
    if svg and len(svg) < LARGE:
        return svg
    png = base64.b64encode(_png(spec)).decode()
    return f'<img src="data:image/png;base64,{png}" alt="{html.escape(_title(spec))}" width="700">'


def _title(spec: dict[str, Any]) -> str:
    title = spec.get("title", "")
    text = title.get("text", "") if isinstance(title, dict) else title
    return " ".join(text) if isinstance(text, list) else str(text) or "normscope"


def script_data(value: Any) -> str:
    """JSON that cannot end its <script> element early, whatever names it holds."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<title>@@TITLE@@</title>
<style>
  body { margin: 1rem; background: @@LIGHT@@; overflow-x: auto; }
  #still { background: @@LIGHT@@; display: inline-block; }
  #still img { max-width: 100%; height: auto; }
  @media screen and (prefers-color-scheme: dark) { body { background: @@DARK@@; } }
</style>
</head>
<body>
<div id="chart"><div id="still">@@STILL@@</div></div>
<script>@@BUNDLE@@</script>
<script>
{ // a block of its own: the bundle declares many short names
  const spec = @@SPEC@@;
  const configs = @@CONFIGS@@;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    const ground = dark.matches ? "dark" : "light";
    const options = {renderer: "svg", actions: false, tooltip: {theme: ground}};
    window.vegaEmbed("#chart", {...spec, config: configs[ground]}, options).catch(console.error);
  };
  dark.addEventListener("change", draw);
  draw();
}
</script>
</body>
</html>
"""  # noqa: E501

FORMATS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    ".png": _png,
    ".svg": _svg,
    ".pdf": _pdf,
    ".html": _html,
}
