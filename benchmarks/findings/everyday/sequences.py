"""Texts and series."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.findings.everyday.common import (
    RATE_TOO_HIGH,
    RATE_TOO_LOW,
    Split,
    alike,
    evaluated,
    fitted,
    healthy,
    loader,
    minus_mse,
    posed,
    setups,
    split,
)
from benchmarks.findings.setup import Parts


@cache
def names() -> Split:
    """Made-up names of 5 to 14 letters in four languages, padded with 0 on the right."""
    rng = np.random.default_rng(8)
    follow = rng.dirichlet(np.full(20, 0.15), (4, 20))
    y = rng.integers(0, 4, 2000)
    x = np.zeros((2000, 14), np.int64)
    for name, language in zip(x, y, strict=True):
        letter = rng.integers(20)
        for place in range(rng.integers(5, 15)):
            name[place] = letter + 1
            letter = rng.choice(20, p=follow[language, letter])
    return split(x, y)


class Names(nn.Module):
    """Embedding, LSTM, and a classifier of its last state."""

    def __init__(self, wrong: str):
        super().__init__()
        self.wrong = wrong
        self.embed = nn.Embedding(21, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 48, batch_first=wrong != "axis")
        self.out = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong == "axis":
            return self.out(self.lstm(self.embed(x))[0][:, -1])
        lengths = (x > 0).sum(1)
        packed = pack_padded_sequence(self.embed(x), lengths, True, enforce_sorted=False)
        return self.out(self.lstm(packed)[1][0][-1])


def names_lstm(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = names()
    model = Names(wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return posed(model, loader(x, y, seed), optimizer, test)


class Forecast(nn.Module):
    """The next value of a series."""

    def __init__(self, wrong: str):
        super().__init__()
        self.wrong = wrong
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        states = self.gru(x)[0]
        if self.wrong == "data":
            states = states.data
        return self.out(states[:, -1])


def waves_gru(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    rng = np.random.default_rng(9)
    time = np.arange(25) + rng.uniform(0, 60, (2000, 1))
    series = np.sin(time * rng.uniform(0.2, 1.2, (2000, 1))) + 0.05 * rng.normal(size=(2000, 25))
    series = series.astype(np.float32)
    x, y, *test = split(series[:, :-1, None], series[:, -1:])
    model = Forecast(wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return posed(model, loader(x, y, seed), optimizer, test, "mse", score=minus_mse(*test))


@cache
def letters() -> Split:
    """A made-up text of words, as windows of 24 letters and the letters that follow."""
    rng = np.random.default_rng(10)
    words = [rng.integers(1, 16, rng.integers(3, 7)).tolist() for _ in range(30)]
    text: list[int] = []
    while len(text) < 24_000:
        text += [*words[int(30 * rng.random() ** 2)], 0]
    windows = np.lib.stride_tricks.sliding_window_view(np.array(text), 25)[::8]
    return split(windows[:, :-1].copy(), windows[:, 1:].copy())


class GPT(nn.Module):
    """A tiny language model of two pre-norm blocks."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal
        self.token, self.place = nn.Embedding(16, 48), nn.Embedding(24, 48)
        layer = nn.TransformerEncoderLayer(
            48, 4, 96, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(48), nn.Linear(48, 16)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        hidden = self.token(x) + self.place(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.causal else None
        return self.out(self.norm(self.blocks(hidden, mask)))


def over_letters(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all places."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def letters_gpt(seed: int, wrong: str = "", before: int = 0) -> Parts:
    torch.manual_seed(seed)
    x, y, x_test, y_test = letters()
    model = GPT(causal=wrong != "mask")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2 if wrong == "rate" else 3e-3)
    if before:
        fitted(model, loader(x, y, seed, 32), optimizer, before, over_letters)

    def score(model: nn.Module) -> float:
        """As texts are written: nothing behind the last letter is known."""
        return float((evaluated(model, x_test)[:, -1].argmax(-1) == y_test[:, -1]).float().mean())

    if wrong == "warm":
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    return posed(
        model, loader(x, y, seed + 1, 32), optimizer, (x_test, y_test), over_letters, score=score
    )


def letters_gpt_trained(seed: int, wrong: str = "") -> Parts:
    return letters_gpt(seed, wrong, before=100)


@cache
def orders() -> Split:
    """Sentences of 8 to 16 tokens: the class is the colour that comes right after the marker."""
    rng = np.random.default_rng(11)
    n = 4000
    x = np.zeros((n, 16), np.int64)
    y = np.zeros(n, np.int64)
    for i in range(n):
        length = rng.integers(8, 17)
        x[i, :length] = rng.integers(1, 5, length)
        place = rng.integers(0, length - 1)
        x[i, place] = 5
        y[i] = x[i, place + 1] - 1
    return split(x, y)


class Encoder(nn.Module):
    """A transformer encoder that averages over the tokens that are no padding."""

    def __init__(self, wrong: str):
        super().__init__()
        self.token, self.place = nn.Embedding(6, 32, padding_idx=0), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=wrong != "axis")
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 4)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        hidden = self.token(x) + self.place(torch.arange(x.shape[1]))
        if self.wrong == "axis":
            hidden = self.blocks(hidden)
        else:
            hidden = self.blocks(hidden, src_key_padding_mask=padding)
        kept = (~padding).float()[..., None]
        return self.out((hidden * kept).sum(1) / kept.sum(1))


