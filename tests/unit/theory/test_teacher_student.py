"""The teacher-student model: reference values, limits, bad input, what the results say."""

import dataclasses

import numpy as np
import pytest

from golden.teacher_student import THEORY
from normscope.errors import InputError
from normscope.record import Record
from normscope.theory import teacher_student as ts


def of(curve):
    return curve.error[0]


ROUTES = {
    "I1": ts.gradient_along_student,
    "I2": ts.gradient_power,
    "I3": ts.gradient_along_teacher,
    "gamma0": ts.fixed_gamma,
    "lambda_Q": ts.gain_rate,
    "lambda_R": ts.overlap_rate,
    "lambda_R, complete": ts.complete_overlap_rate,
    "eta_max": ts.max_effective_lr,
    "eta_raw_max": ts.max_lr,
    "bn_R_deficit": ts.overlap_deficit,
    "bn_steady": ts.steady_state,
    "ode_end, bn": lambda Q, R, eta, zeta, T: ts.bn_path(ts.Start(Q, R), T, lr=eta, zeta=zeta).end,
    "ode_end, sgd": lambda Q, R, eta, T: ts.sgd_path(ts.Start(Q, R), T, lr=eta).end[:2],
    "eps_sgd_linear": lambda alpha, S: of(ts.least_squares_error(alpha, noise_variance=S)),
    "G_mp": ts.resolvent,
    "eps_ridge": lambda lam, alpha, S: of(ts.ridge_error(alpha, lam=lam, noise_variance=S)),
    "eps_wn_gd": lambda zeta, alpha, S: of(
        ts.weight_norm_error(alpha, zeta=zeta, noise_variance=S)
    ),
    "relu_op_paper": lambda alpha, S, a=None: published(alpha, S, a),
    "eps_relu_paper": lambda alpha, S: of(ts.published_relu_error(alpha, noise_variance=S)),
    "relu_alpha_c": ts.relu_threshold,
}


def published(alpha, S, a):
    made = ts.published_relu_error(alpha, noise_variance=S, a=a)
    return made.gamma2[0], made.overlap[0]


@pytest.mark.parametrize(
    "entry", [e for e in THEORY if e.quantity != "relu_erm"], ids=lambda e: f"{e[0]}{e[1]}"
)
def test_reference_value(entry):
    made = ROUTES[entry.quantity](*entry.inputs.values())
    np.testing.assert_allclose(made, entry.value, rtol=entry.relative, atol=1e-15)


@pytest.mark.parametrize("entry", [e for e in THEORY if e.quantity == "relu_erm"])
def test_reference_value_of_the_convexified_loss(entry):
    made = ts.relu_error(entry.inputs["alpha"], noise_variance=entry.inputs["S"])
    *numbers, regime = entry.value
    found = (made.gamma2[0], made.overlap[0], made.error[0])
    np.testing.assert_allclose(found, numbers, rtol=entry.relative)
    assert made.regimes == (regime,)


class TestLearningRates:
    def test_the_rate_of_r_changes_sign_at_two_without_decay(self):
        for student in ("relu", "linear"):
            rates = ts.learning_rates([1.8, 2.0, 2.2], zeta=0.25, student=student)
            for row in (1, 2):  # weight norm and SGD
                below, edge, above = rates.overlap_rate[row]
                assert below < 0 < above
                assert edge == pytest.approx(0, abs=1e-12)
            assert np.all(rates.overlap_rate[0] < 0)

    @pytest.mark.parametrize(("student", "gain"), [("relu", 4), ("linear", 2)])
    def test_decay_raises_the_bound(self, student, gain):
        for zeta in (0.05, 0.25, 1.0):
            made = ts.max_effective_lr(zeta, student) - ts.max_effective_lr(0.0, student)
            assert made == pytest.approx(gain * zeta)
            assert made >= 2 * zeta - 1e-12  # Proposition 4

    def test_the_printed_form_of_the_rate(self):
        """lambda_R = dI2/dR eta gamma0/(2 L^2) (eta_max - eta_eff), with dI2/dR = -gamma0."""
        eta, zeta, long = 0.8, 0.3, 1.4
        g0 = ts.fixed_gamma(zeta)
        gap = ts.max_effective_lr(zeta) - ts.effective_lr(eta, zeta, length=long)
        printed = -g0 * eta * g0 / (2 * long**2) * gap
        assert ts.overlap_rate(eta, zeta, length=long) == pytest.approx(printed, rel=1e-12)

    def test_values_over_arrays(self):
        made = ts.overlap_rate(np.array([[0.5], [1.0]]), np.array([0.0, 0.25]))
        assert made.shape == (2, 2)
        assert made[0, 1] == pytest.approx(ts.overlap_rate(0.5, 0.25))


