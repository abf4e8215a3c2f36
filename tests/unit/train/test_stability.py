"""The search for a limit: what it answers, what it refuses, and that it leaves no trace."""

import contextlib
import copy
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cases import BY_NAME, ROSTER
from normscope.errors import InputError, MeasurementError, NormscopeError
from normscope.record import Record
from normscope.results import StabilityTrial
from normscope.train import Divergence, lr_range_test, max_stable_lr
from normscope.train.stability.judge import against_best
from normscope.train.stability.search import downward, next_rate, pooled, switch

CALLS = {"limit": max_stable_lr, "range": lr_range_test}
QUICK = {"limit": {"steps": 3, "seeds": 1, "tol": 2.0}, "range": {"steps": 12}}


def line():
    """One weight, curvature 4, limit 0.5."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(-0.3)
    return model, (torch.full((4, 1), 2.0), torch.full((4, 1), 0.7))


def digits_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


# the search, as pure functions


def test_the_switch_of_plain_outcomes():
    found = switch({1.0: False, 2.0: False, 4.0: True}, slow_fails=False)
    assert (found.low, found.high, found.top, found.interleaved) == (2.0, 4.0, 2.0, False)


def test_slow_failures_count_only_where_they_should():
    outcomes = {0.1: True, 1.0: False, 4.0: True}
    assert switch(outcomes, slow_fails=True).low == 1.0
    strict = switch(outcomes, slow_fails=False)
    assert (strict.low, strict.high, strict.interleaved) == (0.0, 4.0, True)
    assert next_rate(outcomes, (1e-9, 1e9), tol=0.1) == 0.1 / 4  # a lower end is looked for
    outcomes[0.05] = False  # and then both ends are narrowed
    assert next_rate(outcomes, (1e-9, 1e9), tol=0.1) == pytest.approx((0.05 * 0.1) ** 0.5)
    assert next_rate(outcomes, (1e-9, 1e9), tol=1.0) == pytest.approx(2.0)
    assert next_rate(outcomes, (1e-9, 1e9), tol=3.0) is None


@settings(max_examples=200)
@given(
    limit=st.floats(1e-6, 1e6),
    start=st.floats(1e-6, 1e6),
    tol=st.floats(1e-3, 1.0),
    stride=st.floats(1.05, 100.0),
)
def test_the_search_brackets_any_limit(limit, start, tol, stride):
    outcomes, rate = {}, start
    for _ in range(2000):
        outcomes[rate] = rate > limit
        rate = next_rate(outcomes, (1e-9, 1e9), tol=tol, stride=stride)
        if rate is None:
            break
    found = switch(outcomes, slow_fails=False)
    assert found.low <= limit < found.high <= found.low * (1 + tol) * (1 + 1e-12)


@pytest.mark.parametrize(("failed", "end"), [(False, 1e3), (True, 1e-3)])
def test_the_search_ends_at_its_ends(failed, end):
    outcomes, rate = {}, 1.0
    while rate is not None:
        outcomes[rate] = failed
        rate = next_rate(outcomes, (1e-3, 1e3), tol=0.1)
    assert end in outcomes
    found = switch(outcomes, slow_fails=False)
    assert (found.low, found.high) == ((1e3, math.inf) if not failed else (0.0, 1e-3))


def test_seeds_are_pooled_to_the_interval_that_holds_all():
    seeds = [{1.0: False, 1.1: True}, {1.0: True, 0.9: False, 1.1: True}, {1.1: False, 1.3: True}]
    assert pooled(seeds, slow_fails=False) == (0.9, 1.3)
    seeds[2] = {1.1: False}
    assert pooled(seeds, slow_fails=False) == (0.9, math.inf)
    assert pooled(seeds, slow_fails=False, partial=True) == (0.9, 1.1)
    assert pooled([{}], slow_fails=False) == (0.0, math.inf)


def test_the_way_down_fills_gaps_only():
    assert downward([16.0], 16.0, 1e-3) == 4.0
    assert downward([16.0, 4.5], 16.0, 1e-3) == 1.0
    assert downward([16.0], 16.0, 10.0) is None


# the answer


def test_all_is_recorded():
    model, data = line()
    found = max_stable_lr(model, data, "mse", seeds=2, steps=30, momentum=0.5)
    assert {trial.seed for trial in found.trials} == {0, 1}
    frame = found.to_frame()
    assert list(frame.lr) == sorted(frame.lr)
    assert len(frame) == len(found.trials)
    assert {"learned", "diverged"} <= set(frame.outcome)
    assert all(len(trial.losses) == trial.updates + 1 for trial in found.trials)
    assert any(trial.lr > 3.9 * found.high for trial in found.trials)  # far above, too
    below = [trial for trial in found.trials if trial.lr <= found.low]
    assert not any(trial.diverged for trial in below)
    assert found.convention["momentum"] == 0.5
    assert found.convention["seeds"] == [0, 1]
    assert "0.75" in repr(found) or "0.7" in repr(found)
    assert "does-not-learn" in found.summary()
    assert Record.from_json(found.to_json()) == found


def test_the_same_call_gives_the_same_answer():
    first, second = (
        max_stable_lr(digits_net(), "digits", "cross_entropy", steps=5, seeds=2, tol=0.3)
        for _ in range(2)
    )
    assert first.trials == second.trials
    assert (first.low, first.high) == (second.low, second.high)


def test_the_two_criteria_differ_under_cross_entropy():
    """Far below divergence the loss of a plain network is already stuck at chance or above."""
    found = max_stable_lr(digits_net(), "digits", "cross_entropy", momentum=0.9, seeds=1, steps=40)
    assert found.does_not_learn.high < found.diverges.low
    other = max_stable_lr(
        digits_net(), "digits", "cross_entropy", momentum=0.9, seeds=1, steps=40, tol=0.05,
        criterion="does-not-learn",
    )  # fmt: skip
    assert other.lr == other.does_not_learn.lr
    assert other.high <= 1.05 * other.low
    learned = [trial for trial in other.trials if trial.learned]
    assert all(t.final < min(t.start, t.chance) for t in learned)
    assert all(t.chance == pytest.approx(math.log(10), abs=0.01) for t in learned)


def test_a_factory_is_asked_once_per_seed_and_gets_the_seed():
    asked = []

    def factory(seed):
        asked.append(seed)
        return digits_net(seed)

    found = max_stable_lr(
        factory, "digits", "cross_entropy", steps=3, seeds=[5, 8], tol=2.0, optimizer="adam"
    )
    assert asked == [5, 8]
    starts = {trial.seed: trial.start for trial in found.trials}
    assert len(set(starts.values())) == 2


def test_a_factory_without_seed_draws_from_seeded_generators():
    def factory():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    runs = [
        max_stable_lr(factory, "digits", "cross_entropy", steps=2, seeds=1, tol=2.0)
        for _ in range(2)
    ]
    assert runs[0].trials == runs[1].trials


class Bounded(nn.Module):
    """Outputs within [-1, 1]: its squared loss can never exceed a few units."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(self.body(x))