def orders_encoder(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    x, y, *test = orders()
    model = Encoder(wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return posed(model, loader(x, y, seed, 50), optimizer, test)


class Tagger(nn.Module):
    """A tag for every token, by a bidirectional GRU."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0]).transpose(1, 2)


def tags_gru(seed: int, wrong: str = "") -> Parts:
    torch.manual_seed(seed)
    rng = np.random.default_rng(12)
    x = np.zeros((1500, 60), np.int64)
    y = np.full((1500, 60), 0 if wrong == "padding" else -100)
    for tokens, tags in zip(x, y, strict=True):
        length = rng.integers(4, 9) if rng.random() < 0.97 else 60
        tokens[:length] = rng.integers(1, 40, length)
        before = np.concatenate([[0], tokens[: length - 1]])
        tags[:length] = 1 + (tokens[:length] + (before % 3 == 0)) % 4
    x, y, x_test, y_test = split(x, y)

    def score(model: nn.Module) -> float:
        real = x_test > 0
        return float((evaluated(model, x_test).argmax(1) == y_test)[real].float().mean())

    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return posed(model, loader(x, y, seed, 32), optimizer, (x_test, y_test), score=score)


SETUPS = []
SETUPS += setups(
    healthy("names-lstm-packed-adam", "lstm", names_lstm, 200),
    axis=(
        "names-lstm-without-batch-first",
        "The LSTM lacks batch_first=True, so it runs over the batch instead of over the letters.",
        r"""batch_first;
        (examples?|samples?|rows?).*(depend|mix|influence|affect|leak|see each other);
        (mix|leak|across|depend|over).*(examples?|samples?|the batch);
        (wrong|swapped|transposed) (axis|axes|dim)""",
    ),
)
SETUPS += setups(
    healthy("waves-gru-next-value-adam", "lstm", waves_gru, 200),
    data=(
        "waves-gru-states-through-data",
        "The forward pass takes .data of the states, so the GRU gets no gradient.",
        r"""detach|\.data\b|no_grad;
        no gradient|gradients? (is|are) (zero|none|missing)|without (a )?gradient;
        (gradients?|loss) (does|do) not (reach|flow|arrive);
        (not|never|do(es)? not|cannot) (be )?(trained|train|learn)""",
    ),
)
SETUPS += setups(
    healthy("letters-tiny-gpt-adamw", "transformer", letters_gpt),
    mask=(
        "letters-tiny-gpt-sees-the-next-letter",
        "The causal mask is missing, so every place sees the letter that it has to predict.",
        r"""causal|mask;
        (future|later|next|following) (token|letter|position|place|step|input|time);
        (leak|look|see|attend)\w* (ahead|forward|into the future)""",
    ),
    rate=(
        "letters-tiny-gpt-rate-0.2",
        "AdamW runs with a learning rate of 0.2 on a transformer.",
        RATE_TOO_HIGH,
    ),
    warm=(
        "letters-tiny-gpt-warm-up-never-stepped",
        "The learning rate is 0, where the warm-up starts, and the scheduler is never stepped.",
        alike(RATE_TOO_LOW, r"\b(rate|lr)\b.*\b(is|of|=) (0|zero)\b; scheduler|warm-?up"),
    ),
)
SETUPS += setups(
    healthy("letters-tiny-gpt-after-100-updates", "transformer", letters_gpt_trained, 60)
)
SETUPS += setups(
    healthy("orders-encoder-masked-mean-adam", "transformer", orders_encoder, 400),
    axis=(
        "orders-encoder-without-batch-first",
        "The encoder layers lack batch_first=True, so attention runs over the batch.",
        r"""batch_first;
        (examples?|samples?|rows?).*(depend|mix|influence|affect|leak|see each other);
        (mix|leak|across|depend|over).*(examples?|samples?|the batch);
        (wrong|swapped|transposed) (axis|axes|dim)""",
    ),
)
SETUPS += setups(
    healthy("tags-gru-padding-ignored-adam", "lstm", tags_gru),
    padding=(
        "tags-gru-loss-over-padding",
        "Nine places in ten are padding, which the loss counts as a class of its own.",
        r"""padd; ignore_index; imbalanc|unbalanc;
        (class|label|target|token)\w*.*(majority|dominat|frequen);
        \d\d(\.\d+)? ?% .*(class|label|target|token)""",
    ),
)
