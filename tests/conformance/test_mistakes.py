"""What users get for what they often write: an answer, or an error that names the way out."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import normscope as ns
from normscope import train
from normscope.errors import InputError, MeasurementError, NormscopeError

X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
PAIR = (X, Y)
SHORT = {"steps": 3, "seeds": 1, "tol": 4.0}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def says(error: Exception, *patterns: str) -> None:
    """The message in one line, with all of these in it."""
    message = str(error)
    assert "\n" not in message
    for pattern in patterns:
        assert re.search(pattern, message), message


def refusal(call, *patterns: str, kind: type[Exception] = InputError) -> Exception:
    with pytest.raises(NormscopeError) as caught:
        call()
    assert isinstance(caught.value, kind), repr(caught.value)
    says(caught.value, *patterns)
    return caught.value


# ---- loaders that give fewer batches than they say


class Promises:
    """A loader that says three batches."""

    def __init__(self, given: int) -> None:
        self.given, self.asked = given, 0

    def __len__(self) -> int:
        return 3

    def __iter__(self):
        self.asked += 1
        assert self.asked < 1000, "an endless loop"
        return iter([PAIR] * self.given)


class Stream(IterableDataset):
    """Samples whose number was guessed too high."""

    asked = 0

    def __len__(self) -> int:
        return 24

    def __iter__(self):
        self.asked += 1
        assert self.asked < 1000, "an endless loop"
        return zip(X[:16], Y[:16], strict=True)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize("data", [Promises(2), DataLoader(Stream(), 8)], ids=["own", "torch"])
def test_the_end_of_the_loader_ends_the_epoch(data):
    run = ns.fit(nn.Linear(5, 3), data, "cross_entropy", lr=0.1, epochs=2)
    assert (run.outcome, run.updates) == ("finished", 4)
    assert [(e.step, e.epoch) for e in run.events if e.kind == "epoch"] == [(2, 0), (4, 1)]
    assert ns.fit(nn.Linear(5, 3), data, "cross_entropy", lr=0.1, steps=5).updates == 5
    found = ns.max_stable_lr(nn.Linear(5, 3), data, "cross_entropy", **SHORT)
    assert all(len(trial.losses) > 3 for trial in found.trials if not trial.diverged)


def test_a_run_killed_behind_the_last_batch_goes_on(tmp_path):
    how = {"lr": 0.1, "epochs": 2, "checkpoint": tmp_path / "state", "checkpoint_every": 1}

    def killed(event):
        if event.kind == "epoch":  # the state before it is the one on disk
            raise OSError("killed")

    data, model = Promises(2), nn.Linear(5, 3)
    with pytest.raises(OSError, match="killed"):
        ns.fit(model, data, "cross_entropy", callbacks=[killed], **how)
    run = ns.fit(model, data, "cross_entropy", callbacks=[print], **how)
    assert (run.outcome, run.updates) == ("finished", 4)


@pytest.mark.parametrize("call", [
    lambda data: ns.fit(nn.Linear(5, 3), data, "cross_entropy", lr=0.1, epochs=1),
    lambda data: ns.fit(nn.Linear(5, 3), data, "cross_entropy", lr=0.1, steps=5),
    lambda data: ns.max_stable_lr(nn.Linear(5, 3), data, "cross_entropy", **SHORT),
])  # fmt: skip
def test_a_loader_that_gives_none_is_refused(call):
    refusal(lambda: call(Promises(0)), "no batches", "empty")


# ---- errors of the model


@pytest.mark.parametrize("call", [
    lambda *a: ns.fit(*a, "cross_entropy", lr=0.1, steps=2, batch_size=8),
    lambda *a: ns.evaluate(*a, "cross_entropy", batch_size=8),
    lambda *a: ns.max_stable_lr(*a, "cross_entropy", batch_size=8, **SHORT),
    lambda *a: ns.suggest_lr(*a, "cross_entropy", batch_size=8, steps=2),
    lambda *a: train.lr_range_test(*a, "cross_entropy", batch_size=8, steps=10),
    lambda *a: train.diverging_update(*a, "cross_entropy", batch_size=8, lr=0.1),
    lambda *a: ns.examine(*a, batch_size=8),
])  # fmt: skip
def test_an_error_of_the_model_comes_with_its_batch(call):
    error = refusal(lambda: call(net(), (X[:, :3], Y)), "batch", "shapes cannot be multiplied",
                    r"inputs float32 \(\d, 3\)", "Give it data of the shape",
                    kind=MeasurementError)  # fmt: skip
    assert isinstance(error.__cause__, RuntimeError)


@pytest.mark.parametrize(("raised", "way"), [
    (TypeError("forward() missing 1 required positional argument: 'mask'"), "several inputs"),
    (ValueError("SyncBatchNorm expected input tensor to be on GPU"), "use nn.BatchNorm"),
])  # fmt: skip
def test_an_error_that_is_known_gets_its_own_way_out(raised, way):
    class Raises(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise raised

    for call in (ns.examine, ns.evaluate):
        refusal(lambda call=call: call(Raises(5, 3), PAIR), way, kind=MeasurementError)


# ---- labels of yes or no


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", nn.CrossEntropyLoss()])
def test_bool_labels_are_labels(loss):
    plain, yes = (X, (Y > 0).long()), (X, Y > 0)
    assert ns.examine(net(), yes, loss).convention["chance"] == pytest.approx(
        ns.examine(net(), plain, loss).convention["chance"])  # fmt: skip
    runs = [ns.fit(net(), data, loss, lr=0.1, steps=3).losses for data in (plain, yes)]
    assert np.array_equal(*runs)
    assert ns.evaluate(net(), yes, loss) == ns.evaluate(net(), plain, loss)
    found = [ns.max_stable_lr(net(), data, loss, **SHORT).trials for data in (plain, yes)]
    assert found[0] == found[1]


@pytest.mark.parametrize("loss", ["bce", "BCE", nn.BCEWithLogitsLoss()])
def test_bool_targets_of_one_score(loss):
    model = nn.Linear(5, 1)
    found = [ns.examine(model, (X, targets[:, None]), loss) for targets in (Y > 0, (Y > 0).float())]
    assert found[0]["gradients"].loss == found[1]["gradients"].loss
    assert found[0].convention["chance"] == pytest.approx(found[1].convention["chance"])


# ---- losses


@pytest.mark.parametrize("name", ["ce", "CE", "Cross-Entropy"])
def test_names_of_cross_entropy(name):
    assert ns.evaluate(net(), PAIR, name) == ns.evaluate(net(), PAIR, "cross_entropy")


@pytest.mark.parametrize("loss", [lambda p, t: functional.cross_entropy(p, target=t),
                                  lambda x, y: functional.cross_entropy(x, target=y)])  # fmt: skip
def test_names_of_arguments_do_not_matter(loss):
    assert ns.evaluate(net(), PAIR, loss).loss == ns.evaluate(net(), PAIR).loss


def test_classes_and_functions_of_three():
    way = r"loss_fn=lambda model, batch: three\(model, \*batch\)"

    def three(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y)

    refusal(lambda: ns.examine(net(), PAIR, three), way)
    refusal(lambda: ns.examine(net(), PAIR, loss_fn=three), way)
    refusal(lambda: ns.examine(net(), PAIR, lambda m, x, y: m(x)), r"batch: your_function\(model")
    refusal(lambda: ns.examine(net(), PAIR, nn.CrossEntropyLoss), r"CrossEntropyLoss\(\)")
    refusal(lambda: ns.examine(net(), PAIR, loss_fn=nn.MSELoss), r"pass it as loss=MSELoss\(\)")


class Answers(nn.Module):
    """A dict of loss and logits, as models of Hugging Face give it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.last(self.table(input_ids).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


WORDS = {"input_ids": torch.arange(320).reshape(32, 10) % 20, "labels": torch.arange(32) % 3}


@pytest.mark.parametrize("data", [WORDS, [WORDS]], ids=["one", "list"])
def test_batches_that_are_dicts(data):
    model, way = Answers(), r"loss_fn=lambda model, batch: model\(\*\*batch\)\.loss"
    for loss in (None, "mse", lambda outputs, targets: outputs["loss"]):
        refusal(lambda loss=loss: ns.examine(model, data, loss), way)
        refusal(lambda loss=loss: ns.fit(model, data, loss or "ce", lr=0.1, steps=2), way)
    refusal(lambda: ns.examine(model, data, lambda model, batch: model(**batch)["loss"]),
            "pass it as loss_fn=")  # fmt: skip
    ns.examine(model, data, loss_fn=lambda model, batch: model(**batch)["loss"])


# ---- optimizers


def test_names_of_optimizers_in_any_case():
    assert ns.examine(net(), PAIR, optimizer="AdamW", lr=0.01).convention["optimizer"] == "adamw"
    how = {"lr": 0.01, "steps": 3}
    runs = [ns.fit(net(), PAIR, "ce", optimizer=name, **how) for name in ("Adam", "adam")]
    assert np.array_equal(runs[0].losses, runs[1].losses)
    assert runs[0].convention["optimizer"] == "adam"


def test_what_is_no_optimizer():
    model = net()
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.1), 3)

    def fails(parameters):
        raise KeyError("betas")

    for given, patterns in (
        (schedule, ("Got a StepLR", r"pass its \.optimizer")),
        (3, ("Got an int", "name")),
        (lambda p: None, ("gave a NoneType",)),
        (fails, ("fails cannot make an optimizer: KeyError",)),
    ):
        for function, how in ((ns.examine, {}), (ns.fit, {"steps": 2}), (ns.suggest_lr, {})):
            refusal(
                lambda f=function, g=given, h=how: f(model, PAIR, "ce", optimizer=g, **h), *patterns
            )
    refusal(lambda: ns.max_stable_lr(model, PAIR, "ce", optimizer=None, **SHORT), "Got a NoneType")


