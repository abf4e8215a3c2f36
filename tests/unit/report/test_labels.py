"""Names in legends say what differs, and nothing else."""

from dataclasses import replace

import normscope as ns
from normscope.report.labels import network_labels, network_name, setting


def labels(*specs, **options):
    return network_labels(ns.predict(list(specs), **options))


def test_equal_networks_are_named_by_their_norm():
    nets = [ns.mlp([4, 5, 2]), *(ns.mlp([4, 5, 2], norm=n) for n in ("batch", "layer"))]
    assert labels(*nets) == ["no norm", "batch norm", "layer norm"]


def test_what_differs_is_added():
    one = {"weight_variance": 1.5}
    assert labels(ns.mlp([4, 5, 2], **one), ns.mlp([4, 6, 6, 2], **one)) == [
        "no norm, mlp 4-5-2",
        "no norm, mlp 4-6x2-2",
    ]
    assert labels(
        ns.mlp([4, 5, 2], **one), ns.mlp([4, 5, 2], activation="tanh", last_norm="mean")
    ) == [
        "no norm, relu, σ_w² = 1.5",
        "no norm, tanh, σ_w² = 2, mean subtraction on outputs",
    ]
    assert labels(*(ns.cnn((3, 9, 9), channels=[4], stride=s) for s in (1, 2))) == [
        "no norm, stride 1",
        "no norm, stride 2",
    ]
    assert labels(*(ns.residual_mlp([5, 5, 2], branch_scale=b) for b in (0.1, 1))) == [
        "no norm, branch × 0.1",
        "no norm, branch × 1",
    ]


def test_names_of_networks():
    assert network_name(ns.mlp([784, 100, 100, 10])) == "mlp 784-100x2-10"
    assert network_name(ns.cnn((3, 9, 9), channels=[4, 8], outputs=5)) == "cnn 3-4-8-5"
    image = replace(ns.mlp([64, 100, 10]), input_shape=(1, 8, 8))  # flattened by its first layer
    assert network_name(image) == "mlp 64-100-10"
    drawn = ns.predict(image).chart().to_dict()["datasets"]
    assert [row["sizes"] for data in drawn.values() for row in data] == ["64 → 100", "100 → 10"]
    assert network_name(ns.residual_mlp([5, 5, 2])) == "residual mlp 5x2-2"


def test_the_setting_is_what_all_share():
    spec = ns.mlp([4, 5, 2], bias_variance=0.5)
    assert setting([ns.predict(spec)]) == (
        "mlp 4-5-2: relu, σ_w² = 2, σ_b² = 0.5, T → ∞, weights only"
    )
    other = ns.mlp([4, 5, 2], bias_variance=0.7, activation="tanh")
    assert setting([ns.predict(spec), ns.predict(other)]) == (
        "mlp 4-5-2: σ_w² = 2, T → ∞, weights only"
    )
    wide = ns.mlp([4, 9, 2], bias_variance=0.5, last_norm="mean")
    few = {"samples": 9, "parameters": "all"}
    assert setting([ns.predict(spec, **few), ns.predict(wide, **few)]) == (
        "relu, σ_w² = 2, σ_b² = 0.5, T = 9, all parameters"
    )
    assert "mean subtraction on outputs" in setting([ns.predict(wide)])
    assert setting([ns.predict(ns.mlp([4, 2]))]).startswith("mlp 4-2: σ_w²")
