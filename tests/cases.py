"""The roster: small networks of every kind, each with data and a loss, under a readable name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations


@dataclass(frozen=True)
class Case:
    """A network with data; ``build`` gives the same module each time."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Any
    targets: Any
    loss: Any = "mse"
    statistics: str = "batch"
    parameters: Any = None

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return scrambled(self.make())

    def __str__(self) -> str:
        return self.name


def scrambled(model: nn.Module) -> nn.Module:
    """No parameter or statistic at a special value, where a wrong derivative might be right."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if "norm" in name and name.endswith("weight"):
            parameter.data.add_(0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.3)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return model


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(h + torch.tanh(self.inner(h)))


class ConvResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.softplus(self.norm1(self.conv1(x)))
        h = torch.tanh(h + self.norm2(self.conv2(h)))
        return self.head(h.mean((2, 3)))


class Tied(nn.Module):
    """One matrix used twice, once transposed; one layer shared under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.middle = nn.Linear(4, 4)
        self.again = self.middle
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.encoder(x))
        h = torch.tanh(self.again(torch.tanh(self.middle(h))))
        return functional.linear(h, self.encoder.weight.T, self.bias)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x, need_weights=False)
        return self.head(out.mean(1))


class FunctionalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(6, 3))
        self.head = nn.Linear(2, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = functional.linear(x, self.qkv).chunk(3, dim=-1)
        return self.head(functional.scaled_dot_product_attention(q, k, v).sum(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body = kind(2, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)).mean(1))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(a)) * torch.sigmoid(self.right(b)))


class OneDict(nn.Module):
    """Takes the whole dictionary as its one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(torch.tanh(self.body(batch["x"])) * batch["scale"][:, None])


class TupleOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = torch.tanh(self.body(x))
        return self.first(h), {"extra": self.second(h)}


class ScalarOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).squeeze(1)


class UsedTwice(nn.Module):
    """One batch-norm layer called twice: two sets of statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.b(torch.tanh(self.norm(self.a(x)))))


class FunctionalNorm(nn.Module):
    """Batch norm without a layer: nothing in the module list says that samples are coupled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.batch_norm(self.a(x), self.mean, self.var, training=self.training)
        return self.b(torch.tanh(h))


class StraightThrough(torch.autograd.Function):
    """A custom derivative without forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x)


class CustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(StraightThrough.apply(self.a(x)))


