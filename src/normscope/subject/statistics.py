"""What batch normalization does in a measurement: batch, running or frozen statistics.

A model is measured as it is trained. If it is in train mode, each of its layers keeps its own mode,
so that a batch norm or a dropout layer that the user has put into evaluation mode stays there; if
the model itself is in evaluation mode, all of it is put into train mode.

Which layers normalize over the batch is what their cards say (`normscope.subject.norms`). A layer
with a formula of its own takes part if it has two methods: ``batch_statistics(x)``, a tuple of
tensors computed from the batch, and ``normalize(x, *statistics)``, the layer's output given them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from normscope.errors import InputError
from normscope.nn.norm import PopulationNorm
from normscope.subject.norms import NormCard, norm_card, norm_cards
from normscope.subject.session import patch_forward

STATISTICS = {
    "batch": "batch: train mode, each batch normalized by its own statistics, samples coupled",
    "running": "running: evaluation mode, stored statistics, no dropout",
    "frozen": "frozen: train mode, each batch's statistics held constant",
}
_overrides: Any = overrides  # without types
_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training")
Constants = dict[str, list[tuple[Tensor, ...]]]


def put_in_train_mode(model: nn.Module) -> None:
    """The mode a model is trained in: a model in train mode stays as it is, layer by layer."""
    if not model.training:
        model.train()


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """All layers that can normalize over the batch, by name."""
    return {n: model.get_submodule(n) for n, card in norm_cards(model).items() if card.over_batch}


def coupling_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that normalize over the batch when the model is trained, by name."""
    frozen = frozen_norms(model)
    return {name: layer for name, layer in batch_norms(model).items() if name not in frozen}


def frozen_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Batch norms in evaluation mode while the model is in train mode: statistics as stored."""
    if not model.training:
        return {}
    off = {name: layer for name, layer in batch_norms(model).items() if not layer.training}
    return {name: layer for name, layer in off.items() if not _card(layer).always}


def _card(layer: nn.Module) -> NormCard:
    card = norm_card(layer)
    assert card is not None
    return card


def in_words(model: nn.Module, statistics: str) -> str:
    """How batch norm was run, or that there is none; and which layers are switched off."""
    norms = batch_norms(model)
    if statistics == "running":
        alone = "running: evaluation mode, no batch norm layer"
        return STATISTICS[statistics] if norms else alone
    frozen = frozen_norms(model)
    text = f"{statistics}: train mode, no batch norm layer"
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
    if not isinstance(statistics, str) or statistics not in STATISTICS:
        meanings = "; ".join(STATISTICS.values())
        raise InputError(
            f"Unknown statistics {statistics!r}. Say what batch norm does ({meanings}); a model "
            "without batch norm is measured in train or evaluation mode."
        )
    for name, layer in batch_norms(model).items():
        card, kind = _card(layer), type(layer).__name__
        if statistics == "running" and card.always:
            raise InputError(
                f"statistics='running' needs stored statistics, but {kind} {name!r} keeps none "
                "(track_running_stats=False). Use 'batch' or 'frozen'."
            )
        if statistics == "frozen" and not (card.formula or hasattr(layer, "batch_statistics")):
            raise InputError(
                f"{kind} {name!r} normalizes over the batch in a way of its own, so that its "
                "statistics cannot be held constant. Use 'batch', or give it the methods "
                "batch_statistics(x) and normalize(x, *statistics)."
            )


def set_mode(model: nn.Module, statistics: str) -> None:
    """Switch the model (inside a session); batch norm then writes no running statistics."""
    if statistics == "running":
        model.eval()
        return
    put_in_train_mode(model)
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            layer.track_running_stats = False
        elif isinstance(layer, PopulationNorm):
            layer.stat_grad = "detach"  # how a training step differentiates them is not measured


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


class ConstantStatistics(TorchFunctionMode):
    """Refuses batch norm that is a call of a function: its statistics cannot be held constant."""

    def __exit__(self, *error: Any) -> None:
        # an interrupt can come where torch has taken the mode away: the session puts modes back
        if _overrides._get_current_function_mode() is self:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {**dict(zip(_BATCH_NORM, args, strict=False)), **(kwargs or {})}
        if func is functional.batch_norm and given.get("training"):
            raise InputError(
                "The model calls F.batch_norm with the statistics of the batch, which cannot be "
                "held constant there. Use statistics='batch', or nn.BatchNorm layers."
            )
        return func(*args, **(kwargs or {}))


def _recorder(layer: nn.Module, calls: list[tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    card = _card(layer)

    def make(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def noted(x: Tensor) -> Tensor:
            with torch.no_grad():
                calls.append(tuple(s.detach().clone() for s in card.batch_statistics(layer, x)))
            return forward(x)

        return noted

    return make


def _frozen(layer: nn.Module, calls: list[tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    card = _card(layer)
    remaining = iter(calls)  # a layer used twice has two sets of statistics

    def make(_: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: card.normalize(layer, x, *next(remaining))

    return make
