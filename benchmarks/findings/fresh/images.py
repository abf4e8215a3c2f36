"""Fresh set-ups on pictures."""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import nn

from benchmarks.findings.fresh.common import (
    Catalog,
    accuracy,
    batches,
    digits,
    explained,
    rng,
    shapes,
)
from benchmarks.findings.setup import Parts, plain_updates

CATALOG = Catalog()
healthy, broken = CATALOG.healthy, CATALOG.broken

EVAL_DIFFERS = (
    r"(eval|held-out|validation|test)\w*.{0,80}(shift|differ|mean|scale|distribut|preprocess)",
    r"(shift|differ|distribut|preprocess)\w*.{0,80}(eval|held-out|validation|test)",
    r"running (statistics|mean|var).{0,60}(differ|off|not match|away|far)",
)
UNTRAINED = (
    r"(not|never|isn't|aren't|hardly) (be )?(trained|train|updated|update|move|learn|registered)",
    r"(not|missing|absent).{0,20} (in|from) the optimizer", r"no gradient", r"frozen",
)  # fmt: skip


def pictures():
    x, y, mask, box = shapes()
    x = (x - x[:1200].mean((0, 2, 3), keepdim=True)) / x[:1200].std((0, 2, 3), keepdim=True)
    return x, y, mask, box


# ---------------------------------------------------------------- a small MobileNet


class Separable(nn.Module):
    def __init__(self, n, m, stride, tracked=True, momentum=0.1):
        super().__init__()
        self.depth = nn.Conv2d(n, n, 3, stride, 1, groups=n)
        self.n1 = nn.BatchNorm2d(n, momentum=momentum, track_running_stats=tracked)
        self.point = nn.Conv2d(n, m, 1)
        self.n2 = nn.BatchNorm2d(m, momentum=momentum, track_running_stats=tracked)

    def forward(self, x):
        x = functional.relu6(self.n1(self.depth(x)))
        return functional.relu6(self.n2(self.point(x)))


@lru_cache
def vehicles(n=1200, m=400):
    """Shapes whose colour says half of the class."""
    x, y, _, _ = shapes()
    x = x.clone()
    x[:, 0] += 0.35 * (y < 2)[:, None, None]  # reddish
    x[:, 2] += 0.35 * (y >= 2)[:, None, None]  # bluish
    x = (x.clamp(0, 1.2) - 0.4) / 0.3
    return x[:n], y[:n], x[n:], y[n:]


@healthy("shapes-mobilenet-rmsprop", "cnn", 150)
def mobilenet(seed, tracked=True, momentum=0.1, as_integers=False, eval_bgr=False, size=32,
              sorted_eval=False):  # fmt: skip
    torch.manual_seed(seed)
    x, y, xt, yt = vehicles()
    if as_integers:
        x, xt = ((v * 0.3 + 0.4).long().float() for v in (x, xt))
    if eval_bgr:
        xt = xt.flip(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16, momentum=momentum), nn.ReLU6(),
        Separable(16, 32, 2, tracked, momentum), Separable(32, 48, 2, tracked, momentum),
        Separable(48, 64, 1, tracked, momentum),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 4),
    )  # fmt: skip
    order = yt.argsort(stable=True)
    ordered = batches(xt[order], yt[order], size=20, shuffle=False)

    def by_batches(model):
        """Pictures come by class, as they lie in the folder."""
        model.eval()
        with torch.no_grad():
            right = [(model(a).argmax(1) == b).float().mean() for a, b in ordered]
        return float(torch.stack(right).mean())

    return Parts(
        model, batches(x, y, size=size, seed=seed),
        torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.5), "cross_entropy",
        eval_data=ordered, score=by_batches,
    )  # fmt: skip


