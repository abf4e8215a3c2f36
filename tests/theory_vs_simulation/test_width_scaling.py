"""How fast networks approach the theory: log-log fits with their standard errors."""

import numpy as np
import pytest

import normscope as ns
import simulation as sim

pytestmark = pytest.mark.slow
WIDTHS = (30, 60, 120, 240)
NETS = 300
SAMPLES = 20


def slope(x, y, error):
    """Weighted straight-line fit of log y on log x: slope and its standard error."""
    lx, ly, w = np.log(x), np.log(y), (np.asarray(y) / np.asarray(error)) ** 2
    centre = np.average(lx, weights=w)
    spread = np.sum(w * (lx - centre) ** 2)
    return float(np.sum(w * (lx - centre) * ly) / spread), float(1 / np.sqrt(spread))


def quotients(act, variances, width):
    """Rayleigh quotient of the mean direction over its prediction, for many networks."""
    spec = ns.mlp(
        [width, width, width, 1],
        activation=act,
        weight_variance=variances[0],
        bias_variance=variances[1],
    )
    leading = ns.predict(spec, samples=SAMPLES, theory="corrected").lambda_max
    values = []
    for seed in range(NETS):
        terms = sim.mean_direction_terms(sim.draw(spec, seed, SAMPLES))
        values.append(sum(v for k, v in terms.items() if k.startswith("weight")) / leading)
    return np.array(values)


@pytest.mark.parametrize(("act", "variances"), [("relu", (2.0, 0.1)), ("tanh", (3.0, 0.64))])
def test_spread_and_bias_fall_with_width(act, variances):
    rows = {width: quotients(act, variances, width) for width in WIDTHS}
    spread = np.array([r.std(ddof=1) for r in rows.values()])
    # the standard error of a standard deviation, heavy tails included
    kurtosis = [np.mean((r - r.mean()) ** 4) / r.var() ** 2 for r in rows.values()]
    error = spread * np.sqrt((np.array(kurtosis) - 1) / (4 * NETS))
    rate, rate_error = slope(WIDTHS, spread, error)
    assert abs(rate + 0.5) < 2 * rate_error
    # the bias is no slower: at every width it is inside c/sqrt(width), c from the smallest width
    bias = np.array([abs(r.mean() - 1) for r in rows.values()])
    unsure = spread / np.sqrt(NETS)
    bound = (bias[0] + 2 * unsure[0]) * np.sqrt(WIDTHS[0] / np.array(WIDTHS))
    assert (bias <= bound + 2 * unsure).all()
    seen = bias > 2 * unsure
    if seen.sum() >= 3:  # enough of a bias to fit its rate
        rate, rate_error = slope(np.array(WIDTHS)[seen], bias[seen], unsure[seen])
        assert rate < -0.5 + 2 * rate_error
