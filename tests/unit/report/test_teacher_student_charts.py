"""Charts of the teacher-student model: every number drawn, none that a picture cannot hold."""

import numpy as np
import pytest
from chart_reading import marks, rows, views

from normscope import report
from normscope.errors import InputError
from normscope.theory import teacher_student as ts


def picture(chart, tmp_path):
    svg = report.save(chart, tmp_path / "chart.svg").read_text()
    assert "NaN" not in svg
    assert "Infinity" not in svg
    return svg


def subtitle(chart):
    return " ".join(chart.to_dict()["title"]["subtitle"])


def comparison(method="bn", num_runs=2):
    times = np.linspace(0, 1, 5)
    if method == "sgd":
        path = ts.sgd_path(ts.Start(), times, lr=0.5)
    else:
        path = ts.bn_path(ts.Start(), times, lr=0.5, zeta=0.25)
    return ts.with_simulation(path, num_inputs=40, num_runs=num_runs)


def panel():
    data = ts.Data(40, num_seeds=2)
    return ts.linear_panel([0.5, 1.0, 2.0], data=data, batch_size=8, num_steps=(3,))


SLOPES = ts.simulated_overlap_rate([1.0, 2.0], num_inputs=40, num_runs=2, duration=1.0)
RESULTS = {
    "comparison": comparison,
    "ode": lambda: comparison().theory,
    "simulation": lambda: comparison().simulated,
    "sgd": lambda: comparison("sgd"),
    "slopes": lambda: SLOPES,
    "rates": lambda: ts.learning_rates([1.0, 2.0, 3.0], zeta=0.2, measured=(SLOPES,)),
    "curve": lambda: ts.least_squares_error([0.5, 1.0, 2.0], noise_variance=0.25),
    "simulated": lambda: panel().simulated[0],
    "panel": panel,
}


@pytest.mark.parametrize("name", RESULTS)
def test_titles_tooltips_and_a_picture(name, tmp_path):
    chart = report.chart(RESULTS[name](), title="A title")
    spec = chart.to_dict()
    assert spec["title"]["text"] == "A title"
    assert any("tooltip" in view["encoding"] for view in views(spec))
    svg = picture(chart, tmp_path)
    assert marks(svg, "line") or marks(svg, "symbol")


def test_lines_for_the_ode_and_points_for_the_runs(tmp_path):
    svg = picture(comparison().chart(), tmp_path)
    assert len(marks(svg, "line")) == 3
    assert len(marks(svg, "symbol")) == 15
    assert len(marks(svg, "rule")) == 15


def test_sgd_has_no_weight_length_of_its_own(tmp_path):
    assert len(marks(picture(comparison("sgd").chart(), tmp_path), "line")) == 2


def test_one_run_has_no_error_bars(tmp_path):
    svg = picture(comparison(num_runs=1).chart(), tmp_path)
    assert not marks(svg, "rule")
    assert len(marks(svg, "symbol")) == 15


def test_a_path_that_ended_early_says_so():
    chart = ts.sgd_path(ts.Start(), 60, lr=2.5).chart()
    assert "diverged" in subtitle(chart)


def test_divergence_breaks_the_line_and_is_named(tmp_path):
    made = panel()
    chart = made.chart()
    assert "theory diverges at α = 1" in subtitle(chart)
    found = [r for r in rows(chart) if r["method"] == "least squares" and r["alpha"] == 1.0]
    assert None in [r["error"] for r in found]
    svg = picture(chart, tmp_path)
    assert len(marks(svg, "symbol")) == sum(part.alpha.size for part in made.simulated)


def test_points_above_the_frame_are_counted():
    made = panel()
    above = sum(int(np.sum(part.mean > 0.5)) for part in made.simulated)
    assert above
    assert f"above 0.5: {above} of the points" in subtitle(made.chart(top=0.5))


def test_a_frame_needs_height():
    with pytest.raises(InputError, match="top"):
        panel().chart(top=0.0)


def test_theory_and_simulation_of_a_student_share_a_colour():
    made = panel()
    labels = {curve.label for curve in made.curves}
    assert labels <= {part.label for part in made.simulated}


def test_coinciding_rates_are_named():
    assert "coincide" in subtitle(ts.learning_rates([1.0, 2.0], zeta=0.2).chart())
    assert "coincide" not in subtitle(ts.learning_rates([1.0, 2.0], zeta=0.2, length=2.0).chart())
