"""Networks as data: what they count, and what they refuse."""

import math

import pytest

import normscope as ns
from normscope.errors import InputError
from normscope.spec import LayerSpec, NetworkSpec, NormSpec, activation


def refused(make, *words):
    with pytest.raises(InputError) as error:
        make()
    for word in words:
        assert word in str(error.value), str(error.value)


class TestCounting:
    def test_dense(self):
        spec = ns.mlp([784, 100, 50, 10], norm="batch", gamma=0.5)
        assert spec.depth == 3
        assert spec.outputs == 10
        assert spec.widths == (784, 100, 50, 10)
        assert spec.fan_ins == (784, 100, 50)
        assert spec.norm == NormSpec("batch", 0.5)
        assert spec.num_parameters() == 784 * 100 + 100 * 50 + 50 * 10
        assert spec.num_parameters("all") == spec.num_parameters() + 160 + 2 * 150

    def test_convolutions(self):
        spec = ns.cnn((3, 32, 32), channels=[30, 60, 90], kernel=3, stride=2)
        assert spec.positions == (1024, 225, 49, 9, 1)
        assert spec.fan_ins == (27, 270, 540, 810)
        pooled = ns.cnn((3, 32, 32), channels=[30, 60, 90], kernel=3, stride=2, head="pool")
        assert pooled.fan_ins == (27, 270, 540, 90)
        padded = ns.cnn((3, 8, 8), channels=[4], padding=1)
        assert padded.positions == (64, 64, 1)

    def test_image_into_a_dense_network(self):
        spec = NetworkSpec((3, 8, 8), (LayerSpec(5, 1.0, 0.0),))
        assert spec.fan_ins == (192,)

    def test_residual(self):
        spec = ns.residual_mlp([20, 30, 30, 2], branch_scale=0.5)
        assert spec.branch_scale == 0.5


