"""One grammar of (model, data, loss): the same batches, loss or refusal from every function."""

from __future__ import annotations

import collections
import importlib
import inspect
import json
import math
import pkgutil
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

import normscope as ns
from normscope import train
from normscope.cli import main
from normscope.data import DataSet, batch_order, load_data
from normscope.diagnose import plan_examination
from normscope.errors import InputError, NormscopeError
from normscope.measure import ablation, unit_statistics
from normscope.measure.probes.layout import norm_layout
from normscope.measure.probes.modes import mode_losses
from normscope.measure.probes.signals import signals
from normscope.measure.regularization import decay_strengths
from normscope.measure.setup.samples import ROWS

N, SIZE, CLASSES = 300, 128, 3  # 128, 128 and 44 samples
SEEN: list[tuple[int, ...]] = []  # the rows that went into a network, pass by pass
TRAINED: list[tuple[int, ...]] = []  # those of passes with a graph
PARTS = ("loss", "statistics", "parameters", "batches", "left out", "seed")  # of a convention


def _samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (N,), generator=generator)


X, Y = _samples()


class Net(nn.Module):
    """Linear, batch norm, linear; it tells which rows it was given. Copies tell the same list."""

    def __init__(self, inputs: int = 8, classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(inputs, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        found = rows(x)
        SEEN.append(found)
        if torch.is_grad_enabled():
            TRAINED.append(found)
        return self.last(torch.relu(self.norm(self.first(x.flatten(1)))))


class NetOfTwo(Net):
    """The same with two inputs, both integers."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return super().forward((tokens * mask).double())


def rows(x: Tensor) -> tuple[int, ...]:
    """A number for every row."""
    return tuple(hash(row.tobytes()) for row in x.detach().numpy())


def fresh_lists() -> None:
    SEEN.clear()
    TRAINED.clear()


# ---- the functions


@dataclass(frozen=True)
class Function:
    """A function of (model, data, loss).

    Attributes:
        name: of the function.
        call: the function.
        settings: what keeps it short.
        looks: batches of three that it looks at.
        trains: copies, or the model, are trained.
        rearranges: it also passes batches whose samples are others of the same batch, or lie on
            the line through two of them.
        pool: its samples are one population; ``batch_size`` and ``num_batches`` mean other things.
        loss: the loss that it reports, None if it reports none.
        reported: how many batches that is the mean of.
        default: what it does without a loss: ``"cross_entropy"``, ``"none"`` or an error.
        convention: of the result.
        seeded: how a seed is given.
    """

    name: str
    call: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    looks: int = 2
    trains: bool = False
    rearranges: bool = False
    pool: bool = False
    loss: Callable[[Any], float] | None = None
    reported: int = 2
    default: str = ""
    convention: Callable[[Any], dict[str, Any]] = lambda result: result.convention
    seeded: Callable[[int], dict[str, Any]] = lambda seed: {"seed": seed}

    def __call__(self, model: nn.Module, data: Any, loss: Any = None, **how: Any) -> Any:
        given = {**self.settings, **how}
        if self.name == "what_if":
            return self.call(model, data, ["gamma=0.1"], loss, **given)
        result = self.call(model, data, loss, **given)
        if self.name == "Risk.from_data":
            result.value()  # that it looks at the batches
        return result

    def __str__(self) -> str:
        return self.name


FUNCTIONS = [
    Function("activations", ns.activations, default="none"),
    Function("gradients", ns.gradients, loss=lambda r: r.loss),
    Function("conditioning", ns.conditioning),
    Function("gradient_noise", ns.gradient_noise, {"draws": 4, "batch_sizes": [8]}, pool=True),
    Function("landscape", ns.landscape, {"distances": [0, 0.1]}, loss=lambda r: r.initial_loss),
    Function("order_parameters", ns.order_parameters, {"directions": 2}, default="none"),
    Function(
        "bn_regularization",
        ns.bn_regularization,
        {"batch_size": 8, "num_batches": 2, "probes": 1},
        pool=True,
    ),
    Function(
        "fit",
        ns.fit,
        {"lr": 0.1, "steps": 4},
        looks=3,
        trains=True,
        loss=lambda r: r.losses[0],
        reported=1,
    ),
    Function(
        "evaluate",
        ns.evaluate,
        looks=3,
        default="cross_entropy",
    ),
    Function(
        "max_stable_lr",
        ns.max_stable_lr,
        {"steps": 3, "seeds": 1, "tol": 4.0},
        looks=3,
        trains=True,
        loss=lambda r: r.trials[0].losses[0],
        reported=1,
        seeded=lambda seed: {"seeds": [seed]},
    ),
    Function(
        "examine",
        ns.examine,
        {"trial_seconds": 0},  # a trial looks at further batches, which it is trained on
        looks=1,
        rearranges=True,
        loss=lambda r: r["gradients"].loss,
        reported=1,
        default="cross_entropy",
    ),
    Function(
        "suggest_lr",
        ns.suggest_lr,
        {"steps": 2, "tol": 4.0},
        looks=3,
        trains=True,
        loss=lambda r: r.limit.trials[0].losses[0],
        reported=1,
        default="cross_entropy",
    ),
    Function(
        "what_if",
        ns.what_if,
        {"limits": False},
        loss=lambda r: r.before.loss,
        default="cross_entropy",
    ),
    Function(
        "Risk.from_data", ns.Risk.from_data, {"statistics": "batch"}, loss=lambda r: r.value()
    ),
    Function(
        "lr_range_test",
        train.lr_range_test,
        {"steps": 10},
        looks=3,
        trains=True,
        loss=lambda r: r.losses[0],
        reported=1,
    ),
    Function(
        "diverging_update",
        train.diverging_update,
        {"lr": 0.1, "max_steps": 4},
        looks=3,
        trains=True,
        loss=lambda r: r.initial_loss,
        reported=1,
    ),
    Function(
        "ablation",
        ablation,
        {"shares": [0], "orders": 1, "statistics": "batch"},
        loss=lambda r: r.mean_loss[0],
        default="cross_entropy",
    ),
    Function("unit_statistics", unit_statistics, default="none"),
    Function("norm_layout", norm_layout, default="none"),
    Function("mode_losses", mode_losses, loss=lambda r: r.train.loss, default="cross_entropy"),
    Function(
        "signals",
        signals,
        loss=lambda r: r.gradients.loss,
        convention=lambda r: r.gradients.convention,
    ),
    Function(
        "plan_examination", plan_examination, {"trial_seconds": 0}, looks=1, default="cross_entropy"
    ),
    Function("decay_strengths", decay_strengths, {"batch_size": 8, "probes": 1}, pool=True),
]
BY_NAME = {function.name: function for function in FUNCTIONS}
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=str)


def test_every_function_of_model_data_and_loss_is_in_the_table():
    """A new one has to be added above."""
    found = {"Risk.from_data"}
    for module in pkgutil.walk_packages(ns.__path__, "normscope."):
        if "._" in module.name or module.name.startswith("normscope.subject"):
            continue
        loaded = importlib.import_module(module.name)
        for name, thing in vars(loaded).items():
            if inspect.isfunction(thing) and thing.__module__ == module.name and name[0] != "_":
                wanted = {"model", "data", "loss"} <= set(inspect.signature(thing).parameters)
                found |= {name} if wanted else set()
    inside = {"as_subject"}  # what the others are made of
    later = {"adaptive_gamma_decay"}  # keeps its data for `decay_strengths`: D17
    assert found - inside - later == set(BY_NAME)


@every_function
def test_signature(function):
    parameters = inspect.signature(function.call).parameters
    names = list(parameters)
    first = ["model", "data", "changes", "loss"] if function.name == "what_if" else None
    assert names[: len(first or names[:3])] == (first or ["model", "data", "loss"])
    assert parameters["loss"].default is None
    own = () if function.pool else ("batch_size", "num_batches")
    for name in ("loss_fn", "outputs_fn", *own):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        if not function.pool:
            assert parameters["batch_size"].default is None


# ---- the kinds of data


class Items(Dataset):
    """Any list of samples as a torch Dataset."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class Flow(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


class Encoding(collections.UserDict):
    """As Hugging Face's: a mapping that is no dict."""


def pairs(size: int = SIZE) -> list[tuple[Tensor, Tensor]]:
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, N, size)]


