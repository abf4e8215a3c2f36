"""A user's optimizer, made again for copies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.diagnose._optimizers import Remade, chosen_optimizer
from normscope.errors import InputError


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def settings(optimizer: torch.optim.Optimizer) -> list[dict]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.05),
        lambda p: torch.optim.AdamW(p, 1e-3),
        lambda p: torch.optim.Adam(p, 1e-3, betas=(0.8, 0.9)),
        lambda p: torch.optim.RMSprop(p, 1e-3, alpha=0.5),
        lambda p: torch.optim.Adagrad(p, 1e-2),
        lambda p: torch.optim.NAdam(p, 1e-2),
    ],
)
def test_all_settings_are_kept(make):
    model, copy = net(), net()
    given = make(model.parameters())
    chosen = chosen_optimizer(given, model, None)
    assert isinstance(chosen.optimizer, Remade)
    made = chosen.optimizer(copy.parameters())
    assert type(made) is type(given)
    assert settings(made) == settings(given)
    assert type(given).__name__ in str(chosen.optimizer)


@pytest.mark.parametrize(
    ("make", "name", "momentum"),
    [(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "sgd", 0.9),
     (lambda p: torch.optim.Adam(p, 0.1), "adam", 0.0),
     (lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.0), "adamw", 0.0)],
)  # fmt: skip
def test_what_is_as_usual_goes_by_its_name(make, name, momentum):
    model = net()
    chosen = chosen_optimizer(make(model.parameters()), model, None)
    assert (chosen.optimizer, chosen.lr, chosen.momentum) == (name, 0.1, momentum)


def test_groups_go_to_the_same_parameters_of_a_copy():
    model, copy = net(), net()
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": rest, "lr": 0.5}]
    given = torch.optim.SGD(groups, 0.1, momentum=0.9)
    made = chosen_optimizer(given, model, None).optimizer(copy.parameters())
    assert settings(made) == settings(given)
    first, second = (group["params"] for group in made.param_groups)
    assert {id(p) for p in first} == {id(p) for p in copy.parameters() if p.ndim > 1}
    assert {id(p) for p in second} == {id(p) for p in copy.parameters() if p.ndim == 1}


def test_groups_of_a_changed_network():
    model = ns.network("mlp:6-5-5-3", norm=None)
    *before, weight, bias = model.parameters()
    groups = [{"params": before[:1], "lr": 0.5}, {"params": [weight, bias]}]  # others are frozen
    remade = chosen_optimizer(torch.optim.SGD(groups, 0.1), model, None).optimizer
    changed = ns.apply_transform(model, "norm-before-last")
    made = remade.of_changed(changed)(changed.parameters())
    names = {id(p): name for name, p in changed.named_parameters()}
    first, last = ({names[id(p)] for p in group["params"]} for group in made.param_groups)
    linear = [m for m in changed.modules() if isinstance(m, nn.Linear)]
    assert {names[id(linear[-1].weight)], names[id(linear[-1].bias)]} == last
    assert names[id(linear[0].weight)] in first
    assert not {names[id(linear[1].weight)], names[id(linear[0].bias)]} & (first | last)
    new = set(dict(changed.named_parameters())) - set(dict(model.named_parameters()))
    assert new & first  # those of the new norm


def test_what_is_not_held_is_not_trained_in_changed_copies_either():
    model = ns.network("mlp:64-16-16-10", norm=None)
    last = torch.optim.SGD(list(model.parameters())[-2:], 0.1)
    options = {"steps": 10, "tol": 0.5}
    alone = ns.what_if(model, "digits", ["scale-weights=1"], optimizer=last, **options)
    before, after = alone.variants
    assert after.reached == before.reached
    longer = ns.what_if(model, "digits", ["norm-before-last"], optimizer=last, **options)
    free = ns.what_if(model, "digits", ["norm-before-last"], optimizer="sgd", **options)
    assert longer.after[0].reached > free.after[0].reached


def test_momentum_takes_the_place_of_the_optimizers_own():
    model = net()
    given = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    chosen = chosen_optimizer(given, model, 0.0)
    assert chosen.momentum == 0
    assert chosen.optimizer(net().parameters()).param_groups[0]["momentum"] == 0


class Scaled(torch.optim.SGD):
    """With settings that only its groups know."""

    def __init__(self, params, lr=0.1, **settings):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group.update({"scale": 1.0} | settings)


def test_settings_of_an_open_signature_are_kept():
    model = net()
    remade = chosen_optimizer(Scaled(model.parameters(), scale=10.0), model, None).optimizer
    assert remade(net().parameters()).param_groups[0]["scale"] == 10


def test_a_schedule_that_warms_up_from_zero():
    model = net()
    given = torch.optim.SGD(model.parameters(), 0.3)
    torch.optim.lr_scheduler.LambdaLR(given, lambda step: step / 10)
    assert given.param_groups[0]["lr"] == 0
    assert chosen_optimizer(given, model, None).lr == 0.3


class Strict(torch.optim.SGD):
    def __init__(self, params, lr, power):
        super().__init__(params, lr=lr)


@pytest.mark.parametrize(
    ("make", "words"),
    [(torch.optim.LBFGS, "LBFGS asks for several losses"),
     (lambda p: Strict(p, 0.1, 2), "Strict cannot be made again .*power.* function of the par")],
)  # fmt: skip
def test_what_cannot_be_made_again_is_refused(make, words):
    model = net()
    with pytest.raises(InputError, match=words):
        chosen_optimizer(make(model.parameters()), model, None)


def test_a_search_by_itself_takes_a_function():
    model = ns.network("mlp:64-12-10")
    with pytest.raises(InputError, match="holds the parameters of one model: pass lambda p"):
        ns.max_stable_lr(model, "digits", "mse", optimizer=torch.optim.Adam(model.parameters()))


def test_trainings_use_it_and_say_so():
    model = ns.network("mlp:64-12-10")
    given = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    advice = ns.suggest_lr(model, "digits", optimizer=given, steps=5)
    assert advice.ok
    assert "AdamW(" in advice.convention["optimizer"]
    assert "weight_decay=0.05" in advice.convention["optimizer"]


def test_an_optimizer_of_frozen_parameters_is_a_finding():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    model[0].requires_grad_(False)
    found = ns.examine(model, (torch.randn(8, 3), torch.arange(8) % 2), optimizer=optimizer)
    assert "missing-in-optimizer" in [f.rule for f in found.above("warning")]


def test_a_schedule_is_no_optimizer():
    model = net()
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.1), 5)
    data = torch.randn(8, 3), torch.zeros(8).long()
    for call in (ns.examine, ns.suggest_lr, ns.what_if):
        with pytest.raises(InputError, match="a StepLR, a schedule"):
            call(model, data, optimizer=schedule)
    with pytest.raises(InputError, match="a StepLR, a schedule"):
        ns.fit(model, data, "cross_entropy", optimizer=schedule, steps=1)
    with pytest.raises(InputError, match="optimizer must be a name"):
        ns.examine(model, data, optimizer=3)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_adaptive_optimizers_get_one_sentence(kind):
    model, data = net(), (torch.randn(8, 3), torch.zeros(8).long())
    given = ns.examine(model, data, optimizer=kind(model.parameters(), lr=0.01))
    sentence = f"{kind.__name__.lower()} rescales its steps, so lambda_max gives no limit"
    assert any(sentence in note for note in given.notes)


def test_names_of_optimizers_in_capitals():
    model, data = net(), (torch.randn(8, 3), torch.zeros(8).long())
    found = ns.examine(model, data, optimizer="AdamW", lr=0.01)
    assert found.convention["optimizer"] == "adamw"
    assert ns.fit(model, data, "cross_entropy", optimizer="SGD", lr=0.1, steps=1).updates == 1
