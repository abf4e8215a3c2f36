"""Reading the graph of a model from inputs that it takes, or that are found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.subject.batch import call_arguments, plain
from normscope.subject.graph.graph import Graph
from normscope.subject.graph.reading import check_readable, read_graph
from normscope.subject.parameters import floating_dtype

SIDES = dict.fromkeys((32, 28, 64, 224, 16, 8, *range(1, 64)))  # of images, in the order of trying


def graph_on(model: nn.Module, example: Any = None) -> Graph:
    """The graph of ``model``.

    Args:
        model: any network; left as it is.
        example: a batch of what it takes: a tensor, a tuple of arguments or a dict of keywords.
            None tries inputs of the sizes that its first layer allows.
    """
    check_readable(model)
    kind, failed = type(model).__name__, ""
    for inputs in _guesses(model) if example is None else [plain(example)]:
        args, kwargs = call_arguments(model, pytree.tree_map_only(Tensor, _like(model), inputs))
        try:
            return read_graph(model, lambda: model(*args, **kwargs))  # noqa: B023  called here
        except Exception as error:  # whatever a user's model raises
            said = (str(error).strip().splitlines() or [""])[0]
            failed = f"{type(error).__name__}: {said}"
    if example is None:
        raise InputError(
            f"No input was found that {kind} can be run on. Pass a batch of what it takes as "
            "example=, a tensor, a tuple or a dict."
        )
    raise InputError(
        f"{kind} cannot be run on the example ({failed}). Pass a batch of what it takes."
    )


def _like(model: nn.Module) -> Any:
    """Puts a tensor where the model is, in its precision."""
    place, dtype = next(model.parameters()).device, floating_dtype(model)
    return lambda t: t.detach().to(place, dtype if t.is_floating_point() else t.dtype)


def _guesses(model: nn.Module) -> Iterator[Tensor]:
    first = next(
        (m for m in model.modules() if isinstance(m, (*AFFINE, nn.Embedding, nn.RNNBase))), None
    )
    if isinstance(first, nn.Embedding):
        yield torch.arange(10).view(2, 5) % first.num_embeddings
    elif isinstance(first, nn.Linear | nn.RNNBase):
        size = first.in_features if isinstance(first, nn.Linear) else first.input_size
        yield from (_positive(2, size), _positive(2, 5, size))
    elif isinstance(first, AFFINE):
        axes = len(first.kernel_size)
        for side in SIDES:
            if side**axes <= 224**2:
                yield _positive(2, first.in_channels, *[side] * axes)


def _positive(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))