broken(
    "mobilenet-no-running-statistics", "shapes-mobilenet-rmsprop",
    "track_running_stats=False: in evaluation each batch is normalized by itself, and the "
    "held-out batches hold one class each.",
    (r"track_running_stats", r"running (statistics|mean|var)",
     r"(batch|own) statistics.{0,80}(eval|held-out)", r"eval\w*.{0,80}(batch|own) statistics",
     r"depend.{0,60}(other|batch)"),
    tracked=False,
)  # fmt: skip
broken(
    "mobilenet-evaluated-in-bgr", "shapes-mobilenet-rmsprop",
    "The held-out pictures have their colour channels in the reverse order.",
    (*EVAL_DIFFERS, r"channel"),
    eval_bgr=True,
)  # fmt: skip
broken(
    "mobilenet-pixels-cast-to-integers", "shapes-mobilenet-rmsprop",
    "Pixels of 0 to 1 were cast to integers, so that almost all of them are 0.",
    (r"input.{0,80}(zero|constant|identical|same|dead|sparse)",
     r"(zero|constant|identical).{0,60}(input|pixel)", r"pixel"),
    as_integers=True,
)  # fmt: skip
broken(
    "mobilenet-batchnorm-momentum-1", "shapes-mobilenet-rmsprop",
    "Momentum is 1.0 with batches of 4: the running statistics are those of the last 4 pictures.",
    (r"momentum", r"running (statistics|mean|var)", r"(small|tiny) batch|batch size",
     r"batch(es)? of 4"),
    momentum=1.0, size=4,
)  # fmt: skip


# ---------------------------------------------------------------- a small ConvNeXt


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, width, fault=""):
        super().__init__()
        self.fault, self.width = fault, width
        self.depth = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = ChannelNorm(width)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x):
        out = functional.gelu(self.up(self.norm(self.depth(x))))
        if self.fault == "new layer":
            down = nn.Conv2d(2 * self.width, self.width, 1)
            out = self.scale * down(out)
        else:
            out = self.scale * self.down(out)
        return x + x if self.fault == "thrown away" else x + out


class ConvNext(nn.Module):
    def __init__(self, width=24, blocks=3, fault=""):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.norm = ChannelNorm(width)
        made = [Block(width, fault) for _ in range(blocks)]
        self.blocks = made if fault == "list" else nn.ModuleList(made)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4))

    def forward(self, x):
        x = self.norm(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


@healthy("shapes-convnext-adamw", "resnet", 250)
def convnext(seed, **options):
    torch.manual_seed(seed)
    x, y, _, _ = pictures()
    model = ConvNext(**options)
    return Parts(
        model, batches(x[:1200], y[:1200], size=32, seed=seed),
        torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05), "cross_entropy",
        eval_data=batches(x[1200:], y[1200:], size=100, shuffle=False),
        score=accuracy(x[1200:], y[1200:]),
    )  # fmt: skip


broken(
    "convnext-blocks-in-a-plain-list", "shapes-convnext-adamw",
    "The blocks are in a Python list, not a ModuleList: their parameters are not registered.",
    (*UNTRAINED, r"modulelist", r"plain list|python list", r"regist"),
    fault="list",
)  # fmt: skip
broken(
    "convnext-layer-made-in-forward", "shapes-convnext-adamw",
    "Every forward pass makes a new convolution with random weights.",
    (r"(random|stochastic|not deterministic|nondeterministic|differ).{0,80}(call|pass|twice|eval)",
     r"(call|pass|twice|eval)\w*.{0,80}(random|not deterministic|nondeterministic|differ)",
     r"(made|created|new).{0,40}forward", r"forward.{0,40}(makes|creates|new)", *UNTRAINED),
    fault="new layer",
)  # fmt: skip
broken(
    "convnext-branch-thrown-away", "shapes-convnext-adamw",
    "A typing error: x + x instead of x + out, so that no block has any effect.",
    (*UNTRAINED, r"(unused|not used|no effect|does nothing|do nothing|thrown away|ignored)",
     r"gradient.{0,40}(none|zero)", r"without (a )?gradient"),
    fault="thrown away",
)  # fmt: skip


# ---------------------------------------------------------------- a small U-Net


