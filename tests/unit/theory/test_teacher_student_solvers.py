"""The solvers and trainers behind the simulated errors: each against a second way to the answer."""

import numpy as np
import pytest
from scipy import optimize

from normscope.theory import teacher_student as ts
from normscope.theory.teacher_student.samples import draw_sample
from normscope.theory.teacher_student.solved import convex_relu_weights, ridge_weights
from normscope.theory.teacher_student.students import STUDENTS


def data(num_inputs=30, **options):
    return ts.Data(num_inputs, **options)


class TestSample:
    def test_what_is_drawn(self):
        sample = draw_sample(data(400, noise_variance=0.3), 2.5, 0)
        assert sample.inputs.shape == (1000, 400)
        assert sample.teacher @ sample.teacher == pytest.approx(400)
        noise = sample.targets - sample.inputs @ sample.teacher
        assert np.var(noise) == pytest.approx(0.3, abs=5 * 0.3 * np.sqrt(2 / 1000))
        spread = np.sqrt(2 / sample.inputs.size)
        assert np.mean(sample.inputs**2) * 400 == pytest.approx(1, abs=5 * spread)

    @pytest.mark.parametrize("student", ["linear", "relu"])
    def test_error_is_the_mean_over_fresh_inputs(self, student):
        sample = draw_sample(data(20), 1.0, 0)
        rng = np.random.default_rng(0)
        w = rng.standard_normal(20)
        x = rng.standard_normal((200_000, 20)) / np.sqrt(20)
        gaps = (x @ sample.teacher - STUDENTS[student].function(x @ w)) ** 2
        error = gaps.std() / np.sqrt(len(gaps))
        assert sample.error(w, STUDENTS[student]) == pytest.approx(gaps.mean(), abs=5 * error)

    def test_same_seed_same_data_whatever_the_workers_and_the_order(self):
        arms = [ts.LinearSolutions(lam=[0.25])]
        one = ts.simulated_errors(arms, [0.5, 2.0], data())[1]
        two = ts.simulated_errors(arms, [2.0, 0.5], data(), workers=2)[1]
        np.testing.assert_array_equal(one.errors, two.errors[:, ::-1])
        other = ts.simulated_errors(arms, [0.5, 2.0], data(seed=1))[1]
        assert not np.any(one.errors == other.errors)

    def test_small_groups_change_nothing(self, monkeypatch):
        arms = [ts.BatchNormSgd(batch_size=5, num_steps=[3, 20]), ts.ReluDescent(num_steps=5)]
        whole = ts.simulated_errors(arms, [0.5, 1.5], data())
        monkeypatch.setattr("normscope.theory.teacher_student.samples.GROUP_BYTES", 1.0)
        split = ts.simulated_errors(arms, [0.5, 1.5], data())
        for one, two in zip(whole, split, strict=True):
            np.testing.assert_allclose(one.errors, two.errors, rtol=1e-9)

    def test_global_random_state_is_left_alone(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        ts.simulate_sgd(ts.Start(), 0.5, lr=1.0, num_inputs=20)
        ts.linear_panel([1.5], data=data(), batch_size=4, num_steps=(2,))
        np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


class TestLinear:
    @pytest.mark.parametrize("shape", [(12, 30), (30, 30), (60, 30)])
    def test_ridge_is_the_stacked_least_squares(self, shape):
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal(shape), rng.standard_normal(shape[0])
        found = ridge_weights(x, y, [0.0, 0.3])
        np.testing.assert_allclose(found[0], np.linalg.pinv(x) @ y, rtol=1e-6, atol=1e-8)
        stacked = np.vstack([x, np.sqrt(0.3) * np.eye(30)])
        oracle = np.linalg.lstsq(stacked, np.append(y, np.zeros(30)), rcond=None)[0]
        np.testing.assert_allclose(found[1], oracle, rtol=1e-9, atol=1e-12)

    def test_singular_data_give_the_least_norm(self):
        x = np.ones((3, 4))
        (found,) = ridge_weights(x, np.ones(3), [0.0])
        np.testing.assert_allclose(found, np.full(4, 0.25), rtol=1e-6)

    def test_weight_norm_descent_reaches_the_ridge_alpha_zeta(self):
        """Gradient descent on (1/P) sum (y - gamma sqrt(N) w.x/|w|)^2 + zeta gamma^2 itself."""
        sample = draw_sample(data(12), 1.5, 0)
        x, y, n, zeta = sample.inputs, sample.targets, 12, 0.1

        def loss(theta):
            w, gamma = theta[:-1], theta[-1]
            full = gamma * np.sqrt(n) * w / np.linalg.norm(w)
            return np.mean((y - x @ full) ** 2) + zeta * gamma**2

        start = np.append(np.random.default_rng(0).standard_normal(n), 0.5)
        best = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-9})
        w, gamma = best.x[:-1], best.x[-1]
        full = gamma * np.sqrt(n) * w / np.linalg.norm(w)
        np.testing.assert_allclose(full, ridge_weights(x, y, [1.5 * zeta])[0], atol=1e-5)


