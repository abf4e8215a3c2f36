"""Curvature of a subject: repeated in float64 where float32 is too rough."""

from __future__ import annotations

import torch

import normscope as ns
from normscope.diagnose import _curvature
from normscope.diagnose.subject import as_subject
from normscope.errors import MeasurementError


def test_products_too_rough_to_be_symmetric_are_made_again_in_float64(monkeypatch):
    model = ns.network("mlp:64-20-10").float()
    subject = as_subject(model, "digits", "cross_entropy")
    right = _curvature.largest_curvature(subject).largest
    original = _curvature._largest

    def rough(found):
        if not found.is_double:
            raise MeasurementError("FisherDual is tagged symmetric, but u^T A v and v^T A u differ")
        return original(found)

    monkeypatch.setattr(_curvature, "_largest", rough)
    again = _curvature.largest_curvature(subject)
    assert abs(again.largest / right - 1) < 2 * _curvature.TOLERANCE
    assert again.convention["precision"] == "float64"
    assert next(model.parameters()).dtype == torch.float32
