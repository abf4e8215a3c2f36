"""Models of plain torch: each shows one thing that a reader could get wrong."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.truth import Example, Maker, Truth

PLAIN: dict[str, Maker] = {}


def example(name):
    def keep(maker):
        PLAIN[name] = maker
        return maker

    return keep


class Calling(nn.Module):
    """Named layers and a function of them and the inputs."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def images(channels=3, size=16, samples=4):
    return torch.randn(samples, channels, size, size)


# ---- convolutions


class Gate(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, 2), nn.Linear(2, channels)

    def forward(self, x):
        gate = torch.sigmoid(self.fc2(functional.relu(self.fc1(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


class Block(nn.Module):
    def __init__(self, inputs, outputs, *, gated):
        super().__init__()
        stride = 1 + (inputs != outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.gate = Gate(outputs) if gated else nn.Identity()
        self.down = nn.Identity()
        if inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.gate(self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))))
        y += self.down(x)
        return self.relu(y)


def residual(*, gated):
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    model = nn.Sequential(
        stem,
        Block(8, 8, gated=gated),
        Block(8, 12, gated=gated),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )
    truth = Truth(
        head="5",
        depth=6,
        norms=6,
        named=r"^0\.1$|norm[12]$|^2\.down\.1$",
        norm_kinds={"batch"},
        layers=11 if gated else 7,
        depths={"0.0": 1, "1.conv1": 2, "1.conv2": 3, "2.conv1": 4, "2.down.0": 4, "2.conv2": 5},
        states={"0.0": "raw", "1.conv1": "act", "2.conv1": "sum", "5": "sum"},
        kinds={"0.0": "conv", "5": "linear"},
        side={f"{i}.gate.fc{j}" for i in (1, 2) for j in (1, 2)} if gated else set(),
        residuals=(1, 1),
    )
    return Example(model, (images(),), truth)


@example("residual")
def _():
    return residual(gated=False)


@example("squeeze and excite")
def _():
    return residual(gated=True)


@example("squeeze and excite as the source of the scale")
def _():
    """The gate is written first: its place among the factors must not matter."""
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.Sigmoid())
    model = Calling(
        lambda m, x: m.head((m.gate(y := m.norm(m.stem(x))) * y).flatten(1)),
        stem=nn.Conv2d(3, 6, 3),
        norm=nn.GroupNorm(2, 6),
        gate=gate,
        head=nn.Linear(6 * 36, 4),
    )
    truth = Truth("head", 2, "norm", norms=1, side={"gate.1"}, states={"head": "act"})
    return Example(model, (images(size=8),), truth)


@example("densely connected")
def _():
    def run(m, x):
        x = m.conv0(x)
        for norm, conv in zip(m.norms, m.convs, strict=True):
            x = torch.cat([x, conv(functional.relu(norm(x)))], 1)
        return m.head(functional.relu(m.last(x)).mean((2, 3)))

    model = Calling(
        run,
        conv0=nn.Conv2d(3, 4, 3, 1, 1),
        norms=nn.ModuleList(nn.BatchNorm2d(4 + 3 * i) for i in range(3)),
        convs=nn.ModuleList(nn.Conv2d(4 + 3 * i, 3, 3, 1, 1) for i in range(3)),
        last=nn.BatchNorm2d(13),
        head=nn.Linear(13, 4),
    )
    depths = {"conv0": 1, "convs.0": 2, "convs.1": 3, "convs.2": 4}
    states = {"convs.2": "act", "head": "act"}
    truth = Truth("head", 5, "last", norms=4, layers=5, depths=depths, states=states)
    return Example(model, (images(size=8),), truth)


@example("u-net")
def _():
    def unit(inputs, outputs):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(conv, nn.GroupNorm(2, outputs), nn.SiLU())

    def run(m, x):
        fine = m.down1(x)
        coarse = m.down2(functional.max_pool2d(fine, 2))
        return m.out(m.join(torch.cat([m.up(coarse), fine], 1)))

    model = Calling(
        run,
        down1=unit(3, 4),
        down2=unit(4, 8),
        up=nn.ConvTranspose2d(8, 4, 2, 2),
        join=unit(8, 4),
        out=nn.Conv2d(4, 2, 1),
    )
    depths = {"down1.0": 1, "down2.0": 2, "up": 3, "join.0": 4}
    states = {"down2.0": "act", "up": "act", "join.0": "raw", "out": "act"}
    truth = Truth("out", 5, "join.1", norms=3, norm_kinds={"group"}, depths=depths, states=states)
    return Example(model, (images(size=8),), truth)


@example("two heads")
def _():
    model = Calling(
        lambda m, x: {"label": m.label(y := m.body(x)), "box": m.box(y)},
        body=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
        label=nn.Linear(8, 5),
        box=nn.Linear(8, 4),
    )
    truth = Truth(
        ("label", "box"), 2, "body.1", norms=1, heads={"label", "box"}, states={"box": "act"}
    )
    return Example(model, (torch.randn(7, 6),), truth)


@example("heads of different depth")
def _():
    model = Calling(
        lambda m, x: (m.near(y := m.body(x)), m.far(torch.tanh(m.middle(y)))),
        body=nn.Linear(6, 8),
        near=nn.Linear(8, 5),
        middle=nn.Linear(8, 8),
        far=nn.Linear(8, 5),
    )
    truth = Truth("far", 3, heads={"near", "far"}, depths={"near": 2, "middle": 2})
    return Example(model, (torch.randn(7, 6),), truth)


# ---- attention


def encoder(*, pre):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=pre)
    norm = nn.LayerNorm(8) if pre else None
    stack = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(4, 8), stack, nn.Linear(8, 3))
    first, second = (f"1.layers.{i}.self_attn.in_proj_weight" for i in range(2))
    direct = "in_proj_weight$|linear1$|^2$" if pre else rf"{second}$|linear1$|^2$"
    truth = Truth(
        "2",
        10,
        "1.norm" if pre else "1.layers.1.norm2",
        norms=5 if pre else 4,
        norm_kinds={"layer"},
        direct=direct,
        layers=10,
        depths={first: 2, "1.layers.0.self_attn.out_proj": 3, "1.layers.0.linear1": 4, second: 6},
        attention=2,
        residuals=(4, 0),
    )
    return Example(model, (torch.randn(3, 5, 4),), truth)


