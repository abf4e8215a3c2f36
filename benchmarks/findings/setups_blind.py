"""The half of the set-ups made by someone who had not read the rules: one change breaks a healthy one.

Some read MNIST or CIFAR-10 from the folder NORMSCOPE_DATA.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import itertools
import math
import os
import re
from functools import lru_cache, partial

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from monai.networks.nets import UNet as MonaiUNet
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from benchmarks.findings.setup import Parts, Setup

DATA = os.environ.get("NORMSCOPE_DATA", "")  # folder with MNIST and CIFAR-10


# ---------------------------------------------------------------- data


@lru_cache(None)
def digits():
    import normscope as ns

    d = ns.load_data("digits")
    x, y = d.images.detach().clone(), d.labels.detach().clone()
    p = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
    x, y = x[p], y[p]
    return x[300:], y[300:], x[:300], y[:300]


@lru_cache(None)
def mnist(n=4000, m=1000):
    """MNIST in 0..1 at 14 x 14, the border pixels are always 0."""
    out = []
    for part, k in (("train", n), ("t10k", m)):
        raw = f"{DATA}/MNIST/raw/{part}"
        with open(f"{raw}-images-idx3-ubyte", "rb") as f:
            f.seek(16)
            x = np.frombuffer(f.read(k * 784), np.uint8).reshape(k, 1, 28, 28)
        with open(f"{raw}-labels-idx1-ubyte", "rb") as f:
            f.seek(8)
            y = np.frombuffer(f.read(k), np.uint8)
        x = F.avg_pool2d(torch.tensor(x.astype(np.float32) / 255), 2)
        out += [x, torch.tensor(y.astype(np.int64))]
    return tuple(out)


@lru_cache(None)
def cifar4(n=2400, m=800):
    """Four CIFAR-10 classes at 16 x 16, standardized per channel."""
    out = []
    for part, k in (("data_batch_1", n), ("test_batch", m)):
        raw = np.fromfile(f"{DATA}/cifar-10-batches-bin/{part}.bin", np.uint8).reshape(-1, 3073)
        keep = np.isin(raw[:, 0], (0, 1, 4, 8))
        raw = raw[keep][:k]
        y = np.searchsorted((0, 1, 4, 8), raw[:, 0])
        x = torch.tensor(raw[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255)
        out += [F.avg_pool2d(x, 2), torch.tensor(y.astype(np.int64))]
    mean = out[0].mean((0, 2, 3), keepdim=True)
    std = out[0].std((0, 2, 3), keepdim=True)
    return (out[0] - mean) / std, out[1], (out[2] - mean) / std, out[3]


@lru_cache(None)
def text():
    s = inspect.getsource(argparse)
    s = re.sub(r"[^\x20-\x7e\n]", "", s)
    chars = sorted(set(s))
    ids = torch.tensor([chars.index(c) for c in s])
    return ids[:70000], ids[70000:80000], len(chars)


def blocks(ids, n, length, g):
    start = torch.randint(len(ids) - length - 1, (n,), generator=g)
    return torch.stack([ids[i : i + length] for i in start.tolist()])


@lru_cache(None)
def friedman(n=2000, m=500):
    g = torch.Generator().manual_seed(3)
    x = torch.rand(n + m, 10, generator=g)
    y = (
        10 * torch.sin(math.pi * x[:, 0] * x[:, 1])
        + 20 * (x[:, 2] - 0.5) ** 2
        + 10 * x[:, 3]
        + 5 * x[:, 4]
        + torch.randn(n + m, generator=g)
    )
    x = (x - 0.5) * 12**0.5
    y = (y - y[:n].mean()) / y[:n].std()
    return x[:n], y[:n], x[n:], y[n:]


@lru_cache(None)
def customers(n=3000, m=1500):
    """Tabular: 8 numbers, 8 rare binary flags, a padded list of tags; about 12 % positive."""
    g = torch.Generator().manual_seed(5)
    k = n + m
    num = torch.randn(k, 8, generator=g)
    flags = (torch.rand(k, 8, generator=g) < torch.linspace(0.03, 0.5, 8)).float()
    length = torch.randint(1, 7, (k, 1), generator=g)
    tags = torch.randint(1, 31, (k, 6), generator=g)
    tags = tags * (torch.arange(6) < length)
    value = torch.randn(31, generator=g)
    value[0] = 0
    z = (
        1.2 * num[:, 0] * num[:, 1]
        + num[:, 2]
        - num[:, 3].abs()
        + flags @ torch.linspace(2, -1, 8)
        + 1.2 * value[tags].sum(1) / length[:, 0] ** 0.5
    )
    y = (z > z.quantile(0.88)).float()
    rows = [num, flags, tags, y]
    return [r[:n] for r in rows], [r[n:] for r in rows]


def sentences(n, g, order=False, vocab=24, low=6, high=24):
    """Token ids padded with 0, lengths, labels: the sign of the sum of the tokens' values."""
    value = torch.randn(vocab, generator=torch.Generator().manual_seed(11))
    length = torch.randint(low, high + 1, (n,), generator=g)
    if order:
        length = torch.full((n,), high)
        length = length - torch.randint(0, 3, (n,), generator=g)
    ids = torch.randint(2, vocab, (n, high), generator=g)
    inside = torch.arange(high)[None] < length[:, None]
    v = value[ids] * inside
    if order:
        v = torch.where(torch.arange(high) < high // 2, v, -v)
    y = (v.sum(1) > 0).long()
    return ids * inside, length, y


@lru_cache(None)
def sentence_sets(order=False):
    g = torch.Generator().manual_seed(13)
    return sentences(3000, g, order), sentences(600, g, order)


@lru_cache(None)
def series(n=1500, m=400, t=32):
    """Sums of two sines with their own periods, and noise; the next value is asked for."""
    g = torch.Generator().manual_seed(17)
    k = n + m
    time = torch.arange(t + 1).float()
    f = 0.15 + 0.6 * torch.rand(k, 2, 1, generator=g)
    phase = 6.28 * torch.rand(k, 2, 1, generator=g)
    s = torch.sin(f * time + phase).sum(1) + 0.05 * torch.randn(k, t + 1, generator=g)
    return s[:n, :-1, None], s[:n, -1:], s[n:, :-1, None], s[n:, -1:]


@lru_cache(None)
def recall(n=3000, m=600, t=24):
    """The first step shows one of four symbols, noise follows; the symbol is asked for."""
    g = torch.Generator().manual_seed(19)
    y = torch.randint(0, 4, (n + m,), generator=g)
    x = 0.5 * torch.randn(n + m, t, 6, generator=g)
    x[:, 0, :4] += 2 * F.one_hot(y, 4)
    return x[:n], y[:n], x[n:], y[n:]


@lru_cache(None)
def shapes(n=800, m=200, size=32):
    """Discs (1) and squares (2) in noise; the mask tells the pixels."""
    g = torch.Generator().manual_seed(23)
    k = n + m
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    img = 0.5 * torch.randn(k, 1, size, size, generator=g)
    mask = torch.zeros(k, size, size, dtype=torch.long)
    for i in range(k):
        for kind in (1, 2):
            r = int(torch.randint(4, 8, (1,), generator=g))
            cy, cx = torch.randint(6, size - 6, (2,), generator=g).tolist()
            if kind == 1:
                inside = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r
            else:
                inside = ((yy - cy).abs() <= r - 1) & ((xx - cx).abs() <= r - 1)
            mask[i][inside] = kind
        img[i, 0] += 1.0 * (mask[i] == 1) + 1.0 * (mask[i] == 2)
    return img[:n], mask[:n], img[n:], mask[n:]


class DictData(Dataset):
    def __init__(self, **columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.columns.items()}


def loader(*tensors, seed=0, batch_size=32, shuffle=True):
    return DataLoader(
        TensorDataset(*tensors),
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )


def dict_loader(seed=0, batch_size=32, shuffle=True, **columns):
    return DataLoader(
        DictData(**columns),
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )


# ---------------------------------------------------------------- scores and training


def evaluated(fn):
    """A score that leaves the mode of the model's modules as it was."""

    def score(model):
        modes = [(m, m.training) for m in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                value = float(fn(model))
        finally:
            for m, mode in modes:
                m.training = mode
        return value if math.isfinite(value) else float("-inf")

    return score


def accuracy(x, y, out=lambda o: o):
    def fn(model):
        logits = out(model(x))
        if not torch.isfinite(logits).all():
            return 0.0
        return (logits.argmax(1) == y).float().mean()

    return evaluated(fn)


def r2(x, y):
    return evaluated(lambda m: 1 - F.mse_loss(m(x).reshape(y.shape), y) / y.var())


def auc(z, y):
    if not torch.isfinite(z).all():
        return 0.0
    rank = z.argsort().argsort().float() + 1
    pos = y > 0.5
    n1, n0 = pos.sum(), (~pos).sum()
    return (rank[pos].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)


def updates(parts: Parts, n: int) -> None:
    """Plain updates over the data."""
    parts.model.train()
    done = 0
    while done < n:
        for batch in parts.data:
            parts.optimizer.zero_grad()
            if parts.loss_fn is not None:
                value = parts.loss_fn(parts.model, batch)
            else:
                value = parts.loss(parts.model(batch[0]), batch[1])
            value.backward()
            parts.optimizer.step()
            done += 1
            if done == n:
                return


def sgd(model, lr, **kw):
    return torch.optim.SGD(model.parameters(), lr=lr, **kw)


def adam(model, lr, **kw):
    return torch.optim.Adam(model.parameters(), lr=lr, **kw)


def decay_groups(model, lr, decay, kind=torch.optim.AdamW, **kw):
    yes = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    no = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    return kind(
        [{"params": yes, "weight_decay": decay}, {"params": no, "weight_decay": 0.0}], lr=lr, **kw
    )


# ---------------------------------------------------------------- MLPs on digits


class MLP(nn.Module):
    def __init__(self, sizes, act=nn.ReLU, dropout=0.0, final=None):
        super().__init__()
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers.append(nn.Linear(a, b))
            if i < len(sizes) - 2:
                if act is not None:
                    layers.append(act())
                if dropout:
                    layers.append(nn.Dropout(dropout))
        if final is not None:
            layers.append(final)
        self.net = nn.Sequential(nn.Flatten(), *layers)

    def forward(self, x):
        return self.net(x)


def mlp_adam(seed, bad=""):
    """A plain classifier of the digits, Adam at 1e-3."""
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    if bad == "shuffled":
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed + 1))]
    model = MLP([64, 128, 64, 10])
    opt = adam(model, {"": 1e-3, "lr-small": 1e-6, "shuffled": 1e-3}.get(bad, 1e-3))
    if bad == "stale":
        model = copy.deepcopy(model)
    loss = nn.CrossEntropyLoss(ignore_index=0) if bad == "ignore" else nn.CrossEntropyLoss()
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=64),
        opt,
        loss=loss,
        eval_data=loader(tx, ty, seed=seed, batch_size=64, shuffle=False),
        score=accuracy(tx, ty),
    )


