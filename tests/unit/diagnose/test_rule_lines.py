"""Each rule just below and just above its line, on results of which one number was changed."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from normscope.diagnose import examine, findings_of
from normscope.diagnose.findings import headline, not_judged
from normscope.results import (
    Comparison,
    Examination,
    Growth,
    LayerUse,
    Modes,
    NormModes,
    Rung,
    Score,
    StabilityBound,
    StabilityLimit,
    StabilityTrial,
    Trial,
)
from normscope.results.eigenvalues import MomentSpectrum


@functools.cache
def found() -> Examination:
    """A network with batch norm, examined."""
    generator = torch.Generator().manual_seed(0)
    hidden = []
    for before in (6, 8, 8, 8):
        hidden += [nn.Linear(before, 8), nn.BatchNorm1d(8), nn.ReLU()]
    net = nn.Sequential(*hidden, nn.Linear(8, 4))
    for parameter in net.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, 0, 0.5, generator=generator)
    x = torch.randn(128, 6, generator=generator)
    return examine(net, (x, torch.arange(128) % 4), preset="standard", seed=3)


def judged(rule, results, **convention):
    """The only finding of ``rule``."""
    settings = {"loss": "cross_entropy", "batch": 128, "momentum": 0.0} | convention
    [one] = [f for f in findings_of(results, settings) if f.rule == rule]
    return one


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("factor", "expected"), [(1.01, "note"), (99.0, "note"), (101.0, "warning")]
)
def test_local_threshold(momentum, factor, expected):
    """Without a trial or training runs."""
    spectrum = found()["sharpness"]
    top, bound = spectrum.largest, float(spectrum.bounds[0])
    rate = 2 * (1 + momentum)
    one = judged("learning-rate", {"sharpness": spectrum}, lr=factor * rate / top,
                 momentum=momentum)  # fmt: skip
    assert one.severity == expected
    [shown] = one.evidence
    assert shown.value == pytest.approx(factor)
    assert shown.low == pytest.approx(factor * (top - bound) / top)
    assert shown.high == pytest.approx(factor * (top + bound) / top)


@pytest.mark.parametrize(
    ("diverges", "learns", "lr", "expected", "title", "advice"),
    [
        ((2, 3), (1, 1.5), 4.0, "problem", "diverges at the learning rate 4", "at most 0.5, half"),
        ((2, 3), (1, 1.5), 2.5, "warning", "may diverge at the learning", "at most 0.5"),
        ((2, 3), (1, 1.5), 1.8, "problem", "does not learn at the learning", "at most 0.5"),
        ((2, 3), (1, 1.5), 1.2, "warning", "may not learn at the learning", "at most 0.5"),
        ((2, 3), (1, 1.5), 1.0, "ok", "is stable at the learning rate 1", ""),
        ((0, 0.1), (0, 0.1), 0.2, "problem", "diverges at the learning rate 0.2", "No smaller"),
        ((0, 0.1), (0, 0.1), 0.01, "problem", "diverges at any learning rate", "No smaller"),
        ((2, 3), (0, 0.1), 0.01, "problem", "does not learn at any", "at most 1, half"),
        ((2, np.inf), (1, np.inf), 0.5, "ok", "is stable", ""),
    ],
)
def test_rates_beside_closed_and_open_limits(diverges, learns, lr, expected, title, advice):
    limit = StabilityLimit(
        "diverges",
        StabilityBound("diverges", *map(float, diverges)),
        StabilityBound("does-not-learn", *map(float, learns)),
        trials=(),
        complete=True,
        seconds=0.0,
    )
    [found] = findings_of({"stability": limit}, {"lr": lr})
    assert found.severity == expected
    assert title in found.title
    assert advice in found.advice
    [shown] = found.evidence
    assert np.isfinite(shown.value)
    assert np.isnan(shown.low) or shown.low < shown.value < shown.high


def test_a_network_at_its_floor_need_not_learn():
    """Trained before, to a loss below half of chance: no rate is said to fail to lower it."""
    bounds = StabilityBound("diverges", 2.0, 3.0), StabilityBound("does-not-learn", 0.0, 0.1)
    for start, expected in ((0.49, "ok"), (0.51, "problem")):
        trial = StabilityTrial(0.1, 0, False, False, 9, start, start, 1.0, False, "", np.ones(9))
        limit = StabilityLimit("diverges", *bounds, trials=(trial,), complete=True, seconds=0.0)
        assert judged("learning-rate", {"stability": limit}, lr=1.0).severity == expected
        assert judged("learning-rate", {"stability": limit}, lr=4.0).severity == "problem"


def test_rates_at_which_no_failure_was_looked_for():
    """A search that was cut short, or found no end, says nothing about larger rates."""
    bounds = [StabilityBound(name, 2.0, np.inf) for name in ("diverges", "does-not-learn")]
    limit = StabilityLimit("diverges", *bounds, trials=(), complete=False, seconds=0.0)
    assert findings_of({"stability": limit}, {"lr": 3.0}) == ()
    assert judged("learning-rate", {"stability": limit}, lr=1.5).severity == "ok"


def rated(values, **convention):
    """The findings about a rate of 3 against a threshold of 2."""
    top = found()["sharpness"].largest
    spectrum = replace(found()["sharpness"], values=found()["sharpness"].values / top)
    return findings_of({"sharpness": spectrum, **values}, {"lr": 3.0} | convention)


def test_below_the_threshold_nothing_is_said():
    """Networks diverge below it as well: only a trial or training runs can tell."""
    assert rated({}, lr=1.9) == ()


def tried(*rungs, before=2.3, constant=2.3):
    """Trials, each (factor, updates, last loss)."""
    made = tuple(Rung(f, n, n, before, after, (before, before, before)) for f, n, after in rungs)
    return Trial(3.0, constant, math.nan, before, made)


@pytest.mark.parametrize(
    ("rungs", "severity", "words"),
    [
        ([(1, 25, math.inf), (0.1, 25, 1.5)], "problem", "too large: 25 updates take the loss fr"),
        ([(1, 1, math.inf), (0.1, 25, 1.5)], "problem", "too large: 1 update takes the loss from"),
        ([(1, 25, 9.0), (0.1, 25, 1.5)], "problem", "from 2.30 to 9.00; at a rate 10 times"),
        ([(1, 25, 2.0), (0.1, 25, 2.3 * 0.65)], "warning", "too large"),
        ([(1, 25, 1.5), (0.1, 25, 1.5 - 2.3 * 0.09)], "ok", "learns at the learning rate 3"),
        ([(1, 25, math.inf), (0.1, 25, 2.4)], "problem", "diverges .* smaller rates do not train"),
        (
            [(1, 25, math.inf), (0.1, 25, 2.29), (0.1, 100, 1.0)],
            "problem",
            "100 updates take it to 1.00",
        ),
        ([(1, 25, 2.31), (0.1, 25, 2.31), (0.01, 25, 1.9)], "problem", "100 times smaller"),
        ([(1, 25, 2.29), (0.1, 25, 2.3), (1000, 25, 1.0)], "warning", "too small.*1000 times larg"),
        ([(1, 25, 1.6), (0.1, 25, 2.0)], "ok", "learns"),
    ],
)
def test_a_trial_decides_on_the_rate(rungs, severity, words):
    [one] = [f for f in rated({"trial": tried(*rungs)}) if f.rule == "learning-rate"]
    assert one.severity == severity
    assert re.search(words, one.title)
    assert [e.source for e in one.evidence] == ["trial", "sharpness"]  # both are evidence


def test_a_trained_network_at_its_floor_is_left_in_peace():
    """It may lose a tenth of the constant's loss, and no larger rate is advised."""
    for after, severity in ((0.004, "ok"), (0.2, "ok"), (0.3, "problem")):
        made = tried((1, 25, after), (0.1, 25, 0.002), before=0.002)
        [one] = [f for f in rated({"trial": made}) if f.rule == "learning-rate"]
        assert one.severity == severity