def test_what_never_diverges_has_an_open_end():
    x = torch.randn(8, 3)
    found = max_stable_lr(Bounded(), (x, torch.sign(torch.randn(8, 2))), "mse", seeds=1, steps=10)
    assert found.lr == found.high == math.inf
    assert found.low == max(trial.lr for trial in found.trials)
    assert not found.ok
    assert "no training diverged" in found.reason
    assert "above" in repr(found)


def test_what_always_diverges_has_an_open_end_at_zero():
    model, data = line()
    found = max_stable_lr(model, data, "mse", bracket=(5.0, 50.0), seeds=1)
    assert (found.lr, found.low, found.high) == (0.0, 0.0, 5.0)
    assert "diverged at the lowest rate tried, 5" in found.reason
    assert all(5 <= trial.lr <= 50 for trial in found.trials)


def test_a_bracket_is_kept_to():
    model, data = line()
    found = max_stable_lr(model, data, "mse", bracket=(0.1, 1.0), seeds=2)
    assert found.low <= 0.5 * 1.01
    assert found.high >= 0.5 * 0.99
    assert all(0.1 <= trial.lr <= 1 for trial in found.trials)


class Window(nn.Module):
    """Diverges between two rates only, told apart by how far one step takes the weight."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))


def windowed(model, _):
    step = float(-model.w.detach())  # the rate itself: the slope is 1 before the first step, then 0
    level = 1e6 if 1 < step < 4.02 else 1.0
    return level + (step == 0) * (model.w - model.w.detach()) + 0 * model.w


def test_nothing_learns_where_chance_is_out_of_reach():
    """From far above, two updates do not reach the loss of a constant answer at any rate."""
    model = nn.Linear(2, 1)
    model.weight.data.copy_(torch.tensor([[100.0, -30.0]]))
    x = torch.randn(32, 2) * torch.tensor([1.0, 0.1])
    found = max_stable_lr(
        model, (x, torch.randn(32, 1)), "mse", steps=2, seeds=1, criterion="does-not-learn"
    )
    assert (found.lr, found.low) == (0.0, 0.0)
    assert found.high == min(trial.lr for trial in found.trials if trial.diverged)
    assert "is not better than chance" in found.reason
    assert found.diverges.closed


def test_interleaved_outcomes_are_told():
    found = max_stable_lr(
        Window(), [0], loss_fn=windowed, seeds=1, steps=1, bracket=(0.01, 2.5),
        divergence=Divergence(floor=1e3),
    )  # fmt: skip
    assert found.low <= 1 <= found.high
    wider = max_stable_lr(Window(), [0], loss_fn=windowed, seeds=1, steps=1)
    assert wider.diverges.interleaved
    assert "interleave" in wider.reason
    assert wider.low <= 1
    assert wider.high == math.inf


def test_time_runs_out_with_a_wider_answer(machine):
    def slow(model, batch):
        machine.spend(0.02)
        return (model(batch[0]) - batch[1]).square().mean()

    model, data = line()
    found = max_stable_lr(model, [data], loss_fn=slow, steps=10, max_seconds=1.0)
    assert 1 < machine.seconds < 1.1  # it looks at the clock after every update
    assert not found.complete
    assert not found.ok
    assert "out of time" in found.reason
    assert found.low <= 0.25 < found.high  # the limit of the plain mean square
    nothing = max_stable_lr(model, [data], loss_fn=slow, steps=10, max_seconds=1e-3)
    assert (nothing.low, nothing.high, nothing.trials) == (0.0, math.inf, ())
    assert "no training was finished" in nothing.reason
    assert "not found" in nothing.summary()


def test_the_keyboard_leaves_what_is_known():
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return (model(batch[0]) - batch[1]).square().mean()

    model, data = line()
    found = max_stable_lr(model, [data], loss_fn=loss_fn, steps=10)
    assert not found.complete
    assert found.trials
    assert "keyboard" in found.reason


def test_growth_too_slow_for_the_steps_is_waited_for():
    """At 1.01 times the limit the loss grows by 4 % per update: 3 updates would not tell."""
    model, data = line()
    found = max_stable_lr(model, data, "mse", bracket=(0.4, 0.505), steps=10, seeds=1)
    last = next(trial for trial in found.trials if trial.lr == 0.505)
    assert last.diverged
    assert last.updates > 100


# no trace


def state(model):
    """Values, identities, versions, gradients, modes, hooks, generators."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return (
        [
            (n, id(t), t._version, t.detach().numpy().tobytes(),
             None if t.grad is None else (id(t.grad), t.grad.numpy().tobytes()))
            for n, t in tensors
        ],
        [(m.training, len(m._forward_hooks), sorted(vars(m))) for m in model.modules()],
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
    )  # fmt: skip


