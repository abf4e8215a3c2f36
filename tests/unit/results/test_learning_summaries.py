"""Summaries of teacher-student results that a terminal can hold."""

import numpy as np

from normscope.theory import teacher_student as ts


def test_a_panel_is_one_table_at_the_simulated_loads():
    data = ts.Data(32, num_seeds=2)
    panel = ts.linear_panel([0.5, 1.0, 2.0], data=data, batch_size=4, num_steps=[3])
    lines = panel.summary().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("alpha "))
    assert start == len(panel.curves) + len(panel.simulated)
    assert lines[start + 1].split()[:2] == ["0.5", "0.75"]
    assert lines[start + 2].split()[:2] == ["1", "inf"]
    assert lines[start + 1].count("+-") == len(panel.simulated)
    assert lines[start + 4].startswith("alpha = 1: as many samples as inputs")
    assert len({len(line) for line in lines[start : start + 4]}) == 1
    assert len(lines) == start + 5


def test_one_seed_has_no_error_to_show():
    (made,) = ts.simulated_errors([ts.LinearSolutions()], [0.5], ts.Data(16, num_seeds=1))
    assert np.isnan(made.standard_error).all()
    assert "nan" not in made.summary()
    slopes = ts.simulated_overlap_rate(1.0, num_inputs=16, num_runs=1, duration=1.0)
    assert "nan" not in slopes.summary()
    assert "+-" in ts.simulated_overlap_rate(1.0, num_inputs=16, duration=1.0).summary()


def test_a_student_that_diverged_is_short():
    path = ts.simulate_sgd(ts.Start(), 30, lr=6.0, num_inputs=50)
    assert path.gamma[0, -1] > 1e20
    assert max(map(len, path.summary().splitlines())) < 100
    assert len(repr(path)) < 120