def dicts() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in pairs()]


def tensors() -> TensorDataset:
    return TensorDataset(X, Y)


def seeded(size: int = SIZE, seed: int = 0, x: Tensor = X) -> list[Tensor]:
    """The inputs of all batches of a data set of rows."""
    order = batch_order(len(x), size, seed=seed, epoch=0, shuffle=True, drop_last=False)
    return [x[index] for index in order]


def in_order() -> list[Tensor]:
    return [x for x, _ in pairs()]


def own_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(tensors(), SIZE, shuffle=True, generator=generator)


def drawn(make: Callable[[], DataLoader]) -> list[Tensor]:
    """What a loader with a generator of its own gives next."""
    return [batch[0] for batch in make()]


def sampled_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(6)
    sampler = BatchSampler(RandomSampler(tensors(), generator=generator), SIZE, drop_last=False)
    return DataLoader(tensors(), batch_sampler=sampler)


@dataclass(frozen=True)
class Kind:
    """A way to give the same samples.

    Attributes:
        name: in words.
        make: the data.
        batches: the inputs of the batches it means, in their order.
        parts: inputs and labels of a batch as ``loss_fn`` and ``outputs_fn`` get it.
        plain: whether a batch is (inputs, targets), so that ``loss=`` alone is enough.
        rows: whether it is a data set of rows, whose batches have the size asked for.
        network: what it is given to.
    """

    name: str
    make: Callable[[], Any]
    batches: Callable[[], list[Tensor]]
    parts: Callable[[Any], tuple[Tensor, Tensor]] = lambda batch: (batch[0], batch[1])
    plain: bool = True
    rows: bool = False
    network: Callable[[], nn.Module] = Net

    def __str__(self) -> str:
        return self.name

    def how(self, loss: Any = "cross_entropy") -> dict[str, Any]:
        """The loss, said so that it fits the batches."""
        if self.plain:
            return {"loss": loss}
        return {"loss": loss, "outputs_fn": self.outputs}

    def outputs(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = self.parts(batch)
        return model(x), y


def _of_rows(name: str, make: Callable[[], Any], **more: Any) -> Kind:
    return Kind(name, make, seeded, rows=True, **more)


def _of_dicts(name: str, make: Callable[[], Any], count: int = 3) -> Kind:
    return Kind(
        name,
        make,
        lambda: in_order()[:count],
        parts=lambda batch: (batch["x"], batch["labels"]),
        plain=False,
    )


def _hugging_face(data: Any) -> Any:
    return pytest.importorskip("transformers").BatchEncoding(data)


def _digits() -> list[Tensor]:
    return seeded(x=load_data("digits").images.double())


KINDS = [
    Kind("name", lambda: "digits", _digits, rows=True, network=lambda: Net(64, 10)),
    _of_rows("pair", lambda: (X, Y)),
    _of_rows("list [x, y]", lambda: [X, Y]),
    _of_rows("numpy pair", lambda: (X.numpy(), Y.numpy())),
    _of_rows("((x,), y)", lambda: ((X,), Y), parts=lambda b: (b[0][0], b[1])),
    _of_rows("([x], y)", lambda: ([X], Y), parts=lambda b: (b[0][0], b[1])),
    _of_rows("({'x': x}, y)", lambda: ({"x": X}, Y), parts=lambda b: (b[0]["x"], b[1])),
    _of_rows("DataSet", lambda: DataSet(X, Y)),
    Kind(
        "DataSet.batches",
        lambda: DataSet(X, Y).batches(SIZE, seed=7),
        lambda: seeded(seed=7),
    ),
    _of_rows("TensorDataset", tensors),
    _of_rows("map Dataset", lambda: Items([*zip(X, Y, strict=True)])),
    _of_rows("Dataset of numpy and int", lambda: Items([*zip(X.numpy(), Y.tolist(), strict=True)])),
    _of_rows("Subset", lambda: Subset(TensorDataset(X.flip(0), Y.flip(0)), range(N - 1, -1, -1))),
    _of_rows(
        "ConcatDataset",
        lambda: ConcatDataset([TensorDataset(X[:90], Y[:90]), TensorDataset(X[90:], Y[90:])]),
    ),
    Kind("IterableDataset", Flow, in_order),
    Kind("DataLoader", lambda: DataLoader(tensors(), SIZE), in_order),
    Kind("DataLoader, its own generator", own_loader, lambda: drawn(own_loader)),
    Kind("DataLoader, its own sampler", sampled_loader, lambda: drawn(sampled_loader)),
    Kind("list of pairs", pairs, in_order),
    Kind("list of numpy pairs", lambda: [(x.numpy(), y.numpy()) for x, y in pairs()], in_order),
    Kind("list of lists", lambda: [[x, y] for x, y in pairs()], in_order),
    Kind("tuple of two batches", lambda: tuple(pairs()[:2]), lambda: in_order()[:2]),
    Kind("generator of pairs", lambda: iter(pairs()), in_order),
    Kind(
        "list of ({'x': x}, y)",
        lambda: [({"x": x}, y) for x, y in pairs()],
        in_order,
        parts=lambda b: (b[0]["x"], b[1]),
    ),
    _of_dicts("list of dicts", dicts),
    _of_dicts("one dict", lambda: dicts()[0], 1),
    _of_dicts("tuple of two dicts", lambda: tuple(dicts()[:2]), 2),
    _of_dicts("generator of dicts", lambda: iter(dicts())),
    _of_dicts("one UserDict", lambda: Encoding(dicts()[0]), 1),
    _of_dicts("list of UserDicts", lambda: [Encoding(batch) for batch in dicts()]),
    _of_dicts("one BatchEncoding", lambda: _hugging_face(dicts()[0]), 1),
    _of_dicts("list of BatchEncodings", lambda: [_hugging_face(batch) for batch in dicts()]),
    Kind(
        "Dataset of dicts",
        lambda: Items([{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]),
        seeded,
        parts=lambda batch: (batch["x"], batch["labels"]),
        plain=False,
        rows=True,
    ),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
PAIR = next(kind for kind in KINDS if kind.name == "pair")


def looked_at(batches: list[Tensor], passes: list[tuple[int, ...]]) -> list[int]:
    """The numbers of the whole batches among the passes, in the order of their first pass."""
    numbers = {rows(batch): number for number, batch in enumerate(batches)}
    return list(dict.fromkeys(numbers[found] for found in passes if found in numbers))


def assert_parts_of(batches: list[Tensor], passes: list[tuple[int, ...]]) -> None:
    """Every pass is over a stretch of one of the batches."""
    whole = [rows(batch) for batch in batches]
    for found in set(passes):
        starts = [(batch, batch.index(found[0])) for batch in whole if found[0] in batch]
        assert any(batch[start : start + len(found)] == found for batch, start in starts)


def on_lines(batch: Tensor) -> Tensor:
    """Where ``examine`` asks whether a network is linear."""
    few = batch[:ROWS]
    return 2 * few - few.roll(1, 0)


def assert_these_batches(function: Function, batches: list[Tensor], looks: int) -> None:
    """What went through the network were the first ``looks`` of ``batches`` in their order."""
    if function.pool:
        everything = sum(map(rows, batches), ())
        first = SEEN[0]
        assert everything[: len(first)] == first
        assert set().union(*SEEN) <= set(everything)
        return
    assert looked_at(batches, TRAINED if function.trains else SEEN) == list(range(looks))
    if function.rearranges:
        known = [*batches[:looks], *map(on_lines, batches[:looks])]
        assert set().union(*SEEN) <= set(sum(map(rows, known), ()))
    elif not function.trains:
        assert_parts_of(batches[:looks], SEEN)


@every_kind
@every_function
def test_same_batches(function, kind):
    fresh_lists()
    function(kind.network(), kind.make(), **kind.how())
    batches = kind.batches()
    short = len(batches[-1]) < len(batches[0])
    most = len(batches) - 1 if short and function.looks == 2 else len(batches)
    looks = {1: 1, 2: min(most, 8), 3: most}[function.looks]
    if kind.name == "name" and function.trains:  # so few updates do not come through an epoch
        looks = len(looked_at(batches, TRAINED))
        assert looks > 1
    assert_these_batches(function, batches, looks)


def test_a_shuffled_loader_without_a_generator_gives_every_function_the_same():
    """Its order is drawn from the seed, whatever the global generator is at."""
    orders, places = [], {row: place for place, row in enumerate(rows(X))}
    for seed in (0, 1):
        fresh_lists()
        loader = DataLoader(tensors(), SIZE, shuffle=True)
        ns.evaluate(Net(), loader, "cross_entropy", seed=seed)
        orders.append(list(SEEN))
        batches = [X[[places[row] for row in batch]] for batch in SEEN]
        for number, function in enumerate(FUNCTIONS):
            torch.manual_seed(number)
            fresh_lists()
            function(Net(), loader, "cross_entropy", **function.seeded(seed))
            assert_these_batches(function, batches, function.looks)
    assert orders[0] != orders[1]
    assert sorted(sum(orders[0], ())) == sorted(sum(orders[1], ())) == sorted(rows(X))


MEASURED = [f for f in FUNCTIONS if not f.trains and not f.pool]
LOOKING = [f for f in MEASURED if f.name != "plan_examination"]  # and telling
TRAINING = [f for f in FUNCTIONS if f.trains]


@pytest.mark.parametrize("function", [*MEASURED, *TRAINING], ids=str)
def test_a_smaller_number_of_batches_is_a_prefix(function):
    batches, ends = seeded(50), (1, 2, 3)
    found = []
    for number in ends:
        fresh_lists()
        function(Net(), (X, Y), "cross_entropy", batch_size=50, num_batches=number)
        found.append(looked_at(batches, TRAINED if function.trains else SEEN))
    every = [list(range(number)) for number in ends]
    if function.name == "suggest_lr":  # the curvature is that of so many; it trains on all
        assert [numbers[: len(want)] for numbers, want in zip(found, every, strict=True)] == every
    else:
        assert found == every


@pytest.mark.parametrize("function", [*MEASURED, *TRAINING], ids=str)
def test_size_and_seed_are_those_of_every_function(function):
    fresh_lists()
    function(Net(), (X, Y), "cross_entropy", batch_size=100, **function.seeded(3))
    assert_these_batches(function, seeded(100, seed=3), min(3, 3 if function.looks > 1 else 1))


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.pool], ids=str)
def test_the_seed_orders_a_population(function):
    fresh_lists()
    function(Net(), (X, Y), "cross_entropy", seed=3)
    assert_these_batches(function, seeded(seed=3), 3)


@pytest.mark.parametrize("name", ["fit", "max_stable_lr", "lr_range_test", "diverging_update"])
def test_training_goes_on_in_the_same_order(name):
    """Epoch after epoch as `fit` does."""
    steps = {"steps": 10} if name != "diverging_update" else {"max_steps": 10}
    fresh_lists()
    BY_NAME[name](Net(), (X, Y), "cross_entropy", **steps)
    order = [
        rows(X[index])
        for epoch in range(4)
        for index in batch_order(N, SIZE, seed=0, epoch=epoch, shuffle=True, drop_last=False)
    ]
    graphs = [found for found in TRAINED if len(found) != 1]
    first = 0 if name in ("fit", "diverging_update") else 1  # the guess takes a gradient
    assert graphs[first : first + 8] == order[:8]


# ---- conventions


NO_CONVENTION = ("plan_examination", "decay_strengths")  # a plan, and an array per layer


@every_function
def test_every_result_says_what_was_measured(function):
    if function.name in NO_CONVENTION:
        return
    result = function(Net(), (X, Y), "cross_entropy", **function.seeded(3))
    convention = function.convention(result)
    assert [part for part in PARTS if part not in convention] == []
    assert "cross_entropy" in convention["loss"]
    assert "3" in str(convention["seed"])


@pytest.mark.parametrize("function", LOOKING, ids=str)
@pytest.mark.parametrize(
    ("number", "batches", "left_out"),
    [(1, 1, 0), (2, 2, 0), (3, 2, 44), (8, 2, 44)],
    ids=["one", "two", "three", "eight"],
)
def test_a_shorter_last_batch_is_left_out_and_told(function, number, batches, left_out):
    result = function(Net(), (X, Y), "cross_entropy", num_batches=number)
    convention = function.convention(result)
    if function.name == "evaluate" and left_out:  # every sample counts
        assert convention["samples"] == "300 in 3 batches"
        assert convention["left out"] == "none"
        assert "of 100 samples" not in convention["batches"]
        return
    several = "es" if batches > 1 else ""
    assert convention["batches"] == f"{batches} batch{several} of 128 samples"
    assert convention["left out"].startswith("44 samples" if left_out else "none")


@pytest.mark.parametrize("function", LOOKING, ids=str)
def test_a_short_batch_that_is_the_only_one_counts(function):
    fresh_lists()
    result = function(Net(), (X[:44], Y[:44]), "cross_entropy")
    convention = function.convention(result)
    assert (convention["batches"], convention["left out"]) == ("1 batch of 44 samples", "none")
    places = {row: i for i, row in enumerate(rows(X[:44]))}
    whole = next(found for found in SEEN if len(found) == 44)
    first = X[[places[row] for row in whole]]  # in the order that it was taken in
    extra = set(rows(on_lines(first))) if function.rearranges else set()
    assert set(sum(SEEN, ())) - extra == set(rows(X[:44]))


@pytest.mark.parametrize("function", LOOKING, ids=str)
def test_short_batches_in_the_middle_count(function):
    """Only a last one is left out."""
    sizes = [50, 20, 50, 30]
    parts = [*zip(X[:150].split(sizes), Y[:150].split(sizes), strict=True)]
    result = function(Net(), parts, "cross_entropy", num_batches=4)
    samples = 150 if function.name == "evaluate" else 120
    assert function.convention(result)["samples"].startswith(f"{samples} in ")


# ---- what can be read only once


class Counted:
    """A generator of batches that counts how many it gave."""

    def __init__(self, total: int = 70, size: int = 8) -> None:
        self.given, self._total, self._size = 0, total, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(self._total):
            self.given += 1
            start = 4 * i
            yield X[start : start + self._size], Y[start : start + self._size]


READ = {"fit": 4, "max_stable_lr": 4, "lr_range_test": 10, "diverging_update": 4, "evaluate": 70,
        "gradient_noise": 70, "bn_regularization": 70, "decay_strengths": 70, "examine": 1,
        "plan_examination": 1}  # fmt: skip


@every_function
def test_a_generator_is_read_as_far_as_needed(function):
    source = Counted()
    function(Net(), iter(source), "cross_entropy")
    assert source.given == READ.get(function.name, 8)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("function", [*MEASURED, *TRAINING], ids=str)
def test_a_generator_is_read_as_far_as_asked(function, number):
    source = Counted()
    fresh_lists()
    function(Net(), iter(source), "cross_entropy", num_batches=number)
    assert source.given == number
    batches = [X[4 * i : 4 * i + 8] for i in range(number)]
    extra = set(sum(map(rows, map(on_lines, batches)), ())) if function.rearranges else set()
    assert set(sum(SEEN, ())) - extra == set(rows(X[: 4 * number + 4]))


@every_function
def test_a_generator_gives_what_a_list_gives(function):
    whole = pairs(100)
    first = function(Net(), iter(whole), "cross_entropy")
    assert numbers_of(first) == numbers_of(function(Net(), whole, "cross_entropy"))


# ---- losses


def numbers_of(result: Any) -> Any:
    """All of a result but what names its arguments and what a clock says."""
    if isinstance(result, ns.Risk):
        return result.value(), result.gradient().tolist()
    if isinstance(result, tuple):
        return [numbers_of(part) for part in result]
    if hasattr(result, "to_dict"):
        result = result.to_dict()
    elif hasattr(result, "__dataclass_fields__"):
        result = {name: getattr(result, name) for name in ("losses", "loss_after", "step")}
    return _without_words(result)


NOT_NUMBERS = {"convention", "seconds", "plan", "notes", "theory_reason", "loss_kind", "estimate",
               "findings", "numbers", "loss", "steps", "data"}  # fmt: skip


def _without_words(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {k: _without_words(v) for k, v in thing.items() if k not in NOT_NUMBERS}
    if isinstance(thing, list | tuple):
        return [_without_words(part) for part in thing]
    if isinstance(thing, np.ndarray | Tensor):
        return thing.tolist()
    return repr(thing) if isinstance(thing, float) else thing  # NaN is NaN


def odd(x: Tensor, y: Tensor) -> Tensor:
    """A loss of outputs and targets, whatever its parameters are called."""
    return functional.cross_entropy(x, y)


def model_and_batch(model: Tensor, batch: Tensor) -> Tensor:
    """Another one, with the names of the other grammar."""
    return functional.cross_entropy(model, batch)


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    hot = functional.one_hot(targets, outputs.shape[1])
    return 0.5 * (outputs - hot).square().sum(1).mean()


class OwnLoss(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(a, b)


@dataclass(frozen=True)
class Form:
    """A way to say a loss; ``value`` is what it is."""

    name: str
    settings: Callable[[Kind], dict[str, Any]]
    value: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy

    def __str__(self) -> str:
        return self.name


def _as_loss(name: str, loss: Any, value: Any = functional.cross_entropy) -> Form:
    return Form(name, lambda kind: kind.how(loss), value)


def _as_loss_fn(name: str, value: Any) -> Form:
    def settings(kind: Kind) -> dict[str, Any]:
        return {"loss_fn": lambda model, batch: value(*kind.outputs(model, batch))}

    return Form(name, settings, value)


def _as_outputs(name: str, loss: Any, value: Any) -> Form:
    return Form(name, lambda kind: {"loss": loss, "outputs_fn": kind.outputs}, value)


FORMS = [
    _as_loss("cross_entropy", "cross_entropy"),
    _as_loss("CROSS-Entropy", "CROSS-Entropy"),
    _as_loss("CrossEntropyLoss()", nn.CrossEntropyLoss()),
    _as_loss("a module of one's own", OwnLoss()),
    _as_loss("functional", functional.cross_entropy),
    _as_loss("loss(x, y)", odd),
    _as_loss("loss(model, batch) of outputs and targets", model_and_batch),
    _as_loss_fn("loss_fn", functional.cross_entropy),
    _as_outputs("outputs_fn, a name", "cross_entropy", functional.cross_entropy),
    _as_outputs("outputs_fn, a function", odd, functional.cross_entropy),
    _as_loss("mse", "mse", half_squares),
    _as_loss("MSE", "MSE", half_squares),
    _as_loss("half squares", half_squares, half_squares),
    _as_loss(
        "MSELoss()",
        nn.MSELoss(),
        lambda outputs, targets: half_squares(outputs, targets) * 2 / outputs.shape[1],
    ),
    _as_loss_fn("loss_fn, squares", half_squares),
    _as_outputs("outputs_fn, mse", "mse", half_squares),
]
QUICK = ("cross_entropy", "loss(x, y)", "loss_fn", "outputs_fn, a name", "mse", "MSELoss()",
         "loss_fn, squares", "outputs_fn, mse")  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS, ids=str)


def expected_loss(value: Any, batches: int, *, size: int = SIZE, seed: int = 0) -> float:
    """Mean over the first batches, by torch alone."""
    order = batch_order(N, size, seed=seed, epoch=0, shuffle=True, drop_last=False)[:batches]
    with torch.no_grad():
        found = [float(value(Net()(X[index]), Y[index])) for index in order]
    return sum(found) / len(found)


def expected_evaluation(value: Any, model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(value(model.eval()(x), y))


def hides_outputs(form: Form) -> bool:
    return "loss_fn" in form.settings(PAIR)


@every_form
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.loss], ids=str)
def test_same_loss(function, form):
    result = function(Net(), (X, Y), **form.settings(PAIR))
    value = expected_loss(form.value, function.reported)
    assert function.loss(result) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "function", [f for f in FUNCTIONS if not f.loss and f.name != "evaluate"], ids=str
)
def test_same_numbers_for_every_way_to_say_a_loss(function):
    """Of functions that do not report the loss itself: cross-entropy first, then squares."""
    found: dict[bool, list[Any]] = {False: [], True: []}
    for form in FORMS:
        if form.name == "MSELoss()":
            continue
        if hides_outputs(form) and function.name in ("bn_regularization", "decay_strengths"):
            with pytest.raises(InputError, match=r"hides the outputs.*outputs_fn="):
                function(Net(), (X, Y), **form.settings(PAIR))
            continue
        result = function(Net(), (X, Y), **form.settings(PAIR))
        if function.name == "plan_examination":  # what can be measured depends on the form
            continue
        squares = form.value is not functional.cross_entropy
        found[squares].append(numbers_of(result))
    for numbers in found.values():
        for other in numbers[1:]:
            assert_close(numbers[0], other)


