"""Tables of finished trials, and pairs of runs with the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.sweeps import Table, sweep
from normscope.sweeps.table import paired

A, B = {"norm": "batch"}, {"norm": "none"}
RUNS = {("batch", 1): [4.0, 1.0], ("batch", 0): [2.0, 0.5], ("none", 0): [3.0, 3.0],
        ("none", 1): [8.0, 2.0]}  # fmt: skip
TABLE = Table([({"norm": n, "seed": s}, {"losses": np.array(v)}) for (n, s), v in RUNS.items()])


def test_values_by_setting() -> None:
    pairs = [(m, s) for m in (1, 2) for s in (0, 1)]
    table = Table([({"m": m, "seed": s}, {"x": m + s, "y": {"error": [s]}}) for m, s in pairs])
    assert table.values_of("m") == [1, 2]
    assert table("x", m=2).tolist() == [2, 3]
    assert (len(table), table.names) == (4, ["x", "y"])
    with pytest.raises(InputError, match="'m': 3"):
        table("x", m=3)


def area(width: int, height: int) -> dict[str, int]:
    return {"area": width * height}


def test_the_table_of_a_sweep_is_in_the_order_of_its_plan(tmp_path) -> None:
    found = sweep(area, {"width": [3, 1, 2], "height": 2}, output=tmp_path, executor="serial")
    table = Table.of(found)
    assert [settings["width"] for settings, _ in table] == [3, 1, 2]
    assert table("area").tolist() == [6, 2, 4]


def test_pairs_are_of_the_same_seed_in_any_order() -> None:
    found = paired(TABLE, "losses", A, B)
    assert found.tolist() == [[-4.0, -1.0], [-1.0, -2.5]]  # in the order of the first arm
    last = paired(TABLE, lambda run: run["losses"][-1], A, B, log10=True)
    assert last == pytest.approx([np.log10(1 / 2), np.log10(0.5 / 3)])


def test_pairs_need_one_run_of_each_seed() -> None:
    with pytest.raises(InputError, match="seeds"):
        paired(Table(TABLE.rows[1:]), "losses", A, B)
    with pytest.raises(InputError, match="4 runs with 2 seeds"):
        paired(TABLE, "losses", {}, B)
    with pytest.raises(InputError, match="0 runs"):
        paired(TABLE, "losses", {"norm": "layer"}, B)


def test_infinite_losses_are_values() -> None:
    table = Table([({"arm": a, "seed": 0}, {"late": v}) for a, v in (("x", np.inf), ("y", 1.0))])
    assert paired(table, "late", {"arm": "x"}, {"arm": "y"}).tolist() == [np.inf]
