"""Laws of a standardized hidden value."""

import numpy as np
import pytest

from normscope.theory import laws


@pytest.mark.parametrize("law", laws.LAWS)
def test_nodes_and_draws_have_the_moments_of_their_law(law):
    rho, skew = laws.LAWS[law]
    exact = np.array([0, 1, skew, rho + 3])
    x, w = laws.nodes(law)
    assert np.allclose([w @ x**k for k in (1, 2, 3, 4)], exact, rtol=1e-9, atol=1e-9)
    drawn = laws.draw(law, (4, 100_000), np.random.default_rng(1)).ravel()
    powers = np.stack([drawn**k for k in (1, 2, 3, 4)])
    error = powers.std(axis=1) / np.sqrt(drawn.size)
    assert np.all(np.abs(powers.mean(axis=1) - exact) < 4.5 * error)