def test_no_learning_is_said_after_a_long_trial_only_and_if_nothing_else_warns():
    long = (1, 25, 2.3), (0.1, 25, 2.3), (1, 100, 2.3)
    assert {f.rule for f in rated({"trial": tried(*long[:2])}) if f.warns} == set()
    assert {f.rule for f in rated({"trial": tried(*long)}) if f.warns} == {"no-learning"}
    failing = tried((1, 25, math.inf), *long[1:])
    assert {f.rule for f in rated({"trial": failing}) if f.warns} == {"learning-rate"}


@pytest.mark.parametrize(
    ("learns", "words"),
    [((20.0, 30.0), "is stable"), ((0.5, 0.6), "diverges"), ((1.0, np.inf), "above the local")],
)
def test_one_finding_about_the_rate(learns, words):
    """Where training runs have decided, the curvature is evidence only."""
    bounds = StabilityBound("diverges", *learns), StabilityBound("does-not-learn", *learns)
    limit = StabilityLimit("diverges", *bounds, trials=(), complete=True, seconds=0.0)
    [one] = rated({"stability": limit})
    assert words in one.title
    assert {e.source for e in one.evidence} == {"stability", "sharpness"}


def gradients(slope, *, scatter=0.0):
    """Layers whose squared gradient norm falls by ``slope`` decades from one to the next."""
    layers = found()["gradients"].layers
    sizes = [10 ** (-(slope * x.number + scatter * (-1) ** x.number) / 2) for x in layers]
    made = tuple(
        replace(x, std=size / np.prod(x.shape) ** 0.5)
        for x, size in zip(layers, sizes, strict=True)
    )
    return replace(found()["gradients"], layers=made)


