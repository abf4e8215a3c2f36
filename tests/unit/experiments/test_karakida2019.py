"""What the experiments of Karakida 2019 compute by hand, beside the library and closed forms."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.karakida2019 import algebra, eigenvectors
from normscope.measure import fisher
from normscope.measure.gram import gram_matrix
from normscope.measure.outliers import leading_directions
from normscope.measure.probes.order_parameters import order_parameters
from normscope.nn.build import build
from normscope.sweeps import Table

WIDTHS = [12, 15, 10]


@pytest.mark.parametrize("network", ["relu", "tanh"])
def test_overlaps_make_the_gram_matrix(network):
    of = common.spec(network, [*WIDTHS, 1])
    x = common.gaussian(7, WIDTHS[0], seed=3)
    pairs = common.overlaps(build(of, 3, dtype=torch.float64), x)
    mine = sum(hat * tilde for hat, tilde in pairs) / len(x)
    np.testing.assert_allclose(mine, gram_matrix(common.risk(of, 7, 3)), rtol=1e-12)


def test_order_values_are_those_of_the_probe():
    of = common.spec("tanh", [*WIDTHS, 1])
    model, x = build(of, 0, dtype=torch.float64), common.gaussian(9, WIDTHS[0], seed=0)
    found = order_parameters(model, (x, None), batch_size=9).measured
    for name, values in common.order_values(model, x).items():
        np.testing.assert_allclose(values, found[name], rtol=1e-12)


def test_centred_is_the_norm_on_the_outputs():
    of = common.spec("relu", [*WIDTHS, 3])
    mine = common.flat(common.centred(common.gram(of, 6, 1)))
    right = gram_matrix(common.risk(of, 6, 1), last_norm="mean")
    np.testing.assert_allclose(mine, right, atol=1e-13 * float(right.abs().max()))


@pytest.mark.parametrize("overlap", [-0.5, 0.0, 0.3])
def test_arccosine_hat_is_the_gaussian_integral(overlap):
    density = stats.multivariate_normal(cov=[[1, overlap], [overlap, 1]]).pdf
    value, _ = integrate.dblquad(lambda y, x: x * y * density([x, y]), 0, 8, 0, 8, epsabs=1e-9)
    assert common.arccosine_hat(overlap) == pytest.approx(value, abs=1e-7)
    assert common.arccosine_hat(1.0) == 0.5


def test_shares_of_eigenvectors_are_those_of_the_operator():
    found = eigenvectors.trial("relu", 3, 20, 5)
    risk = common.risk(common.spec("relu", [20, 20, 20, 3]), 20, 5)
    right = leading_directions(risk, tol=1e-12)
    assert found["lost"] == pytest.approx(1 - right.shares.mean(), abs=1e-9)


def test_the_residual_is_that_of_the_matrix():
    found = eigenvectors.trial("tanh", 1, 10, 2)
    risk = common.risk(common.spec("tanh", [10, 10, 10, 1]), 10, 2)
    dense = fisher(risk).to_dense().numpy()
    jacobian = torch.func.jacrev(
        lambda p: torch.func.functional_call(risk.model, p, (risk.batches[0].inputs,)).mean()
    )({n: p for n, p in risk.model.named_parameters() if n.endswith("weight")})
    mean = np.concatenate([g.detach().numpy().ravel() for g in jacobian.values()])
    top = common.prediction("tanh", 10, 10).lambda_max
    assert found["residual"] == pytest.approx(np.linalg.norm(dense @ mean - top * mean), rel=1e-10)


def test_orders_and_limits_of_exact_laws():
    rng = np.random.default_rng(0)
    noise = {m: 1 + 1e-3 * rng.standard_normal(50) for m in (10, 20, 40)}
    rows = [({"width": m}, {"v": 3 * m**0.7 * z, "w": 2 * (1 + 5 / m) * z})
            for m, many in noise.items() for z in many]  # fmt: skip
    table = Table(rows)
    slope = common.order(table, "v")
    assert abs(slope["mean"] - 0.7) < 4 * slope["se"]
    assert common.order(table, "v", below=1.0)["mean"] == pytest.approx(1 - slope["mean"])
    assert common.order(table, "v", above=0.5)["mean"] == pytest.approx(slope["mean"] - 0.5)
    found = common.limit(common.over_widths(table, "w", lambda m: 2.0))
    assert abs(found["mean"]) < 4 * found["se"] < 0.01


def test_misprints_are_far_from_rounding_and_corrections_are_not():
    found = algebra.trial(11)
    for name, value in found.items():
        if f"{name}-corrected" in found and "error" in value:
            assert value["error"] > 1e-3
            assert found[f"{name}-corrected"]["error"] < 1e-12
