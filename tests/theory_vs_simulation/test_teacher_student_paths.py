"""Order-parameter ODEs and learning rates against online SGD of real students."""

import numpy as np
import pytest

from extrapolation import limit, mean_and_error
from golden.teacher_student import SIMULATED
from normscope.theory import teacher_student as ts

START = ts.Start(0.5, 0.1, 1.0)


RUNS = {25: 96, 50: 96, 100: 64, 200: 40, 400: 24}  # by the number of inputs


def check_path(path):
    """Every order parameter at every time, at the limit of infinitely many inputs."""
    runs = {
        size: ts.with_simulation(path, num_inputs=size, num_runs=count, seed=size).simulated
        for size, count in RUNS.items()
    }
    for name in ("gamma", "correlation", "length"):
        rows = [mean_and_error(getattr(run, name)) for run in runs.values()]
        limit(list(RUNS), *zip(*rows, strict=True)).check(path.mean(name), name)


@pytest.mark.parametrize("student", ["relu", "linear"])
@pytest.mark.parametrize(
    "path",
    [
        lambda student: ts.bn_path(START, np.linspace(0, 8, 9), lr=0.8, zeta=0.2, student=student),
        lambda student: ts.wn_path(START, np.linspace(0, 8, 9), lr=1.5, student=student),
        lambda student: ts.sgd_path(START, np.linspace(0, 8, 9), lr=0.7, student=student),
        lambda student: ts.bn_path(
            START, np.linspace(0, 6, 7), lr=2.5, zeta=0.1, student=student, fixed_length=True
        ),
    ],
    ids=["bn", "wn", "sgd", "bn, L held"],
)
def test_ode_is_the_limit_of_online_sgd(path, student):
    check_path(path(student))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        ts.bn_path(START, np.linspace(0, 16, 33), lr=0.5, zeta=0.25),
        ts.bn_path(START, np.linspace(0, 12, 25), lr=1.5, zeta=0.1),
        ts.sgd_path(START, np.linspace(0, 12, 25), lr=1.0),
        ts.bn_path(START, np.linspace(0, 12, 25), lr=0.5, zeta=0.25, student="linear"),
    ],
    ids=lambda path: f"{path.method}, {path.student}, lr {path.lr:g}",
)
def test_overlap_along_the_path_of_4000_inputs(path):
    made = ts.with_simulation(path, num_inputs=4000, num_runs=4, seed=0)
    assert made.max_error["correlation"] <= 0.01


@pytest.mark.slow
def test_reference_end_of_online_sgd():
    entry = SIMULATED["online, bn"]
    given = entry.inputs
    made = ts.simulate_bn(
        ts.Start(given["Q"], given["R"], given["L"]), [0.0, given["T"]], lr=given["eta"],
        zeta=given["zeta"], num_inputs=given["N"], num_runs=4, seed=1,
    )  # fmt: skip
    names = ("gamma", "correlation", "length")
    for name, value in zip(names, entry.value, strict=True):
        room = entry.relative * abs(value) + made.standard_error(name)[-1]
        assert made.mean(name)[-1] == pytest.approx(value, abs=room)


@pytest.fixture(scope="module", params=["wn", "sgd"])
def slopes(request):
    rates = [0.5, 1.0, 1.5, 1.8, 2.2, 2.5]
    return ts.simulated_overlap_rate(rates, request.param, num_inputs=2000, num_runs=4)


class TestSlopes:
    """ln(1 - R) from R = .9999: lambda_R, or the fit to the nonlinear ODE above eta = 2."""

    def test_sign_changes_between_1_8_and_2_2(self, slopes):
        below, above = slopes.mean[3], slopes.mean[4]
        assert below + 5 * slopes.standard_error[3] < 0 < above - 5 * slopes.standard_error[4]
        theory = ts.overlap_rate(slopes.lr)
        assert theory[3] < 0 < theory[4]
        assert np.array_equal(np.sign(theory), np.sign(slopes.mean))

    def test_rates_below_the_bound(self, slopes):
        theory = ts.overlap_rate(slopes.lr)
        gap = np.abs(slopes.mean - theory)[:4]
        assert np.all(gap <= 5 * slopes.standard_error[:4] + 0.01 * np.abs(theory[:4]))

    def test_rates_above_the_bound_follow_the_nonlinear_ode(self, slopes):
        times = np.linspace(0, 8, 81)
        start = ts.Start(1.0, 0.9999, 1.0)
        for index in (4, 5):
            lr = float(slopes.lr[index])
            path = (
                ts.sgd_path(start, times, lr=lr)
                if slopes.method == "sgd"
                else ts.wn_path(start, times, lr=lr, fixed_length=True)
            )
            fitted = np.polyfit(times, np.log(1 - path.correlation[0]), 1)[0]
            room = 5 * slopes.standard_error[index] + 0.02 * abs(fitted)
            assert slopes.mean[index] == pytest.approx(fitted, abs=room)

    def test_reference_slopes(self, slopes):
        entry = SIMULATED["slope, sgd, lr 1" if slopes.method == "sgd" else "slope, wn, lr 1.8"]
        index = list(slopes.lr).index(entry.inputs["lr"])
        room = entry.relative * abs(entry.value) + slopes.standard_error[index]
        assert slopes.mean[index] == pytest.approx(entry.value, abs=room)


def test_linear_students_have_their_own_rate():
    slopes = ts.simulated_overlap_rate(
        [0.5, 1.0, 1.8, 2.2], "sgd", num_inputs=1500, num_runs=4, student="linear", duration=4.0
    )
    theory = ts.overlap_rate(slopes.lr, student="linear")
    room = 5 * slopes.standard_error + 0.05 * np.abs(theory)
    assert np.all(np.abs(slopes.mean - theory) <= room)


def test_distance_from_the_ode_falls_with_the_inputs():
    """Fluctuations are of order N^(-1/2): a log-log fit of the spread over runs."""
    sizes = np.array([50, 200, 800])
    spreads = []
    for n in sizes:
        made = ts.simulate_bn(
            START, [0.0, 3.0], lr=0.8, zeta=0.2, num_inputs=int(n), num_runs=60, seed=2
        )
        spreads.append(made.correlation[:, -1].std(ddof=1))
    slope = np.polyfit(np.log(sizes), np.log(spreads), 1)[0]
    # relative error of each spread 1/sqrt(2*59), over a lever of ln(16)
    room = 5 * np.sqrt(2) / np.sqrt(118) / np.log(16)
    assert slope == pytest.approx(-0.5, abs=room)