@pytest.mark.parametrize(
    ("slope", "scatter", "expected"),
    [(0.97, 0, "ok"), (1.03, 0, "note"), (-2.0, 0, "ok"), (1.03, 9.0, "ok")],
)
def test_explosion_over_three_layers(slope, scatter, expected):
    """Hidden layers 1 to 4: three steps, three decades at a slope of 1."""
    results = {"layout": found()["layout"], "gradients": gradients(slope, scatter=scatter)}
    one = judged("bn-gradient-explosion", results)
    assert one.severity == expected
    assert one.evidence[0].value == pytest.approx(3 * slope, abs=1e-9 if not scatter else 30)
    if not scatter:
        assert one.evidence[1].value == pytest.approx(10**slope)


def test_entries_of_wide_layers_are_small_without_an_explosion():
    """Equal norms: the later layers have a thousand and a million times as many weights."""
    even = gradients(0.0)
    shapes = [(8 * 32**i, 8 * 32**i) for i in range(len(even.layers))]
    wide = [replace(x, shape=shape, std=1 / shape[0])
            for x, shape in zip(even.layers, shapes, strict=True)]  # fmt: skip
    results = layout() | {"gradients": replace(even, layers=tuple(wide))}
    one = judged("bn-gradient-explosion", results)
    assert one.severity == "ok"
    assert one.evidence[0].value == pytest.approx(0, abs=1e-9)


def layout(**changes):
    return {"layout": replace(found()["layout"], **changes)}


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({}, "ok", "its output is not"),
        ({"output_norm": "9", "last_input_norm": None}, "ok", "outputs are normalized"),
        ({"output_norm": "1"}, "ok", "outputs are normalized"),
        ({"last_input_norm": None}, "note", "input of the last layer is not"),
        ({"last_input_power": 9.9}, "ok", "its output is not"),
        ({"last_input_power": 10.1}, "note", "input of the last layer is not"),
    ],
)
def test_last_layer(changes, expected, words):
    one = judged("last-layer-unnormalized", layout(**changes))
    assert one.severity == expected
    if expected == "note":  # what is shown is the reason
        assert one.evidence[0].value > one.evidence[0].threshold
        assert len(one.evidence) == 1 + ("last_input_power" in changes)
    if "output_norm" in changes:  # '1' is a batch norm
        assert ("is removed" in one.meaning) == (changes["output_norm"] == "1")
    assert words in one.title


@pytest.mark.parametrize(("hidden", "judged_"), [(12, True), (13, False)])
def test_few_norms_say_nothing_about_the_last_layer(hidden, judged_):
    results = layout(normalized=4, hidden_layers=hidden)
    found = [f for f in findings_of(results, {}) if f.rule == "last-layer-unnormalized"]
    assert bool(found) == judged_


@pytest.mark.parametrize(
    ("norm", "power", "expected"),
    [("1", 9.9, "ok"), ("1", 10.1, "note"), (None, 1.0, "note"), ("1", np.nan, "ok")],
)
def test_another_head(norm, power, expected):
    state = "raw" if norm is None else "act"
    other = LayerUse("other", "linear", 5, state, norm, head=True, power=power)
    one = judged("last-layer-unnormalized", layout(layers=(*found()["layout"].layers, other)))
    assert (one.severity, one.layer) == (expected, "other" if expected == "note" else None)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("norm norm norm raw", "note"),  # the only one without a norm
        ("norm raw norm raw", "ok"),  # every second one is: it is as the others
        ("norm raw raw raw", "note"),
    ],
)
def test_a_head_one_layer_behind_a_norm(states, expected):
    first, *rest = found()["layout"].layers
    rest = [replace(x, state=s, norm="1" if s == "norm" else None)
            for x, s in zip(rest, states.split(), strict=True)]  # fmt: skip
    results = layout(
        layers=(first, *rest), last_input_norm=None, normalized=states.split().count("norm") + 1
    )
    assert judged("last-layer-unnormalized", results).severity == expected
    assert results["layout"].everywhere == (states != "norm raw raw raw")


def test_gates_and_parallel_layers_are_no_steps_of_depth():
    """Gradients explode in a gate, and in one of two layers side by side: not with depth."""
    even = gradients(0.0).layers
    gate = replace(even[0], name="gate", number=3, std=1e9)
    results = {"gradients": replace(gradients(0.0), layers=(*even, gate))}
    results |= layout(side=("gate",))
    assert judged("bn-gradient-explosion", results).evidence[0].value == pytest.approx(0, abs=1e-9)
    steep = gradients(1.03).layers  # a warning by itself
    flat = [replace(x, name=f"{x.name}b", std=10 ** (x.number / 2) / np.prod(x.shape) ** 0.5)
            for x in steep[:-1]]  # fmt: skip
    results = layout() | {"gradients": replace(gradients(0.0), layers=(*steep, *flat))}
    one = judged("bn-gradient-explosion", results)
    assert one.evidence[0].value == pytest.approx(3 * (1.03 - 1) / 2)  # the mean of the two


@pytest.mark.parametrize("residuals", [0, 3])
def test_skip_connections_that_are_there_are_not_advised(residuals):
    results = layout(residuals=residuals) | {"gradients": gradients(2.0)}
    one = judged("bn-gradient-explosion", results)
    assert ("skip connections" in one.advice) == (not residuals)