@example("pre-norm encoder")
def _():
    return encoder(pre=True)


@example("post-norm encoder")
def _():
    return encoder(pre=False)


@example("post-norm encoder in evaluation mode")
def _():
    """Torch fuses a whole layer of it when no gradients are asked for."""
    found = encoder(pre=False)
    found.model.eval()
    return found


@example("learned query")
def _():
    def run(m, x):
        found, _ = m.attend(m.query.expand(len(x), -1, -1), x, x)
        return m.head(m.norm(found).mean(1))

    model = Calling(
        run,
        query=nn.Parameter(torch.randn(1, 3, 8)),
        attend=nn.MultiheadAttention(8, 2, batch_first=True),
        norm=nn.LayerNorm(8),
        head=nn.Linear(8, 2),
    )
    truth = Truth(
        "head",
        3,
        "norm",
        norms=1,
        layers=3,
        depths={"attend.in_proj_weight": 1, "attend.out_proj": 2},
        attention=1,
        other="^query$",
    )
    return Example(model, (torch.randn(2, 5, 8),), truth)


class Attention(nn.Module):
    def __init__(self, width, *, fused):
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            heads = [part.transpose(1, 2) for part in (q, k, v)]
            y = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
        else:
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            y = torch.einsum("bhqk,bkhd->bqhd", shares, v)
        return self.out(y.flatten(2))


class Language(nn.Module):
    """A language model with positions, a tied head, and weights that are plain parameters."""

    def __init__(self, *, fused=False, written_out=False, width=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, width), nn.Parameter(torch.randn(6, width))
        self.attend = nn.ModuleList(Attention(width, fused=fused) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 16) for _ in range(2))
        self.down = nn.ParameterList(torch.randn(16, width) for _ in range(2))
        self.written_out = written_out
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(0 if written_out else 5))
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.tokens.weight

    def norm(self, x, i):
        if not self.written_out:
            return self.norms[i](x)
        match i % 5:
            case 0:
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            case 1:
                centred = x - x.mean(-1, keepdim=True)
                return centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            case 2:
                return functional.normalize(x, dim=-1) * 3
            case 3:
                return functional.layer_norm(x, x.shape[-1:])
            case _:
                centred = x - x.mean(-1, keepdim=True)
                return centred / (centred.square().mean(-1, keepdim=True) + 1e-6) ** 0.5

    def forward(self, ids):
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        for i in range(2):
            x = x + self.attend[i](self.norm(x, 2 * i))
            inner = functional.gelu(self.up[i](self.norm(x, 2 * i + 1)))
            x = x + torch.einsum("btf,fd->btd", inner, self.down[i])
        return self.head(self.norm(x, 4))


