"""The ladder of trials on copies: what it decides, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import math
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import normscope as ns
from normscope.diagnose import plan_examination
from normscope.diagnose.trial import constant_loss, uniform_loss
from normscope.errors import InputError
from normscope.results import Examination, Trial
from normscope.subject.objective import as_loss


def mlp(width=128, depth=4, norm=None):
    torch.manual_seed(0)
    layers, last = [nn.Flatten()], 64
    for _ in range(depth):
        layers += [nn.Linear(last, width), *([] if norm is None else [norm(width)]), nn.ReLU()]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, 10)).float()


def sgd(model, lr, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr, momentum=momentum)


def small(samples=48):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 64, generator=generator, dtype=torch.float32)
    return x, x[:, :10].argmax(1)


@pytest.mark.parametrize(
    ("lr", "words"),
    [
        (1.0, "PROBLEM: The learning rate 1 is too large: 16 updates take the loss from 2.31 to"),
        (0.3, "PROBLEM: The learning rate 0.3 is too large: 25 updates take the loss from 2.31 to"),
        (0.1, "OK: 25 updates at lr 0.1 take the loss from 2.31 to"),
    ],
)
def test_a_plateau_far_below_the_threshold(lr, words):
    """Five layers with torch's initial weights; 2 (1 + momentum) / lambda_max is near 19."""
    model = mlp()
    found = ns.examine(model, "digits", optimizer=sgd(model, lr))
    assert found["sharpness"].lr_threshold(0.9)[0] > 10
    assert found.answer.startswith(words)
    assert found.summary().replace("\n  ", " ").startswith(words)
    assert Examination.from_json(found.to_json()).answer == found.answer


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda p: torch.optim.AdamW(p, 1e-3), "OK: 25 updates at lr 0.001 take the loss"),
        (lambda p: torch.optim.AdamW(p, 1.0), "The learning rate 1 is too large"),
        (lambda p: torch.optim.AdamW(p, 1e-7), "The learning rate 1e-07 is too small"),
        (lambda p: torch.optim.SGD(p, 1e-6), "The learning rate 1e-06 is too small"),
        (lambda p: torch.optim.RMSprop(p, 1e-3), "OK: 25 updates at lr 0.001 take the loss"),
        (lambda p: torch.optim.Adagrad(p, 1e-2), "OK: 25 updates at lr 0.01 take the loss"),
    ],
)
def test_any_optimizer_is_judged_by_its_trial(optimizer, words):
    model = mlp(norm=nn.BatchNorm1d, depth=2)
    given = optimizer(model.parameters())
    assert words in ns.examine(model, "digits", optimizer=given).answer
    assert words in ns.examine(model, "digits", optimizer=optimizer).answer  # its factory