def test_growth_is_fitted_without_gates():
    activations = found()["activations"]
    gates = [replace(activations.outputs[0], name=f"gate{n}", number=n,
                     variance=np.full(8, 10.0 ** (9 * n))) for n in range(1, 5)]  # fmt: skip
    wild = replace(activations, signals=(*activations.signals, *gates))
    results = {"activations": wild} | layout(side=tuple(g.name for g in gates))
    [fit] = [g for g in activations.growth if g.which == "all"]
    assert judged("signal-growth", results).evidence[0].value == pytest.approx(4 * fit.slope)


def test_dead_units_of_a_gate_are_left_alone():
    names = tuple(s.name for s in found()["activations"].rectified)
    results = rectified(10, 0) | layout(side=names[:-1])
    assert judged("dead-units", results).layer == names[-1]
    results = rectified(10, 0) | layout(side=names)
    assert not [f for f in findings_of(results, {"batch": 128}) if f.rule == "dead-units"]


@pytest.mark.parametrize(("share", "said"), [(0.49, True), (0.51, False)])
def test_less_than_half_of_the_parameters_is_not_judged(share, said):
    plan = replace(found().plan, coverage=share)
    part = not_judged(plan, found().measurements, found().findings)
    assert [f.severity for f in part] == ["unjudged"] * said


def modes(*changes, batch=0.2, running=0.2, recomputed=None, **more):
    """Norms with statistics that fit, and these changes; the best constant loses 1."""
    fit = {"updates": 50, "momentum": 0.1, "mean_gap": 0.1, "variance_gap": 1.0, "initial": 0.01}
    made = [
        NormModes(str(place), "BatchNorm1d", **({"values": 9} | fit | c))
        for place, c in enumerate(changes or ({},))
    ]
    scores = {"train": Score(batch), "batch": Score(batch), "running": Score(running)}
    remade = None if recomputed is None else Score(recomputed)
    return {"modes": Modes(**(scores | {"recomputed": remade, "norms": tuple(made)} | more))}


def evaluated(results, rule="running-statistics", **more):
    return judged(rule, results, **({"chance": 1.0} | more))


@pytest.mark.parametrize(
    ("changes", "losses", "expected", "layer"),
    [
        ([{}, {}], (0.2, 9.0), "ok", None),  # nothing that statistics explain
        ([{}, {"mean_gap": 9.0}], (0.2, 0.34), "ok", None),
        ([{}, {"mean_gap": 9.0}], (0.2, 0.36), "warning", "1"),
        ([{}, {"mean_gap": 0.99}], (0.2, 0.36), "ok", None),
        ([{}, {"mean_gap": 1.01}], (0.2, 0.36), "warning", "1"),
        ([{"variance_gap": 1.98}, {}], (0.2, 0.36), "ok", None),
        ([{"variance_gap": 2.02}, {}], (0.2, 0.36), "warning", "0"),
        ([{"mean_gap": 9.0}], (0.01, 0.059), "ok", None),  # more than twice, but little
        ([{"mean_gap": 9.0}], (0.01, 0.061), "warning", "0"),
        ([{"mean_gap": 9.0}], (0.06, 0.115), "ok", None),  # less than twice
        ([{"mean_gap": 9.0}], (0.2, 0.49), "warning", "0"),
        ([{"mean_gap": 9.0}], (0.2, 0.51), "problem", "0"),
        ([{"mean_gap": 9.0}], (0.2, math.nan), "problem", "0"),
        ([{"mean_gap": 9.0}], (0.6, 0.9), "warning", "0"),
        ([{"initial": 0.051, "mean_gap": 9.0}], (0.6, 0.9), "note", "0"),
        ([{"initial": 0.051, "mean_gap": 9.0, "updates": 19}], (0.6, 0.9), "ok", None),
        ([{"initial": 0.051, "mean_gap": 9.0}], (0.6, 0.6), "ok", None),
        ([{"initial": 0.049, "mean_gap": 9.0}], (0.6, 0.9), "warning", "0"),
        ([{"initial": 0.9, "mean_gap": 9.0}], (0.49, 0.9), "problem", "0"),
        ([{"initial": 0.9, "mean_gap": 9.0}], (0.51, 0.9), "note", "0"),
        ([{}, {"initial": 0.051}], (0.2, 0.36), "warning", "0"),  # held initial values explain it
        ([{}, {"initial": 0.049}], (0.2, 0.36), "ok", None),
        ([{"initial": 0.9}, {}, {"mean_gap": 9.0}], (0.6, 0.9), "warning", "2"),
        ([{"initial": 1.0, "mean_gap": math.inf}], (0.6, math.nan), "warning", "0"),
    ],
)
def test_running_statistics(changes, losses, expected, layer):
    one = evaluated(modes(*changes, batch=losses[0], running=losses[1]))
    assert (one.severity, one.layer) == (expected, layer)


