"""Layers that normalize, written as torch, this library and others write them, and look-alikes."""

import functools

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from normscope.nn import norm as own

C = 6


class Vector(nn.Module):
    """A weight, and a bias if asked for."""

    def __init__(self, size=C, bias=False, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))
        if bias:
            self.bias = nn.Parameter(torch.zeros(size))


class LlamaLike(nn.Module):
    """Hugging Face's RMSNorm, line by line."""

    def __init__(self, size=C, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class T5Like(Vector):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class GemmaLike(Vector):
    """Multiplies by 1 + weight."""

    eps = 1e-6

    def forward(self, x):
        return (1 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class LayerNorm2d(nn.LayerNorm):
    """Torchvision's: layer norm of the channels of a feature map."""

    def forward(self, x):
        x = functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return x.permute(0, 3, 1, 2)


class FrozenBatchNorm2d(nn.Module):
    """Torchvision's: an affine map."""

    def __init__(self, size=C, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(size))
        self.register_buffer("bias", torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x):
        scale = self.weight.reshape(1, -1, 1, 1)
        scale = scale * (self.running_var.reshape(1, -1, 1, 1) + self.eps).rsqrt()
        shift = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        return x * scale + shift


class TheirBatchNorm(nn.Module):
    """Written out, with names of its own."""

    def __init__(self, size=C, eps=1e-3):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, size, 1, 1))
        self.b = nn.Parameter(torch.zeros(1, size, 1, 1))
        self.epsilon = eps
        self.register_buffer("moving_mean", torch.zeros(size))
        self.register_buffer("moving_var", torch.ones(size))

    def forward(self, x):
        mean, var = self.moving_mean, self.moving_var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            with torch.no_grad():
                self.moving_mean.lerp_(mean, 0.1)
                self.moving_var.lerp_(var, 0.1)
        x = (x - mean[:, None, None]) * torch.rsqrt(var[:, None, None] + self.epsilon)
        return x * self.g + self.b


class UnbiasedBatchNorm(Vector):
    """Divides by torch's default deviation, in both modes."""

    def forward(self, x):
        return self.weight * (x - x.mean(0)) / x.std(0)


class PowerLike(Vector):
    """Power norm: the batch's mean square, no mean."""

    eps = 1e-5

    def __init__(self, size=C):
        super().__init__(size, bias=True)
        self.eps = 1e-5
        self.register_buffer("phi", torch.ones(size))

    def forward(self, x):
        power = x.square().mean((0, 1)) if self.training else self.phi
        return x * torch.rsqrt(power + self.eps) * self.weight + self.bias


class ScaleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


class PixelNorm(nn.Module):
    """Without parameters."""

    def forward(self, x):
        return x / torch.sqrt(x.square().mean(1, keepdim=True) + 1e-8)


class PlainGroups(Vector):
    """Group norm written out."""

    def __init__(self, size=C, groups=2):
        super().__init__(size, bias=True)
        self.groups = groups

    def forward(self, x):
        y = x.reshape(len(x), self.groups, -1)
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        shape = (1, -1, *[1] * (x.ndim - 2))
        return y.reshape(x.shape) * self.weight.view(shape) + self.bias.view(shape)


class PlainInstance(Vector):
    def forward(self, x):
        y = x - x.mean((2, 3), keepdim=True)
        y = y / (y.square().mean((2, 3), keepdim=True) + 1e-5).sqrt()
        return y * self.weight.view(1, -1, 1, 1)


class PlainFilterResponse(Vector):
    """Filter response norm, with parameters in the shape of the maps."""

    def __init__(self, size=C):
        nn.Module.__init__(self)
        self.gamma = nn.Parameter(torch.ones(1, size, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, size, 1, 1))
        self.eps = 1e-6

    def forward(self, x):
        square = x.square().mean((2, 3), keepdim=True)
        return self.gamma * x * torch.rsqrt(square + self.eps) + self.beta


class Stubborn(Vector):
    """A norm that takes one shape only."""

    def forward(self, x):
        assert x.shape[1:] == (4, 9, C)
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt()


class TwoInputsNorm(Vector):
    """Cannot be run without its second input."""

    def forward(self, x, condition):
        return functional.layer_norm(x, (C,), self.weight) + condition


