"""The short forms a user types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from normscope.errors import InputError
from normscope.spec.network import LayerSpec, NetworkSpec
from normscope.spec.norms import NormSpec, listed, norm_spec


def mlp(
    widths: Sequence[int],
    *,
    activation: str = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    norm: str | NormSpec | None = None,
    gamma: float | None = None,
    last_norm: str | None = None,
) -> NetworkSpec:
    """A fully connected network.

    Args:
        widths: input, hidden and output sizes, e.g. ``[784, 1000, 1000, 10]``.
        activation: after every hidden layer.
        weight_variance: sigma_w^2; weights are N(0, sigma_w^2 / fan_in).
        bias_variance: sigma_b^2.
        norm: None, ``"batch"``, ``"layer"`` or a ``NormSpec``, before every activation.
        gamma: the norm's gain (1 if not given).
        last_norm: None, ``"mean"``, ``"variance"``, ``"batch"`` or ``"layer"``, on the outputs.

    Example:
        >>> mlp([784, 1000, 10], norm="batch", gamma=0.5).fan_ins
        (784, 1000)
    """
    widths = listed("widths", widths)
    if len(widths) < 2:
        raise InputError(f"An MLP needs an input and an output width. Got {widths}.")
    made = norm_spec(norm, gamma)
    hidden = [
        LayerSpec(w, weight_variance, bias_variance, activation=activation, norm=made)
        for w in widths[1:-1]
    ]
    readout = LayerSpec(widths[-1], weight_variance, bias_variance)
    return NetworkSpec((widths[0],), (*hidden, readout), last_norm=last_norm)


def cnn(
    input_shape: Sequence[int],
    *,
    channels: Sequence[int],
    kernel: int = 3,
    stride: int = 1,
    padding: int = 0,
    outputs: int = 10,
    head: str = "flatten",
    activation: str = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    norm: str | NormSpec | None = None,
    gamma: float | None = None,
    last_norm: str | None = None,
) -> NetworkSpec:
    """A convolutional network with a dense read-out.

    Args:
        input_shape: (channels, height, width).
        channels: number of channels of each convolution.
        kernel: side of the square kernels.
        stride: stride of every convolution.
        padding: zeros on every side.
        outputs: number of classes.
        head: ``"flatten"`` or ``"pool"`` (global average) before the read-out.
        activation: after every convolution.
        weight_variance: sigma_w^2; weights are N(0, sigma_w^2 / fan_in).
        bias_variance: sigma_b^2.
        norm: None, ``"batch"``, ``"layer"`` or a ``NormSpec``, before every activation.
        gamma: the norm's gain (1 if not given).
        last_norm: None, ``"mean"``, ``"variance"``, ``"batch"`` or ``"layer"``, on the outputs.

    Example:
        >>> cnn((3, 32, 32), channels=[30, 60, 90], stride=2).positions
        (1024, 225, 49, 9, 1)
    """
    made = norm_spec(norm, gamma)
    hidden = [
        LayerSpec(c, weight_variance, bias_variance, activation, made, kernel, stride, padding)
        for c in listed("channels", channels)
    ]
    readout = LayerSpec(outputs, weight_variance, bias_variance)
    shape = tuple(listed("input_shape", input_shape))
    return NetworkSpec(shape, (*hidden, readout), last_norm=last_norm, head=head)


def residual_mlp(
    widths: Sequence[int],
    *,
    branch_scale: float = 1.0,
    activation: str = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.0,
    norm: str | NormSpec | None = None,
    gamma: float | None = None,
    last_norm: str | None = None,
) -> NetworkSpec:
    """A fully connected residual network.

    The first layer maps the input to the stream x_1; then
    x_l = x_(l-1) + beta (W_l phi(x_(l-1)) + b_l), and the read-out is W_L phi(x_(L-1)) + b_L.

    Args:
        widths: input, equal hidden widths, outputs.
        branch_scale: beta.
        activation: phi.
        weight_variance: sigma_w^2.
        bias_variance: sigma_b^2.
        norm: norms inside the branches; the theory covers None only.
        gamma: the norm's gain.
        last_norm: None, ``"mean"``, ``"variance"``, ``"batch"`` or ``"layer"``, on the outputs.

    Example:
        >>> residual_mlp([500] * 5 + [1], weight_variance=2.0).depth
        5
    """
    plain = mlp(
        widths,
        activation=activation,
        weight_variance=weight_variance,
        bias_variance=bias_variance,
        norm=norm,
        gamma=gamma,
        last_norm=last_norm,
    )
    return replace(plain, branch_scale=branch_scale)
