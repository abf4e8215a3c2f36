"""What the experiments on Huang et al. (2020) compute from their trials."""

import math

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.experiments.huang2020 import (
    _deep,
    _errors,
    _matrices,
    _table_b,
    _training,
    adam,
    frozen_groups,
    imagenet,
    mlp_training,
    printed,
    scaling,
)
from normscope.results.rules import judge
from normscope.sweeps import Table

SMALL = {"depth": 3, "width": 5, "samples": 150, "data": "digits", "seed": 3}


@pytest.fixture
def matrices():
    arms = [{"norm": n, "kind": k} | SMALL for n in _matrices.NORMS for k in _matrices.KINDS]
    return Table([(arm, _matrices.trial(**arm)) for arm in arms])


def test_blocks_are_those_of_the_gradients_of_all_samples(matrices):
    x, y = _matrices.small_images("digits", 150, 3)
    net = _matrices.small_mlp(64, 3, 5, "none", 3)
    weights = list(net.parameters())
    losses = torch.nn.functional.cross_entropy(net(x), y, reduction="none")
    rows = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    values = torch.linalg.eigvalsh(jacobian.T @ jacobian / 150)
    found = matrices("largest", norm="none", kind="empirical")[0]
    assert found[0] == pytest.approx(float(values[-1]), rel=1e-10)
    mean = [float(sum(r[k] for r in rows).norm()) / 150 for k in range(3)]
    assert matrices("gradient", norm="none", kind="empirical")[0] == pytest.approx(mean, rel=1e-10)


def test_observations_of_matrices_have_the_claimed_sign_and_identities_hold(matrices):
    made = _matrices.observe(matrices)
    ratio = np.log10(matrices("largest", norm="batch", kind="sampled")[0][0])
    ratio -= np.log10(matrices("largest", norm="none", kind="sampled")[0][0])
    assert made["lambda-F-full"]["values"] == pytest.approx([ratio])
    assert judge("identity", made["interlacing"], {}).verdict == "reproduced"
    assert made["interlacing"]["size"] == 64 * 5 + 25 + 50
    assert len(made["lambda-M"]["parts"]) == 4


def test_a_matrix_that_is_singular_in_both_networks_is_left_out():
    rows = []
    for norm in _matrices.NORMS:
        for kind in _matrices.KINDS:
            known = [[True, True, norm == "batch", False]] * 3
            value = {"largest": [9.0, 1.0, 2.0, 3.0], "kappa": [[2.0] * 4] * 3, "resolved": known}
            value |= {
                "trace": [3.0, 1.0, 1.0, 1.0],
                "factored": [1.0, 2.0, 3.0],
                "gradient": [1, 2, 3],
            }
            rows.append((SMALL | {"norm": norm, "kind": kind}, value))
    made = _matrices.observe(Table(rows))
    parts = made["kappa-F"]["parts"]
    assert len(parts) == 9
    assert set(made["kappa-F-90"]["parts"]) == {n for n in parts if "90%" in n}
    assert len(made["kappa-F-50-80"]["parts"]) == 6
    assert not any(name.startswith("block 3") for name in parts)


def test_training_records_what_the_library_measures():
    settings = {"net": "mlp:64-8-6-10:bias=false", "norm": "batch", "counted": 50, "weights": True}
    found = _training.trial(seed=1, at="0 2", steps=2, measured=40, **settings)
    net = ns.network("mlp:64-8-6-10:bias=false", norm="batch", init="lecun-uniform", seed=1)
    data = ns.load_data("digits").flat()
    pair = (data.images[:40], data.labels[:40])
    by_hand = ns.conditioning(net, pair, "cross_entropy", batch_size=40)
    assert found["lambda_x"][0] == pytest.approx(by_hand.lambda_max("inputs"))
    assert found["kappa_g"][0][1] == pytest.approx(by_hand.kappa(0.8, "gradients"))
    slopes = ns.gradients(net, pair, "cross_entropy", quantities=(), batch_size=40)
    expected = [layer.domination for layer in slopes.layers]
    assert found["domination"][0] == pytest.approx(expected, rel=1e-4)
    assert found["dying"].shape == (2, 2)
    assert not found["dying"][0].any()
    assert not np.allclose(found["weight"][0], found["weight"][1])


