"""Every formula against its oracle (``tests/rosters.py``)."""

import numpy as np
import pytest

from rosters import NUMERIC


@pytest.mark.parametrize("name", sorted(NUMERIC))
def test_formula_agrees_with_an_independent_number(name):
    checked = 0
    for value, oracle, relative in NUMERIC[name]():
        np.testing.assert_allclose(
            np.asarray(value, dtype=float), np.asarray(oracle, dtype=float), rtol=relative, atol=0
        )
        checked += 1
    assert checked
