"""Generalization errors: theory against solved and trained students."""

import numpy as np
import pytest

from extrapolation import limit, mean_and_error
from golden.teacher_student import SIMULATED
from normscope.theory import teacher_student as ts

ALPHA = [0.25, 0.5, 0.8, 1.25, 2.0, 3.0]
LOADS = [0.5, 1.0, 2.5, 4.0]
SEEDS = {40: 800, 80: 400, 160: 200, 320: 100}  # by the number of inputs N
CONVEX_SEEDS = {40: 100, 80: 60, 160: 32, 320: 16}


def simulations(arm, loads, seeds, **options):
    """Students of each kind at each N; no two N share a teacher."""
    return [
        ts.simulated_errors([arm], loads, ts.Data(size, num_seeds=count, seed=size, **options))
        for size, count in seeds.items()
    ]


def limit_of(rows, seeds):
    """The limit of many inputs of errors (seeds, loads), one table for each N."""
    return limit(list(seeds), *zip(*map(mean_and_error, rows), strict=True))


@pytest.fixture(scope="module")
def simulated():
    return simulations(ts.LinearSolutions(lam=[0.25], zeta=[1 / 64]), ALPHA, SEEDS)


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
    made = simulations(ts.ConvexRelu(), LOADS, CONVEX_SEEDS)
    return limit_of([curves[0].errors for curves in made], CONVEX_SEEDS)


class TestLinear:
    @pytest.mark.parametrize(
        ("arm", "theory"),
        [
            (0, ts.least_squares_error(ALPHA, noise_variance=0.25)),
            (1, ts.ridge_error(ALPHA, lam=0.25, noise_variance=0.25)),
            (2, ts.weight_norm_error(ALPHA, zeta=1 / 64, noise_variance=0.25)),
        ],
        ids=["least squares", "ridge", "weight norm"],
    )
    def test_errors(self, simulated, arm, theory):
        found = limit_of([curves[arm].errors for curves in simulated], SEEDS)
        found.check(np.asarray(theory), resolution=0.03)

    def test_the_papers_lam_is_refuted_where_alpha_is_not_one(self, simulated):
        """lam = zeta instead of alpha zeta is many standard errors off at alpha = 3."""
        paper = float(ts.ridge_error(3.0, lam=1 / 64, noise_variance=0.25))
        ours = float(ts.weight_norm_error(3.0, zeta=1 / 64, noise_variance=0.25))
        least = float(ts.least_squares_error(3.0, noise_variance=0.25))
        paired = [(curves[2].errors - curves[0].errors)[:, -1] for curves in simulated]
        found = limit_of(paired, SEEDS)
        found.check(ours - least, resolution=0.05)
        assert abs(found.value - (paper - least)) > 5 * found.error


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
        convex.check(np.asarray(ts.relu_error(LOADS, noise_variance=0.25)))

    def test_published_theory_is_refuted(self, convex):
        published = ts.published_relu_error(LOADS, noise_variance=0.25)
        gap = np.abs(convex.value - published.error)
        assert np.all(gap[2:] > 5 * convex.error[2:])

    def test_no_noise(self):
        loads = [0.5, 1.0]
        made = simulations(ts.ConvexRelu(), loads, CONVEX_SEEDS, noise_variance=0.0)
        found = limit_of([curves[0].errors for curves in made], CONVEX_SEEDS)
        found.check(np.asarray(ts.relu_error(loads)))
        bound = 1 - loads[1] / 4  # the published lower bound
        assert found.value[1] + 4 * found.error[1] < bound

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
