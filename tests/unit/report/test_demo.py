"""What ``make demo`` runs."""

import runpy
from pathlib import Path

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


def test_the_demo_prints_a_table_and_writes_its_chart(tmp_path, capsys):
    demo = runpy.run_path(str(DEMO))
    chart = tmp_path / "out" / "prediction.html"
    demo["main"].__globals__["CHART"] = chart
    demo["main"]()
    shown = capsys.readouterr().out
    assert "lambda_max" in shown
    assert "14 times flatter" in shown  # 2241.8 / 160.33
    assert str(chart) in shown
    assert chart.read_bytes().startswith(b"<!DOCTYPE html>")
