"""Fresh set-ups on rows of numbers, pairs, sets and graphs."""

from __future__ import annotations

import contextlib
import itertools
import math
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.findings.fresh.common import (
    Catalog,
    accuracy,
    batches,
    digits,
    explained,
    rng,
    standardized,
)
from benchmarks.findings.setup import Parts, plain_updates

CATALOG = Catalog()
healthy, broken = CATALOG.healthy, CATALOG.broken


# ---------------------------------------------------------------- breast cancer: two classes


class TumourNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.fc1 = nn.Linear(30, width)
        self.bn1 = nn.BatchNorm1d(width)
        self.fc2 = nn.Linear(width, width)
        self.bn2 = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.drop(torch.relu(self.bn1(self.fc1(x))))
        return self.out(torch.relu(self.bn2(self.fc2(x))))


def until_it_raises(parts):
    with contextlib.suppress(ValueError):  # the author's run ends here, with a traceback
        plain_updates(parts, 120)


@healthy("cancer-batchnorm-adam", "mlp", 120)
def cancer(seed, rows=450, drop_last=True, eval_centred=True, one_label=False):
    from sklearn.datasets import load_breast_cancer

    torch.manual_seed(seed)
    raw = load_breast_cancer()
    order = torch.randperm(569, generator=rng(2))
    x, y = torch.tensor(raw.data).float()[order], torch.tensor(raw.target).float()[order, None]
    train, test, y_test = x[:rows], x[450:], y[450:]
    mean, std = train.mean(0), train.std(0)
    train = (train - mean) / std
    test = (test - mean) / std if eval_centred else test / std
    labels = torch.ones(rows, 1) if one_label else y[:rows]
    model = TumourNet()
    return Parts(
        model,
        batches(train, labels, drop_last=drop_last, seed=seed),
        torch.optim.Adam(model.parameters(), 5e-4),
        nn.BCEWithLogitsLoss(),
        eval_data=batches(test, y_test, size=60, shuffle=False),
        score=accuracy(test, y_test),
        train=None if drop_last else until_it_raises,
    )


broken(
    "cancer-last-batch-of-one", "cancer-batchnorm-adam",
    "The loader keeps the last batch, which has one row: batch norm raises an error there.",
    (r"(batch|batches) (of|with) (size )?(1|one|a single)\b", r"\blast batch\b", r"drop_last",
     r"batch\w*.{0,60}(single|one|1) (sample|row|value)", r"more than 1 value",
     r"(single|one|1) (sample|row|value).{0,60}batch"),
    rows=449, drop_last=False,
)  # fmt: skip
broken(
    "cancer-evaluated-without-mean", "cancer-batchnorm-adam",
    "Held-out rows are divided by the standard deviation, but the mean is not subtracted.",
    (r"(eval|held-out|validation|test)\w*.{0,80}(shift|differ|mean|scale|distribut|preprocess)",
     r"(shift|differ|distribut|preprocess)\w*.{0,80}(eval|held-out|validation|test)",
     r"running (statistics|mean|var).{0,60}(differ|off|not match|away|far)"),
    eval_centred=False,
)  # fmt: skip
broken(
    "cancer-labels-all-one", "cancer-batchnorm-adam",
    "The label column was read wrong: all training labels are 1.",
    (r"(label|target|class)\w*.{0,60}(constant|identical|all the same|the same|single|only one)",
     r"(only )?(one|a single) (class|label|target)", r"same (label|target|class)",
     r"(label|target)s? (do|does) not vary"),
    one_label=True,
)  # fmt: skip


# ---------------------------------------------------------------- wine: self-normalizing


@healthy("wine-selu-momentum", "mlp", 150)
def wine(seed, by_row=False, **options):
    from sklearn.datasets import load_wine

    torch.manual_seed(seed)
    raw = load_wine()
    order = torch.randperm(178, generator=rng(4))
    x, y = torch.tensor(raw.data).float()[order], torch.tensor(raw.target)[order]
    if by_row:
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        train, test = x[:120], x[120:]
    else:
        train, test = standardized(x[:120], x[120:])
    layers = []
    for n, m in ((13, 48), (48, 48), (48, 48)):
        layers += [nn.Linear(n, m), nn.SELU(), nn.AlphaDropout(0.05)]
    model = nn.Sequential(*layers, nn.Linear(48, 3))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, **options)
    return Parts(
        model, batches(train, y[:120], size=20, seed=seed), optimizer, "cross_entropy",
        eval_data=[(test, y[120:])], score=accuracy(test, y[120:]),
    )  # fmt: skip


broken(
    "wine-standardized-by-row", "wine-selu-momentum",
    "Every row was standardized over its columns (axis=1) instead of every column over its rows.",
    (r"(input|feature|column)s?\b.{0,80}(scale|standardi[sz]|different|range|constant|dominat)",
     r"\b(by|per|each|every) (row|sample)\b|\baxis\b",
     r"standardi[sz]e (each|every|the) (column|feature|input)"),
    by_row=True,
)  # fmt: skip
broken(
    "wine-maximize", "wine-selu-momentum",
    "The optimizer was made with maximize=True, so it climbs the loss.",
    (r"maximi[sz]e", r"(climb|ascen[dt])\w*", r"wrong (sign|direction)", r"\bsign of the\b",
     r"uphill"),
    maximize=True,
)  # fmt: skip


# ---------------------------------------------------------------- tabular: embeddings, groups


@lru_cache
def orders(n=2400, m=800):
    g = rng(8)
    k = n + m
    ids = torch.stack([torch.randint(60, (k,), generator=g), torch.randint(40, (k,), generator=g)])
    numbers = torch.randn(k, 5, generator=g)
    shops, products = torch.randn(60, generator=g), torch.randn(40, generator=g)
    z = 1.5 * shops[ids[0]] + 1.5 * products[ids[1]] + numbers[:, 0] * numbers[:, 1] + numbers[:, 2]
    late = (z + 0.3 * torch.randn(k, generator=g) > 0.4).float()[:, None]
    rows = ids.T, numbers, late
    return [r[:n] for r in rows], [r[n:] for r in rows]


