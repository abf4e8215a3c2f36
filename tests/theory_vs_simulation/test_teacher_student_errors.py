"""Generalization errors: theory against solved and trained students."""

import numpy as np
import pytest

from golden.teacher_student import SIMULATED
from normscope.theory import teacher_student as ts


def close(simulated, theory, *, errors=5.0, remainder=0.0):
    """Within s.e. over the seeds, plus a remainder of order 1/N where the theory has one."""
    gap = np.abs(simulated.mean - np.asarray(theory))
    room = errors * simulated.standard_error + remainder * np.asarray(theory)
    assert np.all(gap <= room), (gap, room)


ALPHA = [0.25, 0.5, 0.8, 1.25, 2.0, 3.0]


@pytest.fixture(scope="module")
def simulated():
    arms = [ts.LinearSolutions(lam=[0.25], zeta=[1 / 64])]
    return ts.simulated_errors(arms, ALPHA, ts.Data(300, num_seeds=12))


@pytest.fixture(scope="module")
def runs():
    """Batch norm, shortly and long, beside least squares on the same data at alpha = .9."""
    given = SIMULATED["batch norm over least squares"].inputs
    arms = [
        ts.LinearSolutions(zeta=[1 / (2 * given["M"])]),
        ts.BatchNormSgd(batch_size=given["M"], num_steps=[300, given["steps"]], lr=given["lr"]),
    ]
    data = ts.Data(given["N"], noise_variance=given["S"], num_seeds=given["seeds"])
    return ts.simulated_errors(arms, given["alpha"], data)


@pytest.fixture(scope="module")
def convex():
    arms, loads = [ts.ConvexRelu()], [0.5, 1.0, 2.5, 4.0]
    return ts.simulated_errors(arms, loads, ts.Data(300, num_seeds=8))[0]


class TestLinear:
    def test_least_squares(self, simulated):
        close(simulated[0], ts.least_squares_error(ALPHA, noise_variance=0.25), remainder=0.02)

    def test_ridge(self, simulated):
        theory = ts.ridge_error(ALPHA, lam=0.25, noise_variance=0.25)
        close(simulated[1], theory, remainder=0.01)

    def test_weight_norm(self, simulated):
        theory = ts.weight_norm_error(ALPHA, zeta=1 / 64, noise_variance=0.25)
        close(simulated[2], theory, remainder=0.01)

    def test_the_papers_lam_is_refuted_where_alpha_is_not_one(self, simulated):
        """lam = zeta instead of alpha zeta is several standard errors off at alpha = 3."""
        paper = float(ts.ridge_error(3.0, lam=1 / 64, noise_variance=0.25))
        ours = float(ts.weight_norm_error(3.0, zeta=1 / 64, noise_variance=0.25))
        paired = simulated[2].errors[:, -1] - simulated[0].errors[:, -1]  # against least squares
        least = float(ts.least_squares_error(3.0, noise_variance=0.25))
        error = paired.std(ddof=1) / np.sqrt(len(paired))
        assert paired.mean() == pytest.approx(ours - least, abs=5 * error + 1e-4)
        assert abs(paired.mean() - (paper - least)) > 5 * error


class TestBatchNorm:
    @pytest.mark.slow
    def test_at_convergence_it_is_least_squares(self, runs):
        entry = SIMULATED["batch norm over least squares"]
        ratio = runs[3].errors / runs[0].errors
        error = ratio.std(ddof=1) / np.sqrt(len(ratio))
        assert ratio.mean() == pytest.approx(entry.value, abs=entry.relative + error)

    @pytest.mark.slow
    def test_stopped_early_it_is_far_below_and_it_is_no_ridge(self, runs):
        least, ridge, early, late = (run.mean[0] for run in runs)
        assert early < 0.6 * least
        assert late > 1.5 * ridge


class TestRelu:
    def test_convexified_theory(self, convex):
        close(convex, ts.relu_error(convex.alpha, noise_variance=0.25), remainder=0.02)

    def test_published_theory_is_refuted(self, convex):
        published = ts.published_relu_error(convex.alpha, noise_variance=0.25)
        gap = np.abs(convex.mean - published.error)
        assert np.all(gap[2:] > 5 * convex.standard_error[2:])

    def test_no_noise(self):
        made = ts.simulated_errors(
            [ts.ConvexRelu()], [0.5, 1.0], ts.Data(300, noise_variance=0.0, num_seeds=8)
        )[0]
        close(made, ts.relu_error(made.alpha), remainder=0.02)
        bound = 1 - made.alpha / 4  # the published lower bound
        assert made.mean[1] + 5 * made.standard_error[1] < bound[1]

    def test_reference_value(self):
        entry = SIMULATED["convexified ReLU"]
        data = ts.Data(entry.inputs["N"], noise_variance=entry.inputs["S"], num_seeds=3)
        made = ts.simulated_errors([ts.ConvexRelu()], entry.inputs["alpha"], data)[0]
        room = entry.relative * entry.value + made.standard_error[0]
        assert made.mean[0] == pytest.approx(entry.value, abs=room)

    @pytest.mark.slow
    def test_decay_and_batch_norm_remove_the_peak(self):
        """Between alpha 1.4 and 2.1: both maxima below .85 of the vanilla student's."""
        arms = [
            ts.ReluDescent(num_steps=2000, zeta=(0.0, 1 / 64)),
            ts.BatchNormSgd("relu", batch_size=16, num_steps=[300]),
        ]
        loads = [1.4, 1.65, 1.8, 2.1]
        vanilla, decay, batch = ts.simulated_errors(arms, loads, ts.Data(300, num_seeds=4))
        top = vanilla.mean.max()
        assert decay.mean.max() < 0.85 * top
        assert batch.mean.max() < 0.85 * top
