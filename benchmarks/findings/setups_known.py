"""The half of the set-ups made by someone who knows which defects users report.

Words were written before any tool was run. Digits of 8 x 8 pixels, or data made by a rule.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.findings.setup import Parts, Setup, plain_updates
from normscope.data import load_data

__all__ = ["SETUPS"]

Model = nn.Module
Samples = tuple[Tensor, Tensor]
TRAINED = 150  # updates of a network that is called trained


# ---- data -------------------------------------------------------------------------------------


@functools.cache
def digits(split: str = "train") -> Samples:
    found = load_data("digits", split)
    return found.images.float(), found.labels


def loader(samples: Samples, seed: int, batch_size: int = 64, shuffle: bool = True) -> DataLoader:
    order = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*samples), batch_size, shuffle, generator=order, drop_last=True)


def held_out(change: Callable[[Tensor], Tensor] = lambda x: x) -> list[Samples]:
    x, y = digits("test")
    return [(change(x), y)]


@functools.cache
def curve(split: str) -> Samples:
    """A smooth function of eight numbers, with a little noise."""
    random = torch.Generator().manual_seed({"train": 11, "test": 12}[split])
    x = torch.randn({"train": 2048, "test": 512}[split], 8, generator=random)
    y = torch.sin(x[:, 0] * 1.5) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    return x, (y + 0.05 * torch.randn(len(x), generator=random))[:, None]


@functools.cache
def chains(split: str) -> Tensor:
    """Words of a language of 24 letters: the next one depends on the last two."""
    table = torch.randint(24, (24, 24, 3), generator=torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    words = torch.randint(24, ({"train": 1024, "test": 256}[split], 18), generator=random)
    for t in range(2, 18):
        pick = torch.randint(3, (len(words),), generator=random)
        words[:, t] = table[words[:, t - 2], words[:, t - 1], pick]
    return words


# ---- what the author wants ----------------------------------------------------------------------


@torch.no_grad()
def accuracy(model: Model, batches: list[Samples], outputs: Callable[[Any], Tensor]) -> float:
    mode = [(m, m.training) for m in model.modules()]
    model.eval()
    right = [float((outputs(model(x)).argmax(1) == y).float().mean()) for x, y in batches]
    for module, training in mode:
        module.training = training
    return sum(right) / len(right)


def scored_on(
    batches: list[Samples], outputs: Callable[[Any], Tensor] = lambda out: out
) -> Callable[[Model], float]:
    return lambda model: accuracy(model, batches, outputs)


def minus_error(batches: list[Samples]) -> Callable[[Model], float]:
    """Minus the root of the mean squared error; -1000 if it is not a number."""

    @torch.no_grad()
    def score(model: Model) -> float:
        model.eval()
        found = [float((model(x) - y).square().mean().sqrt()) for x, y in batches]
        return -sum(found) / len(found) if math.isfinite(sum(found)) else -1000.0

    return score


# ---- networks -----------------------------------------------------------------------------------


def mlp(
    widths: Iterable[int] = (64, 128, 128, 128, 10),
    norm: Callable[[int], Model] | None = None,
    activation: Callable[[], Model] = nn.ReLU,
) -> nn.Sequential:
    sizes, layers = list(widths), [nn.Flatten()]
    for a, b in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), *([norm(b)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))


def he(model: Model, gain: float = 1.0) -> Model:
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layer.weight.data *= gain
            nn.init.zeros_(layer.bias)
    return model


def cnn(norm: Callable[[int], Model] = nn.BatchNorm2d) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), norm(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def groups(channels: int) -> Model:
    return nn.GroupNorm(4, channels)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(x + y)


def resnet(blocks: int = 4) -> Model:
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body = [ResidualBlock(16) for _ in range(blocks)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class TenLayers(nn.Module):
    """Its norms are made, and forward forgets them unless ``call``."""

    def __init__(self, call: bool = True, norm: Callable[[int], Model] = nn.BatchNorm1d) -> None:
        super().__init__()
        sizes = [64] + [64] * 10
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(norm(b) for b in sizes[1:])
        self.head = nn.Linear(64, 10)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(x)
            x = functional.relu(norm(x) if self.call else x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width: int, pre: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2, self.pre = nn.LayerNorm(width), nn.LayerNorm(width), pre

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if not self.pre:
            x = self.norm1(x + self.attention(x, x, x, need_weights=False, attn_mask=mask)[0])
            return self.norm2(x + self.mlp(x))
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.norm2(x))


class RowTransformer(nn.Module):
    """Reads a digit row by row; classifies the mean over the rows."""

    def __init__(self, depth: int = 4, pre: bool = True, final: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.places = nn.Parameter(0.02 * torch.randn(8, 32))
        self.blocks = nn.ModuleList(Block(32, pre) for _ in range(depth))
        self.norm = nn.LayerNorm(32) if final else nn.Identity()
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(1).view(-1, 8, 8)) + self.places
        for block in self.blocks:
            x = block(x, None)
        return self.head(self.norm(x).mean(1))


class LetterTransformer(nn.Module):
    """Predicts the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(24, 48), nn.Embedding(17, 48)
        nn.init.normal_(self.letters.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(48, pre=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 24, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        mask = torch.triu(torch.full((17, 17), -math.inf), 1)
        x = self.letters(words) + self.places.weight
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class RowLSTM(nn.Module):
    """Reads a digit row by row; ``batch_first`` is what its author forgot in a broken one."""

    def __init__(self, batch_first: bool = True, forget: float | None = None) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 48, batch_first=batch_first)
        self.head = nn.Linear(48, 10)
        if forget is not None:
            with torch.no_grad():
                self.lstm.bias_ih_l0[:96] = forget  # input and forget gates

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.flatten(1).view(-1, 8, 8))
        return self.head(states[:, -1])


