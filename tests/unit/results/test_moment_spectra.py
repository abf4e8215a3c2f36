"""Spectra of moments: order of the eigenvalues, rank, and which kappa_p is finite."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.results.eigenvalues import KroneckerSpectrum, MomentSpectrum


def test_eigenvalues_in_any_order():
    values = np.linalg.eigvalsh(np.diag([4.0, 1.0, 2.0]))  # ascending
    found = MomentSpectrum.of(values)
    assert found.values.tolist() == [4.0, 2.0, 1.0]
    assert found.largest == 4
    assert found.kappa() == 4
    assert MomentSpectrum.of(values[::-1]) == found


def test_the_largest_share_with_a_finite_kappa():
    left, right = (MomentSpectrum.of(np.array(v)) for v in ([3.0, 1.0, 0.0, 0.0], [2.0, 0.0]))
    for spectrum, share in ((left, 0.5), (right, 0.5), (KroneckerSpectrum(left, right), 0.25)):
        assert spectrum.finite_share == share
        assert math.isfinite(spectrum.kappa(share))
        assert math.isinf(spectrum.kappa(share + 0.1))


@pytest.mark.parametrize("samples", [6, 200])
def test_a_summary_says_why_kappa_is_infinite(samples):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))
    data = torch.randn(samples, 10), torch.randint(3, (samples,))
    found = ns.conditioning(net, data, "cross_entropy", batch_size=samples, num_batches=1)
    text, infinite = found.summary(), bool(np.isinf(found.kappa(found.p[0])).any())
    assert infinite == (samples == 6)
    assert ("is infinite in" in text) == infinite
    if infinite:
        assert "rank 36 of 80" in text
        assert "kappa_45% is finite" in text
