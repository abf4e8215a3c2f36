"""The update on which a training blows up, with the states before and after it."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import Array, checked_count
from normscope.measure.divergence import Divergence
from normscope.measure.probes.landscape import landscape
from normscope.results.landscape import Landscape
from normscope.subject import process
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.data import repeatable
from normscope.subject.interrupts import interruptible
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn, as_objective
from normscope.subject.problem import model_device
from normscope.train.modes import kept_buffers, kept_mode, refuse_single_samples
from normscope.train.optim import OptimizerFactory
from normscope.train.options import TrainingOptions
from normscope.train.stability.copies import Origin
from normscope.train.stability.trials import Recipe

RULE = Divergence()
NONE = 1e-300  # of the loss at the start of a path: its limit is that of the training


@dataclass(frozen=True, eq=False, repr=False)
class DivergingUpdate:
    """One update: the diverging one, or the last that was made if none was.

    Attributes:
        diverged: whether the loss on the update's own batch broke the rule after it.
        step: number of the update, from 1.
        before: parameters before it, by name.
        after: parameters after it.
        batch: what it was computed on.
        loss_before: on that batch.
        loss_after: on the same batch; may be infinite or NaN.
        losses: mini-batch losses before every update, (step,).
        limit: loss above which an update counts as diverged.
        reason: why it counts as diverged, in words; empty if it does not.
        convention: every setting that was in effect.
    """

    diverged: bool
    step: int
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    batch: Any
    loss_before: float
    loss_after: float
    losses: Array
    limit: float
    reason: str
    convention: dict[str, Any] = field(default_factory=dict)

    @property
    def initial_loss(self) -> float:
        """Loss of the first batch before training."""
        return float(self.losses[0])

    def path(self, model: nn.Module, loss: LossLike | None = None, **options: Any) -> Landscape:
        """Loss and channel moments from before to after the update, on its own batch.

        Args:
            model: the network that was trained.
            loss: that of the training; or pass ``loss_fn``.
            **options: for :func:`normscope.landscape`: ``distances``, ``layers``, ``statistics``.
        """
        rule = Divergence(floor=self.limit, factor=NONE)
        return landscape(
            model, [self.batch], loss, start=self.before, end=self.after, divergence=rule, **options
        )

    def summary(self) -> str:
        """One line for a terminal."""
        if not self.diverged:
            return (
                f"No update of {self.step} diverged: the loss went from {self.initial_loss:.4g} to "
                f"{self.loss_after:.4g}"
            )
        return (
            f"Update {self.step} diverged: {self.reason} on its own batch, {self.loss_before:.4g} "
            f"before it (training began at {self.initial_loss:.4g})"
        )

    def __repr__(self) -> str:
        state = "diverged" if self.diverged else "did not diverge"
        return (
            f"DivergingUpdate(update {self.step} {state}, loss {self.loss_before:.4g} -> "
            f"{self.loss_after:.4g})"
        )


@process.measurement
def diverging_update(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    lr: float | None = None,
    max_steps: int = 100,
    optimizer: str | OptimizerFactory = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    num_batches: int | None = None,
    divergence: Divergence = RULE,
    seed: int = 0,
) -> DivergingUpdate:
    """Train a copy of ``model`` until an update makes the loss diverge on its own batch.

    The first update after which the loss on the same batch is not finite or above max(1000, 10
    times the initial loss) (Bjorck et al. 2018, Sec. 3.4, with the second term for networks that
    start above 1000). ``update.path(model, loss)`` then is the landscape between the two states,
    their Figs 5 and 6. Each update costs one forward pass more than in training. The model itself
    is left as it was.

    Args:
        model: any module.
        data: as in :func:`fit`.
        loss: as in :func:`fit`.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``.
        outputs_fn: as in :func:`fit`.
        lr: learning rate.
        max_steps: updates to wait for divergence; none is a result too.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, or a function of the parameters.
        momentum: SGD momentum.
        weight_decay: as in torch.
        batch_size: as in :func:`fit`.
        num_batches: as in :func:`fit`.
        divergence: the rule.
        seed: seed for order and dropout.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(net.weight, 1.0)
        >>> x = torch.ones(1, 1)  # each update multiplies the weight by 1 - lr
        >>> diverging_update(net, (x, 0 * x), "mse", lr=11.0)
        DivergingUpdate(update 2 diverged, loss 50 -> 5000)
    """
    steps = checked_count(max_steps, "max_steps")
    options = TrainingOptions(
        optimizer=optimizer, lr=lr, momentum=momentum, weight_decay=weight_decay,
        batch_size=batch_size, num_batches=num_batches, divergence=divergence, seed=seed,
    )  # fmt: skip
    recipe = Recipe(repeatable(data, steps), as_objective(loss, loss_fn, outputs_fn), options)
    with Origin(model, None).fresh(seed) as copy, contextlib.ExitStack() as stack:
        stack.enter_context(process.kept_generators(process.loader_generators(data)))
        stack.enter_context(process.isolated_random(options.seed, model_device(copy)))
        stack.enter_context(kept_mode(copy, training=True))
        stack.enter_context(torch.enable_grad())
        stream = stack.enter_context(contextlib.closing(recipe.batches(copy, options.seed)))
        watched = _Updates(copy, recipe.objective, options.build_optimizer(copy), divergence)
        with interruptible():
            for batch in itertools.islice(stream, steps):
                update = watched.made(batch)
                if update.diverged:
                    break
        return replace(update, convention=recipe.convention(copy, options))


@dataclass(eq=False)
class _Updates:
    """Makes updates one by one, and looks again at the batch of each."""

    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    rule: Divergence
    losses: list[float] = field(default_factory=list)

    def made(self, batch: Batch) -> DivergingUpdate:
        """One update, and what it did to the loss of its own batch."""
        before = self._state()
        self.optimizer.zero_grad(set_to_none=True)
        where = f"Batch {len(self.losses)}"
        refuse_single_samples(self.model, self.objective, batch, where=where)
        with readable_failures(self.model, batch, f"on batch {len(self.losses)}"):
            loss = self.objective.value(self.model, batch.copied())
        self.losses.append(float(loss.detach()))
        torch.autograd.backward(loss)
        self.optimizer.step()
        after = self._again(batch)
        reason = self.rule.reason(after, self.losses[0])
        return DivergingUpdate(
            diverged=bool(reason),
            step=len(self.losses),
            before=before,
            after=self._state(),
            batch=self.objective.item(batch),
            loss_before=self.losses[-1],
            loss_after=after,
            losses=np.array(self.losses, np.float64),
            limit=self.rule.limit(self.losses[0]),
            reason=reason,
        )

    def _again(self, batch: Batch) -> float:
        """The loss after the update; buffers and random generators are as if it had not been."""
        model, device = self.model, model_device(self.model)
        with process.kept_random(device), torch.no_grad(), kept_buffers(model), interruptible():
            return float(self.objective.value(model, batch.copied()))

    def _state(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
