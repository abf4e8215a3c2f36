"""What batch normalization does in a measurement: batch, running or frozen statistics.

A model is measured as it is trained. If it is in train mode, each of its layers keeps its own mode,
so that a batch norm or a dropout layer that the user has put into evaluation mode stays there; if
the model itself is in evaluation mode, all of it is put into train mode.

A layer of another library takes part if it has two methods: ``batch_statistics(x)``, a tuple of
tensors computed from the batch, and ``normalize(x, *statistics)``, the layer's output given them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.errors import InputError
from normscope.subject.session import patch_forward

STATISTICS = {
    "batch": "batch: train mode, each batch normalized by its own statistics, samples coupled",
    "running": "running: evaluation mode, stored statistics, no dropout",
    "frozen": "frozen: train mode, each batch's statistics held constant",
}
Constants = dict[str, list[tuple[Tensor, ...]]]


def put_in_train_mode(model: nn.Module) -> None:
    """The mode a model is trained in: a model in train mode stays as it is, layer by layer."""
    if not model.training:
        model.train()


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """All layers that can normalize over the batch, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) or hasattr(module, "batch_statistics")
    }


def coupling_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that normalize over the batch when the model is trained, by name."""
    return {n: layer for n, layer in batch_norms(model).items() if not _frozen_norm(model, layer)}


def frozen_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Batch norms in evaluation mode while the model is in train mode: statistics as stored."""
    return {n: layer for n, layer in batch_norms(model).items() if _frozen_norm(model, layer)}


def _frozen_norm(model: nn.Module, layer: nn.Module) -> bool:
    if not model.training or layer.training:
        return False
    return getattr(layer, "running_mean", 0) is not None  # without them it uses the batch anyway


def in_words(model: nn.Module, statistics: str) -> str:
    """How batch norm was run, or that there is none; and which layers are switched off."""
    norms = batch_norms(model)
    if statistics == "running":
        alone = "running: evaluation mode, no layer normalizes over the batch"
        return STATISTICS[statistics] if norms else alone
    frozen = frozen_norms(model)
    text = f"{statistics}: train mode, no layer normalizes over the batch"
    if len(frozen) < len(norms):
        text = STATISTICS[statistics]
    drops = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    off = [m for m in drops if model.training and not m.training]
    if frozen:
        text += f"; {len(frozen)} of {len(norms)} batch norms are in evaluation mode"
    if off:
        text += f"; {len(off)} of {len(drops)} dropout layers are in evaluation mode"
    return text


def check_statistics(model: nn.Module, statistics: str) -> None:
    """Refuse an unknown name, and running statistics where a layer keeps none."""
    if statistics not in STATISTICS:
        meanings = "; ".join(STATISTICS.values())
        raise InputError(
            f"Unknown statistics {statistics!r}. Say what batch norm does ({meanings}); a model "
            "without batch norm is measured in train or evaluation mode."
        )
    for name, layer in batch_norms(model).items():
        if statistics == "running" and getattr(layer, "running_mean", 0) is None:
            raise InputError(
                f"statistics='running' needs stored statistics, but {type(layer).__name__} "
                f"{name!r} keeps none (track_running_stats=False). Use 'batch' or 'frozen'."
            )


def set_mode(model: nn.Module, statistics: str) -> None:
    """Switch the model (inside a session); batch norm then writes no running statistics."""
    if statistics == "running":
        model.eval()
        return
    put_in_train_mode(model)
    for layer in batch_norms(model).values():
        if isinstance(layer, _BatchNorm) and layer.training:
            layer.track_running_stats = False


def recording(model: nn.Module) -> Constants:
    """Note each layer's batch statistics during the next forward pass (inside a session)."""
    found: Constants = {}
    for name, layer in coupling_layers(model).items():
        found[name] = []
        patch_forward(layer, _recorder(layer, found[name]))
    return found


def freeze(model: nn.Module, constants: Constants) -> None:
    """Let each layer use the noted statistics as constants in the next forward pass."""
    for name, layer in coupling_layers(model).items():
        patch_forward(layer, _frozen(layer, constants[name]))


def _recorder(layer: nn.Module, calls: list[tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    def make(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def noted(x: Tensor) -> Tensor:
            with torch.no_grad():
                calls.append(tuple(s.detach().clone() for s in _batch_statistics(layer, x)))
            return forward(x)

        return noted

    return make


def _frozen(layer: nn.Module, calls: list[tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    remaining = iter(calls)  # a layer used twice has two sets of statistics

    def make(_: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: _normalize(layer, x, *next(remaining))

    return make


def _batch_statistics(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    if not isinstance(layer, _BatchNorm):
        return tuple(layer.batch_statistics(x))
    axes = [axis for axis in range(x.ndim) if axis != 1]
    return x.mean(axes), x.var(axes, unbiased=False)


def _normalize(layer: Any, x: Tensor, *statistics: Tensor) -> Tensor:
    if not isinstance(layer, _BatchNorm):
        return torch.as_tensor(layer.normalize(x, *statistics))
    mean, variance = statistics
    return functional.batch_norm(x, mean, variance, layer.weight, layer.bias, False, 0.0, layer.eps)