def double(n, m, norm=nn.InstanceNorm2d):
    return nn.Sequential(
        nn.Conv2d(n, m, 3, padding=1), norm(m, affine=True), nn.LeakyReLU(0.01),
        nn.Conv2d(m, m, 3, padding=1), norm(m, affine=True), nn.LeakyReLU(0.01),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, end=None, width=12):
        super().__init__()
        self.d1, self.d2 = double(3, width), double(width, 2 * width)
        self.middle = double(2 * width, 4 * width)
        self.u2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.c2 = double(4 * width, 2 * width)
        self.u1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.c1 = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)
        self.end = end if end is not None else nn.Identity()

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(functional.max_pool2d(a, 2))
        c = self.middle(functional.max_pool2d(b, 2))
        b = self.c2(torch.cat([self.u2(c), b], 1))
        a = self.c1(torch.cat([self.u1(b), a], 1))
        return self.end(self.out(a))


@healthy("shapes-unet-instancenorm-adamw", "segmentation", 150)
def unet(seed, mask_scale=1.0, end=None, reversed_rows=False):
    torch.manual_seed(seed)
    x, _, mask, _ = pictures()
    model = UNet(None if end is None else end())
    train = mask[:1200] * mask_scale
    xt, mt = x[1200:1360], mask[1200:1360]

    def score(model):
        """Overlap of the predicted probabilities and the true masks (soft Dice)."""
        model.eval()
        with torch.no_grad():
            found = model(xt).sigmoid()
        return float(2 * (found * mt).sum() / (found.sum() + mt.sum()))

    return Parts(
        model, batches(x[:1200], train, size=12, seed=seed),
        torch.optim.AdamW(model.parameters(), 3e-3), "bce",
        eval_data=batches(xt, mt * mask_scale, size=20, shuffle=False), score=score,
    )  # fmt: skip


broken(
    "unet-masks-of-0-and-255", "shapes-unet-instancenorm-adamw",
    "The masks hold 0 and 255, as in the files, but binary cross-entropy expects 0 and 1.",
    (r"(target|mask|label)s?.{0,80}(255|range|0 (to|and|\.\.) ?1|between 0 and 1|outside|large)",
     r"(target|mask|label)s?.{0,80}scale",
     r"negative loss", r"loss.{0,60}(negative|below 0|unbounded|no lower)",
     r"outside (of )?(the )?(range|0)"),
    mask_scale=255.0,
)  # fmt: skip
broken(
    "unet-relu-before-bce", "shapes-unet-instancenorm-adamw",
    "A ReLU ends the network, so that no logit is below 0 and no probability below a half.",
    (r"(last|final|end|output)s?.{0,60}relu", r"relu.{0,60}(last|final|end|output|logit)",
     r"(output|logit)s?.{0,60}(never|not|no).{0,20}(negative|below)", r"dead",
     r"(output|logit)s?.{0,60}(non-?negative|only positive|at least 0)"),
    end=nn.ReLU,
)  # fmt: skip


# ---------------------------------------------------------------- group norm behind the pooling


@healthy("shapes-cnn-groupnorm-pooled-momentum", "cnn", 250)
def pooled(seed, groups=4, decay_on_norms=0.0):
    torch.manual_seed(seed)
    x, y, _, _ = pictures()
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1), nn.GroupNorm(4, 24), nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2, 1), nn.GroupNorm(4, 48), nn.ReLU(),
        nn.Conv2d(48, 64, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.GroupNorm(groups, 64), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    norms = [p for p in model.parameters() if p.ndim < 2]
    others = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.SGD(
        [{"params": others, "weight_decay": 5e-4},
         {"params": norms, "weight_decay": decay_on_norms}], 0.02, momentum=0.9,
    )  # fmt: skip
    return Parts(
        model, batches(x[:1200], y[:1200], size=32, seed=seed), optimizer, "cross_entropy",
        eval_data=batches(x[1200:], y[1200:], size=100, shuffle=False),
        score=accuracy(x[1200:], y[1200:]),
    )  # fmt: skip


broken(
    "groupnorm-one-value-per-group", "shapes-cnn-groupnorm-pooled-momentum",
    "Behind the pooling there are as many groups as channels: each group holds one value, which "
    "the norm turns into 0.",
    (r"group\w*.{0,80}(one|single|1) (value|element|channel|number)",
     r"(one|single|1) (value|element|channel|number).{0,60}(norm|group)",
     r"norm\w*.{0,60}(constant|zero|eras|kill|lose|same)",
     r"(constant|zero|eras|kill|lost|lose|same)\w*.{0,60}norm", r"variance (is|of) (0|zero)"),
    groups=64,
)  # fmt: skip
broken(
    "weight-decay-on-norms-and-biases", "shapes-cnn-groupnorm-pooled-momentum",
    "Weight decay of 1 in the group of norms and biases (meant: 0): their scales go to zero.",
    (r"weight[ _]?decay", r"\bdecay\b", r"(gamma|scale|norm)s?\b.{0,60}shrink", r"shrink"),
    decay_on_norms=1.0,
)  # fmt: skip


# ---------------------------------------------------------------- where is it: coordinates


@healthy("keypoint-cnn-layernorm-adam", "regression", 250)
def keypoint(seed, in_pixels=False):
    torch.manual_seed(seed)
    x, _, _, box = pictures()
    aims = box[:, :2] * (16 if in_pixels else 1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 2),
        nn.Sigmoid(),
    )  # fmt: skip

    def score(model):
        """Minus the mean distance in pictures."""
        model.eval()
        with torch.no_grad():
            off = model(x[1200:]) / (16 if in_pixels else 1) - box[1200:, :2]
        return -float(off.norm(dim=1).mean())

    return Parts(
        model, batches(x[:1200], aims[:1200], size=32, seed=seed),
        torch.optim.Adam(model.parameters(), 1e-3), nn.SmoothL1Loss(),
        eval_data=batches(x[1200:], aims[1200:], size=100, shuffle=False), score=score,
    )  # fmt: skip