class OrderNet(nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        if frozen:  # from_pretrained freezes unless it is told not to
            self.shop = nn.Embedding.from_pretrained(torch.randn(60, 2))
            self.product = nn.Embedding.from_pretrained(torch.randn(40, 2))
        else:
            self.shop, self.product = nn.Embedding(60, 2), nn.Embedding(40, 2)
        self.body = nn.Sequential(
            nn.Linear(9, 64), nn.LayerNorm(64), nn.GELU(),
            nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, ids, numbers):
        return self.body(torch.cat([self.shop(ids[:, 0]), self.product(ids[:, 1]), numbers], 1))


@healthy("orders-embeddings-layernorm-adamw-groups", "mlp", 400)
def late_orders(seed, frozen=False, body_rate=5e-3):
    torch.manual_seed(seed)
    train, test = orders()
    model = OrderNet(frozen)
    tables = [*model.shop.parameters(), *model.product.parameters()]
    matrices = [p for p in model.body.parameters() if p.ndim > 1]
    others = [p for p in model.body.parameters() if p.ndim < 2]
    groups = [
        {"params": tables, "lr": 2e-2, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": 1e-2},
        {"params": others, "weight_decay": 0.0},
    ]

    def loss(model, batch):
        ids, numbers, late = batch
        return functional.binary_cross_entropy_with_logits(model(ids, numbers), late)

    def score(model):
        ids, numbers, late = test
        model.eval()
        with torch.no_grad():
            return float(((model(ids, numbers) > 0) == (late > 0.5)).float().mean())

    return Parts(
        model, batches(*train, size=64, seed=seed), torch.optim.AdamW(groups, lr=body_rate),
        loss_fn=loss, eval_data=batches(*test, size=200, shuffle=False), score=score,
    )  # fmt: skip


broken(
    "orders-embeddings-frozen-by-default", "orders-embeddings-layernorm-adamw-groups",
    "Random embeddings were made with Embedding.from_pretrained, which freezes them.",
    (r"(frozen|freeze|requires_grad)", r"embedding.{0,60}(not trained|never|no gradient|do not)",
     r"\b(shop|product)\b.{0,60}(not trained|never|no gradient|do not|not move|untrained)"),
    frozen=True,
)  # fmt: skip
broken(
    "orders-body-rate-5", "orders-embeddings-layernorm-adamw-groups",
    "The learning rate of the body's groups is 5 instead of 5e-3; that of the embeddings is right.",
    (r"(learning rate|\brate\b|\blr\b|step).{0,80}(large|high|big|too|times|explod|diverg)",
     r"(too large|too high).{0,40}(rate|lr|step)", r"diverg"),
    body_rate=5.0,
)  # fmt: skip


# ---------------------------------------------------------------- rooms: regression, layer norm


@lru_cache
def rooms(n=1500, m=500):
    g = rng(12)
    x = torch.randn(n + m, 12, generator=g)
    y = 1.5 * torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + x[:, 3] + 0.5 * x[:, 4].abs()
    y = y + 0.2 * torch.randn(n + m, generator=g)
    y = ((y - y.mean()) / y.std())[:, None]
    return x[:n], y[:n], x[n:], y[n:]


class RoomNet(nn.Module):
    def __init__(self, dropout=0.0, functional_dropout=False, end=None):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 96), nn.Linear(96, 96), nn.Linear(96, 1)
        self.na, self.nb = nn.LayerNorm(96), nn.LayerNorm(96)
        self.functional_dropout = functional_dropout
        self.end = end if end is not None else nn.Identity()

    def forward(self, x):
        x = functional.silu(self.na(self.a(x)))
        if self.functional_dropout:
            x = functional.dropout(x, 0.5)
        x = functional.silu(self.nb(self.b(x)))
        if self.functional_dropout:
            x = functional.dropout(x, 0.5)
        return self.end(self.c(x))


@healthy("rooms-layernorm-rmsprop", "regression", 300)
def room_prices(seed, scale=1.0, **options):
    torch.manual_seed(seed)
    x, y, xt, yt = rooms()
    end = options.pop("end", None)
    model = RoomNet(end=None if end is None else end(), **options)
    return Parts(
        model,
        batches(x, y * scale, size=50, seed=seed),
        torch.optim.RMSprop(model.parameters(), 2e-3),
        "mse",
        eval_data=[(xt, yt * scale)],
        score=explained(xt, yt, scale),
    )


broken(
    "rooms-layernorm-over-one-output", "rooms-layernorm-rmsprop",
    "A LayerNorm over the one output makes every prediction equal to its bias.",
    (r"(norm|normali[sz])\w*.{0,80}(one|single|1) (value|element|number|feature|output|unit)",
     r"group(s)? of (one|1|a single)\b", r"norm\w*.{0,60}(constant|zero|eras|kill|lose|same)",
     r"(constant|zero|eras|kill|lost|lose|same)\w*.{0,60}norm"),
    end=lambda: nn.LayerNorm(1),
)  # fmt: skip
broken(
    "rooms-dropout-on-the-prediction", "rooms-layernorm-rmsprop",
    "Dropout of 0.5 is applied to the prediction itself.",
    (r"dropout", r"dropped"),
    end=lambda: nn.Dropout(0.5),
)  # fmt: skip
broken(
    "rooms-dropout-always-on", "rooms-layernorm-rmsprop",
    "functional.dropout is called without training=self.training: it stays on in evaluation.",
    (r"dropout", r"(random|stochastic|not deterministic|nondeterministic).{0,80}(eval|mode|two)",
     r"(eval\w*|two (calls|passes|runs)).{0,80}(random|stochastic|differ|not deterministic)"),
    functional_dropout=True,
)  # fmt: skip
broken(
    "rooms-targets-in-the-wrong-unit", "rooms-layernorm-rmsprop",
    "The targets are of order 1e-5 (other units), far below what the outputs are at the start.",
    (r"target.{0,100}(small|tiny|scale|unit|standardi[sz]|below|order|magnitude)",
     r"(outputs?|predictions?).{0,80}(larger|times|bigger) .{0,40}target",
     r"standardi[sz]e the target"),
    scale=1e-5,
)  # fmt: skip


# ---------------------------------------------------------------- counts: Poisson regression


@lru_cache
def counts(n=1600, m=500):
    g = rng(14)
    x = torch.randn(n + m, 8, generator=g)
    rate = torch.exp(0.8 + 0.7 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2].sign() + 0.3 * x[:, 3])
    y = torch.poisson(rate, generator=g)[:, None]
    return x[:n], y[:n], x[n:], y[n:]


