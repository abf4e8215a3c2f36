"""Every rule finds a network built to have its trouble, and is silent on one built not to."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_setup_rules import LINES
from torch import nn

import normscope as ns
from normscope.diagnose import examine, findings_of, suggest_lr, what_if
from normscope.diagnose.rules import RULES
from normscope.measure.probes.layout import norm_layout
from normscope.measure.regularization import bn_regularization
from normscope.results import SEVERITIES, Examination
from normscope.train.stability import max_stable_lr

SAMPLES, FEATURES, CLASSES = 256, 12, 4


def data(samples=SAMPLES, *, mean=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64) + mean
    return x, torch.randint(CLASSES, (samples,), generator=generator)


def drawn(model, seed=0, *, gain=2.0):
    """He initialization from a seed, biases zero."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, (gain / layer.in_features) ** 0.5, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def mlp(depth=3, width=24, *, norm=None, act=nn.ReLU, gain=2.0, bare=()):
    layers, before = [], FEATURES
    for index in range(depth - 1):
        layers += [nn.Linear(before, width), act()]
        if norm is not None and index not in bare:
            layers.insert(-1, norm(width))
        before = width
    return drawn(nn.Sequential(*layers, nn.Linear(before, CLASSES)), gain=gain)


def with_bias(model, value, index=0):
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        layers[index].bias[: len(layers[index].bias) // 2] += value
    return model


def with_last_bias(model):
    with torch.no_grad():
        [m for m in model.modules() if isinstance(m, nn.Linear)][-1].bias[0] += 30
    return model


def scaled(model, factor, *, last=False):
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for layer in layers[-1:] if last else layers[:-1]:
        layer.weight.data *= factor
    return model


def with_gamma(model, gamma):
    return ns.apply_transform(model, f"gamma={gamma}")


def with_statistics(model, mean):
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.num_batches_tracked += 50
            layer.running_mean.fill_(mean)
            layer.running_var.fill_(0.01)
    return model


def updated(model):
    """Running statistics that are those of the data."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = None
    with torch.no_grad():
        model.train()(data()[0])
    return model


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.forgotten = mlp(norm=nn.BatchNorm1d), nn.BatchNorm1d(7)

    def forward(self, x):
        return self.body(x)


class Correlated(nn.Module):
    """Signals of which nearly all lies in one direction."""

    def __init__(self):
        super().__init__()
        self.body = mlp(act=nn.Tanh)
        self.mix = 1e-4 * torch.eye(FEATURES) + torch.ones(FEATURES, FEATURES)

    def forward(self, x):
        return self.body(x @ self.mix)


# rule -> (network that has it, network that has not, settings of both, settings of each)
FAST = {
    "learning-rate": (mlp, mlp, {"lr": 50.0}, {"lr": 0.5}),
    "last-layer-unnormalized": (
        lambda: mlp(4, norm=nn.BatchNorm1d, bare=(2,)),
        lambda: mlp(4, norm=nn.BatchNorm1d),
        {},
        {},
    ),
    "signal-growth": (lambda: mlp(12, gain=20.0), lambda: mlp(12), {}, {}),
    "input-independent-gradients": (
        lambda: with_last_bias(with_bias(mlp(6, 60), 1.0)),
        lambda: mlp(3, 24, act=nn.Tanh),
        {},
        {},
    ),
    "dead-units": (lambda: with_bias(mlp(), -50.0), mlp, {}, {}),
    "favoured-class": (lambda: with_last_bias(mlp()), mlp, {}, {}),
    "weight-domination": (lambda: scaled(mlp(norm=nn.BatchNorm1d), 1e4), mlp, {}, {}),
    "bn-gradient-explosion": (
        lambda: mlp(40, 48, norm=nn.BatchNorm1d),
        lambda: mlp(4, norm=nn.BatchNorm1d),
        {},
        {},
    ),
    "gamma-sharpens": (
        lambda: with_gamma(mlp(norm=nn.BatchNorm1d), 4.0),
        lambda: mlp(norm=nn.BatchNorm1d),
        {},
        {},
    ),
    "running-statistics": (
        lambda: with_statistics(mlp(norm=nn.BatchNorm1d), 3.0),
        lambda: updated(mlp(norm=nn.BatchNorm1d)),
        {},
        {},
    ),
    "unused-norm": (Unused, lambda: mlp(norm=nn.BatchNorm1d), {}, {}),
}
STANDARD = {
    "pathological-sharpness": (
        lambda: mlp(4, 200),
        lambda: ns.apply_transform(mlp(4, 200), "norm-output"),
    ),
    "ill-conditioned-layer": (Correlated, lambda: mlp(act=nn.Tanh)),
    "last-layer-input": (lambda: scaled(mlp(), 30.0), mlp),
}


def severity(found, rule):
    return max((f.severity for f in found if f.rule == rule), key=SEVERITIES.index, default=None)


@functools.cache
def standard(make):
    return examine(make(), data(), preset="standard")


@pytest.mark.parametrize("rule", FAST)
def test_rule_finds_its_trouble_and_only_that(rule):
    sick, healthy, ill, well = FAST[rule]
    assert severity(examine(sick(), data(), **ill).findings, rule) not in ("ok", None)
    assert severity(examine(healthy(), data(), **well).findings, rule) == "ok"


@pytest.mark.parametrize("rule", STANDARD)
def test_rule_of_the_standard_preset_finds_its_trouble_and_only_that(rule):
    sick, healthy = STANDARD[rule]
    assert severity(standard(sick).findings, rule) not in ("ok", None)
    assert severity(standard(healthy).findings, rule) == "ok"


def test_limit_by_bisection():
    limit = max_stable_lr(mlp(), data(), "cross_entropy", seeds=1, tol=0.1, steps=20)
    results = {"stability": limit}
    above = findings_of(results, {"lr": 4 * limit.does_not_learn.high, "momentum": 0.0})
    below = findings_of(results, {"lr": limit.does_not_learn.low / 10, "momentum": 0.0})
    assert severity(above, "learning-rate") == "problem"
    assert severity(below, "learning-rate") == "ok"


def test_batch_size_too_small_and_too_large():
    net = mlp(norm=nn.BatchNorm1d)
    ns.fit(net, learnable(), "cross_entropy", lr=0.2, steps=150, batch_size=64)
    options = {"num_batches": 64, "sampling": "independent"}
    small = bn_regularization(net, learnable(), "cross_entropy", batch_size=[4], **options)
    results = {"regularization": small, "layout": norm_layout(net, learnable())}
    share = float(small.everywhere[0]) / small.population_loss
    moderate = round(4 * share / 0.03)  # the gap falls like 1 / batch size: 3 % of the loss there
    for batch, expected in ((4, "warning"), (moderate, "ok"), (10**6, "note")):
        assert severity(findings_of(results, {"batch": batch}), "batch-size") == expected


def test_small_batches_of_a_loader_are_measured_on_many():
    """Half of them are normalized by a few samples; the population is more than one batch."""
    net = mlp(5, norm=nn.BatchNorm1d)
    ns.fit(net, learnable(), "cross_entropy", lr=0.2, steps=60, batch_size=64)
    x, y = learnable()
    found = examine(net, list(zip(x.split(4), y.split(4), strict=True)), preset="standard")
    assert found["regularization"].samples == len(x)
    assert found["regularization"].batch_sizes.tolist() == [4]
    assert severity(found.findings, "batch-size") == "note"  # it goes on learning in the trial


def test_rate_at_which_copies_trained_best():
    advice = suggest_lr(mlp(), learnable(), steps=20)
    results = {"advice": advice}
    far = findings_of(results, {"lr": 20 * advice.lr})
    near = findings_of(results, {"lr": 1.2 * advice.lr})
    assert severity(far, "learning-rate") == "note"
    assert severity(near, "learning-rate") == "ok"
    hasty = replace(advice, ended="out of time", race=advice.race[:2])
    assert not findings_of({"advice": hasty}, {"lr": 20 * advice.lr})
    low = [replace(b, low=0.9 * advice.lr) if b.name == "diverges" else b for b in advice.bounds]
    capped = findings_of({"advice": replace(advice, bounds=tuple(low))}, {"lr": 1.2 * advice.lr})
    assert severity(capped, "learning-rate") == "note"  # what diverges is not near the best


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (1.1, {"learning-rate": "ok"}),
        (3.0, {"learning-rate": "note"}),
        (math.inf, {"learning-rate": "problem"}),
    ],
)
def test_findings_about_the_users_rate_agree(own, found):
    """One that trained as well is not advised against; one that diverged is no stable one."""
    advice = suggest_lr(mlp(), learnable(), steps=20)
    best = min((t for t in advice.race if t.seed == 0), key=lambda t: t.score)
    scale = min(own, 9.0) * best.score / np.maximum(best.losses, 1e-9)
    mine = replace(best, lr=1.1 * advice.lr, diverged=own == math.inf, losses=best.losses * scale)
    advice = replace(advice, race=(*advice.race, mine))
    results = {"advice": advice, "stability": advice.limit}
    findings = findings_of(results, {"lr": mine.lr})
    assert {f.rule: f.severity for f in findings} == found
    rates = [f"{advice.lr:.2g}" in f.advice for f in findings if f.severity != "ok"]
    assert all(rates)


def learnable():
    x, _ = data()
    return x, x[:, :CLASSES].argmax(1)


def test_a_trained_network_is_told_the_rate_that_keeps_what_it_has():
    advice = suggest_lr(mlp(), learnable(), steps=20)
    *slow, fast = sorted(advice.race, key=lambda t: t.lr)
    calm = [replace(t, start=0.1, losses=np.full_like(t.losses, 0.1)) for t in slow]
    jump = replace(fast, start=0.1, losses=np.full_like(fast.losses, 0.3))
    advice = replace(advice, race=(*calm, jump), lr=fast.lr)
    gradients = examine(mlp(), learnable())["gradients"]
    results = {"advice": advice, "gradients": replace(gradients, loss=0.1)}
    for lr, expected in ((fast.lr, "note"), (slow[-1].lr, "ok")):
        found = [
            f for f in findings_of(results, {"lr": lr, "chance": 1.4}) if f.rule == "learning-rate"
        ]
        assert [f.severity for f in found] == [expected]
        assert f"below {slow[-1].lr:.2g}" in found[0].title
    [new] = [f for f in findings_of(results, {"chance": 0.2}) if f.rule == "learning-rate"]
    assert "Train with a learning rate of about" in new.title


def test_change_that_lets_it_learn_at_larger_rates():
    options = {"steps": 30, "tol": 0.3, "batch_size": 64}
    sick = what_if(scaled(mlp(), 3.0), learnable(), ["norm-before-last"], **options)
    assert severity(findings_of({"what_if": sick}, {}), "promising-change") == "note"
    worse = what_if(scaled(mlp(), 10.0), learnable(), ["norm-before-last"], **options)
    assert severity(findings_of({"what_if": worse}, {}), "promising-change") == "warning"
    healthy = what_if(mlp(norm=nn.BatchNorm1d), learnable(), ["gamma=1"], **options)
    assert severity(findings_of({"what_if": healthy}, {}), "promising-change") == "ok"


def test_what_learned_in_one_search_is_not_said_to_learn_nowhere():
    options = {"steps": 30, "tol": 0.3, "batch_size": 64}
    found = what_if(mlp(), learnable(), ["norm-before-last"], **options)
    deaf = replace(found.before, learned=False, finals=(9.0, 9.1, 8.9))
    results = {"what_if": replace(found, variants=(deaf, *found.after))}
    assert severity(findings_of(results, {}), "promising-change") == "warning"
    results["advice"] = suggest_lr(mlp(), learnable(), steps=20)
    assert severity(findings_of(results, {}), "promising-change") == "note"


def test_a_remedy_with_which_copies_learn_worse_is_not_advised():
    found = standard(STANDARD["pathological-sharpness"][0])
    changed = what_if(mlp(4, 200), learnable(), ["norm-output"], steps=10, tol=0.5)
    before, after = changed.variants
    flat = replace(
        after, lambda_max=before.lambda_max / 5, finals=tuple(2 * x for x in before.finals)
    )
    worse = replace(changed, variants=(before, flat))
    again = findings_of({**found.measurements, "what_if": worse}, found.convention)
    [finding] = [f for f in again if f.rule == "pathological-sharpness"]
    assert "5 times flatter, but copies with it learned worse" in finding.advice


def test_the_remedy_is_one_that_learns_if_one_does():
    found = standard(STANDARD["pathological-sharpness"][0])
    changes = ["norm-output", "norm-before-last"]
    changed = what_if(mlp(4, 200), learnable(), changes, steps=10, tol=0.5)
    before, first, second = changed.variants
    first = replace(
        first, lambda_max=before.lambda_max / 9, finals=tuple(2 * x for x in before.finals)
    )
    second = replace(second, lambda_max=before.lambda_max / 3, reached=before.reached / 2,
                     learned=True, finals=tuple(x / 2 for x in before.finals))  # fmt: skip
    for flat, words in ((3, "'norm-before-last' makes the loss 3 times flatter"),
                        (0.5, "'norm-before-last' does not flatten the loss, but")):  # fmt: skip
        second = replace(second, lambda_max=before.lambda_max / flat)
        tried = replace(changed, variants=(before, first, second))
        again = findings_of({**found.measurements, "what_if": tried}, found.convention)
        [finding] = [f for f in again if f.rule == "pathological-sharpness"]
        assert words in finding.advice


def test_remedy_of_pathological_sharpness_is_the_measured_one():
    found = standard(STANDARD["pathological-sharpness"][0])
    changed = what_if(mlp(4, 200), data(), ["norm-output"], limits=False)
    again = findings_of({**found.measurements, "what_if": changed}, found.convention)
    [finding] = [f for f in again if f.rule == "pathological-sharpness"]
    assert "'norm-output' makes the loss" in finding.advice
    assert "whether it learns as well was not measured" in finding.advice
    assert not [f for f in again if f.rule == "promising-change"]  # nothing was trained
    assert any("norm-output" in e.quantity for e in finding.evidence)
    before, after = changed.variants
    sharper = replace(changed, variants=(before, replace(after, lambda_max=2 * before.lambda_max)))
    again = findings_of({**found.measurements, "what_if": sharper}, found.convention)
    [finding] = [f for f in again if f.rule == "pathological-sharpness"]
    assert "does not help: with 'norm-output' it is 2 times sharper" in finding.advice


def test_running_statistics_name_the_layer_that_is_furthest_off():
    first, second = "1", "4"
    net = updated(mlp(norm=nn.BatchNorm1d))
    layers = dict(net.named_modules())
    layers[first].running_mean += 0.92 * layers[first].running_var.sqrt()  # nearly too much
    layers[second].running_var /= 100
    [found] = [f for f in examine(net, data()).findings if f.rule == "running-statistics"]
    assert (found.severity, found.layer) == ("warning", second)


def test_usual_scales_are_not_blamed_for_signals_that_die_without_norms():
    net = mlp(4, 64, norm=nn.BatchNorm1d, gain=1 / 3)  # as torch draws: signals die without norms
    found = examine(net, data(), preset="standard")
    [plain] = [f for f in found.findings if f.rule == "gamma-sharpens"]
    assert plain.severity == "ok"
    tops = [p.lambda_max_split or p.lambda_max for p in found["prediction"]]
    assert tops[0] > tops[1]  # with norms it is sharper by the theory
    wide = examine(with_gamma(mlp(4, 64, norm=nn.BatchNorm1d), 4.0), data(), preset="standard")
    [sharper] = [f for f in wide.findings if f.rule == "gamma-sharpens"]
    assert sharper.severity == "note"  # it learns in the trial
    assert sharper.layer is None  # all are the same
    layer_norm = examine(with_gamma(mlp(norm=nn.LayerNorm), 4.0), data())
    assert not [f for f in layer_norm.findings if f.rule == "gamma-sharpens"]


def test_sharpness_that_the_rate_does_not_feel_is_no_note():
    make = STANDARD["pathological-sharpness"][0]
    found = standard(make)
    threshold = found["sharpness"].lr_threshold()[0]
    for lr, expected in ((0.5 * threshold, "ok"), (2 * threshold, "note"), (None, "note")):
        again = findings_of(found.measurements, found.convention | {"lr": lr})
        assert severity(again, "pathological-sharpness") == expected


def test_regression_is_not_told_to_normalize_its_outputs():
    found = standard(STANDARD["pathological-sharpness"][0])
    again = findings_of(found.measurements, found.convention | {"loss_kind": "squared"})
    [finding] = [f for f in again if f.rule == "pathological-sharpness"]
    assert "ns.what_if(model, data, ['norm-before-last'], loss)" in finding.advice


def test_theory_beside_measurement():
    found = standard(lambda: ns.network("mlp:12-400-400-4"))
    results = {"comparison": found["comparison"]}
    [agrees] = findings_of(results, {})
    assert (agrees.rule, agrees.severity) == ("theory-agrees", "ok")
    for factor in (1 / 3, 3):
        far = replace(found["comparison"], measured=factor * found["comparison"].predicted)
        [off] = findings_of({"comparison": far}, {})
        assert off.severity == "note"
        assert "by a factor 3" in off.title
    nothing = replace(found["comparison"], measured=0.0, bound=0.0)  # a dead network
    assert findings_of({"comparison": nothing}, {}) == ()


def test_theory_is_judged_by_its_bounds():
    """The predicted value is that of one kind of direction."""
    found = standard(lambda: ns.network("mlp:12-400-400-4"))
    comparison, [first, *_] = found["comparison"], found["prediction"]
    wide = [replace(first, lower=0.2 * comparison.predicted, upper=50 * comparison.predicted)]
    for factor, expected, words in (
        (40, "ok", "within the theory's bounds"), (0.3, "ok", "within the theory's bounds"),
        (100, "note", "by a factor 2"), (0.1, "note", "by a factor 2"),
    ):  # fmt: skip
        far = replace(comparison, measured=factor * comparison.predicted, bound=0.0)
        for share, which in ((0.1, "is another"), (0.9, "is one of them")):
            outliers = replace(found["outliers"], span=share * float(found["outliers"].values[0]))
            results = {"comparison": far, "prediction": wide, "outliers": outliers}
            [one] = [f for f in findings_of(results, {}) if f.rule == "theory-agrees"]
            assert one.severity == expected
            assert words in one.title
            assert (which in one.meaning) == (expected == "ok")


def test_equal_outputs_favour_no_class():
    flat = mlp(act=nn.Tanh)
    with torch.no_grad():
        flat[-1].weight *= 1e-3
        flat[-1].bias.zero_()
        flat[-1].bias[2] = 0.01  # predicted for nearly all, with hardly more than chance
    outputs = examine(flat, data())["gradients"].outputs
    assert outputs.predicted[2] > 0.9
    assert severity(examine(flat, data()).findings, "favoured-class") == "ok"


def test_networks_that_conditioning_says_nothing_about():
    """One hidden layer has no inner one; streams of attention have few directions anyway."""
    shallow = examine(mlp(2, norm=nn.BatchNorm1d), data(), preset="standard")
    assert severity(shallow.findings, "ill-conditioned-layer") is None
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
    net = nn.Sequential(nn.Unflatten(1, (1, 12)), layer, nn.Flatten(), nn.Linear(12, CLASSES))
    found = examine(net, data(), preset="standard")
    assert found["layout"].attention == 1
    assert severity(found.findings, "ill-conditioned-layer") is None


def test_few_samples_do_not_make_a_layer_ill_conditioned():
    x, y = data()
    net = mlp(4, 64, act=nn.Tanh)
    few = examine(net, (x[:48], y[:48]), preset="standard")
    assert few["conditioning"].layers[1].fisher.kappa(0.5) > 2e4  # fewer rows than directions
    assert severity(few.findings, "ill-conditioned-layer") is None


def test_no_signal_at_all():
    net = mlp(5)
    with torch.no_grad():
        net[2].bias.fill_(-100.0)  # the rectifier behind it gives zero for every sample
    [found] = examine(net, data()).above("warning")  # the lost signal follows from it
    assert (found.rule, found.severity, found.layer) == ("dead-units", "warning", "3")


class Residual(nn.Module):
    """Every branch starts at zero, as good practice has it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3)
        )
        for branch in self.branches:
            nn.init.zeros_(branch[-1].weight)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.last(x)


