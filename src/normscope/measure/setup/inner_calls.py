"""Losses and attention seen from inside, in the user's own code too, by a ``TorchFunctionMode``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, overrides
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from normscope.results.wiring import LossCall

_overrides: Any = overrides  # without types
LOSSES: dict[Any, str] = {
    functional.cross_entropy: "cross_entropy",
    functional.nll_loss: "nll",
    functional.mse_loss: "squared",
    functional.l1_loss: "absolute",
    functional.smooth_l1_loss: "absolute",
    functional.huber_loss: "absolute",
    functional.binary_cross_entropy: "bernoulli",
    functional.binary_cross_entropy_with_logits: "logits",
    functional.kl_div: "kl",
    functional.poisson_nll_loss: "poisson",
}
_DIFFERENCES = (torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.Tensor.__rsub__)
_SOFTMAX = (torch.softmax, functional.softmax, torch.Tensor.softmax)
_ATTENTION = functional.scaled_dot_product_attention
_ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_DROPOUT = (functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
            functional.alpha_dropout)  # fmt: skip
# operations that only move numbers about
_MOVES = ("View", "Squeeze", "Reshape", "Select", "Slice", "Transpose", "Permute", "TBackward",
          "Flatten", "Clone", "Copies", "Alias", "ToCopy")  # fmt: skip
_DEEP = 12  # of them in a row are looked through
_CLOSE = 1e-3
_OFTEN = 3  # times that a class occurs, from which on its share is known
ROUNDED = 1e-2  # below it one minus a share has lost its digits


class InnerCalls(TorchFunctionMode):
    """Keeps what losses are given, and how attention is spread.

    Args:
        inside: says which module runs: None outside of the model.

    Attributes:
        seen: the calls of losses: kind, options, outputs, targets; reduction and loss are options.
        targets: tensors that a difference is taken from in own code, if it is a loss.
        attention: (module, mean entropy of the weights, of the largest possible).
    """

    def __init__(self, inside: Callable[[], str | None]) -> None:
        super().__init__()
        self._inside = inside
        self.seen: list[tuple[str, dict[str, Any], Tensor, Tensor]] = []
        self.targets: list[Tensor] = []
        self.attention: list[tuple[str, float]] = []
        self._dropped: list[Tensor] = []  # by the last dropout

    def __exit__(self, *error: Any) -> None:
        # an interrupt can come while torch has taken the mode away: the session puts all back
        if self in _overrides._get_current_function_mode_stack()[-1:]:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        look = (
            self._loss if func in LOSSES
            else self._difference if func in _DIFFERENCES
            else self._attention if func in _SOFTMAX or func is _ATTENTION
            else self._dropout if func in _DROPOUT
            else None
        )  # fmt: skip
        if look is not None:
            unseen = contextlib.suppress(Exception)  # of a call in a form of its own
            with torch._C.DisableTorchFunction(), torch.no_grad(), unseen:
                look(func, out, args, kwargs)
        return out

    def _loss(self, func: Any, out: Tensor, args: Any, kwargs: Any) -> None:
        outputs = args[0] if args else kwargs["input"]
        targets = args[1] if len(args) > 1 else kwargs["target"]
        if LOSSES[func] == "poisson" and not kwargs.get("log_input", True):
            return
        more = {"value": float(out.mean()), "dropped": self.dropped(outputs)}
        self.seen.append((LOSSES[func], {**kwargs, **more}, outputs, targets))

    def dropped(self, outputs: Tensor) -> bool:
        """Whether these are what the last dropout gave."""
        return any(_same(outputs, t) for t in self._dropped)

    def _dropout(self, func: Any, out: Tensor, args: Any, kwargs: Any) -> None:
        given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
        if given.get("training", True) and given.get("p", 0.5):
            self._dropped = [out]

    def _difference(self, func: Any, out: Tensor, args: Any, kwargs: Any) -> None:
        one, two = args[:2]
        if self._inside() is not None or not isinstance(two, Tensor):
            return
        for outputs, targets in ((one, two), (two, one)):
            if outputs.requires_grad and any(_same(targets, known) for known in self.targets):
                self.seen.append(("difference", {}, outputs, targets))
                return

    def _attention(self, func: Any, out: Tensor, args: Any, kwargs: Any) -> None:
        if (name := self._inside()) is None:
            return
        if func is _ATTENTION:
            weights = _weights(args, kwargs)
        elif out.ndim >= 3 and out.shape[-1] == out.shape[-2] > 1:
            weights = out
        else:
            return
        if weights.shape[-1] > 1:
            self.attention.append((name, entropy(weights)))

    def calls(self) -> tuple[LossCall, ...]:
        """The calls of losses as records."""
        return tuple(loss_call(*one) for one in self.seen)


class DropoutCalls(TorchFunctionMode):
    """Sees dropout that is on.

    Attributes:
        rate: the largest one.
    """

    rate = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            self.rate = max(self.rate, given.get("training", True) and given.get("p", 0.5))
        elif func is _ATTENTION:
            given = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
            self.rate = max(self.rate, given.get("dropout_p", 0.0))
        return func(*args, **kwargs)


def _same(one: Tensor, other: Tensor) -> bool:
    """The same numbers in the same place, in another shape perhaps."""
    return one.numel() == other.numel() > 1 and one.data_ptr() == other.data_ptr()


def _weights(args: Any, kwargs: Any) -> Tensor:
    """Attention weights of a fused call."""
    given = {**dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)), **kwargs}
    query, key = given["query"].detach(), given["key"].detach()
    if key.ndim > 2 and key.shape[-3] != query.shape[-3]:  # keys shared by several heads
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores, mask = query @ key.transpose(-1, -2) * scale, given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    return scores.softmax(-1).nan_to_num(0.0)


def entropy(weights: Tensor) -> float:
    """Mean entropy of attention, of the largest that its mask allows."""
    weights = weights.detach().float()
    open_to = (weights > 0).sum(-1)
    kept = open_to > 1
    if not bool(kept.any()):
        return 0.0
    own = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    return float((own[kept] / open_to[kept].float().log()).mean())


def loss_call(kind: str, options: Mapping[str, Any], outputs: Tensor, targets: Tensor) -> LossCall:
    """What a loss was given, in numbers."""
    x, y = outputs.detach().float(), targets.detach()
    found: dict[str, Any] = {"value": options.get("value", math.nan)}
    if kind in ("cross_entropy", "nll", "kl") and x.ndim > 1 and x.shape[1] > 1:
        rows = x.movedim(1, -1).reshape(-1, x.shape[1])
        found["simplex"] = _simplex(x)
        found["log_sum"] = float(torch.logsumexp(rows, 1).abs().max())
        found["smoothing"] = float(options.get("label_smoothing", 0.0))
        found["bound"] = _cosine_scale(outputs)
        if y.is_floating_point():
            sums = y.exp().sum(1) if options.get("log_target") else y.sum(1)
            found["target_sum"] = float(sums.max())
        else:
            ignored = options.get("ignore_index", -100)
            found |= {"ignored": float((y == ignored).float().mean()), "ignored_label": ignored}
            found["padding"] = y.ndim < 3 and _in_runs(y == ignored)
            counted = y[(y >= 0) & (y != ignored)].cpu()
            counts = torch.bincount(counted, minlength=x.shape[1]).double()
            found["uneven"] = _uneven(counts, options.get("weight"))
            if (weight := options.get("weight")) is not None:
                found["weights"] = tuple(weight.tolist())
    elif y.numel():
        y = y.float()
        found["target_low"], found["target_high"] = float(y.min()), float(y.max())
        found["target_rms"] = float(y.square().mean().sqrt())
        if kind == "bernoulli" and x.ndim > 1 and x.shape == y.shape and x.shape[1] > 1:
            found["simplex"], found["target_sum"] = _simplex(x), float(y.sum(1).max())
        weight = options.get("pos_weight")
        if weight is not None and weight.numel() == 1:
            counts = torch.stack([(1 - y).sum(), y.sum()]).double().cpu()
            found["uneven"] = _uneven(counts, torch.cat([torch.ones(1), weight.cpu().reshape(1)]))
    return LossCall(
        kind=kind,
        reduction=options.get("reduction", "mean"),
        made_by="Dropout" if options.get("dropped") else made_by(outputs),
        shape=tuple(outputs.shape),
        target_shape=tuple(targets.shape),
        low=float(x.min()),
        high=float(x.max()),
        rms=float(x.square().mean().sqrt()),
        variation=variation(x),
        zeros=float((x == 0).float().mean()),
        **found,
    )


def _simplex(x: Tensor) -> bool:
    """Whether the entries along axis 1 are probabilities: at least 0, with sum 1."""
    return bool((x >= 0).all() and ((x.sum(1) - 1).abs() < _CLOSE).all())


def _in_runs(chosen: Tensor) -> bool:
    """Whether the chosen ones stand side by side, as padding does."""
    row = chosen.reshape(-1)
    share = float(row.float().mean())
    both = float((row[1:] & row[:-1]).float().mean()) if len(row) > 1 else 0.0
    return 0 < share < 1 and both / share > (1 + share) / 2


def _uneven(counts: Tensor, weight: Tensor | None) -> float:
    """How much more unequal weights make the classes that occur: 1 if not at all."""
    kept = counts >= _OFTEN
    if weight is None or int(kept.sum()) < 2:
        return 1.0
    own, new = counts[kept], (counts * weight.detach().cpu().double())[kept]
    return float(new.max() / new.min().clamp_min(1e-300) * own.min() / own.max())


def _cosine_scale(logits: Tensor) -> float:
    """The largest size that logits can have, where they are products of vectors of fixed length."""
    node: Any = logits.grad_fn
    while node is not None and any(kind in node.name() for kind in ("Mul", "Div", *_MOVES)):
        node = node.next_functions[0][0]
    saved = [getattr(node, name, None) for name in ("_saved_self", "_saved_mat2")]
    sides = [side.detach() for side in saved if isinstance(side, Tensor) and side.ndim == 2]
    if len(sides) < len(saved):
        return math.inf
    norms = [side.norm(dim=d) for side, d in zip(sides, (1, 0), strict=True)]
    sizes = [float(n.mean()) for n in norms]
    if any(bool(((n - m).abs() > _CLOSE * m).any()) for n, m in zip(norms, sizes, strict=True)):
        return math.inf
    largest = float((sides[0] @ sides[1]).abs().max())
    factor = float(logits.detach().abs().max()) / largest if largest else math.inf
    return factor * sizes[0] * sizes[1]


def made_by(tensor: Tensor) -> str:
    """The operation that made a tensor, without those that only move numbers."""
    node = tensor.grad_fn
    for _ in range(_DEEP):
        if node is None:
            return ""
        name = node.name()
        if not any(move in name for move in _MOVES):
            return name.partition("Backward")[0]
        node = node.next_functions[0][0]
    return ""


def variation(samples: Tensor) -> float:
    """Variance over the first axis, of the mean square; 0 for zeros, NaN for a single sample."""
    return spread(samples)[0]


def spread(samples: Tensor) -> tuple[float, float]:
    """``variation``, and the root mean square."""
    x = samples.detach()
    x = x if x.dtype == torch.float64 else x.float()
    rms = float(torch.linalg.vector_norm(x)) / max(x.numel(), 1) ** 0.5
    if x.ndim == 0 or len(x) < 2:
        return float("nan"), rms
    if rms == 0 or not math.isfinite(rms):
        return (0.0 if rms == 0 else float("nan")), rms
    mean = x.mean(0)
    share = 1 - (float(torch.linalg.vector_norm(mean)) / mean.numel() ** 0.5 / rms) ** 2
    if share < ROUNDED:  # a difference of nearly equal numbers
        share = float(x.var(0, correction=0).mean()) / rms**2
    return share, rms