@pytest.mark.parametrize(
    ("batch", "running", "left", "expected"),
    [(0.2, 0.6, 0.45, "ok"), (0.2, 0.6, 0.35, "warning"), (0.1, 0.34, 0.11, "warning"),
     (0.1, 0.31, 0.11, "note"), (0.1, 0.19, 0.11, "ok")],
)  # fmt: skip
def test_small_distances_where_recomputing_helps(batch, running, left, expected):
    one = evaluated(modes(batch=batch, running=running, recomputed=left), chance=1.5)
    assert one.severity == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"initial": 1.0, "updates": 0}] * 2, "never updated, or not averaged"),
        ([{"initial": 1.0, "updates": 50, "momentum": 0.0}] * 2, "momentum 0 never"),
        ([{"initial": 1.0, "updates": 0}, {}], "those of '0' were never updated"),
        ([{"initial": 0.8, "momentum": 0.001}] * 2, "momentum 0.001 is too small for 50 updates"),
        ([{"momentum": math.nan}], "averages all batches since the start"),
        ([{}], "other data"),
    ],
)
def test_the_cause_of_statistics_that_do_not_fit(changes, words):
    changes = [{"mean_gap": 9.0} | c for c in changes]
    one = evaluated(modes(*changes, running=0.9, recomputed=0.25))
    assert words in one.meaning
    assert "the loss is 0.25 in evaluation mode, before 0.9" in one.meaning
    assert "recompute-statistics" in one.advice
    again = evaluated(modes({"mean_gap": 9.0}, running=0.9, recomputed=0.9), batch=15)
    assert "batches of 15 scatter" in again.meaning


@pytest.mark.parametrize(
    ("samples", "batch", "expected"), [(15, 0.46, "warning"), (16, 0.46, "ok"), (15, 0.34, "ok")]
)
def test_batches_too_small_for_batch_norm(samples, batch, expected):
    one = evaluated(modes(batch=batch, running=0.2), batch=samples)
    assert one.severity == expected


def test_without_a_constant_the_loss_must_double():
    for running, expected in ((0.39, "ok"), (0.41, "warning")):
        one = evaluated(modes({"mean_gap": 9.0}, running=running), chance=math.nan)
        assert one.severity == expected


def test_the_larger_gap_of_running_statistics_is_shown_first():
    for changes, shown in (({"mean_gap": 1.2}, 1.2), ({"mean_gap": 1.2, "variance_gap": 9.0}, 9.0)):
        one = evaluated(modes(changes, running=0.9))
        gaps = [e for e in one.evidence if "variances" in e.quantity or "means" in e.quantity]
        assert gaps[0].value == shown > gaps[0].threshold
        assert one.evidence[0].value == 0.9 > one.evidence[0].threshold


@pytest.mark.parametrize(
    ("train", "thawed", "off", "initial", "expected"),
    [(0.5, 0.2, 1, 0.0, "warning"), (0.34, 0.2, 1, 0.0, "ok"), (0.5, 0.2, 0, 0.0, "ok"),
     (0.21, 0.2, 1, 1.0, "warning"), (0.21, 0.2, 0, 1.0, "ok")],
)  # fmt: skip
def test_frozen_norms_that_do_not_fit(train, thawed, off, initial, expected):
    frozen = {"frozen": True, "initial": initial}
    changes = [{**frozen, "mean_gap": 9.0}] * off + [frozen] * 2
    results = modes(*changes, thawed=Score(thawed), train=Score(train))
    one = evaluated(results, "frozen-norms")
    assert one.severity == expected
    assert not [f for f in findings_of(results, {}) if f.rule == "running-statistics"]


@pytest.mark.parametrize(("batch", "expected"), [(0.2, "note"), (0.34, "note"), (0.36, "warning")])
def test_statistics_that_move_behind_frozen_weights(batch, expected):
    results = modes({"trainable": False}, {}, batch=batch)
    assert evaluated(results, "statistics-still-move").severity == expected
    for harmless in ({"trainable": False, "affine": False}, {"trainable": False, "frozen": True}):
        found = findings_of(modes(harmless, batch=batch), {"chance": 1.0})
        assert "statistics-still-move" not in {f.rule for f in found}


@pytest.mark.parametrize(
    ("loss", "more", "expected"),
    [
        (0.34, {"shift": 9.0}, "ok"),
        (0.36, {"shift": 0.49, "scale_shift": 1.9}, "note"),
        (0.36, {"shift": 0.51, "scale_shift": 1.0}, "warning"),
        (0.36, {"shift": 0.1, "scale_shift": 2.1}, "warning"),
        (0.36, {"shift": 0.1, "scale_shift": 0.49}, "warning"),
        (0.36, {}, "note"),
        (0.6, {"eval_recomputed": Score(0.39)}, "warning"),
        (0.6, {"eval_recomputed": Score(0.41)}, "note"),
        (1.6, {"running": 0.99, "eval_recomputed": Score(1.0)}, "warning"),
        (0.2, {"running": 0.04, "eval_recomputed": Score(0.1)}, "warning"),
        (0.18, {"running": 0.04, "eval_recomputed": Score(0.1)}, "note"),  # as overfitting gives
    ],
)
def test_evaluation_data(loss, more, expected):
    one = evaluated(modes(eval_running=Score(loss), **more), "evaluation-data")
    assert one.severity == expected