def zero_last():
    net = mlp(4, norm=nn.BatchNorm1d)
    nn.init.zeros_(net[-1].weight)
    return net


@pytest.mark.parametrize("make", [Residual, zero_last])
def test_layers_that_start_at_zero_are_no_trouble(make):
    found = examine(make(), data())
    assert found.worst in ("ok", "note")
    assert severity(found.findings, "signal-growth") in ("ok", None)
    assert severity(found.findings, "weight-domination") in ("ok", None)


def test_a_trained_network_is_not_judged_like_one_at_its_start():
    net = mlp(4, norm=nn.BatchNorm1d)
    ns.fit(net, learnable(), "cross_entropy", lr=0.5, steps=400, batch_size=64)
    found = examine(net, learnable(), preset="standard")
    assert found["gradients"].loss < 0.1
    rules = {f.rule for f in found.findings}
    assert not rules & {"input-independent-gradients", "weight-domination"}
    assert severity(found.findings, "ill-conditioned-layer") in ("ok", "note", None)
    for finding in found.above("note"):
        assert "ormalize the" not in finding.advice  # every hidden layer is normalized


def test_every_rule_is_tested_here():
    others = {"promising-change", "theory-agrees", "no-learning"}
    set_up = {line[0] for line in LINES} | {"signal-lost", "zero-gamma", "zero-weights"}
    modes = {"frozen-norms", "statistics-still-move", "evaluation-data", "evaluation-mode",
             "statistics-momentum", "never-in-train-mode"}  # fmt: skip
    here = {*FAST, *STANDARD, *others, *set_up, *modes, "batch-size"}
    assert here == set(RULES)


def test_findings_say_what_why_and_whence():
    found = standard(FAST["signal-growth"][0])
    places = [(not f.warns, f.severity == "ok", RULES[f.rule].order) for f in found.findings]
    assert places == sorted(places)
    for finding in found.findings:
        assert finding.rule in RULES
        assert finding.evidence
        assert finding.meaning.endswith((".", ")"))
        assert len(finding.reference) > 20
        assert finding.severity == "ok" or finding.advice
        for item in finding.evidence:
            assert item.source in found.measurements


def test_findings_are_found_again_from_the_stored_evidence():
    found = standard(STANDARD["ill-conditioned-layer"][0])
    again = Examination.from_json(found.to_json())
    assert again == found
    assert findings_of(again.measurements, again.convention) == found.findings