broken(
    "keypoint-in-pixels-behind-a-sigmoid", "keypoint-cnn-layernorm-adam",
    "The targets are in pixels (0 to 16), but a sigmoid keeps the outputs in 0..1.",
    (r"sigmoid", r"target.{0,80}(range|reach|outside|scale|standardi[sz]|larger|large)",
     r"saturat", r"(output|prediction)s?.{0,80}(bounded|limited|range|reach|cannot)"),
    in_pixels=True,
)  # fmt: skip


# ---------------------------------------------------------------- what and where: two heads


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        )  # fmt: skip
        self.what, self.where = nn.Linear(64, 4), nn.Linear(64, 3)

    def forward(self, x):
        h = self.body(x)
        return self.what(h), self.where(h)


@healthy("detector-two-heads-adamw-groups", "two-heads", 200)
def detector(seed, body_rate=1e-3, box_unit=1.0, class_weight=1.0, first_label=0):
    torch.manual_seed(seed)
    x, y, _, box = pictures()
    aims = torch.cat([y[:, None].float(), box * 4 * box_unit], 1)
    train = aims[:1200].clone()
    train[:, 0] = (train[:, 0] + first_label) % 4
    model = Detector()
    groups = [
        {"params": model.body.parameters(), "lr": body_rate},
        {"params": model.what.parameters(), "lr": 5e-3},
        {"params": model.where.parameters(), "lr": 5e-3},
    ]

    def loss(model, batch):
        x, aims = batch
        what, where = model(x)
        classes = functional.cross_entropy(what, aims[:, 0].long())
        return class_weight * classes + functional.smooth_l1_loss(where, aims[:, 1:])

    def score(model):
        """The share of right classes, minus the error of the boxes in units of its spread."""
        model.eval()
        with torch.no_grad():
            what, where = model(x[1200:])
        right = (what.argmax(1) == y[1200:]).float().mean()
        off = (where / box_unit / 4 - box[1200:]).abs().mean() / box[1200:].std()
        return float(right - off)

    return Parts(
        model, batches(x[:1200], train, size=32, seed=seed), torch.optim.AdamW(groups),
        loss_fn=loss, eval_data=batches(x[1200:], aims[1200:], size=100, shuffle=False),
        score=score,
    )  # fmt: skip


