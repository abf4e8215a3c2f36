"""The parts of Luo's experiments that their verdicts rest on."""

import numpy as np
import pytest

from normscope.experiments.experiment import experiments
from normscope.experiments.luo2019 import batch_sizes, formulas, neuron
from normscope.experiments.observing import over_sizes
from normscope.results.rules import judge
from normscope.theory import teacher_student as ts
from normscope.theory.quadrature import angular_mean


@pytest.mark.parametrize(("q", "r"), [(0.7, 0.3), (1.2, -0.6), (0.9, 0.99)])
def test_quadrature_over_the_angle_against_closed_forms_and_draws(q, r):
    rng = np.random.default_rng(2)
    u, other = rng.standard_normal((2, 200_000))
    t = r * u + np.sqrt(1 - r**2) * other
    closed = {"I1": ts.gradient_along_student, "I2": ts.gradient_power}
    closed |= {"I3": ts.gradient_along_teacher}
    for name, function in formulas.INTEGRALS.items():
        found, values = angular_mean(function, q, r), function(q * u, t)
        assert abs(found - values.mean()) < 4.5 * values.std() / np.sqrt(len(u))
        if name in closed:
            assert found == pytest.approx(float(closed[name](q, r)), rel=1e-11)


def test_the_loss_of_the_softplus_unit_has_the_slope_softplus():
    h = np.linspace(-4, 4, 9)
    slope = (neuron._antiderivative(h + 1e-5) - neuron._antiderivative(h - 1e-5)) / 2e-5
    assert np.allclose(slope, neuron.softplus(h), atol=1e-8)


def test_a_remainder_of_two_terms_is_told_from_a_wrong_limit():
    sizes, rng = [16, 32, 64, 128, 256], np.random.default_rng(3)
    m = np.array(sizes, float)
    values = 1 + 5 / m + 20 / m**2 + 1e-3 * rng.standard_normal((30, 5))
    seen = over_sizes(sizes, values.T, 1.0)
    assert judge("formula", seen, {"terms": 2}).verdict == "reproduced"
    assert judge("formula", seen, {"terms": 1}).verdict == "not reproduced"
    wrong = over_sizes(sizes, values.T, 1.02)
    assert judge("formula", wrong, {"terms": 2}).verdict == "not reproduced"


def test_the_names_of_the_arms_are_the_batch_sizes_at_desk_scale():
    rows = experiments()["luo2019/batch-sizes"].at("desk").settings
    assert list(dict.fromkeys(row["arm"] for row in rows)) == list(batch_sizes.ARMS)
    assert {(row["unit"], batch_sizes.LARGE * row["unit"]) for row in rows} == {(128, 1024)}