class TwoHeads(nn.Module):
    """Which digit it is, and how much ink it has; ``cut`` detaches the body by mistake."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96),
                                  nn.ReLU())  # fmt: skip
        self.digit, self.ink, self.cut = nn.Linear(96, 10), nn.Linear(96, 1), cut

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        y = y.detach() if self.cut else y
        return self.digit(y), self.ink(y)


def two_losses(weight: float = 1.0) -> Callable[[Model, Samples], Tensor]:
    def loss_fn(model: Model, batch: Samples) -> Tensor:
        x, y = batch
        digit, ink = model(x)
        target = weight * x.flatten(1).mean(1, keepdim=True)
        return functional.cross_entropy(digit, y) + functional.mse_loss(ink, target)

    return loss_fn


# ---- parts --------------------------------------------------------------------------------------


def sgd(lr: float, momentum: float = 0.9, **options: Any) -> Callable[[Model], Any]:
    return lambda m: torch.optim.SGD(m.parameters(), lr, momentum=momentum, **options)


def adam(lr: float) -> Callable[[Model], Any]:
    return lambda m: torch.optim.Adam(m.parameters(), lr)


def adamw(lr: float, **options: Any) -> Callable[[Model], Any]:
    return lambda m: torch.optim.AdamW(m.parameters(), lr, **options)


def same(model: Any) -> Any:
    return model


@functools.cache
def _trained(seed: int, slow: bool) -> nn.Sequential:
    torch.manual_seed(seed)
    model = slow_statistics() if slow else cnn()
    data = loader(digits(), seed)
    plain_updates(Parts(model, data, sgd(0.05)(model), "cross_entropy"), TRAINED)
    return model


def trained_cnn(seed: int, slow: bool = False) -> nn.Sequential:
    """A copy of the convolutional network after its training; ``slow``: its statistics lag."""
    model = copy.deepcopy(_trained(seed, slow))
    model.zero_grad()
    return model


def classifier(
    network: Callable[[], Model],
    optimizer: Callable[[Model], Any],
    *,
    change: Callable[[Model], Any] = same,
    inputs: Callable[[Tensor], Tensor] = same,
    labels: Callable[[Tensor], Tensor] = same,
    eval_inputs: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 64,
    shuffle: bool = True,
    trained: int = 0,
    held: bool = False,
) -> Callable[[int], Parts]:
    """Digits, as the author reads them; ``change`` is made to the network when it is done.

    With ``trained`` updates made before, from the same start.
    """

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        x, y = digits()
        model = network()
        data = loader((inputs(x), labels(y)), seed, batch_size, shuffle)
        parts = Parts(model, data, optimizer(model), "cross_entropy")
        plain_updates(parts, trained)
        parts.optimizer.zero_grad()
        change(model)
        seen = held_out(inputs if eval_inputs is None else eval_inputs)
        parts.eval_data = seen if held or eval_inputs is not None else None
        parts.score = scored_on(seen)
        return parts

    return make


def ready(
    network: Callable[[int], Model], eval_inputs: Callable[[Tensor], Tensor] = same
) -> Callable[[int], Parts]:
    """A trained network that goes on to be trained, with data for evaluation."""

    def make(seed: int) -> Parts:
        model, seen = network(seed), held_out(eval_inputs)
        data, optimizer = loader(digits(), seed), sgd(0.05)(model)
        return Parts(model, data, optimizer, "cross_entropy", eval_data=seen, score=scored_on(seen))

    return make


def by_sort(samples: Samples) -> Samples:
    order = torch.argsort(samples[1], stable=True)
    return samples[0][order], samples[1][order]


def sorted_digits(seed: int) -> Parts:
    torch.manual_seed(seed)
    model = cnn()
    data = loader(by_sort(digits()), seed, shuffle=False)
    return Parts(model, data, sgd(0.05)(model), "cross_entropy", score=scored_on(held_out()))


def shuffled(y: Tensor) -> Tensor:
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(77))]


def averaged(buffers: bool) -> Callable[[int], Parts]:
    """An exponential moving average of a network that was trained, as it would be deployed."""

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        model = cnn()
        mean = copy.deepcopy(model)
        data = loader(digits(), seed)
        parts = Parts(model, data, sgd(0.05)(model), "cross_entropy")
        for _ in range(TRAINED):
            plain_updates(parts, 1)
            with torch.no_grad():
                pairs = list(zip(mean.parameters(), model.parameters(), strict=True))
                for old, new in pairs:
                    old.lerp_(new, 0.05)
                if buffers:
                    for old, new in zip(mean.buffers(), model.buffers(), strict=True):
                        old.copy_(new)
        optimizer = sgd(0.05)(mean)
        return Parts(mean, data, optimizer, "cross_entropy", score=scored_on(held_out()))

    return make


def letters(lr: float, change: Callable[[Model], Any] = same) -> Callable[[int], Parts]:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def score(model: Model) -> float:
        model.eval()
        words = chains("test")
        return -float(loss(model(words[:, :-1])[:, 1:], words[:, 2:]))

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        model, words = LetterTransformer(), chains("train")
        change(model)
        data = loader((words[:, :-1], words[:, 1:]), seed, 32)
        return Parts(model, data, adamw(lr)(model), loss, score=score)

    return make


def regression(
    *,
    targets: Callable[[Tensor], Tensor] = same,
    back: Callable[[Tensor], Tensor] = same,
    optimizer: Callable[[Model], Any] | None = None,
    loss: Any = "mse",
) -> Callable[[int], Parts]:
    """A function of eight numbers; ``targets`` are what the author fits, ``back`` undoes it."""

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        model = mlp((8, 64, 64, 1), activation=nn.Tanh)
        (x, y), test = curve("train"), curve("test")
        score = minus_error([test])
        return Parts(
            model, loader((x, targets(y)), seed), (optimizer or adam(3e-3))(model), loss,
            score=lambda m: score(nn.Sequential(m, Apply(back))),
        )  # fmt: skip

    return make


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def autoencoder(last: Callable[[], list[Model]] = list) -> Callable[[int], Parts]:
    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 64),
                  nn.ReLU(), nn.Linear(64, 64), *last()]  # fmt: skip
        model = nn.Sequential(*layers)
        x, test = digits()[0].flatten(1), digits("test")[0].flatten(1)
        score = minus_error([(test, test)])
        return Parts(model, loader((x, x), seed), adam(2e-3)(model), "mse", score=score)

    return make


def two_heads(
    *, weight: float = 1.0, cut: bool = False, held: Callable[[TwoHeads], Any] = same
) -> Callable[[int], Parts]:
    """``held`` is what the author gives to the optimizer."""

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        model, (x, y) = TwoHeads(cut), digits()
        optimizer = torch.optim.SGD(held(model).parameters(), 0.01, momentum=0.9)
        score = scored_on(held_out(), lambda out: out[0])
        return Parts(
            model, loader((x, y), seed), optimizer, loss_fn=two_losses(weight), score=score
        )

    return make


def other_data(x: Tensor) -> Tensor:
    """The digits of another scanner: inverted, brighter and with more contrast."""
    return 1.0 - 2.0 * x


def fine_tuning(
    prepare: Callable[[Model], Any] = same,
    *,
    optimizer: Callable[[Model], Any] | None = None,
    old_task: bool = False,
    inputs: Callable[[Tensor], Tensor] = other_data,
) -> Callable[[int], Parts]:
    """A network trained on digits, with a new head, about to be trained on other digits.

    With ``old_task`` the frozen body goes on to serve the old head, and this is the score.
    """

    def make(seed: int) -> Parts:
        torch.manual_seed(seed)
        model = trained_cnn(seed)
        old_head = model[-1]
        model[-1] = nn.Linear(32, 10)
        prepare(model)
        x, y = digits()
        seen = held_out(inputs)
        made = (optimizer or sgd(0.02))(model)
        parts = Parts(model, loader((inputs(x), y), seed), made, "cross_entropy")
        parts.score = scored_on(seen)
        if old_task:
            parts.score = lambda m: accuracy(nn.Sequential(*m[:-1], old_head), held_out(), same)
        return parts

    return make


# ---- defects ------------------------------------------------------------------------------------


def dead(index: int) -> Callable[[nn.Sequential], None]:
    """All biases (beta, of a norm) of one layer so low that its ReLU never fires."""

    def change(model: nn.Sequential) -> None:
        with torch.no_grad():
            model[index].bias.fill_(-20.0 if isinstance(model[index], nn.Linear) else -6.0)

    return change


def all_zero(model: Model) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()


def no_gamma(model: nn.Sequential) -> None:
    nn.init.zeros_(model[4].weight)


def norms_of(model: Model) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def frozen_norms(model: Model) -> None:
    for norm in norms_of(model):
        norm.eval()


def frozen_body(model: nn.Sequential) -> None:
    for p in model[:-1].parameters():
        p.requires_grad_(False)


def frozen_body_and_norms(model: nn.Sequential) -> None:
    frozen_body(model)
    frozen_norms(model)


def slow_statistics() -> Model:
    model = cnn()
    for norm in norms_of(model):
        norm.momentum = 1e-4
    return model


def strong_queries(model: Model) -> None:
    with torch.no_grad():
        for block in model.blocks:
            block.attention.in_proj_weight[: 2 * 48] *= 30.0


def copied(model: Model) -> Any:
    """The optimizer of a network that was copied afterwards: it holds the parameters of another."""
    return torch.optim.Adam(copy.deepcopy(model).parameters(), 1e-3)


def flat_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared errors of (n, 1) outputs and (n,) targets: n x n differences."""
    return (outputs - targets.flatten()).square().mean()


