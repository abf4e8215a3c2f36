"""Classifiers of tables and of small images."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from benchmarks.findings.everyday.common import (
    RATE_TOO_HIGH,
    RATE_TOO_LOW,
    UNSCALED_INPUTS,
    Split,
    accuracy_at_0,
    alike,
    conv_bn,
    digits,
    evaluated,
    fitted,
    healthy,
    loader,
    mlp,
    posed,
    setups,
    shapes,
    split,
    standardized,
    table,
)
from benchmarks.findings.setup import Parts

NOT_IN_OPTIMIZER = (
    r"optimi[sz]er.*(other|another|different|old|previous|copy|none of|not hold|no param)",
    r"(not|none|no parameters?|never) .*(in|by|held by|given to|known to) the optimi[sz]er",
    r"optimi[sz]er (does not|doesn.t|never)",
)


class Blocks(nn.Module):
    """A multilayer perceptron whose hidden layers come from a loop."""

    def __init__(self, registered: bool):
        super().__init__()
        hidden = [nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 96)]
        self.hidden = nn.ModuleList(hidden) if registered else hidden
        self.out = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.out(x)


def digits_loop(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = digits()
    if wrong == "labels":
        y = y[torch.randperm(len(y))]
    model = Blocks(registered=wrong != "list")
    trained = Blocks(registered=True) if wrong == "other" else model
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.5 if wrong == "rate" else 1e-3)
    return posed(model, loader(x, y, seed), optimizer, test)


def digits_dropout(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    if wrong == "grey":
        x, x_test = 255 * x, 255 * x_test
    drop = 0.98 if wrong == "dropout" else 0.5
    model = mlp(64, 256, 256, 10, drop=drop)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets) / 1000

    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return posed(
        model,
        loader(x, y, seed, 32),
        optimizer,
        (x_test, y_test),
        loss if wrong == "divided" else nn.CrossEntropyLoss(),
    )


def digits_momentum(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = digits()
    model = mlp(64, 100, 100, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fitted(model, loader(x, y, seed), optimizer, 60)
    if wrong == "rate":
        optimizer.param_groups[0]["lr"] = 5.0
    if wrong == "sorted":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    return posed(model, loader(x, y, seed + 1, shuffle=wrong != "sorted"), optimizer, test)


def digits_deep(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = digits()
    model = mlp(64, *[64] * 10, 10, act=nn.Sigmoid if wrong == "sigmoid" else nn.ReLU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            if wrong == "sigmoid":
                nn.init.xavier_normal_(layer.weight)
            if wrong == "zero":
                nn.init.zeros_(layer.weight)
            if wrong == "normal":
                nn.init.normal_(layer.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return posed(model, loader(x, y, seed), optimizer, test, nn.CrossEntropyLoss())


def digits_batchnorm(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = digits()
    momentum = 0.001 if wrong == "stale" else 0.1
    model = mlp(64, 80, 80, 10, norm=partial(nn.BatchNorm1d, momentum=momentum))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return posed(
        model,
        loader(x, y, seed, 2 if wrong == "batch" else 64),
        optimizer,
        test,
        nn.CrossEntropyLoss(),
    )


def cancer_bce(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = standardized(table("breast_cancer"))
    y, y_test = y.float()[:, None], y_test.float()[:, None]
    model = mlp(30, 32, 16, 1)
    if wrong == "sigmoid":
        model.append(nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return posed(
        model,
        loader(x, y, seed, 32),
        optimizer,
        (x_test, y_test),
        nn.BCEWithLogitsLoss(),
        score=accuracy_at_0(x_test, y_test),
    )


def cancer_tanh(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = table("breast_cancer")
    if wrong != "raw":
        x, y, x_test, y_test = standardized((x, y, x_test, y_test))
    model = mlp(30, 24, 24, 2, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return posed(model, loader(x, y, seed, 8), optimizer, (x_test, y_test))


def wine(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = standardized(table("wine"))
    model = mlp(13, 32, 32, 3).append(nn.LogSoftmax(dim=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    return posed(model, loader(x, y, seed, 16), optimizer, test, nn.NLLLoss())


def fraud(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    rng = np.random.default_rng(3)
    y = (rng.random(6000) < 0.02).astype(np.int64)
    x = rng.normal(size=(6000, 12)).astype(np.float32)
    x[y == 1, :4] += 1.1
    x, y, x_test, y_test = split(x, y, 0.5)
    model = mlp(12, 32, 32, 2)
    data = loader(x, y, seed)
    if wrong != "rare":
        weights = torch.where(y == 1, 1 / y.float().mean(), 1 / (1 - y.float().mean()))
        generator = torch.Generator().manual_seed(seed)
        sampler = WeightedRandomSampler(weights, len(y), generator=generator)
        data = DataLoader(TensorDataset(x, y), 64, sampler=sampler)

    def score(model: nn.Module) -> float:
        right = evaluated(model, x_test).argmax(-1) == y_test
        return float(right[y_test == 1].float().mean() + right[y_test == 0].float().mean()) / 2

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return posed(model, data, optimizer, (x_test, y_test), nn.CrossEntropyLoss(), score=score)


def digits_attributes(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    of_digit = torch.tensor(
        [[d % 2 == 0, d > 4, d in (0, 6, 8, 9), d in (2, 3, 5, 7)] for d in range(10)]
    ).float()
    y, y_test = of_digit[y], of_digit[y_test]
    model = mlp(64, 128, 64, 4)
    loss = nn.BCEWithLogitsLoss()
    if wrong == "softmax":
        model.append(nn.Softmax(dim=1))
        loss = nn.BCELoss()

    def score(model: nn.Module) -> float:
        level = 0.5 if wrong == "softmax" else 0
        right = (evaluated(model, x_test) > level) == (y_test > 0.5)
        return float(right.all(-1).float().mean())

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return posed(model, loader(x, y, seed), optimizer, (x_test, y_test), loss, score=score)


def digits_layernorm(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = digits()
    model = mlp(64, 96, 96, 10, act=nn.GELU, norm=nn.LayerNorm)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return posed(model, loader(x, y, seed), optimizer, test)


def digits_cnn(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    x, x_test = x.view(-1, 1, 8, 8), x_test.view(-1, 1, 8, 8)
    first = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(first, second, nn.Flatten(), mlp(128, 64, 10, drop=0.25))
    if wrong == "softmax":
        model.append(nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return posed(model, loader(x, y, seed), optimizer, (x_test, y_test), nn.CrossEntropyLoss())


def photographs() -> Split:
    """The shapes, with channels first and standardized."""
    x, y, x_test, y_test = shapes()
    mean, std = x.mean((0, 1, 2)), x.std((0, 1, 2))
    x, x_test = ((each - mean) / std for each in (x, x_test))
    return x.permute(0, 3, 1, 2).contiguous(), y, x_test.permute(0, 3, 1, 2).contiguous(), y_test


def shapes_cnn(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = photographs()
    if wrong == "scale":
        x_test = shapes()[2].permute(0, 3, 1, 2) / 255
    body = [conv_bn(3, 16), nn.MaxPool2d(2), conv_bn(16, 32), nn.MaxPool2d(2), conv_bn(32, 32)]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(512, 5))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-6 if wrong == "rate" else 0.02, momentum=0.9, nesterov=True
    )
    return posed(model, loader(x, y, seed, 32), optimizer, (x_test, y_test), nn.CrossEntropyLoss())


class Residual(nn.Module):
    """Two convolutions with a skip."""

    def __init__(self, fan_in: int, fan_out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(fan_in, fan_out, stride),
            nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(fan_out),
        )
        same = stride == 1 and fan_in == fan_out
        self.skip = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet() -> nn.Sequential:
    body = [conv_bn(3, 16), Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))


def shapes_resnet(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = photographs()
    model = resnet()
    if wrong == "eval":
        model.eval()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5 if wrong == "decay" else 5e-4
    )
    return posed(model, loader(x, y, seed, 64), optimizer, test)


def resnet_trained(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = photographs()
    model = resnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    fitted(model, loader(x, y, seed), optimizer, 100)
    if wrong == "one":
        y = torch.zeros_like(y)
    return posed(model, loader(x, y, seed + 1), optimizer, test)


def shapes_vgg(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = photographs()
    layers: list[nn.Module] = []
    fan_in = 3
    for width in (16, 16, 0, 32, 32, 0, 48, 48, 0):
        if width:
            layers += [nn.Conv2d(fan_in, width, 3, padding=1), nn.ReLU()]
            fan_in = width
        else:
            layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 5)]
    model = nn.Sequential(*layers)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if wrong == "small":
                nn.init.normal_(layer.weight, std=0.003)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return posed(model, loader(x, y, seed), optimizer, test)


def finetune_head(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    x, x_test = x.view(-1, 1, 8, 8), x_test.view(-1, 1, 8, 8)
    body = nn.Sequential(
        conv_bn(1, 16), nn.MaxPool2d(2), conv_bn(16, 32), nn.MaxPool2d(2), nn.Flatten()
    )
    model = nn.Sequential(body, nn.Linear(128, 5))
    low = y < 5
    pretraining = torch.optim.Adam(model.parameters(), lr=2e-3)
    fitted(model, loader(x[low], y[low], seed), pretraining, 80)
    x, y = x[~low], y[~low] - 5
    x_test, y_test = x_test[y_test >= 5], y_test[y_test >= 5] - 5
    body.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(model[1].parameters(), lr=5e-3)
    model[1] = nn.Linear(128, 5)
    if wrong != "replaced":
        optimizer = torch.optim.Adam(model[1].parameters(), lr=5e-3)
    if wrong == "frozen":
        # the loop that freezes all weights runs after the head was replaced
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name == "1.bias"
    return posed(model, loader(x, y, seed + 1), optimizer, (x_test, y_test))


def finetune_all(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    model = nn.Sequential(mlp(64, 128, 128, 64), nn.ReLU(), nn.Linear(64, 10))
    pretraining = torch.optim.AdamW(model.parameters(), lr=2e-3)
    fitted(model, loader(x, y, seed), pretraining, 120)
    # the same digits, scanned from the other end
    x, x_test = x.flip(-1), x_test.flip(-1)
    x, y = x[:320], y[:320]
    model[2] = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 if wrong == "rate" else 1e-3)
    return posed(model, loader(x, y, seed + 1, 32), optimizer, (x_test, y_test))


SETUPS = []
SETUPS += setups(
    healthy("digits-modulelist-adam", "mlp", digits_loop),
    rate=(
        "digits-modulelist-rate-0.5",
        "Adam runs with a learning rate of 0.5, hundreds of times too high.",
        RATE_TOO_HIGH,
    ),
    list=(
        "digits-hidden-in-python-list",
        "The hidden layers are kept in a Python list, so they are not registered and not trained.",
        r"""not registered|unregistered; ModuleList;
        (python )?list of (layers|modules)|layers? (kept |held )?in a (plain |python )?list;
        not (among|in|part of) (the |its )?(model.?s )?parameters;
        (layers?|modules?|parameters?|weights?).*(missing from|not known to|hidden from)""",
    ),
    other=(
        "digits-optimizer-before-new-model",
        "The optimizer holds the parameters of another model, made before this one.",
        NOT_IN_OPTIMIZER,
    ),
    labels=(
        "digits-images-shuffled-without-labels",
        "The images were shuffled without their labels, so the labels tell nothing.",
        r"""labels?.*(shuffled|random|unrelated|do(es)? not (match|belong|fit|depend)|mismatch);
        labels?.*(independent|no relation|not related|nothing to do|misaligned|noise);
        (unrelated|independent|no relation|mismatch).*(labels?|targets?);
        targets?.*(shuffled|random|unrelated|do(es)? not (match|belong|fit|depend)|mismatch);
        inputs? (do not|does not|don.t|cannot) (predict|tell|explain|determine)""",
    ),
)
SETUPS += setups(
    healthy("digits-half-dropped-sgd-0.3", "mlp", digits_dropout, 300),
    dropout=(
        "digits-nearly-all-dropped",
        "Dropout with p = 0.98 leaves hardly any unit.",
        r"drop-?out; drops? (nearly|almost|9\d ?%)",
    ),
    grey=(
        "digits-grey-values-to-255",
        "The images come with grey values from 0 to 255 instead of 0 to 1.",
        UNSCALED_INPUTS,
    ),
    divided=(
        "digits-loss-over-1000",
        "The loss is divided by 1000, so that plain SGD hardly moves.",
        alike(
            RATE_TOO_LOW,
            r"""loss.*(divided|scaled|multiplied|too small|factor);
        gradients?.*(too small|tiny|very small|scaled)""",
        ),
    ),
)
SETUPS += setups(
    healthy("digits-momentum-after-60-updates", "mlp", digits_momentum, 200),
    rate=(
        "digits-resumed-at-rate-5",
        "Training goes on with a learning rate of 5 instead of 0.05.",
        RATE_TOO_HIGH,
    ),
    sorted=(
        "digits-batches-in-order-of-class",
        "The data are sorted by class and the loader does not shuffle.",
        r"""shuffl; sorted; (batch|batches).*(one|single|same|few) (class|label);
        in (the )?order of (the )?(class|label)|ordered by""",
    ),
)
SETUPS += setups(
    healthy("digits-ten-layers-kaiming-adam", "mlp", digits_deep, 200),
    sigmoid=(
        "digits-ten-layers-sigmoid",
        "Gradients vanish through ten layers of sigmoid.",
        r"""vanish; sigmoid;
        gradients?.*(shrink|decay|die|too small|tiny|fade|die out|get lost|do not reach);
        signal.*(shrink|decay|die|lost|fade|vanish|does not reach|collapse)""",
    ),
    zero=(
        "digits-ten-layers-weights-zero",
        "All weights start at zero.",
        r"""(weights?|layers?|init\w*|parameters?|matri\w+).*(zeros?\b|all 0|are 0|constant);
        (zero|constant|all-zero)[ -](weights?|init\w*); symmetr; re-?initiali[sz]e""",
    ),
    normal=(
        "digits-ten-layers-normal-1",
        "The weights are drawn from a normal distribution with standard deviation 1, far too wide.",
        r"""init\w*.*(large|wide|big|high|explod);
        (weights?|layers?).*(too large|too wide|too big|initiali[sz]|explod);
        (activations?|signals?|outputs?|logits?|gradients?).*(explod|blow|grow|huge);
        (kaiming|xavier|glorot|\bhe\b)[ -]?(init|normal|uniform)?""",
    ),
)
SETUPS += setups(
    healthy("digits-mlp-batchnorm-momentum", "mlp", digits_batchnorm, 100),
    batch=(
        "digits-batchnorm-batch-of-2",
        "Batch normalization is trained with batches of two.",
        r"""batch(es)?[ -](size|of); (small|tiny|few|larger|bigger|two|2)\b.*\bbatch;
        batch(es)? (is|are) too small; (group|layer)[ -]?norm""",
    ),
    stale=(
        "digits-batchnorm-statistics-lag",
        "With momentum 0.001 the running statistics of batch normalization lag far behind.",
        r"""running (statistics|mean|variance|average);
        (statistics|averages?).*(stale|lag|wrong|old|not follow|behind|differ|mismatch);
        (batch ?norm\w*|batch normali[sz]ation).*(momentum|statistics|eval)""",
    ),
)
SETUPS += setups(
    healthy("cancer-one-logit-bce-adam", "mlp", cancer_bce),
    sigmoid=(
        "cancer-sigmoid-and-bce-with-logits",
        "The network ends in a sigmoid although the loss takes logits and applies its own.",
        r"sigmoid; (already|are) probabilit; expects? (raw )?(logits|scores)",
    ),
)
SETUPS += setups(
    healthy("cancer-tanh-sgd-batches-of-8", "mlp", cancer_tanh, 200),
    raw=(
        "cancer-raw-areas-saturate-tanh",
        "The features are not scaled: areas in the thousands saturate the tanh.",
        alike(UNSCALED_INPUTS, r"saturat"),
    ),
)
SETUPS += setups(healthy("wine-log-softmax-adamw", "mlp", wine, 200))
SETUPS += setups(
    healthy("fraud-balanced-by-sampler-adam", "mlp", fraud, 120),
    rare=(
        "fraud-one-in-fifty",
        "Only one example in fifty is a fraud, and nothing makes up for it.",
        r"""imbalanc|unbalanc;
        (class|label)\w*.*(rare|majority|minority|dominat|frequen|skew|weight);
        9\d(\.\d+)? ?% .*(class|label|target|example); (majority|most frequent) class""",
    ),
)
SETUPS += setups(
    healthy("digits-four-attributes-bce", "mlp", digits_attributes, 300),
    softmax=(
        "digits-attributes-softmax-for-several-labels",
        "Several labels can be true at once, but a softmax makes them share one probability.",
        r"""softmax; multi-?label; (sum to|sums to|add up to) (1|one);
        mutually exclusive|independent (labels|probabilit)""",
    ),
)
SETUPS += setups(healthy("digits-layernorm-gelu-rmsprop", "mlp", digits_layernorm))
SETUPS += setups(
    healthy("digits-small-cnn-adam", "cnn", digits_cnn, 250),
    softmax=(
        "digits-cnn-softmax-and-cross-entropy",
        "The network ends in a softmax although the cross entropy applies its own.",
        r"softmax; (already|are) probabilit; expects? (raw )?(logits|scores)",
    ),
)
SETUPS += setups(
    healthy("shapes-cnn-batchnorm-nesterov", "cnn", shapes_cnn, 200),
    scale=(
        "shapes-evaluated-without-normalizing",
        "Held-out images are only divided by 255, whereas training images are standardized.",
        r"""(eval\w*|held[ -]out|validation|test)\b.*(differ|scale|normali[sz]|prepar|preprocess);
        (eval\w*|held[ -]out|validation|test)\b.*(shift|distribution|statistics|mean);
        (prepared|preprocess\w*|normali[sz]ed|scaled) (differently|otherwise|not the same);
        (train\w*).*(differ).*(eval\w*|held[ -]out|validation|test)""",
    ),
    rate=(
        "shapes-cnn-rate-1e-6",
        "A learning rate of 1e-6 is ten thousand times too low.",
        RATE_TOO_LOW,
    ),
)
SETUPS += setups(
    healthy("shapes-resnet-momentum-0.1", "resnet", shapes_resnet),
    decay=(
        "shapes-resnet-weight-decay-0.5",
        "A weight decay of 0.5 with SGD at rate 0.1 pulls all weights to zero.",
        r"weight[ -]?decay; \bdecay\b.*(too|large|strong|high); L2 (penalty|regulari)",
    ),
    eval=(
        "shapes-resnet-never-in-train-mode",
        "model.eval() was called before training and never undone, so that batch normalization "
        "uses its initial statistics.",
        r"""eval(uation)?[ -]mode|\.eval\(\); model\.train\(\)|train(ing)?[ -]mode;
        running (statistics|mean|variance|average);
        (batch ?norm\w*|batch normali[sz]ation).*(frozen|eval|statistics|not updated)""",
    ),
)
SETUPS += setups(
    healthy("shapes-resnet-after-100-updates-adam", "resnet", resnet_trained, 60),
    one=(
        "shapes-resnet-labels-all-zero",
        "A mistake in reading the labels makes every label of the training data 0.",
        r"""(labels?|targets?).*(constant|same|identical|single|one class|only|all);
        (one|single|same|only) (class|label|target); constant (labels?|targets?)""",
    ),
)
SETUPS += setups(
    healthy("shapes-vgg-kaiming-adam", "cnn", shapes_vgg, 200),
    small=(
        "shapes-vgg-weights-0.003",
        "Weights with standard deviation 0.003 make the signal vanish on its way through.",
        r"""vanish; init\w*.*(small|narrow|tiny|low|kaiming|xavier);
        (weights?|layers?).*(too small|too narrow|tiny|initiali[sz]);
        (activations?|signals?|outputs?|gradients?).*(shrink|vanish|tiny|die|fade|collapse);
        (kaiming|xavier|glorot|\bhe\b)[ -]?(init|normal|uniform)?""",
    ),
)
SETUPS += setups(
    healthy("digits-new-head-on-frozen-cnn-adam", "fine-tuning", finetune_head, 100),
    replaced=(
        "digits-head-replaced-after-optimizer",
        "The head was replaced after the optimizer was built, which still holds the old one.",
        NOT_IN_OPTIMIZER,
    ),
    frozen=(
        "digits-new-head-frozen-too",
        "The weights of the new head were frozen with the rest; only its bias can learn.",
        r"""frozen|freez; requires_grad;
        (not|never|do(es)? not|cannot) (be )?(trained|trainable|train|learn)""",
    ),
)
SETUPS += setups(
    healthy("digits-finetune-flipped-adamw", "fine-tuning", finetune_all, 100),
    rate=(
        "digits-finetune-flipped-rate-0.1",
        "A learning rate of 0.1 with AdamW destroys what the network had learned.",
        RATE_TOO_HIGH,
    ),
)