def language(**options):
    truth = Truth(
        "head",
        10,
        "*" if options.get("written_out") else "norms.4",
        norms=5,
        direct=r"qkv$|^up\.\d$|^head$",
        layers=10,
        depths={"tokens": 1, "attend.0.qkv": 2, "attend.0.out": 3, "up.0": 4, "down.0": 5},
        kinds={"tokens": "embedding", "head": "linear", "down.1": "linear"},
        attention=2,
        residuals=(4, 0),
        other="^places$",
    )
    return Example(Language(**options), (torch.randint(20, (2, 6)),), truth)


@example("language model with einsum")
def _():
    found = language()
    found.truth.norm_kinds = {"layer"}
    return found


@example("language model with fused attention")
def _():
    return language(fused=True)


@example("norms written out")
def _():
    return language(written_out=True)


@example("autocast inside")
def _():
    def run(m, ids):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.net(ids)

    found = language(fused=True)
    truth = found.truth
    truth.head, truth.norm, truth.direct = "net.head", "net.norms.4", r"qkv$|up\.\d$|head$"
    truth.depths, truth.kinds = {"net.attend.0.qkv": 2, "net.up.0": 4}, {}
    truth.other = r"^net\.places$"
    return Example(Calling(run, net=found.model.float()), found.inputs, truth)


# ---- weights made from other parameters


@example("weights made from parameters")
def _():
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    weight_normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old ways, which models still have
        old = nn.utils.weight_norm(nn.Linear(8, 8))
        older = nn.utils.spectral_norm(nn.Conv1d(8, 8, 1))
    layers = [weight_normed, nn.ReLU(), spectral, nn.ReLU(), old, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Unflatten(1, (8, 1)), older, nn.Flatten(), nn.Linear(8, 3))
    depths = {"0": 1, "2": 2, "4": 3, "7": 4}
    truth = Truth("9", 5, layers=5, depths=depths, kinds={"7": "conv"})
    return Example(model, (torch.randn(5, 6),), truth)


@example("low-rank update, merged")
def _():
    def run(m, x):
        weight = m.base.weight + m.right @ m.left
        return m.head(torch.relu(functional.linear(x, weight, m.base.bias)))

    model = Calling(
        run,
        base=nn.Linear(8, 8),
        left=nn.Parameter(torch.randn(2, 8)),
        right=nn.Parameter(torch.randn(8, 2)),
        head=nn.Linear(8, 3),
    )
    return Example(model, (torch.randn(5, 8),), Truth("head", 2, layers=2, depths={"base": 1}))


@example("standardized weights")
def _():
    """What is normalized is the weight, so that no norm stands in the signal."""

    def run(m, x):
        w = m.conv.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return m.head(torch.relu(functional.conv2d(x, w, m.conv.bias)).mean((2, 3)))

    model = Calling(run, conv=nn.Conv2d(3, 6, 3), head=nn.Linear(6, 4))
    return Example(model, (images(size=8),), Truth("head", 2, layers=2))


@example("tied autoencoder")
def _():
    model = Calling(
        lambda m, x: torch.relu(m.code(x)) @ m.code.weight, code=nn.Linear(8, 4, bias=False)
    )
    truth = Truth("code", None, layers=1, uses={"code": 2}, depths={"code": 1})
    return Example(model, (torch.randn(5, 8),), truth)


@example("weights stored the other way round")
def _():
    class Product(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(inputs, outputs))
            self.bias = nn.Parameter(torch.zeros(outputs))

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(
                *x.shape[:-1], -1
            )

    model = nn.Sequential(Product(6, 8), nn.LayerNorm(8), Product(8, 3))
    truth = Truth("2", 2, "1", norms=1, layers=2, direct="^2$", kinds={"0": "linear"})
    return Example(model, (torch.randn(2, 4, 6),), truth)


