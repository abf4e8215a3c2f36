"""An optimizer of the user's model, made again for copies of it."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from normscope.errors import InputError
from normscope.results.wiring import Held
from normscope.train.optim import check_optimizer, made_by, optimizers

NAMES: dict[Any, str] = {SGD: "sgd", Adam: "adam", AdamW: "adamw"}


class Remade:
    """Makes the same optimizer, group by group, for the parameters of a copy.

    Args:
        optimizer: the user's optimizer of ``model``.
        model: whose parameters it holds.
        momentum: in place of its own, if given.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, momentum: float | None) -> None:
        self.kind: Any = type(optimizer)
        self.groups: list[dict[str, Any]] = []
        held: dict[int, int] = {}  # parameter -> number of its group
        for number, group in enumerate(optimizer.param_groups):
            settings = {k: v for k, v in group.items() if k != "params"}
            if settings.get("lr") == 0 and "initial_lr" in settings:  # a schedule that warms up
                settings["lr"] = settings["initial_lr"]
            settings.pop("initial_lr", None)
            if momentum is not None and "momentum" in settings:
                settings["momentum"] = momentum
            self.groups.append(settings)
            held |= {id(p): number for p in group["params"]}
        self.model = model
        self.places = [held.get(id(p)) for p in _trainable(model).values()]
        if not any(place is not None for place in self.places):  # it belongs to another model
            self.places = [0] * len(self.places)
        self.__qualname__ = self.__name__ = str(self)

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer of the trainable parameters of a copy, in their order."""
        found = list(parameters)
        known = self.places if len(found) == len(self.places) else [0] * len(found)
        groups = [
            {**settings, "params": [p for p, place in zip(found, known, strict=True)
                                    if place == number]}
            for number, settings in enumerate(self.groups)
        ]  # fmt: skip
        held = [group for group in groups if group["params"]]
        made: Optimizer = self.kind(held, **self._arguments())
        return made

    def _arguments(self) -> dict[str, Any]:
        """Settings that its class takes; groups may hold more, and bring them themselves."""
        taken = inspect.signature(self.kind).parameters
        open_end = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        return {k: v for k, v in self.groups[0].items() if open_end or k in taken}

    def of_changed(self, model: nn.Module) -> Remade:
        """The same for a changed copy: parameters keep their groups, new ones go to the first."""
        old = _trainable(self.model)
        before = dict(zip(old, self.places, strict=True))
        made = copy.copy(self)
        made.model = model
        # a parameter that a change gave another name has the same values
        same = {n: _first_same(p, old) for n, p in _trainable(model).items() if n not in before}
        made.places = [before.get(same.get(name, name), 0) for name in _trainable(model)]
        return made

    @property
    def rates(self) -> list[float]:
        """Learning rates of the groups."""
        return [float(group["lr"]) for group in self.groups if "lr" in group]

    @property
    def name(self) -> str | None:
        """As which our own optimizers make the same, with a rate and a momentum; or None."""
        name = NAMES.get(self.kind)
        if name is None or len(self.groups) > 1 or None in self.places:
            return None
        settings = self.groups[0]
        usual = optimizers[name]([nn.Parameter(torch.zeros(1))], 1.0, 0.0, 0.0).param_groups[0]
        free = ("lr", "momentum")
        same = all(usual.get(key) == value for key, value in settings.items() if key not in free)
        return name if same else None

    def __str__(self) -> str:
        shown = ", ".join(
            f"{k}={v}" for k, v in self.groups[0].items() if not (v is None or v is False)
        )
        more = f", {len(self.groups)} groups" if len(self.groups) > 1 else ""
        return f"{self.kind.__name__}({shown}{more})"


@dataclass(frozen=True, eq=False)
class Own:
    """The user's optimizer as it is, with its state.

    Attributes:
        optimizer: what the user gave.
        parameters: those of the user's model, in its order.
    """

    optimizer: Optimizer
    parameters: tuple[nn.Parameter, ...]

    @property
    def rates(self) -> list[float]:
        """Learning rate of every group; what a schedule warms up to where it begins at 0."""
        return [
            float(group["lr"] or group.get("initial_lr", 0.0))
            for group in self.optimizer.param_groups
            if "lr" in group
        ]

    def copied(self, model: nn.Module) -> Optimizer:
        """A copy that holds the parameters of ``model``, a copy of the user's, in their place."""
        pairs = zip(self.parameters, model.parameters(), strict=True)
        made = copy.deepcopy(self.optimizer, {id(own): twin for own, twin in pairs})
        made.load_state_dict(made.state_dict())  # moves the state to where the parameters are
        return made