class Overwriting(nn.Module):
    """Writes into a tensor that an earlier derivative needs: not replayable."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 4, dtype=x.dtype)
        h[:, :3] = self.a(x)[:, :3]
        h[:, 3] = self.a(x).prod(1)
        return self.b(torch.tanh(h))


def mlp(*norm: nn.Module, activation: type[nn.Module] = nn.Tanh, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 4, bias=bias), *norm, activation(), nn.Linear(4, 2, bias=bias)
    )


def cnn(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        *norm,
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


def frozen_first_layer() -> nn.Module:
    model = mlp(nn.BatchNorm1d(4))
    model[0].requires_grad_(False)
    return model


def scrambled_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2))


def _data() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def labels(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    return {
        "x": normal(6, 3),
        "y": normal(6, 2),
        "y3": normal(6, 3),
        "scalar": normal(6),
        "labels": labels(2, 6),
        "image": normal(5, 2, 4, 4),
        "image_y": normal(5, 2),
        "image_labels": labels(2, 5),
        "sequence": normal(4, 3, 2),
        "wide": normal(4, 3, 4),
        "narrow": normal(4, 3, 3),
        "sequence_y": normal(4, 2),
        "sequence_labels": labels(2, 4),
        "tokens": labels(5, 6, 3),
        "token_labels": labels(4, 6),
        "pair": (normal(6, 2), normal(6, 3)),
        "named": {"a": normal(6, 2), "b": normal(6, 3)},
        "dict": {"x": normal(6, 2), "scale": normal(6)},
        "tuple_y": (normal(6, 2), normal(6, 1)),
        "signal": normal(5, 3, 4),
        "dense_labels": labels(2, 5, 4, 4),
        "yes_no": labels(2, 6, 2).double(),
        "volume": normal(4, 1, 3, 3, 3),
    }


D = _data()


def smooth_absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """A convex loss that torch does not have."""
    return torch.log(torch.cosh(outputs - targets)).sum(1).mean()


ROSTER = [
    Case("mlp-tanh", mlp, D["x"], D["y"]),
    Case("mlp-relu-ce", lambda: mlp(activation=nn.ReLU), D["x"], D["labels"], "cross_entropy"),
    Case("mlp-no-bias", lambda: mlp(bias=False), D["x"], D["y"]),
    Case("mlp-relu-in-place", lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True),
         nn.Linear(4, 4), nn.ELU(inplace=True), nn.Linear(4, 2)), D["x"], D["y"]),
    Case("in-place-on-inputs", lambda: nn.Sequential(nn.LeakyReLU(0.1, inplace=True),
         nn.Linear(3, 2)), D["x"], D["y"]),
    Case("weights-only", lambda: mlp(nn.BatchNorm1d(4)), D["x"], D["y"], parameters="weights"),
    Case("cnn", cnn, D["image"], D["image_y"]),
    Case("cnn-dense-labels", lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(),
         nn.Conv2d(3, 2, 1)), D["image"], D["dense_labels"], "cross_entropy"),
    Case("residual", lambda: Residual(3), D["x"], D["y"]),
    Case("bn1d-batch", lambda: mlp(nn.BatchNorm1d(4)), D["x"], D["y"]),
    Case("bn1d-batch-ce", lambda: mlp(nn.BatchNorm1d(4)), D["x"], D["labels"], "cross_entropy"),
    Case("bn1d-running", lambda: mlp(nn.BatchNorm1d(4)), D["x"], D["y"], statistics="running"),
    Case("bn1d-frozen", lambda: mlp(nn.BatchNorm1d(4)), D["x"], D["y"], statistics="frozen"),
    Case("bn1d-no-affine", lambda: mlp(nn.BatchNorm1d(4, affine=False)), D["x"], D["y"]),
    Case("bn1d-untracked", lambda: mlp(nn.BatchNorm1d(4, track_running_stats=False)), D["x"],
         D["y"]),
    Case("bn1d-signal", lambda: nn.Sequential(nn.Conv1d(3, 2, 2), nn.BatchNorm1d(2), nn.Tanh(),
         nn.Flatten(), nn.Linear(6, 2)), D["signal"], D["image_y"]),
    Case("bn1d-at-the-top", lambda: nn.Sequential(mlp(), nn.BatchNorm1d(2)), D["x"], D["labels"],
         "cross_entropy"),
    Case("bn2d-batch", lambda: cnn(nn.BatchNorm2d(3)), D["image"], D["image_y"]),
    Case("bn2d-running", lambda: cnn(nn.BatchNorm2d(3)), D["image"], D["image_y"],
         statistics="running"),
    Case("bn2d-frozen", lambda: cnn(nn.BatchNorm2d(3)), D["image"], D["image_y"],
         statistics="frozen"),
    Case("bn3d-batch", lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Tanh(),
         nn.Flatten(), nn.Linear(16, 2)), D["volume"], D["sequence_y"]),
    Case("bn2d-residual-batch", ConvResidual, D["image"], D["image_labels"], "cross_entropy"),
    Case("bn2d-residual-frozen", ConvResidual, D["image"], D["image_labels"], "cross_entropy",
         statistics="frozen"),
    Case("bn-used-twice-batch", UsedTwice, D["x"], D["y3"]),
    Case("bn-used-twice-frozen", UsedTwice, D["x"], D["y3"], statistics="frozen"),
    Case("bn-functional", FunctionalNorm, D["x"], D["y"]),
    Case("layer-norm", lambda: mlp(nn.LayerNorm(4)), D["x"], D["labels"], "cross_entropy"),
    Case("group-norm", lambda: cnn(nn.GroupNorm(3, 3)), D["image"], D["image_y"]),
    Case("rms-norm", lambda: mlp(nn.RMSNorm(4)), D["x"], D["y"]),
    Case("instance-norm", lambda: cnn(nn.InstanceNorm2d(3, affine=True)), D["image"],
         D["image_y"]),
    Case("instance-norm-tracked", lambda: cnn(nn.InstanceNorm2d(3, track_running_stats=True)),
         D["image"], D["image_y"]),
    Case("weight-norm", lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)),
         nn.Tanh(), nn.Linear(4, 2)), D["x"], D["y"]),
    Case("spectral-norm", lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)),
         nn.Tanh(), nn.Linear(4, 2)), D["x"], D["y"], statistics="running"),
    Case("tied-weights", Tied, D["x"], D["y3"]),
    Case("attention", Attention, D["wide"], D["sequence_labels"], "cross_entropy"),
    Case("attention-functional", FunctionalAttention, D["narrow"], D["sequence_y"]),
    Case("transformer-layer", lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5,
         dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(12, 2)), D["wide"],
         D["sequence_y"]),
    Case("lstm", lambda: Recurrent(nn.LSTM), D["sequence"], D["sequence_y"]),
    Case("gru", lambda: Recurrent(nn.GRU), D["sequence"], D["sequence_y"]),
    Case("embedding", Tokens, D["tokens"], D["token_labels"], "cross_entropy"),
    Case("two-inputs", TwoInputs, D["pair"], D["y"]),
    Case("keyword-inputs", TwoInputs, D["named"], D["y"]),
    Case("dict-input", OneDict, D["dict"], D["y"]),
    Case("tuple-outputs", TupleOutputs, D["x"], D["tuple_y"]),
    Case("scalar-output", ScalarOutput, D["x"], D["scalar"]),
    Case("frozen-parameters", frozen_first_layer, D["x"], D["y"]),
    Case("custom-derivative", CustomFunction, D["x"], D["y"]),
    Case("overwriting", Overwriting, D["x"], D["y"]),
    Case("loss-module-mse", mlp, D["x"], D["y"], nn.MSELoss()),
    Case("loss-module-ce-sum", mlp, D["x"], D["labels"], nn.CrossEntropyLoss(reduction="sum")),
    Case("loss-module-ce-smooth", mlp, D["x"], D["labels"],
         nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([0.3, 1.7]).double())),
    Case("loss-module-bce", mlp, D["x"], D["yes_no"], nn.BCEWithLogitsLoss()),
    Case("loss-module-huber", mlp, D["x"], D["y"], nn.HuberLoss()),
    Case("loss-callable", mlp, D["x"], D["y"], smooth_absolute),
]  # fmt: skip

BY_NAME = {case.name: case for case in ROSTER}