def prepared(case, *, copyable=True):
    model = case.build()
    next(iter(model.children())).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.5)
    if not copyable:
        model.uncopyable = torch.ones(2, requires_grad=True) * 2  # no leaf: deepcopy refuses it
        with pytest.raises(RuntimeError, match="deepcopy"):
            copy.deepcopy(model)
    return model


@pytest.mark.parametrize("copyable", [True, False])
@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_the_model_and_the_data_are_left_alone(case, copyable):
    model = prepared(case, copyable=copyable)
    batches = [(case.inputs, case.targets)]
    data = copy.deepcopy(batches)
    before = state(model)
    found = max_stable_lr(model, batches, case.loss, steps=2, seeds=1, tol=3.0)
    assert state(model) == before
    assert found.trials
    same = torch.utils._pytree.tree_map(lambda a, b: bool(torch.equal(a, b)), batches, data)
    assert all(torch.utils._pytree.tree_leaves(same))


class BangError(Exception):
    """The user's own."""


@settings(max_examples=30, derandomize=True)
@given(
    case=st.sampled_from(ROSTER),
    which=st.sampled_from(sorted(CALLS)),
    copyable=st.booleans(),
    calls=st.integers(1, 30),
    error=st.sampled_from([BangError("user"), KeyboardInterrupt()]),
)
def test_the_model_is_left_alone_after_an_error(case, which, copyable, calls, error):
    model = prepared(case, copyable=copyable)
    count = []

    def bomb(*_):
        count.append(1)
        if len(count) == calls:
            raise error

    handle = list(model.modules())[-1].register_forward_hook(bomb)
    before = state(model)
    batches = [(case.inputs, case.targets)]
    with contextlib.suppress(BangError, KeyboardInterrupt, NormscopeError):
        CALLS[which](model, batches, case.loss, **QUICK[which])
    assert state(model) == before
    handle.remove()


