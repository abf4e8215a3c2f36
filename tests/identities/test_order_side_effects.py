"""Order parameters of every network of the roster: finite numbers, and nothing left behind."""

import numpy as np
import pytest

from cases import ROSTER
from fingerprints import fingerprint, prepared
from normscope.measure.probes.order_parameters import order_parameters


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_nothing_changes(case):
    model = prepared(case)
    before = fingerprint(model, case.inputs, case.targets)
    data = [(case.inputs, case.targets)]
    profile = order_parameters(model, data, statistics=case.statistics)
    assert fingerprint(model, case.inputs, case.targets) == before
    assert np.isfinite(profile.measured["q"]).all()
    assert bool(profile.theory) != bool(profile.theory_reason)
    assert len(profile.to_frame()) == len(profile.coverage.layers) > 0
    assert profile.summary()