@healthy("counts-poisson-adam", "regression", 300)
def bike_counts(seed, exp_in_model=False, minus=True):
    torch.manual_seed(seed)
    x, y, xt, yt = counts()
    model = nn.Sequential(nn.Linear(8, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1))

    class Rate(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return torch.exp(self.net(x)) if exp_in_model else self.net(x)

    model = Rate(model)

    def loss(log_rate, y):
        if not minus:
            return (y * log_rate - log_rate.exp()).mean()
        return functional.poisson_nll_loss(log_rate, y, log_input=True)

    def score(model):
        model.eval()
        with torch.no_grad():
            out = model(xt)
        rate = out if exp_in_model else out.exp()
        nll = functional.poisson_nll_loss(rate, yt, log_input=False)
        base = functional.poisson_nll_loss(y.mean().expand_as(yt), yt, log_input=False)
        return float(base - nll) if math.isfinite(float(nll)) else -10.0

    return Parts(
        model, batches(x, y, size=40, seed=seed), torch.optim.Adam(model.parameters(), 2e-3), loss,
        eval_data=[(xt, yt)], score=score,
    )  # fmt: skip


broken(
    "counts-exp-twice", "counts-poisson-adam",
    "The model returns rates (exp), and the Poisson loss takes them for log rates: exp twice.",
    (r"\bexp\b", r"log_input", r"log[- ]rate", r"poisson", r"exponential",
     r"(output|prediction)s?.{0,60}(only positive|never negative|all positive|at least 0)"),
    exp_in_model=True,
)  # fmt: skip
broken(
    "counts-likelihood-without-minus", "counts-poisson-adam",
    "The loss is the log-likelihood, its minus sign is missing: training makes it worse.",
    (r"\bsign\b", r"minus", r"(loss|it) .{0,40}(unbounded|no lower|without bound|below)",
     r"maximi[sz]e", r"negative loss", r"loss is negative"),
    minus=False,
)  # fmt: skip


# ---------------------------------------------------------------- triplets


@lru_cache
def triplets(n=3000, swapped=False, same=False):
    x, y, _, _ = digits(flat=True)
    g = rng(16)
    anchor = torch.randint(len(x), (n,), generator=g)
    score = torch.rand(n, len(x), generator=g)
    equal = y[anchor][:, None] == y[None]
    positive = (score * equal).argmax(1)
    negative = (score * ~equal).argmax(1)
    if same:  # drawn with replacement: now and then the anchor itself
        positive = torch.where(torch.arange(n) % 100 == 0, anchor, positive)
    if swapped:
        positive, negative = negative, positive
    return x[anchor], x[positive], x[negative]


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(),
            nn.Linear(96, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3),
        )  # fmt: skip

    def forward(self, x):
        return functional.normalize(self.net(x), dim=1)


@healthy("digits-triplet-adamw", "contrastive", 200)
def triplet_digits(seed, swapped=False, same=False, root=False):
    torch.manual_seed(seed)
    x, y, xt, yt = digits(flat=True)
    model = Embedder()

    def loss(model, batch):
        a, p, n = model(torch.cat(batch)).chunk(3)
        near, far = ((a - p) ** 2).sum(1), ((a - n) ** 2).sum(1)
        if root:
            near, far = near.sqrt(), far.sqrt()
        return functional.relu(near - far + 0.5).mean()

    def score(model):
        """The nearest mean of a class."""
        model.eval()
        with torch.no_grad():
            z, zt = model(x), model(xt)
        means = torch.stack([z[y == c].mean(0) for c in range(10)])
        if not torch.isfinite(means).all():
            return 0.0
        return float((torch.cdist(zt, means).argmin(1) == yt).float().mean())

    return Parts(
        model, batches(*triplets(swapped=swapped, same=same), size=64, seed=seed),
        torch.optim.AdamW(model.parameters(), 3e-3), loss_fn=loss, score=score,
    )  # fmt: skip


broken(
    "triplet-root-of-zero", "digits-triplet-adamw",
    "The distance is a square root, and now and then the positive is the anchor itself: the "
    "gradient of the root at 0 is not finite.",
    (r"\bnan\b", r"not finite", r"non-?finite", r"infinite", r"sqrt", r"square root"),
    root=True, same=True,
)  # fmt: skip
broken(
    "triplet-positive-and-negative-swapped", "digits-triplet-adamw",
    "Positive and negative are swapped, so that equal digits are driven apart (silent).",
    (r"swap", r"\bsign\b", r"(positive|negative)s?.{0,40}(negative|positive)", r"driven apart"),
    swapped=True,
)  # fmt: skip


# ---------------------------------------------------------------- a discriminator


@lru_cache
def fakes(n, seed):
    """Blurred mixtures of two digits: what a bad generator makes; in -1 to 1."""
    x, _, _, _ = digits()
    g = rng(seed)
    i, j = torch.randint(len(x), (2, n), generator=g)
    x = (x - x.min()) / (x.max() - x.min()) * 2 - 1
    mixed = 0.5 * (x[i] + x[j])
    return (mixed + 0.1 * torch.randn(mixed.shape, generator=g)).clamp(-1, 1)