def mlp_nll(seed, bad=""):
    """log_softmax in the model and NLLLoss, plain SGD."""
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    model = MLP([64, 100, 10], act=nn.Tanh, final=None if bad == "nolog" else nn.LogSoftmax(dim=1))
    return Parts(
        model,
        loader(x, y, seed=seed),
        sgd(model, 0.1),
        loss=nn.NLLLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


def mlp_dropout(seed, bad=""):
    """Large dropout that is meant, Adagrad, MNIST in 0..1 with constant border pixels."""
    torch.manual_seed(seed)
    x, y, tx, ty = mnist()
    p = 0.95 if bad == "keep" else 0.5
    model = MLP([196, 256, 256, 10], dropout=p)
    lr = {"lr-large": 1.0, "lr-small": 1e-5}.get(bad, 0.01)
    if bad == "twice255":
        x, tx = x / 255, tx / 255
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=64),
        torch.optim.Adagrad(model.parameters(), lr=lr),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, batch_size=64, shuffle=False),
        score=accuracy(tx, ty),
    )


class DeepMLP(nn.Module):
    def __init__(self, depth=8, width=64, act="relu", init="he"):
        super().__init__()
        self.inp = nn.Linear(64, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 10)
        self.act = {"relu": F.relu, "sigmoid": torch.sigmoid}[act]
        for m in self.modules():
            if isinstance(m, nn.Linear):
                if init == "he":
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                elif init == "tiny":
                    nn.init.normal_(m.weight, std=0.01)
                elif init == "ones":
                    nn.init.normal_(m.weight, std=1.0)
                elif init == "const":
                    nn.init.constant_(m.weight, 0.02)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        h = self.act(self.inp(x.flatten(1)))
        for layer in self.hidden:
            h = self.act(layer(h))
        return self.out(h)


def mlp_deep(seed, bad=""):
    """Eight hidden layers, He initialization, no normalization, SGD with momentum."""
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    model = DeepMLP(
        act="sigmoid" if bad == "sigmoid" else "relu",
        init=bad if bad in ("tiny", "ones", "const") else "he",
    )
    if bad == "deadbias":
        for layer in model.hidden:
            nn.init.constant_(layer.bias, -2.0)
    if bad == "gradclip":
        for p in model.parameters():
            p.register_hook(lambda g: g.clamp(-1e-5, 1e-5))
    momentum = 0.999 if bad == "momentum" else 0.9
    decay = 0.5 if bad == "decay" else 1e-4
    loss = nn.CrossEntropyLoss(reduction="sum" if bad == "sum" else "mean")
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=64),
        sgd(model, 0.02, momentum=momentum, weight_decay=decay),
        loss=loss,
        eval_data=loader(tx, ty, seed=seed, batch_size=64, shuffle=False),
        score=accuracy(tx, ty),
    )


def mlp_trained(seed, bad=""):
    """Trained for some epochs already, goes on."""
    parts = mlp_adam(seed)
    updates(parts, 200)
    return parts


class TagNet(nn.Module):
    def __init__(self, sigmoid=False):
        super().__init__()
        self.tags = nn.Embedding(31, 8, padding_idx=0)
        self.fc1 = nn.Linear(8 + 8 + 8, 64)
        self.fc2 = nn.Linear(64, 32)
        self.out = nn.Linear(32, 1)
        self.sigmoid = sigmoid

    def forward(self, numbers, flags, tags):
        n = (tags > 0).sum(1, keepdim=True).clamp(min=1)
        t = self.tags(tags).sum(1) / n**0.5
        h = F.relu(self.fc1(torch.cat([numbers, flags, t], 1)))
        z = self.out(F.relu(self.fc2(h))).squeeze(1)
        return torch.sigmoid(z) if self.sigmoid else z


def tabular(seed, bad=""):
    """Customer data with rare flags and padded tags, 12 % positive, AdamW with decay groups."""
    torch.manual_seed(seed)
    train, test = customers()
    train, test = [r.clone() for r in train], [r.clone() for r in test]
    if bad == "rawunits":  # income, in dollars
        for rows in (train, test):
            rows[0][:, 4] = 45000 + 20000 * rows[0][:, 4]
    if bad == "nan":  # a few missing entries
        train[0][torch.randperm(3000, generator=torch.Generator().manual_seed(1))[:25], 2] = float(
            "nan"
        )
    model = TagNet(sigmoid=bad == "sigmoid")
    weight = torch.tensor(1 / 50.0) if bad == "posweight" else None

    def loss_fn(model, batch):
        z = model(batch["numbers"], batch["flags"], batch["tags"])
        return F.binary_cross_entropy_with_logits(z, batch["label"], pos_weight=weight)

    def balanced(m):
        z = m(*test[:3])
        if not torch.isfinite(z).all():
            return 0.0
        if bad == "sigmoid":
            z = torch.special.logit(z, eps=1e-6)
        hit = (z > 0).float() == test[3]
        return (auc(z, test[3]) + hit[test[3] > 0.5].float().mean()) / 2

    names = ("numbers", "flags", "tags", "label")
    return Parts(
        model,
        dict_loader(seed, 64, **dict(zip(names, train, strict=False))),
        decay_groups(model, 5e-3, 0.01),
        loss_fn=loss_fn,
        eval_data=dict_loader(seed, 64, False, **dict(zip(names, test, strict=False))),
        score=evaluated(balanced),
    )


# ---------------------------------------------------------------- CNNs


class ConvNet(nn.Module):
    def __init__(
        self, cin=1, classes=10, norm="bn", softmax=False, momentum=0.1, width=16, hot=False
    ):
        super().__init__()

        def n(c):
            if norm == "bn":
                return nn.BatchNorm2d(c, momentum=momentum)
            return nn.GroupNorm(4, c)

        self.features = nn.Sequential(
            nn.Conv2d(cin, width, 3, padding=1, bias=False),
            n(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            n(2 * width),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(3),
        )
        self.classifier = nn.Linear(2 * width * 9, classes)
        self.softmax = softmax
        self.hot = hot

    def forward(self, x):
        h = self.features(x).flatten(1)
        if self.hot:
            h = F.dropout(h, 0.8)
        h = self.classifier(h)
        return h.softmax(1) if self.softmax else h


def cnn_bn(seed, bad=""):
    """MNIST in 0..1, batch norm, SGD with momentum."""
    torch.manual_seed(seed)
    x, y, tx, ty = mnist()
    shuffle = True
    if bad == "sorted":
        o = y.argsort(stable=True)
        x, y, shuffle = x[o], y[o], False
    if bad == "misaligned":
        y = y.roll(1)
    model = ConvNet(softmax=bad == "softmax", momentum=0.0 if bad == "bnmomentum" else 0.1)
    lr = {"lr-small": 1e-5}.get(bad, 0.01)
    ex = tx
    if bad == "evalscale":
        x = (x - 0.13) / 0.31
    return Parts(
        model,
        loader(x, y, seed=seed, shuffle=shuffle),
        sgd(model, lr, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(ex, ty, seed=seed, shuffle=False),
        score=accuracy(ex, ty),
    )


def cnn_gn(seed, bad=""):
    """A CNN with group norm, batches of two images, RMSprop, four CIFAR classes."""
    torch.manual_seed(seed)
    x, y, tx, ty = cifar4()
    model = ConvNet(3, 4, norm="gn")
    lr = {"lr-large": 0.1}.get(bad, 5e-4)
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=2),
        torch.optim.RMSprop(model.parameters(), lr=lr),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, batch_size=2, shuffle=False),
        score=accuracy(tx, ty),
    )


class SmallCNN(nn.Module):
    """No normalization at all; functional dropout before the classifier."""

    def __init__(self, always=False, nograd=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 4)
        self.always, self.nograd = always, nograd

    def encode(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.max_pool2d(F.relu(self.conv3(x)), 2).flatten(1)

    def forward(self, x):
        if self.nograd:
            with torch.no_grad():
                x = self.encode(x)
        else:
            x = self.encode(x)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.3) if self.always else F.dropout(x, 0.3, self.training)
        return self.fc2(x)


def cnn_plain(seed, bad=""):
    """No normalization, Adam, four CIFAR classes."""
    torch.manual_seed(seed)
    x, y, tx, ty = cifar4()
    if bad == "permute":  # stored height x width x channels, viewed as channels x height x width
        x = x.permute(0, 2, 3, 1).contiguous().view(x.shape)
        tx = tx.permute(0, 2, 3, 1).contiguous().view(tx.shape)
    model = SmallCNN(nograd=bad == "nograd")
    params = model.fc2.parameters() if bad == "headonly" else model.parameters()
    kw = {"betas": (0.999, 0.9)} if bad == "betas" else {}
    return Parts(
        model,
        loader(x, y, seed=seed),
        torch.optim.Adam(params, lr=2e-3, **kw),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


def cnn_ema(seed, bad=""):
    """The averaged (EMA) model of a finished run, as it is handed on."""
    parts = cnn_bn(seed)
    ema = copy.deepcopy(parts.model)
    parts.model.train()
    for i, (x, y) in enumerate(parts.data):
        if i == 120:
            break
        parts.optimizer.zero_grad()
        parts.loss(parts.model(x), y).backward()
        parts.optimizer.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), parts.model.parameters(), strict=False):
                a.lerp_(b, 0.05)
            if bad != "nobuffers":
                for a, b in zip(ema.buffers(), parts.model.buffers(), strict=False):
                    a.copy_(b)
    model = ema
    model.eval()
    parts.model = model
    parts.optimizer = sgd(model, 0.005, momentum=0.9)
    return parts


# ---------------------------------------------------------------- ResNets


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1, skip=True, zero=True):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        if zero:
            nn.init.zeros_(self.bn2.weight)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self, plain_list=False, frozen_stats=False):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.layer1 = Block(16, 16)
        self.layer2 = Block(16, 32, 2)
        self.layer3 = Block(32, 32)
        self.fc = nn.Linear(32, 4)
        self.frozen_stats = frozen_stats

    def train(self, mode=True):
        super().train(mode)
        if self.frozen_stats:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((2, 3)))