broken(
    "detector-body-rate-0", "detector-two-heads-adamw-groups",
    "The learning rate of the body's group is 0 (a value left out in the configuration).",
    (*UNTRAINED, r"(learning )?rate.{0,60}\b(0|zero|small|too low)", r"\bbody\b.{0,60}(rate|lr)",
     r"\blr\b.{0,20}\b0\b"),
    body_rate=0.0,
)  # fmt: skip
broken(
    "detector-boxes-in-tenths-of-pixels", "detector-two-heads-adamw-groups",
    "The boxes are in tenths of pixels, so that their loss drowns that of the classes.",
    (r"(drown|dominat|outweigh)", r"target.{0,80}(large|scale|standardi[sz]|unit)",
     r"(loss|head|term)s?.{0,80}(larger|times|balance|scale|dominat)",
     r"standardi[sz]e the target"),
    box_unit=40.0,
)  # fmt: skip
broken(
    "detector-labels-from-1-in-training", "detector-two-heads-adamw-groups",
    "The training labels are off by one (modulo the classes), the held-out ones are right.",
    (r"(label|class|target)\w*.{0,80}(off by one|shift|differ|index|mismatch|disagree)",
     r"off by one", *EVAL_DIFFERS),
    first_label=1,
)  # fmt: skip


# ---------------------------------------------------------------- DenseNet, unbalanced classes


class Dense(nn.Module):
    def __init__(self, n, growth):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(n), nn.Conv2d(n, growth, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


@healthy("digits-densenet-unbalanced-nesterov", "cnn", 200)
def densenet(seed, weights="rare up", rate=0.05):
    torch.manual_seed(seed)
    x, y, xt, yt = digits()
    keep = (y < 5) | (torch.rand(len(y), generator=rng(3)) < 0.08)  # 5 to 9 are rare
    x, y = x[keep], y[keep]
    layers = [nn.Conv2d(1, 12, 3, padding=1, bias=False)]
    for k in range(4):
        layers.append(Dense(12 + 8 * k, 8))
    model = nn.Sequential(
        *layers, nn.BatchNorm2d(44), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(176, 10)
    )
    number = torch.bincount(y).float()
    w = 1 / number if weights == "rare up" else number**2
    loss = nn.CrossEntropyLoss(weight=w / w.mean())
    return Parts(
        model, batches(x, y, size=32, seed=seed),
        torch.optim.SGD(model.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=1e-4),
        loss, eval_data=batches(xt, yt, size=99, shuffle=False), score=accuracy(xt, yt),
    )  # fmt: skip


broken(
    "densenet-class-weights-upside-down", "digits-densenet-unbalanced-nesterov",
    "The classes' weights are their numbers squared instead of one over them: rare ones count "
    "nothing.",
    (r"(class|rare)\w*.{0,80}(weight|imbalance|unbalanced|never|ignored)",
     r"weights?.{0,60}(class|loss)", r"imbalanc|unbalanc"),
    weights="common up",
)  # fmt: skip
broken(
    "densenet-rate-5e-7", "digits-densenet-unbalanced-nesterov",
    "The learning rate is 5e-7, a hundred thousand times too small.",
    (r"(rate|lr|steps?|updates?)\b.{0,80}(small|tiny|low|hardly|barely|slow)",
     r"(hardly|barely) (moves?|changes?|learns?)", r"(too )?(small|low).{0,30}(rate|step|lr)"),
    rate=5e-7,
)  # fmt: skip


# ---------------------------------------------------------------- larger pictures


@healthy("digits-pixelshuffle-l1-adam", "autoencoder", 250)
def upscale(seed, negative_start=False, rate=2e-3, double_scaled=False):
    torch.manual_seed(seed)
    x, _, xt, _ = digits()
    low, high = x.min(), x.max()
    x, xt = (x - low) / (high - low), (xt - low) / (high - low)
    small, small_t = functional.avg_pool2d(x, 2), functional.avg_pool2d(xt, 2)
    if double_scaled:  # 0..1 already, and divided by 255 once more
        small, small_t = small / 255, small_t / 255
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.PReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(),
        nn.Conv2d(32, 4, 3, padding=1), nn.PixelShuffle(2),
        *([nn.Hardtanh(0, 1)] if negative_start else []),
    )  # fmt: skip
    if negative_start:
        nn.init.constant_(model[4].bias, -1.0)
    return Parts(
        model, batches(small, x, size=32, seed=seed), torch.optim.Adam(model.parameters(), rate),
        nn.L1Loss(), eval_data=[(small_t, xt)], score=explained(small_t, xt),
    )  # fmt: skip