@healthy("discriminator-spectral-hinge-adam", "gan", 200)
def discriminator(seed, fakes_in_0_1=False, sigmoid=False, norm="spectral"):
    torch.manual_seed(seed)
    x, _, xt, _ = digits()
    low, high = x.min(), x.max()
    real, real_t = ((v - low) / (high - low) * 2 - 1 for v in (x, xt))
    fake, fake_t = fakes(len(real), 61), fakes(len(real_t), 62)
    if fakes_in_0_1:
        fake = (fake + 1) / 2
    sn = spectral_norm if norm == "spectral" else lambda layer: layer
    layers = []
    for n, m in ((1, 24), (24, 48)):
        layers.append(sn(nn.Conv2d(n, m, 4, 2, 1)))
        if norm == "batch":
            layers.append(nn.BatchNorm2d(m))
        layers.append(nn.LeakyReLU(0.2))
    layers += [nn.Flatten(), sn(nn.Linear(48 * 4, 1))]
    model = nn.Sequential(*layers, *([nn.Sigmoid()] if sigmoid else []))

    def loss(model, batch):
        real, fake = batch
        return functional.relu(1 - model(real)).mean() + functional.relu(1 + model(fake)).mean()

    xs = torch.cat([real_t, fake_t])
    ys = torch.cat([torch.ones(len(real_t), 1), torch.zeros(len(fake_t), 1)])
    return Parts(
        model, batches(real, fake, size=32, seed=seed),
        torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.99)), loss_fn=loss,
        eval_data=batches(real_t, fake_t, size=100, shuffle=False), score=accuracy(xs, ys),
    )  # fmt: skip


broken(
    "discriminator-fakes-in-0-to-1", "discriminator-spectral-hinge-adam",
    "In training the fakes are in 0..1 and the reals in -1..1: only the range tells them apart.",
    (r"(range|scale|mean|distribut)\w*.{0,80}(differ|shift|not match)",
     r"(differ|shift)\w*.{0,80}(range|scale|mean|distribut)", r"(eval|held-out).{0,60}differ"),
    fakes_in_0_1=True,
)  # fmt: skip
broken(
    "discriminator-sigmoid-before-hinge", "discriminator-spectral-hinge-adam",
    "A sigmoid ends the network, so the hinge loss never sees an output below 0.",
    (r"sigmoid", r"(output|prediction)s?.{0,80}(range|limited|bounded|never below|0 (to|and) 1)",
     r"saturat", r"squash"),
    sigmoid=True,
)  # fmt: skip
broken(
    "discriminator-batchnorm-real-and-fake-apart", "discriminator-spectral-hinge-adam",
    "Batch norm, and the batches of reals and of fakes go through it one after the other: the "
    "statistics of a batch give its class away, those for evaluation fit neither.",
    (r"(train\w*|eval\w*).{0,80}(mode|statistics).{0,80}(differ|gap|disagree|not match|far)",
     r"(batch|running) (norm|statistics|mean|var).{0,80}(differ|match|gap|evaluation|mix|leak)",
     r"(differ|gap|disagree)\w*.{0,80}(running|batch) statistics", r"eval\w* mode"),
    norm="batch",
)  # fmt: skip


# ---------------------------------------------------------------- a graph


@lru_cache
def communities(n=360, blocks=4):
    g = rng(18)
    y = torch.arange(n) % blocks
    p = torch.where(y[:, None] == y[None], 0.12, 0.03)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T
    x = torch.randn(n, 16, generator=g)
    x[torch.arange(n), y] += 1.0
    train = torch.rand(n, generator=g) < 0.35
    return a, x, y, train


class GraphNet(nn.Module):
    def __init__(self, a, layers=3, width=32, normalized=True):
        super().__init__()
        a = a + torch.eye(len(a))
        d = a.sum(1)
        self.register_buffer("a", a / (d[:, None] * d[None]).sqrt() if normalized else a)
        widths = [16, *[width] * (layers - 1), 4]
        self.convs = nn.ModuleList(nn.Linear(n, m) for n, m in itertools.pairwise(widths))

    def forward(self, x):
        for conv in self.convs[:-1]:
            x = torch.relu(self.a @ conv(x))
        return self.a @ self.convs[-1](x)


@healthy("communities-gcn-adam", "graph", 150)
def gcn(seed, **options):
    torch.manual_seed(seed)
    a, x, y, train = communities()
    model = GraphNet(a, **options)

    def loss(model, batch):
        x, y, mask = batch
        return functional.cross_entropy(model(x)[mask], y[mask])

    def score(model):
        model.eval()
        with torch.no_grad():
            right = model(x).argmax(1) == y
        return float(right[~train].float().mean())

    return Parts(
        model, [(x, y, train)], torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4),
        loss_fn=loss, score=score,
    )  # fmt: skip


broken(
    "gcn-16-layers", "communities-gcn-adam",
    "16 graph convolutions without skips: all nodes become alike (oversmoothing).",
    (r"over-?smooth", r"collaps", r"vanish", r"too (deep|many layers)|depth", r"skip|residual",
     r"(node|sample|output|feature|representation|row)s?.{0,60}(alike|same|similar|correlat)",
     r"low rank|rank (collapse|one|1)"),
    layers=16,
)  # fmt: skip
broken(
    "gcn-adjacency-not-normalized", "communities-gcn-adam",
    "The adjacency matrix is not divided by the degrees: signals grow 20 times per layer.",
    (r"(explod|blow|grow)\w*", r"(signal|activation|output|logit)s?.{0,60}(large|times|high)",
     r"not normali[sz]ed"),
    normalized=False, layers=5,
)  # fmt: skip


# ---------------------------------------------------------------- point clouds