def test_evaluation_data_of_a_network_that_knows_nothing_yet():
    results = modes(running=1.01, eval_running=Score(1.6), eval_recomputed=Score(1.02))
    assert "evaluation-data" not in {f.rule for f in findings_of(results, {"chance": 1.0})}
    results = modes(running=1.01, eval_running=Score(1.6), eval_recomputed=Score(0.85))
    assert evaluated(results, "evaluation-data").severity == "warning"


def test_a_model_that_cannot_be_run_in_evaluation_mode():
    one = evaluated(modes(running=0.2, reason="no (batch 0)"), "evaluation-mode")
    assert one.severity == "note"
    assert "no (batch 0)." in one.meaning


@pytest.mark.parametrize(
    ("gammas", "ratio", "expected", "layer"),
    [
        ((1.0, 1.0), None, "ok", None),
        ((1.0, 1.99), None, "ok", None),
        ((1.0, 2.01), None, "note", "4"),
        ((2.01, 2.01), None, "note", None),
        ((1.0, 1.0), 5.0, "ok", None),
        ((1.0, 1.5), 1.01, "note", "4"),
        ((1.0, 1.5), 2.3, "ok", None),  # as it would be at gamma 1
        ((1.0, 1.5), 0.99, "ok", None),
        ((3.0, 1.0), 1.01, "warning", "1"),
        ((3.0, 1.0), 0.99, "note", "1"),
    ],
)
def test_gamma(gammas, ratio, expected, layer):
    kept = zip(found()["layout"].norms, gammas, strict=False)
    results = layout(norms=tuple(replace(norm, gamma=gamma) for norm, gamma in kept))
    if ratio is not None:
        normed, plain = found()["prediction"]
        top = plain.lambda_max_split or plain.lambda_max
        results["prediction"] = [replace(normed, lambda_max_split=ratio * top), plain]
        for measured, confirmed in ((1.9, True), (0.51, True), (2.1, False), (0.49, False)):
            beside = Comparison(1.0, measured, 0.0, 1.0, 1.0, measured)
            one = judged("gamma-sharpens", results | {"comparison": beside})
            if confirmed:
                assert (one.severity, one.layer) == (expected, layer)
            else:  # a prediction that the measurement refutes is no evidence
                assert len(one.evidence) == 1
                assert one.severity == ("note" if max(gammas) >= 2 else "ok")
        return
    one = judged("gamma-sharpens", results)
    assert (one.severity, one.layer) == (expected, layer)


@pytest.mark.parametrize(
    ("place", "kappa", "expected"),
    [(1, 39, "ok"), (1, 41, "note"), (0, 1e9, "ok"), (-1, 1e9, "ok")],
)
def test_conditioning_of_inner_layers(place, kappa, expected):
    """8 inputs and 1 output: the line is at 5 x 8.

    The first layer's inputs are the data's own, the last layer is singular under softmax.
    """
    layers = list(found()["conditioning"].layers)
    flat = MomentSpectrum.of(np.ones(1))
    layers = [replace(x, inputs=flat, gradients=flat, rows=128) for x in layers]
    steep = MomentSpectrum.of(np.array([1.0, *[1 / kappa] * 7]))
    layers[place] = replace(layers[place], inputs=steep)
    results = {"conditioning": replace(found()["conditioning"], layers=tuple(layers))}
    assert judged("ill-conditioned-layer", results).severity == expected


def test_gradients_behind_a_layer_are_no_fault_of_its_inputs():
    layers = list(found()["conditioning"].layers)
    steep, mild = (MomentSpectrum.of(np.array([1.0, *[1 / kappa] * 7])) for kappa in (1e5, 5))
    for inputs, behind, said in (
        (steep, mild, "Normalize the inputs"), (mild, steep, "not its inputs"),
    ):  # fmt: skip
        layers[1] = replace(layers[1], inputs=inputs, gradients=behind, rows=128)
        results = {"conditioning": replace(found()["conditioning"], layers=tuple(layers))}
        one = judged("ill-conditioned-layer", results)
        assert said in one.advice
        assert [e.value for e in one.evidence[2:]] == [inputs.kappa(0.5), behind.kappa(0.5)]


@pytest.mark.parametrize(("power", "expected"), [(9.9, "ok"), (10.1, "note")])
def test_input_of_the_last_layer(power, expected):
    *before, last = found()["conditioning"].layers
    size = len(last.inputs.values)
    values = np.array([power * size, *np.ones(size - 1)])
    changed = replace(last, inputs=replace(last.inputs, values=values))
    results = {"conditioning": replace(found()["conditioning"], layers=(*before, changed))}
    assert judged("last-layer-input", results).severity == expected


@pytest.mark.parametrize(("share", "expected"), [(0.49, "ok"), (0.51, "note")])
def test_share_of_the_mean_gradients(share, expected):
    outliers = found()["outliers"]
    changed = replace(outliers, span=share * float(outliers.values[0]))
    assert judged("pathological-sharpness", {"outliers": changed}).severity == expected


