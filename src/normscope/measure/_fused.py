"""Train-mode batch norm with a fused forward-mode derivative.

Torch differentiates batch norm forward by a dozen passes over the activations. The Jacobian of
normalization in its input is symmetric, so the fused backward kernel computes it in one:

    y = w xh + b,   xh = (x - mean) / std
    y' = w (x' - mean(x') - xh mean(xh x')) / std  +  w' xh + b'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.subject.session import patch_forward

_FUSED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fuse_batch_norms(model: nn.Module) -> None:
    """Let torch's batch-norm layers use the fused derivative (inside a session, train mode)."""
    for layer in model.modules():
        if type(layer) in _FUSED and layer.training:
            patch_forward(layer, _fused(layer))


def _fused(layer: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor) -> Tensor:
            layer._check_input_dim(x)
            return _apply(x, layer.weight, layer.bias, layer.eps)

        return forward

    return make


def _apply(*args: Any) -> Tensor:
    out: Tensor = _BatchNorm.apply(*args)  # type: ignore[no-untyped-call]
    return out


class _BatchNorm(torch.autograd.Function):
    """Forward mode only; passes that need a graph run torch's own layer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        out, mean, inverse = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        ctx.set_materialize_grads(False)
        ctx.held = (x.detach(), weight, mean, inverse, eps)
        return out

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, *rest: Tensor | None) -> Tensor | None:
        x, weight, mean, inverse, eps = ctx.held
        dweight, dbias, _ = rest
        parts = []
        if dx is not None:
            parts.append(
                torch.ops.aten.native_batch_norm_backward(
                    dx, x, weight, None, None, mean, inverse, True, eps, [True, False, False]
                )[0]
            )
        if dweight is not None or dbias is not None:
            parts.append(_affine(x, mean, inverse, dweight, dbias))
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _affine(
    x: Tensor, mean: Tensor, inverse: Tensor, dweight: Tensor | None, dbias: Tensor | None
) -> Tensor:
    """The part of scale and shift, w' xh + b', in one pass: a x + c, a and c per channel."""
    shape = [1, -1, *[1] * (x.ndim - 2)]
    if dweight is None:
        assert dbias is not None
        return dbias.view(shape).expand_as(x).clone()
    slope = dweight * inverse
    offset = -slope * mean if dbias is None else dbias - slope * mean
    return torch.addcmul(offset.view(shape), slope.view(shape), x)
