"""What all pages share: templates, figures with a still picture, data inside scripts."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from normscope.report.converter import javascript_bundle, png, svg
from normscope.report.style import INK, theme
from normscope.report.wording import amount, number, prose, spread

LARGE = 400_000  # characters of svg above which a page takes a png for its still picture
BESIDES = ("config", "$schema", "title")  # parts of a spec that the page provides
# marks that turn the direction of all text after them, which a name must not do
TURNS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
# what colours of the light theme are called in page.css, so that stills follow the ground
NAMES = dict(zip(INK[False], ("ink", "soft", "line"), strict=True))


@dataclass(frozen=True)
class Figure:
    """A chart in a page: its heading as text, its picture, and what a script draws it from.

    Attributes:
        id: id of the element, unique in the page.
        title: above the picture.
        notes: lines below the title.
        still: HTML of the picture that needs no script.
        spec: Vega-Lite without title and theme.
    """

    id: str
    title: str
    notes: tuple[str, ...]
    still: str
    spec: dict[str, Any]


def figure(
    spec: dict[str, Any], identifier: str, form: str = "svg", *, sentence: str = ""
) -> Figure:
    """The figure of a chart.

    Args:
        spec: a Vega-Lite chart.
        identifier: identifier of the element.
        form: format of the still picture: ``"svg"``, ``"png"`` or ``"none"``.
        sentence: text that a chart cuts into lines; a page does not need to.
    """
    title, notes = _heading(spec)
    notes = [sentence] if sentence.split() == " ".join(notes).split() else notes
    label = ". ".join([title, *notes])
    bare = {k: v for k, v in spec.items() if k not in BESIDES} | {"description": label}
    return Figure(identifier, title, tuple(notes), _still(bare, identifier, form), bare)


def filled(template: str, figures: list[Figure], **context: Any) -> str:
    """A page from a template in ``report/templates``; the script stands there if it has charts."""
    specs = {one.id: one.spec for one in figures}
    grounds = {name: theme(dark=name == "dark") for name in ("light", "dark")}
    text: str = (
        _environment()
        .get_template(template)
        .render(
            context,
            css=_file("page.css"),
            script=_file("page.js"),
            bundle=javascript_bundle() if specs else "",
            specs=script_data(specs),
            configs=script_data(grounds),
        )
    )
    return text.translate(TURNS)


def chart_page(spec: dict[str, Any]) -> bytes:
    """One chart as a page of its own: it loads nothing, and reads well without a script."""
    drawn = figure(spec, "chart")
    return filled("chart.html.jinja", [drawn], figure=drawn).encode()


def script_data(value: Any) -> str:
    """JSON that cannot end its <script> element early, whatever names it holds."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _heading(spec: dict[str, Any]) -> tuple[str, list[str]]:
    title = spec.get("title", "")
    title = title if isinstance(title, dict) else {"text": title}
    text, notes = title.get("text", ""), title.get("subtitle", [])
    text = " ".join(text) if isinstance(text, list) else str(text)
    notes = notes if isinstance(notes, list) else [notes]
    return text or "normscope", [str(note) for note in notes if note]


def _still(spec: dict[str, Any], identifier: str, form: str) -> str:
    label = html.escape(spec["description"])
    if form == "none":
        return "<p>The picture needs JavaScript; the numbers stand below.</p>"
    picture = (
        svg(spec | {"config": theme() | {"background": None}}).decode() if form == "svg" else ""
    )
    if picture and len(picture) < LARGE:
        return f'<div role="img" aria-label="{label}">{_at_home(picture, identifier)}</div>'
    pixels = base64.b64encode(png(spec | {"config": theme()})).decode()
    return f'<img src="data:image/png;base64,{pixels}" alt="{label}" width="700">'


def _at_home(picture: str, identifier: str) -> str:
    """An svg that shares a page: ids of its own, ink and lines in the colours of the page.

    The ids are counted anew: the converter goes on counting from chart to chart.
    """
    for place, name in enumerate(dict.fromkeys(re.findall(r' id="(\w+)"', picture)), start=1):
        own = f"{identifier}-{place}"
        picture = picture.replace(f' id="{name}"', f' id="{own}"')
        picture = picture.replace(f"url(#{name})", f"url(#{own})")
    for colour, name in NAMES.items():
        picture = picture.replace(f'="{colour}"', f'="var(--{name})"')
    return picture


@cache
def _environment() -> Any:
    import jinja2

    loader = jinja2.FunctionLoader(_file)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "prose": prose, "number": number, "amount": amount, "spread": spread
    }  # fmt: skip
    return environment


def _file(name: str) -> str:
    return (resources.files("normscope.report") / "templates" / name).read_text(encoding="utf-8")