def test_gpt2_with_adamw():
    transformers = pytest.importorskip("transformers")
    torch.set_default_dtype(torch.float32)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 32}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(**size, **ends)
    pairs = torch.randperm(64 * 8, generator=torch.Generator().manual_seed(0))[:64]
    tokens = (pairs[:, None] // 8 + (pairs[:, None] % 8 + 1) * torch.arange(32)) % 64
    data = [{"input_ids": part} for part in tokens.split(16)]
    for batch in data:
        batch["labels"] = batch["input_ids"]
    for lr, words in ((3e-4, "OK: "), (0.3, "The learning rate 0.3 is too large")):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        found = ns.examine(model, data, loss_fn=lambda m, b: m(**b).loss, optimizer=optimizer)
        assert words in found.answer
        assert "AdamW lr" in found.model


def test_a_trained_network_at_its_floor_is_left_in_peace():
    torch.set_default_dtype(torch.float32)
    model = mlp(norm=nn.BatchNorm1d, depth=2)
    ns.fit(model, small(), "cross_entropy", lr=0.1, momentum=0.9, steps=300, batch_size=48)
    found = ns.examine(model, small(), optimizer=sgd(model, 0.05), batch_size=48)
    assert found["trial"].trained
    assert found.answer.startswith("OK: trained already, loss 0.0")
    assert not [f for f in found.findings if f.rule == "learning-rate" and f.warns]


def test_without_a_rate_a_usual_one_shows_that_it_learns():
    found = ns.examine(mlp(norm=nn.BatchNorm1d), "digits")
    trial = found["trial"]
    assert (trial.lr, trial.assumed, len(trial.rungs)) == (None, 1e-3, 1)
    assert found.answer.startswith("OK: 25 updates at Adam lr 0.001 (no rate was given) take")
    assert not [f for f in found.findings if f.rule == "learning-rate"]


def everything(model, optimizer):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    moments = [
        v.clone() if torch.is_tensor(v) else copy.deepcopy(v)
        for one in optimizer.state.values()
        for v in one.values()
    ]
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    modes = [m.training for m in model.modules()]
    randoms = [torch.get_rng_state(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    return [state, moments, gradients, groups, modes, randoms]


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


def used(kind=torch.optim.AdamW):
    """A model with dropout and batch norm, and its optimizer after a few steps."""
    model = nn.Sequential(mlp(norm=nn.BatchNorm1d, depth=1), nn.Dropout(0.1), nn.Linear(10, 10))
    model = model.float()
    optimizer = kind(model.parameters(), lr=1e-2)
    x, y = small()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("mode", [True, False])
def test_nothing_is_left_behind(mode):
    model, optimizer = used()
    model.train(mode)
    before = everything(model, optimizer)
    found = ns.examine(model, small(), optimizer=optimizer, batch_size=12)
    assert len(found["trial"].rungs) >= 2
    assert same(everything(model, optimizer), before)


def test_nothing_is_left_behind_after_ctrl_c():
    """It comes in the first trial; what was measured before stays."""
    model, optimizer = used()
    before, calls = everything(model, optimizer), []

    class Interrupting(nn.Module):
        def forward(self, outputs, targets):
            calls.append(outputs.requires_grad)
            if interrupt and sum(calls) == interrupt:
                signal.raise_signal(signal.SIGINT)
            return F.cross_entropy(outputs, targets)

    interrupt = 0
    whole = ns.examine(model, small(), Interrupting(), optimizer=optimizer, batch_size=12)
    assert not whole.partial
    interrupt, calls = sum(calls) - 10, []
    found = ns.examine(model, small(), Interrupting(), optimizer=optimizer, batch_size=12)
    assert found.partial == "interrupted during 'trial'"
    assert found.interrupted
    assert "sharpness" in found.measurements
    assert same(everything(model, optimizer), before)


def test_the_state_of_the_optimizer_is_taken_along():
    """With Adam's moments the first step is small; a fresh Adam would move every weight by lr."""
    model, optimizer = used()
    for one in optimizer.state.values():
        one["exp_avg_sq"].fill_(1e12)
    found = ns.examine(model, small(), optimizer=optimizer, batch_size=12)
    assert abs(found["trial"].own.fall) < 0.01  # weight decay alone


def test_groups_keep_their_rates_in_proportion():
    model = mlp(depth=1)
    frozen, moving = list(model[1].parameters()), list(model[3].parameters())
    groups = [{"params": moving, "lr": 0.1}, {"params": frozen, "lr": 0.0}]
    found = ns.examine(model, small(), optimizer=torch.optim.SGD(groups))
    assert set(found["trial"].unmoved) == {"1.weight", "1.bias"}
    assert found["trial"].own.fall > 0


def test_an_optimizer_of_another_model_moves_nothing():
    model, other = mlp(depth=1), mlp(depth=1)
    found = ns.examine(model, small(), optimizer=sgd(other, 0.1))
    assert not found["trial"].learns
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), mlp(depth=1).parameters(), strict=True))  # fmt: skip  # noqa: E501