def assert_close(a: Any, b: Any) -> None:
    """The same structure with the same numbers, up to rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_close(one, other)
    elif isinstance(a, str) and _is_number(a):
        assert float(a) == pytest.approx(float(b), rel=1e-6, abs=1e-12, nan_ok=True)
    elif isinstance(a, int | float):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-12)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", [f for f in FORMS if f.name in QUICK], ids=str)
@every_kind
def test_evaluation_of_every_data_with_every_loss(kind, form):
    """The product of all, for the quickest function."""
    batches = kind.batches()
    if kind.name == "name":
        data = load_data("digits")
        x, y = data.images.double(), data.labels
        expected = expected_evaluation(form.value, kind.network(), x, y)
    else:
        places = {row: place for place, row in enumerate(rows(X))}
        index = [places[row] for batch in batches for row in rows(batch)]
        expected = expected_evaluation(form.value, kind.network(), X[index], Y[index])
    found = ns.evaluate(kind.network(), kind.make(), **form.settings(kind))
    assert found.loss == pytest.approx(expected, rel=1e-12)
    assert found.num_samples == sum(map(len, batches))


@every_kind
@pytest.mark.parametrize("name", ["gradients", "fit"])
def test_loss_of_every_kind_of_data(name, kind):
    function = BY_NAME[name]
    first = function(kind.network(), kind.make(), num_batches=1, **kind.how())
    if kind.name == "name":
        data = load_data("digits")
        index = batch_order(len(data), SIZE, seed=0, epoch=0, shuffle=True, drop_last=False)[0]
        x, y = data.images[index].double(), data.labels[index]
    else:
        places = {row: place for place, row in enumerate(rows(X))}
        index = [places[row] for row in rows(kind.batches()[0])]
        x, y = X[index], Y[index]
    with torch.no_grad():
        expected = float(functional.cross_entropy(kind.network()(x), y))
    assert function.loss(first) == pytest.approx(expected, rel=1e-12)


def test_labels_are_one_hot_under_mse_everywhere():
    hot = functional.one_hot(Y, CLASSES).double()
    for function in FUNCTIONS:
        if function.name in ("plan_examination", "norm_layout"):
            continue
        labels = function(Net(), (X, Y), "mse")
        assert_close(numbers_of(labels), numbers_of(function(Net(), (X, hot), "mse")))
    one = [ns.Risk(Net(), X, y, loss="mse", statistics="batch") for y in (Y, hot)]
    with torch.no_grad():
        expected = float(half_squares(Net()(X), Y))
    assert one[0].value() == one[1].value() == pytest.approx(expected)


def test_nothing_is_lost_with_outputs_fn():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))
    first = ns.order_parameters(net, (X, Y), "cross_entropy")
    assert first.theory_reason == ""
    again = ns.order_parameters(net, (X, Y), "cross_entropy", outputs_fn=PAIR.outputs)
    assert again.theory_reason == ""


def test_an_examination_loses_nothing_with_outputs_fn():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))
    kind = next(kind for kind in KINDS if kind.name == "list of dicts")
    found = ns.examine(net, pairs(), preset="standard")
    again = ns.examine(net, dicts(), preset="standard", **kind.how())
    assert [step.status for step in again.plan.steps] == ["ok"] * len(again.plan.steps)
    assert list(found.measurements) == list(again.measurements)
    for name in ("sharpness", "density", "outliers", "prediction"):
        assert_close(numbers_of(found[name]), numbers_of(again[name]))


@pytest.mark.parametrize("name", ["gradients", "fit", "Risk.from_data"])
def test_two_integer_inputs_are_inputs(name):
    tokens = torch.randint(0, 5, (N, 8), generator=torch.Generator().manual_seed(2))
    data = ((tokens, torch.ones_like(tokens)), Y)
    fresh_lists()
    BY_NAME[name](NetOfTwo(), data, "cross_entropy")
    assert SEEN[0][:8] == rows(seeded(x=tokens.double())[0])[:8]


@pytest.mark.parametrize("name", ["gradients", "fit", "gradient_noise", "bn_regularization"])
def test_what_is_no_tensor_goes_with_its_batch(name):
    items = [{"x": x, "labels": y, "name": "a"} for x, y in zip(X, Y, strict=True)]
    kind = next(kind for kind in KINDS if kind.name == "Dataset of dicts")
    function = BY_NAME[name]
    found = function(Net(), Items(items), **kind.how())
    assert_close(numbers_of(found), numbers_of(function(Net(), kind.make(), **kind.how())))


# ---- bad input


class Picture:
    """As PIL's: no tensor, no array."""