@dataclass(frozen=True)
class Chosen:
    """An optimizer as training runs take it, and what its settings say."""

    optimizer: Any = "sgd"  # name, or function of the parameters
    lr: float | None = None
    momentum: float = 0.0
    notes: tuple[str, ...] = ()
    held: Held = field(default_factory=Held)
    foreign: frozenset[int] = frozenset()  # ids of what it holds beside the model's parameters
    own: Own | None = None


def chosen_optimizer(optimizer: Any, model: nn.Module, momentum: float | None) -> Chosen:
    """What a name, a function, or an optimizer of the model means."""
    own = 0.0 if momentum is None else momentum
    if isinstance(optimizer, str):
        optimizer = optimizer.lower()
        optimizers[optimizer]  # an unknown name is refused here
        if momentum and optimizer != "sgd":
            note = f"momentum is an argument of sgd; {optimizer} has none."
            return Chosen(optimizer, notes=(note,), held=Held(optimizer))
    if optimizer is None or isinstance(optimizer, str):
        name = optimizer or "sgd"
        return Chosen(name, None, own, held=Held(name, momentum=own))
    if not isinstance(optimizer, Optimizer):
        check_optimizer(optimizer)
        group = made_by(optimizer, [nn.Parameter(torch.zeros(1))]).param_groups[0]
        rate = group.get("lr")  # known before anything is measured
        trained = list(_trainable(model).values())
        held = held_by(made_by(optimizer, trained), model)[0] if trained else Held()
        return Chosen(
            optimizer, float(rate) if rate else None, own, held=replace(held, momentum=own)
        )
    made = Remade(optimizer, model, momentum)
    _refuse_what_cannot_be_made(made, model)
    notes: tuple[str, ...] = ()
    if len(set(made.rates)) > 1:
        notes = (
            f"The optimizer has groups with learning rates from {min(made.rates):.3g} to "
            f"{max(made.rates):.3g}: what is said of a rate means the first group's, "
            f"{made.rates[0]:.3g}, and the others in proportion.",
        )
    inertia = float(made.groups[0].get("momentum", 0.0))
    held, foreign = held_by(optimizer, model)
    held = replace(held, momentum=inertia)
    lr = next(iter(made.rates), None)
    mine = Own(optimizer, tuple(model.parameters()))
    return Chosen(made.name or made, lr, inertia, notes, held, foreign, mine)


def held_by(optimizer: Optimizer, model: nn.Module) -> tuple[Held, frozenset[int]]:
    """What an optimizer holds and does, and the ids of parameters that are not the model's."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    foreign = groups.keys() - {id(p) for p in named.values()}
    first, kind = optimizer.param_groups[0], type(optimizer)
    lr = first.get("lr")
    return Held(
        kind=kind.__name__,
        names=tuple(name for name, p in named.items() if id(p) in groups),
        foreign=len(foreign),
        lr=None if lr is None else float(lr),
        momentum=float(first.get("momentum", 0.0)),
        decays={
            name: float(groups[id(p)].get("weight_decay", 0.0) or 0.0)
            for name, p in named.items() if id(p) in groups
        },
        coupled="adamw" not in kind.__name__.lower() and not first.get("decoupled_weight_decay"),
        betas=tuple(float(beta) for beta in first.get("betas", ())),
        maximizes=any(group.get("maximize", False) for group in optimizer.param_groups),
        still=_still(optimizer),
        eps=float(first.get("eps") or 0.0),
    ), frozenset(foreign)  # fmt: skip


def _still(optimizer: Optimizer) -> float:
    """Share of the entries in groups of rate 0; a schedule that warms up from 0 has another one."""
    sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
    still = [
        group.get("lr") == 0 and not group.get("initial_lr") for group in optimizer.param_groups
    ]
    return sum(itertools.compress(sizes, still)) / max(sum(sizes), 1)


def _refuse_what_cannot_be_made(made: Remade, model: nn.Module) -> None:
    way_out = "Give a function of the parameters, such as lambda p: torch.optim.SGD(p, 0.1)."
    if made.kind is LBFGS:
        raise InputError(f"LBFGS asks for several losses a step, which is not supported. {way_out}")
    try:
        made(_trainable(model).values())
    except TypeError as error:
        raise InputError(
            f"{made.kind.__name__} cannot be made again for copies of the model: {error}. {way_out}"
        ) from error


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _first_same(parameter: nn.Parameter, old: dict[str, nn.Parameter]) -> str:
    """Name of the first with the same values; empty if there is none."""
    equal = (n for n, p in old.items() if p.shape == parameter.shape and torch.equal(p, parameter))
    return next(equal, "")