class TestConvexRelu:
    @pytest.mark.parametrize("alpha", [0.5, 1.0, 1.4])
    def test_interpolating_solution_meets_its_optimality_conditions(self, alpha):
        """w is a combination of the active samples, with multipliers of the right sign."""
        sample = draw_sample(data(40), alpha, 1)
        x, y = sample.inputs, sample.targets
        w = convex_relu_weights(x, y)
        if np.max(np.abs(x[y > 0] @ w - y[y > 0])) > 1e-6:
            assert alpha > 1.2  # above its own threshold at this size
            return
        out = x[y <= 0] @ w
        assert out.max() < 1e-6
        active = np.flatnonzero(y <= 0)[out > -1e-7]
        rows = np.vstack([x[y > 0], x[active]])
        multipliers, *_ = np.linalg.lstsq(rows.T, w, rcond=None)
        np.testing.assert_allclose(rows.T @ multipliers, w, atol=1e-6)
        assert np.all(multipliers[np.sum(y > 0) :] < 1e-6)

    @pytest.mark.parametrize("alpha", [0.8, 3.0])
    def test_against_a_general_optimiser(self, alpha):
        sample = draw_sample(data(15), alpha, 0)
        x, y = sample.inputs, sample.targets
        positive = y > 0

        def loss(w):
            u = x @ w
            gap = np.where(positive, u - y, np.maximum(u, 0.0))
            return gap @ gap, 2 * x.T @ gap

        if alpha > 1.5:
            best = optimize.minimize(
                loss, np.zeros(15), jac=True, method="BFGS", options={"gtol": 1e-10}
            )
        else:
            best = optimize.minimize(
                lambda w: (w @ w, 2 * w),
                np.zeros(15),
                jac=True,
                method="SLSQP",
                constraints=[
                    {"type": "eq", "fun": lambda w: x[positive] @ w - y[positive]},
                    {"type": "ineq", "fun": lambda w: -x[~positive] @ w},
                ],
                options={"ftol": 1e-14, "maxiter": 500},
            )
        np.testing.assert_allclose(convex_relu_weights(x, y), best.x, atol=2e-5)


