"""Names for networks in a legend: what sets each apart from the others, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.results import Prediction
from normscope.spec import NetworkSpec

_LAST = {"mean": "mean subtraction", "variance": "variance norm"}
_LAYERS = ("activation", "weight", "bias", "last", "kernel", "stride", "padding", "head", "branch")
_LAST |= {"batch": "batch norm", "layer": "layer norm"}


def network_labels(predictions: Sequence[Prediction]) -> list[str]:
    """One label per prediction: the norm, and every other trait in which the networks differ."""
    traits = [_traits(prediction) for prediction in predictions]
    varying = [name for name in traits[0] if len({trait[name] for trait in traits}) > 1]
    labels = []
    for prediction, trait in zip(predictions, traits, strict=True):
        others = [trait[name] for name in varying if trait[name]]
        labels.append(", ".join([_norm(prediction), *others]))
    return labels


def network_name(spec: NetworkSpec) -> str:
    """Architecture and widths, equal neighbours counted: ``mlp 784-1000x3-10``."""
    conv = any(layer.is_conv for layer in spec.layers)
    kind = "cnn" if conv else "mlp" if spec.branch_scale is None else "residual mlp"
    runs: list[list[int]] = []
    for width in sizes(spec):
        if runs and runs[-1][0] == width:
            runs[-1][1] += 1
        else:
            runs.append([width, 1])
    return f"{kind} " + "-".join(f"{w}x{n}" if n > 1 else str(w) for w, n in runs)


def sizes(spec: NetworkSpec) -> tuple[int, ...]:
    """Units or channels, input first; a dense layer takes an image as a row of numbers."""
    first = spec.widths[0] if spec.layers[0].is_conv else spec.fan_ins[0]
    return (first, *spec.widths[1:])


def setting(predictions: Sequence[Prediction]) -> str:
    """What the predictions of one chart have in common, for its subtitle."""
    first, *others = [_traits(prediction) for prediction in predictions]
    common = [text for name, text in first.items() if text and all(o[name] == text for o in others)]
    if common and common[0] == first["network"]:
        return f"{common[0]}: {', '.join(common[1:])}"
    return ", ".join(common)


def _norm(prediction: Prediction) -> str:
    spec = prediction.spec
    if spec is None:
        return prediction.network
    return "no norm" if spec.norm is None else f"{spec.norm.kind} norm"


def _traits(prediction: Prediction) -> dict[str, str]:
    limit = "T → ∞" if prediction.samples is None else f"T = {prediction.samples}"
    counted = "weights only" if prediction.parameters == "weights" else "all parameters"
    common = {"samples": limit, "parameters": counted}
    spec = prediction.spec
    if spec is None:  # read off a module
        return {"network": prediction.network, **dict.fromkeys(_LAYERS, ""), **common}
    first = spec.layers[0]
    return {
        "network": network_name(spec),
        "activation": first.activation or "",
        "weight": f"σ_w² = {first.weight_variance:g}",
        "bias": f"σ_b² = {first.bias_variance:g}",
        "last": f"{_LAST[spec.last_norm]} on outputs" if spec.last_norm else "",
        "kernel": f"kernel {first.kernel}" if first.is_conv else "",
        "stride": f"stride {first.stride}" if first.is_conv else "",
        "padding": f"padding {first.padding}" if first.is_conv else "",
        "head": spec.head if first.is_conv else "",
        "branch": "" if spec.branch_scale is None else f"branch × {spec.branch_scale:g}",
        **common,
    }