def resnet(seed, bad="", warm=0):
    """Zero-initialized last gammas, label smoothing, decay groups, Nesterov momentum."""
    torch.manual_seed(seed)
    x, y, tx, ty = cifar4()
    model = ResNet(frozen_stats=bad == "bneval")
    model.train()
    lr = {"lr-large": 20.0}.get(bad, 0.1)
    parts = Parts(
        model,
        loader(x, y, seed=seed),
        decay_groups(model, lr, 5e-4, kind=torch.optim.SGD, momentum=0.9, nesterov=True),
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )
    if warm:
        updates(parts, warm)
        for group in parts.optimizer.param_groups:
            group["lr"] = 0.02
    return parts


class DeepRes(nn.Module):
    """Residual MLP blocks with layer norm inside, as in a mixer; 16 blocks."""

    def __init__(self, depth=16, width=48, skip=True, registered=True):
        super().__init__()
        self.inp = nn.Linear(64, width)
        blocks = [
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(depth)
        ]
        for b in blocks:
            if skip:
                nn.init.normal_(b[2].weight, std=0.02)
        self.blocks = nn.ModuleList(blocks) if registered else blocks
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 10)
        self.skip = skip

    def forward(self, x):
        h = self.inp(x.flatten(1))
        for b in self.blocks:
            h = h + b(h) if self.skip else b(h)
        return self.out(self.norm(h))


class DeepResNoSkip(DeepRes):
    def forward(self, x):
        h = self.inp(x.flatten(1))
        for b in self.blocks:
            h = b(h)
        return self.out(self.norm(h))


def resmlp(seed, bad=""):
    """A deep residual net without batch norm, AdamW."""
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    model = DeepResNoSkip() if bad == "noskip" else DeepRes()
    decay = 100.0 if bad == "decay" else 0.05
    return Parts(
        model,
        loader(x, y, seed=seed),
        torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


# ---------------------------------------------------------------- transformers


def next_token_score(ids, logits):
    """Minus the loss of the next token, with nothing but the past given."""

    def fn(model):
        z = logits(model, ids[:, :-1])[:, -1]
        return -F.cross_entropy(z, ids[:, -1])

    return evaluated(fn)


def gpt2(seed, bad="", warm=0):
    """GPT-2 from a config (tied weights) on characters, AdamW with decay groups."""
    torch.manual_seed(seed)
    train, test, vocab = text()
    g = torch.Generator().manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab,
        n_positions=64,
        n_embd=48,
        n_layer=2,
        n_head=3,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=2.0 if bad == "init" else 0.02,
    )
    model = GPT2LMHeadModel(config)
    model.train()
    x = blocks(train, 2000, 41, g)
    e = blocks(test, 400, 41, g)
    if bad == "shift":
        data, held = ({"input_ids": t[:, :-1], "labels": t[:, 1:]} for t in (x, e))
    else:
        data, held = ({"input_ids": t[:, :-1], "labels": t[:, :-1]} for t in (x, e))
    lr = {"lr-large": 0.3, "lr-small": 1e-7}.get(bad, 3e-3)
    parts = Parts(
        model,
        dict_loader(seed, 16, **data),
        decay_groups(model, lr, 0.1, betas=(0.9, 0.95)),
        loss_fn=lambda model, batch: model(**batch).loss,
        eval_data=dict_loader(seed, 16, False, **held),
        score=next_token_score(e, lambda m, i: m(input_ids=i).logits),
    )
    if warm:
        updates(parts, warm)
    return parts


def bert(seed, bad="", warm=0):
    """BERT from a config, padded sentences with an attention mask, dict batches."""
    torch.manual_seed(seed)
    (ids, length, y), (tids, tlength, ty) = sentence_sets()
    config = BertConfig(
        vocab_size=24,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
        num_labels=2,
        pad_token_id=0,
    )
    model = BertForSequenceClassification(config)
    model.train()
    lr = {"lr-large": 0.1, "lr-small": 1e-7}.get(bad, 1e-3)

    def columns(i, n, y):
        return {"input_ids": i, "attention_mask": (i > 0).long(), "labels": y}

    if bad == "frozen":  # lost its encoder: only the pooler and the classifier are given
        groups = list(model.bert.pooler.parameters()) + list(model.classifier.parameters())
        opt = torch.optim.AdamW(groups, lr=lr)
    else:
        opt = decay_groups(model, lr, 0.01)
    test = columns(tids, tlength, ty)

    def fn(m):
        z = m(input_ids=test["input_ids"], attention_mask=test["attention_mask"]).logits
        return (z.argmax(1) == ty).float().mean()

    parts = Parts(
        model,
        dict_loader(seed, 32, **columns(ids, length, y)),
        opt,
        loss_fn=lambda model, batch: model(**batch).loss,
        eval_data=dict_loader(seed, 32, False, **test),
        score=evaluated(fn),
    )
    if warm:
        updates(parts, warm)
    return parts


def vit(seed, bad=""):
    """ViT from a config, zero-initialized classifier, AdamW."""
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    nn.init.zeros_(model.classifier.weight)
    model.train()
    decay, lr = {"lr-large": (0.01, 0.1), "lr-small": (0.01, 3e-7)}.get(bad, (0.01, 2e-3))
    if bad == "raw":  # left in 0..255 with a large offset
        x, tx = (64 + 100 * t for t in (x, tx))
    return Parts(
        model,
        dict_loader(seed, 32, pixel_values=x, labels=y),
        torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay),
        loss_fn=lambda model, batch: model(**batch).loss,
        eval_data=dict_loader(seed, 32, False, pixel_values=tx, labels=ty),
        score=accuracy(tx, ty, out=lambda o: o.logits),
    )


class RMSNorm(nn.Module):
    def __init__(self, dim, axis=-1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.axis = axis

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, dim, heads, causal=True, softmax_dim=-1):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.heads, self.causal, self.softmax_dim = heads, causal, softmax_dim

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        if self.causal:
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            a = a.masked_fill(mask, float("-inf"))
        a = a.softmax(self.softmax_dim)
        return self.proj((a @ v).transpose(1, 2).reshape(b, t, d))


class LlamaBlock(nn.Module):
    def __init__(self, dim, heads, axis, **kw):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(dim, axis), RMSNorm(dim, axis)
        self.attn = Attention(dim, heads, **kw)
        self.gate = nn.Linear(dim, 2 * dim, bias=False)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class MiniLlama(nn.Module):
    def __init__(self, vocab, dim=48, layers=2, heads=3, axis=-1, **kw):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(64, dim))
        self.blocks = nn.ModuleList(LlamaBlock(dim, heads, axis, **kw) for _ in range(layers))
        self.norm = RMSNorm(dim, axis)
        self.head = nn.Linear(dim, vocab, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(self.norm(x))


def lm_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def llama(seed, bad=""):
    """RMS norm, gradient checkpointing, a causal mask written by hand, AdamW."""
    torch.manual_seed(seed)
    train, test, vocab = text()
    g = torch.Generator().manual_seed(seed)
    model = MiniLlama(
        vocab,
        axis=1 if bad == "normaxis" else -1,
        causal=bad != "nomask",
        softmax_dim=-1,
    )
    x, e = blocks(train, 2000, 41, g), blocks(test, 400, 41, g)
    return Parts(
        model,
        loader(x[:, :-1], x[:, 1:], seed=seed, batch_size=16),
        torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1),
        loss=lm_loss,
        eval_data=loader(e[:, :-1], e[:, 1:], seed=seed, batch_size=16, shuffle=False),
        score=next_token_score(e, lambda m, i: m(i)),
    )


class SentenceEncoder(nn.Module):
    """nn.TransformerEncoder with a padding mask and masked mean pooling."""

    def __init__(self, inverted=False, positions=True):
        super().__init__()
        self.emb = nn.Embedding(24, 32, padding_idx=0)
        self.pos = nn.Embedding(24, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 2)
        self.inverted, self.positions = inverted, positions

    def forward(self, ids):
        pad = ids == 0
        x = self.emb(ids)
        if self.positions:
            x = x + self.pos(torch.arange(ids.shape[1], device=ids.device))
        # padding is what the mask should hide
        mask = ~pad if self.inverted else pad
        x = self.norm(self.encoder(x, src_key_padding_mask=mask))
        keep = (~pad).unsqueeze(-1).float()
        return self.out((x * keep).sum(1) / keep.sum(1))


def encoder(seed, bad=""):
    """Which half of the sentence is the more positive? nn.TransformerEncoder, Adam."""
    torch.manual_seed(seed)
    (ids, _, y), (tids, _, ty) = sentence_sets(True)
    model = SentenceEncoder(positions=bad != "nopos")
    return Parts(
        model,
        loader(ids, y, seed=seed),
        adam(model, 2e-3),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tids, ty, seed=seed, shuffle=False),
        score=accuracy(tids, ty),
    )


# ---------------------------------------------------------------- recurrent nets


class Forecaster(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.rnn = nn.LSTM(1, 32, batch_first=batch_first)
        self.fc = nn.Linear(32, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.fc(out[:, -1])


def lstm_forecast(seed, bad=""):
    """The next value of a time series, Adam, MSE."""
    torch.manual_seed(seed)
    x, y, tx, ty = series()
    model = Forecaster(batch_first=bad != "batchfirst")
    ey = ty
    if bad == "horizon":
        y, ey = y[:, 0], ty[:, 0]
    lr = {"lr-small": 1e-6, "lr-large": 1.0}.get(bad, 5e-3)
    return Parts(
        model,
        loader(x, y, seed=seed),
        adam(model, lr),
        loss=nn.MSELoss(),
        eval_data=loader(tx, ey, seed=seed, shuffle=False),
        score=r2(tx, ty),
    )


class Recaller(nn.Module):
    def __init__(self, forget=2.0):
        super().__init__()
        self.rnn = nn.LSTM(6, 24, batch_first=True)
        self.fc = nn.Linear(24, 4)
        with torch.no_grad():
            self.rnn.bias_hh_l0[24:48] = 0.0
            self.rnn.bias_ih_l0[24:48] = forget

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


def lstm_recall(seed, bad=""):
    """A symbol has to be kept over 24 steps; the forget gate's bias starts at 2."""
    torch.manual_seed(seed)
    x, y, tx, ty = recall()
    model = Recaller(forget=-4.0 if bad == "forget" else 2.0)
    return Parts(
        model,
        loader(x, y, seed=seed),
        adam(model, 5e-3),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


class SentenceGRU(nn.Module):
    def __init__(self, detach=False):
        super().__init__()
        self.emb = nn.Embedding(24, 16, padding_idx=0)
        self.gru = nn.GRU(16, 32, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(64, 2)
        self.detach = detach

    def forward(self, ids, lengths):
        x = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(x)
        h = torch.cat([h[0], h[1]], 1)
        if self.detach:
            h = h.detach()
        return self.fc(h)


def gru(seed, bad=""):
    """Packed sequences of different lengths, RMSprop, dict batches."""
    torch.manual_seed(seed)
    train, test = sentence_sets()
    model = SentenceGRU(detach=bad == "detach")
    lr = {"lr-large": 0.5}.get(bad, 2e-3)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch["ids"], batch["lengths"]), batch["label"])

    names = ("ids", "lengths", "label")
    return Parts(
        model,
        dict_loader(seed, 32, **dict(zip(names, train, strict=False))),
        torch.optim.RMSprop(model.parameters(), lr=lr),
        loss_fn=loss_fn,
        eval_data=dict_loader(seed, 32, False, **dict(zip(names, test, strict=False))),
        score=evaluated(lambda m: (m(test[0], test[1]).argmax(1) == test[2]).float().mean()),
    )


# ---------------------------------------------------------------- autoencoders


class ConvAE(nn.Module):
    def __init__(self, final=None):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64, 16),
        )  # fmt: skip
        self.dec = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Unflatten(1, (16, 2, 2)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )  # fmt: skip
        self.final = nn.Identity() if final is None else final

    def forward(self, x):
        return self.final(self.dec(self.enc(x)))


