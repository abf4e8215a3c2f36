"""Fresh set-ups on sequences: words, signals, sound."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from benchmarks.findings.fresh.common import Catalog, accuracy, batches, digits, explained, rng
from benchmarks.findings.setup import Parts, plain_updates

CATALOG = Catalog()
healthy, broken = CATALOG.healthy, CATALOG.broken

MIXED = (
    r"(sample|batch|sequence|row)s?.{0,60}(mix|depend|leak)",
    r"(mix|depend|leak)\w*.{0,60}(other|sample|batch|sequence|row)s?", r"batch_first",
    r"(wrong|batch) (dim|axis|dimension)",
)  # fmt: skip
FUTURE = (
    r"causal", r"\bfuture\b", r"\bleak", r"\bmask", r"(sees|see|looks?) (ahead|at what)",
    r"(later|following|next) (token|position|step|value)s?", r"look-?ahead",
)  # fmt: skip


# ---------------------------------------------------------------- tags for words


@lru_cache
def tagged(n=900, m=300, longest=40):
    """Words 1 to 29; the tag says which third of the words this and the next belong to."""
    g = rng(41)
    k = n + m
    length = torch.randint(4, 9, (k,), generator=g)
    length[::20] = longest  # a few long sentences: the others are mostly padding
    words = torch.randint(1, 30, (k, longest), generator=g)
    inside = torch.arange(longest) < length[:, None]
    third = words % 3
    tags = (third + third.roll(-1, 1) * inside.roll(-1, 1)) % 3
    words = words * inside
    return words, tags.masked_fill(~inside, -100)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(self.lstm(self.words(x))[0]).transpose(1, 2)


@healthy("tagger-bilstm-nesterov", "lstm", 200)
def tagger(seed, padding=-100):
    torch.manual_seed(seed)
    words, tags = tagged()
    train = tags[:900].masked_fill(tags[:900] == -100, padding)
    model = Tagger()

    def score(model):
        model.eval()
        with torch.no_grad():
            found = model(words[900:]).argmax(1)
        inside = tags[900:] != -100
        return float((found == tags[900:])[inside].float().mean())

    return Parts(
        model, batches(words[:900], train, size=30, seed=seed),
        torch.optim.SGD(model.parameters(), 0.3, momentum=0.9, nesterov=True),
        nn.CrossEntropyLoss(ignore_index=-100),
        eval_data=batches(words[900:], tags[900:].masked_fill(tags[900:] == -100, padding),
                          size=60, shuffle=False),
        score=score,
    )  # fmt: skip


broken(
    "tagger-padding-counts-as-a-tag", "tagger-bilstm-nesterov",
    "The padding (most of every batch) has the tag 0 and counts in the loss.",
    (r"\bpad", r"ignore_index", r"(class|label|tag)\w*.{0,60}(imbalance|unbalanced|dominat|most)",
     r"imbalanc|unbalanc", r"\b(most|majority|\d+ ?%) .{0,40}(class|label|target|token|tag)s?"),
    padding=0,
)  # fmt: skip


# ---------------------------------------------------------------- how long: the last step


@lru_cache
def walks(n=1200, m=400, longest=36):
    """Steps of a walk with padding behind; the answer is the sign of where it ends."""
    g = rng(43)
    k = n + m
    length = torch.randint(5, 15, (k,), generator=g)
    length[::30] = longest
    steps = torch.randn(k, longest, 2, generator=g)
    steps = steps * (torch.arange(longest) < length[:, None])[..., None]
    end = steps.sum(1)
    y = (end[:, 0] > 0).long() + 2 * (end[:, 1] > 0).long()
    return steps, length, y


class Walker(nn.Module):
    def __init__(self, last="valid", shape="right"):
        super().__init__()
        self.last, self.shape = last, shape
        self.gru = nn.GRU(2, 32, batch_first=shape == "right")
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, steps, length):
        n, t, _ = steps.shape
        if self.shape == "right":
            h, _ = self.gru(steps)
        else:  # time first, as the GRU wants it, and viewed back instead of transposed
            h, _ = self.gru(steps.transpose(0, 1))
            h = h.reshape(n, t, -1)
        if self.last == "valid":
            h = h[torch.arange(n), length - 1]
        elif self.last == "last":
            h = h[:, -1]
        return self.out(self.norm(h))


@healthy("walks-gru-layernorm-adamw", "lstm", 300)
def walk_ends(seed, **options):
    torch.manual_seed(seed)
    steps, length, y = walks()
    model = Walker(**options)
    loader = batches(steps[1200:], length[1200:], y[1200:], size=40, shuffle=False)

    def score(model):
        model.eval()
        with torch.no_grad():
            right = [(model(x, n).argmax(1) == y).float().mean() for x, n, y in loader]
        return float(torch.stack(right).mean())

    return Parts(
        model, batches(steps[:1200], length[:1200], y[:1200], size=40, seed=seed),
        torch.optim.AdamW(model.parameters(), 2e-3), eval_data=loader, score=score,
        loss_fn=lambda model, batch: functional.cross_entropy(model(*batch[:2]), batch[2]),
    )  # fmt: skip


broken(
    "walks-read-at-the-padding", "walks-gru-layernorm-adamw",
    "The output is read at the last step, which is padding for almost all sequences.",
    (r"\bpad", r"last (time )?step", r"\blength", r"vanish", r"forget",
     r"gradient.{0,60}(small|fade|shrink)"),
    last="last",
)  # fmt: skip
broken(
    "walks-viewed-instead-of-transposed", "walks-gru-layernorm-adamw",
    "The GRU's output (time, batch, features) is reshaped to (batch, time, features), not "
    "transposed.",
    (*MIXED, r"transpos", r"permut", r"reshape|\bview"),
    shape="viewed",
)  # fmt: skip


# ---------------------------------------------------------------- phrases: encoder with padding


@lru_cache
def phrases(n=1400, m=400, longest=24):
    """Word 1 to 31, padding 0; the class says which of two marked words comes first."""
    g = rng(45)
    k = n + m
    length = torch.randint(6, 13, (k,), generator=g)
    length[::12] = longest
    words = torch.randint(4, 32, (k, longest), generator=g)
    inside = torch.arange(longest) < length[:, None]
    words = words * inside
    first = (torch.rand(k, generator=g) * (length - 2)).long()
    second = first + 1 + (torch.rand(k, generator=g) * (length - first - 1)).long()
    y = torch.randint(2, (k,), generator=g)
    words[torch.arange(k), first] = 2 + y
    words[torch.arange(k), second] = 3 - y
    return words, y


class PhraseNet(nn.Module):
    def __init__(self, inverted=False, bare=False, width=32):
        super().__init__()
        self.inverted = inverted
        self.words = nn.Embedding(32, width)
        t = torch.arange(24)[:, None] * torch.exp(torch.linspace(0, -5, width // 2))
        places = torch.cat([t.sin(), t.cos()], 1)
        if bare:
            places = torch.arange(24.0)[:, None].expand(24, width)
        self.register_buffer("places", places)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, ids):
        padding = ids == 0
        x = self.words(ids) + self.places
        x = self.encoder(x, src_key_padding_mask=~padding if self.inverted else padding)
        keep = (~padding)[..., None].float()
        return self.head(self.norm((x * keep).sum(1) / keep.sum(1)))


@healthy("phrases-encoder-padded-nadam", "transformer", 400)
def phrase_order(seed, **options):
    torch.manual_seed(seed)
    words, y = phrases()
    model = PhraseNet(**options)
    return Parts(
        model, batches(words[:1400], y[:1400], size=40, seed=seed),
        torch.optim.NAdam(model.parameters(), 2e-3), "cross_entropy",
        eval_data=batches(words[1400:], y[1400:], size=80, shuffle=False),
        score=accuracy(words[1400:], y[1400:]),
    )  # fmt: skip


broken(
    "phrases-padding-mask-inverted", "phrases-encoder-padded-nadam",
    "The padding mask is inverted: attention looks at the padding only (not finite where there is "
    "none).",
    (r"\bmask", r"\bpad", r"\bnan\b", r"not finite", r"non-?finite", r"infinite"),
    inverted=True,
)  # fmt: skip
broken(
    "phrases-positions-as-bare-numbers", "phrases-encoder-padded-nadam",
    "The position (0 to 23) is added to all features alike instead of an embedding of it: it "
    "drowns the words, and layer norm removes it.",
    (r"\bpositions?\b.{0,80}(scale|large|embed|eras|remov|dominat|lost|not|invarian)",
     r"\border of the (token|word)", r"(drown|swamp|dominat)\w*",
     r"(embedding|activation|signal|input)s?\b.{0,80}(large|scale|mean|offset|dominat)"),
    bare=True,
)  # fmt: skip


# ---------------------------------------------------------------- reverse it: encoder-decoder


@lru_cache
def reversals(n=2000, m=300, length=7):
    g = rng(47)
    x = torch.randint(2, 12, (n + m, length), generator=g)
    return x, x.flip(1)


class Reverser(nn.Module):
    def __init__(self, over=2, width=48):
        super().__init__()
        self.over = over
        self.words = nn.Embedding(12, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.place = nn.Embedding(8, width)
        self.out = nn.Linear(2 * width, 12)

    def forward(self, x, seen):
        t = x.shape[1]
        memory, state = self.encoder(self.words(x) + self.place.weight[:t])
        h, _ = self.decoder(self.words(seen) + self.place.weight[: seen.shape[1]], state)
        weights = (h @ memory.transpose(1, 2) / h.shape[2] ** 0.5).softmax(self.over)
        return self.out(torch.cat([h, weights @ memory], 2))


@healthy("reverse-seq2seq-attention-adam", "lstm", 500)
def reverse(seed, shifted=True, **options):
    torch.manual_seed(seed)
    x, y = reversals()
    model = Reverser(**options)

    def seen_by_decoder(y):
        return torch.cat([torch.ones_like(y[:, :1]), y[:, :-1]], 1) if shifted else y

    def loss(model, batch):
        x, y = batch
        return functional.cross_entropy(model(x, seen_by_decoder(y)).transpose(1, 2), y)

    def score(model):
        """Right digits where each is said from those that were said before."""
        model.eval()
        a, b = x[2000:], y[2000:]
        said = torch.ones_like(b[:, :1])
        with torch.no_grad():
            for _ in range(b.shape[1]):
                said = torch.cat([said, model(a, said)[:, -1:].argmax(2)], 1)
        return float((said[:, 1:] == b).float().mean())

    return Parts(
        model, batches(x[:2000], y[:2000], size=50, seed=seed),
        torch.optim.Adam(model.parameters(), 4e-3), loss_fn=loss, score=score,
        eval_data=batches(x[2000:], y[2000:], size=100, shuffle=False),
    )  # fmt: skip


broken(
    "seq2seq-decoder-is-given-the-answer", "reverse-seq2seq-attention-adam",
    "The decoder's input is the target itself, not the target one step late: it learns to copy.",
    (*FUTURE, r"\bcop(y|ies)", r"identity", r"target.{0,60}(input|itself|equal|same)",
     r"input.{0,60}target", r"shift"),
    shifted=False,
)  # fmt: skip
broken(
    "seq2seq-attention-softmax-over-the-batch", "reverse-seq2seq-attention-adam",
    "The softmax of the attention is taken over dim 0, the batch.",
    (*MIXED, r"attention.{0,80}(sum|dim|axis|softmax|uniform)", r"softmax"),
    over=0,
)  # fmt: skip


# ---------------------------------------------------------------- a small language model


@lru_cache
def melodies(n=1500, m=300, length=24):
    """A random start of 5 notes, then each note is that of 5 before plus 1, now and then noise."""
    g = rng(49)
    x = torch.randint(16, (n + m, length + 1), generator=g)
    for t in range(5, length + 1):
        fixed = (x[:, t - 5] + 1) % 16
        x[:, t] = torch.where(torch.rand(n + m, generator=g) < 0.05, x[:, t], fixed)
    return x


class Attention(nn.Module):
    def __init__(self, width, heads, mask, viewed):
        super().__init__()
        self.heads, self.mask, self.viewed = heads, mask, viewed
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, 2)
        if self.viewed:
            q, k, v = (a.reshape(n, self.heads, t, -1) for a in (q, k, v))
        else:
            q, k, v = (a.reshape(n, t, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        mask = torch.ones(t, t).tril()
        if self.mask != "added":  # as floats, 1 and 0 are added to the scores
            mask = mask.bool()
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.reshape(n, t, c) if self.viewed else y.transpose(1, 2).reshape(n, t, c)
        return self.out(y)


class Melody(nn.Module):
    def __init__(self, width=48, heads=4, layers=2, mask="boolean", viewed=False, std=0.02):
        super().__init__()
        self.notes = nn.Embedding(16, width)
        self.places = nn.Embedding(32, width)
        nn.init.normal_(self.notes.weight, std=std)
        nn.init.normal_(self.places.weight, std=0.02)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.ModuleList([
                nn.RMSNorm(width), Attention(width, heads, mask, viewed), nn.RMSNorm(width),
                nn.Sequential(nn.Linear(width, 96), nn.SiLU(), nn.Linear(96, width)),
            ]))  # fmt: skip
        self.norm = nn.RMSNorm(width)

    def forward(self, ids):
        x = self.notes(ids) + self.places.weight[: ids.shape[1]]
        for n1, attention, n2, mlp in self.layers:
            x = x + attention(n1(x))
            x = x + mlp(n2(x))
        return self.norm(x) @ self.notes.weight.T  # the head is the embedding


@healthy("melodies-decoder-tied-rmsnorm-adamw", "transformer", 400)
def melody(seed, shift=1, **options):
    torch.manual_seed(seed)
    x = melodies()
    model = Melody(**options)

    def loss(model, batch):
        (x,) = batch
        logits = model(x[:, :-1])
        aims = x[:, 1:] if shift else x[:, :-1]
        return functional.cross_entropy(logits.transpose(1, 2), aims)

    def score(model):
        """Minus the cross-entropy of the last note, of which the model can see nothing."""
        model.eval()
        with torch.no_grad():
            losses = [functional.cross_entropy(model(x[1500:, :t])[:, -1], x[1500:, t])
                      for t in range(8, 24, 3)]  # fmt: skip
        return -float(torch.stack(losses).mean())

    return Parts(
        model, batches(x[:1500], size=40, seed=seed),
        torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.95)), loss_fn=loss, score=score,
        eval_data=batches(x[1500:], size=100, shuffle=False),
    )  # fmt: skip


broken(
    "melodies-targets-not-shifted", "melodies-decoder-tied-rmsnorm-adamw",
    "The targets are the inputs: the model learns to repeat the note that it is given.",
    (r"\bcop(y|ies)", r"identity", r"target.{0,60}(input|itself|equal|same)",
     r"input.{0,60}target", r"\bshift", r"next (token|note)", r"\bleak",
     r"(loss|task).{0,60}(too easy|trivial)"),
    shift=0,
)  # fmt: skip
broken(
    "melodies-mask-of-0-and-1-is-added", "melodies-decoder-tied-rmsnorm-adamw",
    "The causal mask is of floats 0 and 1, which are added to the scores and mask nothing.",
    FUTURE,
    mask="added",
)  # fmt: skip
broken(
    "melodies-heads-viewed-not-transposed", "melodies-decoder-tied-rmsnorm-adamw",
    "The heads are split by a reshape without a transposition, which mixes positions and lets "
    "later notes leak into earlier ones.",
    (*FUTURE, r"transpos", r"reshape|\bview", r"permut", r"heads?.{0,60}(mix|wrong|split)"),
    viewed=True,
)  # fmt: skip
broken(
    "melodies-tied-embedding-unit-normal", "melodies-decoder-tied-rmsnorm-adamw",
    "The tied embedding keeps nn.Embedding's standard deviation of 1: the logits are of order 10 "
    "at the start and say that the next note is this one.",
    (r"(logit|output)s?.{0,100}(large|times|scale|high|confident|spread|sure)",
     r"(init\w*|embedding|start\w*).{0,80}(large|scale|high|std|standard deviation)",
     r"loss.{0,60}(start|initial|first|begin)\w*.{0,80}(high|large|above|worse|times|chance)",
     r"(initial|first|starting) loss", r"\btied\b"),
    std=1.0,
)  # fmt: skip


# ---------------------------------------------------------------- the next value: dilated


@lru_cache
def tides(n=800, m=300, length=48):
    g = rng(51)
    t = torch.arange(length + 1).float()
    k = n + m
    f = 0.1 + 0.3 * torch.rand(k, 2, 1, generator=g)
    p = 2 * math.pi * torch.rand(k, 2, 1, generator=g)
    x = torch.sin(2 * math.pi * f * t + p).sum(1)
    return x + 0.4 * torch.randn(k, length + 1, generator=g).cumsum(1) * 0.3


class Causal(nn.Module):
    def __init__(self, n, m, dilation, both):
        super().__init__()
        self.pad = (dilation, dilation) if both else (2 * dilation, 0)
        self.conv = weight_norm(nn.Conv1d(n, m, 3, dilation=dilation))
        self.skip = nn.Conv1d(n, m, 1) if n != m else nn.Identity()

    def forward(self, x):
        return self.skip(x) + torch.relu(self.conv(functional.pad(x, self.pad)))


class Tides(nn.Module):
    def __init__(self, both=False):
        super().__init__()
        self.net = nn.Sequential(
            Causal(1, 24, 1, both), Causal(24, 24, 2, both), Causal(24, 24, 4, both),
            nn.Conv1d(24, 1, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x[:, None])[:, 0]


@healthy("tides-dilated-weightnorm-adam", "cnn", 300)
def tide(seed, **options):
    torch.manual_seed(seed)
    x = tides()
    model = Tides(**options)

    def score(model):
        """The share of the changes of the next value that is explained, the future unseen."""
        model.eval()
        with torch.no_grad():
            errors, changes = [], []
            for t in range(20, 48, 4):
                errors.append(model(x[800:, :t])[:, -1] - x[800:, t])
                changes.append(x[800:, t] - x[800:, t - 1])
        error, change = torch.stack(errors), torch.stack(changes)
        return max(-1.0, 1 - float((error**2).mean() / (change**2).mean()))

    return Parts(
        model, batches(x[:800, :-1], x[:800, 1:], size=32, seed=seed),
        torch.optim.Adam(model.parameters(), 3e-3), "mse", score=score,
        eval_data=batches(x[800:, :-1], x[800:, 1:], size=100, shuffle=False),
    )  # fmt: skip


broken(
    "tides-padded-on-both-sides", "tides-dilated-weightnorm-adam",
    "The convolutions are padded on both sides, so that they see the value they have to predict.",
    (*FUTURE, r"\bpadd?(ing|ed)?\b.{0,60}(side|left|symmetric)", r"receptive"),
    both=True,
)  # fmt: skip


# ---------------------------------------------------------------- digits, pixel row by pixel row


class RowNet(nn.Module):
    def __init__(self, recurrent="orthogonal", width=64):
        super().__init__()
        self.rnn = nn.RNN(2, width, batch_first=True)
        with torch.no_grad():
            if recurrent == "orthogonal":
                nn.init.orthogonal_(self.rnn.weight_hh_l0)
            elif recurrent == "wide":
                nn.init.normal_(self.rnn.weight_hh_l0)
            else:
                nn.init.normal_(self.rnn.weight_hh_l0, std=0.01)
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        return self.out(self.rnn(x.flatten(1).reshape(len(x), 32, 2))[0][:, -1])


@healthy("digits-rnn-orthogonal-rmsprop", "lstm", 300)
def rows(seed, **options):
    torch.manual_seed(seed)
    x, y, xt, yt = digits()
    model = RowNet(**options)
    return Parts(
        model, batches(x, y, size=40, seed=seed), torch.optim.RMSprop(model.parameters(), 5e-4),
        "cross_entropy", eval_data=batches(xt, yt, size=99, shuffle=False), score=accuracy(xt, yt),
    )  # fmt: skip


broken(
    "rnn-recurrent-weights-unit-normal", "digits-rnn-orthogonal-rmsprop",
    "The recurrent weights start from a standard normal distribution: the states are chaotic, the "
    "gradient explodes over the steps.",
    (r"(explod|chao|blow)\w*", r"saturat", r"(init|recurrent|weight)\w*.{0,80}(large|scale|high)",
     r"spectral"),
    recurrent="wide",
)  # fmt: skip
broken(
    "rnn-recurrent-weights-tiny", "digits-rnn-orthogonal-rmsprop",
    "The recurrent weights start at a standard deviation of 0.01: what was read is forgotten at "
    "the next step, and so is the gradient.",
    (r"vanish", r"forget", r"(gradient|signal|state)s?.{0,60}(shrink|fade|small|die|decay)",
     r"(init|recurrent|weight)\w*.{0,80}(small|tiny|low)"),
    recurrent="tiny",
)  # fmt: skip


# ---------------------------------------------------------------- sound


@lru_cache
def chirps(n=900, m=300):
    """Power spectra (32 frequencies, 20 times) of a tone that rises, falls, stays or pulses."""
    g = rng(53)
    k = n + m
    y = torch.randint(4, (k,), generator=g)
    t = torch.arange(1280) / 1280
    start = 150 + 150 * torch.rand(k, 1, generator=g)
    slope = torch.tensor([120.0, -60.0, 0.0, 0.0])[y][:, None]
    wave = torch.sin(2 * math.pi * (start * t + slope * t**2))
    pulse = (torch.sin(2 * math.pi * 6 * t) > 0).float()
    wave = torch.where(y[:, None] == 3, wave * pulse, wave)
    volume = 10 ** (5 * torch.rand(k, 1, generator=g) - 2.5)
    wave = volume * (wave + 0.7 * torch.randn(wave.shape, generator=g))
    power = torch.stft(wave, 62, 64, window=torch.hann_window(62), center=False,
                       return_complex=True).abs() ** 2  # fmt: skip
    return power[:, None], y


class Ears(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((4, 1)),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((4, 1)),
        )  # fmt: skip
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        x = self.conv(x).flatten(1, 2).transpose(1, 2)
        return self.out(self.gru(x)[0].mean(1))


@healthy("chirps-cnn-gru-adam", "lstm", 400)
def chirp(seed, log=True, eval_gain=1.0):
    torch.manual_seed(seed)
    power, y = chirps()
    x, xt = power[:900], power[900:] * eval_gain
    if log:
        x, xt = torch.log(x + 1e-6), torch.log(xt + 1e-6)
        mean, std = x.mean(), x.std()
        x, xt = (x - mean) / std, (xt - mean) / std
    model = Ears()
    return Parts(
        model, batches(x, y[:900], size=30, seed=seed), torch.optim.Adam(model.parameters(), 3e-3),
        "cross_entropy", eval_data=batches(xt, y[900:], size=100, shuffle=False),
        score=accuracy(xt, y[900:]),
    )  # fmt: skip


broken(
    "chirps-power-without-log", "chirps-cnn-gru-adam",
    "The spectra are raw powers from 1e-5 to 1e7; their logarithm was forgotten.",
    (r"input.{0,100}(large|scale|standardi[sz]|range|magnitude|heavy|outlier|spread|skew)",
     r"(standardi[sz]|normali[sz]|scal)\w* (the |your )?input", r"\blog\b|logarithm", r"outlier"),
    log=False,
)  # fmt: skip
broken(
    "chirps-evaluated-from-another-microphone", "chirps-cnn-gru-adam",
    "The held-out sound is from a microphone with a millionth of the power.",
    (r"(eval|held-out|validation|test)\w*.{0,80}(shift|differ|mean|scale|distribut|preprocess)",
     r"(shift|differ|distribut|preprocess)\w*.{0,80}(eval|held-out|validation|test)"),
    eval_gain=1e-6,
)  # fmt: skip


@healthy("chirps-trained-adam", "lstm", 60)
def trained_chirps(seed, rate=1e-3):
    parts = chirp(seed)
    plain_updates(parts, 400)
    parts.optimizer = torch.optim.Adam(parts.model.parameters(), rate)
    return parts


broken(
    "chirps-resumed-at-rate-0.3", "chirps-trained-adam",
    "A trained network goes on with a learning rate of 0.3 instead of 1e-3.",
    (r"(learning rate|\brate\b|\blr\b|step).{0,80}(large|high|big|too|times|explod|diverg)",
     r"(too large|too high).{0,40}(rate|lr|step)", r"diverg"),
    rate=0.3,
)  # fmt: skip


# ---------------------------------------------------------------- heart beats in volts


@lru_cache
def beats(n=900, m=300):
    """One lead, 100 samples, in millivolts; four kinds of beats and their amplitude."""
    g = rng(55)
    k = n + m
    y = torch.randint(4, (k,), generator=g)
    t = torch.arange(100).float()
    shift = 35 + 30 * torch.rand(k, 1, generator=g)
    width = torch.tensor([3.0, 6.0, 3.0, 3.0])[y][:, None]
    x = torch.exp(-(((t - shift) / width) ** 2))
    x = x - 0.7 * (y[:, None] == 2) * torch.exp(-(((t - shift - 9) / 3) ** 2))
    x = x + 0.5 * (y[:, None] == 3) * torch.exp(-(((t - shift + 14) / 4) ** 2))
    amplitude = 0.4 + 1.2 * torch.rand(k, 1, generator=g)
    x = amplitude * (x + 0.08 * torch.randn(k, 100, generator=g))
    return x[:, None], y, amplitude


def beat_net(out, instance=False):
    return nn.Sequential(
        *([nn.InstanceNorm1d(1)] if instance else []),
        nn.Conv1d(1, 16, 7, 2, 3, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, 2, 2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 32, 5, 2, 2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, out),
    )  # fmt: skip


@healthy("beats-conv1d-batchnorm-momentum", "cnn", 250)
def beat_kinds(seed, unit=1.0):
    torch.manual_seed(seed)
    x, y, _ = beats()
    x = x * unit
    model = beat_net(4)
    return Parts(
        model, batches(x[:900], y[:900], size=30, seed=seed),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), "cross_entropy",
        eval_data=batches(x[900:], y[900:], size=100, shuffle=False),
        score=accuracy(x[900:], y[900:]),
    )  # fmt: skip


broken(
    "beats-in-kilovolts-below-eps", "beats-conv1d-batchnorm-momentum",
    "The signals are in kilovolts, of order 1e-6: their variance is far below batch norm's eps, "
    "which then does not normalize.",
    (r"\beps(ilon)?\b", r"input.{0,100}(small|tiny|scale|standardi[sz]|range|magnitude)",
     r"(standardi[sz]|normali[sz]|scal)\w* (the |your )?input",
     r"variance.{0,60}(small|tiny|below|zero)"),
    unit=1e-6,
)  # fmt: skip


@healthy("beats-trained-batchnorm-momentum", "cnn", 0)
def trained_beats(seed, fault=""):
    parts = beat_kinds(seed)
    plain_updates(parts, 250)
    model = parts.model
    if fault == "statistics":
        for layer in model:
            if isinstance(layer, nn.BatchNorm1d):
                layer.reset_running_stats()
    elif fault == "layer":
        model[6].reset_parameters()
    elif fault == "volts":
        x, y, _ = beats()
        parts.eval_data = batches(x[900:] / 1000, y[900:], size=100, shuffle=False)
        parts.score = accuracy(x[900:] / 1000, y[900:])
    return parts


broken(
    "beats-checkpoint-without-statistics", "beats-trained-batchnorm-momentum",
    "A checkpoint of the parameters only: the running statistics of the trained network are 0 and "
    "1 again.",
    (r"running (statistics|mean|var)", r"(batch norm|statistics).{0,80}(stale|match|differ|fit)",
     r"(eval\w*|train\w*).{0,60}(mode|statistics).{0,60}(differ|gap|disagree)"),
    fault="statistics",
)  # fmt: skip
broken(
    "beats-one-layer-not-in-the-checkpoint", "beats-trained-batchnorm-momentum",
    "The last convolution of the trained network was not in the checkpoint: it is random.",
    (r"running (statistics|mean|var)", r"(random|untrained|fresh) (weight|layer|conv|param)",
     r"(layer|conv\w*|weight)s?\b.{0,60}(random|untrained|re-?initiali)",
     r"(batch norm|statistics).{0,80}(stale|match|differ|fit)",
     r"(eval\w*|train\w*).{0,60}(mode|statistics).{0,60}(differ|gap|disagree)"),
    fault="layer",
)  # fmt: skip
broken(
    "beats-evaluated-in-volts", "beats-trained-batchnorm-momentum",
    "The network was trained on millivolts, the held-out signals are in volts.",
    (r"(eval|held-out|validation|test)\w*.{0,80}(shift|differ|mean|scale|distribut|preprocess)",
     r"(shift|differ|distribut|preprocess)\w*.{0,80}(eval|held-out|validation|test)",
     r"(eval|held-out|validation|test)\w*.{0,80}(small|large|times)"),
    fault="volts",
)  # fmt: skip


@healthy("beat-heights-conv1d-batchnorm-adam", "regression", 250)
def beat_heights(seed, instance=False):
    torch.manual_seed(seed)
    x, _, amplitude = beats()
    aims = (amplitude - 1.0) / 0.35
    model = beat_net(1, instance)
    return Parts(
        model, batches(x[:900], aims[:900], size=30, seed=seed),
        torch.optim.Adam(model.parameters(), 3e-3), "mse",
        eval_data=batches(x[900:], aims[900:], size=100, shuffle=False),
        score=explained(x[900:], aims[900:]),
    )  # fmt: skip


broken(
    "heights-erased-by-instance-norm", "beat-heights-conv1d-batchnorm-adam",
    "An InstanceNorm on the input divides every beat by its height, which is what is asked for.",
    (r"(instance ?norm|normali[sz]\w*).{0,100}(eras|remov|lose|lost|scale|amplitude|invarian)",
     r"(scale|amplitude)\b.{0,60}(eras|remov|lost|invariant|unseen)", r"invarian",
     r"does not depend on the scale"),
    instance=True,
)  # fmt: skip

SETUPS = list(CATALOG.setups.values())
