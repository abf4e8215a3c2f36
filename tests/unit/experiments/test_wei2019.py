"""What the experiments on Wei et al. (2019) compute from their trials."""

import math

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.experiments.claim import claims
from normscope.experiments.wei2019 import _boundary, _map, claim31, fig1, fisher, training
from normscope.experiments.wei2019._common import PLOTTED, critical, lambda_of, spec_of
from normscope.results.rules import judge
from normscope.sweeps import Table


def test_the_lines_of_the_theories_by_hand():
    # Fig. 1c, d: gamma^2/(2 pi) (810 + 540 x + 270 x^2), x = gamma^2/(2 q), q = 1/2 + gamma^2
    x = 16.81 / (2 * 17.31)
    by_hand = 16.81 / (2 * math.pi) * (810 + 540 * x + 270 * x**2)
    assert lambda_of(spec_of("cifar-cnn", 4.1), PLOTTED) == pytest.approx(by_hand, rel=1e-12)
    assert fig1.crossing(*fig1.line("mnist-fc", "wei2019")) == pytest.approx(2.88, abs=0.01)
    assert fig1.crossing(*fig1.line("mnist-fc", "corrected")) == pytest.approx(3.75, abs=0.01)
    assert fig1.crossing(*fig1.line("cifar-cnn", PLOTTED)) == pytest.approx(2.87, abs=0.01)


def test_the_crossing_of_a_parabola_is_where_it_reaches_the_level():
    assert fig1.crossing(2.0 * 2.9**2, 2.0 * fig1.GRID**2) == pytest.approx(2.9, rel=1e-12)


def _pairs(samples: int) -> Table:
    row = {"kind": "pairs", "width": 300, "samples": samples, "gamma": None}
    return Table([(row | {"seed": s}, {"layers": [1.0, 1.0, 1.0, 1.0]}) for s in range(2)])


def test_the_printed_product_of_means_differs_from_the_mean_of_products():
    found = claim31._pairs(_pairs(20))
    first = {name: found[name]["parts"]["layer 1"]["theory"][0] for name in found}
    order = ns.predict(claim31.spec("pairs", 300, None), theory="corrected").order_parameters
    assert first["eq153-right"] == pytest.approx(300 / 20 * order["qtilde"][0], rel=1e-12)
    by_hand = 300 / 20 * (order["qtilde"][0] / 20 + 0.95 * order["qtilde_st"][0])
    assert first["eq153-printed"] == pytest.approx(by_hand, rel=1e-12)
    whole = ns.predict(claim31.spec("pairs", 300, None), samples=20, theory="corrected").per_layer
    right = [part["theory"][0] for part in found["eq153-right"]["parts"].values()]
    assert right == pytest.approx(whole.tolist(), rel=1e-9)


def test_heavy_ball_shrinks_a_mode_by_what_iterating_it_shows():
    for rate in (0.05, 1.9, 3.7):
        now, before, logs = 1.0, 0.0, []
        for _ in range(4000):
            now, before = now - rate * now + 0.9 * (now - before), now
            size = math.hypot(now, before)
            logs.append(math.log(size))
            now, before = now / size, before / size
        assert fisher._radius(rate, 0.9) == pytest.approx(math.exp(np.mean(logs)), abs=2e-3)


def test_distances_of_tensors_come_back_from_what_a_trial_keeps():
    sizes = {"weights": (64 * 60, 60 * 60, 60 * 10), "biases": (60, 60, 10)}
    rng = np.random.default_rng(0)
    rows, right = [], []
    for seed in range(3):
        distances = rng.uniform(0, 0.1, (2, 3))
        kept = {kind: [d * math.sqrt(n / 2) for d, n in zip(row, sizes[kind], strict=True)]
                for kind, row in zip(sizes, distances, strict=True)}  # fmt: skip
        settings = {"network": "digits-fc", "gamma": 1.0, "share": 0.25, "seed": seed}
        rows.append((settings, kept | {"move": 0.0}))
        right.append(distances)
    weights, biases = np.swapaxes(right, 0, 1)
    parts = training.observe(Table(rows))["sec2-weights"]["parts"]
    named = [key.partition(",")[0] for key in parts]
    assert named == ["hidden weights", "read-out weights", "hidden biases"]
    expected = weights[:, :-1].max(1), weights[:, -1], biases[:, :-1].max(1)
    for part, values in zip(parts.values(), expected, strict=True):
        np.testing.assert_allclose(part["values"], values, rtol=1e-12)