def autoencoder(seed, bad=""):
    """A convolutional autoencoder of the standardized digits, MSE, Adam."""
    torch.manual_seed(seed)
    x, _, tx, _ = digits()
    model = ConvAE(final={"sigmoid": nn.Sigmoid(), "relu": nn.ReLU()}.get(bad))

    def loss_fn(model, batch):
        return F.mse_loss(model(batch[0]), batch[0])

    return Parts(
        model,
        loader(x, seed=seed, batch_size=64),
        adam(model, 3e-3),
        loss_fn=loss_fn,
        eval_data=loader(tx, seed=seed, batch_size=64, shuffle=False),
        score=evaluated(lambda m: 1 - F.mse_loss(m(tx), tx) / tx.var()),
    )


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(196, 128), nn.ReLU())
        self.mu, self.logvar = nn.Linear(128, 12), nn.Linear(128, 12)
        self.dec = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 196))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z).view_as(x), mu, logvar


def vae(seed, bad=""):
    """A VAE of MNIST in 0..1: BCE per image plus KL per image, Adam."""
    torch.manual_seed(seed)
    x, _, tx, _ = mnist()
    model = VAE()

    def loss_fn(model, batch):
        out, mu, logvar = model(batch[0])
        if bad == "kl":
            rec = F.binary_cross_entropy_with_logits(out, batch[0])
        else:
            rec = F.binary_cross_entropy_with_logits(out, batch[0], reduction="sum") / len(out)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        return rec + kl

    def fn(m):
        out = m(tx)[0]
        return -F.binary_cross_entropy_with_logits(out, tx, reduction="sum") / len(tx)

    return Parts(
        model,
        loader(x, seed=seed, batch_size=64),
        adam(model, 2e-3),
        loss_fn=loss_fn,
        eval_data=loader(tx, seed=seed, batch_size=64, shuffle=False),
        score=evaluated(fn),
    )


# ---------------------------------------------------------------- regression


class Regressor(nn.Module):
    def __init__(self, out=1, act=True, relu_out=False, norm=False):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, out)
        self.norm = nn.LayerNorm(64) if norm else nn.Identity()
        self.act, self.relu_out = act, relu_out

    def forward(self, x):
        f = F.relu if self.act else (lambda t: t)
        h = f(self.fc2(f(self.norm(self.fc1(x)))))
        z = self.out(h)
        return F.relu(z) if self.relu_out else z


def regression(seed, bad=""):
    """Friedman's function, standardized, SGD with momentum, MSE."""
    torch.manual_seed(seed)
    x, y, tx, ty = friedman()
    y = y if bad == "broadcast" else y[:, None]
    if bad == "dollars":  # a price, not standardized
        y, ty = 250000 + 80000 * y, 250000 + 80000 * ty
    model = Regressor(act=bad != "linear", relu_out=bad == "reluout")
    lr = {"lr-small": 1e-6, "lr-large": 3.0}.get(bad, 0.02)
    loss = nn.MSELoss()
    if bad == "scaled":  # divided by the number of rows, though it is a mean already
        loss = lambda out, target: F.mse_loss(out, target) / len(x)  # noqa: E731
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=64),
        sgd(model, lr, momentum=0.9),
        loss=loss,
        eval_data=loader(
            tx, ty if bad == "broadcast" else ty[:, None], seed=seed, batch_size=64, shuffle=False
        ),
        score=r2(tx, ty),
    )


def gaussian(seed, bad=""):
    """Mean and log variance by the Gaussian likelihood, layer norm, Adagrad."""
    torch.manual_seed(seed)
    x, y, tx, ty = friedman()
    model = Regressor(out=2, norm=True)

    def nll(out, target):
        mu, logvar = out[:, 0], out[:, 1].clamp(-6, 6)
        return 0.5 * (logvar + (target - mu) ** 2 * (-logvar).exp()).mean()

    lr = {"lr-small": 1e-5}.get(bad, 0.03)
    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=64),
        torch.optim.Adagrad(model.parameters(), lr=lr),
        loss=nll,
        eval_data=loader(tx, ty, seed=seed, batch_size=64, shuffle=False),
        score=evaluated(lambda m: -nll(m(tx), ty)),
    )


# ---------------------------------------------------------------- two heads


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()
        )
        self.digit, self.ink = nn.Linear(32, 10), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return {"digit": self.digit(h), "ink": self.ink(h).squeeze(1)}


def two_heads(seed, bad=""):
    """The digit and its amount of ink from one trunk, Adam."""
    torch.manual_seed(seed)
    x, y, tx, ty = mnist()
    ink, tink = x.sum((1, 2, 3)), tx.sum((1, 2, 3))
    if bad == "units":  # the ink in grey values, not standardized
        ink, tink = ink * 255, tink * 255
    else:
        mean, std = ink.mean(), ink.std()
        ink, tink = (ink - mean) / std, (tink - mean) / std
    model = TwoHeads()

    def loss_fn(model, batch):
        out = model(batch["image"])
        digit = F.cross_entropy(out["digit"], batch["digit"])
        ink = F.mse_loss(out["ink"], batch["ink"])
        if bad == "onehead":
            with torch.no_grad():
                digit = F.cross_entropy(model(batch["image"])["digit"], batch["digit"])
        return digit + 0.5 * ink

    def fn(m):
        out = m(tx)
        acc = (out["digit"].argmax(1) == ty).float().mean()
        return acc + 0.5 * (1 - F.mse_loss(out["ink"], tink) / tink.var()).clamp(min=-1)

    return Parts(
        model,
        dict_loader(seed, 64, image=x, digit=y, ink=ink),
        adam(model, 2e-3),
        loss_fn=loss_fn,
        eval_data=dict_loader(seed, 64, False, image=tx, digit=ty, ink=tink),
        score=evaluated(fn),
    )


# ---------------------------------------------------------------- fine-tuning


@lru_cache(None)
def pretrained(seed):
    """A CNN that knows the digits 0 to 4."""
    torch.manual_seed(seed + 100)
    x, y, _, _ = mnist()
    keep = y < 5
    model = ConvNet(1, 5)
    parts = Parts(
        model,
        loader((x[keep] - 0.13) / 0.31, y[keep], seed=seed, batch_size=64),
        adam(model, 3e-3),
        loss=nn.CrossEntropyLoss(),
    )
    updates(parts, 80)
    return model.state_dict()


class FrozenBackbone(nn.Module):
    """A pretrained backbone, frozen and kept in evaluation mode, and a new head."""

    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        for p in self.backbone.parameters():
            p.requires_grad = False
        self.head = nn.Linear(288, classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x).flatten(1))


def finetune_frozen(seed, bad=""):
    """A frozen pretrained backbone, a new head for the digits 5 to 9, few data, Adam."""
    state = pretrained(seed)
    torch.manual_seed(seed)
    x, y, tx, ty = mnist()
    keep, tkeep = y >= 5, ty >= 5
    x, y, tx, ty = x[keep][:600], y[keep][:600] - 5, tx[tkeep], ty[tkeep] - 5
    if bad == "prep":  # 0..255, as the new loader reads them
        x, tx = x * 255, tx * 255
    else:
        x, tx = (x - 0.13) / 0.31, (tx - 0.13) / 0.31
    net = ConvNet(1, 5)
    net.load_state_dict(state)
    model = FrozenBackbone(net.features, 5)
    model.train()
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    if bad == "oldhead":
        model.head = nn.Linear(288, 5)
    return Parts(
        model,
        loader(x, y, seed=seed),
        opt,
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


def finetune_all(seed, bad=""):
    """Everything is fine-tuned, the backbone at a tenth of the head's learning rate, AdamW."""
    state = pretrained(seed)
    torch.manual_seed(seed)
    x, y, tx, ty = mnist()
    x, tx = (x - 0.13) / 0.31, (tx - 0.13) / 0.31
    keep, tkeep = y >= 5, ty >= 5
    x, y, tx, ty = x[keep][:600], y[keep][:600] - 5, tx[tkeep], ty[tkeep] - 5
    model = ConvNet(1, 5)
    model.load_state_dict(state)
    model.classifier = nn.Linear(288, 5)
    model.train()
    body, head = 2e-4, 2e-3
    return Parts(
        model,
        loader(x, y, seed=seed),
        torch.optim.AdamW(
            [
                {"params": model.features.parameters(), "lr": body},
                {"params": model.classifier.parameters(), "lr": head},
            ]
        ),
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, zero_both=False):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        if zero_both:
            nn.init.zeros_(self.a)
        else:
            nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.a.T) @ self.b.T