@lru_cache
def clouds(n=1000, m=300, points=64):
    g = rng(20)
    k = n + m
    y = torch.randint(4, (k,), generator=g)
    v = torch.randn(k, points, 3, generator=g)
    sphere = v / v.norm(dim=2, keepdim=True)
    cube = v / v.abs().amax(2, keepdim=True)
    round_ = v[..., :2] / v[..., :2].norm(dim=2, keepdim=True)
    height = 2 * torch.rand(k, points, 1, generator=g) - 1
    cylinder = torch.cat([round_, height], 2)
    cone = torch.cat([round_ * (1 - height) / 2, height], 2)
    x = torch.stack([sphere, cube, cylinder, cone])[y, torch.arange(k)]
    x = x / x.std((1, 2), keepdim=True) + 0.05 * torch.randn(x.shape, generator=g)
    angle = 2 * math.pi * torch.rand(k, generator=g)  # they stand upright
    turn = torch.eye(3).repeat(k, 1, 1)
    turn[:, 0, 0] = turn[:, 1, 1] = angle.cos()
    turn[:, 0, 1], turn[:, 1, 0] = angle.sin(), -angle.sin()
    return (x @ turn).transpose(1, 2).contiguous(), y


class PointNet(nn.Module):
    def __init__(self, over=2, shared_norm=False):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv1d(3, 64, 1), nn.Conv1d(64, 64, 1), nn.Conv1d(64, 64, 1)
        self.n1 = nn.BatchNorm1d(64)
        self.n2 = self.n1 if shared_norm else nn.BatchNorm1d(64)
        self.n3 = self.n1 if shared_norm else nn.BatchNorm1d(64)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        self.over = over

    def forward(self, x):
        x = torch.relu(self.n1(self.c1(x)))
        x = torch.relu(self.n2(self.c2(x)))
        x = self.n3(self.c3(x))
        return self.head(x.max(self.over).values)


@healthy("clouds-pointnet-batchnorm-adam", "sets", 300)
def pointnet(seed, offset=0.0, **options):
    torch.manual_seed(seed)
    x, y = clouds()
    x = x + offset * torch.tensor([0.7, 1.0, 0.1])[:, None]
    model = PointNet(**options)
    return Parts(
        model, batches(x[:1000], y[:1000], size=32, seed=seed),
        torch.optim.Adam(model.parameters(), 2e-3), "cross_entropy",
        eval_data=batches(x[1000:], y[1000:], size=100, shuffle=False),
        score=accuracy(x[1000:], y[1000:]),
    )  # fmt: skip


broken(
    "pointnet-max-over-channels", "clouds-pointnet-batchnorm-adam",
    "The maximum is taken over the 64 channels instead of over the 64 points.",
    (r"(wrong|other) (dim|axis)", r"\b(max\w*|pool\w*)\b.{0,80}(channel|dim|axis|point)",
     r"order of the points", r"permut", r"\bdim(ension)?=?\b.{0,40}(wrong|over)"),
    over=1,
)  # fmt: skip
broken(
    "pointnet-one-batchnorm-for-three-layers", "clouds-pointnet-batchnorm-adam",
    "One BatchNorm is called behind three layers, so its running statistics fit none of them.",
    (r"(shared|reused|re-used|called (more than once|several|twice|three|3)|several times)",
     r"(train\w*|eval\w*).{0,80}(statistics).{0,80}(differ|gap|disagree|not match|far)",
     r"running (statistics|mean|var).{0,80}(differ|match|gap|wrong|fit|far|away|off)",
     r"(differ|gap|disagree)\w*.{0,80}running"),
    shared_norm=True,
)  # fmt: skip
broken(
    "clouds-in-map-coordinates", "clouds-pointnet-batchnorm-adam",
    "The points are in map coordinates (offset of 4,000,000), which float32 cannot resolve.",
    (r"input.{0,100}(large|mean|cent(re|er)|offset|shift|scale|standardi[sz]|magnitude)",
     r"(cent(re|er)|standardi[sz]|subtract)\w*.{0,60}(input|mean|coordinate)", r"precision"),
    offset=4e6,
)  # fmt: skip


# ---------------------------------------------------------------- ratings: factorization


@lru_cache
def ratings(n=6000, m=2000):
    g = rng(22)
    u, v = torch.randn(80, 3, generator=g), torch.randn(50, 3, generator=g)
    user = torch.randint(80, (n + m,), generator=g)
    film = torch.randint(50, (n + m,), generator=g)
    r = (u[user] * v[film]).sum(1) / 3**0.5 + 0.2 * torch.randn(n + m, generator=g)
    x = torch.stack([user, film], 1)
    return x[:n], r[:n], x[n:], r[n:]


class Factors(nn.Module):
    def __init__(self, dim=8, std=0.3):
        super().__init__()
        self.users, self.films = nn.Embedding(80, dim), nn.Embedding(50, dim)
        self.user_bias, self.film_bias = nn.Embedding(80, 1), nn.Embedding(50, 1)
        for table, s in ((self.users, std), (self.films, std), (self.user_bias, 0),
                         (self.film_bias, 0)):  # fmt: skip
            nn.init.normal_(table.weight, std=s)

    def forward(self, x):
        u, v = x[:, 0], x[:, 1]
        out = (self.users(u) * self.films(v)).sum(1)
        return out + self.user_bias(u)[:, 0] + self.film_bias(v)[:, 0]


@healthy("ratings-factors-adagrad", "recommender", 400)
def film_ratings(seed, **options):
    torch.manual_seed(seed)
    x, r, xt, rt = ratings()
    model = Factors(**options)
    return Parts(
        model, batches(x, r, size=128, seed=seed), torch.optim.Adagrad(model.parameters(), 0.1),
        "mse", eval_data=batches(xt, rt, size=500, shuffle=False), score=explained(xt, rt),
    )  # fmt: skip