MIXED = (r"mix(es|ed|ing)?\b.*\bsamples", r"batch_first", r"depends? on (the )?other samples",
         r"across the batch")  # fmt: skip
DEAD = (r"\bdead\b", r"never (fires?|active)", r"constant output", r"no signal",
        r"outputs? (is|are) (all |always )?(0|zero|constant)", r"without signal")  # fmt: skip
TOO_HIGH = (
    r"(lr|rate).*(too (large|high)|above|diverge|destroy)", r"diverges? at", r"blows? up at",
    r"(lower|smaller|reduce|decrease).*\b(lr|rate)\b", r"loss (rises|grows|rose|diverge)",
)  # fmt: skip
STATISTICS = (r"running statistics", r"running (mean|var)", r"recomput", r"update_bn",
              r"statistics.*(stale|out of date|do not fit|not match)")  # fmt: skip
UNHELD = (
    r"not in the optimizer", r"optimizer.*(misses|lacks|does not (hold|have|contain|train|update))",
    r"optimizer.*(other|another|different|not of this|foreign) ", r"missing (from|in) .*optimizer",
)  # fmt: skip
FROZEN = (r"\bfrozen\b", r"\bfreez", r"requires_grad", r"trainable")
SHIFT = (r"eval(uation)?[_ ]?data", r"held[- ]out", r"shift", r"(differ|other).*(inputs|data)",
         r"(inputs|data).*(differ|other scale|prepared)")  # fmt: skip