def test_a_training_that_diverges_has_no_later_moments():
    found = _training.trial("mlp:64-8-10", 0, lr=1e6, at="0 30", steps=30, measured=40)
    assert found["diverged"]
    assert found["late"] == math.inf
    table = Table([({"seed": 0}, found)])
    assert _training.late_of(table) == _training.DIVERGED
    assert np.isnan(found["lambda_x"][1]).all()
    assert np.isfinite(found["lambda_x"][0]).all()


def test_slopes_and_ranges_of_known_signals():
    values = 10.0 ** (-0.5 * np.arange(6))
    assert mlp_training.slopes(values[None]) == pytest.approx([-0.5])
    table = Table([({"norm": "none"}, {"lambda_x": [values, 100 * values]})])
    assert _training.decades(table, "lambda_x", norm="none") == pytest.approx([4.0])


def test_mean_field_gives_a_sixth_and_pi_over_pi_minus_one():
    # ReLU halves the mean square; uniform weights of variance 1 / (3 fan-in) give a third
    claims = {c.id: c for c in ns.experiments.claim.read_claims("huang2020")}
    assert claims["huang2020/fig5-a-plain"].expected == pytest.approx(-math.log10(6), abs=1e-5)
    rate = ns.theory.gradient_growth("relu", 1.0)
    expected = claims["huang2020/fig11a-explosion-rate"].expected
    assert expected == pytest.approx(-math.log10(rate), abs=1e-4)


def test_deep_networks_by_hand():
    layers = np.arange(1, 41)
    fisher = 10.0 ** np.array([[-0.2 * layers, -0.1 * layers - 5]])
    weight = 10.0 ** np.array([[0 * layers, 3 - 0.05 * layers]])
    row = {"lambda_x": fisher[0], "lambda_g": np.ones((2, 40)), "weight": weight[0]}
    row["domination"] = np.array([np.full(40, 10.0), np.full(40, 1e-4)])
    made = _deep.observe(Table([({}, row)]))
    assert made["explosion"]["values"] == pytest.approx([-0.2])
    assert made["weights"]["values"] == pytest.approx([-0.05])
    assert made["collapse"]["values"] == pytest.approx([-5 + 0.1 * 10])
    assert made["power"]["values"] == pytest.approx([-2.0])
    parts = made["domination"]["parts"]
    assert [parts[n]["values"][0] for n in parts] == pytest.approx([3.0, 2.0])


def test_the_rate_of_the_lowest_loss_is_taken():
    losses = dict(zip(adam.RATES, (3.0, 1.0, 2.0), strict=True))
    rows = [({"optimizer": "adam", "norm": n, "lr": lr}, {"late": loss})
            for n in adam.runs.NORMS for lr, loss in losses.items()]  # fmt: skip
    assert {arm["lr"] for arm in adam.best(Table(rows)).values()} == {5e-4}


def test_identities_hold_and_counter_examples_do_not():
    found = scaling.trial(7)
    broken = {"thm1-homogeneous", "thm1-mu", "thm2-preconditions"}
    for name in found.keys() - {"eq2"}:
        rule = {"holds": name not in broken}
        assert judge("identity", found[name], rule).verdict == "reproduced", name
    assert found["eq2"]["holds"] == [False]


def test_printed_tables_by_hand():
    found = printed.trial()
    part = found["tableA-amplified"]["parts"]["depth 18, WD = 0.0002"]
    assert part["mean"] == pytest.approx(1.11 - 0.40)
    assert part["se"] == pytest.approx(0.41, abs=0.005)
    observed = printed.observe(Table([({}, found)]))  # an entry is one run
    assert judge("sign", observed["tableA-amplified"], {}).seeds == 1
    # VGG-110: 16.01 points against 16 + 0
    assert found["tableB-printed"]["holds"] == [True] * 8


def test_the_gain_of_a_last_norm_and_its_error():
    arm = {"depth": 18, "setup": "standard", "norm": "batch", "at": ""}
    rows = [(arm | {"last": last}, {"test": error, "test images": 100})
            for last, error in ((False, 0.4), (True, 0.3))]  # fmt: skip
    found = imagenet.gain(Table(rows), "test", 18, "standard")
    assert found["mean"] == pytest.approx(0.1)
    assert found["se"] == pytest.approx(math.sqrt((0.24 + 0.21) / 100))