def lora(seed, bad=""):
    """Low-rank adapters on a trained MLP, for digits that are turned by 90 degrees."""
    base = mlp_adam(seed)
    updates(base, 150)
    torch.manual_seed(seed + 1)
    model = base.model
    for i, m in enumerate(model.net):
        if isinstance(m, nn.Linear):
            model.net[i] = LoRALinear(m, zero_both=bad == "zeroboth")
    x, y, tx, ty = digits()
    x, tx = x.rot90(1, (2, 3)).contiguous(), tx.rot90(1, (2, 3)).contiguous()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return Parts(
        model,
        loader(x, y, seed=seed),
        opt,
        loss=nn.CrossEntropyLoss(),
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


# ---------------------------------------------------------------- segmentation


def conv2(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
        nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.d1, self.d2, self.mid = conv2(1, w), conv2(w, 2 * w), conv2(2 * w, 4 * w)
        self.up2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.u2 = conv2(4 * w, 2 * w)
        self.up1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.u1 = conv2(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([self.up2(c), b], 1))
        a = self.u1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def dice_score(p, m):
    return (2 * (p * m).sum() + 1e-6) / (p.sum() + m.sum() + 1e-6)


def unet(seed, bad=""):
    """A small U-Net for a binary mask: BCE and Dice, Adam."""
    torch.manual_seed(seed)
    x, y, tx, ty = shapes()
    y, ty = (y > 0).float()[:, None], (ty > 0).float()[:, None]
    model = UNet()
    if bad == "flip":  # the images are mirrored at random, their masks are not
        g = torch.Generator().manual_seed(seed + 9)
        turn = torch.rand(len(x), generator=g) < 0.5
        x = torch.where(turn[:, None, None, None], x.flip(3), x)

    def loss(out, target):
        p = torch.sigmoid(out)
        if bad == "dice":  # Dice of the logits alone
            p = out
            return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
        dice = 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
        return F.binary_cross_entropy_with_logits(out, target) + dice

    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=8),
        adam(model, 3e-3),
        loss=loss,
        eval_data=loader(tx, ty, seed=seed, batch_size=8, shuffle=False),
        score=evaluated(lambda m: dice_score((m(tx) > 0).float(), ty)),
    )


def monai_unet(seed, bad=""):
    """MONAI's U-Net with instance norm, three classes of pixels, AdamW."""
    torch.manual_seed(seed)
    x, y, tx, ty = shapes()
    model = MonaiUNet(
        spatial_dims=2,
        in_channels=1,
        out_channels=3,
        channels=(8, 16, 32),
        strides=(2, 2),
        num_res_units=1,
    )
    loss = nn.CrossEntropyLoss(ignore_index=0) if bad == "ignore" else nn.CrossEntropyLoss()

    def fn(m):
        p = m(tx).argmax(1)
        return sum(dice_score((p == c).float(), (ty == c).float()) for c in (0, 1, 2)) / 3

    return Parts(
        model,
        loader(x, y, seed=seed, batch_size=8),
        torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4),
        loss=loss,
        eval_data=loader(tx, ty, seed=seed, batch_size=8, shuffle=False),
        score=evaluated(fn),
    )


# ---------------------------------------------------------------- custom losses


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32),
        )  # fmt: skip

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def views(x, g):
    """Two views of every image, with noise and with pixels left out."""
    out = []
    for _ in range(2):
        keep = (torch.rand(x.shape, generator=g) > 0.3).float()
        out.append(x * keep + 0.3 * torch.randn(x.shape, generator=g))
    return out


def contrastive(seed, bad=""):
    """InfoNCE on two views of every image, Adam; an image's other view has to be found."""
    torch.manual_seed(seed)
    x, _, tx, _ = digits()
    g = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(4):
        for i in torch.randperm(len(x), generator=g)[:1088].view(-1, 64):
            batches.append(views(x[i], g))
    held = [views(tx[i : i + 60], g) for i in range(0, 300, 60)]
    model = Embedder()
    tau = 0.1

    def loss_fn(model, batch):
        a, b = model(batch[0]), model(batch[1])
        sim = a @ b.T
        if bad == "nonegatives":  # only the pairs that belong together are drawn together
            return 1 - sim.diagonal().mean()
        logits = sim * tau if bad == "tau" else sim / tau
        return F.cross_entropy(logits, torch.arange(len(a)))

    def fn(m):
        hits = [(m(a) @ m(b).T).argmax(1) == torch.arange(60) for a, b in held]
        return torch.cat(hits).float().mean()

    return Parts(
        model, batches, adam(model, 1e-3), loss_fn=loss_fn, eval_data=held, score=evaluated(fn)
    )


@lru_cache(None)
def teacher_state(seed):
    parts = mlp_adam(seed + 50)
    updates(parts, 150)
    return parts.model.state_dict()


def distill(seed, bad=""):
    """A small student learns a teacher's softened outputs, SGD with momentum."""
    state = teacher_state(seed)
    torch.manual_seed(seed)
    x, y, tx, ty = digits()
    teacher = MLP([64, 128, 64, 10])
    teacher.load_state_dict(state)
    teacher.eval().requires_grad_(False)
    model = MLP([64, 24, 10])
    t = 2.0

    def loss_fn(model, batch):
        z = model(batch[0]) / t
        with torch.no_grad():
            target = (teacher(batch[0]) / t).softmax(1)
        inp = z.softmax(1) if bad == "nolog" else z.log_softmax(1)
        return t * t * F.kl_div(inp, target, reduction="batchmean")

    return Parts(
        model,
        loader(x, y, seed=seed),
        sgd(model, 0.02, momentum=0.9),
        loss_fn=loss_fn,
        eval_data=loader(tx, ty, seed=seed, shuffle=False),
        score=accuracy(tx, ty),
    )


# ---------------------------------------------------------------- the list

HEALTHY = [
    ("mlp-digits-adam", "mlp", mlp_adam, 150),
    ("mlp-logsoftmax-nll-sgd", "mlp", mlp_nll, 200),
    ("mlp-dropout-adagrad-unit-inputs", "mlp", mlp_dropout, 200),
    ("mlp-deep-he-momentum", "mlp", mlp_deep, 200),
    ("mlp-trained-adam", "mlp", mlp_trained, 100),
    ("tabular-imbalanced-adamw", "mlp", tabular, 300),
    ("cnn-batchnorm-momentum", "cnn", cnn_bn, 150),
    ("cnn-groupnorm-batch2-rmsprop", "cnn", cnn_gn, 800),
    ("cnn-plain-adam", "cnn", cnn_plain, 250),
    ("cnn-ema-handed-on", "cnn", cnn_ema, 0),
    ("resnet-zero-gamma-nesterov", "resnet", resnet, 120),
    ("resnet-trained-nesterov", "resnet", partial(resnet, warm=50), 60),
    ("residual-mlp-layernorm-adamw", "resnet", resmlp, 200),
    ("gpt2-characters-adamw", "transformer", gpt2, 140),
    ("bert-padded-adamw", "transformer", bert, 120),
    ("bert-padded-warm-adamw", "transformer", partial(bert, warm=50), 60),
    ("vit-zero-head-adamw", "transformer", vit, 150),
    ("llama-rmsnorm-checkpointed-adamw", "transformer", llama, 140),
    ("encoder-padding-mask-adam", "transformer", encoder, 200),
    ("lstm-forecast-adam", "lstm", lstm_forecast, 250),
    ("lstm-recall-adam", "lstm", lstm_recall, 250),
    ("gru-packed-rmsprop", "lstm", gru, 250),
    ("autoencoder-conv-adam", "autoencoder", autoencoder, 250),
    ("vae-mnist-adam", "autoencoder", vae, 300),
    ("regression-friedman-momentum", "regression", regression, 200),
    ("regression-gaussian-adagrad", "regression", gaussian, 250),
    ("two-heads-adam", "two-heads", two_heads, 250),
    ("finetune-frozen-adam", "fine-tuning", finetune_frozen, 150),
    ("finetune-all-adamw", "fine-tuning", finetune_all, 100),
    ("finetune-lora-adamw", "fine-tuning", lora, 200),
    ("unet-dice-adam", "segmentation", unet, 60),
    ("monai-unet-adamw", "segmentation", monai_unet, 100),
    ("contrastive-infonce-adam", "contrastive", contrastive, 200),
    ("distillation-momentum", "distillation", distill, 150),
]

LR_LARGE = (
    r"learning rate.{0,60}(too (large|high|big)|lower|smaller|reduce|decrease|diverge|above|over)",
    r"(lower|reduce|decrease|smaller|divide).{0,40}(learning rate|\blr\b|step)",
    r"\blr\b.{0,40}too (large|high|big)",
    r"(steps?|updates?).{0,40}too (large|big)",
    r"(training|loss|run|\bit|weights?).{0,30}diverg",
)
LR_SMALL = (
    r"learning rate.{0,60}(too (small|low)|raise|increase|higher|larger|below|far under)",
    r"(raise|increase|higher|larger|multiply).{0,40}(learning rate|\blr\b|step)",
    r"\blr\b.{0,40}too (small|low)",
    r"(steps?|updates?).{0,40}too (small|tiny)",
    r"(hardly|barely|scarcely) (moves?|changes?|trains?|learns?)",
)