@example("bias added apart")
def _():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix, self.offset = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

        def forward(self, x):
            return x @ self.matrix + self.offset

    model = nn.Sequential(Affine(), nn.Tanh(), Affine())
    depths = {"0.matrix": 1, "2.matrix": 2}
    truth = Truth(("2", "2.matrix"), 2, layers=2, depths=depths)
    return Example(model, (torch.randn(5, 6),), truth)


# ---- how often and when


@example("called twice, and never")
def _():
    model = Calling(
        lambda m, x: m.head(m.twice(torch.tanh(m.twice(torch.relu(m.first(x)))))),
        first=nn.Linear(6, 8),
        twice=nn.Linear(8, 8),
        never=nn.Linear(5, 5),
        head=nn.Linear(8, 3),
    )
    truth = Truth(
        "head",
        4,
        layers=3,
        depths={"twice": 2},
        uses={"first": 1, "twice": 2},
        unused={"never.weight", "never.bias"},
    )
    return Example(model, (torch.randn(5, 6),), truth)


@example("norm called twice")
def _():
    model = Calling(
        lambda m, x: m.head(m.norm(m.middle(m.norm(m.first(x))))),
        first=nn.Linear(6, 8),
        norm=nn.LayerNorm(8),
        middle=nn.Linear(8, 8),
        head=nn.Linear(8, 3),
    )
    truth = Truth("head", 3, "norm", norms=1, named="^norm$", direct="middle|head", layers=3)
    return Example(model, (torch.randn(5, 6),), truth)


