"""The golden numbers of kind theory, through the public functions and through ``predict``."""

import math

import numpy as np
import pytest

import normscope as ns
from golden.fisher import THEORY
from normscope.theory import fisher, integrals, layernorm
from normscope.theory.meanfield import batchnorm, fixed_points

CIFAR = {"channels": [30, 60, 90], "kernel": 3, "stride": 2, "outputs": 10}


def named(inputs):
    act = inputs["act"]
    if act.startswith("leaky"):
        return f"leaky_relu({inputs.get('negative_slope', 0.1)})"
    return act


def variances(inputs):
    return {"weight_variance": inputs["sigma_w2"], "bias_variance": inputs["sigma_b2"]}


def even_mlp(inputs, outputs=1):
    """Widths alpha_l M; without M a unit large enough to make them whole."""
    unit = inputs.get("M", 100)
    alphas = inputs.get("alphas", (1,) * inputs["L"])
    widths = [round(a * unit) for a in alphas]
    return ns.mlp([*widths, outputs], activation=named(inputs), **variances(inputs)), unit


def wide_mlp(inputs, **options):
    return ns.mlp(inputs["widths"], activation=named(inputs), **options)


def sums(prediction_1, prediction_inf):
    """A1 (one sample) and A2 (the limit of many) of one output."""
    return prediction_1.lambda_max, prediction_inf.lambda_max


def kappas_of(spec, unit):
    one = ns.predict(spec, samples=1, theory="corrected")
    limit = ns.predict(spec, theory="corrected")
    return fisher.kappas(one.per_layer, limit.per_layer, widths=spec.widths[:-1], unit=unit)


def cnn_spec(inputs, **options):
    return ns.cnn((3, 32, 32), **CIFAR, **variances(inputs), **options)