def test_an_optimizer_without_a_trainable_parameter():
    model = net()
    model[0].requires_grad_(False)
    frozen = torch.optim.SGD(model[0].parameters(), 0.1)
    found = ns.examine(model, PAIR, optimizer=frozen)
    first = found.findings[0]
    assert (first.rule, first.severity) == ("missing-in-optimizer", "problem")
    assert "which has frozen ones" in first.title


# ---- models, and what is said of them


def test_how_many_parameters_are_trainable():
    model = net()
    assert ns.examine(model, PAIR).model == "MLP 5-6-3, 1 batch norm, 69 parameters"
    model[0].requires_grad_(False)
    assert (
        ns.examine(model, PAIR).model
        == "MLP 5-6-3, 1 batch norm, 69 parameters, 33 of them trainable"
    )


def test_one_sample_is_one():
    found = ns.examine(nn.Linear(5, 3), (X[:1], Y[:1]))
    assert "1 batch of 1 sample\n" in found.summary()
    assert "1 samples" not in found.summary()
    assert ns.evaluate(nn.Linear(5, 3), (X[:1], Y[:1])).convention["batches"].endswith("1 sample")


def functions() -> dict[str, object]:
    return {
        "examine": ns.examine,
        "fit": lambda m, d: ns.fit(m, d, "ce", lr=0.1, steps=2),
        "evaluate": ns.evaluate,
        "max_stable_lr": lambda m, d: ns.max_stable_lr(m, d, "ce", **SHORT),
        "activations": ns.activations,
    }


