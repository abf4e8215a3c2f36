"""The stability map of a sweep: boundaries, intervals, distances of theories."""

import math

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.errors import InputError
from normscope.record import Record
from normscope.results.stability_map import StabilityMap, bound_of
from normscope.sweeps import Store, Sweep
from normscope.sweeps.plan import make_plan
from normscope.sweeps.store import Journal, line_of
from normscope.train import TRAINING, stability_map
from normscope.train.trial import TrialRun
from sweep_trials import product

LRS = np.array([0.1, 1.0, 10.0, 100.0])
NAN = math.nan


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("columns", "low", "high", "limits", "said"),
    [
        ([[0, 0, 1, 1]], 1, 10, [10**0.5], ""),
        ([[0, 0, 1, 1], [0, 1, 1, 1]], 0.1, 10, [10**0.5, 10**-0.5], ""),
        ([[0, 0, 0, 0]], 100, math.inf, [NAN], "stable at every rate"),
        ([[1, 1, 1, 1]], 0, 0.1, [NAN], "fails at every rate of the grid"),
        (
            [[1, 1, 1, 1], [0, 0, 1, 1]],
            0,
            10,
            [NAN, 10**0.5],
            "fails at every rate of the grid with",
        ),
        (
            [[0, 0, 0, 0], [0, 0, 1, 1]],
            1,
            math.inf,
            [NAN, 10**0.5],
            "stable at every rate of the grid ",
        ),
        ([[0, 1, 1, 0]], 0.1, math.inf, [NAN], "fails below a rate"),
        ([[0, 1, 0, 1]], 0.1, 100, [10**0.5], "fails below a rate"),
        ([[1, 0, 0, 1]], 0, 100, [NAN], "fails below a rate"),
        ([[0, NAN, 1, 1]], 0.1, 10, [1.0], ""),
        ([[NAN, NAN, NAN, NAN]], 0, math.inf, [NAN], ""),
    ],
)
def test_the_interval_holds_grid_and_seeds(columns, low, high, limits, said):
    bound, each = bound_of(LRS, np.array(columns, float).T, "diverges")
    assert (bound.low, bound.high) == (low, high)
    np.testing.assert_allclose(each, limits)
    assert said in bound.reason
    assert ("at every rate" in bound.reason) == ("at every rate" in said)


@pytest.mark.parametrize(
    ("columns", "low", "high", "limits", "said"),
    [
        ([[1, 0, 0, 1]], 10, 100, [10**1.5], "learns too little below 1"),
        ([[1, 0, 0, 1], [1, 1, 0, 1]], 10, 100, [10**1.5] * 2, "learns too little below 10"),
        ([[1, 0, 1, 0]], 1, math.inf, [NAN], "fails below a rate"),
        ([[1, 1, 1, 1]], 0, 0.1, [NAN], "fails at every rate"),
    ],
)
def test_rates_that_are_too_small_to_learn_are_not_unstable(columns, low, high, limits, said):
    """In the few updates of a map; the limit of the criterion is that of large rates."""
    bound, each = bound_of(LRS, np.array(columns, float).T, "does-not-learn")
    assert (bound.low, bound.high) == (low, high)
    np.testing.assert_allclose(each, limits)
    assert said in bound.reason
    assert bound.interleaved == ("fails below" in said)


def made_up(folder, outcome, **settings):
    """A sweep whose trials were never run: ``outcome(gamma, lr, seed)`` says what they gave."""
    base = {"network": "mlp:64-50-10", "data": "digits", "norm": "batch", "loss": "mse"}
    grid = base | {"steps": 5, "momentum": 0.9, "gamma": [0.5, 1.0], "lr": LRS.tolist()} | settings
    store, plan = Store(folder), make_plan(TRAINING, grid, 3)
    store.prepare(plan)
    journal = Journal(store, "all")
    for key, row in plan.trials.items():
        diverged, loss = outcome(row["gamma"], row["lr"], row["seed"])
        run = TrialRun(diverged, 3 if diverged else None, "", 5, 1.0, 1.0, loss, 0.5, 0.45,
                       loss < 0.45)  # fmt: skip
        journal.write([line_of(key, row, run.to_json(), None, {"seconds": 1.0})])
    journal.close()
    return Sweep(folder)


def simple(gamma, lr, seed):
    limit = (5.0 if gamma < 1 else 0.5) if seed else 50.0
    return lr > limit, 0.3 + 0.01 * seed + (0.2 if lr < 1 else 0)


def test_cells_are_white_where_any_restart_failed(tmp_path):
    found = stability_map(made_up(tmp_path, simple))
    assert found.axis == "gamma"
    assert found.seeds == 3
    np.testing.assert_allclose(found.loss[0], [0.51, 0.31, NAN, NAN])
    np.testing.assert_allclose(found.loss[1], [0.51, NAN, NAN, NAN])
    np.testing.assert_allclose(found.failed[1], [0, 2 / 3, 2 / 3, 1])
    assert [(b.low, b.high) for b in found.bounds] == [(1, 100), (0.1, 100)]
    np.testing.assert_allclose(
        np.log10(found.boundary), [(0.5 * 2 + 1.5) / 3, (-0.5 * 2 + 1.5) / 3]
    )