def _boundaries(distance: float) -> Table:
    """Five seeds whose boundary is so many decades from the corrected line."""
    rows = []
    for loss in ("mse", "cross_entropy"):
        for gamma in (None, 0.1, 1.0):
            line = critical(lambda_of(spec_of("digits-fc", gamma), "corrected", "all"))
            middle = line * 10**distance
            value = {"diverges": [middle * 0.98, middle / 0.98], "learns": [0.0, math.inf],
                     "interleaved": False, "lambda": critical(1.0) / line}  # fmt: skip
            settings = {"network": "digits-fc", "loss": loss, "gamma": gamma}
            rows += [(settings | {"seed": seed}, value) for seed in range(5)]
    return Table(rows)


@pytest.mark.parametrize(("distance", "verdict"), [(0.0, "reproduced"), (0.2, "not reproduced")])
def test_boundaries_are_judged_by_their_distance_from_a_line(distance, verdict):
    found = _boundary.observe(_boundaries(distance))
    for name in ("mse-diverges-corrected", "cross_entropy-diverges-measured", "mse-vanilla"):
        assert judge("boundary", found[name], {}).verdict == verdict
    assert judge("number", found["mse-decades-corrected"], {}).verdict == "reproduced"
    assert judge("count", found["mse-phases"], {}).verdict == "reproduced"
    assert len(tuple(_boundary.panels(_boundaries(distance), "Fig. 2a"))) == 2


def test_a_search_without_an_end_is_undecided():
    found = _boundary.observe(_boundaries(0.0))
    with np.errstate(divide="ignore"):
        judged = judge("boundary", found["cross_entropy-learns-wei2019"], {})
    assert judged.verdict == "undecided"


def test_every_claim_reads_an_experiment_of_the_paper_or_the_text():
    own = [claim for claim in claims().values() if claim.paper == "wei2019"]
    assert {c.experiment.partition("/")[0] for c in own} == {"wei2019", ""}
    assert all(c.rule == "reading" for c in own if not c.experiment)


def _heat(lowest: float, limit: float) -> Table:
    """A map whose loss is lowest at so many eta* and diverges above so many; 0.1 is lowest."""
    rows = []
    for gamma in (0.1, 1.0):
        star = critical(lambda_of(spec_of("digits-fc", gamma), PLOTTED))
        for share in 2.0 ** np.arange(-4, 3, 0.5):
            for seed in range(5):
                loss = 0.1 * gamma + 0.01 * seed + 0.05 * math.log2(share / lowest) ** 2
                row = {"network": "digits-fc", "gamma": gamma, "readout": 1.0, "seed": seed,
                       "lr": float(share * star)}  # fmt: skip
                rows.append((row, {"loss": math.inf if share > limit else loss}))
    return Table(rows)


@pytest.mark.parametrize(
    ("lowest", "limit", "verdict", "measured"),
    [
        (0.6, 1.1, "reproduced", "reproduced"),  # the limit is 2^(1/4) eta*
        (0.5, 2.1, "reproduced", "not reproduced"),
        (1.2, 2.1, "not reproduced", "reproduced"),
        (2.0, 1.5, "not reproduced", "undecided"),  # beside the first rate that diverges
        (1 / 32, 1.1, "undecided", "undecided"),  # at the end of the grid
    ],
)
def test_the_dark_band_in_two_units(lowest, limit, verdict, measured):
    found = _map.observe(_heat(lowest, limit))
    rule = claims()["wei2019/fig2a-band"]
    assert judge(rule.rule, found["band"], rule.parameters).verdict == verdict
    assert judge(rule.rule, found["band-measured"], rule.parameters).verdict == measured
    (step,) = found["small-gamma"]["parts"].values()
    assert np.all(step["values"] < 0)


def test_the_controls_start_as_the_same_function():
    def outputs(gamma, readout):
        model = ns.build(spec_of("digits-fc", gamma), 3)
        model = ns.apply_transform(model, f"scale-weights:layer3={readout:g}")
        return model.train()(torch.randn(50, 64, generator=torch.Generator().manual_seed(0)))

    for gamma, readout in _map.CONTROLS:
        torch.testing.assert_close(outputs(gamma, readout), outputs(0.1 / gamma, 1.0))
