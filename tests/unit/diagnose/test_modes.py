"""Train and evaluation mode in `examine`: what is found on networks trained here, and is not."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

import normscope as ns
from normscope.cli.main import main
from normscope.diagnose.steps import STEPS
from normscope.errors import InputError
from normscope.nn import refresh_population
from normscope.results import Examination

RULES = {"running-statistics", "frozen-norms", "statistics-still-move", "evaluation-data"}


@pytest.fixture(autouse=True)
def single_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@functools.cache
def digits():
    data = ns.load_data("digits")
    return data.images.float(), data.labels


def cnn(seed=0, norm=nn.BatchNorm2d, **options):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8, **options), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), norm(16, **options), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def trained(net, steps=150, lr=0.05, size=64, average=None):
    x, y = digits()
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(x), (size,))
        optimizer.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        if average is not None:
            for mine, its in zip(average.parameters(), net.parameters(), strict=True):
                mine.data.lerp_(its.data, 0.05)
    return net


@functools.cache
def _fit(**options):
    return trained(cnn(**options))


def fit(**options):
    return copy.deepcopy(_fit(**options))


def the(found, rule="running-statistics"):
    [one] = [f for f in found.findings if f.rule == rule]
    return one


def warned(found):
    return {f.rule for f in found.above("warning")} & RULES


def test_averaged_weights_without_their_buffers():
    average = cnn()
    trained(cnn(), average=average)
    found = ns.examine(average, digits())
    first = found.findings[0]
    assert (first.rule, first.severity) == ("running-statistics", "problem")
    assert "not averaged or copied along with the weights" in first.meaning
    modes = found["modes"]
    remade = copy.deepcopy(average)
    x, y = digits()
    update_bn([(x[rows],) for rows in torch.arange(1024).split(128)], remade)
    assert modes.running.loss > 0.5 > 2 * modes.recomputed.loss
    with torch.no_grad():
        expected = float(functional.cross_entropy(remade.eval()(x), y))
    assert modes.recomputed.loss == pytest.approx(expected, rel=0.3)
    shown = {e.quantity: e.value for e in found.numbers}
    assert shown["loss with running statistics"] == modes.running.loss
    assert shown["loss with batch statistics"] == modes.batch.loss
    assert shown["accuracy with running statistics"] == modes.running.accuracy
    assert f"before {modes.running.loss:.3g}" in first.meaning
    repaired = ns.apply_transform(average, "recompute-statistics", data=digits())
    assert not warned(ns.examine(repaired, digits()))


def test_a_small_loss_counts_where_it_is_many_times_larger():
    """Evaluation at 0.27, 0.002 with batch statistics: far below half of the constant."""
    average = fit()
    with torch.no_grad():
        for layer in (average[1], average[5]):
            layer.running_var *= 3.0
            layer.running_mean += 0.4 * layer.running_var.sqrt()
    found = ns.examine(average, digits())
    modes = found["modes"]
    assert 2 * modes.batch.loss < modes.running.loss
    assert the(found).severity in ("warning", "problem")


@pytest.mark.parametrize("passes", [0, 1, 3, 10])
@pytest.mark.parametrize("make", [cnn, lambda: cnn(norm=ns.BatchNorm)])
def test_an_untrained_network_after_some_passes(make, passes):
    net = make()
    for _ in range(passes):
        net(digits()[0][:64])
    found = ns.examine(net, digits())
    assert the(found).severity == "ok"
    assert not warned(found)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, ns.BatchNorm])
def test_a_trained_network_is_fine(norm):
    assert the(ns.examine(fit(norm=norm), digits())).severity == "ok"
    assert the(ns.examine(fit(norm=norm).eval(), digits())).severity == "ok"


class SyncLike(nn.SyncBatchNorm):
    """As in a process group of one."""

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        kept = self.running_mean, self.running_var, self.weight, self.bias
        return functional.batch_norm(x, *kept, self.training, self.momentum, self.eps)


def test_synchronized_norms():
    net = fit(norm=SyncLike)
    assert the(ns.examine(net, digits())).severity == "ok"
    for layer in (net[1], net[5]):
        layer.reset_running_stats()
    found = ns.examine(net, digits())
    assert found.findings[0].rule == "running-statistics"
    assert "never updated" in found.findings[0].meaning


def test_population_norms_are_the_same_in_both_modes():
    x, _ = digits()
    net = cnn(norm=ns.PopulationNorm)
    refresh_population(net, x[:256])
    found = ns.examine(net, digits())
    assert not {f.rule for f in found.findings} & RULES
    modes = found["modes"]
    assert modes.running.loss == pytest.approx(modes.train.loss, rel=1e-5)
    assert modes.summary().splitlines()[0].startswith("loss, train mode: ")
    assert len(modes.summary().splitlines()) == 2


def test_a_network_that_is_never_put_in_train_mode():
    for net, expected in ((cnn(), "warning"), (fit(), "")):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        found = ns.examine(net.eval(), digits(), optimizer=optimizer)
        said = [f for f in found.findings if f.rule == "never-in-train-mode"]
        assert [f.severity for f in said] == [expected] * bool(expected)
        assert not net.training
    assert not [f for f in ns.examine(cnn().eval(), digits()).findings
                if f.rule == "never-in-train-mode"]  # fmt: skip


def test_a_small_momentum():
    found = ns.examine(fit(momentum=0.001), digits())
    assert found.findings[0].rule == "running-statistics"
    assert "momentum 0.001 is too small for 150 updates" in found.findings[0].meaning
    plain = ns.examine(fit(momentum=None), digits())
    assert "averages all batches since the start" in plain.findings[0].meaning
    early = ns.examine(trained(cnn(momentum=0.001), 3), digits())
    assert the(early).severity == "note"
    assert "3,000 updates" in the(early).title


@pytest.mark.parametrize(("momentum", "words"), [(0.0, "never move"), (1.0, "the last batch")])
def test_a_momentum_that_is_not_meant(momentum, words):
    found = ns.examine(cnn(momentum=momentum), digits(), trial_seconds=0)
    [one] = [f for f in found.findings if f.rule == "statistics-momentum"]
    assert one.severity == "warning"
    assert words in one.title


def test_published_models_take_their_statistics_from_the_last_batch_on_purpose():
    for size, severity in ((16, "warning"), (64, "note")):
        found = ns.examine(cnn(momentum=0.99), digits(), batch_size=size, trial_seconds=0)
        [one] = [f for f in found.findings if f.rule == "statistics-momentum"]
        assert one.severity == severity


def test_a_layer_that_was_never_updated():
    net = fit()
    net[5].reset_running_stats()
    found = ns.examine(net, digits())
    one = the(found)
    assert one.severity in ("warning", "problem")
    assert one.layer == "5"
    assert "those of '5' were never updated" in one.meaning


def test_small_batches():
    net = trained(cnn(), 300, 0.02, 4)
    found = ns.examine(net, digits(), batch_size=4)
    modes = found["modes"]
    assert modes.batch.num_samples == 64
    large = ns.examine(net, digits(), batch_size=128)
    assert not warned(large)
    assert "Batches of 4 are too small" in the(found).title
    noise = modes.batch.loss - modes.running.loss
    assert noise > 5 * abs(large["modes"].batch.loss - large["modes"].running.loss)


def test_evaluation_data_of_another_scale():
    x, y = digits()
    found = ns.examine(fit(), (x[:1000], y[:1000]), eval_data=(x[1000:] * 2 + 1, y[1000:]))
    one = the(found, "evaluation-data")
    assert (one.severity, found.findings[0].rule) == ("warning", "evaluation-data")
    modes = found["modes"]
    assert modes.eval_recomputed.loss < 0.5 * modes.eval_running.loss
    assert modes.scale_shift == pytest.approx(4, rel=0.2)
    assert {"loss on eval_data", "accuracy on eval_data"} <= {e.quantity for e in found.numbers}
    same = ns.examine(fit(), (x[:1000], y[:1000]), eval_data=(x[1000:], y[1000:]))
    assert the(same, "evaluation-data").severity == "ok"
    assert Examination.from_json(found.to_json())["modes"] == modes


def test_evaluation_data_of_a_network_without_batch_norm():
    x, y = digits()
    flat = x.flatten(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        functional.cross_entropy(net(flat[:400]), y[:400]).backward()
        optimizer.step()
    found = ns.examine(net, (flat[:400], y[:400]), eval_data=(flat[400:] * -3 + 1, y[400:]))
    assert the(found, "evaluation-data").severity == "warning"
    assert "other means or scales" in the(found, "evaluation-data").meaning
    wrong = ns.examine(net, (flat[:400], y[:400]), eval_data=(flat[400:], (y[400:] + 1) % 10))
    assert the(wrong, "evaluation-data").severity == "note"
    plain = ns.examine(net, (flat[:400], y[:400]))
    assert not {f.rule for f in plain.findings} & RULES
    assert plain["modes"].running.loss == pytest.approx(plain["modes"].train.loss, rel=1e-5)


def test_frozen_norms_and_frozen_weights():
    x, y = digits()
    net = fit()
    for layer in (net[1], net[5]):
        layer.eval()
    assert the(ns.examine(net, (x, y)), "frozen-norms").severity == "ok"
    moved = ns.examine(net, (x * 2 + 1, y), trial_seconds=0)
    assert moved.findings[0].rule == "frozen-norms"
    assert moved.findings[0].severity == "warning"
    tried = ns.examine(net, (x * 2 + 1, y), lr=0.001)  # at which it learns all the same
    assert tried["trial"].clear
    assert the(tried, "frozen-norms").severity == "note"
    net = fit()
    for parameter in net[:7].parameters():
        parameter.requires_grad_(False)
    one = the(ns.examine(net, (x, y)), "statistics-still-move")
    assert one.severity == "note"
    frozen = ns.apply_transform(net, "freeze-statistics")
    found = ns.examine(frozen, (x, y))
    assert "statistics-still-move" not in {f.rule for f in found.findings}
    assert the(found, "frozen-norms").severity == "ok"


class Trains(nn.Module):
    """Fails in evaluation mode, as long as ``fails``."""

    fails = True

    def __init__(self, error=None):
        super().__init__()
        self.body, self.error = cnn(), error

    def forward(self, x):
        if not self.training and self.error is not None and Trains.fails:
            raise self.error
        return self.body(x)


def test_a_model_that_cannot_be_evaluated():
    found = ns.examine(Trains(ValueError("only for training")), digits())
    one = the(found, "evaluation-mode")
    assert one.severity == "note"
    assert "only for training" in one.meaning
    assert found["modes"].running is None
    assert "running-statistics" not in {f.rule for f in found.findings}
    assert not found.partial


def snapshot(net):
    return (
        {n: t.clone() for n, t in net.state_dict().items()},
        [(m.training, getattr(m, "momentum", 0), {*vars(m)}) for m in net.modules()],
        [(p.requires_grad, p.grad is None) for p in net.parameters()],
        torch.get_rng_state(),
    )


def same(one, other):
    (tensors, *rest, state), (others, *its, last) = one, other
    equal = all(torch.equal(t, others[n]) for n, t in tensors.items())
    return equal and rest == its and torch.equal(state, last)


@pytest.mark.parametrize("error", [None, RuntimeError("no"), KeyboardInterrupt()])
def test_nothing_is_left_behind(error, monkeypatch):
    def run(*args):
        monkeypatch.setattr(Trains, "fails", True)
        return step.run(*args)

    step = STEPS["modes"]
    monkeypatch.setitem(STEPS, "modes", replace(step, run=run))
    monkeypatch.setattr(Trains, "fails", False)
    net = Trains(error)
    net(digits()[0][:32])
    net.body[5].eval()
    before = snapshot(net)
    found = ns.examine(net, digits(), eval_data=digits())
    assert same(before, snapshot(net))
    if isinstance(error, KeyboardInterrupt):
        assert found.partial == "interrupted during 'modes'"
    else:
        assert (found["modes"].reason == "") == (error is None)


def test_evaluation_data_of_another_form_is_refused():
    net, data = fit(), digits()
    x, y = data
    for wrong, words in (
        ((x.flatten(1), y), "has another form than data"),
        ((x.expand(-1, 3, -1, -1), y), "the model cannot be run on the former"),
        ([(x[:8], None)], "has another form than data"),
        ([], "eval_data: There are no batches"),
        ("digit", "eval_data: Unknown"),
    ):
        with pytest.raises(InputError, match=words):
            ns.examine(net, data, eval_data=wrong)
    larger = functional.interpolate(x, 12)  # which this network takes
    found = ns.examine(net, data, eval_data=[(larger[:64], y[:64])])
    assert found["modes"].eval_running.num_samples == 64


def test_evaluation_data_is_not_trained_on_and_read_once():
    x, y = digits()
    taken = []

    def batches():
        for rows in torch.arange(512).split(128):
            taken.append(len(rows))
            yield x[rows], y[rows]

    found = ns.examine(fit(), digits(), eval_data=batches(), lr=0.1)
    assert len(taken) <= 2
    assert found["modes"].eval_running.num_samples == 128
    assert found.convention["eval_data"] != "none"


def test_the_command_line(capsys):
    assert main(["examine", "mlp:64-16-10,norm=batch", "--data", "digits", "--eval-data",
                 "digits:test", "--json"]) in (0, None)  # fmt: skip
    found = Examination.from_json(capsys.readouterr().out)
    assert found["modes"].eval_running.num_samples == 128