class TestPaths:
    def test_linear_sgd_is_an_exponential(self):
        """1 - 2QR + Q^2 decays as exp(-(2 eta - eta^2) t) and QR as 1 - (1 - QR0) e^(-eta t)."""
        start, eta = ts.Start(0.7, 0.2), 0.6
        times = np.linspace(0, 9, 10)
        path = ts.sgd_path(start, times, lr=eta, student="linear")
        q, r = path.gamma[0], path.correlation[0]
        first = 1 - 2 * 0.7 * 0.2 + 0.49
        np.testing.assert_allclose(
            1 - 2 * q * r + q**2, first * np.exp(-(2 * eta - eta**2) * times), atol=1e-9
        )
        np.testing.assert_allclose(1 - q * r, (1 - 0.14) * np.exp(-eta * times), atol=1e-9)

    def test_sgd_path_follows_its_drift(self):
        path = ts.sgd_path(ts.Start(0.5, 0.1), np.linspace(0, 4, 4001), lr=1.2)
        dq, dr = ts.sgd_drift(path.gamma[0], path.correlation[0], lr=1.2)
        np.testing.assert_allclose(np.gradient(path.gamma[0], path.time)[5:-5], dq[5:-5], atol=1e-5)
        found = np.gradient(path.correlation[0], path.time)[5:-5]
        np.testing.assert_allclose(found, dr[5:-5], atol=1e-5)

    def test_weight_norm_never_diverges(self):
        for eta, length in ((4.0, 2.03), (10.0, 3.14)):
            path = ts.wn_path(ts.Start(1.0, 0.5), 30, lr=eta)
            assert path.correlation[0, -1] > 0.9999
            assert path.end[2] == pytest.approx(length, abs=0.005)
            assert not path.reason

    def test_sgd_diverges_above_two_and_says_so(self):
        path = ts.sgd_path(ts.Start(), 100, lr=2.5)
        assert path.time[-1] < 40
        assert "diverged" in path.reason
        assert "diverged" in path.summary()
        assert np.all(np.isfinite(path.gamma))

    def test_late_laws_of_gamma_decay(self):
        """eta = .5, zeta = .25, t = 4000: 1 - R = 1.332e-3 (law 1.282e-3), L = 2.687 (2.664)."""
        path = ts.bn_path(ts.Start(0.5, 0.1), 4000, lr=0.5, zeta=0.25)
        _, r, length = path.end
        assert 1 - r == pytest.approx(1.332e-3, rel=1e-3)
        assert length == pytest.approx(2.687, abs=5e-4)
        law = ts.late_length(4000.0, lr=0.5, zeta=0.25)
        assert law == pytest.approx(2.664, abs=5e-4)
        assert ts.overlap_deficit(0.5, 0.25, length=law) == pytest.approx(1.304e-3, rel=2e-2)

    def test_a_linear_gain_passes_zero(self):
        path = ts.bn_path(ts.Start(0.3, -0.5), 60, lr=0.5, zeta=0.1, student="linear")
        assert path.gamma.min() < 0
        gamma, r, _ = path.end
        assert gamma * r > 0.7  # the function is learnt, whichever the signs

    def test_held_length_stays(self):
        path = ts.bn_path(ts.Start(0.5, 0.1, 1.3), 5, lr=1.0, zeta=0.1, fixed_length=True)
        np.testing.assert_allclose(path.length, 1.3, rtol=1e-12)


class TestSteadyState:
    def test_the_table_of_the_text(self):
        assert ts.steady_state(5.175, 0.25) == pytest.approx((0.5055, 0.7110), abs=6e-5)
        assert ts.steady_state(0.5, 0.05)[1] == pytest.approx(0.9988, abs=6e-5)

    @pytest.mark.parametrize("student", ["relu", "linear"])
    def test_without_decay_one_up_to_the_bound(self, student):
        assert ts.steady_state(1.99, 0.0, student=student) == (1.0, 1.0)
        gamma, r = ts.steady_state(2.3, 0.0, student=student)
        assert 0.8 < r < 1
        assert 0 < gamma < 1

    def test_linear_without_decay_is_closed(self):
        _, r = ts.steady_state(5.0, 0.0, student="linear", length=1.2)
        assert r == pytest.approx(np.sqrt(2 * 1.44 / 5), rel=1e-9)

    def test_tiny_decay_is_continuous(self):
        assert ts.steady_state(1.0, 1e-9)[1] == pytest.approx(1.0, abs=1e-8)