broken(
    "ratings-factors-zero", "ratings-factors-adagrad",
    "Both factor tables start at zero: neither gets a gradient, only the biases learn.",
    (r"\bzeros?\b.{0,80}(init|start|weight|gradient|table|factor|both|parameter)",
     r"(gradient|parameter|weight)s?.{0,60}(is|are|exactly|all) (0|zero)\b", r"no gradient",
     r"(users|films).{0,80}(not (trained|move|learn)|never)"),
    std=0.0,
)  # fmt: skip
broken(
    "ratings-factors-far-too-wide", "ratings-factors-adagrad",
    "Factors of 128 dimensions start at a standard deviation of 1: predictions are ten times "
    "too large at the start.",
    (r"(output|prediction)s?.{0,100}(large|times|scale|high|spread)",
     r"(init\w*|start\w*).{0,80}(large|scale|high|std|standard deviation)",
     r"loss.{0,60}(start|initial|first|begin)\w*.{0,80}(high|large|above|worse|times)"),
    dim=128, std=1.0,
)  # fmt: skip


# ---------------------------------------------------------------- a differential equation


@healthy("oscillator-pinn-tanh-adam", "regression", 400)
def pinn(seed, activation=nn.Tanh):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(1, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 1)
    )
    t = torch.rand(640, 1, generator=rng(seed))

    def loss(model, batch):
        (t,) = batch
        t = t.clone().requires_grad_(True)
        u = model(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True, allow_unused=True)
        ddu = ddu if ddu is not None else torch.zeros_like(t)
        ends = model(torch.tensor([[0.0], [1.0]]))
        # u'' = -pi^2 sin(pi t), u(0) = u(1) = 0
        return ((ddu / math.pi**2 + torch.sin(math.pi * t)) ** 2).mean() + (ends**2).sum()

    def score(model):
        t = torch.linspace(0, 1, 101)[:, None]
        with torch.no_grad():
            error = (model(t) - torch.sin(math.pi * t)).abs().max()
        return -float(error)

    return Parts(
        model, batches(t, size=64, seed=seed), torch.optim.Adam(model.parameters(), 3e-3),
        loss_fn=loss, score=score,
    )  # fmt: skip


broken(
    "pinn-with-relu", "oscillator-pinn-tanh-adam",
    "ReLUs have no second derivative, so the residual of the equation has no gradient.",
    (r"relu.{0,80}(smooth|deriv|linear)", r"second (order )?derivative", r"no gradient",
     r"gradient.{0,60}(zero|vanish|tiny)", r"piecewise", r"curvature"),
    activation=nn.ReLU,
)  # fmt: skip


# ---------------------------------------------------------------- coordinates: SIREN


class Sine(nn.Module):
    def __init__(self, n, m, w0, first=False, init=True):
        super().__init__()
        self.linear, self.w0 = nn.Linear(n, m), w0
        if init:
            bound = 1 / n if first else math.sqrt(6 / n) / w0
            nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.w0 * self.linear(x))


@healthy("picture-siren-adam", "regression", 250)
def siren(seed, init=True, w0=12.0):
    torch.manual_seed(seed)
    i = torch.linspace(-1, 1, 32)
    x = torch.stack(torch.meshgrid(i, i, indexing="ij"), 2).reshape(-1, 2)
    y = torch.sin(4 * x[:, :1]) * torch.cos(7 * x[:, 1:]) + 0.5 * torch.cos(9 * x[:, :1] * x[:, 1:])
    y = (y - y.mean()) / y.std()
    keep = torch.rand(len(x), generator=rng(9)) < 0.5
    model = nn.Sequential(
        Sine(2, 64, w0, True, init), Sine(64, 64, w0, False, init), Sine(64, 64, w0, False, init),
        nn.Linear(64, 1),
    )  # fmt: skip
    return Parts(
        model, batches(x[keep], y[keep], size=128, seed=seed),
        torch.optim.Adam(model.parameters(), 1e-3), "mse",
        eval_data=[(x[~keep], y[~keep])], score=explained(x[~keep], y[~keep]),
    )  # fmt: skip


broken(
    "siren-default-init", "picture-siren-adam",
    "The sine layers keep PyTorch's default initial weights, which are not divided by w0 = 12.",
    (r"init\w* (weight|scale|std|gain|variance)", r"(weight|parameter)s?\b.{0,40}init",
     r"(pre-?activation|argument|signal|weight)s?.{0,80}(large|scale|times|high|grow)",
     r"chao", r"(explod|grow)\w*", r"sensitiv"),
    init=False,
)  # fmt: skip


# ---------------------------------------------------------------- diffusion on two moons


def moons(n, seed):
    from sklearn.datasets import make_moons

    x = torch.tensor(make_moons(n, noise=0.05, random_state=seed)[0]).float()
    return (x - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])


class Denoiser(nn.Module):
    def __init__(self, raw_time=False):
        super().__init__()
        self.raw_time = raw_time
        self.time = nn.Linear(1 if raw_time else 16, 64)
        self.enter = nn.Linear(2, 64)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
        )

    def forward(self, x, t):
        t = t[:, None].float()
        if not self.raw_time:
            f = torch.exp(torch.linspace(0, -6, 8)) * t
            t = torch.cat([f.sin(), f.cos()], 1)
        return self.net(self.enter(x) + self.time(t))


@healthy("moons-diffusion-adamw", "diffusion", 400)
def diffusion(seed, raw_time=False, **options):
    torch.manual_seed(seed)
    steps = 1000
    alpha = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)
    model = Denoiser(raw_time)

    def noised(x, g=None):
        t = torch.randint(steps, (len(x),), generator=g)
        e = torch.randn(x.shape, generator=g)
        a = alpha[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * e, t, e

    def loss(model, batch):
        x, t, e = noised(batch[0])
        return functional.mse_loss(model(x, t), e)

    def score(model):
        model.eval()
        x, t, e = noised(moons(4000, 5), rng(6))
        with torch.no_grad():
            error = functional.mse_loss(model(x, t), e)
        return -float(error)

    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, **options)
    return Parts(
        model, batches(moons(4000, 3), size=128, seed=seed), optimizer, loss_fn=loss, score=score
    )


broken(
    "diffusion-raw-time-steps", "moons-diffusion-adamw",
    "The time step enters as a bare number of 0 to 999 instead of scaled or embedded.",
    (r"\btime\b.{0,100}(scale|large|unscaled|dominat|embed|standardi[sz])",
     r"(input|signal|activation|pre-?activation)s?.{0,100}(large|scale|times|standardi[sz]|hundred)",
     r"(scale|standardi[sz]|normali[sz]e)\w* the input",),
    raw_time=True,
)  # fmt: skip