class Protocol(Vector):
    """Another library's batch norm with the two documented methods."""

    def batch_statistics(self, x):
        return x.mean(0), x.var(0, unbiased=False)

    def normalize(self, x, mean, var):
        return self.weight * (x - mean) / (var + 1e-5).sqrt()

    def forward(self, x):
        return self.normalize(x, *self.batch_statistics(x))


class MeanOnly(Protocol):
    def batch_statistics(self, x):
        return (x.mean(0),)

    def normalize(self, x, mean):
        return self.weight * (x - mean)


class NormalizedLinear(nn.Linear):
    """Called a norm, and none: weight standardization."""

    def forward(self, x):
        return functional.linear(x, functional.normalize(self.weight), self.bias)


class CosineClassifier(nn.Linear):
    def forward(self, x):
        return functional.linear(functional.normalize(x), functional.normalize(self.weight))


class DyT(Vector):
    def __init__(self, size=C):
        super().__init__(size, bias=True)
        self.alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return torch.tanh(self.alpha * x) * self.weight + self.bias


class GRN(Vector):
    """ConvNeXt V2's response norm: keeps the size of its input."""

    def __init__(self, size=C):
        super().__init__(size, bias=True)

    def forward(self, x):
        size = x.norm(dim=(1, 2), keepdim=True)
        return self.weight * (x * size / (size.mean(-1, keepdim=True) + 1e-6)) + self.bias + x


class LayerScale(Vector):
    def forward(self, x):
        return self.weight * x


class Softmax(Vector):
    def forward(self, x):
        return self.weight * x.softmax(-1)


class Sign(Vector):
    def forward(self, x):
        return self.weight * x.sign()


class Wrapped(nn.Module):
    """A norm of another layout inside."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(C)

    def forward(self, x):
        return self.norm(x.transpose(1, -1)).transpose(1, -1)


class PostNorm(nn.Module):
    """Scale invariant, and no norm: it has a matrix."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(C))

    def forward(self, x):
        return functional.layer_norm(x @ self.weight, (C,))


def llama():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return LlamaRMSNorm(C)


def qwen():
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    return Qwen3RMSNorm(C)


def t5():
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    return T5LayerNorm(C)


def gemma():
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    return GemmaRMSNorm(C)


def convnext(layout):
    from transformers.models.convnext.modeling_convnext import ConvNextLayerNorm

    return ConvNextLayerNorm(C, data_format=layout)


def monai(name, **options):
    from monai.networks.layers.utils import get_norm_layer

    return get_norm_layer((name, options), spatial_dims=2, channels=C)


def zero_scale(make):
    layer = make()
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
    return layer


ROWS, TOKENS, MAPS = (8, C), (8, 5, C), (8, C, 4, 4)
FULL = ("mean", "variance", "scale", "shift")
BATCH = {"kind": "batch", "kept": ("channel",), "channel_axis": 1, "over_batch": True,
         "parts": FULL, "centred": True, "scale": "weight", "shift": "bias"}  # fmt: skip
LAYER = {"kind": "layer", "kept": ("sample", "position"), "channel_axis": -1, "over_batch": False,
         "parts": FULL, "centred": True, "scale": "weight", "shift": "bias"}  # fmt: skip
RMS = {**LAYER, "kind": "rms", "parts": ("variance", "scale"), "centred": False, "shift": None}
GROUP = {**LAYER, "kind": "group", "kept": ("sample",), "channel_axis": 1, "groups": 2}
INSTANCE = {**LAYER, "kind": "instance", "kept": ("sample", "channel"), "channel_axis": 1}
RESPONSE = {**INSTANCE, "kind": "frn", "parts": FULL[1:], "centred": False}
PLAIN = {"parts": FULL[:2], "scale": None, "shift": None}
SCALED = {"parts": FULL[:3], "shift": None}
STORED = {"stored": ("running_mean", "running_var")}
partial = functools.partial

