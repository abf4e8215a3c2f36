"""What a prediction says of itself: flags, degenerate cases, tables."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError, TheoryError
from normscope.results import Prediction, PredictionSet
from normscope.spec import NormSpec

WIDE = [50, 60, 60, 5]


class TestCentredNetworks:
    @pytest.mark.parametrize("theory", ["corrected", "frozen", "wei2019"])
    @pytest.mark.parametrize("norm", [None, "batch"])
    def test_no_leading_term_says_so(self, theory, norm):
        made = ns.predict(ns.mlp(WIDE, activation="tanh", norm=norm), samples=100, theory=theory)
        assert made.lambda_max is None
        assert made.lambda_max_split is None
        assert not made.ok
        assert "centred" in made.reason
        assert made.lower >= made.trace / 5 / 100 * (1 - 1e-6)  # the mean of F*'s eigenvalues
        assert made.upper >= made.lower > 0

    @pytest.mark.parametrize("samples", [5, 100, None])
    def test_bounds_hold_for_a_linear_read_out(self, samples):
        # F = X^T X / T for every output: moments and edge are known exactly, 1 at T to infinity.
        made = ns.predict(ns.mlp([20, 3], weight_variance=1.0), samples=samples, theory="corrected")
        t = math.inf if samples is None else samples
        assert made.lower <= (1 + math.sqrt(20 / t)) ** 2 <= made.upper
        assert made.lower == pytest.approx(20 / t + 1 - 1 / t)
        assert made.upper == pytest.approx(math.sqrt(3 * 20 * made.lower))

    @pytest.mark.parametrize("count", [50, 2000])
    def test_bounds_hold_for_a_tanh_network(self, count):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((count, 30))
        first = rng.standard_normal((600, 30)) * np.sqrt(2 / 30)
        last = rng.standard_normal(600) * np.sqrt(2 / 600)
        h = np.tanh(x @ first.T)
        delta = last * (1 - h**2)
        gram = (h @ h.T + (delta @ delta.T) * (x @ x.T)) / count
        top = np.linalg.eigvalsh(gram)[-1]
        spec = ns.mlp([30, 600, 1], activation="tanh", weight_variance=2.0)
        made = ns.predict(spec, samples=count, theory="corrected")
        assert made.lower <= top <= made.upper
        assert 0 < ns.predict(spec, theory="corrected").lower < top  # fewer samples only add to it

    @pytest.mark.parametrize("options", [{"activation": "tanh"}, {"last_norm": "mean"}])
    def test_no_bound_is_better_than_a_false_one(self, options):
        made = ns.predict(ns.mlp(WIDE, norm="batch", **options), theory="corrected")
        assert made.lambda_max is None
        assert made.upper is None
        assert "Give samples=" in made.reason

    def test_few_samples_behind_batch_norm(self):
        made = ns.predict(
            ns.mlp([50, 60, 60, 60, 60, 5], norm="batch"), samples=7, theory="corrected"
        )
        assert made.lambda_max is None
        assert "opposed" in made.reason
        assert "more samples" in made.reason
        assert made.lower > made.trace / 5 / 7
        assert ns.predict(
            ns.mlp([50, 60, 60, 60, 60, 5], norm="batch"), samples=100, theory="corrected"
        ).ok

    def test_depth_alone_does_not_centre(self):
        made = ns.predict(ns.mlp([20, *[30] * 60, 3], norm="batch"), theory="frozen")
        assert made.ok
        assert made.lambda_max > 30 / (2 * math.pi)

    def test_vanished_gradients(self):
        made = ns.predict(ns.mlp([20, *[30] * 3000, 3], weight_variance=1.0), theory="corrected")
        assert (made.lambda_max, made.lower, made.upper, made.trace) == (0.0, 0.0, 0.0, 0.0)
        assert "vanish" in made.reason

    def test_no_learning_rate_without_lambda_max(self):
        made = ns.predict(ns.mlp(WIDE, activation="tanh"), samples=100, theory="corrected")
        with pytest.raises(TheoryError) as error:
            made.critical_lr()
        assert "centred" in str(error.value)
        assert "upper bound" in str(error.value)

    def test_biases_bring_the_outlier_back(self):
        assert ns.predict(ns.mlp(WIDE, activation="tanh", bias_variance=0.5), theory="corrected").ok

    def test_layer_norm_on_centred_outputs(self):
        made = ns.predict(
            ns.mlp(WIDE, activation="tanh", last_norm="layer"), samples=50, theory="corrected"
        )
        assert made.lambda_max is None
        assert "centred" in made.reason


class TestFewSamples:
    def test_two_samples_block_train_mode_batch_norm(self):
        made = ns.predict(ns.mlp(WIDE, norm="batch", gamma=0.7), samples=2, theory="corrected")
        assert (made.per_layer[:-1] == 0).all()
        assert made.trace == pytest.approx(5 * 60 * 0.7**2 / 2)
        model = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6, eps=1e-13), nn.ReLU(), nn.Linear(6, 1)
        )
        generator = torch.Generator().manual_seed(0)
        x, weights = torch.randn(2, 4, generator=generator), torch.randn(2, 1, generator=generator)
        (model(x) * weights).sum().backward()
        assert model[0].weight.grad.abs().max() < 1e-9
        assert model[3].weight.grad.abs().max() > 1e-3

    def test_one_sample_is_exact(self):
        assert ns.predict(ns.mlp(WIDE), samples=1, theory="corrected").ok


class TestGammaZero:
    @pytest.mark.parametrize("norm", ["batch", "layer"])
    @pytest.mark.parametrize("act", ["relu", "tanh", "gelu"])
    @pytest.mark.parametrize("samples", [None, 100])
    def test_is_flagged_and_finite(self, norm, act, samples):
        for parameters in ("weights", "all"):
            spec = ns.mlp(WIDE, activation=act, norm=norm, gamma=0.0, bias_variance=0.3)
            made = ns.predict(spec, samples=samples, parameters=parameters, theory="corrected")
            assert "gamma = 0 in layer(s) 1, 2" in made.reason
            assert made.lambda_max is not None
            numbers = [made.lambda_max, made.lower, made.upper, made.trace, *made.per_layer]
            assert np.isfinite(numbers).all()
            if parameters == "weights":
                assert made.lambda_max == 0.0
                assert made.critical_lr() == math.inf
            else:
                assert made.lambda_max >= 1.0  # the output bias is still there

    def test_is_the_limit_of_small_gamma(self):
        make = lambda g: ns.mlp(WIDE, norm="batch", gamma=g, activation="gelu")  # noqa: E731
        zero, small = ns.predict(
            [make(0.0), make(1e-4)], samples=100, parameters="all", theory="corrected"
        )
        for kind in ("weight", "bias", "gamma", "beta"):
            assert zero.per_kind[kind] == pytest.approx(small.per_kind[kind], rel=1e-2, abs=1e-4)


class TestNormOnTheOutputs:
    def test_batch_norm_has_bounds_only(self):
        made = ns.predict(ns.mlp(WIDE, last_norm="batch"), samples=100, theory="corrected")
        assert made.lambda_max is None
        assert 0 < made.lower < made.upper
        assert "only bounds" in made.reason

    def test_batch_norm_with_two_samples_is_nothing(self):
        made = ns.predict(ns.mlp(WIDE, last_norm="batch"), samples=2, theory="corrected")
        assert (made.lambda_max, made.trace) == (0.0, 0.0)
        assert "F = 0" in made.reason

    def test_batch_norm_in_the_limit(self):
        made = ns.predict(ns.mlp(WIDE, last_norm="batch"), theory="corrected")
        assert made.lower is None
        assert "samples=" in made.reason

    @pytest.mark.parametrize("outputs", [1, 2])
    def test_layer_norm_over_two_outputs_is_nothing(self, outputs):
        made = ns.predict(
            ns.mlp([50, 60, outputs], last_norm="layer"), samples=30, theory="corrected"
        )
        assert (made.lambda_max, made.lower, made.upper, made.trace) == (0.0,) * 4
        assert "F = 0" in made.reason

    def test_layer_norm_carries_its_standard_error(self):
        spec = ns.mlp([50, 60, 10], bias_variance=0.5, norm="layer", last_norm="layer")
        first, second = (ns.predict(spec, samples=60, seed=s, theory="corrected") for s in (0, 1))
        assert first != second
        assert 0 < first.standard_error < first.lambda_max
        gap = abs(first.lambda_max - second.lambda_max)
        assert gap < 5 * math.hypot(first.standard_error, second.standard_error)
        assert ns.predict(spec, samples=60, seed=0, theory="corrected") == first

    def test_few_outputs_are_heavy_tailed(self):
        made = ns.predict(
            ns.mlp([50, 60, 3], bias_variance=0.5, last_norm="layer"),
            samples=60,
            theory="corrected",
        )
        assert "heavy-tailed" in made.reason
        assert made.quantiles["0.05"] < made.lambda_max < made.quantiles["0.95"]
        assert made.lambda_max == made.quantiles["0.5"]
        assert made.critical_lr() == 2 / made.quantiles["0.5"]
        assert f"{made.quantiles['0.95']:.4g}" in made.summary()
        assert Prediction.from_json(made.to_json()) == made
        many = ns.predict(
            ns.mlp([50, 60, 10], bias_variance=0.5, last_norm="layer"),
            samples=60,
            theory="corrected",
        )
        assert list(many.quantiles) == list(made.quantiles)
        assert many.ok

    def test_realised_outputs_of_one_network(self):
        """Layer norm: the leading matrix itself; batch norm: the deviations that were found."""
        rng = np.random.default_rng(4)
        u = rng.standard_normal((60, 3)) + np.array([2.0, 0.0, -1.0])
        spec = ns.mlp([50, 60, 3], bias_variance=0.5, last_norm="layer")
        made = ns.predict(spec, outputs=torch.from_numpy(u), theory="corrected")
        assert made.samples == 60
        assert (made.ok, made.quantiles, made.standard_error) == (True, {}, None)
        centred = u - u.mean(axis=1, keepdims=True)
        sigma = centred.std(axis=1)
        unit = centred / sigma[:, None]
        b = (np.eye(3) - 1 / 3 - unit[:, :, None] * unit[:, None] / 3) / sigma[:, None, None]
        gram = made.A2 + (made.A1 - made.A2) * np.eye(60)
        full = np.einsum("st,sij,tjk->sitk", gram, b, b).reshape(180, 180) / 60
        values = np.linalg.eigvalsh(full)
        assert made.trace == pytest.approx(values.sum())
        assert made.upper == pytest.approx(math.sqrt((values**2).sum()))
        assert made.lower == pytest.approx((values**2).sum() / values.sum())
        assert made.lambda_max == pytest.approx(values[-1])
        plain = ns.predict(
            ns.mlp([50, 60, 3], bias_variance=0.5, last_norm="batch"), outputs=u, theory="corrected"
        )
        gap = plain.A1 - plain.A2
        assert plain.trace == pytest.approx(58 / 60 * gap * (1 / u.var(axis=0)).sum())

    def test_variance_norm_only_rescales(self):
        """No norm divided by the spread of the outputs; mean subtraction removes the outlier."""
        wide = {"bias_variance": 0.5}
        plain, made, mean = (
            ns.predict(
                ns.mlp([400, 400, 1], last_norm=last, **wide), samples=None, theory="corrected"
            )
            for last in (None, "variance", "mean")
        )
        order = plain.order_parameters
        spread = order["q"][-1] - order["q_st"][-1]
        assert made.lambda_max == pytest.approx(plain.lambda_max / spread)
        assert made.trace == pytest.approx(plain.trace / spread)
        assert mean.lambda_max < 0.1 * plain.lambda_max
        assert made.lower == made.lambda_max <= made.upper
        assert ns.predict(
            ns.mlp(WIDE, last_norm="variance", **wide), samples=30, theory="corrected"
        ).ok
        odd = ns.predict(
            ns.mlp(WIDE, activation="tanh", last_norm="variance"), samples=30, theory="corrected"
        )
        assert odd.lambda_max is None
        assert "centred" in odd.reason
        assert odd.lower < odd.upper

    def test_mean_subtraction_contains_the_few_sample_value(self):
        made = ns.predict(
            ns.mlp([10**6, 60, 60, 1], last_norm="mean"), samples=4, theory="corrected"
        )
        assert made.lambda_max == pytest.approx(made.lower, rel=0.01)

    @pytest.mark.parametrize("norm", ["batch", None])
    def test_mean_subtraction_of_convolutions_has_bounds(self, norm):
        spec = ns.cnn((3, 8, 8), channels=[5], outputs=3, norm=norm, last_norm="mean")
        made = ns.predict(spec, samples=40, theory="corrected")
        assert made.lambda_max is None
        assert "dense" in made.reason

    def test_mean_subtraction_with_a_handful_of_inputs_stays_inside_its_bounds(self):
        made = ns.predict(ns.mlp([1, 60, 60, 1], last_norm="mean"), samples=2, theory="corrected")
        assert made.lower <= made.lambda_max <= made.upper
        assert "capped" in made.reason


class TestKappas:
    @pytest.mark.parametrize(
        ("act", "variances", "k1", "k2"),
        [("relu", (2.0, 0.0), 1.5, 0.34285432), ("tanh", (3.0, 0.64), 0.9555219, 0.11861537)],
    )
    def test_values_of_the_paper(self, act, variances, k1, k2):
        widths = [100, 100, 100, 1]
        pair = {"weight_variance": variances[0], "bias_variance": variances[1]}
        made = ns.predict(ns.mlp(widths, activation=act, **pair), samples=100, theory="corrected")
        assert made.alpha == pytest.approx(2.0)
        assert (made.kappa1, made.kappa2) == pytest.approx((k1, k2), rel=1e-7)
        assert made.lambda_max == pytest.approx(2 * (0.99 * k2 + 0.01 * k1) * 100, rel=1e-7)
        assert pytest.approx((200 * k1, 200 * k2), rel=1e-7) == (made.A1, made.A2)
        assert Prediction.from_json(made.to_json()) == made

    def test_norms_on_the_outputs_leave_them(self):
        plain, *others = (
            ns.predict(
                ns.mlp(WIDE, bias_variance=0.3, last_norm=last), samples=50, theory="corrected"
            )
            for last in (None, "mean", "batch", "layer")
        )
        for made in others:
            assert (made.A1, made.A2, made.kappa2) == (plain.A1, plain.A2, plain.kappa2)
        assert others[0].trace == pytest.approx(5 * (1 - 1 / 50) * (plain.A1 - plain.A2))

    def test_uneven_widths_by_hand(self):
        made = ns.predict(
            ns.mlp([30, 60, 90, 2], bias_variance=0.2), samples=40, theory="corrected"
        )
        assert made.alpha == pytest.approx(0.5 * 1 + 1 * 1.5)
        order = made.order_parameters
        fans = np.array([30, 60, 90])
        assert pytest.approx(fans @ (order["qtilde"] * order["qhat"])) == made.A1
        assert pytest.approx(fans @ (order["qtilde_st"] * order["qhat_st"])) == made.A2
        assert made.kappa1 == pytest.approx(made.A1 / made.alpha / 60)

    def test_real_inputs_give_means_over_the_data(self):
        data = np.random.default_rng(0).standard_normal((12, 20)) + 0.5
        made = ns.predict(ns.mlp([20, 3]), data=data, theory="corrected")
        gram = data @ data.T
        assert pytest.approx(np.trace(gram) / 12) == made.A1
        assert pytest.approx((gram.sum() - np.trace(gram)) / (12 * 11)) == made.A2

    def test_none_where_not_defined(self):
        cnn = ns.cnn((3, 8, 8), channels=[5], outputs=3)
        made, printed = ns.predict(cnn, samples=40, theory=("corrected", "wei2019"))
        assert made.alpha is made.kappa1 is made.kappa2 is printed.A1 is printed.A2 is None
        assert made.lambda_max == pytest.approx((39 * made.A2 + made.A1) / 40)
        assert ns.predict(ns.mlp([50, 5]), theory="corrected").alpha is None


class TestTables:
    def test_one_prediction(self):
        spec = ns.cnn((3, 16, 16), channels=[5, 7], stride=2, outputs=4, norm="batch")
        made = ns.predict(spec, samples=40, parameters="all", theory="corrected")
        frame = made.to_frame()
        assert list(frame["fan_in"]) == list(spec.fan_ins)
        assert frame["lambda_share"].sum() == pytest.approx(made.lambda_max)
        assert sum(made.per_kind.values()) == pytest.approx(made.lambda_max)
        assert made.mean_eigenvalue == pytest.approx(made.trace / spec.num_parameters("all"))
        assert "lambda_max" in made.summary()
        assert repr(made).startswith("Prediction(lambda_max=")

    def test_several(self):
        specs = [ns.mlp(WIDE, norm="batch", gamma=g) for g in (0.5, 1.0)]
        made = ns.predict(specs, theory=("corrected", "wei2019"))
        assert isinstance(made, PredictionSet)
        assert [p.theory for p in made] == ["corrected", "wei2019"] * 2
        assert len(made.select("wei2019")) == 2
        assert list(made.to_frame()["gamma"]) == [0.5, 0.5, 1.0, 1.0]
        assert made[1:3][0] == made[1]
        assert PredictionSet.from_json(made.to_json()) == made

    def test_printed_theory_counts_weights_only(self):
        made = ns.predict(ns.mlp(WIDE, norm="batch"), theory="wei2019", parameters="all")
        assert made.parameters == "weights"
        assert made.num_parameters == made.spec.num_parameters("weights")
        assert any("Weights only" in note for note in made.assumptions)

    def test_equations_name_their_papers(self):
        made = ns.predict(ns.mlp(WIDE, norm="batch"), samples=50, theory="corrected")
        assert any("docs/design/0002, train-mode batch norm" in e for e in made.equations)
        assert any(e.startswith("karakida2019") for e in made.equations)

    @pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
    def test_momentum(self, momentum):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), theory="corrected").critical_lr(momentum=momentum)
        assert "momentum" in str(error.value)
        assert repr(momentum) in str(error.value)

    def test_is_frozen(self):
        made = ns.predict(ns.mlp(WIDE), theory="corrected")
        assert isinstance(made, Prediction)
        with pytest.raises(AttributeError):
            made.lambda_max = 3.0


@pytest.mark.parametrize("kind", ["batch", "layer"])
@pytest.mark.parametrize("real", [False, True])
def test_norms_without_gain_or_shift_add_no_parameters(kind, real):
    """affine=False has neither gamma nor beta to differentiate."""
    data = np.random.default_rng(0).standard_normal((30, 50))
    given = {"data": data, "theory": "frozen"} if real else {"samples": 30, "theory": "corrected"}
    make = lambda *more: ns.predict(  # noqa: E731
        ns.mlp(WIDE, norm=NormSpec(kind, parts=("mean", "variance", *more))),
        parameters="all",
        **given,
    )
    bare, scaled, both = make(), make("scale"), make("scale", "shift")
    assert (bare.per_kind["gamma"], bare.per_kind["beta"]) == (0.0, 0.0)
    assert scaled.per_kind["beta"] == 0.0
    assert scaled.per_kind["gamma"] == pytest.approx(both.per_kind["gamma"], rel=1e-2)
    assert both.per_kind["beta"] > 0
    assert bare.num_parameters < scaled.num_parameters < both.num_parameters


def test_no_hidden_layer():
    made = ns.predict(
        ns.mlp([50, 5], bias_variance=0.1), samples=10, parameters="all", theory="corrected"
    )
    assert made.trace == pytest.approx(5 * (50 + 1))
    assert made.lambda_max == pytest.approx((50 + 1 + 9) / 10)


def test_real_inputs_that_are_orthogonal_are_the_iid_case():
    spec = ns.mlp([40, 200, 200, 3], weight_variance=2.0, bias_variance=0.4)
    data = np.eye(40) * math.sqrt(40)
    real, iid = (
        ns.predict(spec, data=data, theory="corrected"),
        ns.predict(spec, samples=40, theory="corrected"),
    )
    assert real.lambda_max == pytest.approx(iid.lambda_max, rel=1e-9)
    assert real.trace == pytest.approx(iid.trace, rel=1e-9)
    assert real.per_layer == pytest.approx(iid.per_layer, rel=1e-9)


def test_real_inputs_may_be_a_data_set():
    data = ns.load_data("digits").subset(30)
    spec = ns.mlp([64, 80, 10], bias_variance=0.3)
    made = ns.predict(spec, data=data, theory="corrected")
    assert made == ns.predict(spec, data=data.images.flatten(1).numpy(), theory="corrected")
    assert made == ns.predict(spec, data=data.flat(), theory="corrected")
    assert made.samples == 30
    gram = data.flat().images.double()
    gram = gram @ gram.T / 64  # T F* of the read-out alone, by hand
    assert ns.predict(ns.mlp([64, 1]), data=data, theory="corrected").trace == pytest.approx(
        64 * gram.trace() / 30
    )


@pytest.mark.parametrize("parameters", ["weights", "all"])
def test_real_inputs_behind_frozen_batch_norm_are_the_iid_case(parameters):
    spec = ns.mlp([60, 200, 200, 3], weight_variance=2.0, norm="batch", gamma=0.7)
    data = np.eye(60) * math.sqrt(60)
    real = ns.predict(spec, data=data, theory="frozen", parameters=parameters)
    iid = ns.predict(spec, samples=60, theory="frozen", parameters=parameters)
    assert real.lambda_max == pytest.approx(iid.lambda_max, rel=0.02)
    for kind in iid.per_kind:
        assert real.per_kind[kind] == pytest.approx(iid.per_kind[kind], rel=0.02)


@pytest.mark.parametrize("act", ["relu", "tanh", "gelu", "leaky_relu(0.1)", "erf", "softplus"])
@pytest.mark.parametrize("last_norm", [None, "mean", "layer"])
def test_deep_ordered_networks_have_no_nan(act, last_norm):
    """Two samples end at correlation one to the last bit: slopes there must stay finite."""
    spec = ns.mlp([30] * 120 + [4], activation=act, weight_variance=0.8, bias_variance=0.5,
                  last_norm=last_norm)  # fmt: skip
    made = ns.predict(spec, samples=20, theory="corrected")
    numbers = [made.lambda_max, made.lower, made.upper, made.trace, *made.per_layer]
    assert np.isfinite(numbers).all()
    assert made.lambda_max >= 0


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize("act", ["relu", "tanh", "gelu"])
def test_zero_weights(act, bias):
    made = ns.predict(
        ns.mlp([30, 40, 40, 2], activation=act, weight_variance=0.0, bias_variance=bias,
               last_norm="mean"), samples=20, theory="corrected")  # fmt: skip
    assert np.isfinite([made.lambda_max, made.lower, made.upper, made.trace]).all()