def through_functions(entry):
    """The value that the code gives for one golden entry."""
    i, what = entry.inputs, entry.function
    if what == "I_phi":
        return integrals.product_mean(named(i), i["a"], i["b"])
    if what == "I_dphi":
        return integrals.derivative_product_mean(named(i), i["a"], i["b"])
    if what == "I_phi, unequal variances":
        return integrals.product_mean(named(i), i["a1"], i["b"], variance2=i["a2"])
    if what == "arccosine kernel J":
        return integrals.arccosine_kernel(i["x"])
    if what in ("alpha,kappa1,kappa2", "layer-norm alpha,kappa1',kappa2'"):
        spec, unit = even_mlp(i)
        if what.startswith("layer"):
            spec = ns.mlp(spec.widths, activation=named(i), norm="layer", **variances(i))
        return kappas_of(spec, unit)
    if what == "lambda_max eq.(10)":
        return ns.predict(even_mlp(i)[0], samples=i["T"], theory="corrected").lambda_max
    if what.startswith("mean-subtraction bounds"):
        spec = ns.mlp(
            even_mlp(i, i["C"])[0].widths, activation=named(i), last_norm="mean", **variances(i)
        )
        # the leading-order bounds of the paper, before the spread of the input overlaps is added
        one, limit = (
            ns.predict(even_mlp(i)[0], samples=t, theory="corrected").lambda_max for t in (1, None)
        )
        lower, upper = fisher.mean_subtraction_bounds(one, limit, samples=i["T"], outputs=i["C"])
        assert ns.predict(spec, samples=i["T"], theory="corrected").lower == pytest.approx(
            float(lower), rel=1e-12
        )
        return lower, upper
    if what == "lam_max_meansub_O1":
        one, limit = (
            ns.predict(even_mlp(i)[0], samples=t, theory="corrected").lambda_max for t in (1, None)
        )
        return fisher.mean_subtraction_bounds(one, limit, samples=i["T"], outputs=1)[0]
    if what == "eq.(19) bounds with c=0":
        a1, a2 = (i["alpha"] * i[k] * i["M"] for k in ("kappa1", "kappa2"))
        q1, q2, trace, lower, upper = fisher.last_batch_norm_bounds(
            a1, a2, samples=i["T"], variances=i["sigma2"]
        )
        return q1, q2, trace / (i["alpha"] * i["M"] ** 2), lower, upper
    if what.startswith("middle-layer BN lower bound"):
        hats = batchnorm.batch_norm_hats(named(i), i["gamma"], count=i["T"])
        return fisher.batch_norm_lower_bound(i["M_last"], *hats, samples=i["T"])
    if what.startswith("eta1"):
        return layernorm.output_norm_statistics(np.array(i["U"]))
    if what.startswith("s, lower, upper"):
        scale = i["alpha"] * i["M"]
        s, lower, upper = layernorm.output_norm_bounds(
            scale * i["kappa1"],
            scale * i["kappa2"],
            samples=i["T"],
            outputs=i["C"],
            etas=layernorm.output_norm_statistics(np.array(i["U"])),
        )
        return s / scale**2, lower, upper
    if what == "sum_l N_{l-1} qhat_xy qtilde_xy":
        return ns.predict(wide_mlp(i, **variances(i)), theory="corrected").lambda_max
    if what == "critical learning rate":
        return fisher.critical_lr(i["lambda_max"], momentum=i["momentum"])
    if what.startswith("frozen-BN lambda_max"):
        theory = "wei2019" if "paper" in what else "frozen"
        spec = wide_mlp(i, norm="batch", gamma=i["gamma"], **variances(i))
        return ns.predict(spec, theory=theory).lambda_max
    if what.startswith("train-mode BN"):
        spec = wide_mlp(i, norm="batch", gamma=i["gamma"], bias_variance=0.5)
        made = ns.predict(spec, samples=i["T"], theory="corrected")
        return made.lambda_max, made.trace / spec.outputs
    if what == "corrected f_l for the CNN 3-30-60-90":
        return ns.predict(cnn_spec(i), theory="corrected").per_layer
    if what == "corrected frozen-BN lambda_max":
        spec = cnn_spec(i, norm="batch", gamma=i["gamma"])
        return ns.predict(spec, theory="frozen").lambda_max
    if what == "A1,A2":
        spec = ns.residual_mlp(
            i["widths"], branch_scale=i["beta"], activation=named(i), **variances(i)
        )
        return sums(
            ns.predict(spec, samples=1, theory="corrected"), ns.predict(spec, theory="corrected")
        )
    if what.startswith("tanh fixed point"):
        made = ns.phase_diagram("tanh", i["sigma_w2"], i["sigma_b2"])
        columns = ("length", "correlation", "chi1", "correlation_depth", "length_depth")
        return [getattr(made, name)[0, 0] for name in columns]
    if what.startswith("critical sigma_w2"):
        return fixed_points.critical_weight_variance(named(i), i["sigma_b2"])
    if what.startswith("linearised-kernel"):
        return ns.predict(
            wide_mlp(i, last_norm="mean", **variances(i)), samples=i["T"], theory="corrected"
        ).lambda_max
    if what == "split_lam":
        return fisher.split_lambda_max(
            i["f_last"], i["f_hidden"], outputs=i["C"], last_width=i["M_last"]
        )
    if what.startswith("bn_hat"):
        return batchnorm.batch_norm_hats(named(i), i["gamma"], count=i["T"])
    raise AssertionError(f"no route for {what!r}")


