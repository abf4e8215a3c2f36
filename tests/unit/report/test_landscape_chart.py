"""Charts of landscapes: every finite number is drawn, and what is not is said."""

import numpy as np
import pytest
import torch
from chart_reading import log_values, marks, rows
from torch import nn

from cases import mlp
from normscope import report
from normscope.errors import InputError
from normscope.measure.probes.landscape import landscape

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = torch.arange(12) % 2


def picture(chart, tmp_path):
    svg = report.save(chart, tmp_path / "x.svg").read_text()
    assert "NaN" not in svg
    assert "Infinity" not in svg
    return svg


def test_loss_and_moments_along_a_line(tmp_path):
    found = landscape(mlp(), (X, Y), "cross_entropy")
    chart = found.chart(title="A title")
    assert chart.to_dict()["title"]["text"] == "A title"
    assert all(value is not None and value > 0 for value in log_values(chart))
    drawn = {row["t"]: row["loss"] for row in rows(chart) if {"t", "loss"} <= set(row)}
    assert drawn == dict(zip(found.distances[1:].tolist(), found.loss[1:].tolist(), strict=True))
    svg = picture(chart, tmp_path)
    assert len(marks(svg, "line")) == 1 + 2 * len(found.layers)


def test_a_line_that_diverges_keeps_what_is_finite(tmp_path):
    step = {"0.weight": torch.ones(4, 3), "2.weight": torch.ones(2, 4)}
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).float()
    found = landscape(
        model, (X.float(), Y), "cross_entropy", direction=step, distances=[0, 1, 1e3, 1e30]
    )
    assert not np.isfinite(found.loss[-1])
    chart = found.chart()
    notes = " ".join(chart.to_dict()["title"]["subtitle"])
    assert "1 of 4 points, the loss is not finite" in notes
    assert "exceeds" in notes
    assert len([row for row in rows(chart) if {"t", "loss"} <= set(row)]) == 2
    picture(chart, tmp_path)


def test_a_plane_is_a_map(tmp_path):
    found = landscape(
        mlp(),
        (X, Y),
        "cross_entropy",
        direction=("random", "random"),
        distances=([-1, 0, 2], [0, 1]),
    )
    chart = found.chart()
    cells = rows(chart)
    assert len(cells) == 6
    assert {(c["first"], c["second"]): c["loss"] for c in cells}[2.0, 1.0] == found.loss[2, 1]
    assert "another such" in chart.to_dict()["title"]["subtitle"][0]
    assert len(marks(picture(chart, tmp_path), "rect")) == 6


def test_nothing_finite_is_said():
    model = mlp()
    state = {name: value * torch.nan for name, value in model.state_dict().items()}
    for options in ({"distances": [0.5, 1.0]},):
        found = landscape(model, (X, Y), "cross_entropy", end=state, **options)
        assert np.isfinite(found.initial_loss)
        assert "2 of 2 points" in " ".join(found.chart().to_dict()["title"]["subtitle"])
    plane = landscape(
        model, (X, Y), "cross_entropy", distances=[1.0],
        direction=({"0.weight": state["0.weight"]}, "random"),
    )  # fmt: skip
    with pytest.raises(InputError, match="not finite anywhere"):
        plane.chart()