# ---------------------------------------------------------------- autoencoders of digits


class VectorQuantized(nn.Module):
    def __init__(self, straight_through=True):
        super().__init__()
        self.straight_through = straight_through
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 64))
        self.codes = nn.Embedding(32, 4)
        nn.init.normal_(self.codes.weight, std=0.3)

    def forward(self, x):
        z = self.encoder(x).view(len(x), 8, 4)
        nearest = torch.cdist(z, self.codes.weight[None]).argmin(2)
        q = self.codes(nearest)
        extra = functional.mse_loss(q, z.detach())
        if self.straight_through:
            extra = extra + 0.25 * functional.mse_loss(z, q.detach())
            q = z + (q - z).detach()
        return self.decoder(q.flatten(1)), extra


@healthy("digits-vq-autoencoder-adam", "autoencoder", 400)
def vq(seed, **options):
    torch.manual_seed(seed)
    x, _, xt, _ = digits(flat=True)
    model = VectorQuantized(**options)

    def loss(model, batch):
        out, extra = model(batch[0])
        return functional.mse_loss(out, batch[0]) + extra

    def score(model):
        with torch.no_grad():
            return 1 - float(functional.mse_loss(model(xt)[0], xt) / xt.var())

    return Parts(
        model, batches(x, size=64, seed=seed), torch.optim.Adam(model.parameters(), 3e-3),
        loss_fn=loss, score=score,
    )  # fmt: skip


broken(
    "vq-no-straight-through", "digits-vq-autoencoder-adam",
    "The straight-through step was forgotten: no gradient passes the argmin to the encoder.",
    (r"straight-through", r"encoder.{0,80}(no gradient|never|not (trained|move|learn)|detach)",
     r"no gradient", r"(argmin|not differentiable|detach)",
     r"gradient.{0,60}(not reach|zero|none)"),
    straight_through=False,
)  # fmt: skip


class Variational(nn.Module):
    def __init__(self, detached=False):
        super().__init__()
        self.detached = detached
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * 6))
        self.decoder = nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean
        if self.training:
            z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        if self.detached:
            z = torch.tensor(z.tolist())
        return self.decoder(z), mean, log_var


@healthy("digits-vae-adam", "autoencoder", 400)
def vae(seed, sign=1.0, **options):
    torch.manual_seed(seed)
    x, _, xt, _ = digits(flat=True)
    model = Variational(**options)

    def loss(model, batch):
        out, mean, log_var = model(batch[0])
        kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean()
        return ((out - batch[0]) ** 2).sum(1).mean() + sign * kl

    def score(model):
        model.eval()
        with torch.no_grad():
            error = float(functional.mse_loss(model(xt)[0], xt) / xt.var())
        return max(-1.0, 1 - error) if math.isfinite(error) else -1.0

    return Parts(
        model, batches(x, size=64, seed=seed), torch.optim.Adam(model.parameters(), 2e-3),
        loss_fn=loss, score=score,
    )  # fmt: skip


broken(
    "vae-kl-of-the-wrong-sign", "digits-vae-adam",
    "The KL term is subtracted, so the loss has no lower bound.",
    (r"\bsign\b", r"\bkl\b", r"negative loss", r"loss.{0,60}(negative|unbounded|no lower)",
     r"below (0|zero)"),
    sign=-1.0,
)  # fmt: skip
broken(
    "vae-latent-through-a-list", "digits-vae-adam",
    "The latents pass through a Python list, so the reconstruction gives the encoder no gradient.",
    (r"encoder.{0,80}(no gradient|never|not (trained|move|learn)|detach|cut)", r"detach",
     r"(no gradient|gradient.{0,40}(not reach|cut|none))", r"graph is (cut|broken)"),
    detached=True,
)  # fmt: skip


@healthy("digits-denoising-layernorm-nesterov", "autoencoder", 400)
def denoising(seed, target="clean", clamp=False):
    torch.manual_seed(seed)
    x, _, xt, _ = digits(flat=True)
    low, high = x.min(), x.max()
    x, xt = (x - low) / (high - low), (xt - low) / (high - low)
    noisy = x + 0.4 * torch.randn(x.shape, generator=rng(1))
    noisy_t = xt + 0.4 * torch.randn(xt.shape, generator=rng(2))

    class Clamp(nn.Module):
        def forward(self, x):
            return x.clamp(0, 1)

    model = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 32), nn.LayerNorm(32),
        nn.GELU(), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64),
        *([nn.Linear(64, 64), Clamp()] if clamp else []),
    )  # fmt: skip
    if clamp:  # grey values start around black
        nn.init.normal_(model[-2].weight, std=0.01)
        nn.init.constant_(model[-2].bias, -0.1)
    aims = x if target == "clean" else noisy
    return Parts(
        model, batches(noisy, aims, size=64, seed=seed),
        torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, nesterov=True), "mse",
        eval_data=[(noisy_t, xt)], score=explained(noisy_t, xt),
    )  # fmt: skip


broken(
    "denoising-clamped-black", "digits-denoising-layernorm-nesterov",
    "The output is clamped to 0..1, and it starts below 0: no gradient comes through the clamp.",
    (r"clamp", r"clip", r"saturat", r"no gradient", r"gradient.{0,60}(zero|0|vanish|none)"),
    clamp=True,
)  # fmt: skip
broken(
    "denoising-target-is-the-noisy-input", "digits-denoising-layernorm-nesterov",
    "The target is the noisy input itself, not the clean picture.",
    (r"target.{0,60}(input|itself|same|equal|copy|noisy)", r"identity", r"input.{0,40}target",
     r"(eval|held-out)\w*.{0,80}(differ|shift)"),
    target="noisy",
)  # fmt: skip


# ---------------------------------------------------------------- digits, many small mistakes


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(functional.silu(self.up(self.norm(x))))


