"""Regression, autoencoders, two heads, segmentation and pairs of images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.findings.everyday.common import (
    RATE_TOO_HIGH,
    UNSCALED_INPUTS,
    Split,
    alike,
    conv_bn,
    digits,
    evaluated,
    healthy,
    houses,
    loader,
    minus,
    minus_mse,
    mlp,
    posed,
    setups,
    split,
    standardized,
    table,
)
from benchmarks.findings.setup import Parts

UNSCALED_TARGETS = (
    r"targets?.*(scale|normali[sz]|standardi[sz]|large|magnitude|units?|range|far from)",
    r"(normali[sz]|standardi[sz]|rescale|scale|divide).*(targets?|labels?)",
    r"outputs?.*(far from|scale of|smaller than|much too small).*targets?",
)


def priced(dollars: bool = False) -> Split:
    """The houses, with standardized features and prices unless told otherwise."""
    x, y, x_test, y_test = standardized(houses())
    mean, std = y.mean(), y.std()
    if not dollars:
        y, y_test = (y - mean) / std, (y_test - mean) / std
    return x, y[:, None], x_test, y_test[:, None]


def houses_momentum(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = priced(dollars=wrong == "dollars")
    unit = float(y.std())
    if wrong == "missing":
        x = x.clone()
        x[torch.rand(x.shape) < 0.02] = torch.nan
    model = mlp(6, 64, 64, 1, act=nn.Identity if wrong == "linear" else nn.ReLU)
    if wrong == "relu":
        model.append(nn.ReLU())
    rate = 3.0 if wrong == "rate" else 0.02
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return posed(
        model,
        loader(x, y, seed),
        optimizer,
        test,
        nn.MSELoss(reduction="sum" if wrong == "sum" else "mean"),
        score=minus_mse(*test, unit),
    )


def houses_rmsprop(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = priced()
    model = mlp(6, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    return posed(
        model, loader(x, y, seed, 32), optimizer, test, nn.HuberLoss(), score=minus_mse(*test)
    )


def diabetes(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = standardized(table("diabetes"))
    mean, std = y.mean(), y.std()
    y, y_test = (y - mean) / std, (y_test - mean) / std
    if wrong != "broadcast":
        y, y_test = y[:, None], y_test[:, None]
    model = mlp(10, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return posed(
        model,
        loader(x, y, seed, 32),
        optimizer,
        (x_test, y_test),
        functional.mse_loss,
        score=minus_mse(x_test, y_test),
    )


def digits_autoencoder(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, _, x_test, _ = digits()
    unit = 1
    if wrong == "sigmoid":
        x, x_test, unit = 16 * x, 16 * x_test, 16
    model = nn.Sequential(mlp(64, 64, 16), nn.ReLU(), mlp(16, 64, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return posed(
        model,
        loader(x, x, seed),
        optimizer,
        (x_test, x_test),
        nn.MSELoss(),
        score=minus_mse(x_test, x_test, unit),
    )


class VAE(nn.Module):
    """A variational autoencoder, which gives logits of the pixels, mean and log-variance."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mean, self.logvar = nn.Linear(96, 8), nn.Linear(96, 8)
        self.decoder = mlp(8, 96, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        z = mean + torch.randn_like(mean) * (logvar / 2).exp() if self.training else mean
        return self.decoder(z), mean, logvar


def digits_vae(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    model = VAE()

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        logits, mean, logvar = model(batch[0])
        kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum()
        if wrong == "mean":
            return functional.binary_cross_entropy_with_logits(logits, batch[0]) + kl
        pixels = functional.binary_cross_entropy_with_logits(logits, batch[0], reduction="sum")
        return (pixels + kl) / len(logits)

    def score(model: nn.Module) -> float:
        return minus((evaluated(model, x_test)[0].sigmoid() - x_test).square().mean())

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return posed(
        model, loader(x, y, seed), optimizer, (x_test, y_test), loss_fn=loss_fn, score=score
    )


class TwoHeads(nn.Module):
    """One body; a price, and a logit for whether the house sells quickly."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.price, self.quick = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.price(hidden)[:, 0], self.quick(hidden)[:, 0]


def houses_two_heads(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, price, x_test, price_test = priced()
    quick, quick_test = ((each[:, 4] * each[:, 5] > 0).float() for each in (x, x_test))
    unit = 1e5 if wrong == "dollars" else 1
    y = torch.stack([unit * price[:, 0], quick], 1)
    y_test = torch.stack([unit * price_test[:, 0], quick_test], 1)

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        yes = functional.binary_cross_entropy_with_logits(outputs[1], targets[:, 1])
        return functional.mse_loss(outputs[0], targets[:, 0]) + yes

    def score(model: nn.Module) -> float:
        first, second = evaluated(model, x_test)
        right = ((second > 0).float() == quick_test).float().mean()
        return float(right) + minus((first / unit - price_test[:, 0]).square().mean())

    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return posed(model, loader(x, y, seed), optimizer, (x_test, y_test), loss, score=score)


class UNet(nn.Module):
    """A U-Net of two levels."""

    def __init__(self):
        super().__init__()

        def double(fan_in: int, fan_out: int) -> nn.Sequential:
            return nn.Sequential(conv_bn(fan_in, fan_out), conv_bn(fan_out, fan_out))

        self.down1, self.down2, self.bottom = double(1, 8), double(8, 16), double(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge2, self.merge1 = double(32, 16), double(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        up = self.merge2(torch.cat([self.up2(bottom), second], 1))
        return self.out(self.merge1(torch.cat([self.up1(up), first], 1)))


def cells_unet(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    rng = np.random.default_rng(6)
    rows, columns = np.mgrid[:24, :24]
    x = rng.normal(0, 0.5, (500, 1, 24, 24)).astype(np.float32)
    y = np.zeros_like(x)
    for image, mask in zip(x, y, strict=True):
        for _ in range(3):
            r, c, radius = *rng.uniform(3, 21, 2), rng.uniform(2, 4.5)
            mask[0][(rows - r) ** 2 + (columns - c) ** 2 < radius**2] = 1
        image[:] += mask * rng.uniform(0.6, 1.5)
    x += np.linspace(-1, 1, 24, dtype=np.float32)
    x, y, x_test, y_test = split(x, y)

    def score(model: nn.Module) -> float:
        found = evaluated(model, x_test) > 0
        true = y_test > 0
        return float(2 * (found & true).sum() / (found.sum() + true.sum()))

    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return posed(model, loader(x, y, seed, 10), optimizer, (x_test, y_test), "bce", score=score)


SETUPS = []
SETUPS += setups(
    healthy("houses-relu-momentum", "regression", houses_momentum, 250),
    rate=(
        "houses-rate-3",
        "SGD with momentum runs with a learning rate of 3, more than a hundred times too high.",
        RATE_TOO_HIGH,
    ),
    dollars=(
        "houses-prices-in-dollars",
        "The prices are in dollars, hundreds of thousands, so that loss and gradients explode.",
        UNSCALED_TARGETS,
    ),
    missing=(
        "houses-missing-features-are-nan",
        "Missing values in the features are NaN.",
        r"\bnan\b; not[ -]a[ -]number; missing; (not|non-?)\s?-?finite",
    ),
    linear=(
        "houses-no-activations",
        "There is no activation between the linear layers, so the network is one linear map.",
        r"""activation; non-?linear;
        (is|are|only|one|purely|act as|equal to) (a |one |single )?linear\b;
        linear (map|function|in its input)""",
    ),
    relu=(
        "houses-relu-on-standardized-prices",
        "A ReLU after the last layer cannot give the negative half of the standardized prices.",
        r"""relu.*(last|output|final|end); (last|output|final|ends?)\b.*\brelu;
        outputs?.*(negative|non-negative|below (0|zero)|clipped|cut|range|cannot);
        targets?.*(negative|below (0|zero)|outside|cannot|out of|range);
        activation (after|on|behind|at) the (last|output|final)""",
    ),
    sum=(
        "houses-loss-summed-over-batch",
        "The loss is summed over the batch, so every gradient is 64 times as large.",
        alike(RATE_TOO_HIGH, r"\bsum; reduction; \bmean\b.*(loss|batch)|(loss|batch).*\bmean\b"),
    ),
)
SETUPS += setups(healthy("houses-silu-huber-rmsprop", "regression", houses_rmsprop, 250))
SETUPS += setups(
    healthy("diabetes-one-hidden-layer-adam", "regression", diabetes),
    broadcast=(
        "diabetes-outputs-n1-targets-n",
        "Outputs are of shape (N, 1) and targets (N), so the loss broadcasts them to (N, N).",
        r"broadcast; shapes?; unsqueeze|squeeze",
    ),
)
SETUPS += setups(
    healthy("digits-autoencoder-sigmoid-adam", "autoencoder", digits_autoencoder, 250),
    sigmoid=(
        "digits-autoencoder-greys-to-16",
        "The output is a sigmoid, but the images have grey values up to 16.",
        alike(
            UNSCALED_INPUTS,
            UNSCALED_TARGETS,
            r"""sigmoid; outputs?.*(range|between|cannot|bounded|limited|saturat|at most);
        targets?.*(outside|out of|beyond|range|above|cannot)""",
        ),
    ),
)
SETUPS += setups(
    healthy("digits-vae-summed-elbo-adamw", "autoencoder", digits_vae, 300),
    mean=(
        "digits-vae-pixels-averaged-kl-summed",
        "The reconstruction is averaged over pixels and batch while the KL term is summed, so the "
        "KL term drowns it and the posterior collapses.",
        r"""\bKL\b|kullback|divergence term; posterior|collaps; latent;
        (term|part) of the loss.*(dominat|outweigh|drown|larger); reconstruction;
        (ignores?|does not depend on|independent of|same (output|answer) (for|what)).*(input)?""",
    ),
)
SETUPS += setups(
    healthy("houses-price-and-quick-sale-adam", "two-heads", houses_two_heads, 250),
    dollars=(
        "houses-price-in-dollars-beside-a-logit",
        "The price is in dollars, so its squared error drowns the other head's loss.",
        alike(
            UNSCALED_TARGETS,
            r"dominat|outweigh|drown|swamp; (loss|task|head)s?.*(balanc|weigh|scale|larger than)",
        ),
    ),
)
SETUPS += setups(healthy("cells-unet-bce-batch-10-adam", "cnn", cells_unet, 120))