@pytest.mark.parametrize(
    ("predicted", "probability", "expected"),
    [(0.89, 0.9, "ok"), (0.91, 0.49, "ok"), (0.91, 0.51, "note")],
)
def test_favoured_class(predicted, probability, expected):
    outputs = replace(
        found()["gradients"].outputs,
        predicted=np.array([predicted, 1 - predicted, 0, 0]),
    )
    outputs = replace(outputs, probability=np.array([probability, *[(1 - probability) / 3] * 3]))
    results = {"gradients": replace(found()["gradients"], outputs=outputs)}
    assert judged("favoured-class", results).severity == expected


@pytest.mark.parametrize(
    ("loss", "gap", "noise", "expected"),
    [
        (0.6, 0.01, 0.149, "ok"),  # not below half of chance: the loss tells nothing yet
        (0.6, 0.01, 0.151, "note"),
        (0.6, 0.2, 0.1, "warning"),  # but what is seen in it is seen
        (0.4, 0.01, 0.9, "ok"),
        (0.01, 0.009, 0.9, "ok"),  # 90 % of next to nothing
        (0.01, 0.011, 0.9, "warning"),
    ],
)
def test_batch_size_beside_chance(loss, gap, noise, expected):
    result = found()["regularization"]
    [layer] = result.layers
    scale = 0.01 / float(layer.paper[-1])
    fields = {name: getattr(layer, name) * scale for name in ("zeta_mean", "zeta_deviation")}
    fields["deviation_variance"] = np.full_like(layer.deviation_variance, noise**2)
    result = replace(result, layers=(replace(layer, **fields),), everywhere=np.array([gap]),
                     population_loss=loss, everywhere_error=np.zeros(1))  # fmt: skip
    results = {"regularization": result, "layout": found()["layout"]}
    size = int(result.batch_sizes[-1])
    assert judged("batch-size", results, batch=size, chance=1.0).severity == expected


def test_few_samples_at_the_start_are_never_called_fine():
    result = found()["regularization"]
    results = {"regularization": result, "layout": found()["layout"]}
    few = replace(result, batch_sizes=np.array([15]), population_loss=1.0,
                  everywhere=np.zeros(1), everywhere_error=np.zeros(1))  # fmt: skip
    [layer] = result.layers
    quiet = replace(layer, deviation_variance=np.zeros_like(layer.deviation_variance))
    results["regularization"] = replace(few, layers=(quiet,))
    one = judged("batch-size", results, batch=15, chance=1.0)
    assert one.severity == "note"
    assert [(e.quantity, e.value, e.threshold) for e in one.evidence] == [
        ("samples in a batch", 15, 16)]  # fmt: skip
    assert judged("batch-size", results, batch=16, chance=1.0).severity == "ok"


@pytest.mark.parametrize(
    ("gap", "error", "paper", "expected"),
    [
        (0.12, 0.009, 0.1, "warning"),
        (0.12, 0.011, 0.1, "note"),  # not known well enough
        (0.09, 0.004, 0.1, "ok"),
        (0.09, 0.006, 0.1, "note"),
        (9e-4, 1e-4, 2.6e-4, "ok"),  # by four batch norms, of which one was looked at
        (9e-4, 1e-4, 2.4e-4, "note"),
        (1.1e-3, 1e-4, 2.4e-4, "ok"),
    ],
)
def test_batch_size(gap, error, paper, expected):
    """Shares of a loss of 1, at the batch size that was measured."""
    result = found()["regularization"]
    [layer] = result.layers
    scale = paper / float(layer.paper[-1])
    fields = ("zeta_mean", "zeta_deviation")
    layer = replace(layer, **{name: getattr(layer, name) * scale for name in fields})
    assert layer.paper[-1] == pytest.approx(paper)
    result = replace(result, layers=(layer,), everywhere=np.array([gap]), population_loss=1.0,
                     everywhere_error=np.array([error]))  # fmt: skip
    results = {"regularization": result, "layout": found()["layout"]}
    assert judged("batch-size", results, batch=int(result.batch_sizes[-1])).severity == expected
    large = judged("batch-size", results, batch=2 * int(result.batch_sizes[-1]))
    assert large.evidence[0].threshold in (0.1, 0.001)
    values = {round(e.value, 6) for e in large.evidence}
    assert round(gap / 2, 6) in values  # it falls like 1 / batch size


def test_a_trained_network_without_noise_and_one_with_much():
    """The same gap beside the loss itself: hardly any, and nearly all of it."""
    result = found()["regularization"]
    [layer] = result.layers
    none = {name: 0 * getattr(layer, name) for name in ("zeta_mean", "zeta_deviation")}
    for gap, expected in ((5e-6, "note"), (9e-3, "ok")):
        quiet = replace(result, layers=(replace(layer, **none),), everywhere=np.array([gap]),
                        population_loss=0.01, everywhere_error=np.zeros(1))  # fmt: skip
        results = {"regularization": quiet, "layout": found()["layout"]}
        size = int(result.batch_sizes[-1])
        assert judged("batch-size", results, batch=size, chance=1.0).severity == expected


