"""Losses and attention seen from inside, in the user's own code too, by a ``TorchFunctionMode``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
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
}
_DIFFERENCES = (torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.Tensor.__rsub__)
_SOFTMAX = (torch.softmax, functional.softmax, torch.Tensor.softmax)
_ATTENTION = functional.scaled_dot_product_attention
# operations that only move numbers about
_MOVES = ("View", "Squeeze", "Reshape", "Select", "Slice", "Transpose", "Permute", "TBackward",
          "Flatten", "Clone", "Copies", "Alias", "ToCopy")  # fmt: skip
_DEEP = 12  # of them in a row are looked through
_CLOSE = 1e-3
ROUNDED = 1e-2  # below it one minus a share has lost its digits


class InnerCalls(TorchFunctionMode):
    """Keeps what losses are given, and how attention is spread.

    Args:
        inside: says which module runs: None outside of the model.

    Attributes:
        seen: the calls of losses: kind, reduction, label to ignore, outputs, targets.
        targets: tensors that a difference is taken from in own code, if it is a loss.
        attention: (module, mean entropy of the weights, of the largest possible).
    """

    def __init__(self, inside: Callable[[], str | None]) -> None:
        super().__init__()
        self._inside = inside
        self.seen: list[tuple[str, str, int, Tensor, Tensor]] = []
        self.targets: list[Tensor] = []
        self.attention: list[tuple[str, float]] = []

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
        reduction, ignored = kwargs.get("reduction", "mean"), kwargs.get("ignore_index", -100)
        self.seen.append((LOSSES[func], reduction, ignored, outputs, targets))

    def _difference(self, func: Any, out: Tensor, args: Any, kwargs: Any) -> None:
        one, two = args[:2]
        if self._inside() is not None or not isinstance(two, Tensor):
            return
        for outputs, targets in ((one, two), (two, one)):
            if outputs.requires_grad and any(_same(targets, known) for known in self.targets):
                self.seen.append(("difference", "mean", -100, outputs, targets))
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


def _same(one: Tensor, other: Tensor) -> bool:
    """The same numbers in the same place, in another shape perhaps."""
    return one.numel() == other.numel() > 1 and one.data_ptr() == other.data_ptr()


def _weights(args: Any, kwargs: Any) -> Tensor:
    """Attention weights of a fused call."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
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


def loss_call(
    kind: str, reduction: str, ignored: int, outputs: Tensor, targets: Tensor
) -> LossCall:
    """What a loss was given, in numbers."""
    x = outputs.detach().float()
    found: dict[str, Any] = {}
    if kind in ("cross_entropy", "nll") and x.ndim > 1 and x.shape[1] > 1:
        rows = x.movedim(1, -1).reshape(-1, x.shape[1])
        found["simplex"] = bool((rows >= 0).all() and ((rows.sum(1) - 1).abs() < _CLOSE).all())
        found["log_sum"] = float(torch.logsumexp(rows, 1).abs().max())
        if not targets.is_floating_point():
            found["ignored"] = float((targets == ignored).float().mean())
    elif targets.numel():
        y = targets.detach().float()
        found["target_low"], found["target_high"] = float(y.min()), float(y.max())
        found["target_rms"] = float(y.square().mean().sqrt())
    return LossCall(
        kind=kind,
        reduction=reduction,
        made_by=made_by(outputs),
        shape=tuple(outputs.shape),
        target_shape=tuple(targets.shape),
        low=float(x.min()),
        high=float(x.max()),
        rms=float(x.square().mean().sqrt()),
        variation=variation(x),
        zeros=float((x == 0).float().mean()),
        **found,
    )


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