BROKEN = [
    # name, twin, make, defect, words
    (
        "mlp-digits-lr-tiny",
        "mlp-digits-adam",
        partial(mlp_adam, bad="lr-small"),
        "Adam's learning rate is 1e-6, a thousand times too small.",
        LR_SMALL,
    ),
    (
        "mlp-digits-labels-shuffled",
        "mlp-digits-adam",
        partial(mlp_adam, bad="shuffled"),
        "The labels were shuffled against the images (silent).",
        (
            r"labels?.{0,60}(shuffl|random|wrong|unrelated|not (match|fit|belong)|independent|noise|mismatch|misalign)",
            r"(shuffl|random|wrong|noisy|misaligned|mismatched).{0,30}(labels?|targets?)",
            r"(inputs?|images?|data|features?).{0,60}(say|tell|carry|hold|contain)s? (nothing|little|no information).{0,30}(labels?|targets?|class)",
            r"targets?.{0,40}(unrelated|independent|do(es)? not (match|fit|belong))",
            r"memori[sz]",
        ),
    ),
    (
        "mlp-digits-stale-optimizer",
        "mlp-digits-adam",
        partial(mlp_adam, bad="stale"),
        "The optimizer holds the parameters of another copy of the model, so nothing is trained.",
        (
            r"optimi[sz]er.{0,80}(not|no|none|other|another|different|miss|foreign|stale|old|lacks?|without|unknown)",
            r"parameters?.{0,60}(not|missing|absent|none).{0,30}optimi[sz]er",
            r"(never|not) (trained|updated|in the optimi[sz]er)",
        ),
    ),
    (
        "mlp-digits-ignore-index-0",
        "mlp-digits-adam",
        partial(mlp_adam, bad="ignore"),
        "The loss ignores class 0 by ignore_index=0, though it is a real class.",
        (
            r"ignore_?\s?index",
            r"ignor.{0,40}(class|label|target)",
            r"class(es)? 0\b.{0,60}(ignor|never|no gradient|not (learn|count|train))",
            r"(class|label|target)s?.{0,40}(ignored|left out|skipped|excluded|not counted)",
        ),
    ),
    (
        "mlp-nll-raw-logits",
        "mlp-logsoftmax-nll-sgd",
        partial(mlp_nll, bad="nolog"),
        "The model returns raw logits, but NLLLoss expects log-probabilities.",
        (
            r"log[_ -]?softmax",
            r"log[- ]?prob",
            r"NLL",
            r"(loss|it).{0,40}(negative|below zero|unbounded|no lower bound|not bounded)",
            r"(raw )?logits.{0,60}(loss|expect|cross)",
        ),
    ),
    (
        "mlp-dropout-keep-probability",
        "mlp-dropout-adagrad-unit-inputs",
        partial(mlp_dropout, bad="keep"),
        "Dropout is 0.95, a keep probability given as the drop probability.",
        (r"drop-?out", r"drop.{0,30}(rate|probab)"),
    ),
    (
        "mlp-unit-inputs-divided-twice",
        "mlp-dropout-adagrad-unit-inputs",
        partial(mlp_dropout, bad="twice255"),
        "The images were divided by 255 twice, so the inputs are below 0.004.",
        (
            r"inputs?.{0,60}(small|tiny|scale|standardi|normali[sz]|range|magnitude|size)",
            r"(scale|standardi[sz]e|normali[sz]e|rescale|multiply).{0,40}(inputs?|data|images?|features?)",
            r"(images?|data|features?|pixels?).{0,40}(too small|tiny|scale|standardi)",
        ),
    ),
    (
        "mlp-dropout-adagrad-lr-huge",
        "mlp-dropout-adagrad-unit-inputs",
        partial(mlp_dropout, bad="lr-large"),
        "Adagrad's learning rate of 1.0 is a hundred times too large.",
        LR_LARGE,
    ),
    (
        "mlp-deep-sigmoid",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="sigmoid"),
        "Eight hidden layers use sigmoids, so the gradient vanishes on its way down.",
        (
            r"vanish",
            r"sigmoid",
            r"saturat",
            r"gradients?.{0,60}(small|tiny|die|lost|shrink|fade|not reach|decay)",
            r"signal.{0,60}(lost|fade|shrink|die|vanish|collapse)",
            r"(same|identical|alike).{0,40}(output|for every|for all)",
            r"activation.{0,40}(function|relu)",
        ),
    ),
    (
        "mlp-deep-tiny-init",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="tiny"),
        "All weights start at a standard deviation of 0.01, so signal and gradient vanish over the depth.",
        (
            r"initiali[sz]",
            r"vanish",
            r"weights?.{0,40}(too small|tiny|small)",
            r"gradients?.{0,60}(small|tiny|shrink|fade|not reach|lost|die)",
            r"signal.{0,60}(lost|fade|shrink|die|vanish|collapse)",
            r"\bhe\b|kaiming|xavier",
        ),
    ),
    (
        "mlp-deep-unit-normal-init",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="ones"),
        "All weights start from a standard normal distribution, so signal and gradient explode over the depth.",
        (
            r"initiali[sz]",
            r"explod",
            r"weights?.{0,40}(too (large|big)|large|huge)",
            r"(activations?|gradients?|outputs?|logits?|signal|initial loss|loss at (the )?start|first loss).{0,60}(large|huge|grow|explod|blow|overflow|not finite|inf)",
            r"kaiming|xavier",
        ),
    ),
    (
        "mlp-deep-constant-init",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="const"),
        "All weights start at the same constant, so all units of a layer stay equal.",
        (
            r"symmetr",
            r"initiali[sz]",
            r"(same|equal|identical|constant|alike).{0,50}(weights?|units?|neurons?|rows?|channels?|start|features?)",
            r"(weights?|units?|neurons?|rows?|channels?|features?).{0,50}(same|equal|identical|constant|alike|duplicate)",
            r"(rank|collapse)",
        ),
    ),
    (
        "mlp-deep-dead-relus",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="deadbias"),
        "The hidden biases start at -2, so almost all ReLUs are dead.",
        (
            r"dead",
            r"\bdie|dying",
            r"relus?.{0,60}(zero|off|silent|inactive|never|closed)",
            r"units?.{0,60}(zero|off|silent|inactive|never (fire|active)|closed)",
            r"bias(es)?.{0,60}(negative|low|start|initial|zero)",
            r"(gradients?|signal).{0,60}(vanish|not reach|lost|zero|none|no)",
            r"inactive",
        ),
    ),
    (
        "mlp-deep-gradient-clamped",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="gradclip"),
        "Hooks clamp every gradient to 1e-5, so plain SGD hardly moves.",
        (r"clip|clamp|hook", r"gradients?.{0,50}(small|tiny|limit|changed|altered|cut)", *LR_SMALL),
    ),
    (
        "mlp-deep-momentum-0.999",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="momentum"),
        "Momentum is 0.999 at an unchanged learning rate, so the steps add up to a hundred times too much.",
        (r"momentum", *LR_LARGE),
    ),
    (
        "mlp-deep-weight-decay-0.5",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="decay"),
        "SGD's weight decay is 0.5, so the weights shrink to zero faster than they learn.",
        (
            r"weight[_ ]decay",
            r"\bdecay\b",
            r"weights?.{0,40}(shrink|shrunk|pulled)",
            r"regulari[sz]|\bL2\b",
        ),
    ),
    (
        "mlp-deep-loss-summed",
        "mlp-deep-he-momentum",
        partial(mlp_deep, bad="sum"),
        "The loss is summed over the batch instead of averaged, so every step is 64 times too large.",
        (
            r"reduction|\bsum(med|s)?\b",
            r"(mean|averag).{0,40}loss|loss.{0,60}(mean|averag)",
            r"batch size.{0,40}loss|loss.{0,60}batch size",
            *LR_LARGE,
        ),
    ),
    (
        "tabular-double-sigmoid",
        "tabular-imbalanced-adamw",
        partial(tabular, bad="sigmoid"),
        "The model applies a sigmoid and BCE-with-logits applies it again.",
        (
            r"sigmoid",
            r"(twice|double|two times)",
            r"expects? (raw )?logits|logits.{0,60}(expect|probab)",
            r"outputs?.{0,60}(between 0 and 1|0\.\.1|\[0, 1\]|probabilit)",
        ),
    ),
    (
        "tabular-raw-income",
        "tabular-imbalanced-adamw",
        partial(tabular, bad="rawunits"),
        "One column is in dollars (tens of thousands) while all others are standardized.",
        (
            r"(inputs?|features?|columns?|data|numbers).{0,60}(scale|standardi|normali[sz]|large|huge|magnitude|range|units?|size|dominat)",
            r"(standardi[sz]e|normali[sz]e|rescale|scale|divide).{0,40}(inputs?|features?|columns?|data|numbers|\bit\b|them)",
        ),
    ),
    (
        "tabular-missing-values",
        "tabular-imbalanced-adamw",
        partial(tabular, bad="nan"),
        "A few rows of the training data hold NaN.",
        (r"\bnans?\b", r"not finite|non-?finite|infinite|missing values?|not[- ]a[- ]number"),
    ),
    (
        "tabular-pos-weight-inverted",
        "tabular-imbalanced-adamw",
        partial(tabular, bad="posweight"),
        "The rare class's weight is 1/50 instead of above 1, so it is hardly ever predicted.",
        (
            r"pos_?weight",
            r"class(es)?.{0,40}weight|weight.{0,40}class",
            r"(rare|minority|positive).{0,60}(ignor|weight|never|drown|not learn)",
            r"imbalanc|unbalanced",
            r"(always|only|nearly only).{0,40}(same class|one class|majority|predict)",
        ),
    ),
    (
        "cnn-softmax-cross-entropy",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="softmax"),
        "The model ends in a softmax and CrossEntropyLoss applies another one.",
        (
            r"softmax",
            r"expects? (raw )?logits|logits.{0,60}(expect|probab)",
            r"outputs?.{0,60}(probabilit|sum to (1|one))",
        ),
    ),
    (
        "cnn-sorted-data",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="sorted"),
        "The data are sorted by class and not shuffled, so a batch holds one class only.",
        (
            r"shuffl",
            r"sorted|in order|ordered",
            r"(one|single|same|few) class.{0,40}batch|batch(es)?.{0,60}(one|single|same|few) (class|label|target)",
            r"batch(es)? (differ|are not alike)",
        ),
    ),
    (
        "cnn-labels-off-by-one-row",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="misaligned"),
        "Every image carries the label of the image before it (silent).",
        (
            r"labels?.{0,60}(shuffl|random|wrong|unrelated|not (match|fit|belong)|independent|noise|mismatch|misalign|shift)",
            r"(shuffl|random|wrong|noisy|misaligned|mismatched|shifted).{0,30}(labels?|targets?)",
            r"(inputs?|images?|data|features?).{0,60}(say|tell|carry|hold|contain)s? (nothing|little|no information).{0,30}(labels?|targets?|class)",
            r"targets?.{0,40}(unrelated|independent|do(es)? not (match|fit|belong))",
            r"memori[sz]",
        ),
    ),
    (
        "cnn-batchnorm-momentum-0",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="bnmomentum"),
        "The batch norms' momentum is 0, so their running statistics never leave the initial values.",
        (
            r"running.{0,30}(stat|mean|var|estimate|average)",
            r"batch ?norm.{0,80}(momentum|statistic|never|stale|eval|frozen|initial)",
            r"momentum.{0,60}(batch ?norm|statistic|0)",
            r"eval(uation)?( mode)?.{0,60}(differ|other|worse|disagree|train)",
            r"train(ing)?( mode)?.{0,60}eval",
        ),
    ),
    (
        "cnn-evaluated-on-other-scale",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="evalscale"),
        "The training images are standardized, the held-out ones are left in 0..1.",
        (
            r"(eval|held[- ]?out|validation|test).{0,80}(differ|scale|prepar|preproc|standardi|normali[sz]|distribut|shift|range|mean|other|not like|unlike)",
            r"(differ|mismatch|shift|prepar|preproc).{0,60}(eval|held[- ]?out|validation|test)",
        ),
    ),
    (
        "cnn-momentum-lr-tiny",
        "cnn-batchnorm-momentum",
        partial(cnn_bn, bad="lr-small"),
        "SGD's learning rate of 1e-5 is thousands of times too small.",
        LR_SMALL,
    ),
    (
        "cnn-channels-viewed-wrong",
        "cnn-plain-adam",
        partial(cnn_plain, bad="permute"),
        "Images stored with the channels last were viewed, not permuted, into channels first.",
        (
            r"permut|transpos|channels?[- _]?(last|first)",
            r"\bview\b|reshap",
            r"channels?.{0,60}(order|axis|axes|layout|mixed|scrambl|alike|same|wrong)",
            r"scrambl|axes|layout",
        ),
    ),
    (
        "cnn-rmsprop-lr-huge",
        "cnn-groupnorm-batch2-rmsprop",
        partial(cnn_gn, bad="lr-large"),
        "RMSprop's learning rate of 0.1 is hundreds of times too large.",
        LR_LARGE,
    ),
    (
        "cnn-encoder-no-grad",
        "cnn-plain-adam",
        partial(cnn_plain, bad="nograd"),
        "The fresh encoder runs under torch.no_grad, so only the two last layers learn.",
        (
            r"no_?\s?grad\b",
            r"no gradients?",
            r"detach",
            r"gradients?.{0,60}(none|not reach|never|missing|zero|stop|cut|blocked|does not|do not)",
            r"(not|never) (trained|updated|learn)",
            r"without (a )?gradient",
            r"receives? no|gets? no",
        ),
    ),
    (
        "cnn-optimizer-head-only",
        "cnn-plain-adam",
        partial(cnn_plain, bad="headonly"),
        "The optimizer was given the last layer's parameters only, the rest stays random.",
        (
            r"optimi[sz]er.{0,80}(not|no|only|miss|lacks?|without|part|some|few)",
            r"parameters?.{0,60}(not|missing|absent).{0,30}optimi[sz]er",
            r"(never|not) (trained|updated|in the optimi[sz]er)",
        ),
    ),
    (
        "cnn-adam-betas-swapped",
        "cnn-plain-adam",
        partial(cnn_plain, bad="betas"),
        "Adam's betas are swapped: (0.999, 0.9).",
        (r"betas?\b|beta_?\s?[12]", r"momentum", r"second moment|moving average", r"swap"),
    ),
    (
        "cnn-ema-without-buffers",
        "cnn-ema-handed-on",
        partial(cnn_ema, bad="nobuffers"),
        "The averaged model's batch norm statistics are those of the untrained model: only parameters were averaged.",
        (
            r"running.{0,30}(stat|mean|var|estimate|average)",
            r"batch ?norm.{0,80}(statistic|never|stale|eval|initial|not match|fit|old|buffer)",
            r"buffers?",
            r"statistic.{0,60}(not (match|fit)|stale|differ|initial|wrong|old|far)",
            r"eval(uation)?( mode)?.{0,60}(differ|other|worse|disagree|train)",
            r"train(ing)?( mode)?.{0,60}eval",
            r"update_bn|\bema\b|\bswa\b|averag(ed|ing) (model|weights)",
        ),
    ),
    (
        "resnet-fresh-batchnorm-in-eval",
        "resnet-zero-gamma-nesterov",
        partial(resnet, bad="bneval"),
        "The batch norms of an untrained net are held in evaluation mode, so they do not normalize.",
        (
            r"batch ?norm.{0,80}(eval|frozen|running|statistic|not normali|mode|train)",
            r"(eval(uation)?) mode",
            r"running.{0,30}(stat|mean|var|estimate)",
            r"frozen (statistic|batch ?norm|normali)",
        ),
    ),
    (
        "resnet-nesterov-lr-huge",
        "resnet-zero-gamma-nesterov",
        partial(resnet, bad="lr-large"),
        "SGD's learning rate of 20 is hundreds of times too large.",
        LR_LARGE,
    ),
    (
        "residual-mlp-without-skips",
        "residual-mlp-layernorm-adamw",
        partial(resmlp, bad="noskip"),
        "The skip connections were forgotten, 32 layers stand in a row.",
        (
            r"residual|skip|shortcut",
            r"vanish",
            r"too deep|\bdepth\b",
            r"(signal|gradients?).{0,60}(lost|fade|shrink|die|collapse|small|tiny|not reach)",
            r"(same|identical|alike|collapse).{0,40}(output|input|sample|for every|for all|represent)",
            r"initiali[sz]",
        ),
    ),
    (
        "residual-mlp-weight-decay-100",
        "residual-mlp-layernorm-adamw",
        partial(resmlp, bad="decay"),
        "AdamW's weight decay is 100, so the weights lose a tenth at every step.",
        (
            r"weight[_ ]decay",
            r"\bdecay\b",
            r"weights?.{0,40}(shrink|shrunk|pulled)",
            r"regulari[sz]|\bL2\b",
        ),
    ),
    (
        "gpt2-labels-shifted-twice",
        "gpt2-characters-adamw",
        partial(gpt2, bad="shift"),
        "The labels are shifted by the data set and once more by the model, so the token after the next is learned.",
        (
            r"shift",
            r"off by one",
            r"labels?.{0,60}(align|position|input_ids|next token|twice)",
            r"(next|second) token",
        ),
    ),
    (
        "gpt2-initializer-range-2",
        "gpt2-characters-adamw",
        partial(gpt2, bad="init"),
        "The weights start at a standard deviation of 2.0 instead of 0.02.",
        (
            r"initiali[sz]",
            r"explod",
            r"weights?.{0,40}(too (large|big)|large|huge)",
            r"(activations?|gradients?|outputs?|logits?|initial loss|loss at (the )?start|first loss|loss starts?).{0,60}(large|huge|grow|explod|blow|high|confident|far above|worse than)",
            r"saturat|(over)?confident",
        ),
    ),
    (
        "gpt2-adamw-lr-huge",
        "gpt2-characters-adamw",
        partial(gpt2, bad="lr-large"),
        "AdamW's learning rate of 0.3 is a hundred times too large.",
        LR_LARGE,
    ),
    (
        "bert-encoder-not-in-optimizer",
        "bert-padded-adamw",
        partial(bert, bad="frozen"),
        "The optimizer holds the pooler and the classifier of an untrained BERT only.",
        (
            r"optimi[sz]er.{0,80}(not|no|only|miss|lacks?|without|part|some|few)",
            r"parameters?.{0,60}(not|missing|absent).{0,30}optimi[sz]er",
            r"(never|not) (trained|updated|in the optimi[sz]er)",
        ),
    ),
    (
        "bert-adamw-lr-tiny",
        "bert-padded-adamw",
        partial(bert, bad="lr-small"),
        "AdamW's learning rate of 1e-7 is thousands of times too small.",
        LR_SMALL,
    ),
    (
        "vit-pixels-not-scaled",
        "vit-zero-head-adamw",
        partial(vit, bad="raw"),
        "The pixels are left in the hundreds instead of standardized.",
        (
            r"(inputs?|pixels?|pixel_values|images?|data|features?).{0,60}(scale|standardi|normali[sz]|large|huge|magnitude|range|size|mean)",
            r"(standardi[sz]e|normali[sz]e|rescale|scale|divide).{0,40}(inputs?|pixels?|images?|data|features?|\bit\b|them)",
        ),
    ),
    (
        "vit-adamw-lr-huge",
        "vit-zero-head-adamw",
        partial(vit, bad="lr-large"),
        "AdamW's learning rate of 0.1 is fifty times too large.",
        LR_LARGE,
    ),
    (
        "llama-causal-mask-missing",
        "llama-rmsnorm-checkpointed-adamw",
        partial(llama, bad="nomask"),
        "The causal mask is missing, so a position sees the token it has to predict.",
        (
            r"causal",
            r"future",
            r"\bmask",
            r"leak",
            r"(sees?|see|look|know)s?.{0,40}(ahead|target|later|next|answer|future)",
        ),
    ),
    (
        "llama-rmsnorm-over-time",
        "llama-rmsnorm-checkpointed-adamw",
        partial(llama, bad="normaxis"),
        "RMS norm averages over the time axis instead of the features, so later tokens leak into earlier ones.",
        (
            r"causal",
            r"future",
            r"leak",
            r"(ax[ie]s|dim(ension)?).{0,60}(norm|wrong|time|feature|token|position|sequence)",
            r"norm.{0,80}(ax[ie]s|dim\b|time|position|sequence)",
            r"(sees?|look|know)s?.{0,40}(ahead|target|later|next|answer|future)",
        ),
    ),
    (
        "encoder-no-positions",
        "encoder-padding-mask-adam",
        partial(encoder, bad="nopos"),
        "The position embedding is never added, so the order of the tokens is lost.",
        (
            r"position",
            r"(tokens?|words?|sequence|steps?).{0,40}\border\b|\border\b.{0,40}(tokens?|words?|sequence|position|steps?)|permut",
            r"pos\b.{0,60}(unused|not used|never|no gradient)",
            r"(unused|not used|never used|no gradient).{0,60}(param|embed|pos\b)",
        ),
    ),
    (
        "lstm-batch-first-forgotten",
        "lstm-forecast-adam",
        partial(lstm_forecast, bad="batchfirst"),
        "batch_first is missing, so the LSTM runs along the batch and mixes the samples.",
        (
            r"batch_?\s?first",
            r"mix(es|ed|ing)?.{0,40}(samples?|batch|examples?|rows?)",
            r"(samples?|examples?|rows?).{0,60}(depend|mix|leak|influence|affect|see).{0,40}(other|each|batch|neighbo)",
            r"(other|another) (samples?|examples?|rows?)",
            r"across (the )?(batch|samples?|examples?)",
            r"batch (axis|dimension)",
        ),
    ),
    (
        "lstm-target-broadcast",
        "lstm-forecast-adam",
        partial(lstm_forecast, bad="horizon"),
        "The targets have shape (N,), the outputs (N, 1): MSELoss broadcasts to N x N.",
        (
            r"broadcast",
            r"shapes?.{0,60}(targets?|outputs?|differ|match|fit|not the same|labels?)",
            r"(targets?|outputs?|labels?).{0,60}shapes?",
            r"squeeze|unsqueeze",
        ),
    ),
    (
        "lstm-adam-lr-huge",
        "lstm-forecast-adam",
        partial(lstm_forecast, bad="lr-large"),
        "Adam's learning rate of 1.0 is two hundred times too large.",
        LR_LARGE,
    ),
    (
        "lstm-forget-gate-closed",
        "lstm-recall-adam",
        partial(lstm_recall, bad="forget"),
        "The forget gate's bias starts at -4, so the cell forgets everything within a step.",
        (
            r"forget",
            r"\bgates?\b",
            r"vanish",
            r"(remember|memory|long[- ]term|earlier steps|early steps|first steps?|time steps?|over time|through time)",
            r"initiali[sz]",
            r"saturat",
            r"bias(es)?.{0,60}(negative|low|start|initial)",
        ),
    ),
    (
        "gru-state-detached",
        "gru-packed-rmsprop",
        partial(gru, bad="detach"),
        "The last state is detached before the classifier, so GRU and embedding never learn.",
        (
            r"detach",
            r"no gradients?",
            r"gradients?.{0,60}(none|not reach|never|missing|zero|stop|cut|blocked|does not|do not)",
            r"(not|never) (trained|updated|learn)",
            r"without (a )?gradient",
            r"no_?\s?grad\b",
            r"receives? no|gets? no",
        ),
    ),
    (
        "gru-rmsprop-lr-huge",
        "gru-packed-rmsprop",
        partial(gru, bad="lr-large"),
        "RMSprop's learning rate of 0.5 is hundreds of times too large.",
        LR_LARGE,
    ),
    (
        "autoencoder-sigmoid-output",
        "autoencoder-conv-adam",
        partial(autoencoder, bad="sigmoid"),
        "A sigmoid limits the output to 0..1, though the standardized images go from -1.5 to 3.",
        (
            r"sigmoid",
            r"(outputs?|model).{0,60}(range|limit|bounded|cannot|between|reach|interval)",
            r"targets?.{0,60}(range|outside|beyond|negative|reach|between|below|interval)",
            r"saturat",
        ),
    ),
    (
        "vae-kl-drowns-reconstruction",
        "vae-mnist-adam",
        partial(vae, bad="kl"),
        "The reconstruction is averaged over pixels but the KL term summed, so the latents collapse.",
        (
            r"\bkl\b|kullback",
            r"posterior|collapse",
            r"latent",
            r"(terms?|parts?) of the loss|loss (terms?|parts?)",
            r"reconstruct",
            r"reduction",
            r"(same|constant|identical).{0,40}(output|for every|for all)",
            r"outputs?.{0,60}(not depend|same|constant|ignore)",
            r"ignores? (its|the) input",
        ),
    ),
    (
        "regression-target-broadcast",
        "regression-friedman-momentum",
        partial(regression, bad="broadcast"),
        "The targets have shape (N,), the outputs (N, 1): MSELoss broadcasts to N x N and the mean is learned.",
        (
            r"broadcast",
            r"shapes?.{0,60}(targets?|outputs?|differ|match|fit|not the same|labels?)",
            r"(targets?|outputs?|labels?).{0,60}shapes?",
            r"squeeze|unsqueeze",
        ),
    ),
    (
        "regression-target-in-dollars",
        "regression-friedman-momentum",
        partial(regression, bad="dollars"),
        "The targets are prices of about 250000, not standardized.",
        (
            r"targets?.{0,60}(scale|standardi|normali[sz]|large|huge|magnitude|range|units?|size|offset|mean)",
            r"(standardi[sz]e|normali[sz]e|rescale|scale|divide).{0,40}(targets?|labels?|\by\b)",
            r"labels?.{0,40}(scale|large|huge|standardi)",
        ),
    ),
    (
        "regression-relu-output",
        "regression-friedman-momentum",
        partial(regression, bad="reluout"),
        "A ReLU ends the model, so the negative half of the standardized targets is out of reach.",
        (
            r"relu",
            r"(outputs?|model).{0,60}(range|limit|bounded|cannot|never negative|reach|non-?negative|positive|zero|dead)",
            r"targets?.{0,60}(range|outside|beyond|negative|reach|below)",
            r"negative (values?|targets?|numbers?|half|outputs?)",
        ),
    ),
    (
        "regression-no-activation",
        "regression-friedman-momentum",
        partial(regression, bad="linear"),
        "The activations between the linear layers were forgotten, so the model is linear.",
        (
            r"linear (model|map|function|in)|is linear|\bnon-?linear|collapse(s)? (in)?to (one|a single) linear",
            r"activation",
            r"(no|without|missing).{0,30}(relu|nonlinearity)",
            r"(in a row|consecutive|stacked).{0,30}linear",
        ),
    ),
    (
        "regression-loss-divided-again",
        "regression-friedman-momentum",
        partial(regression, bad="scaled"),
        "The mean loss is divided by the number of rows once more, so SGD hardly moves.",
        (
            r"loss.{0,60}(scale|small|tiny|divided|mean|averag)",
            r"gradients?.{0,50}(small|tiny)",
            *LR_SMALL,
        ),
    ),
    (
        "regression-momentum-lr-huge",
        "regression-friedman-momentum",
        partial(regression, bad="lr-large"),
        "SGD's learning rate of 3 is a hundred times too large.",
        LR_LARGE,
    ),
    (
        "regression-gaussian-adagrad-lr-tiny",
        "regression-gaussian-adagrad",
        partial(gaussian, bad="lr-small"),
        "Adagrad's learning rate of 1e-5 is thousands of times too small.",
        LR_SMALL,
    ),
    (
        "two-heads-ink-in-grey-values",
        "two-heads-adam",
        partial(two_heads, bad="units"),
        "The second target is in the thousands, so its loss drowns the first head's.",
        (
            r"targets?.{0,60}(scale|standardi|normali[sz]|large|huge|magnitude|range|units?|size)",
            r"\bheads?\b",
            r"drown|dominat|outweigh|swamp|conflict",
            r"(terms?|parts?) of the loss|loss (terms?|parts?)|one (loss|task)",
            r"(standardi[sz]e|normali[sz]e|rescale|scale|divide).{0,40}(targets?|labels?|ink)",
        ),
    ),
    (
        "two-heads-one-without-gradient",
        "two-heads-adam",
        partial(two_heads, bad="onehead"),
        "The class loss is computed under torch.no_grad, so that head never learns.",
        (
            r"\bheads?\b",
            r"no_?\s?grad\b",
            r"no gradients?",
            r"detach",
            r"gradients?.{0,60}(none|not reach|never|missing|zero|stop|cut|blocked|does not|do not)",
            r"(not|never) (trained|updated|learn)",
            r"without (a )?gradient",
            r"receives? no|gets? no",
            r"unused|not used",
        ),
    ),
    (
        "finetune-head-not-in-optimizer",
        "finetune-frozen-adam",
        partial(finetune_frozen, bad="oldhead"),
        "The head was replaced after the optimizer was made, so the optimizer holds the old one.",
        (
            r"optimi[sz]er.{0,80}(not|no|none|other|another|different|miss|foreign|stale|old|lacks?|without|unknown)",
            r"parameters?.{0,60}(not|missing|absent|none).{0,30}optimi[sz]er",
            r"(never|not) (trained|updated|in the optimi[sz]er)",
        ),
    ),
    (
        "lora-both-matrices-zero",
        "finetune-lora-adamw",
        partial(lora, bad="zeroboth"),
        "Both matrices of every adapter start at zero, so neither ever gets a gradient.",
        (
            r"zeros?.{0,40}(initiali[sz]|start|weights?|matri|param|gradient)",
            r"initiali[sz]",
            r"gradients?.{0,60}(zero|none|not reach|never|vanish|exactly)",
            r"(all|exactly|both|identically) zero",
            r"no gradients?",
            r"(not|never) (trained|updated|learn|move)",
            r"saddle|symmetr",
        ),
    ),
    (
        "unet-dice-of-logits",
        "unet-dice-adam",
        partial(unet, bad="dice"),
        "The Dice loss is computed from raw logits, the sigmoid is missing.",
        (
            r"sigmoid|softmax",
            r"dice",
            r"logits?|probabilit",
            r"loss.{0,60}(negative|below zero|unbounded|no lower bound|not bounded|outside|above 1)",
        ),
    ),
    (
        "unet-mask-not-flipped",
        "unet-dice-adam",
        partial(unet, bad="flip"),
        "Half of the images are mirrored without their masks.",
        (
            r"flip|mirror|augment",
            r"(labels?|masks?|targets?).{0,60}(shuffl|random|wrong|unrelated|not (match|fit|belong)|independent|nois|mismatch|misalign)",
            r"(wrong|noisy|misaligned|mismatched|unrelated).{0,30}(labels?|targets?|masks?)",
        ),
    ),
    (
        "monai-unet-background-ignored",
        "monai-unet-adamw",
        partial(monai_unet, bad="ignore"),
        "ignore_index=0 drops the background from the loss, so it is never predicted.",
        (
            r"ignore_?\s?index",
            r"ignor.{0,40}(class|label|target|background|pixel)",
            r"class(es)? 0\b.{0,60}(ignor|never|no gradient|not (learn|count|train))",
            r"(class|label|target|pixel)s?.{0,40}(ignored|left out|skipped|excluded|not counted)",
            r"background",
        ),
    ),
    (
        "contrastive-temperature-multiplied",
        "contrastive-infonce-adam",
        partial(contrastive, bad="tau"),
        "The similarities are multiplied by the temperature of 0.1 instead of divided.",
        (
            r"temperature|\btau\b",
            r"logits?.{0,60}(range|small|narrow|scale|bounded|limited|close)",
            r"loss.{0,60}(cannot|floor|lowest|bounded|chance|limited|reach)",
        ),
    ),
    (
        "contrastive-no-negatives",
        "contrastive-infonce-adam",
        partial(contrastive, bad="nonegatives"),
        "The loss only draws pairs together, so all embeddings may collapse to one point.",
        (
            r"collaps",
            r"negatives\b|negative (pairs?|examples?|samples?)",
            r"(same|identical|alike|constant).{0,60}(output|embedding|every|all|input|sample|point)",
            r"(outputs?|embeddings?).{0,60}(same|identical|alike|constant|not depend|ignore)",
            r"trivial|ignores? (its|the) input",
            r"stop[- ]gradient",
        ),
    ),
    (
        "distillation-kl-without-log",
        "distillation-momentum",
        partial(distill, bad="nolog"),
        "kl_div is given probabilities, though it expects log-probabilities.",
        (
            r"log[_ -]?softmax",
            r"log[- ]?prob",
            r"kl_?\s?div|\bkl\b|kullback",
            r"softmax",
            r"loss.{0,40}(negative|below zero|lower bound)",
        ),
    ),
]

_family = {name: family for name, family, _, _ in HEALTHY}
_updates = {name: n for name, _, _, n in HEALTHY}

SETUPS = [Setup(name, family, make, updates=n) for name, family, make, n in HEALTHY] + [
    Setup(name, _family[twin], make, defect, tuple(words), twin, _updates[twin])
    for name, twin, make, defect, words in BROKEN
]