class Dropped(nn.Module):
    """Layer drop: each block is left out at random in training."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) for _ in range(5)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.3:
                x = x + block(x)
        return self.head(x)


@example("layer drop")
def _():
    direct = r"blocks\.\d\.1"
    truth = Truth("head", 6, norms=5, direct=direct, layers=6, residuals=(5, 0))
    return Example(Dropped(), (torch.randn(5, 6),), truth)


@example("a head in training only")
def _():
    def run(m, x):
        x = torch.relu(m.norm(m.body(x)))
        return (m.head(x), m.aside(x)) if m.training else m.head(x)

    model = Calling(
        run,
        body=nn.Linear(6, 8),
        norm=nn.BatchNorm1d(8),
        head=nn.Linear(8, 3),
        aside=nn.Linear(8, 3),
    )
    truth = Truth("head", 2, "norm", norms=1, layers=3, depths={"aside": 2})
    return Example(model, (torch.randn(5, 6),), truth)


@example("path chosen by the data")
def _():
    def run(m, x):
        branch = m.above if float(x.mean()) > 0 else m.below
        for _ in range(int(x.shape[0]) // 2):
            x = torch.tanh(m.step(x))
        return branch(x)

    model = Calling(run, step=nn.Linear(6, 6), above=nn.Linear(6, 3), below=nn.Linear(6, 3))
    truth = Truth("above", 3, uses={"step": 2}, unused={"below.weight", "below.bias"}, layers=2)
    return Example(model, (torch.rand(4, 6),), truth)


# ---- memory


@example("written in place")
def _():
    def run(m, x):
        y = functional.relu_(m.first(x))
        left, right = y.split(4, -1)
        right = right.clone()
        right[:, :2] = left[:, :2]
        right.mul_(2.0).add_(1.0)
        return m.head(torch.cat([left, m.second(right)], -1))

    model = Calling(run, first=nn.Linear(6, 8), second=nn.Linear(4, 4), head=nn.Linear(8, 3))
    return Example(model, (torch.randn(5, 6),), Truth("head", 3, depths={"second": 2}))


@example("half of a tensor changed")
def _():
    """What is added to one half is no ancestor of the other half."""

    def run(m, x):
        y = m.first(x)
        kept = y[:, 4:]
        y[:, :4].add_(m.second(kept))
        return m.whole(y), m.rest(kept)

    model = Calling(
        run,
        first=nn.Linear(6, 8),
        second=nn.Linear(4, 4),
        whole=nn.Linear(8, 3),
        rest=nn.Linear(4, 3),
    )
    truth = Truth("whole", 3, depths={"second": 2, "rest": 2}, residuals=None)
    return Example(model, (torch.randn(5, 6),), truth)


@example("slots filled one by one")
def _():
    def run(m, x):
        y = torch.empty(len(x), 12)
        for i, layer in enumerate(m.parts):
            y[:, 4 * i : 4 * i + 4] = layer(x)
        return m.head(y)

    model = Calling(
        run, parts=nn.ModuleList(nn.Linear(6, 4) for _ in range(3)), head=nn.Linear(12, 3)
    )
    depths = {"parts.0": 1, "parts.1": 1, "parts.2": 1}
    return Example(model, (torch.randn(5, 6),), Truth("head", 2, depths=depths, heads={"head"}))


@example("input changed in place")
def _():
    model = Calling(lambda m, x: m.head(m.body(x.relu_()).tanh_()), body=nn.Linear(6, 8),
                    head=nn.Linear(8, 3))  # fmt: skip
    return Example(model, (torch.randn(5, 6),), Truth("head", 2))


@example("buffer updated in evaluation mode")
def _():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x):
            self.calls += 1
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
            return x - self.seen

    model = nn.Sequential(Counting(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return Example(model, (torch.randn(5, 6),), Truth("3", 2))


# ---- parts that are not ordinary modules


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


@example("function with a gradient of its own")
def _():
    model = Calling(
        lambda m, x: m.head(m.norm(Rectified.apply(x, m.matrix))),
        matrix=nn.Parameter(torch.randn(6, 8)),
        norm=nn.LayerNorm(8),
        head=nn.Linear(8, 3),
    )
    truth = Truth("head", 2, "norm", norms=1, direct="^head$", depths={"matrix": 1})
    return Example(model, (torch.randn(5, 6),), truth)


@example("checkpointed")
def _():
    def run(m, x):
        x = m.first(x)
        x = x + checkpoint(lambda z: m.second(m.norm(z)), x, use_reentrant=False)
        x = x + checkpoint(m.third, x, use_reentrant=True)
        return m.head(x)

    model = Calling(
        run,
        first=nn.Linear(6, 8),
        norm=nn.LayerNorm(8),
        second=nn.Linear(8, 8),
        third=nn.Linear(8, 8),
        head=nn.Linear(8, 3),
    )
    truth = Truth(
        "head",
        4,
        norms=1,
        direct="^second$",
        depths={"second": 2, "third": 3},
        residuals=(2, 0),
    )
    return Example(model, (torch.randn(5, 6),), truth)


def wrapped(change):
    parts = nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6)
    return nn.Sequential(nn.Linear(6, 6), change(nn.Sequential(*parts)), nn.Linear(6, 3))


@example("scripted part")
def _():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = wrapped(torch.jit.script)
    depths = {"0": 1, "1.0": 2, "1.3": 3}
    truth = Truth("2", 4, norms=1, layers=4, depths=depths, states={"1.3": "act"})
    return Example(model, (torch.randn(5, 6),), truth)


@example("compiled part")
def _():
    model = wrapped(lambda part: torch.compile(part, backend="eager"))
    return Example(model, (torch.randn(5, 6),), Truth("2", 4, norms=1, layers=4))


@example("compiled model")
def _():
    model = torch.compile(
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), backend="eager"
    )
    head, norm = ("2", "_orig_mod.2"), "*"
    return Example(model, (torch.randn(5, 6),), Truth(head, 2, norm, norms=1, direct="2$"))


@example("data parallel")
def _():
    inner = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    truth = Truth("module.2", 2, "module.1", norms=1, direct="2$")
    return Example(nn.DataParallel(inner), (torch.randn(5, 6),), truth)


@example("mapped over weights")
def _():
    model = Calling(
        lambda m, x: m.head(torch.vmap(lambda w: torch.tanh(x @ w))(m.stack).mean(0)),
        stack=nn.Parameter(torch.randn(3, 6, 8)),
        head=nn.Linear(8, 3),
    )
    return Example(model, (torch.randn(5, 6),), Truth("head", 2, layers=2, depths={"stack": 1}))


@example("part without gradients")
def _():
    def run(m, x):
        with torch.no_grad():
            x = m.frozen(x)
        return m.head(torch.relu(m.body(x.detach())))

    model = Calling(run, frozen=nn.Linear(6, 6), body=nn.Linear(6, 8), head=nn.Linear(8, 3))
    model.frozen.requires_grad_(False)
    return Example(model, (torch.randn(5, 6),), Truth("head", 3, depths={"frozen": 1, "body": 2}))


# ---- the user's own things


@example("hooks of the user's own")
def _():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    model[2].register_forward_pre_hook(lambda module, args: (functional.layer_norm(args[0], (8,)),))
    model[2].register_full_backward_hook(lambda *_: None)
    return Example(model, (torch.randn(5, 6),), Truth("2", 2, "*", norms=1, direct="^2$"))


@example("keyword and nested inputs")
def _():
    model = Calling(
        lambda m, x, *, extra: {"pair": [m.head(torch.relu(m.left(x["a"]) + m.right(extra[0])))]},
        left=nn.Linear(6, 8),
        right=nn.Linear(4, 8),
        head=nn.Linear(8, 3),
    )
    inputs, keywords = ({"a": torch.randn(5, 6)},), {"extra": (torch.randn(5, 4), "word")}
    truth = Truth("head", 2, depths={"left": 1, "right": 1})
    return Example(model, inputs, truth, keywords)


# ---- norms and what looks like them


class Scale(nn.Module):
    """Root mean square over channels that come first, by hand."""

    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        return x / x.norm(dim=1, keepdim=True).clamp_min(1e-6) * self.gamma[:, None, None]


class ZeroNorm(nn.Module):
    """Layer norm by hand; its scale starts at zero."""

    def __init__(self, width):
        super().__init__()
        self.g = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.g * (x - mean) / torch.sqrt(variance + 1e-5)


@example("norms of many kinds")
def _():
    convs = [nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1) for i in range(6)]
    norms = [Scale(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.BatchNorm2d(4),
             nn.LayerNorm([4, 6, 6]), nn.GroupNorm(1, 4)]  # fmt: skip
    layers = [part for pair in zip(convs, norms, strict=True) for part in pair]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 3))
    truth = Truth("13", 7, "11", norms=6, direct="^(2|4|6|8|10|13)$", layers=7)
    return Example(model, (images(size=6),), truth)


@example("scales of zero")
def _():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), ZeroNorm(8), nn.Linear(8, 3)
    )
    nn.init.zeros_(model[1].weight)
    truth = Truth("4", 3, "3", norms=2, direct="^[24]$", norm_kinds={"batch", "layer"})
    return Example(model, (torch.randn(5, 6),), truth)


class FrozenBatchNorm(nn.Module):
    """An affine map whose numbers come from a norm."""

    def __init__(self, channels):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


class Bounded(nn.Module):
    """Dynamic tanh, which stands where norms do."""

    def __init__(self, width):
        super().__init__()
        self.alpha, self.gamma = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.tanh(self.alpha * x) * self.gamma


class Response(nn.Module):
    """Global response norm: it scales channels against each other, and keeps the size."""

    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x):
        size = x.norm(dim=1, keepdim=True)
        return x + self.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6)))


class Sign(nn.Module):
    def forward(self, x):
        return torch.sign(x)


class NormalizedLinear(nn.Linear):
    """Rows of length 1: a layer with "norm" in its name."""

    def forward(self, x):
        return functional.linear(x, functional.normalize(self.weight), self.bias)


@example("not norms")
def _():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), FrozenBatchNorm(8), nn.Flatten(2), nn.Linear(36, 6), Bounded(6),
        nn.Linear(6, 6), Response(6), nn.Linear(6, 6), nn.Softmax(-1), nn.Linear(6, 6), Sign(),
        NormalizedLinear(6, 6), nn.PReLU(8), nn.Flatten(), nn.Linear(48, 3),
    )  # fmt: skip
    other = r"^4\.|^6\.gamma$|^12\.weight$"
    truth = Truth("14", 7, norms=0, layers=7, other=other)
    return Example(model, (images(size=8),), truth)


@example("cosine classifier")
def _():
    def run(m, x):
        x = functional.normalize(torch.relu(m.body(x)))
        return 10 * functional.linear(x, functional.normalize(m.head.weight))

    model = Calling(run, body=nn.Linear(6, 8), head=nn.Linear(8, 3, bias=False))
    truth = Truth("head", 2, "*", norms=1, direct="^head$")
    return Example(model, (torch.randn(5, 6),), truth)


@example("norm and activation in one module")
def _():
    part = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU())
    model = nn.Sequential(nn.Linear(6, 8), part, nn.Linear(8, 3))
    truth = Truth("2", 2, "1.0", norms=1, states={"2": "act"})
    return Example(model, (torch.randn(5, 6),), truth)


# ---- gates, experts, recurrence


@example("gated units")
def _():
    """Two halves that are multiplied are brothers, none is the gate of the other."""

    def run(m, x):
        x = m.norm(x)
        return m.head(torch.tanh(m.down(functional.silu(m.gate(x)) * m.up(x))))

    model = Calling(
        run,
        norm=nn.RMSNorm(6),
        gate=nn.Linear(6, 8),
        up=nn.Linear(6, 8),
        down=nn.Linear(8, 6),
        head=nn.Linear(6, 3),
    )
    depths = {"gate": 1, "up": 1, "down": 2}
    truth = Truth("head", 3, norms=1, direct="gate|up", depths=depths, norm_kinds={"rms"})
    return Example(model, (torch.randn(5, 6),), truth)


@example("mixture of experts")
def _():
    def run(m, x):
        x = m.norm(m.stem(x))
        shares, chosen = m.router(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for i, expert in enumerate(m.experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            y.index_add_(0, row, shares[row, place, None] * expert(x[row]))
        return m.head(y)

    model = Calling(
        run,
        stem=nn.Linear(6, 8),
        norm=nn.LayerNorm(8),
        router=nn.Linear(8, 3),
        experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(3)),
        head=nn.Linear(8, 3),
    )
    truth = Truth(
        "head",
        3,
        norms=1,
        direct="router|experts",
        depths={"stem": 1, "experts.0": 2, "experts.2": 2},
        side={"router"},
    )
    return Example(model, (torch.randn(16, 6),), truth)


@example("a cell in a loop")
def _():
    def run(m, x):
        state = None
        for t in range(x.shape[1]):
            state = m.cell(x[:, t], state)
        return m.head(state[0])

    model = Calling(run, cell=nn.LSTMCell(4, 6), head=nn.Linear(6, 3))
    return Example(model, (torch.randn(3, 5, 4),), Truth("head", 6, residuals=None))


@example("bag of embeddings")
def _():
    model = Calling(
        lambda m, ids: m.head(m.norm(m.bag(ids))),
        bag=nn.EmbeddingBag(11, 6, mode="mean"),
        norm=nn.LayerNorm(6),
        head=nn.Linear(6, 3),
    )
    truth = Truth("head", 2, "norm", norms=1, direct="^head$", kinds={"bag": "embedding"})
    return Example(model, (torch.randint(11, (4, 5)),), truth)


@example("packed sequences")
def _():
    def run(m, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return m.head(m.rnn(packed)[1][-1])

    model = Calling(run, rnn=nn.GRU(4, 6, 2, batch_first=True), head=nn.Linear(6, 3))
    truth = Truth("head", 3, layers=2, kinds={"rnn": "recurrent"})
    return Example(model, (torch.randn(3, 5, 4), torch.tensor([5, 4, 2])), truth)


# ---- products of other forms


@example("encoder and decoder")
def _():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    deep = "decoder.layers.0"
    truth = Truth(
        f"{deep}.linear2",
        8,
        norms=7,
        direct=r"linear1$|multihead_attn\.in_proj_weight$",
        depths={"encoder.layers.0.linear2": 4, f"{deep}.multihead_attn.out_proj": 6},
        uses={f"{deep}.multihead_attn.in_proj_weight": 2},
        attention=3,
        residuals=(5, 0),
    )
    return Example(model, (torch.randn(2, 4, 8), torch.randn(2, 3, 8)), truth)


@example("products written in other ways")
def _():
    def run(m, x):
        x = torch.tanh(m.pairs(x, x))
        x = torch.tanh((x[:, None, :] * m.rows).sum(-1))
        x = torch.tanh(torch.einsum("bi,bj,ijk->bk", x, x, m.cube))
        x = torch.tanh(torch.tensordot(x, m.plane, 1))
        return m.head(x)

    model = Calling(
        run,
        pairs=nn.Bilinear(6, 6, 5),
        rows=nn.Parameter(torch.randn(4, 5)),
        cube=nn.Parameter(torch.randn(4, 4, 5)),
        plane=nn.Parameter(torch.randn(5, 6)),
        head=nn.Linear(6, 3),
    )
    depths = {"pairs": 1, "rows": 2, "cube": 3, "plane": 4}
    return Example(model, (torch.randn(5, 6),), Truth("head", 5, layers=5, depths=depths))
