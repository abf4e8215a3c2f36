"""Which parameters a measurement differentiates, and their order in one flat vector."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError
from normscope.registry import near_match
from normscope.subject.norms import norm_cards

KINDS = ("weight", "bias", "norm")
Selection = str | Sequence[str] | None


@dataclass(frozen=True)
class ParameterSet:
    """Named parameters in the order of ``named_parameters()``, tied ones once.

    Attributes:
        names: their names in the model.
        shapes: their shapes, in the same order.
        dtypes: the types they are computed in.
        description: the set in words, for the convention of a result.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    description: str

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each."""
        return [shape.numel() for shape in self.shapes]

    @property
    def total(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the flat vector."""
        dtype = self.dtypes[0]
        for other in self.dtypes:
            dtype = torch.promote_types(dtype, other)
        return dtype

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter stands in the flat vector."""
        ends = list(itertools.accumulate(self.sizes))
        return {n: slice(e - s, e) for n, s, e in zip(self.names, self.sizes, ends, strict=True)}

    def subset(self, names: Sequence[str], description: str) -> ParameterSet:
        """Some of the parameters, in the same order."""
        keep = [i for i, name in enumerate(self.names) if name in set(names)]
        return ParameterSet(
            tuple(self.names[i] for i in keep),
            tuple(self.shapes[i] for i in keep),
            tuple(self.dtypes[i] for i in keep),
            description,
        )

    def split(self, vector: Tensor) -> list[Tensor]:
        """The pieces of a flat vector, (total,) -> one tensor per parameter; views if they can."""
        pieces = vector.split_with_sizes(self.sizes)
        meta = zip(pieces, self.shapes, self.dtypes, strict=True)
        return [piece.view(shape).to(dtype) for piece, shape, dtype in meta]

    def join(self, tensors: Sequence[Tensor | None], *, like: Tensor) -> Tensor:
        """One flat vector of one tensor per parameter; None stands for zeros."""
        filled = [
            like.new_zeros(size, dtype=self.dtype) if t is None else t.reshape(-1).to(self.dtype)
            for t, size in zip(tensors, self.sizes, strict=True)
        ]
        return torch.cat(filled)

    def split_stacks(self, vectors: Tensor) -> list[Tensor]:
        """The pieces of a stack of flat vectors, (k, total) -> (k, *shape) each."""
        pieces = vectors.split_with_sizes(self.sizes, dim=1)
        meta = zip(pieces, self.shapes, self.dtypes, strict=True)
        return [piece.reshape(-1, *shape).to(dtype) for piece, shape, dtype in meta]

    def join_stacks(self, tensors: Sequence[Tensor | None], *, like: Tensor) -> Tensor:
        """A stack of flat vectors of one (k, *shape) tensor per parameter; None is zeros."""
        rows = len(like)
        filled = [
            like.new_zeros(rows, size, dtype=self.dtype)
            if t is None
            else t.reshape(rows, -1).to(self.dtype)
            for t, size in zip(tensors, self.sizes, strict=True)
        ]
        return torch.cat(filled, dim=1)

    def require_finite(self, vectors: Tensor, what: str) -> None:
        """Refuse flat vectors that are not finite, naming the parameter next to the outputs."""
        if math.isfinite(float(vectors.sum())):  # one pass over it, the usual case
            return
        bad = ~vectors.reshape(-1, self.total).isfinite().all(0)
        if bool(bad.any()):
            last = int(bad.nonzero()[-1])
            name = next(name for name, s in self.slices.items() if s.start <= last < s.stop)
            raise MeasurementError(
                f"{what} is not finite. Going backwards from the outputs it begins at parameter "
                f"{name!r} ({int(bad.sum())} of {self.total} numbers). A root or logarithm at "
                "zero, or overflow, are the usual causes."
            )


def every_parameter(model: nn.Module) -> ParameterSet:
    """All floating-point parameters of a model, trainable or not; an error if it has none."""
    named = dict(model.named_parameters())
    real = {name: p for name, p in named.items() if p.is_floating_point()}
    if not real:
        raise InputError(
            f"{type(model).__name__} has no floating-point parameters, so there is no layer to "
            "measure. Pass the module that holds the layers."
        )
    shapes, dtypes = zip(*((p.shape, computed_dtype(p.dtype)) for p in real.values()), strict=True)
    return ParameterSet(tuple(real), shapes, dtypes, "all parameters")


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """``"weight"``, ``"bias"``, ``"norm"`` or ``"other"`` for each parameter.

    Norm parameters are those of normalization layers; a weight is any other parameter with two or
    more axes; weight-norm's length and direction count as weights.
    """
    norms = set(norm_cards(model, strict=True))
    return {name: _kind(name, p, norms) for name, p in model.named_parameters()}


def _kind(name: str, parameter: nn.Parameter, norms: set[str]) -> str:
    words = name.split(".")
    if norms & {".".join(words[:i]) for i in range(len(words))}:
        return "norm"
    computed = "parametrizations" in words
    leaf = words[words.index("parametrizations") + 1] if computed else words[-1]
    if "bias" in leaf:
        return "bias"
    if computed or leaf in ("weight_g", "weight_v") or parameter.ndim >= 2:
        return "weight"
    return "other"


def select_parameters(model: nn.Module, selection: Selection) -> ParameterSet:
    """The trainable parameters that ``selection`` means.

    ``None``: all; ``"weights"``: the theory's set, weight matrices and kernels without biases
    and norm parameters; otherwise one or several names, globs, layers or kinds
    (``"weight"``, ``"bias"``, ``"norm"``; ``"kind:norm"`` where a layer has that name).
    """
    everything = dict(model.named_parameters())
    _refuse_unusable(everything)
    trainable = [name for name, p in everything.items() if p.requires_grad]
    if not trainable:
        raise InputError(
            f"The model ({type(model).__name__}) has no trainable parameter, so there is nothing "
            "to differentiate. Set requires_grad_(True) on what should be measured."
        )
    items = _items(selection)
    chosen: set[str] = set()
    for item in items:
        chosen |= _matches(model, item, trainable)
    if selection is not None and not chosen:
        raise InputError("parameters=[] selects nothing. Pass None for all trainable parameters.")
    names = [n for n in trainable if n in chosen] if items else trainable
    return _parameter_set(everything, names, _description(selection, names, len(trainable)))


def _items(selection: Selection) -> list[str]:
    if selection is None:
        return []
    try:
        items: list[Any] = [selection] if isinstance(selection, str) else list(selection)
    except TypeError:
        items = [selection]
    wrong = [item for item in items if not isinstance(item, str)]
    if wrong:
        raise InputError(
            f"parameters takes names: None, 'weights', 'norm', '0.weight', 'layer1', '*.bias', or "
            f"a list of such. Got a {type(wrong[0]).__name__}. Names of parameters and layers are "
            "those of model.named_parameters() and model.named_modules()."
        )
    return items


def _parameter_set(
    everything: dict[str, nn.Parameter], names: list[str], description: str
) -> ParameterSet:
    parameters = [everything[name] for name in names]
    return ParameterSet(
        tuple(names),
        tuple(p.shape for p in parameters),
        tuple(computed_dtype(p.dtype) for p in parameters),
        f"{description}, {sum(p.numel() for p in parameters)} numbers",
    )


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type a measurement computes in: half precision becomes float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def floating_dtype(model: nn.Module) -> torch.dtype | None:
    """The floating-point type of the parameters; None if there is none, or several."""
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return found.pop() if len(found) == 1 else None


def half_precision(model: nn.Module) -> str:
    """The type of parameters in half precision, which are computed in float32; empty if none."""
    half = {p.dtype for p in model.parameters() if computed_dtype(p.dtype) != p.dtype}
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in half))


def _refuse_unusable(everything: dict[str, nn.Parameter]) -> None:
    for name, parameter in everything.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(
                f"Parameter {name!r} has no shape yet (a lazy layer). Run the model once on a "
                "batch before measuring it."
            )
        if parameter.requires_grad and parameter.is_complex():
            raise InputError(
                f"Parameter {name!r} is complex ({parameter.dtype}); curvature is defined here for "
                "real parameters. Store its real and imaginary part, or freeze it."
            )


def _matches(model: nn.Module, item: str, trainable: list[str]) -> set[str]:
    layers = dict(model.named_modules())
    kind = item.removeprefix("kind:")
    if item in KINDS and item in layers:
        raise InputError(
            f"{item!r} is both a layer of this model and a kind of parameter. Write "
            f"{item + '.*'!r} for the layer or {'kind:' + item!r} for the kind."
        )
    kind = "weight" if item == "weights" else kind
    if item in layers:
        found = {n for n in trainable if n.startswith(f"{item}.") or item == ""}
    elif kind in KINDS and (item == "weights" or kind not in dict(model.named_parameters())):
        found = {n for n, k in parameter_kinds(model).items() if k == kind} & {*trainable}
    else:
        found = set(fnmatch.filter(trainable, item))
    if not found:
        _nothing_found(model, item, layers)
    return found


def _nothing_found(model: nn.Module, item: str, layers: dict[str, nn.Module]) -> None:
    names = [name for name, _ in model.named_parameters()]
    frozen = [n for n in names if n == item or n.startswith(f"{item}.") or fnmatch.fnmatch(n, item)]
    if frozen:
        raise InputError(
            f"parameters={item!r} selects only frozen parameters ({', '.join(frozen[:3])}). "
            "Set requires_grad_(True) on them, or choose others."
        )
    known = [*names, *(n for n in layers if n), *KINDS, "weights"]
    raise InputError(f"parameters={item!r} selects nothing. {near_match(item, known)}")


def _description(selection: Selection, names: list[str], available: int) -> str:
    if selection is None:
        return f"all {available} trainable tensors"
    text = selection if isinstance(selection, str) else ", ".join(selection)
    return f"{text} ({len(names)} of {available} trainable tensors)"