def test_a_model_that_cannot_be_copied_gives_the_same_answer():
    case = BY_NAME["bn1d-batch"]
    data = case.inputs, case.targets
    plain, odd = (
        max_stable_lr(prepared(case, copyable=c), data, "mse", steps=10, seeds=1)
        for c in (True, False)
    )
    assert plain.trials == odd.trials


def test_a_loader_is_left_alone_and_read_in_the_same_order_every_time():
    model, (x, y) = line()
    generator = torch.Generator().manual_seed(4)
    x = x + torch.randn(4, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True, generator=generator)
    before = generator.get_state()
    first, second = (max_stable_lr(model, loader, "mse", steps=6, seeds=1) for _ in range(2))
    assert torch.equal(generator.get_state(), before)
    assert first.trials == second.trials
    assert first.convention["data"] == "DataLoader, 2 batches"


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"seeds": 0}, "seeds must be a whole number"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [1, 1]}, "must be different"),
        ({"seeds": [-1]}, "seed must be"),
        ({"bracket": (1.0, 0.1)}, "reversed"),
        ({"bracket": (0.0, 0.1)}, "0 < low < high"),
        ({"bracket": 0.1}, "two learning rates"),
        ({"bracket": (0.1, math.inf)}, "infinity"),
        ({"tol": 0.0}, "tol is the relative width"),
        ({"tol": math.nan}, "tol is the relative width"),
        ({"criterion": "diverge"}, "diverges"),
        ({"max_seconds": 0}, "max_seconds must be"),
        ({"optimizer": "sdg"}, "sgd"),
        ({"optimizer": "adam", "momentum": 0.9}, "belongs to sgd"),
        ({"optimizer": lambda p: 3}, "gave a int"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}, "lr=0"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"divergence": 1e3}, "divergence must be a rule"),
    ],
)
def test_wrong_options_are_refused(options, message):
    model, data = line()
    with pytest.raises(InputError, match=message):
        max_stable_lr(model, data, "mse", **options)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("model", "data", "loss", "message"),
    [
        (3, line()[1], "mse", "torch module or a function"),
        (lambda: 3, line()[1], "mse", "factory must return a torch module"),
        (line()[0], line()[1], None, "Got neither"),
        (line()[0], line()[1], "msee", "Unknown loss"),
        (line()[0], (torch.ones(0, 1), torch.ones(0, 1)), "mse", "at least one"),
        (line()[0], (torch.full((4, 1), math.nan), torch.ones(4, 1)), "mse", "hold nan at index"),
        (line()[0], [], "mse", "no batch"),
        (line()[0], iter([]), "mse", "gives its batches once"),
        (line()[0], 7, "mse", "data must be"),
        (line()[0], (torch.ones(4, 1), torch.ones(4, 3)), "mse", "outputs have shape"),
        (line()[0].requires_grad_(False), line()[1], "mse", "no trainable parameter"),
    ],
)
def test_wrong_input_is_refused(call, model, data, loss, message):
    with pytest.raises(InputError, match=message):
        call(model, data, loss)


def test_a_loss_that_does_not_depend_on_the_model_is_refused():
    model, data = line()
    with pytest.raises(InputError, match="does not depend on any trainable"):
        max_stable_lr(model, [data], loss_fn=lambda net, batch: batch[0].mean())
    with pytest.raises(InputError, match="exactly zero in every trainable"):
        max_stable_lr(model, [data], loss_fn=lambda net, batch: 0 * net(batch[0]).mean())


def test_a_model_at_nan_is_refused_and_named():
    model, data = line()
    model.weight.data.fill_(math.nan)
    with pytest.raises(MeasurementError, match="'weight' holds NaN"):
        max_stable_lr(model, data, "mse")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_model_that_cannot_be_run_is_explained(call):
    with pytest.raises(MeasurementError, match=r"cannot be run on its first batch: RuntimeError"):
        call(nn.Linear(3, 1), line()[1], "mse")
    normed = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    with pytest.raises(InputError, match="The first batch has one sample"):
        call(normed, (torch.ones(1, 1), torch.ones(1, 1)), "mse")


