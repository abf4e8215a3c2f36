"""What tests read off a chart: its data, its log scales, the marks of its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

SVG = "{http://www.w3.org/2000/svg}"


def views(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every unit of a chart, its encoding completed by those around it."""
    parts = [
        part for key in ("hconcat", "vconcat", "concat", "layer") for part in spec.get(key, [])
    ]
    if not parts:
        yield spec
    for part in parts:
        shared = {key: spec[key] for key in ("data",) if key in spec}
        yield from views(shared | part)


def rows(chart: Any) -> list[dict[str, Any]]:
    """All data of a chart."""
    return [row for data in chart.to_dict()["datasets"].values() for row in data]


def log_values(chart: Any) -> list[float]:
    """Every value that a log scale of the chart has to place."""
    spec = chart.to_dict()
    found = []
    for view in views(spec):
        data = spec["datasets"][view["data"]["name"]]
        for channel in ("x", "y"):
            encoding = view.get("encoding", {}).get(channel, {})
            if encoding.get("scale", {}).get("type") == "log":
                fields = [encoding["field"]]
                other = view["encoding"].get(f"{channel}2")
                fields += [other["field"]] if other else []
                found += [row[field] for row in data for field in fields]
                found += encoding["scale"]["domain"]
    return found


def tick_labels(svg: str) -> list[list[str]]:
    """What stands at the ticks of each axis."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    named = [group for group in groups if "role-axis-label" in group.get("class", "").split()]
    return [[str(text.text) for text in group.iter(f"{SVG}text")] for group in named]


def marks(svg: str, kind: str) -> list[str]:
    """Paths of the marks of one kind (``line``, ``symbol``, ``rect``, ``rule``, ``area``)."""
    root = ElementTree.fromstring(svg)
    found = []
    for group in root.iter(f"{SVG}g"):
        names = group.get("class", "").split()
        if f"mark-{kind}" in names and "role-mark" in names:
            found += [path.get("d", "") or "line" for path in group if path.tag != f"{SVG}g"]
    return found