def test_distances_are_those_of_predict(tmp_path):
    found = stability_map(made_up(tmp_path, simple))
    for name, parameters in (("corrected", "all"), ("wei2019", "weights")):
        for place, gamma in enumerate((0.5, 1.0)):
            spec = ns.mlp([64, 50, 10], norm="batch", gamma=gamma)
            made = ns.predict(spec, samples=128, theory=name, parameters=parameters)
            rate = made.critical_lr(0.9)
            assert found.theories[name][place] == pytest.approx(rate)
            table = found.distances()
            [row] = table[(table.theory == name) & (table.gamma == gamma)].to_dict("records")
            assert row["decades"] == pytest.approx(math.log10(found.boundary[place] / rate))
            assert row["high"] == pytest.approx(2 - math.log10(rate))
            assert f"{row['decades']:+.2f}" in found.summary()


def test_a_convolutional_map_has_the_line_that_the_paper_plots(tmp_path):
    """Eq. (45) as printed is 1.6 to 2.3 decades off the paper's own Fig. 2c."""
    shape = {"network": "cnn:3x32x32:30-60-90", "stride": 2, "bias_variance": 0.5}
    found = stability_map(made_up(tmp_path, simple, **shape))
    assert set(found.theories) == {"corrected", "wei2019-as-plotted"}
    # gamma^2/(2 pi) (810 + 540 x + 270 x^2), x = gamma^2/(2 q), q = 1/2 + gamma^2
    x = 1 / (2 * 1.5)
    by_hand = 3.8 * 2 * math.pi / (810 + 540 * x + 270 * x**2)
    assert found.theories["wei2019-as-plotted"][1] == pytest.approx(by_hand, rel=0.01)
    shape = {"channels": [30, 60, 90], "stride": 2, "bias_variance": 0.5}
    spec = ns.cnn((3, 32, 32), norm="batch", gamma=0.5, **shape)
    made = ns.predict(spec, samples=128, theory="wei2019-as-plotted")
    assert found.theories["wei2019-as-plotted"][0] == pytest.approx(made.critical_lr(0.9))
    assert "as plotted" in str(found.chart().to_dict())


def test_only_weights(tmp_path):
    found = stability_map(made_up(tmp_path, simple, trained="weights"))
    spec = ns.mlp([64, 50, 10], norm="batch", gamma=0.5)
    rate = ns.predict(spec, samples=128, theory="corrected").critical_lr(0.9)
    assert found.theories["corrected"][0] == pytest.approx(rate)


def test_the_other_criterion_counts_runs_that_learn_nothing(tmp_path):
    found = stability_map(made_up(tmp_path, simple), criterion="does-not-learn")
    assert np.isnan(found.loss[0, 0])  # 0.51 is above chance
    diverges = stability_map(tmp_path)
    assert (found.bounds[0].low, found.bounds[0].high) == (1, 100)
    assert found.limits[0].tolist() == diverges.limits[0].tolist()
    assert np.isnan(found.limits[1]).tolist() == [False, True, True]  # those never learn
    assert "learns nothing" in found.summary()
    assert "learns too little below 1" in found.summary()


def test_theories_are_those_of_the_squared_loss(tmp_path):
    assert not stability_map(made_up(tmp_path, simple, loss="cross_entropy")).theories


def test_a_map_comes_back_from_json_and_is_drawn(tmp_path):
    found = stability_map(made_up(tmp_path, simple))
    assert Record.from_json(found.to_json()) == found
    chart = found.chart().to_dict()
    assert "critical rate" in str(chart["title"])
    assert isinstance(found, StabilityMap)
    assert len(found.cells()) == 8
    assert len(found.to_frame()) == 2


def test_an_unfinished_map(tmp_path):
    made_up(tmp_path, simple)
    [journal] = (tmp_path / "records").iterdir()
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:10]))
    found = stability_map(tmp_path)
    assert found.missing == 14
    assert "14 runs are missing" in found.summary()
    journal.unlink()
    assert stability_map(tmp_path).missing == 24


def test_what_has_no_map(tmp_path):
    ns.sweep(product, {"x": [1, 2]}, output=tmp_path / "a", workers=1)
    with pytest.raises(InputError, match="needs training runs"):
        stability_map(tmp_path / "a")
    made_up(tmp_path / "b", simple, weight_variance=[1.0, 2.0])
    with pytest.raises(InputError, match="weight_variance"):
        stability_map(tmp_path / "b")
    with pytest.raises(InputError, match="gamma, weight_variance"):
        stability_map(tmp_path / "b", axis="gamma")  # it would mix the two variances
    made_up(tmp_path / "c", simple)
    with pytest.raises(InputError, match="Did you mean 'gamma'"):
        stability_map(tmp_path / "c", axis="gama")
    with pytest.raises(InputError, match="Unknown criterion"):
        stability_map(tmp_path / "b", criterion="explodes")
