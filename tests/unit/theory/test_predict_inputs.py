"""Bad input: every message says what, the value, why, and the way out."""

import numpy as np
import pytest

import normscope as ns
from normscope.errors import InputError, TheoryError
from normscope.spec import LayerSpec, NormSpec


def says(error, *words):
    text = str(error.value)
    for word in words:
        assert word in text, text


WIDE = [20, 30, 30, 3]


class TestSamples:
    @pytest.mark.parametrize("samples", [0, -3, 2.5, "many", True])
    def test_must_be_a_positive_integer(self, samples):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), samples=samples)
        says(error, "samples", repr(samples), "positive integer", "None")

    @pytest.mark.parametrize(
        "options", [{"norm": "batch"}, *({"last_norm": x} for x in ("mean", "variance", "batch"))]
    )
    def test_batch_statistics_need_two(self, options):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, **options), samples=1)
        says(error, "at least two samples", "samples = 1", "divide", "samples >= 2")

    def test_one_sample_is_fine_without_batch_statistics(self):
        made = ns.predict(ns.mlp(WIDE), samples=1, theory="corrected")
        assert made.lambda_max == pytest.approx(made.trace / 3)

    @pytest.mark.parametrize("samples", [2, 3])
    def test_frozen_statistics_need_more_than_three(self, samples):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, norm="batch"), samples=samples, theory="frozen")
        says(error, "more than 3", f"Got {samples}", "infinite", "corrected")

    def test_few_samples_are_flagged(self):
        made = ns.predict(ns.mlp(WIDE, norm="batch"), samples=5, theory="corrected")
        assert not made.ok
        assert "Only 5 values" in made.reason


class TestOutputs:
    LAYER = ns.mlp(WIDE, last_norm="layer")

    @pytest.mark.parametrize("last", [None, "mean"])
    def test_need_a_norm_that_divides(self, last):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, last_norm=last), outputs=np.ones((5, 3)))
        says(error, "layer, batch and variance norm", repr(last), "Leave them out")

    @pytest.mark.parametrize("shape", [(5, 4), (1, 3), (3,)])
    def test_shape(self, shape):
        with pytest.raises(InputError) as error:
            ns.predict(self.LAYER, outputs=np.ones(shape))
        says(error, "(samples, 3)", str(shape), "before the norm")

    def test_values(self):
        good = np.arange(15.0).reshape(5, 3) ** 2
        for bad, words in (
            ("many", ["must be an array"]),
            (good * np.nan, ["NaN"]),
            (np.vstack([good, np.ones(3)]), ["Sample 5", "equal outputs"]),
        ):
            with pytest.raises(InputError) as error:
                ns.predict(self.LAYER, outputs=bad)
            says(error, *words)
        with pytest.raises(InputError) as error:
            ns.predict(self.LAYER, outputs=good, samples=7)
        says(error, "samples = 7", "5 rows")
        with pytest.raises(InputError) as error:
            ns.predict(self.LAYER, outputs=good, data=np.ones((5, 20)))
        says(error, "both given")
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, last_norm="batch"), outputs=good * 0 + 1)
        says(error, "variance over the data", "zero")


class TestNames:
    def test_theory(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), theory="wei2018")
        says(error, "theory", "'wei2018'", "Did you mean 'wei2019'", "corrected")

    def test_parameters(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), parameters="weight")
        says(error, "'weight'", "Did you mean 'weights'")

    def test_not_a_spec(self):
        with pytest.raises(InputError) as error:
            ns.predict([ns.mlp(WIDE), "resnet"])
        says(error, "NetworkSpecs", "'resnet'", "mlp, cnn or residual_mlp")

    def test_nothing_to_predict(self):
        with pytest.raises(InputError) as error:
            ns.predict([])
        says(error, "at least one spec")

    def test_seed(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), seed=-1)
        says(error, "seed", "-1")


class TestOutsideTheTheory:
    def test_mixed_norms(self):
        hidden = (
            LayerSpec(30, 2.0, 0.0, activation="relu", norm=NormSpec("batch")),
            LayerSpec(30, 2.0, 0.0, activation="relu"),
        )
        spec = ns.NetworkSpec((20,), (*hidden, LayerSpec(3, 2.0, 0.0)))
        with pytest.raises(TheoryError) as error:
            ns.predict(spec, theory="corrected")
        says(error, "share one norm", "1: batch, 2: none", "Measure")

    def test_norm_without_mean(self):
        norm = NormSpec("layer", parts=("variance", "scale"))
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, norm=norm))
        says(error, "mean and variance", "'variance'", "Measure")

    def test_norm_inside_residual_branches(self):
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.residual_mlp(WIDE, norm="batch"), theory="corrected")
        says(error, "residual", "'batch'", "norm=None")

    def test_printed_theory_covers_no_layer_norm(self):
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, norm="layer"), theory="wei2019")
        says(error, "wei2019", "layer norm", "corrected")

    def test_printed_theory_covers_no_residual_networks(self):
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.residual_mlp(WIDE), theory="wei2019")
        says(error, "residual branches", "corrected")

    def test_norm_of_a_constant(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, weight_variance=0.0, norm="batch"), theory="corrected")
        says(error, "weight_variance is 0", "divide by zero", "positive")
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, weight_variance=0.0, norm="layer"), theory="corrected")
        says(error, "both 0", "divide by zero")

    def test_outputs_without_spread(self):
        for last in ("batch", "layer"):
            with pytest.raises(TheoryError) as error:
                ns.predict(ns.mlp(WIDE, weight_variance=0.0, last_norm=last), samples=10)
            says(error, "zero")

    def test_explosion_beyond_float64(self):
        deep = ns.mlp([10] * 400 + [1], weight_variance=200.0)
        with pytest.raises(TheoryError) as error:
            ns.predict(deep, theory="corrected")
        says(error, "float64", "layer", "explode", "phase_diagram")