class TestBatchNorm:
    @pytest.mark.parametrize("student", ["linear", "relu"])
    def test_one_step_is_the_gradient_of_half_the_loss(self, student):
        arm = ts.BatchNormSgd(student, batch_size=6, num_steps=1, lr=0.05)
        n = 8
        sample = draw_sample(data(n), 0.75, 0)  # 6 samples: the batch is all of them
        x, y, g = sample.inputs, sample.targets, STUDENTS[student].function

        def loss(theta):
            h = x @ theta[:-1]
            return 0.5 * np.mean((y - g(theta[-1] * h / np.sqrt(np.mean(h**2)))) ** 2)

        w = x.T @ y
        theta = np.append(w * np.sqrt(n) / np.linalg.norm(w), 1.0)
        slope = optimize.approx_fprime(theta, loss, 1e-7)
        moved = theta - 0.05 * slope * np.append(np.full(n, n), 1.0)
        sigma = np.sqrt(np.mean((x @ moved[:-1]) ** 2))
        oracle = sample.error(moved[-1] / sigma * moved[:-1], STUDENTS[student])
        (row,) = arm.errors([draw_sample(data(n), 0.75, 0)])
        assert row[0] == pytest.approx(oracle, rel=1e-6)

    def test_an_interpolating_direction_stays(self, monkeypatch):
        """alpha < 1, from the least-squares solution: only gamma moves, to below its fit."""
        arm = ts.BatchNormSgd(batch_size=4, num_steps=500)
        sample = draw_sample(data(50), 0.6, 0)
        fit = ridge_weights(sample.inputs, sample.targets, [0.0])[0]
        scale = np.sqrt(np.mean(sample.targets**2))  # the gamma of w_LS on the training set
        ends = []
        monkeypatch.setattr(arm, "_first", lambda samples: fit[None].copy())
        monkeypatch.setattr(arm, "_error", lambda s, w, gamma: ends.append((w, gamma)) or 0.0)
        arm.errors([sample])
        ((weights, gamma),) = ends
        np.testing.assert_allclose(weights, fit, rtol=1e-8, atol=1e-10)
        assert 0.8 * scale < gamma < scale

    def test_batches_hold_each_sample_once_an_epoch(self):
        from normscope.theory.teacher_student.trained import _epochs

        sample = draw_sample(data(20), 1.0, 0)
        stream = _epochs(sample, 6)
        for _ in range(4):
            seen = np.concatenate([next(stream) for _ in range(3)])
            assert len(set(seen.tolist())) == 18

    def test_random_start_keeps_its_null_space(self):
        """alpha < 1: what the data do not see of w is never unlearnt."""
        arms = [
            ts.BatchNormSgd(batch_size=8, num_steps=400, init=init) for init in ("span", "random")
        ]
        span, random = ts.simulated_errors(arms, 0.5, data(100))
        assert np.all(random.errors > span.errors + 0.1)


class TestOnline:
    @pytest.mark.parametrize("student", ["linear", "relu"])
    def test_a_step_is_the_gradient_step(self, student):
        """From the loss (y - yhat)^2/2 + zeta gamma^2/2 in (w, gamma), numerically."""
        from normscope.theory.teacher_student.online import _bn_step, _Rule, _State

        n, eta, zeta = 7, 0.4, 0.3
        rng = np.random.default_rng(3)
        w, x = rng.standard_normal(n), rng.standard_normal(n) / np.sqrt(n)
        gamma, g = 0.8, STUDENTS[student].function
        target = g(np.sqrt(n) * x[0])

        def loss(theta):
            u = theta[-1] * np.sqrt(n) * theta[:-1] @ x / np.linalg.norm(theta[:-1])
            return 0.5 * (target - g(u)) ** 2 + 0.5 * zeta * theta[-1] ** 2

        slope = optimize.approx_fprime(np.append(w, gamma), loss, 1e-7)
        now = _State(
            w[None, None].copy(), np.ones((1, 1)), np.array([[w @ w]]), np.array([[gamma]])
        )
        rule = _Rule(np.array([eta]), zeta, STUDENTS[student])
        _bn_step(now, rule, x[None], np.array([x @ x]))
        made = (now.scale[..., None] * now.direction)[0, 0]
        np.testing.assert_allclose(made, w - eta * slope[:-1], atol=1e-6)
        assert now.gamma[0, 0] == pytest.approx(gamma - eta / n * slope[-1], abs=1e-7)
        assert now.square[0, 0] == pytest.approx(made @ made, rel=1e-12)

    def test_learning_rates_on_the_same_inputs(self):
        together = ts.simulated_overlap_rate([0.5, 1.5], num_inputs=50, duration=2.0)
        alone = ts.simulated_overlap_rate(1.5, num_inputs=50, duration=2.0)
        np.testing.assert_allclose(together.slopes[:, 1:], alone.slopes, rtol=1e-9)

    def test_divergence_is_a_result(self):
        path = ts.simulate_sgd(
            ts.Start(), [0.0, 5.0, 3000.0], lr=6.0, num_inputs=4, student="linear"
        )
        assert "diverged" in path.reason
        assert np.isfinite(path.gamma[0, 0])