every_function = pytest.mark.parametrize("function", functions().values(), ids=functions())


@every_function
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_exported_programs_are_refused(function):
    inner = nn.Linear(5, 3)
    refusal(lambda: function(torch.jit.trace(inner, X), PAIR), "scripted", "Pass the nn.Module")
    program = torch.export.export(inner, (X,))
    for given in (program, program.module(), nn.Sequential(program.module())):
        refusal(lambda given=given: function(given, PAIR), "exported", "Pass the nn.Module")


@every_function
def test_synchronized_batch_norm_works_without_other_processes(function):
    function(nn.SyncBatchNorm.convert_sync_batchnorm(net()), PAIR)


@every_function
def test_models_without_values_are_refused(function):
    refusal(lambda: function(nn.LazyLinear(3), PAIR), "lazy layer", "Run the model once")
    refusal(lambda: function(nn.Linear(5, 3, device="meta"), PAIR), "meta device", "to_empty")


@pytest.mark.parametrize("device", ["nope", 0.5, "cuda:77"])
def test_devices_that_are_not_there(device):
    for call in (
        lambda: ns.examine(net(), PAIR, device=device),
        lambda: ns.fit(net(), PAIR, "ce", lr=0.1, steps=2, device=device),
        lambda: ns.max_stable_lr(net(), PAIR, "ce", device=device, **SHORT),
        lambda: ns.suggest_lr(net(), PAIR, device=device),
    ):
        refusal(call, re.escape(repr(device)), "device")


# ---- what is printed


def test_print_gives_the_summary_and_repr_one_line():
    found = ns.examine(net(), PAIR)
    assert str(found) == found.summary()
    assert "\n" not in repr(found)
    limit = ns.max_stable_lr(net(), PAIR, "ce", **SHORT)
    assert str(limit) == limit.summary()
    assert str(ns.evaluate(net(), PAIR)).startswith("Evaluation(")
    assert "\n" not in str(ns.fit(net(), PAIR, "ce", lr=0.1, steps=2))  # printed in loops


def test_the_plan_is_at_the_top():
    assert ns.plan_examination(net(), PAIR).steps
