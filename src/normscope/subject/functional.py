"""A model as a function of its selected parameters, everything else held fixed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import MeasurementError
from normscope.subject import statistics
from normscope.subject.batch import Batch, float_leaves, readable_failures
from normscope.subject.interrupts import interruptible
from normscope.subject.objective import Objective
from normscope.subject.parameters import ParameterSet, computed_dtype
from normscope.subject.process import drawn_since, random_state, reseed
from normscope.subject.session import FullPrecision, patch_forward, session

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class ModelFunction:
    """Outputs as a function of the parameters, at a point copied from the model when made.

    Calls are made inside ``with function.open():``. Every call sees the same random numbers, the
    same buffers and its own copy of the inputs, so that the function is deterministic. Half
    precision is computed in float32, also where the model switches autocast on; floating-point
    data and outputs have the type of the parameters.

    Attributes:
        parameters: which parameters are variables, and their order.
        objective: how a batch is run (by another function if ``run`` is given), and its loss.
        values: the point: one tensor per selected parameter.
        model: the module itself.
        device: where the model lives.
        seed: seed for what the model draws.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: ParameterSet,
        objective: Objective,
        *,
        statistics: str,
        seed: int,
        run: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        self.parameters = parameters
        self.objective = objective
        self._run = run or objective.run
        self.model = model
        self._statistics = statistics
        self.seed = seed
        held = {id(p): _copied(p) for p in model.parameters()}
        kinds = {value.dtype for value in held.values() if value.is_floating_point()}
        self._dtype = kinds.pop() if len(kinds) == 1 else None
        named = dict(model.named_parameters())
        self._sites = [
            (module._parameters, name, id(p))
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None
        ]
        self._ids = [id(named[name]) for name in parameters.names]
        self._held = {key: value for key, value in held.items() if key not in set(self._ids)}
        self.values = [held[key] for key in self._ids]
        self._buffers = [
            (module._buffers, name, _copied(b))
            for module in model.modules()
            for name, b in module._buffers.items()
            if b is not None
        ]
        self.device = self.values[0].device
        self._full_precision = FullPrecision(self.device.type)

    def restricted(self, parameters: ParameterSet) -> ModelFunction:
        """The same function at the same point, as a function of fewer parameters."""
        other = object.__new__(ModelFunction)
        other.__dict__.update(self.__dict__)
        lookup = dict(
            zip(self.parameters.names, zip(self._ids, self.values, strict=True), strict=True)
        )
        other.parameters = parameters
        other._ids = [lookup[name][0] for name in parameters.names]
        other.values = [lookup[name][1] for name in parameters.names]
        rest = {key: value for key, value in lookup.values() if key not in set(other._ids)}
        other._held = {**self._held, **rest}
        return other

    def reseeded(self, seed: int) -> ModelFunction:
        """The same function at the same point, with other random numbers."""
        other = object.__new__(ModelFunction)
        other.__dict__.update(self.__dict__)
        other.seed = seed
        return other

    @contextlib.contextmanager
    def open(
        self,
        *,
        blocks: Wrapper | None = None,
        change: Callable[[nn.Module], None] | None = None,
    ) -> Iterator[None]:
        """The held span in which calls, and backward passes of checkpointed calls, are made.

        Only the run of the model may be interrupted; other long steps must be marked.

        ``blocks`` wraps the forward of each block of the outermost sequences; ``change`` may patch
        the model further.
        """
        full = self._full_precision
        span = full if full.needed or not full.tried else contextlib.nullcontext()
        with session(self.model, seed=self.seed, device=self.device), span:
            statistics.set_mode(self.model, self._statistics)
            if blocks is not None:
                for block in _blocks(self.model):
                    patch_forward(block, blocks)
            if change is not None:
                change(self.model)
            yield

    def __call__(self, values: Sequence[Tensor], batch: Batch) -> Any:
        """The outputs, any nested structure, as the model returns them."""
        return self._called(self._run, values, batch)

    def _called(
        self, run: Callable[[nn.Module, Any], Any], values: Sequence[Tensor], batch: Batch
    ) -> Any:
        swapped = {**self._held, **dict(zip(self._ids, values, strict=True))}
        for table, name, key in self._sites:
            table[name] = swapped[key]  # type: ignore[assignment]
        for holder, name, buffer in self._buffers:
            holder[name] = buffer.clone()  # layers may write into their buffers
        refusing: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if batch.constants is not None:
            statistics.freeze(self.model, batch.constants)
            refusing = statistics.ConstantStatistics()
        inputs = pytree.tree_map(self._fresh, batch.inputs)
        reseed(self.seed, self.device)
        # Models may differentiate inside; without leaves among the values no graph is kept.
        self._full_precision.tried = True
        with torch.enable_grad(), refusing, interruptible():
            return pytree.tree_map(self._converted, run(self.model, inputs))

    def with_graph(self, batch: Batch) -> tuple[list[Tensor], Any]:
        """Fresh leaves at the point, and the outputs as a graph over them."""
        leaves = [value.detach().requires_grad_() for value in self.values]
        with torch.enable_grad():
            return leaves, self(leaves, batch)

    def prepared(self, batch: Batch) -> Batch:
        """``batch`` with its targets, and the constants that ``statistics="frozen"`` needs."""
        batch = self.with_targets(batch)
        if self._statistics != "frozen":
            return batch
        if not statistics.coupling_layers(self.model):
            return replace(batch, constants={})
        with self.open(), torch.no_grad():
            constants = statistics.recording(self.model)
            self(self.values, replace(batch, constants=None))
        return replace(batch, constants=constants)

    def with_targets(self, batch: Batch) -> Batch:
        """With those that ``outputs_fn`` finds in the batch, once."""
        if self.objective.outputs_fn is None:
            return batch
        if batch.targets is not None and batch.found in (None, self.seed):
            return batch  # others were found with other random numbers
        with (
            readable_failures(self.model, batch, "by outputs_fn"),
            self.open(),
            torch.no_grad(),
        ):
            found = self._called(self.objective.targets, self.values, batch)
        return replace(batch, targets=pytree.tree_map(_kept, found), found=self.seed)

    def targets(self, batch: Batch) -> Any:
        """The targets where the model lives."""
        return pytree.tree_map(self._fresh, self.with_targets(batch).targets)

    def loss_gradient(self, leaves: list[Tensor], loss: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its gradient as one flat vector; a loss apart from the model is refused."""
        grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else ()
        if all(grad is None for grad in grads):
            raise MeasurementError(
                f"The loss does not depend on the parameters ({self.parameters.description}): its "
                "derivative is zero everywhere. Is the output detached, or are the selected layers "
                "unused?"
            )
        return loss.detach(), self.parameters.join(grads, like=self.values[0])

    def model_inputs(self, batch: Batch) -> Any:
        """What the model itself is given, which ``outputs_fn`` may take out of the batch."""
        seen: list[Any] = []

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            named = dict(zip(inspect.signature(self.model.forward).parameters, args, strict=False))
            seen.append({**named, **kwargs} if kwargs else args[0] if len(args) == 1 else args)

        if self.objective.pairs:
            return batch.inputs
        with self.open(), torch.no_grad():
            self.model.register_forward_pre_hook(note, with_kwargs=True)  # gone with the session
            self(self.values, batch)
        return seen[0] if seen else None

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The loss of given outputs of one batch; refuses what does not fit."""
        return self.objective.judged(outputs, self.targets(batch))

    @property
    def coupled(self) -> bool:
        """Whether known layers tie the samples of a batch together."""
        return self._statistics == "batch" and bool(statistics.coupling_layers(self.model))

    def draws(self, batch: Batch) -> bool:
        """Whether a pass over ``batch`` takes random numbers, as dropout does."""
        with self.open(), torch.no_grad():
            before = random_state(self.device)
            self(self.values, batch)  # which begins by going back to the same state
            return drawn_since(before, self.device)

    def first_nonfinite(self, batch: Batch) -> str | None:
        """Name and type of the first layer whose output is not finite, or None."""
        found: list[str] = []
        with self.open(), torch.no_grad():
            for name, module in self.model.named_modules():
                patch_forward(module, _watch(f"{type(module).__name__} {name!r}", found))
            self(self.values, batch)
        return found[0] if found else None

    def check_finite(self, outputs: Tensor, batch: Batch) -> None:
        """Refuse outputs that are not finite, with the layer where it began."""
        if bool(outputs.isfinite().all()):
            return
        origin = self.first_nonfinite(batch) or "an operation outside the layers"
        raise MeasurementError(
            f"The outputs are not finite. The first layer with a non-finite output is {origin}. "
            "Every curvature would be NaN. Look at its weights and inputs: a diverged run, a "
            "logarithm or root of zero, or overflow in half precision are the usual causes."
        )

    def _fresh(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        moved = self._converted(leaf.to(self.device))
        return moved.clone() if moved is leaf else moved  # in-place layers may write into it

    def _converted(self, leaf: Any) -> Any:
        real = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.to(self._dtype or computed_dtype(leaf.dtype)) if real else leaf


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _copied(tensor: Tensor) -> Tensor:
    dtype = computed_dtype(tensor.dtype) if tensor.is_floating_point() else tensor.dtype
    copy = tensor.detach().to(dtype=dtype, copy=True)
    return copy.contiguous()


def _watch(label: str, found: list[str]) -> Wrapper:
    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            outputs = forward(*args, **kwargs)
            if not all(bool(t.isfinite().all()) for t in float_leaves(outputs)):
                found.append(label)
            return outputs

        return watched

    return make


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Children of the outermost ``Sequential`` or ``ModuleList`` on every path from the root."""
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return children
    return [block for child in children for block in _blocks(child)]