def growth(slope, error=0.0, factor_layers=8):
    fit = Growth("all", slope, error, 0.0, factor_layers)
    return {"activations": replace(found()["activations"], growth=(fit,))}


@pytest.mark.parametrize(
    ("slope", "error", "expected", "words"),
    [
        (0.74, 0.0, "ok", ""),
        (0.76, 0.0, "note", "grow"),
        (-0.76, 0.0, "note", "vanish"),
        (-0.74, 0.0, "ok", ""),
        (0.76, 0.4, "ok", ""),  # not clear
        (8.0, 0.0, "note", "grow"),  # float32 ends within twice the depth
    ],
)
def test_growth_over_four_steps(slope, error, expected, words):
    """Layers 1 to 5: three decades are 0.75 a layer."""
    one = judged("signal-growth", growth(slope, error))
    assert one.severity == expected
    assert one.evidence[0].value == pytest.approx(4 * slope)
    assert ("overflows" in one.meaning) == (expected != "ok" and slope > 0)
    if expected != "ok":
        assert words in one.title
        [scale] = re.findall(r"initial weights by ([0-9.e-]+)", one.advice)
        assert float(scale) == pytest.approx(10 ** (-slope / 2), rel=0.05)  # undoes it
        normalized = judged("signal-growth", growth(slope, error) | layout())
        assert "initial weights" not in normalized.advice  # their scale has no effect


def rectified(dead, full):
    units = 20
    signals = []
    for s in found()["activations"].signals:
        if s in found()["activations"].rectified:
            ends = {"maximum": np.ones(units), "minimum": -np.ones(units)}
            ends["maximum"][:dead] = 0.0
            ends["minimum"][units - full :] = 0.5
            signals.append(replace(s, **ends))
        else:
            signals.append(s)
    return {"activations": replace(found()["activations"], signals=tuple(signals))}


@pytest.mark.parametrize(
    ("dead", "full", "expected", "words"),
    [(1, 0, "ok", ""), (2, 0, "note", "10% of the units of a layer are dead"),
     (17, 0, "note", "dead"), (18, 0, "warning", "A layer is dead: 90%"),
     (0, 4, "ok", ""), (0, 5, "note", "always active")],
)  # fmt: skip
def test_dead_and_full_units(dead, full, expected, words):
    one = judged("dead-units", rectified(dead, full))
    assert one.severity == expected
    assert words in one.title


@pytest.mark.parametrize(("units", "judged_"), [(7, False), (8, True)])
def test_layers_of_few_units_are_not_called_dead(units, judged_):
    signals = tuple(
        replace(s, **{n: getattr(s, n)[:1].repeat(units)
                      for n in ("mean", "variance", "minimum", "maximum")})
        for s in rectified(20, 0)["activations"].signals
    )  # fmt: skip
    results = {"activations": replace(found()["activations"], signals=signals)}
    said = [f for f in findings_of(results, {"batch": 128}) if f.rule == "dead-units"]
    assert bool(said) == judged_


@pytest.mark.parametrize(("excess", "expected"), [(0.99, "ok"), (1.01, "note")])
@pytest.mark.parametrize("samples", [128, 36])
def test_alignment(samples, excess, expected):
    """Linear layers: 0.4, or what terms of random sign reach."""
    line = max(0.4, 3 / samples**0.5)
    layers = tuple(replace(x, t1=1.0, t4=line * excess) for x in found()["gradients"].layers)
    results = {"gradients": replace(found()["gradients"], layers=layers)}
    assert judged("input-independent-gradients", results, batch=samples).severity == expected


def test_headline_numbers_are_those_of_the_measurements():
    bounds = StabilityBound("diverges", 2.0, 3.0), StabilityBound("does-not-learn", 1.0, 1.5)
    limit = StabilityLimit("diverges", *bounds, trials=(), complete=True, seconds=0.0)
    shown = {n.quantity: n for n in headline({"stability": limit}, {})}
    assert (shown["diverges at"].low, shown["diverges at"].high) == (2, 3)
    assert (shown["stops learning above"].low, shown["stops learning above"].high) == (1, 1.5)


def test_nothing_is_ok_about_layers_that_were_not_looked_at():
    activations = found()["activations"]
    for share, expected in ((0.26, {"ok"}), (0.24, set())):
        partly = replace(activations, coverage=replace(activations.coverage, parameters=share))
        judged_ok = findings_of({"activations": partly}, {"batch": 128})
        assert {f.severity for f in judged_ok} == expected


@pytest.mark.parametrize(("unused", "expected"), [((), "ok"), ((1, 2), "warning")])
def test_unused_norms(unused, expected):
    kept = [replace(n, used=i not in unused) for i, n in enumerate(found()["layout"].norms)]
    one = judged("unused-norm", layout(norms=tuple(kept)))
    assert one.severity == expected
    if unused:
        assert one.advice.startswith("Call '4', '7' in forward")
        assert one.evidence[0].value == 2