def digits_parts(model, optimizer, seed, loss="cross_entropy", data=None, size=50):
    x, y, xt, yt = digits(flat=True)
    return Parts(
        model, data if data is not None else batches(x, y, size=size, seed=seed), optimizer, loss,
        eval_data=batches(xt, yt, size=100, shuffle=False), score=accuracy(xt, yt),
    )  # fmt: skip


@healthy("digits-residual-rmsnorm-adam-low-rate", "resnet", 250)
def low_rate(seed, bfloat16=False, eps=1e-8, same_batch=False, penalty=0.0):
    torch.manual_seed(seed)
    x, y, _, _ = digits(flat=True)
    model = nn.Sequential(
        nn.Linear(64, 64), Residual(64), Residual(64), Residual(64), nn.RMSNorm(64),
        nn.Linear(64, 10),
    )  # fmt: skip

    class InBfloat16(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net.bfloat16()

        def forward(self, x):
            return self.net(x.bfloat16()).float()

    if bfloat16:
        model = InBfloat16(model)
    data = batches(x, y, size=50, seed=seed)
    if same_batch:
        first = next(iter(data))
        data = [first] * 28

    def loss(model, batch):
        x, y = batch
        size = sum((p**2).sum() for p in model.parameters())
        return functional.cross_entropy(model(x), y) + penalty * size

    optimizer = torch.optim.Adam(model.parameters(), 2e-4, eps=eps)
    parts = digits_parts(model, optimizer, seed, data=data)
    if penalty:
        parts.loss, parts.loss_fn = None, loss
    return parts


broken(
    "digits-weights-in-bfloat16", "digits-residual-rmsnorm-adam-low-rate",
    "The weights themselves are bfloat16: most updates of 2e-4 are lost in rounding.",
    (r"bfloat16", r"bf16", r"half precision|precision|float16", r"round", r"resolution"),
    bfloat16=True,
)  # fmt: skip
broken(
    "digits-adam-eps-1", "digits-residual-rmsnorm-adam-low-rate",
    "Adam's eps is 1, far above the gradients, so its steps are a thousand times too small.",
    (r"\beps(ilon)?\b", r"(steps?|updates?|rate)\b.{0,80}(small|tiny|low|hardly|barely|slow)",
     r"(hardly|barely) (moves?|changes?|learns?)", r"(too )?(small|low).{0,30}(rate|step|lr)"),
    eps=1.0,
)  # fmt: skip
broken(
    "digits-first-batch-only", "digits-residual-rmsnorm-adam-low-rate",
    "next(iter(loader)) was called once: every batch is the first one.",
    (r"(same|identical|repeat\w*|duplicat\w*).{0,40}(batch|sample|data)",
     r"batch(es)?.{0,60}(same|identical|repeat|duplicat|equal)", r"overfit\w*.{0,40}batch",
     r"(few|only \d+) (different |distinct )?(samples|rows|images)"),
    same_batch=True,
)  # fmt: skip
broken(
    "digits-penalty-of-all-weights", "digits-residual-rmsnorm-adam-low-rate",
    "A squared penalty of all parameters is added by hand with a factor of 1.",
    (r"penalt", r"regulari[sz]", r"decay", r"\bL2\b", r"(term|loss)\b.{0,60}dominat",
     r"shrink"),
    penalty=1.0,
)  # fmt: skip


@healthy("digits-deep-he-nesterov", "mlp", 250)
def deep_relu(seed, default_init=False, hook=False):
    torch.manual_seed(seed)
    layers = []
    widths = [64, *[64] * 12]
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    if not default_init:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        nn.init.xavier_normal_(model[-1].weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    if hook:
        optimizer.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3) and None
        )
    return digits_parts(model, optimizer, seed)


broken(
    "digits-deep-default-init", "digits-deep-he-nesterov",
    "13 layers of ReLUs with PyTorch's default initial weights: the signal fades with the depth.",
    (r"vanish", r"(signal|gradient|activation|output)s?.{0,80}(fade|shrink|small|die|decay|vanish)",
     r"init\w* (weight|scale|std|gain|variance)", r"(weight|parameter)s?\b.{0,40}init"),
    default_init=True,
)  # fmt: skip
broken(
    "digits-gradient-norm-clipped-to-1e-3", "digits-deep-he-nesterov",
    "A hook clips the gradient's norm to 1e-3, so that plain SGD hardly moves.",
    (r"clip", r"(steps?|updates?|rate)\b.{0,80}(small|tiny|low|hardly|barely|slow)",
     r"(hardly|barely) (moves?|changes?|learns?)", r"(too )?(small|low).{0,30}(rate|step|lr)"),
    hook=True,
)  # fmt: skip


class CosineHead(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, width))
        self.scale = scale

    def forward(self, x):
        return self.scale * functional.normalize(x, dim=1) @ functional.normalize(self.weight).T


@healthy("digits-cosine-head-batchnorm-momentum", "mlp", 150)
def cosine(seed, scale=12.0):
    torch.manual_seed(seed)
    body = [nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)]
    model = nn.Sequential(*body, CosineHead(32, scale))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    parts = digits_parts(model, optimizer, seed)
    _, _, xt, yt = digits(flat=True)

    def score(model):
        """Minus the cross-entropy, since the author wants probabilities."""
        model.eval()
        with torch.no_grad():
            return -float(functional.cross_entropy(model(xt), yt))

    parts.score = score
    return parts


broken(
    "digits-cosine-without-scale", "digits-cosine-head-batchnorm-momentum",
    "The logits are bare cosines in -1..1: softmax cannot become sure, the loss stays above 1.",
    (r"(logit|output)s?.{0,80}(bounded|limited|small|range|scale|-1)", r"temperature",
     r"\bscale\b.{0,60}(logit|output|cosine)", r"loss.{0,60}(floor|cannot fall|lower bound|below)"),
    scale=1.0,
)  # fmt: skip
SETUPS = list(CATALOG.setups.values())
