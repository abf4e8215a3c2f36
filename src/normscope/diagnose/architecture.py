"""A network in words: "MLP 64-256-256-10, 2 batch norms, 85,000 parameters, SGD lr 0.1"."""

from __future__ import annotations

import itertools
from collections import Counter

from torch import nn
from torch.nn.modules.conv import _ConvNd

from normscope.diagnose.subject import Subject
from normscope.diagnose.trial import optimizer_in_words
from normscope.messages import counted
from normscope.subject.norms import norm_cards

LONGEST = 8  # widths that are written out
KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (_ConvNd, "convolution"),
    (nn.RNNBase, "recurrent layer"),
    (nn.MultiheadAttention, "attention layer"),
    (nn.Embedding, "embedding"),
    (nn.Linear, "linear layer"),
)


def architecture(subject: Subject) -> str:
    """Layers, norms, size and optimizer of what is examined."""
    model = subject.model
    count = sum(p.numel() for p in model.parameters())
    free = sum(p.numel() for p in model.parameters() if p.requires_grad)
    some = f", {free:,} of them trainable" if free < count else ""
    norms = Counter(card.kind for card in norm_cards(model).values())
    parts = [_layers(model), *(counted(n, f"{kind} norm") for kind, n in norms.items())]
    parts += [f"{count:,} parameters{some}", optimizer_in_words(subject)]
    return ", ".join(filter(None, parts))


def _layers(model: nn.Module) -> str:
    """A chain of linear layers by its widths, anything else by the number of its layers."""
    layers = [m for m in model.modules() if isinstance(m, tuple(kind for kind, _ in KINDS))]
    chain = [m for m in layers if type(m) is nn.Linear]
    follows = all(a.out_features == b.in_features for a, b in itertools.pairwise(chain))
    name = type(model).__name__
    if isinstance(model, nn.Sequential) and layers and len(chain) == len(layers) and follows:
        widths = [str(m.in_features) for m in chain] + [str(chain[-1].out_features)]
        if len(widths) > LONGEST:
            widths = [*widths[:3], f"... ({len(widths) - 5} more)", *widths[-2:]]
        return f"MLP {'-'.join(widths)}"
    counts = Counter(next(words for kind, words in KINDS if isinstance(m, kind)) for m in layers)
    if isinstance(model, nn.Sequential) and counts["convolution"]:
        name = "CNN"
    return " with ".join(filter(None, [name, ", ".join(counted(n, w) for w, n in counts.items())]))