def used_up() -> Iterator[Any]:
    batches = iter(pairs())
    list(batches)
    return batches


def unpacks(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


def takes_parts(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def takes_keys(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"])


def asks_the_model(model: nn.Module, batch: Any) -> Tensor:
    return model(**batch).loss


def squares(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().mean()


def by_method(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.log_softmax(1).gather(1, targets[:, None]).mean()


def of_three(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def whole() -> tuple[Tensor, Tensor]:
    return X, Y


def short_targets() -> list[tuple[Tensor, Tensor]]:
    return [(X[:8], Y[:7])]


@dataclass(frozen=True)
class Bad:
    """What cannot be used.

    Attributes:
        name: in words.
        make: the data.
        settings: loss and more.
        says: patterns that the message must hold: what was given, what to write instead.
        sized: it is about ``batch_size`` and ``num_batches``, which pools have of their own.
    """

    name: str
    make: Callable[[], Any]
    settings: dict[str, Any]
    says: tuple[str, ...]
    sized: bool = False

    def __str__(self) -> str:
        return self.name


CE = {"loss": "cross_entropy"}
POOLS = ("bn_regularization", "decay_strengths")  # do without loss_fn
NO_BATCHES = (r"no batches.*(empty|used up)", r"Pass a list")
STRUCTURE = (r"Batch 1 has another structure", r"after", r"collate_fn")
LENGTH = (r"\b8\b", r"\b7\b")
NO_TENSORS = (r"(str|Picture)", r"(transform|collate_fn|tensors)")
PASS_LOSS_FN = (r"pass it as loss_fn=",)
PASS_LOSS = (r"pass it as loss=",)
BAD = [
    Bad("empty list", list, CE, NO_BATCHES),
    Bad(
        "loader without a batch",
        lambda: DataLoader(TensorDataset(X[:5], Y[:5]), 10, drop_last=True),
        CE,
        NO_BATCHES,
    ),
    Bad("used-up generator", used_up, CE, NO_BATCHES),
    Bad("empty Dataset", lambda: Items([]), CE, (r"Items is empty",)),
    Bad("empty pair", lambda: (X[:0], Y[:0]), CE, (r"at least one",)),
    Bad("another number of parts", lambda: [pairs()[0], (X, Y, Y)], CE, STRUCTURE),
    Bad("another kind of batch", lambda: [pairs()[0], dicts()[1]], CE, STRUCTURE),
    Bad(
        "other keys",
        lambda: [dicts()[0], {"x": X}],
        {"loss": "cross_entropy", "outputs_fn": KINDS[-1].outputs},
        STRUCTURE,
    ),
    Bad("fewer targets than inputs", lambda: (X, Y[:-1]), CE, (r"\b300\b", r"\b299\b", r"Cut")),
    Bad("fewer targets in a batch", short_targets, CE, LENGTH),
    Bad("fewer targets, mse", short_targets, {"loss": "mse"}, LENGTH),
    Bad("fewer targets, a function", short_targets, {"loss": odd}, LENGTH),
    Bad(
        "fewer targets, a module",
        short_targets,
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        LENGTH,
    ),
    Bad(
        "Dataset of pictures",
        lambda: Items([(Picture(), 1)] * 40),
        CE,
        (r"Items are not tensors.*Picture", r"transform"),
    ),
    Bad("Dataset of strings", lambda: Items([("a cat", 1)] * 40), CE, NO_TENSORS),
    Bad("batches of strings", lambda: [(["a cat"], Y[:1])], CE, NO_TENSORS),
    Bad("batches of pictures", lambda: [(Picture(), Y[:1])], CE, NO_TENSORS),
    Bad(
        "loader that cannot collate",
        lambda: DataLoader(Items([(Picture(), 1)] * 40), 8),
        CE,
        (r"loader failed at its first batch", r"Picture"),
    ),
    Bad("one tensor", lambda: X, CE, (r"Got a Tensor", r"\(inputs, None\)")),
    Bad("nothing", lambda: None, CE, (r"Got", r"loader, a torch Dataset")),
    Bad("unknown name", lambda: "digitz", CE, (r"'digitz'", r"'digits'")),
    Bad(
        "class of a loss",
        whole,
        {"loss": nn.CrossEntropyLoss},
        (r"class CrossEntropyLoss", r"CrossEntropyLoss\(\)"),
    ),
    Bad("loss(model, x, y)", whole, {"loss": of_three}, (r"of_three\(model", r"loss_fn=lambda")),
    Bad("loss_fn(model, x, y)", whole, {"loss_fn": of_three}, (r"of_three\(", r"loss_fn=lambda")),
    Bad("unknown loss", whole, {"loss": "crossentropy"}, (r"'crossentropy'", r"'cross_entropy'")),
    Bad("number as a loss", whole, {"loss": 3}, (r"Got 3", r"'mse', 'cross_entropy'")),
    Bad(
        "loss of every sample",
        whole,
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        (r"reduction='none'", r"'mean' or 'sum'"),
    ),
    Bad("both", whole, {"loss": "mse", "loss_fn": takes_parts}, (r"either loss=", r"Got both")),
    Bad("loss_fn as loss, unpacks", whole, {"loss": unpacks}, PASS_LOSS_FN),
    Bad("loss_fn as loss, parts", whole, {"loss": takes_parts}, PASS_LOSS_FN),
    Bad("loss_fn as loss, the model's", whole, {"loss": asks_the_model}, PASS_LOSS_FN),
    Bad("loss as loss_fn, a name", whole, {"loss_fn": "mse"}, (r"Got 'mse'", *PASS_LOSS)),
    Bad("loss as loss_fn, a module", whole, {"loss_fn": nn.MSELoss()}, (r"MSELoss", *PASS_LOSS)),
    Bad("loss as loss_fn, of torch", whole, {"loss_fn": functional.cross_entropy}, PASS_LOSS),
    Bad("loss as loss_fn, operators", whole, {"loss_fn": squares}, PASS_LOSS),
    Bad("loss as loss_fn, calls torch", whole, {"loss_fn": odd}, PASS_LOSS),
    Bad("loss as loss_fn, methods", whole, {"loss_fn": by_method}, PASS_LOSS),
    Bad(
        "outputs_fn with loss_fn",
        whole,
        {"loss_fn": takes_parts, "outputs_fn": PAIR.outputs},
        (r"outputs_fn= goes with loss=", r"leave one"),
    ),
    Bad(
        "outputs_fn without targets",
        whole,
        {**CE, "outputs_fn": lambda model, batch: model(batch[0])},
        (r"must return a pair", r"returned a Tensor"),
    ),
    Bad(
        "outputs_fn of three things",
        whole,
        {**CE, "outputs_fn": lambda model, batch: (model(batch[0]), batch[1], 0)},
        (r"must return a pair", r"a tuple of a Tensor, a Tensor, an int"),
    ),
    Bad(
        "outputs_fn(model, x, y)",
        whole,
        {**CE, "outputs_fn": lambda model, x, y: (model(x), y)},
        (r"outputs_fn\(model, batch\)", r"outputs_fn=lambda model, batch"),
    ),
    Bad("outputs_fn is no function", whole, {**CE, "outputs_fn": "logits"}, (r"Got 'logits'",)),
    Bad("batch_size=0", whole, {**CE, "batch_size": 0}, (r"batch_size", r"Got 0"), sized=True),
    Bad("batch_size=2.5", whole, {**CE, "batch_size": 2.5}, (r"Got 2\.5", r"whole"), sized=True),
    Bad("num_batches=0", whole, {**CE, "num_batches": 0}, (r"num_batches", r"Got 0"), sized=True),
    Bad(
        "batch_size with a loader",
        lambda: DataLoader(tensors(), SIZE),
        {**CE, "batch_size": 32},
        (r"batch_size=32", r"DataLoader brings its own", r"Set it there"),
        sized=True,
    ),
    Bad(
        "batch_size with a list",
        pairs,
        {**CE, "batch_size": 32},
        (r"batch_size=32", r"list brings its own"),
        sized=True,
    ),
    Bad(
        "batch_size with batches of a DataSet",
        lambda: DataSet(X, Y).batches(64),
        {**CE, "batch_size": 32},
        (r"batch_size=32", r"(Batches|DataSet\.batches).* brings its own"),
        sized=True,
    ),
    Bad("labels out of range", lambda: (X, Y + 1), CE, (r"1 to 3", r"0\.\.2")),
    Bad("labels out of range, mse", lambda: (X, Y + 1), {"loss": "mse"}, (r"1 to 3", r"0\.\.2")),
    Bad("inputs that are not finite", lambda: (X / 0, Y), CE, (r"hold -?inf at", r"Remove")),
    Bad(
        "model that cannot take them",
        lambda: (X[:, :5], Y),
        CE,
        (r"\d+x5 and 8x4", r"inputs float64"),
    ),
]
LONGEST = 480  # characters of a message


def refused(function: Function, bad: Bad) -> NormscopeError:
    """The error, which must be one of normscope's."""
    settings = dict(bad.settings)
    if function.name in ("examine", "plan_examination") and "num_batches" not in settings:
        settings["num_batches"] = 2  # more than the first batch
    with pytest.raises(NormscopeError) as caught:
        function(Net(), bad.make(), **settings)
    return caught.value


def _refusals() -> list[Any]:
    """Every function with every bad input; pools have sizes and numbers of their own."""
    found = []
    for bad in BAD:
        for function in FUNCTIONS:
            if bad.sized and function.pool:
                continue
            found.append(pytest.param(function, bad, id=f"{function}-{bad}"))
    return found


PLACE = re.compile(r"^Batch \d+ of epoch \d+: |batch \d+| \(\d+ of \d+ values are not finite\)")


@pytest.mark.parametrize(("function", "bad"), _refusals())
def test_bad_input_is_refused_in_words(function, bad):
    error = refused(function, bad)
    message = str(error)
    if "loss_fn" in bad.settings and function.name in POOLS and "hides the outputs" in message:
        assert "outputs_fn=" in message
        return
    assert bad.name.startswith("model that") or isinstance(error, InputError)
    for pattern in bad.says:
        assert re.search(pattern, message, re.DOTALL), message
    assert "\n" not in message
    assert len(message) < LONGEST
    if not function.pool and not bad.name.startswith("model that"):
        usual = str(refused(BY_NAME["gradients"], bad))
        assert PLACE.sub("", message) == PLACE.sub("", usual)


def test_a_loss_is_asked_for_where_it_is_needed():
    for function in FUNCTIONS:
        if function.default:
            function(Net(), (X, Y))
            continue
        with pytest.raises(InputError, match=r"either loss= .* or loss_fn=.*Got neither"):
            function(Net(), (X, Y))


def test_the_default_loss_is_cross_entropy():
    for function in FUNCTIONS:
        if function.default == "cross_entropy":
            named = numbers_of(function(Net(), (X, Y), "cross_entropy"))
            assert numbers_of(function(Net(), (X, Y))) == named


def test_targets_are_asked_for_where_they_are_needed():
    for function in FUNCTIONS:
        if function.default == "none" or function.name == "Risk.from_data":
            continue
        with pytest.raises(InputError, match=r"(data has|data have) (no targets|none)"):
            function(Net(), (X, None), "cross_entropy")


@pytest.mark.parametrize("name", ["cross_entropy", "loss_fn", "outputs_fn, a name"])
@pytest.mark.parametrize("function", TRAINING, ids=str)
def test_a_last_batch_of_one_sample_under_batch_norm(function, name):
    form = next(form for form in FORMS if form.name == name)
    steps = {"steps": 3} if function.name == "suggest_lr" else {}
    with pytest.raises(InputError, match=r"one sample.*normalizes by the statistics"):
        function(Net(), (X, Y), batch_size=N - 1, **steps, **form.settings(PAIR))


# ---- side effects


class Drawing(Dataset):
    """Its samples are drawn from all global generators."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(8) + np.random.rand() + random.random()  # noqa: NPY002
        return X[index] + 1e-3 * noise, Y[index]


def _own(generator: torch.Generator) -> DataLoader:
    return DataLoader(Drawing(), SIZE, shuffle=True, generator=generator)


def _sampler(generator: torch.Generator) -> DataLoader:
    return DataLoader(Drawing(), SIZE, sampler=RandomSampler(Drawing(), generator=generator))


def _batch_sampler(generator: torch.Generator) -> DataLoader:
    rows_drawn = RandomSampler(Drawing(), generator=generator)
    return DataLoader(Drawing(), batch_sampler=BatchSampler(rows_drawn, SIZE, drop_last=False))


def _global_states() -> list[Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), kind, keys.tolist(), rest, random.getstate()]


@pytest.mark.parametrize("loader", [_own, _sampler, _batch_sampler])
@every_function
def test_generators_are_left_as_they_were(function, loader):
    generator = torch.Generator().manual_seed(5)
    data, before = loader(generator), generator.get_state()
    net = Net()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    outside = _global_states()
    function(net, data, "cross_entropy")
    assert _global_states() == outside
    if function.name == "fit":  # goes on with its loader, and trains the model
        return
    assert torch.equal(generator.get_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("make", [Drawing, lambda: DataLoader(Drawing(), SIZE, shuffle=True)],
                         ids=["Dataset", "DataLoader"])  # fmt: skip
@every_function
def test_what_is_drawn_depends_on_the_seed_alone(function, make):
    outside = _global_states()
    first = numbers_of(function(Net(), make(), "cross_entropy"))
    Net()  # its weights are drawn from the same place
    assert _global_states() != outside
    outside = _global_states()
    torch.manual_seed(99)
    random.seed(99)
    net = Net()
    inside = _global_states()
    assert numbers_of(function(net, make(), "cross_entropy")) == first
    assert _global_states() == inside


# ---- the same numbers from every function that trains


def told(*words: str, capsys: Any) -> dict[str, Any]:
    """What the command line prints as JSON."""
    assert main([*words, "--json"]) in (0, None)
    return json.loads(capsys.readouterr().out)


def interval(bound: Any) -> tuple[float, float]:
    found = bound if isinstance(bound, dict) else bound.to_dict()
    return found["low"], found["high"]


NETWORK = "mlp:64-8-10,norm=batch"
SHORT = {"steps": 8, "tol": 0.5}


def test_searches_give_the_same_numbers(capsys):
    """In Python and on the command line."""
    net = ns.network(NETWORK)
    limit = ns.max_stable_lr(net, "digits", "cross_entropy", seeds=[0], **SHORT)
    advice = ns.suggest_lr(net, "digits", **SHORT)
    flags = ("--data", "digits", "--steps", "8", "--tol", "0.5")
    suggested = told("max-lr", NETWORK, "--mode", "suggest", *flags, capsys=capsys)
    bisected = told("max-lr", NETWORK, "--num-seeds", "1", *flags, capsys=capsys)
    for name in ("diverges", "does_not_learn"):
        one, two = getattr(limit, name), getattr(advice.limit, name)
        assert interval(one) == interval(bisected[name])
        assert interval(two) == interval(suggested["limit"][name])
        # suggest_lr tests the ends with a second order of the samples, which can only widen them
        assert two.low <= one.low
        assert one.high <= two.high
    assert (suggested["lr"], suggested["low"]) == (advice.lr, advice.low)
    assert math.isfinite(advice.lr)
    trials = [(t.lr, t.final) for t in limit.trials]
    assert set(trials) <= {(t.lr, t.final) for t in advice.limit.trials if t.seed == 0}
    assert trials == [(t["lr"], t["final"]) for t in bisected["trials"]]


@pytest.mark.slow
def test_an_examination_gives_the_numbers_of_single_functions():
    net, data = Net(), pairs(100)
    found = ns.examine(net, data, preset="full")
    advice = ns.suggest_lr(net, data)
    limit = ns.max_stable_lr(net, data, "cross_entropy", seeds=1, tol=0.2)
    assert interval(found["stability"].diverges) == interval(limit.diverges)
    assert interval(found["stability"].does_not_learn) == interval(limit.does_not_learn)
    assert (found["advice"].lr, found["advice"].high) == (advice.lr, advice.high)
    assert found["advice"].bound("threshold").lr == advice.bound("threshold").lr
    risk = ns.Risk.from_data(net, data, "cross_entropy", statistics="batch")
    assert found["what_if"].before.loss == risk.value()
    table = ns.what_if(net, data)
    assert [v.change for v in table.variants] == [v.change for v in found["what_if"].variants]
    assert interval(table.before.diverges) == interval(found["what_if"].before.diverges)


@pytest.mark.slow
def test_the_command_line_examines_as_python_does(capsys):
    net = ns.network(NETWORK)
    said = told("examine", NETWORK, "--data", "digits", "--preset", "full", capsys=capsys)
    found, advice = ns.examine(net, "digits", preset="full"), ns.suggest_lr(net, "digits")
    limit = ns.max_stable_lr(net, "digits", "cross_entropy", seeds=[0], tol=0.2)
    printed = said["measurements"]["advice"]
    assert printed["lr"] == found["advice"].lr == advice.lr
    ends = [printed["limit"]["diverges"], found["stability"].diverges, limit.diverges]
    assert len({interval(bound) for bound in ends}) == 1
    before = said["measurements"]["what_if"]["variants"][0]
    assert before["loss"] == found["what_if"].before.loss