broken(
    "upscale-divided-by-255-again", "digits-pixelshuffle-l1-adam",
    "The small pictures are in 0..1 already and were divided by 255 once more.",
    (r"input.{0,80}(small|tiny|scale|standardi[sz]|range|magnitude)",
     r"(standardi[sz]|normali[sz]|scal)\w* (the |your )?input"),
    double_scaled=True,
)  # fmt: skip
broken(
    "upscale-saturated-hardtanh", "digits-pixelshuffle-l1-adam",
    "The last bias starts at -1 before a clamp to 0..1: no output gets a gradient.",
    (r"saturat", r"clamp|clip|hardtanh", r"no gradient", r"gradient.{0,60}(zero|vanish|none|0)",
     r"dead"),
    negative_start=True,
)  # fmt: skip


# ---------------------------------------------------------------- a small ViT


class ViT(nn.Module):
    def __init__(self, batch_first=True, class_token=0, width=32):
        super().__init__()
        self.class_token = class_token
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, 0.0, "gelu", batch_first=batch_first, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width),
                                             enable_nested_tensor=False)  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.encoder(x)[:, 0])


@healthy("digits-vit-class-token-adam", "transformer", 300)
def vit(seed, rate=2e-3, **options):
    torch.manual_seed(seed)
    x, y, xt, yt = digits()
    model = ViT(**options)
    loader = batches(xt, yt, size=20, shuffle=False)

    def score(model):
        model.eval()
        with torch.no_grad():
            return float(
                torch.stack([(model(a).argmax(1) == b).float().mean() for a, b in loader]).mean()
            )

    return Parts(
        model, batches(x, y, size=32, seed=seed), torch.optim.Adam(model.parameters(), rate),
        "cross_entropy", eval_data=loader, score=score,
    )  # fmt: skip


broken(
    "vit-attention-over-the-batch", "digits-vit-class-token-adam",
    "batch_first was forgotten: the class tokens attend to other pictures, not to their patches.",
    (r"batch_first", r"(sample|batch|picture|image|row)s?.{0,60}(mix|depend|leak)",
     r"(mix|depend|leak)\w*.{0,60}(other|sample|batch|picture|row)s?"),
    batch_first=False,
)  # fmt: skip
broken(
    "vit-rate-1", "digits-vit-class-token-adam",
    "Adam's learning rate is 1.0, hundreds of times too large.",
    (r"(learning rate|\brate\b|\blr\b|step).{0,80}(large|high|big|too|times|explod|diverg)",
     r"(too large|too high).{0,40}(rate|lr|step)", r"diverg"),
    rate=1.0,
)  # fmt: skip


# ---------------------------------------------------------------- LeNet with tanh


@healthy("digits-lenet-tanh-adagrad", "cnn", 200)
def lenet(seed, smoothing=0.0):
    torch.manual_seed(seed)
    x, y, xt, yt = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10),
    )  # fmt: skip
    return Parts(
        model, batches(x, y, size=32, seed=seed), torch.optim.Adagrad(model.parameters(), 0.02),
        nn.CrossEntropyLoss(label_smoothing=smoothing),
        eval_data=batches(xt, yt, size=99, shuffle=False), score=accuracy(xt, yt),
    )  # fmt: skip


broken(
    "lenet-labels-smoothed-away", "digits-lenet-tanh-adagrad",
    "label_smoothing is 1.0 (meant: 0.1): the targets are the same for all classes.",
    (r"smooth", r"\buniform", r"(target|label|loss)s?.{0,60}(not depend|independent|same|constant)",
     r"nothing to learn"),
    smoothing=1.0,
)  # fmt: skip


# ---------------------------------------------------------------- fine-tuning


def body_of_digits():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip


@lru_cache
def checkpoint():
    """A body trained on the digits 0 to 4, saved from a DataParallel model."""
    torch.manual_seed(99)
    x, y, _, _ = digits()
    keep = y < 5
    body = body_of_digits()
    model = nn.Sequential(body, nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    plain_updates(Parts(model, batches(x[keep], y[keep]), optimizer, "cross_entropy"), 150)
    return {f"module.{name}": value.clone() for name, value in body.state_dict().items()}


@healthy("digits-finetune-frozen-body-sgd", "fine-tuning", 200)
def finetuned(seed, loaded=True, raw_scale=False, rate=0.1):
    torch.manual_seed(seed)
    saved = checkpoint()
    torch.manual_seed(seed)
    x, y, xt, yt = digits()
    x, y, xt, yt = x[y >= 5], y[y >= 5] - 5, xt[yt >= 5], yt[yt >= 5] - 5
    if raw_scale:  # 0..255, as the loader gives them
        x, xt = ((v - x.min()) * 75 for v in (x, xt))
    body = body_of_digits()
    if loaded:
        saved = {name.removeprefix("module."): value for name, value in saved.items()}
    body.load_state_dict(saved, strict=False)
    for p in body.parameters():
        p.requires_grad_(False)

    class Tuned(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, nn.Linear(64, 5)

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()  # its statistics stay as they were
            return self

        def forward(self, x):
            return self.head(self.body(x))

    model = Tuned().train()
    return Parts(
        model, batches(x, y, size=32, seed=seed),
        torch.optim.SGD(model.head.parameters(), rate, momentum=0.9), "cross_entropy",
        eval_data=[(xt, yt)], score=accuracy(xt, yt),
    )  # fmt: skip


broken(
    "finetune-checkpoint-of-other-names", "digits-finetune-frozen-body-sgd",
    "The checkpoint's names begin with module., and strict=False hides that nothing was loaded: "
    "the frozen body is random.",
    (r"(random|untrained|initial|fresh|new).{0,60}(body|frozen|weight|layer|network|state)",
     r"(body|frozen)\b.{0,80}(random|untrained|initial|never trained|fresh)",
     r"not (been )?(loaded|trained)", r"strict", r"pre-?train", r"frozen"),
    loaded=False,
)  # fmt: skip
broken(
    "finetune-other-scale-than-pretraining", "digits-finetune-frozen-body-sgd",
    "The frozen body was trained on standardized pictures and is given grey values of 0 to 255.",
    (r"input.{0,100}(large|scale|standardi[sz]|mean|range|magnitude|hundred)",
     r"running (statistics|mean|var).{0,80}(differ|off|not match|away|far|fit)",
     r"(statistics|scale).{0,80}(differ|off|not match|away|far|fit)", r"preprocess"),
    raw_scale=True,
)  # fmt: skip


# ---------------------------------------------------------------- averaged weights


@healthy("shapes-resnet-averaged-weights", "resnet", 0)
def averaged(seed, statistics="averaged too"):
    torch.manual_seed(seed)
    x, y, _, _ = pictures()

    class Skip(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.c1, self.n1 = nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)
            self.c2, self.n2 = nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)

        def forward(self, x):
            return torch.relu(x + self.n2(self.c2(torch.relu(self.n1(self.c1(x))))))

    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Skip(16), Skip(16),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    data = batches(x[:1200], y[:1200], size=32, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    mean = copy.deepcopy(model)
    parts = Parts(model, data, optimizer, "cross_entropy")
    for _ in range(60):
        plain_updates(parts, 3)
        with torch.no_grad():
            for a, b in zip(mean.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.06)
            for a, b in zip(mean.buffers(), model.buffers(), strict=True):
                if a.is_floating_point() and statistics == "averaged too":
                    a.lerp_(b, 0.06)
                else:
                    a.copy_(b)
    if statistics == "averaged too":  # and made anew, as torch.optim.swa_utils.update_bn does
        torch.optim.swa_utils.update_bn(data, mean)
    return Parts(
        mean, data, torch.optim.SGD(mean.parameters(), 0.01, momentum=0.9), "cross_entropy",
        eval_data=batches(x[1200:], y[1200:], size=100, shuffle=False),
        score=accuracy(x[1200:], y[1200:]),
    )  # fmt: skip


broken(
    "averaged-weights-with-copied-statistics", "shapes-resnet-averaged-weights",
    "The weights are averaged over the updates, the running statistics are those of the last "
    "update's weights.",
    (r"running (statistics|mean|var)", r"(batch norm|statistics).{0,80}(stale|match|differ|fit)",
     r"averag"),
    statistics="copied",
)  # fmt: skip

SETUPS = list(CATALOG.setups.values())