class TestDivergences:
    def test_least_squares_at_alpha_one(self):
        made = ts.least_squares_error([0.9, 1.0, 1.1], noise_variance=0.25)
        assert np.isinf(made.error[1])
        assert "smallest eigenvalue" in made.reasons[1]
        assert made.reasons[0] == made.reasons[2] == ""
        assert np.isinf(float(ts.least_squares_error(1.0, noise_variance=0.25)))

    def test_clean_data_do_not_diverge(self):
        assert float(ts.least_squares_error(1.0)) == 0.0
        assert float(ts.published_relu_error(2.0)) == pytest.approx(0.5)

    def test_published_relu_at_alpha_two(self):
        made = ts.published_relu_error([1.9, 2.0, 2.1], noise_variance=0.25)
        assert np.isinf(made.error[1])
        assert "alpha = 2" in made.reasons[1]
        assert np.all(np.isfinite(made.error[[0, 2]]))

    def test_published_relu_without_a_stationary_point(self):
        made = ts.published_relu_error(3.0, noise_variance=0.25, a=1.0)
        assert np.isinf(float(made))
        assert "no stationary point" in made.reasons[0]

    def test_the_threshold_is_a_finite_cusp(self):
        """u = 1 + S there; continuous from both sides, steeper and steeper from the left."""
        edge = ts.relu_threshold(0.25)
        made = ts.relu_error(edge + np.array([-1e-6, 0.0, 1e-6]), noise_variance=0.25)
        assert made.overlap[1] == pytest.approx(1.25, rel=1e-6)
        assert made.error[1] == pytest.approx(3.45475, abs=1e-4)
        assert made.error == pytest.approx(3.45475, rel=1e-2)
        assert made.regimes == ("interp", "interp", "noninterp")
        assert "threshold" in made.reasons[1]
        left = [float(ts.relu_error(edge - h, noise_variance=0.25)) for h in (1e-4, 1e-6)]
        slopes = [(made.error[1] - e) / h for e, h in zip(left, (1e-4, 1e-6), strict=True)]
        assert slopes[1] > 5 * slopes[0] > 0

    def test_threshold_falls_with_noise(self):
        found = [ts.relu_threshold(s) for s in (0.0, 1e-9, 1e-4, 0.25, 10.0, 1e8)]
        assert np.all(np.diff(found) < 0)
        assert found[-1] == pytest.approx(4 / 3, abs=1e-3)

    def test_no_noise(self):
        made = ts.relu_error([0.5, 1.0, 1.5, 2.0, 3.0])
        assert made.error == pytest.approx([0.849, 0.698, 0.572, 0.5, 0.5], abs=6e-4)


class TestErrors:
    def test_best_ridge_is_the_noise(self):
        lams = np.linspace(0.05, 0.6, 111)
        for alpha in (0.4, 1.0, 2.5):
            errors = [float(ts.ridge_error(alpha, lam=x, noise_variance=0.25)) for x in lams]
            assert lams[np.argmin(errors)] == pytest.approx(0.25, abs=0.006)

    def test_ridge_falls_back_to_least_squares(self):
        alpha = [0.3, 0.99, 1.01, 3.0]
        limit = ts.least_squares_error(alpha, noise_variance=0.25)
        made = ts.ridge_error(alpha, lam=1e-13, noise_variance=0.25)
        np.testing.assert_allclose(made, limit, rtol=1e-6)
        assert ts.ridge_error(alpha, lam=0.0, noise_variance=0.25).error == pytest.approx(
            limit.error
        )

    def test_lam_and_zeta_differ_by_alpha(self):
        wn = ts.weight_norm_error(3.0, zeta=0.1, noise_variance=0.25)
        assert float(wn) == pytest.approx(float(ts.ridge_error(3.0, lam=0.3, noise_variance=0.25)))

    def test_order_parameters_give_the_error(self):
        for made in (
            ts.least_squares_error([0.5, 2.0], noise_variance=0.25),
            ts.ridge_error([0.5, 2.0], lam=0.25, noise_variance=0.25),
            ts.relu_error([0.5, 2.0], noise_variance=0.25),
        ):
            length = np.sqrt(made.gamma2)
            error = ts.student_error(length, made.overlap / length, made.student)
            np.testing.assert_allclose(made.error, error, rtol=1e-12)

    def test_lower_bound_that_is_none(self):
        """The paper's 1 - alpha/4 is above the corrected error at S = 0."""
        alpha = np.array([0.5, 1.0, 1.5])
        published = ts.published_relu_error(alpha)
        np.testing.assert_allclose(published, 1 - alpha / 4, rtol=1e-12)
        assert np.all(ts.relu_error(alpha).error < published.error)


