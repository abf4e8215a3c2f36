"""`examine` as a whole: presets, plans, time, memory, interruption, what it refuses."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from fingerprints import fingerprint
from normscope.data import load_data
from normscope.diagnose import examine, findings_of, plan_examination
from normscope.diagnose.steps import PRESETS, STEPS, steps_of
from normscope.diagnose.subject import as_subject
from normscope.errors import InputError, MeasurementError
from normscope.measure import fisher
from normscope.results import Examination
from normscope.train.run import INTERRUPTED


def net(norm="batch", *, widths="64-12-12-10"):
    torch.set_default_dtype(torch.float32)
    return ns.network(f"mlp:{widths},norm={norm}")


def batch(count=64):
    return next(iter(load_data("digits").batches(count)))


def statuses(found):
    return {step.name: step.status for step in found.plan.steps}


def test_each_preset_contains_the_one_before():
    names = [[m.name for m in steps_of(preset)] for preset in PRESETS]
    assert names[0] == ["wiring", "layout", "sharpness", "signals", "modes", "trial"]
    for fewer, more in itertools.pairwise(names):
        assert more[: len(fewer)] == fewer
        assert len(more) > len(fewer)


def test_what_it_gives_is_what_the_parts_give():
    model, (x, y) = net(), batch()
    found = examine(model, (x, y), lr=0.1, preset="fast")
    risk = ns.Risk(model, x, y, loss="cross_entropy", statistics="batch")
    exact = torch.linalg.eigvalsh(fisher(risk).to_dense().double())[-1]
    top = found["sharpness"]
    assert abs(top.largest - float(exact)) <= top.bounds[0]
    number = next(n for n in found.numbers if "threshold" in n.quantity)
    assert number.value == pytest.approx(2 / top.largest)
    assert number.low < 2 / float(exact) < number.high
    assert found["gradients"].loss == pytest.approx(risk.value(), rel=1e-5)


@pytest.mark.parametrize("data", ["name", "set", "pair", "loader", "generator", "dataloader"])
def test_all_kinds_of_data(data):
    digits = load_data("digits")
    pairs = torch.utils.data.TensorDataset(digits.images, digits.labels)
    given = {
        "name": "digits",
        "set": digits,
        "pair": (digits.images[:64], digits.labels[:64]),
        "loader": digits.batches(64),
        "generator": (pair for pair in digits.batches(64)),
        "dataloader": torch.utils.data.DataLoader(pairs, batch_size=64, shuffle=True),
    }[data]
    found = examine(net(), given)
    assert found.convention["batch"] == (128 if data in ("name", "set") else 64)
    assert set(statuses(found).values()) == {"ok"}


def test_an_optimizer_of_torch_gives_rate_and_momentum():
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    found = examine(model, batch(), optimizer=sgd)
    assert (found.convention["lr"], found.convention["momentum"]) == (0.3, 0.8)
    over = examine(model, batch(), optimizer=sgd, lr=0.2, momentum=0.5)
    assert (over.convention["lr"], over.convention["momentum"]) == (0.2, 0.5)


@pytest.mark.parametrize("kind", ["adam", "AdamW", "factory"])
def test_no_threshold_where_steps_are_scaled(kind):
    model = net()
    optimizer = {
        "adam": "adam",
        "AdamW": torch.optim.AdamW(model.parameters(), lr=0.3),
        "factory": lambda p: torch.optim.RMSprop(p, lr=0.3),
    }[kind]
    found = examine(model, batch(), optimizer=optimizer, lr=100.0)
    assert not any("threshold" in number.quantity for number in found.numbers)
    [one] = [f for f in found.findings if f.rule == "learning-rate"]  # the trial judges
    assert {e.source for e in one.evidence} == {"trial"}


def test_every_finding_can_be_found_again_from_the_file(tmp_path):
    found = examine(net(), "digits", lr=0.5, momentum=0.9, preset="standard")
    file = found.save(tmp_path / "e.json")
    again = Examination.from_json(file.read_text())
    assert again == found
    assert findings_of(again.measurements, again.convention) == found.findings
    assert not found.missing


def test_nothing_is_left_behind():
    model, (x, y) = net(), batch()
    model(x).sum().backward()
    before = fingerprint(model, x, y)
    examine(model, (x, y), preset="standard", lr=0.1)
    plan_examination(model, (x, y), preset="full")
    assert fingerprint(model, x, y) == before


def test_the_same_seed_gives_the_same():
    first, second = (examine(net(), "digits", seed=4) for _ in range(2))
    assert first.measurements == second.measurements
    assert examine(net(), "digits", seed=5).measurements != first.measurements


def test_a_measurement_that_is_not_there_says_why():
    found = examine(net("none"), batch(), preset="fast")
    with pytest.raises(InputError, match=r"no measurement 'stability' here; there are wiring"):
        found["stability"]
    [signals] = [s for s in found.plan.steps if s.name == "signals"]
    late = replace(signals, status="left out", reason="too slow")
    short = replace(found, measurements={}, plan=replace(found.plan, steps=(late,)))
    with pytest.raises(InputError, match=r"there are none. 'gradients' was left out: too slow"):
        short["gradients"]


def test_groups_of_an_optimizer_with_several_rates():
    model = net()
    first, *rest = model.parameters()
    groups = [{"params": [first], "lr": 0.1}, {"params": rest, "lr": 10.0}]
    found = examine(model, batch(), optimizer=torch.optim.SGD(groups, lr=1.0))
    assert found.convention["lr"] == 0.1
    assert "groups with learning rates from 0.1 to 10" in found.notes[0]
    assert "groups of your optimizer have different" in found.notes[1]  # so no threshold
    [one] = [f for f in found.findings if f.rule == "learning-rate"]
    assert {e.source for e in one.evidence} == {"trial"}
    assert found["trial"].lr is None


def test_an_optimizer_that_is_not_of_torch():
    class Fixed(torch.optim.Optimizer):
        def __init__(self, params, scale=2.0):
            super().__init__(params, {"scale": scale})

        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.01 * self.param_groups[0]["scale"] * parameter.grad)

    model = net()
    found = examine(model, batch(), optimizer=Fixed(model.parameters()))
    assert found.convention["lr"] is None
    assert "no local threshold of the learning rate" in found.notes[0]
    assert [rung.factor for rung in found["trial"].rungs] == [1.0]  # there is no rate to change
    assert "25 updates with Fixed take the loss" in found.answer


def test_how_arguments_were_taken():
    many = (torch.randn(300, 64), torch.arange(300) % 10)
    found = examine(net(), many, optimizer="adam", momentum=0.5)
    assert "momentum is an argument of sgd; adam has none" in found.notes[0]
    assert found.convention["batches"] == "1 batch of 128 samples"
    assert "adam rescales its steps" in found.notes[1]
    assert examine(net(), batch(), lr=np.float32(0.5)).notes == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [(nn.Module.half, "in float16; it was measured in float32"),
     (nn.Module.eval, "in evaluation mode; it was measured in train mode")],
)  # fmt: skip
def test_conditions_that_differ_are_said(change, words):
    found = examine(change(net()), "digits")
    assert words in found.notes[0]
    assert words in found.summary()


def test_an_unused_norm_does_not_keep_the_others_from_being_measured():
    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last, self.forgotten = net(), nn.BatchNorm1d(10), nn.BatchNorm1d(7)

        def forward(self, x):
            return self.body(x)

    found = examine(Forgetful(), batch(), preset="standard")
    assert not found.missing
    assert found["regularization"].layers[0].layer.startswith("body")


def test_a_missing_folder_is_named(tmp_path):
    found = examine(net(), batch())
    for name in ("run.json", "page.html"):
        with pytest.raises(InputError, match="no folder"):
            found.save(tmp_path / "missing" / name)


class TestPlan:
    def test_it_says_what_cannot_be_measured_and_why(self):
        plan = plan_examination(net("none"), batch(), preset="standard")
        reasons = {step.name: step.reason for step in plan.steps if step.status == "skipped"}
        assert reasons == {"regularization": "the network has no batch norm"}
        assert plan.coverage == 1
        odd = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GLU(), nn.Linear(4, 10))
        reasons = {
            step.name: step.reason
            for step in plan_examination(odd, batch(), preset="standard").steps
            if step.status == "skipped"
        }
        assert "GLU" in reasons["prediction"]
        assert reasons["comparison"] == "there is no prediction to compare with"

    def test_a_plan_is_carried_out(self):
        plan = plan_examination(net(), batch(), preset="standard")
        found = examine(net(), batch(), preset="standard")
        assert [s.name for s in plan.steps] == [s.name for s in found.plan.steps]
        made = {s.name for s in found.plan.steps if s.status == "ok"}
        assert made <= {s.name for s in plan.steps if s.status == "planned"}

    @pytest.mark.parametrize("name", ["mlp:64-" + "256-" * 6 + "10,norm=batch", "mlp:64-400-10"])
    def test_the_estimate_is_within_a_factor_of_three(self, name, machine):
        """Of the time on paper, so that the machine below is of no matter."""
        model = ns.network(name)
        found = examine(model, "digits", preset="standard")
        taken = sum(step.seconds for step in found.plan.steps)
        assert found.plan.seconds / 3 < taken < 3 * found.plan.seconds
        assert found.plan.bytes > 10 * sum(4 * p.numel() for p in model.parameters())


def test_memory_of_many_mean_gradients_is_planned():
    few, many = (
        plan_examination(ns.network(f"mlp:64-200-{c}"), (torch.randn(32, 64), torch.arange(32) % c),
                         preset="standard")
        for c in (2, 32)
    )  # fmt: skip
    numbers = 200 * 65
    assert many.bytes - few.bytes > 8 * numbers * 4 * 30 * 0.9


class TestTime:
    def test_what_does_not_fit_is_left_out(self, machine):
        found = examine(net(), "digits", preset="full", max_seconds=0.5)
        assert found.seconds < 0.6  # trainings would take longer
        assert found.plan.seconds > 2
        late = [step for step in found.missing if step.name in ("stability", "what_if")]
        assert len(late) == 2
        assert all("max_seconds" in step.reason or "time" in step.reason for step in late)
        assert "stability (" in found.partial
        assert "NOT COMPLETE: not made: " in found.summary()

    def test_trainings_end_in_time(self, monkeypatch, machine):
        """An estimate that was too low does not matter: the search looks at the clock.

        Only the curvature of the network as it is, which `what_if` begins with, is not cut short.
        """
        for name in ("stability", "what_if"):
            monkeypatch.setitem(STEPS, name, replace(STEPS[name], gradients=0))
        found = examine(net(), "digits", preset="full", max_seconds=1.5)
        assert found.seconds < 2.0
        assert {"stability", "what_if"} & {step.name for step in found.missing}

    def test_no_time_at_all(self, machine):
        with pytest.raises(MeasurementError, match=r"Nothing could be measured.*max_seconds"):
            examine(net(), "digits", max_seconds=1e-6)


def broken(name, *errors):
    """The measurement of that name, which first raises each error once."""
    left, run = list(errors), STEPS[name].run

    def fail(subject, results):
        if left:
            raise left.pop(0)
        return run(subject, results)

    return replace(STEPS[name], run=fail)


class Narrow(nn.Module):
    """A network without memory for more than so many samples."""

    def __init__(self, samples):
        super().__init__()
        self.inner, self.samples = net("none"), samples

    def forward(self, x):
        if len(x) > self.samples:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        return self.inner(x)


class TestTrouble:
    def test_one_failure_leaves_the_rest(self, monkeypatch):
        monkeypatch.setitem(STEPS, "sharpness", broken("sharpness", ZeroDivisionError("a bug")))
        found = examine(net(), "digits", lr=0.1)
        assert statuses(found) == {
            "wiring": "ok", "layout": "ok", "sharpness": "failed", "signals": "ok", "modes": "ok",
            "trial": "ok",
        }  # fmt: skip
        with pytest.raises(InputError, match="ZeroDivisionError: a bug"):
            found["sharpness"]

    def test_interruption(self, monkeypatch):
        monkeypatch.setitem(STEPS, "sharpness", broken("sharpness", KeyboardInterrupt()))
        model = net("none")
        before = fingerprint(model)
        found = examine(model, "digits", preset="standard")
        assert found.partial == "interrupted during 'sharpness'"
        assert statuses(found)["signals"] == "left out"
        assert statuses(found)["regularization"] == "skipped"  # for its own reason
        assert list(found.measurements) == ["wiring", "start", "data", "layout"]
        assert fingerprint(model) == before
        assert "NOT COMPLETE" in found.summary()

    @pytest.mark.parametrize("updates", [3, 700])
    def test_interruption_of_a_training(self, monkeypatch, updates):
        """Ctrl-C in a training gives what is known by then, and no other is begun."""
        from normscope.train._training import Training

        update, calls = Training._update, []

        def interrupted(self, item):
            calls.append(None)
            if len(calls) == updates:
                raise KeyboardInterrupt
            update(self, item)

        monkeypatch.setattr(Training, "_update", interrupted)
        found = examine(net(), "digits", preset="full", trial_seconds=0)
        assert found.partial.startswith("interrupted during 'stability'")
        assert len(calls) == updates
        assert statuses(found)["stability"] == "interrupted"
        assert statuses(found)["what_if"] == "left out"
        assert INTERRUPTED in found["stability"].ended or INTERRUPTED in found["advice"].ended

    def test_memory(self, monkeypatch):
        error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        monkeypatch.setitem(STEPS, "layout", broken("layout", error))
        found = examine(net(), [batch(64)])
        assert statuses(found)["layout"] == "ok"
        assert "batches of 32 samples" in found.notes[0]
        assert found.convention["batch"] == 32
        assert "batches of 32 samples" in found.summary()
        monkeypatch.undo()
        x, y = batch(64)
        half = examine(net(), [(x[:32], y[:32])])
        assert found["sharpness"].largest == pytest.approx(half["sharpness"].largest, rel=1e-4)

    def test_memory_for_the_first_gradient(self):
        """A model that cannot take more than 20 samples at once."""

        found = examine(Narrow(20), batch(64))
        assert sum("Memory ran out" in note for note in found.notes) == 2
        assert "the first gradient" in found.notes[-1]
        assert found.convention["batch"] == 16
        with pytest.raises(MeasurementError, match="the first gradient with batches of 8"):
            examine(Narrow(0), batch(64))

    def test_another_error_is_not_taken_for_memory(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(3, 2)

            def forward(self, x):
                raise RuntimeError("shapes do not fit")

        with pytest.raises(MeasurementError, match="shapes do not fit"):
            examine(Odd(), (torch.zeros(32, 3), torch.zeros(32, dtype=torch.long)))


def test_what_is_shown():
    from rich.console import Console

    found = examine(net(), "digits", lr=100.0, momentum=0.9)
    assert found.worst == "problem"  # a copy diverges at this rate
    shown = io.StringIO()
    Console(file=shown, width=60).print(found)
    text = " ".join(shown.getvalue().split())
    for part in (found.model, "lr 100", "momentum 0.9", "PROBLEM", found.above("note")[0].title):
        assert part in text
    assert max(map(len, shown.getvalue().splitlines())) <= 60
    html = found._repr_html_()
    assert found.above("note")[0].title in html
    frame = found.to_frame()
    assert frame["severity"].iloc[0] == found.worst
    assert len(frame) == len(found.findings)


def test_names_of_the_model_are_not_markup():
    """A layer called like an instruction to rich is printed as it is."""
    from rich.console import Console

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    wrapped = nn.Module()
    wrapped.add_module("[bold]x[/bold]", model)
    wrapped.forward = model.forward
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # all units dead
    shown = io.StringIO()
    Console(file=shown, width=100).print(examine(wrapped, "digits"))
    assert "[bold]x[/bold]" in shown.getvalue()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "fats"}, "Unknown preset 'fats'. Did you mean 'fast'"),
        ({"lr": -1}, "lr must be a number above 0"),
        ({"lr": math.nan}, "lr must be a number above 0"),
        ({"lr": "high"}, "lr must be a number above 0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"momentum": "high"}, "momentum must be at least 0 and below 1"),
        ({"max_seconds": 0}, "max_seconds must be a number above 0"),
        ({"max_seconds": "long"}, "max_seconds must be a number above 0"),
        (
            {
                "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 1)),
                "data": (torch.zeros(8, 64), torch.zeros(8, 1)),
            },
            "over one class is 0",
        ),
        ({"data": (torch.zeros(8, 64), torch.randn(8, 10))}, "must be probabilities"),
        ({"optimizer": "sdg"}, "Unknown optimizer 'sdg'. Did you mean 'sgd'"),
        ({"loss": "crossentropy"}, "Unknown loss 'crossentropy'"),
        ({"loss": "mse", "loss_fn": print}, "Got both"),
        ({"device": "cudda"}, "The device 'cudda' cannot be used"),
        ({"seed": "first"}, "seed must be an integer"),
        ({"data": "digitz"}, "Unknown data set 'digitz'"),
        ({"data": []}, "There are no batches"),
        ({"data": torch.zeros(4, 64)}, "data must be a loader, a torch Dataset, a pair"),
        ({"data": (torch.full((8, 64), math.nan), torch.zeros(8).long())}, "hold nan at index"),
        ({"data": (torch.zeros(8, 64), torch.full((8,), 10))}, "labels run from 10 to 10"),
        ({"model": "resnet20"}, "model must be a torch.nn.Module"),
        ({"model": nn.Flatten()}, "no trainable parameter|no floating-point parameters"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_bad_arguments(options, words):
    given = {"model": net(), "data": "digits"} | options
    with pytest.raises(InputError, match=words):
        examine(**given)


def test_nothing_is_read_off_the_names_of_parameters():
    own = examine(net(), batch(), lambda model, x: nn.functional.cross_entropy(model, target=x))
    named = examine(net(), batch())
    assert own["gradients"].loss == named["gradients"].loss
    with pytest.raises(InputError, match="pass it as loss_fn="):
        examine(net(), batch(), lambda y_pred, y_true: y_pred(y_true).mean())


def apart(model, _):
    """Depends on something, but not on the model."""
    return torch.ones((), requires_grad=True).square()


def constant(outputs, targets):
    return targets.double().mean()


def detached(model, item):
    return nn.functional.cross_entropy(model(item[0]).detach(), item[1])


@pytest.mark.parametrize("loss", [apart, constant, detached])
def test_a_loss_that_does_not_depend_on_the_model(loss):
    kind = "loss" if loss is constant else "loss_fn"
    found = examine(net(), "digits" if loss is not detached else [batch()], **{kind: loss})
    assert "no-gradient" in [f.rule for f in found.above("warning")]
    failed = {s.reason for s in found.plan.steps if s.status == "failed"}
    assert any("does not depend on the parameters" in reason for reason in failed)


def test_a_model_at_nan():
    model = net()
    next(model.parameters()).data[0, 0] = math.nan
    found = examine(model, "digits")
    assert (found.findings[0].rule, found.findings[0].severity) == ("not-finite", "problem")
    assert "'layer1.weight'" in found.findings[0].title


def test_a_loader_may_hand_out_its_own_memory():
    """Every batch in the same tensor, as some loaders do."""
    x, y = batch(32)

    class Reusing:
        def __iter__(self):
            memory = torch.empty_like(x)
            for factor in (1.0, 2.0, 3.0):
                memory.copy_(factor * x)
                yield memory, y

    kept = as_subject(net(), Reusing(), "cross_entropy", num_batches=3).batches
    for factor, one in zip((1.0, 2.0, 3.0), kept, strict=True):
        assert torch.equal(one.inputs, factor * x)


def test_a_rate_far_above_the_threshold_is_tried_on_a_copy():
    """At 16 times the threshold with momentum 0.9 the loss is not finite within ten updates."""
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(128, 128), nn.ReLU())]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), *layers, nn.Linear(128, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    before = fingerprint(net)
    found = ns.examine(net, "digits", lr=0.6, momentum=0.9)
    assert fingerprint(net) == before
    first = found.findings[0]
    assert (first.rule, first.severity) == ("learning-rate", "problem")
    assert found.answer.startswith("PROBLEM: The learning rate 0.6 is too large: 25 updates")
    threshold = found["sharpness"].lr_threshold(0.9)[0]
    calm = ns.examine(net, "digits", lr=1.5 * threshold, momentum=0.9)
    [one] = [f for f in calm.findings if f.rule == "learning-rate"]
    assert one.severity == "ok"
    assert "updates of a copy take the loss from" in one.meaning
    assert calm.answer.startswith("OK: 25 updates at lr ")