# name -> (make, shape of an input, what its card says)
NORMS = {
    "torch batch 1d": (partial(nn.BatchNorm1d, C), ROWS, {**BATCH, **STORED, "formula": True}),
    "torch batch 2d": (partial(nn.BatchNorm2d, C), MAPS, {**BATCH, **STORED, "always": False}),
    "torch batch 3d": (partial(nn.BatchNorm3d, C), (4, C, 2, 2, 2), {**BATCH, "eps": 1e-5}),
    "torch batch, no affine": (partial(nn.BatchNorm2d, C, affine=False), MAPS, {**BATCH, **PLAIN}),
    "torch batch, no statistics": (
        partial(nn.BatchNorm1d, C, track_running_stats=False), ROWS,
        {**BATCH, "stored": None, "always": True},
    ),
    "torch batch, evaluation": (lambda: nn.BatchNorm1d(C).eval(), ROWS, {**BATCH, **STORED}),
    "torch synchronized": (partial(nn.SyncBatchNorm, C), None, {**BATCH, **STORED}),
    "torch instance": (partial(nn.InstanceNorm2d, C), MAPS, {**INSTANCE, **PLAIN}),
    "torch instance, affine": (partial(nn.InstanceNorm1d, C, affine=True), (8, C, 5), INSTANCE),
    "torch layer": (partial(nn.LayerNorm, C), TOKENS, LAYER),
    "torch layer, three axes": (
        partial(nn.LayerNorm, (C, 4, 4)), MAPS, {**LAYER, "kept": ("sample",), "channels": 0}
    ),
    "torch group": (partial(nn.GroupNorm, 2, C), MAPS, GROUP),
    "torch one group": (
        partial(nn.GroupNorm, 1, C), MAPS, {**GROUP, "kind": "layer", "groups": 1}
    ),
    "torch rms": (partial(nn.RMSNorm, C), TOKENS, {**RMS, "eps": None}),
    "torch response": (
        partial(nn.LocalResponseNorm, 3), MAPS, {"kind": "response", "channels": 0}
    ),
    "own batch": (partial(own.BatchNorm, C), MAPS, {**BATCH, **STORED, "formula": True}),
    "own batch, channels last": (
        partial(own.BatchNorm, C, channel_axis=-1), TOKENS, {**BATCH, "channel_axis": -1}
    ),
    "own batch, scale and shift": (
        partial(own.BatchNorm, C, parts=("scale", "shift")), MAPS,
        {**BATCH, "over_batch": False, "parts": FULL[2:]},
    ),
    "own batch, mean": (
        partial(own.BatchNorm, C, parts=("mean",)), ROWS, {**BATCH, **PLAIN, "parts": ("mean",)}
    ),
    "own batch, frozen": (
        partial(own.BatchNorm, C, every=None), ROWS,
        {**BATCH, "over_batch": False, "formula": False},
    ),
    "own batch, alternating": (
        partial(own.BatchNorm, C, every=2), ROWS, {**BATCH, "formula": False}
    ),
    "own ghost batch": (
        partial(own.BatchNorm, C, statistics_batch=4), MAPS,
        {**BATCH, **STORED, "formula": False, "statistics_batch": 4},
    ),
    "own population": (
        partial(own.PopulationNorm, C), None, {**BATCH, "kind": "population", "over_batch": False}
    ),
    "own layer": (partial(own.LayerNorm, C), TOKENS, LAYER),
    "own group": (partial(own.GroupNorm, 2, C), MAPS, GROUP),
    "own rms": (partial(own.RMSNorm, C), TOKENS, RMS),
    "own rms, channels first": (
        partial(own.RMSNorm, C, channels_first=True), MAPS, {**RMS, "channel_axis": 1}
    ),
    "Llama": (llama, TOKENS, {**RMS, "eps": 1e-6}),
    "Llama, written out": (LlamaLike, TOKENS, {**RMS, "eps": 1e-6}),
    "Qwen3": (qwen, (4, 2, 5, C), RMS),
    "T5": (t5, TOKENS, RMS),
    "T5, written out": (T5Like, TOKENS, RMS),
    "Gemma": (gemma, TOKENS, {**RMS, "offset": 1.0}),
    "Gemma, written out": (GemmaLike, TOKENS, {**RMS, "offset": 1.0}),
    "Llama, zero scale": (lambda: zero_scale(LlamaLike), TOKENS, RMS),
    "Llama, evaluation": (lambda: LlamaLike().eval(), TOKENS, RMS),
    "Llama, bfloat16": (lambda: LlamaLike().bfloat16(), TOKENS, RMS),
    "Llama, compiled": (lambda: torch.compile(LlamaLike(), backend="eager"), TOKENS, RMS),
    "torch batch, compiled": (
        lambda: torch.compile(nn.BatchNorm1d(C), backend="eager"), ROWS, BATCH
    ),
    "ConvNeXt": (partial(convnext, "channels_last"), (8, 5, 5, C), LAYER),
    "ConvNeXt, channels first": (
        partial(convnext, "channels_first"), MAPS, {**LAYER, "channel_axis": 1}
    ),
    "torchvision LayerNorm2d": (
        partial(LayerNorm2d, C), MAPS, {**LAYER, "channel_axis": 1}
    ),
    "MONAI instance": (partial(monai, "instance", affine=True), MAPS, INSTANCE),
    "MONAI group": (partial(monai, "group", num_groups=2), MAPS, GROUP),
    "their batch": (
        TheirBatchNorm, MAPS,
        {**BATCH, "scale": "g", "shift": "b", "stored": ("moving_mean", "moving_var"),
         "eps": 1e-3, "formula": True, "always": False},
    ),
    "their batch, evaluation": (
        lambda: TheirBatchNorm().eval(), MAPS, {**BATCH, "scale": "g", "shift": "b"}
    ),
    "their batch, zero scale": (
        lambda: zero_scale(TheirBatchNorm), MAPS, {**BATCH, "scale": "g", "shift": "b"}
    ),
    "their batch, unbiased": (
        UnbiasedBatchNorm, ROWS, {**BATCH, **SCALED, "formula": False, "always": True,
                                  "channel_axis": -1, "kept": ("channel", "position")}
    ),
    "power": (
        PowerLike, TOKENS,
        {**BATCH, "channel_axis": -1, "centred": False, "parts": FULL[1:], "formula": True},
    ),
    "ScaleNorm": (ScaleNorm, TOKENS, {**RMS, "scale": "g", "channels": 0}),
    "PixelNorm": (
        PixelNorm, MAPS,
        {**RMS, "channel_axis": 1, "parts": ("variance",), "scale": None, "channels": 0},
    ),
    "their groups": (PlainGroups, MAPS, GROUP),
    "their one group": (
        partial(PlainGroups, C, 1), MAPS, {**GROUP, "kind": "layer", "groups": 1}
    ),
    "their instance": (PlainInstance, MAPS, {**INSTANCE, **SCALED}),
    "own filter response": (partial(own.FilterResponseNorm, C), MAPS, RESPONSE),
    "their filter response": (
        PlainFilterResponse, MAPS, {**RESPONSE, "scale": "gamma", "shift": "beta"}
    ),
    "protocol": (Protocol, ROWS, {"kind": "batch", **SCALED, "over_batch": True}),
    "protocol, mean only": (MeanOnly, ROWS, {"kind": "batch", "over_batch": True}),
}  # fmt: skip

# name -> (make, shape of an input)
OTHERS = {
    "torchvision frozen batch": (FrozenBatchNorm2d, MAPS),
    "frozen batch, evaluation": (lambda: FrozenBatchNorm2d().eval(), MAPS),
    "normalized linear": (partial(NormalizedLinear, C, C), ROWS),
    "cosine classifier": (partial(CosineClassifier, C, C), ROWS),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(C, C)), ROWS),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(C, C)), ROWS),
    "post-norm": (PostNorm, TOKENS),
    "linear and layer norm": (lambda: nn.Sequential(nn.Linear(C, C), nn.LayerNorm(C)), ROWS),
    "batch norm and ReLU": (lambda: nn.Sequential(nn.BatchNorm1d(C), nn.ReLU()), ROWS),
    "a norm inside": (Wrapped, MAPS),
    "DyT": (DyT, TOKENS),
    "GRN": (GRN, (8, 4, 4, C)),
    "LayerScale": (LayerScale, TOKENS),
    "softmax": (Softmax, TOKENS),
    "torch softmax": (partial(nn.Softmax, -1), TOKENS),
    "sign": (Sign, TOKENS),
    "PReLU": (partial(nn.PReLU, C), ROWS),
    "dropout": (nn.Dropout, ROWS),
}