def test_a_loader_that_can_be_read_only_once_is_read_once():
    x, y = small()
    given = []

    def once():
        for k in range(0, 48, 4):
            given.append(k)
            yield x[k : k + 4], y[k : k + 4]

    found = ns.examine(mlp(depth=1), once(), lr=0.1)
    assert given == sorted(set(given))
    assert found["trial"].batches == 8
    assert found["trial"].own.updates == 25


WRAPS = [lambda m: torch.compile(m, backend="eager"), nn.DataParallel, lambda m: m.half()]


@pytest.mark.parametrize("wrap", WRAPS)
def test_wrapped_models_and_half_precision(wrap):
    model = mlp(depth=1, norm=nn.BatchNorm1d)
    wrapped = wrap(model)
    optimizer = sgd(wrapped, 0.1)
    found = ns.examine(wrapped, small(), optimizer=optimizer, batch_size=12)
    assert found["trial"].learns
    assert found["trial"].unmoved == ()
    assert found["wiring"].missing == ()
    kept = mlp(depth=1, norm=nn.BatchNorm1d).to(next(model.parameters()).dtype)
    assert same(dict(model.state_dict()), dict(kept.state_dict()))


class Averaging(nn.Module):
    """A loss with a parameter, and with buffers that it changes in place or replaces."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("centre", torch.zeros(10))

    def forward(self, outputs, targets):
        self.count += 1
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return F.cross_entropy(self.scale * outputs, targets)


@pytest.mark.parametrize("given", [lambda loss: loss, lambda loss: loss.forward])
def test_a_loss_keeps_its_buffers(given):
    model, loss = mlp(depth=1), Averaging().float()
    before = dict(loss.named_buffers())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = ns.examine(model, small(), given(loss), lr=0.1, batch_size=12)
    assert found["trial"].learns
    assert not told
    assert loss.count == 0
    assert not loss.centre.any()
    assert all(after is before[name] for name, after in loss.named_buffers())


def test_sparse_gradients_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(24, 2)).float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(0, 20, (64, 3))
    F.cross_entropy(model(tokens[:4]), tokens[:4, 0] % 2).backward()
    gradient = model[0].weight.grad
    before = gradient.to_dense()
    found = ns.examine(model, (tokens, tokens[:, 0] % 2), optimizer=optimizer, batch_size=16)
    assert found["trial"].learns
    assert model[0].weight.grad is gradient
    assert torch.equal(gradient.to_dense(), before)


def test_a_loss_of_several_outputs_is_given_nothing_else():
    given = []

    def loss(outputs, targets):
        given.append(type(outputs))
        return F.cross_entropy(outputs["class"], targets)

    outputs, targets = {"class": torch.randn(8, 2)}, torch.zeros(8, dtype=torch.long)
    assert math.isnan(constant_loss(as_loss(loss), [(outputs, targets)]))
    assert {*given} <= {dict}


def test_a_model_that_cannot_be_copied():
    model = mlp(depth=1)
    model.__class__ = type("Stubborn", (nn.Sequential,), {"__deepcopy__": lambda *_: 1 / 0})
    optimizer = sgd(model, 0.1)
    before = everything(model, optimizer)
    found = ns.examine(model, small(), optimizer=optimizer)
    assert found["trial"].learns
    assert same(everything(model, optimizer), before)


def test_frozen_batch_norms_stay_frozen():
    model = mlp(depth=1, norm=nn.BatchNorm1d)
    model[2].eval()
    model[2].running_var.fill_(1e6)  # so that nothing passes while it is frozen
    found = ns.examine(model, small(), lr=0.01, batch_size=12)
    assert found["trial"].before == pytest.approx(math.log(10), rel=0.1)


def test_the_time_is_decided_from_one_gradient():
    """What does not fit is not judged: first the long trials go, then the smaller rate."""
    plan = plan_examination(mlp(depth=1), small(), trial_seconds=0)
    [step] = [s for s in plan.steps if s.name == "trial"]
    assert (step.status, step.reason) == ("skipped", "not judged: trial_seconds=0 leaves it out")
    found = ns.examine(mlp(depth=1), small(), lr=0.1, trial_seconds=1e-9)
    assert "trial" not in found.measurements
    assert not found.partial
    assert found.answer.startswith("COULD NOT JUDGE the learning rate: 25 updates take about ")
    assert "trial skipped: not judged: 25 updates take about" in found.summary()
    with pytest.raises(InputError, match="trial_seconds"):
        ns.examine(mlp(depth=1), small(), trial_seconds=-1)


def test_no_larger_rate_is_tried_twice():
    found = ns.examine(mlp(depth=1), small(), lr=1e-9, batch_size=12)
    factors = [rung.factor for rung in found["trial"].rungs if rung.steps == 25]
    assert max(factors) > 1
    assert sorted(factors) == sorted(set(factors))


@pytest.mark.parametrize(("gradients", "factors"), [(30, [1.0]), (60, [1.0, 0.1])])
def test_what_the_time_allows(gradients, factors):
    from normscope.diagnose.subject import Allowance, as_subject
    from normscope.diagnose.trial import tried

    model = mlp(depth=1)
    data = (small()[0], torch.arange(48) % 10)
    subject = as_subject(model, data, None, batch_size=6, practice=8, lr=1e-9)
    made = tried(replace(subject, allowance=Allowance(1e6, 1e6 / gradients)), {})
    assert [rung.factor for rung in made.rungs] == factors
    assert made.gradients <= gradients
    assert "100 updates at 1 times the rate" in made.left_out


def test_the_cost_is_counted_and_shown():
    found = ns.examine(mlp(depth=1), small(), lr=0.1, batch_size=12)
    trial = found["trial"]
    assert [r.factor for r in trial.rungs] == [1.0, 0.1]
    assert trial == replace(trial, seconds=9.0)  # the machine is no part of the answer
    assert hash(trial) == hash(replace(trial, seconds=9.0))
    assert list(trial.to_frame()["factor"]) == [1.0, 0.1]
    assert "0.1 times the rate: " in trial.summary()
    assert trial.gradients == pytest.approx(2 * 25 + 2 / 3 + 3 * 4 / 3)
    assert f"s of the trial, {trial.gradients:.0f} gradients)" in found.summary()
    [step] = [s for s in found.plan.steps if s.name == "trial"]
    assert step.estimate > 0


def test_a_loss_that_fails_in_training_is_noted():
    class Fails(nn.Module):
        def forward(self, outputs, targets):
            if failing and outputs.requires_grad is False:
                raise RuntimeError("no loss without a gradient")
            return F.cross_entropy(outputs, targets)

    failing = True
    found = ns.examine(mlp(depth=1), small(), Fails(), lr=0.1)
    [step] = [s for s in found.plan.steps if s.name == "trial"]
    assert (step.status, "no loss without a gradient" in step.reason) == ("failed", True)
    assert "sharpness" in found.measurements
    assert found.answer.startswith("COULD NOT JUDGE the learning rate: ")


def test_memory_that_runs_out_in_a_trial_is_noted(monkeypatch):
    def full(*_, **__):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("normscope.diagnose.trial.train", full)
    found = ns.examine(mlp(depth=1), small(), lr=0.1)
    [step] = [s for s in found.plan.steps if s.name == "trial"]
    assert step.status == "failed"
    assert "Memory ran out" in step.reason
    assert "sharpness" in found.measurements
    assert found.answer.startswith("COULD NOT JUDGE the learning rate: Memory ran out")


def test_hooks_on_parameters_act_in_trials():
    model = mlp(depth=1)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: 0 * gradient)
    trial = ns.examine(model, small(), optimizer=sgd(model, 0.1))["trial"]
    assert trial.own.after == trial.before


@pytest.mark.parametrize("fits", [False, True])
def test_labels_that_do_not_fit_the_inputs(fits):
    x, y = small(960)
    y = y if fits else y[torch.randperm(len(y), generator=torch.Generator().manual_seed(2))]
    model = mlp(depth=1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    found = ns.examine(model, [*zip(x.split(32), y.split(32), strict=True)], optimizer=optimizer)
    assert ("The labels do not fit the inputs" in found.answer) is not fits
    assert any(rung.fresh for rung in found["trial"].rungs) is not fits


def test_torch_broadcasts_what_our_squared_loss_refuses():
    x, _ = small()
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1)).float()
    found = ns.examine(model, (x, x[:, 0]), nn.MSELoss(), lr=0.1)
    assert "broadcasts them" in found.answer
    with pytest.raises(InputError, match="nothing is broadcast"):
        ns.examine(model, (x, x[:, 0]), "mse")


def test_losses_of_the_best_constant_prediction():
    labels = torch.tensor([0] * 30 + [1] * 10)
    seen = [(torch.zeros(40, 2), labels)]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for loss in ("cross_entropy", F.cross_entropy):
        assert constant_loss(as_loss(loss), seen) == pytest.approx(entropy)
    log_probabilities = [(torch.full((40, 2), 0.5).log(), labels)]
    assert constant_loss(as_loss(nn.NLLLoss()), log_probabilities) == pytest.approx(entropy)
    values = torch.tensor([0.0, 0.0, 0.0, 4.0])[:, None]
    given = [(torch.ones(4, 1), values)]
    assert constant_loss(as_loss(nn.L1Loss()), given) == pytest.approx(1.0)  # that of the median
    assert constant_loss(as_loss(nn.MSELoss()), given) == pytest.approx(3.0)
    assert uniform_loss(as_loss("cross_entropy"), seen) == pytest.approx(math.log(2))
    many = [(torch.zeros(40, 20), labels)]  # too few labels for so many classes
    assert math.isnan(constant_loss(as_loss("cross_entropy"), many))
    assert uniform_loss(as_loss("cross_entropy"), many) == pytest.approx(math.log(20))


def test_a_dead_network_that_falls_to_the_constant_does_not_learn():
    """Its loss falls from 13 to 2.3, as its last biases learn the shares of the classes."""
    model = mlp(depth=2)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.fill_(-1.0)
        model[-1].bias[0] = 13.0
    found = ns.examine(model, "digits", optimizer=sgd(model, 0.5))
    assert found["trial"].fall > 0.5
    assert not found["trial"].learns
    assert not found.answer.startswith("OK")


def test_what_a_summary_holds():
    model = mlp()
    lines = ns.examine(model, "digits", optimizer=sgd(model, 1.0)).summary().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    assert any("MLP 64-128-128-128-128-10, 59,146 parameters, SGD lr 1" in line for line in lines)
    assert isinstance(ns.examine(model, "digits", lr=1.0)["trial"], Trial)


def test_the_best_constant_leaves_ignored_labels_out():
    """Padding of class 0 that the loss ignores is no class to predict."""
    torch.manual_seed(0)
    labels = torch.randint(1, 10, (64, 12))
    labels[:, 5:] = 0
    inputs = torch.randn(64, 12, 8)
    model = nn.Sequential(nn.Linear(8, 10), Swap())
    found = ns.examine(model, (inputs, labels), nn.CrossEntropyLoss(ignore_index=0), lr=0.1)
    share = torch.bincount(labels[labels > 0]).double() / int((labels > 0).sum())
    expected = -float(torch.special.xlogy(share, share).sum())
    assert found["trial"].constant == pytest.approx(expected, rel=0.02)


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def test_the_first_line_names_a_problem_behind_a_warning():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=50.0, momentum=0.9)
    found = ns.examine(net, ns.load_data("digits").flat(), optimizer=optimizer)
    assert found.answer.startswith("WARNING: The model is in evaluation mode")
    assert "And a problem: The learning rate 50 is too large" in found.answer