INPUT_SCALE = (r"(scale|standardi[sz]e|normali[sz]e|divide).*\binputs?\b",
               r"\binputs?\b.*(scale|large|standardi[sz]|normali[sz])")  # fmt: skip
INIT = (r"\binit", r"explod", r"(scale|divide|smaller|shrink).*weights", r"weights.*too large",
        r"(grows?|growth).*(layer|depth)")  # fmt: skip

DEEP = (64, *[96] * 8, 10)
SETUPS = [
    # -- healthy
    Setup("mlp-sgd", "mlp", classifier(mlp, sgd(0.05))),
    Setup("mlp-he-adam", "mlp", classifier(lambda: he(mlp()), adam(1e-3))),
    Setup("mlp-deep-he-sgd", "mlp", classifier(lambda: he(mlp(DEEP)), sgd(0.01))),
    Setup("mlp-batchnorm-sgd", "mlp", classifier(lambda: mlp(norm=nn.BatchNorm1d), sgd(0.1))),
    Setup(
        "mlp-batchnorm-ten-layers", "mlp", classifier(TenLayers, sgd(0.05))
    ),
    Setup(
        "mlp-layernorm-gelu-adamw",
        "mlp",
        classifier(lambda: mlp(norm=nn.LayerNorm, activation=nn.GELU), adamw(1e-3)),
    ),
    Setup("mlp-layernorm-batch-4", "mlp",
          classifier(lambda: TenLayers(norm=nn.LayerNorm), adam(1e-3), batch_size=4), updates=400),
    Setup("cnn-groupnorm-adam", "cnn", classifier(lambda: cnn(groups), adam(3e-3), batch_size=16)),
    Setup("mlp-deep-he-adam", "mlp", classifier(lambda: he(mlp(DEEP)), adam(1e-3))),
    Setup("mlp-tanh-sgd", "mlp", classifier(lambda: mlp(activation=nn.Tanh), sgd(0.05))),
    Setup("mlp-trained", "mlp", classifier(mlp, sgd(0.05), trained=TRAINED, held=True)),
    Setup("cnn-batchnorm-sgd", "cnn", classifier(cnn, sgd(0.05))),
    Setup("cnn-batchnorm-trained", "cnn", ready(trained_cnn)),
    Setup("cnn-average-with-buffers", "cnn", averaged(buffers=True)),
    Setup("resnet-sgd", "resnet", classifier(resnet, sgd(0.05, weight_decay=5e-4))),
    Setup("transformer-adamw", "transformer", classifier(RowTransformer, adamw(1e-3))),
    Setup(
        "transformer-trained",
        "transformer",
        classifier(RowTransformer, adamw(1e-3), trained=TRAINED, held=True),
    ),
    Setup(
        "transformer-24-layers",
        "transformer",
        classifier(lambda: RowTransformer(24), adamw(1e-3)),
    ),
    Setup("letters-adamw", "transformer", letters(3e-3), updates=300),
    Setup("lstm-adam", "lstm", classifier(RowLSTM, adam(3e-3))),
    Setup("autoencoder-adam", "autoencoder", autoencoder()),
    Setup("regression-adam", "regression", regression()),
    Setup("regression-sgd", "regression", regression(optimizer=sgd(0.02))),
    Setup("two-heads-sgd", "two-heads", two_heads()),
    Setup("fine-tuning-all", "fine-tuning", fine_tuning()),
    Setup("fine-tuning-head", "fine-tuning",
          fine_tuning(frozen_body_and_norms, optimizer=adam(1e-2), inputs=lambda x: 1.1 * x)),
    Setup("fine-tuning-head-for-two-tasks", "fine-tuning",
          fine_tuning(frozen_body_and_norms, optimizer=adam(1e-2), old_task=True)),
    # -- broken: layers and weights
    Setup("dead-layer", "mlp", classifier(mlp, sgd(0.05), change=dead(3)),
          "The biases of a hidden layer are so low that none of its ReLUs fires.",
          DEAD, "mlp-sgd"),
    Setup("dead-layer-behind-batchnorm", "mlp",
          classifier(lambda: mlp(norm=nn.BatchNorm1d), sgd(0.1), change=dead(5)),
          "The shift (beta) of a batch norm is so low that no ReLU behind it fires.",
          DEAD, "mlp-batchnorm-sgd"),
    Setup("weights-zero", "mlp", classifier(mlp, sgd(0.05), change=all_zero),
          "All weights and biases start at zero.",
          (*DEAD, r"weights?.*\b(zero|0)\b", r"\b(zero|0)\b.*weights?"), "mlp-sgd"),
    Setup("gamma-zero", "cnn", classifier(cnn, sgd(0.05), change=no_gamma),
          "The scale (gamma) of a batch norm without a skip connection is zero.",
          (*DEAD, r"gamma.*\b(zero|0)\b", r"\bscale\b.*\b(zero|0)\b"), "cnn-batchnorm-sgd"),
    Setup("exploding-init", "mlp", classifier(lambda: he(mlp(DEEP), 2.0), sgd(0.01)),
          "Initial weights twice as large as they should be, over nine layers.",
          INIT, "mlp-deep-he-sgd"),
    Setup("norm-never-called", "mlp", classifier(lambda: TenLayers(call=False), sgd(0.05)),
          "The batch norms are made in the constructor, and forward does not call them.",
          (r"never (called|used)", r"not (called|used)", r"unused"), "mlp-batchnorm-ten-layers"),
    Setup("post-norm-24-layers", "transformer",
          classifier(lambda: RowTransformer(24, pre=False, final=False), adamw(1e-3)),
          "24 layers with the norms behind the residual sums, without warm-up.",
          (r"post[- ]?(norm|ln)", r"pre[- ]?(norm|ln)", r"warm[- ]?up", r"vanish",
           r"(norm|normali[sz]ation).*(before|behind|after).*(residual|skip|sum|branch)"),
          "transformer-24-layers"),
    Setup("pre-norm-without-final-norm", "transformer",
          classifier(lambda: RowTransformer(24, final=False), adamw(1e-3)),
          "24 layers with norms inside the branches, and none before the head.",
          (r"(norm|normali[sz]).*before the (last|head|output)", r"final norm",
           r"last layer.*(not normali[sz]ed|norm)", r"residual stream"),
          "transformer-24-layers"),
    Setup("attention-saturated", "transformer", letters(3e-3, strong_queries),
          "Query and key weights 30 times too large: attention looks at one place only.",
          (r"attention.*(saturat|one[- ]hot|entropy|logit|large|sharp)", r"attention logits",
           r"(quer(y|ies)|keys?).*(large|norm|scale)", r"qk[- ]?norm"), "letters-adamw", 300),
    Setup("lstm-gates-shut", "lstm", classifier(lambda: RowLSTM(forget=-12.0), adam(3e-3)),
          "Input and forget gates start shut.",
          (r"\bgates?\b", *DEAD), "lstm-adam"),
    Setup("dropout-095", "mlp",
          classifier(lambda: mlp(norm=lambda n: nn.Dropout(0.95)), sgd(0.05)),
          "Dropout sets 95 % of the units to zero.", (r"drop[- ]?out",), "mlp-sgd"),
    # -- broken: rate and optimizer
    Setup("rate-30x-sgd", "mlp", classifier(mlp, sgd(1.5)),
          "The learning rate is 30 times that of the twin.", TOO_HIGH, "mlp-sgd"),
    Setup("rate-30x-adam", "mlp", classifier(lambda: he(mlp(DEEP)), adam(3e-2)),
          "The learning rate is 30 times that of the twin.", TOO_HIGH, "mlp-deep-he-adam"),
    Setup("rate-100x-adamw", "transformer", letters(0.3),
          "The learning rate is 100 times that of the twin.", TOO_HIGH, "letters-adamw", 300),
    Setup("rate-tiny", "cnn", classifier(cnn, sgd(1e-6)),
          "The learning rate is so small that nothing moves.",
          (r"(rate|lr).*too (small|low)", r"(larger|higher|raise|increase).*(rate|\blr\b)",
           r"(rate|lr).*(hardly|barely|not) (move|change|learn)"), "cnn-batchnorm-sgd"),
    Setup("weight-decay-5", "transformer",
          classifier(RowTransformer, adamw(1e-2, weight_decay=20.0)),
          "A weight decay that takes a fifth of every weight away at each update.",
          (r"decay",), "transformer-adamw"),
    Setup("optimizer-of-a-copy", "lstm", classifier(RowLSTM, copied),
          "The model was copied after the optimizer was made: the optimizer holds the original.",
          UNHELD, "lstm-adam"),
    Setup("body-not-in-the-optimizer", "two-heads", two_heads(held=lambda m: m.ink),
          "Only the parameters of one head were given to the optimizer.",
          UNHELD, "two-heads-sgd"),
    Setup("body-frozen", "cnn", classifier(cnn, sgd(0.05), change=frozen_body),
          "All but the last layer of an untrained network is frozen by accident.",
          FROZEN, "cnn-batchnorm-sgd"),
    Setup("body-detached", "two-heads", two_heads(cut=True),
          "The features are detached before the heads, so that the body gets no gradient.",
          (r"(no|without|zero|get(s)? no) gradient", r"detach", r"gradient.*\b(none|zero|0)\b"),
          "two-heads-sgd"),
    # -- broken: data and loss
    Setup("inputs-138", "mlp", classifier(mlp, sgd(0.05), inputs=lambda x: 138 * x),
          "Inputs 138 times as large as those of the twin.", INPUT_SCALE, "mlp-sgd"),
    Setup("labels-shuffled", "cnn", classifier(cnn, sgd(0.05), labels=shuffled),
          "The labels are those of other samples.",
          (r"labels?.*(random|shuffl|not depend|independent|wrong|do not fit)",),
          "cnn-batchnorm-sgd"),
    Setup("loader-sorted", "cnn", sorted_digits,
          "The loader is sorted by class: a batch holds one or two of ten.",
          (r"sort", r"shuffle", r"(one|two|few|\d+) (of \d+ )?class(es)?", r"class(es)? (in|per)"),
          "cnn-batchnorm-sgd"),
    Setup("softmax-before-loss", "mlp",
          classifier(lambda: mlp().append(nn.Softmax(1)), sgd(0.05)),
          "The network ends with a softmax, and the loss applies one again.",
          (r"softmax", r"probabilit", r"logits"), "mlp-sgd"),
    Setup("lstm-batch-first", "lstm", classifier(lambda: RowLSTM(batch_first=False), adam(3e-3)),
          "batch_first was forgotten: the LSTM runs over the samples of a batch.",
          MIXED, "lstm-adam"),
    Setup("autoencoder-sigmoid", "autoencoder", autoencoder(lambda: [nn.Sigmoid()]),
          "A sigmoid at the end: outputs are in 0..1, standardized targets are not.",
          (r"sigmoid", r"range of the (outputs|targets)", r"targets?.*(outside|range|reach)",
           r"outputs?.*(range|bounded|cannot reach)"), "autoencoder-adam"),
    Setup("regression-large-targets", "regression",
          regression(targets=lambda y: 1000 * y + 5000, back=lambda y: (y - 5000) / 1000),
          "Targets in the thousands, with a rate for targets of order one.",
          (r"targets?.*(scale|large|standardi[sz]|normali[sz])",
           r"(scale|standardi[sz]e|normali[sz]e).*targets?"), "regression-adam"),
    Setup("regression-broadcast", "regression", regression(loss=flat_error),
          "Outputs are (n, 1) and targets (n,): the loss takes n x n differences.",
          (r"broadcast", r"shapes?", *MIXED), "regression-adam"),
    Setup("two-heads-one-dominates", "two-heads", two_heads(weight=1000.0),
          "The targets of the second head are a thousand times too large for the shared loss.",
          (r"dominat", r"targets?.*(scale|large)", r"(scale|standardi[sz]e|normali[sz]e).*targets?",
           r"(losses|heads?).*(balance|scale|weight)"), "two-heads-sgd"),
    # -- broken: statistics
    Setup("statistics-stale", "cnn",
          ready(lambda seed: trained_cnn(seed, slow=True)),
          "The momentum of the running statistics is so small that they hardly left the start.",
          (*STATISTICS, r"momentum.*(small|raise|larger)"), "cnn-batchnorm-trained", 0),
    Setup("average-without-buffers", "cnn", averaged(buffers=False),
          "Parameters are averaged over the updates, running statistics are not.",
          STATISTICS, "cnn-average-with-buffers", 0),
    Setup("batchnorm-batch-4", "mlp", classifier(TenLayers, adam(1e-3), batch_size=4),
          "Ten batch norms, and batches of four.",
          (r"batch(es)?( size)?( of)? 4\b", r"batch(es)?.*(too )?small", r"larger batch",
           r"group[- ]?norm"), "mlp-layernorm-batch-4", 400),
    Setup("eval-data-shifted-batchnorm", "cnn",
          ready(trained_cnn, lambda x: 2 * x + 1),
          "Data for evaluation are x * 2 + 1, those for training x.",
          SHIFT, "cnn-batchnorm-trained", 0),
    Setup("eval-data-shifted-layernorm", "transformer",
          classifier(RowTransformer, adamw(1e-3), trained=TRAINED, eval_inputs=lambda x: 2 * x + 1),
          "Data for evaluation are x * 2 + 1, those for training x.",
          SHIFT, "transformer-trained", 0),
    Setup("batchnorm-frozen-untrained", "mlp",
          classifier(TenLayers, sgd(0.05), change=frozen_norms),
          "All batch norms of an untrained network are in evaluation mode.",
          (r"(norms?|statistics).*(frozen|freez|eval)", r"(frozen|eval).*(norms?|statistics)"),
          "mlp-batchnorm-ten-layers"),
    Setup("batchnorm-frozen-on-other-data", "fine-tuning", fine_tuning(frozen_norms),
          "Fine-tuning on other data with the frozen statistics of the old data.",
          (r"(norms?|statistics).*(frozen|freez|eval)", r"(frozen|eval).*(norms?|statistics)",
           *STATISTICS), "fine-tuning-all"),
    Setup("statistics-move-in-frozen-body", "fine-tuning",
          fine_tuning(frozen_body, optimizer=adam(1e-2), old_task=True),
          "The weights of a body that serves two tasks are frozen, its statistics still move.",
          (r"statistics.*(still )?(move|change|updat)", r"(frozen|freez).*statistics",
           r"\.eval\(\)"), "fine-tuning-head-for-two-tasks"),
]  # fmt: skip