class TestRefusals:
    @pytest.mark.parametrize("width", [0, -3, 2.5, "ten", True])
    def test_widths(self, width):
        refused(lambda: ns.mlp([10, width, 3]), "outputs", "at least 1", repr(width))
        refused(lambda: ns.mlp([width, 10, 3]), "input_shape", "at least 1", repr(width))
        refused(lambda: ns.cnn((3, 8, 8), channels=[width]), "outputs", repr(width))

    @pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "big", None])
    @pytest.mark.parametrize("name", ["weight_variance", "bias_variance"])
    def test_variances(self, name, value):
        refused(lambda: ns.mlp([10, 10, 3], **{name: value}), name, "variance", repr(value))

    @pytest.mark.parametrize("gamma", [-0.5, math.nan, math.inf, "one"])
    def test_gamma(self, gamma):
        word = "negative" if gamma == -0.5 else "finite"
        refused(lambda: ns.mlp([10, 10, 3], norm="batch", gamma=gamma), "gamma", word, str(gamma))

    def test_gamma_without_norm(self):
        refused(lambda: ns.mlp([10, 10, 3], gamma=0.5), "gamma = 0.5", "no norm", "norm='batch'")

    def test_gamma_that_contradicts_the_norm(self):
        norm = NormSpec("batch", 0.3)
        refused(lambda: ns.mlp([10, 10, 3], norm=norm, gamma=0.5), "contradicts", "0.3", "0.5")

    def test_norm_names(self):
        refused(lambda: ns.mlp([10, 10, 3], norm="batchnorm"), "'batchnorm'", "'batch'", "layer")
        refused(lambda: ns.mlp([10, 10, 3], last_norm="means"), "last_norm", "'means'", "'mean'")
        refused(lambda: NormSpec("batch", parts=("mena",)), "'mena'", "'mean'")

    @pytest.mark.parametrize("eps", [-1.0, math.nan])
    def test_eps(self, eps):
        refused(lambda: NormSpec("batch", eps=eps), "eps", repr(eps))

    def test_activation_names(self):
        refused(
            lambda: ns.mlp([10, 10, 3], activation="rellu"), "'rellu'", "Did you mean", "'relu'"
        )
        refused(lambda: activation("leaky_relu(steep)"), "leaky_relu", "number", "'steep'")
        refused(lambda: activation("relu(3)"), "'relu'", "no parameter")
        refused(lambda: activation("erf(-1)"), "erf", "positive", "-1")
        refused(lambda: activation(3), "name", "3", "register_activation")

    def test_one_value_where_several_are_needed(self):
        refused(lambda: ns.mlp(784), "widths", "784", "brackets")
        refused(lambda: ns.mlp("784-10"), "widths", "'784-10'")
        refused(lambda: ns.cnn((3, 8, 8), channels=4), "channels", "4")
        refused(lambda: ns.cnn(3, channels=[4]), "input_shape", "3")
        refused(lambda: NormSpec("batch", parts="mean"), "parts", "'mean'")
        refused(lambda: NetworkSpec((3,), (4,)), "LayerSpec", "4")

    def test_what_is_not_a_number(self):
        refused(lambda: NormSpec("batch", eps=None), "eps", "None")
        refused(lambda: ns.residual_mlp([3, 4, 2], branch_scale="half"), "branch_scale", "'half'")

    def test_a_layer_takes_the_name_of_a_norm(self):
        assert LayerSpec(4, 1.0, 0.0, activation="relu", norm="batch").norm == NormSpec("batch")
        refused(lambda: LayerSpec(4, 1.0, 0.0, activation="relu", norm="bach"), "'bach'", "'batch'")

    def test_too_few_layers(self):
        refused(lambda: ns.mlp([10]), "input and an output", "[10]")
        refused(lambda: NetworkSpec((10,), ()), "at least one layer")

    def test_stride_that_leaves_no_positions(self):
        refused(
            lambda: ns.cnn((3, 8, 8), channels=[4, 4, 4], kernel=3, stride=3),
            "Layer 2",
            "no positions",
            "stride 3",
            "side 2",
            "smaller kernel or stride",
        )

    def test_shapes_and_heads(self):
        refused(lambda: ns.cnn((8, 8), channels=[4]), "(channels, height, width)", "(8, 8)")
        refused(lambda: ns.cnn((3, 8, 8), channels=[4], head="flat"), "'flat'", "'flatten'")
        conv = LayerSpec(4, 1.0, 0.0, activation="relu", kernel=3)
        refused(lambda: NetworkSpec((10,), (conv, LayerSpec(2, 1.0, 0.0))), "convolution", "(10,)")
        refused(lambda: NetworkSpec((3, 8, 8), (conv,)), "read-out", "last_norm")
        hidden = LayerSpec(4, 1.0, 0.0, activation="relu")
        order = (hidden, conv, LayerSpec(2, 1.0, 0.0))
        refused(lambda: NetworkSpec((3, 8, 8), order), "before dense")
        bare = (LayerSpec(4, 1.0, 0.0), LayerSpec(2, 1.0, 0.0))
        refused(lambda: NetworkSpec((10,), bare), "needs an activation", "'linear'")

    def test_residual_shapes(self):
        refused(lambda: ns.residual_mlp([10, 20, 30, 2]), "one hidden width", "[20, 30]")
        refused(lambda: ns.residual_mlp([10, 20, 2], branch_scale=math.nan), "branch_scale", "nan")


class TestData:
    def test_names_are_canonical(self):
        assert ns.mlp([3, 4, 2], activation="leaky_relu").layers[0].activation == "leaky_relu(0.01)"
        assert ns.mlp([3, 4, 2], activation="leaky-relu(0.10)") == ns.mlp(
            [3, 4, 2], activation="leaky_relu(0.1)"
        )

    def test_is_hashable_and_comparable(self):
        a, b = ns.mlp([3, 4, 2]), ns.mlp([3, 5, 2])
        assert a != b
        assert len({a, ns.mlp([3, 4, 2]), b}) == 2

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            ns.mlp([3, 4, 2]).head = "pool"

    def test_parts_have_one_order(self):
        assert NormSpec("layer", parts=("scale", "mean")).parts == ("mean", "scale")