def test_errors_are_those_of_the_trained_network():
    settings = {"norm": "batch", "last": True, "data": "random:3x8x8,samples=40,classes=10"}
    options = {"init": "he", "lr": 0.1, "batch": 8, "steps": 6}
    found = _errors.trial("resnet8:width=2", 3, moments=3, **settings, **options)
    seen, held = (ns.load_data(settings["data"], split) for split in ("train", "test"))
    net = ns.network("resnet8:width=2", init="he", extra_norms=("before-last",), seed=3)
    run = ns.fit(net, seen, "cross_entropy", lr=0.1, momentum=0.9, schedule="step", steps=6,
                 batch_size=8, drop_last=True, seed=3)  # fmt: skip
    assert found["test"][-1] == pytest.approx(1 - ns.evaluate(net, held).accuracy)
    assert found["training"][-1] == pytest.approx(1 - ns.evaluate(net, seen).accuracy)
    means = [run.losses[0], *np.reshape(run.losses, (3, 2)).mean(1)]
    assert found["losses"] == pytest.approx(means)
    assert found["late"] == pytest.approx(run.losses[-5:].mean())


def test_a_diverged_run_guesses():
    data = {"data": "random:3x8x8,samples=40,classes=10", "batch": 8}
    found = _errors.trial("vgg8:width=2", 0, lr=1e9, steps=4, moments=4, **data)
    assert found["diverged"]
    assert found["test"][-1] == found["training"][-1] == 0.9
    assert found["losses"][-1] == _training.DIVERGED


def test_frozen_groups_by_hand():
    late = {"00001": 1.0, "00011": 0.5, "00111": 0.6, "01111": 0.2, "11111": 0.1}
    rows = []
    for name, loss in late.items():
        run = {"late": loss, "losses": [2.0, loss], "training": [loss / 2], "test": [0.9, loss]}
        rows.append((frozen_groups.ARMS[name] | {"seed": 0}, run))
    made = frozen_groups.observe(Table(rows))
    assert made["fig12-a"]["parts"]["00011"]["values"] == pytest.approx([1.5])
    ends, tau = made["fig12-a-order"]["parts"].values()
    assert ends["values"] == pytest.approx([1.0])  # a decade
    assert tau["values"] == pytest.approx([0.8])  # nine of ten pairs in order
    assert made["fig12-b"]["values"] == pytest.approx([0.45])
    assert made["fig12-c"]["values"] == pytest.approx([0.9])


def test_arms_of_frozen_groups_freeze_three_convolutions_a_digit():
    for name, glob in frozen_groups.FREEZE.items():
        net = ns.network("vgg16:width=2", norm="batch")
        net = ns.apply_transform(net, f"freeze:{glob}") if glob else net
        frozen = [k for k, p in net.named_parameters() if not p.requires_grad]
        groups = {int(k[5]) for k in frozen}
        assert groups == {k for k, digit in enumerate(name, 1) if digit == "0"}
        assert len(frozen) == 3 * name.count("0")  # weights only: gamma and beta are trained


def test_table_b_by_hand():
    chance = math.log(10)
    rows = []
    for depth, error, late in ((20, 0.5, 1.0), (44, 0.8, 2.2), (56, 0.9, chance), (110, 0.9, 9.0)):
        for last in (False, True):
            run = {"test": [0.9, error - 0.1 * last], "late": late - last}
            rows.append(({"family": "VGG", "depth": depth, "last": last, "seed": 0}, run))
    made = _table_b.observe(Table(rows))
    assert made["tableB-vgg110"]["values"] == pytest.approx([0.1])
    parts = {n: p["values"][0] for n, p in made["tableB-vgg-depth"]["parts"].items()}
    depths, errors = np.array([20, 44, 56, 110]), np.array([0.5, 0.8, 0.9, 0.9])
    slope = np.cov(depths, errors)[0, 1] / depths.var(ddof=1)
    assert parts["slope of the error"] == pytest.approx(slope)
    assert parts["depth 56 at chance"] == pytest.approx(0.01)
    assert parts["depth 110 at chance"] < 0
    rescue = {n: p["values"][0] for n, p in made["tableB-rescue"]["parts"].items()}
    assert rescue == pytest.approx({"with": 0.99, "without": 0.01})