def test_too_short_a_range_test_is_refused():
    model, data = line()
    with pytest.raises(InputError, match="at least 10"):
        lr_range_test(model, data, "mse", steps=5)


# the range test


def test_the_history_is_data_and_the_answer_has_a_reason():
    model, data = line()
    found = lr_range_test(model, data, "mse", bracket=(1e-3, 10.0), steps=60)
    assert found.lrs[0] == pytest.approx(1e-3)
    assert np.allclose(np.diff(np.log(found.lrs)), np.log(1e4) / 59)
    assert found.diverged
    assert len(found.to_frame()) == len(found.lrs) == len(found.losses)
    assert found.low <= found.suggestion <= found.high < found.turn
    assert Record.from_json(found.to_json()) == found
    assert "suggestion" in found.summary()


def test_a_range_far_too_low_has_no_suggestion_but_a_reason():
    found = lr_range_test(digits_net(), "digits", "cross_entropy", bracket=(1e-12, 1e-11), steps=30)
    assert not found.ok
    assert math.isnan(found.suggestion)
    assert "does not clearly fall" in found.reason
    assert "no suggestion" in repr(found)


def test_a_range_far_too_high_has_no_suggestion_but_a_reason():
    model, data = line()
    found = lr_range_test(model, data, "mse", bracket=(10.0, 100.0), steps=30)
    assert not found.ok
    assert "lower the bracket" in found.reason


# what learns


def test_a_network_that_dies_is_not_simply_called_stable():
    """At lr 12 the loss ends at 2.4, that of a constant answer, and does not diverge."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]
    found = max_stable_lr(
        nn.Sequential(nn.Flatten(), *layers), "digits", "cross_entropy", seeds=1, steps=30
    )
    assert found.does_not_learn.high < found.diverges.low
    said = f"it stops learning above {found.does_not_learn.low:.4g}"
    assert said in found.reason
    assert said in found.summary().splitlines()[1]
    assert "stable" not in found.summary().splitlines()[0]


def test_a_network_that_learns_at_no_rate_is_said_to():
    torch.manual_seed(0)
    hidden = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))
    found = max_stable_lr(net, "digits", "cross_entropy", seeds=1, steps=5, tol=0.5)
    assert not any(trial.learned for trial in found.trials)
    assert "no rate that was tried learns" in found.reason
    assert "no rate that was tried learns" in found.summary()


def test_learning_means_half_the_fall_of_the_best():
    """A loss of 2.1 where chance is 2.3 and the best run comes to 0.1 is no learning."""

    def trial(lr, final, **fields):
        given = {"diverged": False, "learned": True, "updates": 9, "start": 2.6, "chance": 2.3}
        rest = {"rising": False, "reason": "", "losses": np.array([2.6, final])}
        return StabilityTrial(lr=lr, seed=0, final=final, **(given | rest | fields))

    trials = [trial(0.1, 1.1), trial(0.5, 0.1), trial(2.0, 1.3), trial(6.0, 2.1)]
    trials.append(trial(9.0, 2.5, learned=False, reason="is not better than chance"))
    found = against_best(trials)
    assert [t.learned for t in found] == [True, True, False, False, False]
    assert "fell less than half as far" in found[2].reason
    assert "0.1 at lr 0.5" in found[2].reason
    assert found[4] is trials[4]
    alone = [trial(6.0, 2.1), trial(9.0, 2.5, learned=False, chance=math.nan)]
    assert against_best(alone) == alone
    unknown = against_best([trial(1.0, 0.1, chance=math.nan), trial(2.0, 1.4, chance=math.nan)])
    assert [t.learned for t in unknown] == [True, False]


def test_what_is_known_after_each_training_run():
    seen = []
    found = max_stable_lr(
        nn.Linear(3, 2), (torch.randn(8, 3), torch.randn(8, 2)), "mse", steps=2, seeds=1, tol=1,
        after_step=seen.append,
    )  # fmt: skip
    assert [len(one.trials) for one in seen] == sorted(len(one.trials) for one in seen)
    assert not any(one.complete for one in seen)
    assert found.complete
    assert seen[-1].trials == found.trials