BAD = {
    "zeta below 0": lambda: ts.bn_path(ts.Start(), 1, lr=0.5, zeta=-0.1),
    "zeta below 0, rate": lambda: ts.overlap_rate(0.5, -0.1),
    "zeta below 0, error": lambda: ts.weight_norm_error(1.0, zeta=-1.0),
    "lr 0": lambda: ts.sgd_path(ts.Start(), 1, lr=0.0),
    "lr below 0": lambda: ts.max_effective_lr(0.1) + ts.gain_rate(-1.0, 0.1),
    "lr nan": lambda: ts.overlap_rate(float("nan")),
    "gamma 0": lambda: ts.Start(gamma=0.0),
    "gamma text": lambda: ts.gradient_power("a", 0.5),
    "gamma inf": lambda: ts.gradient_along_student(float("inf"), 0.5),
    "correlation 2": lambda: ts.Start(correlation=2.0),
    "length 0": lambda: ts.Start(length=0.0),
    "times falling": lambda: ts.sgd_path(ts.Start(), [1.0, 0.5], lr=1.0),
    "times negative": lambda: ts.sgd_path(ts.Start(), -1.0, lr=1.0),
    "student": lambda: ts.bn_path(ts.Start(), 1, lr=0.5, zeta=0.1, student="rely"),
    "alpha 0": lambda: ts.least_squares_error([0.5, 0.0]),
    "alpha nan": lambda: ts.relu_error(float("nan")),
    "alpha matrix": lambda: ts.relu_error([[1.0]]),
    "noise below 0": lambda: ts.relu_error(1.0, noise_variance=-0.1),
    "lam below 0": lambda: ts.ridge_error(1.0, lam=-0.1),
    "a below 1": lambda: ts.published_relu_error(1.0, a=0.5),
    "resolvent without a ridge": lambda: ts.resolvent(0.0, 0.5),
    "one input": lambda: ts.Data(1),
    "half an input": lambda: ts.Data(10.5),
    "no seed": lambda: ts.Data(10, num_seeds=0),
    "no sample": lambda: ts.simulated_errors([ts.LinearSolutions()], 0.01, ts.Data(20)),
    "batch of one": lambda: ts.BatchNormSgd(batch_size=1, num_steps=5),
    "batch too large": lambda: ts.simulated_errors(
        [ts.BatchNormSgd(batch_size=32, num_steps=5)], 0.5, ts.Data(20)
    ),
    "no step": lambda: ts.BatchNormSgd(batch_size=4, num_steps=0),
    "init": lambda: ts.BatchNormSgd(batch_size=4, num_steps=5, init="zero"),
    "workers": lambda: ts.simulated_errors([ts.LinearSolutions()], 1, ts.Data(20), workers=0),
    "method": lambda: ts.simulated_overlap_rate(1.0, "bn", num_inputs=10),
    "start at 1": lambda: ts.simulated_overlap_rate(1.0, num_inputs=10, start=1.0),
    "inputs of a run": lambda: ts.simulate_sgd(ts.Start(), 1, lr=1.0, num_inputs=1),
    "simulated path again": lambda: ts.with_simulation(
        ts.simulate_sgd(ts.Start(), 1, lr=1.0, num_inputs=10), num_inputs=10
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    with pytest.raises(InputError) as caught:
        BAD[name]()
    assert len(str(caught.value)) > 30


def results():
    times = np.linspace(0, 1, 4)
    path = ts.bn_path(ts.Start(), times, lr=0.5, zeta=0.25)
    compared = ts.with_simulation(path, num_inputs=40, num_runs=2)
    slopes = ts.simulated_overlap_rate([1.0, 2.0], num_inputs=40, num_runs=2, duration=1.0)
    panel = ts.linear_panel(
        [0.5, 1.0, 2.0], data=ts.Data(40, num_seeds=2), batch_size=8, num_steps=(3, 6)
    )
    return (
        path,
        compared,
        slopes,
        ts.learning_rates([1.0, 2.0, 3.0], zeta=0.2, measured=(slopes,)),
        panel.curves[0],
        panel.simulated[0],
        panel,
    )


class TestResults:
    @pytest.mark.parametrize("result", results(), ids=lambda r: type(r).__name__)
    def test_json_there_and_back_frame_and_text(self, result):
        assert Record.from_json(result.to_json()) == result
        assert len(result.to_frame()) >= 2
        assert result.summary().strip()
        assert len(repr(result)) < 160

    @pytest.mark.parametrize("result", results(), ids=lambda r: type(r).__name__)
    def test_frozen(self, result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.method = "other"

    def test_a_curve_is_an_array(self):
        curve = ts.least_squares_error([0.5, 2.0], noise_variance=0.25)
        assert np.asarray(curve).tolist() == curve.error.tolist()
        assert np.asarray(curve, dtype=np.float32).dtype == np.float32

    def test_one_run_has_no_standard_error(self):
        path = ts.simulate_sgd(ts.Start(), [0.0, 1.0], lr=0.5, num_inputs=30)
        assert np.all(np.isnan(path.standard_error("gamma")))

    def test_panel_frame_tells_theory_from_simulation(self):
        frame = results()[-1].to_frame()
        assert set(frame["source"]) == {"theory", "simulation"}
        assert np.isinf(frame.query("source == 'theory' and alpha == 1")["error"]).any()
