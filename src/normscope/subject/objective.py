"""The grammar of losses: what is minimized, and how a batch is run to get it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError, NormscopeError, out_of_memory
from normscope.messages import kind_of
from normscope.registry import near_match
from normscope.subject.batch import Batch, call_arguments
from normscope.subject.likelihoods import (
    OF_DICTS,
    BernoulliLoss,
    CrossEntropy,
    LogProbabilityLoss,
    SquaredLoss,
)
from normscope.subject.losses import CallableLoss, Loss, LossItself, NoLoss, shown_module

LossFn = Callable[[nn.Module, Any], Tensor]
OutputsFn = Callable[[nn.Module, Any], tuple[Any, Any]]

_NAMED: dict[str, Callable[[], Loss]] = {
    "mse": lambda: SquaredLoss(
        "mse: half the squared error summed over outputs, mean over samples", "half"
    ),
    "cross_entropy": lambda: CrossEntropy("cross_entropy: softmax, mean over samples"),
    "bce": lambda: BernoulliLoss(nn.BCEWithLogitsLoss()),
}
NO_TARGETS = (
    "This needs the loss, and the data has no targets. Pass batches of (inputs, targets). "
    f"{OF_DICTS} Without targets only signals, the Jacobian and the true or sampled Fisher matrix "
    "are defined."
)


@dataclass(frozen=True)
class Objective:
    """A loss, and how a batch gives what it compares.

    Attributes:
        loss: loss of outputs and targets; with ``loss_fn`` the output is the loss itself.
        loss_fn: the user's ``loss_fn(model, batch)``, or None.
        outputs_fn: the user's ``outputs_fn(model, batch) -> (outputs, targets)``, or None: then a
            batch is (inputs, targets). No gradient goes through the targets.
    """

    loss: Loss
    loss_fn: LossFn | None = None
    outputs_fn: OutputsFn | None = None

    @property
    def has_outputs(self) -> bool:
        """Whether the outputs are known, not only the loss."""
        return self.loss_fn is None

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss at all: signals can be looked at without one."""
        return not isinstance(self.loss, NoLoss)

    @property
    def pairs(self) -> bool:
        """Whether a batch is (inputs, targets), not one thing for a function of the user's."""
        return self.loss_fn is None and self.outputs_fn is None

    def item(self, batch: Batch) -> Any:
        """A batch as a loader gives it."""
        return (batch.inputs, batch.targets) if self.pairs else batch.inputs

    def run(self, model: nn.Module, inputs: Any) -> Any:
        """The outputs of the model, or what ``loss_fn`` returns."""
        if self.loss_fn is not None:
            return self._loss_of(model, inputs)
        if self.outputs_fn is not None:
            return self._outputs_and_targets(model, inputs)[0]
        args, kwargs = call_arguments(model, inputs)
        return model(*args, **kwargs)

    def targets(self, model: nn.Module, inputs: Any) -> Any:
        """What ``outputs_fn`` says the targets are."""
        return self._outputs_and_targets(model, inputs)[1]

    def judged(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of outputs; what does not fit together is refused."""
        if self.has_outputs and targets is None:
            raise InputError(NO_TARGETS + self._other_kind)
        try:
            self.loss.check(outputs, targets)
            return self.loss.value(outputs, targets)
        except Exception as error:  # whatever a loss of the user's raises
            if isinstance(error, NormscopeError) or out_of_memory(error):
                raise
            raise InputError(
                f"{self.loss.description}: called with outputs {_shapes(outputs)} and targets "
                f"{_shapes(targets)} it raised {_short(error)}{self._other_kind}"
            ) from error

    @property
    def _other_kind(self) -> str:
        """What a function, but no torch loss, may be as well."""
        function = isinstance(self.loss, CallableLoss) and not self.loss.is_module
        return " If it is loss_fn(model, batch), pass it as loss_fn=." if function else ""

    def evaluated(self, model: nn.Module, batch: Batch) -> tuple[Any, Any, Tensor]:
        """Outputs, targets and loss of a batch; with ``loss_fn`` the outputs are the loss."""
        if self.outputs_fn is not None:
            outputs, targets = self._outputs_and_targets(model, batch.inputs)
        else:
            outputs, targets = self.run(model, batch.inputs), batch.targets
        return outputs, targets, self.judged(outputs, targets)

    def value(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a model on a batch."""
        return self.evaluated(model, batch)[2]

    def _loss_of(self, model: nn.Module, batch: Any) -> Any:
        assert self.loss_fn is not None
        try:
            return self.loss_fn(model, batch)
        except (TypeError, AttributeError, ValueError) as error:
            if _inside(model, error) or isinstance(error, NormscopeError):
                raise
            name = getattr(self.loss_fn, "__name__", "loss_fn")
            raise InputError(
                f"{name} was called as loss_fn(model, batch) and raised {_short(error)} If it is "
                "loss(outputs, targets), pass it as loss=."
            ) from error

    def _outputs_and_targets(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        assert self.outputs_fn is not None
        found = self.outputs_fn(model, batch)
        if not isinstance(found, tuple | list) or len(found) != 2 or found[1] is None:
            raise InputError(
                "outputs_fn(model, batch) must return a pair (outputs, targets), such as "
                f"(model(**batch).logits, batch['labels']). It returned {_returned(found)}."
            )
        held = pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, found[1])
        return found[0], held


LossLike = str | nn.Module | Callable[[Any, Any], Tensor] | Objective


def as_objective(
    loss: LossLike | None,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    *,
    default: str | None = None,
    required: bool = True,
) -> Objective:
    """The objective that the arguments ``loss``, ``loss_fn`` and ``outputs_fn`` mean.

    ``default`` is the loss if neither ``loss`` nor ``loss_fn`` is given; without a default there is
    none then, which is an error if one is ``required``.
    """
    if isinstance(loss, Objective):
        return loss
    if loss is None and loss_fn is None:
        if default is None and not required:
            return Objective(NoLoss(), outputs_fn=_checked(outputs_fn, "outputs_fn"))
        loss = default
    if (loss is None) == (loss_fn is None):
        given = "neither" if loss is None else "both"
        raise InputError(
            "Pass either loss= (a name, a torch loss or loss(outputs, targets)) or "
            f"loss_fn=loss_fn(model, batch). Got {given}."
        )
    if loss_fn is None:
        assert loss is not None
        assert not isinstance(loss, Objective)
        return Objective(as_loss(loss), outputs_fn=_checked(outputs_fn, "outputs_fn"))
    if outputs_fn is not None:
        raise InputError(
            "outputs_fn= goes with loss=, which compares its outputs and targets. Got loss_fn= "
            "too, which returns the loss itself: leave one of them out."
        )
    return Objective(LossItself(), loss_fn=_checked(loss_fn, "loss_fn"))


def as_loss(loss: str | nn.Module | Callable[[Any, Any], Tensor]) -> Loss:
    """The loss that a name (in any case), a torch loss module or a function means."""
    if isinstance(loss, str):
        name = loss.strip().lower().replace("-", "_").replace(" ", "_")
        name = "cross_entropy" if name == "ce" else name
        if name not in _NAMED:
            raise InputError(f"Unknown loss {loss!r}. {near_match(name, list(_NAMED))}")
        return _NAMED[name]()
    if isinstance(loss, type):
        raise InputError(
            f"loss is the class {loss.__name__}, not a loss. Make one: {loss.__name__}()."
        )
    if isinstance(loss, nn.Module):
        return _module_loss(loss)
    if not callable(loss):
        shown = loss if isinstance(loss, int | float) else kind_of(loss)
        raise InputError(
            "loss must be 'mse', 'cross_entropy', 'bce', a torch loss module or a function "
            f"loss(outputs, targets). Got {shown} instead."
        )
    _check_two_arguments(loss, "loss(outputs, targets)")
    name = getattr(loss, "__name__", type(loss).__name__)
    return CallableLoss(loss, f"{name}(outputs, targets), its own scale")


def _checked(function: Any, name: str) -> Any:
    """``loss_fn`` or ``outputs_fn`` if it can be one."""
    if function is None:
        return None
    what = f"{name}(model, batch)"
    if not callable(function) or isinstance(function, nn.Module | type):
        made = f"{function.__name__}()" if isinstance(function, type) else ""
        hint = f" It is a loss of outputs and targets: pass it as loss={made}."
        hint = hint if name == "loss_fn" else ""
        shown = repr(function) if isinstance(function, str) else kind_of(function)
        raise InputError(f"{name} must be a function {what}. Got {shown}.{hint}")
    _check_two_arguments(function, what, name)
    return function


def _check_two_arguments(function: Callable[..., Any], what: str, instead: str = "loss_fn") -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        called = "your_function" if name == "<lambda>" else name
        raise InputError(
            f"{name}{signature} cannot be called as {what}, with two arguments. For a function of "
            f"other arguments write {instead}=lambda model, batch: {called}(model, *batch)."
        ) from None


def _returned(found: Any) -> str:
    if not isinstance(found, tuple | list):
        return kind_of(found)
    return f"{kind_of(found)} of {', '.join(map(kind_of, found)) or 'nothing'}"


def _inside(model: nn.Module, error: Exception) -> bool:
    """Whether the error came out of a call of the model itself."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_locals.get("self") is model and frame.f_code.co_name != "__getattr__":
            return True
        trace = trace.tb_next
    return False


def _short(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0].partition("tensor(")
    text = f"{first[0]}{first[1] and 'tensor(...)'}"
    return f"{type(error).__name__}: {text[:200].rstrip('.')}."


def _shapes(tree: Any) -> str:
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return " and ".join(str(tuple(leaf.shape)) for leaf in leaves) or kind_of(tree)


def _module_loss(module: nn.Module) -> Loss:
    reduction = getattr(module, "reduction", "mean")
    if reduction == "none":
        raise InputError(
            f"{type(module).__name__}(reduction='none') gives one number per sample, not a scalar. "
            "Use reduction='mean' or 'sum'."
        )
    _check_two_arguments(module.forward, "loss(outputs, targets)")
    text = f"{shown_module(module)}, its own scale"
    weighted = any(getattr(module, name, None) is not None for name in ("weight", "pos_weight"))
    ignored = getattr(module, "ignore_index", None)
    unchanged = not weighted and (ignored is None or ignored < 0)  # a label that may occur
    if type(module) is nn.MSELoss:
        factor = "2/C times 'mse'" if reduction == "mean" else "2T times 'mse'"
        return SquaredLoss(f"{text} ({factor})", reduction)
    if type(module) is nn.CrossEntropyLoss and unchanged and module.label_smoothing == 0:
        return CrossEntropy(text, reduction)
    if type(module) is nn.NLLLoss and unchanged:
        return LogProbabilityLoss(module)
    if type(module) is nn.BCEWithLogitsLoss and unchanged:
        return BernoulliLoss(module)
    return CallableLoss(module, text)