@pytest.mark.parametrize("name", [k for k in THEORY if not k.startswith("op_")])
def test_golden_value(name):
    entry = THEORY[name]
    np.testing.assert_allclose(
        np.asarray(through_functions(entry), dtype=float),
        np.asarray(entry.value, dtype=float),
        rtol=entry.relative,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", [k for k in THEORY if k.startswith("op_")])
def test_golden_order_parameters(name):
    entry = THEORY[name]
    made = ns.predict(even_mlp(entry.inputs)[0], theory="corrected").order_parameters
    for key, expected in entry.value.items():
        np.testing.assert_allclose(made[key], expected, rtol=entry.relative, atol=1e-14)


def fc(**options):
    return ns.mlp([784, 1000, 1000, 1000, 10], weight_variance=2.0, bias_variance=0.5, **options)


class TestHeadlineNumbers:
    """What the papers' Figure 1 must show, to the digits quoted."""

    def test_vanilla(self):
        made = ns.predict(fc(), theory="corrected")
        assert made.lambda_max == pytest.approx(2234.17, abs=0.005)
        assert made.critical_lr(momentum=0.9) == pytest.approx(0.001701, abs=5e-7)

    def test_input_width_drops_out_of_the_limit(self):
        cifar = ns.mlp([3072, 1000, 1000, 1000, 10], weight_variance=2.0, bias_variance=0.5)
        assert ns.predict(cifar, theory="corrected").lambda_max == pytest.approx(
            ns.predict(fc(), theory="corrected").lambda_max, rel=1e-12
        )

    @pytest.mark.parametrize(
        ("gamma", "wei", "frozen", "train"),
        [
            (0.1, 1.607, 3.615, 1.603),
            (0.5, 47.53, 90.38, 40.08),
            (1.0, 229.9, 361.5, 160.3),
            (2.0, 1045, 1446, 641.3),
            (3.0, 2432, 3254, 1442.9),
            (4.0, 4380, 5784, 2565),
        ],
    )
    def test_three_theories_of_batch_norm(self, gamma, wei, frozen, train):
        spec = fc(norm="batch", gamma=gamma)
        limit = ns.predict(spec, theory=("wei2019", "frozen"))
        assert limit[0].lambda_max == pytest.approx(wei, rel=5e-4)
        assert limit[1].lambda_max == pytest.approx(frozen, rel=5e-4)
        assert ns.predict(spec, samples=400, theory="corrected").lambda_max == pytest.approx(
            train, rel=5e-4
        )

    def test_frozen_at_finite_samples(self):
        made = ns.predict(fc(norm="batch"), theory="frozen", samples=50)
        assert made.per_layer == pytest.approx([19.72, 110.6, 130.0, 161.0], rel=5e-4)
        made = ns.predict(fc(norm="batch"), theory="frozen", samples=200)
        assert made.per_layer == pytest.approx([4.38, 91.4, 119.9, 159.6], abs=0.05)

    def test_crossing_with_vanilla(self):
        """lambda_max(vanilla) = lambda_max(batch norm) at gamma 2.88 as printed, 3.75 in truth."""
        vanilla = ns.predict(fc(), theory="corrected").lambda_max
        for theory, gamma in (("wei2019", 2.88), ("corrected", 3.75)):
            below, above = (
                ns.predict(fc(norm="batch", gamma=g), theory=theory).lambda_max
                for g in (gamma - 0.01, gamma + 0.01)
            )
            assert below < vanilla < above

    def test_convolution(self):
        spec = ns.cnn((3, 32, 32), **CIFAR, weight_variance=2.0, bias_variance=0.5)
        assert ns.predict(spec, theory="corrected").lambda_max == pytest.approx(1481.5, abs=0.05)
        assert ns.predict(spec, theory="wei2019").lambda_max == pytest.approx(2.0e5, rel=0.02)
        assert ns.predict(spec, samples=100, theory="corrected").lambda_max == pytest.approx(
            1492.6, abs=0.05
        )

    def test_convolution_with_batch_norm(self):
        spec = ns.cnn((3, 32, 32), **CIFAR, weight_variance=2.0, bias_variance=0.5, norm="batch")
        made = {t: ns.predict(spec, theory=t).lambda_max for t in ("wei2019", "corrected")}
        assert made["wei2019"] == pytest.approx(1.39e4, rel=5e-3)
        assert made["corrected"] == pytest.approx(810 / (2 * math.pi), rel=1e-9)

    def test_convolution_as_plotted(self):
        """On the axes of the paper's Fig. 1c, and the sum written out by hand at T to infinity."""
        plotted = {"theory": "wei2019-as-plotted"}

        def cnn(**options):
            return ns.cnn((3, 32, 32), **CIFAR, weight_variance=2.0, bias_variance=0.5, **options)

        plain = ns.predict(cnn(), **plotted)
        assert plain.lambda_max == pytest.approx(1481.5, abs=0.05)
        hats, tildes = [0.0], [1.0]  # (20)-(22) for two samples
        for q, q_st in ((2.5, 0.5), (3.0, None), (3.5, None)):
            pair = 2 * hats[-1] + 0.5 if q_st is None else q_st
            c = pair / q
            hats.append(q / (2 * math.pi) * (math.sqrt(1 - c * c) + c * (math.pi - math.acos(c))))
            tildes.append(2 / (2 * math.pi) * (math.pi - math.acos(c)))
        total = 810 * hats[3] + 540 * hats[2] * tildes[3] + 270 * hats[1] * tildes[2] * tildes[3]
        assert plain.lambda_max == pytest.approx(total)
        for gamma in (0.1, 1.0, 4.1):
            made = ns.predict(cnn(norm="batch", gamma=gamma), **plotted)
            x = gamma**2 / (2 * (0.5 + gamma**2))
            by_hand = gamma**2 / (2 * math.pi) * (810 + 540 * x + 270 * x**2)
            assert made.lambda_max == pytest.approx(by_hand)
            assert made.lambda_max == pytest.approx(made.A2) == pytest.approx(made.per_layer.sum())
        assert made.lambda_max == pytest.approx(3039, abs=0.5)
        below, above = (
            ns.predict(cnn(norm="batch", gamma=g), **plotted).lambda_max for g in (2.86, 2.88)
        )
        assert below < plain.lambda_max < above

    @pytest.mark.parametrize("norm", [None, "batch"])
    @pytest.mark.parametrize("samples", [None, 50])
    def test_dense_networks_are_plotted_as_printed(self, norm, samples):
        for act in ("relu", "gelu", "tanh"):
            spec = ns.mlp([30, 50, 40, 3], activation=act, bias_variance=0.4, norm=norm)
            printed, plotted = ns.predict(
                spec, samples=samples, theory=("wei2019", "wei2019-as-plotted")
            )
            assert plotted.per_layer == pytest.approx(printed.per_layer)
            for name in ("lambda_max", "lower", "upper", "trace", "flags", "parameters"):
                assert getattr(plotted, name) == pytest.approx(getattr(printed, name)), name

    def test_pool_head(self):
        options = CIFAR | {"channels": [60, 120, 180], "head": "pool"}
        spec = ns.cnn((3, 32, 32), **options, weight_variance=2.0, bias_variance=0.5)
        assert ns.predict(spec, theory="corrected").per_layer == pytest.approx(
            [0, 142.4, 743.2, 230.8], rel=5e-4
        )

    @pytest.mark.parametrize(
        ("widths", "act", "variance", "samples", "expected"),
        [
            ((150, 300, 200, 100, 1), "leaky_relu(0.1)", (1.8, 0.2), 150, 179.0),
            ((200, 200, 300, 1), "erf", (2.0, 0.3), 100, 54.08),
            ((120, 240, 240, 1), "relu", (1.5, 0.4), 60, 196.6),
        ],
    )
    def test_uneven_networks(self, widths, act, variance, samples, expected):
        spec = ns.mlp(
            widths, activation=act, weight_variance=variance[0], bias_variance=variance[1]
        )
        assert ns.predict(spec, samples=samples, theory="corrected").lambda_max == pytest.approx(
            expected, rel=3e-4
        )

    def test_splitting(self):
        """Measured networks lie above the leading order; the split value meets them."""
        made = ns.predict(fc(norm="batch"), theory="frozen", samples=400)
        assert made.lambda_max == pytest.approx(368, rel=1e-3)
        assert made.lambda_max_split == pytest.approx(412, rel=1e-3)
        made = ns.predict(fc(), samples=100, theory="corrected")
        assert made.lambda_max_split == pytest.approx(2470, rel=1e-3)

    def test_gamma_and_beta_at_small_gamma(self):
        """The terms the paper calls negligible dominate at gamma = 0.1."""
        made = ns.predict(
            fc(norm="batch", gamma=0.1), samples=400, parameters="all", theory="corrected"
        )
        assert made.per_kind["bias"] == pytest.approx(1.0, rel=1e-12)
        assert made.per_kind["beta"] == pytest.approx(0.5, rel=0.01)
        assert made.per_kind["gamma"] == pytest.approx(1 / math.pi, rel=0.01)
        assert made.lambda_max == pytest.approx(3.42, abs=0.01)
