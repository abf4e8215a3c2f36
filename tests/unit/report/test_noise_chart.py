"""The chart of gradient noise: its panels, its numbers, its log axes."""

import math

import pytest
import torch
from chart_reading import log_values, marks, rows
from torch import nn

from cases import mlp
from normscope import report
from normscope.errors import InputError
from normscope.measure.probes.noise import gradient_noise

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = torch.arange(40) % 2


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
def test_noise_is_drawn_by_size_and_by_layer(norm, tmp_path):
    layers = [nn.BatchNorm1d(4)] if norm else []
    found = gradient_noise(mlp(*layers), (X, Y), "cross_entropy", batch_sizes=[2, 8, 16], draws=8)
    chart = found.chart(title="A title")
    assert chart.to_dict()["title"]["text"] == "A title"
    assert all(value is not None and value > 0 for value in log_values(chart))
    kind = "batches drawn" if norm else "without replacement"
    drawn = {row["size"]: row["value"] for row in rows(chart) if row.get("kind") == kind}
    assert drawn == dict(zip([2, 8, 16], found.without_replacement[0].tolist(), strict=True))
    svg = report.save(chart, tmp_path / "x.svg").read_text()
    assert "NaN" not in svg
    assert len(marks(svg, "line")) == (2 if norm else 3)
    layers = [row for row in rows(chart) if "layer" in row]
    scales = dict(zip(found.layers, found.noise_scale[1:, -1].tolist(), strict=True))
    finite = {name: scale for name, scale in scales.items() if 0 < scale < math.inf}
    assert {row["layer"]: row["value"] for row in layers} == finite
    notes = " ".join(chart.to_dict()["title"]["subtitle"])
    assert (f"not drawn: {len(scales) - len(finite)}" in notes) == (len(finite) < len(scales))


def test_nothing_to_draw_is_said():
    same = (X[:1].repeat(4, 1), torch.zeros(4, 1, dtype=torch.float64))
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)  # outputs and targets are zero, and so is every gradient
    found = gradient_noise(model, same, "mse")
    with pytest.raises(InputError, match="same gradient"):
        found.chart()
