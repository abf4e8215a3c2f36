"""The chart of a whole spectrum."""

import numpy as np
import pytest

from normscope import report
from normscope.errors import InputError
from normscope.results import GramSpectrum


def gram(values):
    return GramSpectrum(
        values=np.array(values), size=6, floor=1e-12, trace=float(sum(values)), samples=3,
        outputs=2, route="layer by layer",
    )  # fmt: skip


def test_one_mark_per_eigenvalue(tmp_path):
    drawn = gram([4.0, 1.0, 0.25]).chart()
    (rows,) = drawn.to_dict()["datasets"].values()
    assert [(row["rank"], row["value"]) for row in rows] == [(1, 4.0), (2, 1.0), (3, 0.25)]
    report.save(drawn, tmp_path / "gram.svg")
    assert "<svg" in (tmp_path / "gram.svg").read_text()


def test_a_zero_matrix_is_explained():
    with pytest.raises(InputError, match="the matrix is zero"):
        gram([]).chart()