class TestRealInputs:
    def test_nan(self):
        data = np.ones((4, 20))
        data[2, 3] = np.nan
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), data=data)
        says(error, "NaN", "sample 2")

    def test_one_sample(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), data=np.ones((1, 20)))
        says(error, "two samples", "(1, 20)")

    def test_wrong_width(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), data=np.ones((4, 7)))
        says(error, "7 features", "20")

    def test_samples_that_contradict_the_rows(self):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), data=np.ones((4, 20)), samples=5)
        says(error, "samples = 5", "4 rows")

    @pytest.mark.parametrize("theory", ["corrected", "wei2019"])
    def test_batch_norm_is_for_the_frozen_theory(self, theory):
        data = np.random.default_rng(0).standard_normal((9, 20))
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, norm="batch"), data=data, theory=theory)
        says(error, "theory='frozen'", repr(theory), "measure")
        assert ns.predict(ns.mlp(WIDE, norm="batch"), data=data, theory="frozen").lambda_max > 0

    def test_copies_behind_batch_norm(self):
        data = np.repeat(np.random.default_rng(0).standard_normal((2, 20)), 4, axis=0)
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, norm="batch"), data=data, theory="frozen")
        says(error, "3 directions", "Found 1", "infinite", "more samples")

    def test_convolutions_and_residual_networks(self):
        spec = ns.cnn((1, 4, 5), channels=[3], outputs=2)
        with pytest.raises(TheoryError) as error:
            ns.predict(spec, data=np.ones((4, 20)), theory="corrected")
        says(error, "dense networks", "correlated", "measure")
        with pytest.raises(TheoryError):
            ns.predict(ns.residual_mlp(WIDE), data=np.ones((4, 20)), theory="corrected")

    def test_norm_on_the_outputs(self):
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, last_norm="layer"), data=np.eye(20), theory="corrected")
        says(error, "'layer'", "last_norm='mean'")

    def test_blocked_signal(self):
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, norm="layer", gamma=0.0), data=np.eye(20), theory="corrected")
        says(error, "gamma is 0 in layer 1", "positive gamma")
        with pytest.raises(TheoryError) as error:
            ns.predict(ns.mlp(WIDE, norm="batch", weight_variance=0.0), data=np.eye(20),
                       theory="frozen")  # fmt: skip
        says(error, "weight_variance is 0 in layer 1")


class TestDegenerateData:
    @pytest.mark.parametrize("last_norm", [None, "mean"])
    def test_samples_without_gradient(self, last_norm):
        made = ns.predict(
            ns.mlp(WIDE, last_norm=last_norm), data=np.zeros((5, 20)), theory="corrected"
        )
        assert (made.lambda_max, made.lower, made.upper, made.trace) == (0.0, 0.0, 0.0, 0.0)
        assert "zero or copies" in made.reason

    def test_copies_behind_mean_subtraction(self):
        made = ns.predict(ns.mlp(WIDE, last_norm="mean"), data=np.ones((5, 20)), theory="corrected")
        assert (made.lambda_max, made.lower, made.trace) == (0.0, 0.0, 0.0)

    def test_a_silent_sample_before_layer_norm(self):
        data = np.random.default_rng(0).standard_normal((6, 20))
        data[3] = 0.0
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE, norm="layer"), data=data, theory="corrected")
        says(error, "Sample 3", "zero", "bias_variance > 0")
        made = ns.predict(
            ns.mlp(WIDE, norm="layer", bias_variance=0.1), data=data, theory="corrected"
        )
        assert made.lambda_max > 0

    @pytest.mark.parametrize(
        ("data", "word"),
        [
            ([[1.0, 2.0], [3.0]], "one sample per row"),
            ("data.npy", "real numbers"),
            (np.ones((4, 20)) * 1j, "complex"),
            (np.full((4, 20), 1e200), "Standardize"),
        ],
    )
    def test_what_is_not_data(self, data, word):
        with pytest.raises(InputError) as error:
            ns.predict(ns.mlp(WIDE), data=data)
        says(error, "data", word)


@pytest.mark.parametrize("spec", [5, None, "mlp"])
def test_what_is_not_a_spec(spec):
    with pytest.raises(InputError) as error:
        ns.predict(spec)
    says(error, "NetworkSpec", repr(spec))


def test_what_is_not_a_theory():
    with pytest.raises(InputError) as error:
        ns.predict(ns.mlp(WIDE), theory=None)
    says(error, "theory", "None", "corrected")
