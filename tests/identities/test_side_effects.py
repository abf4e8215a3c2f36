"""A measurement leaves nothing behind: not on the model, not in the process, not after an error."""

from __future__ import annotations

import contextlib
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import normscope as ns
from cases import BY_NAME, ROSTER
from fingerprints import fingerprint, prepared
from normscope.errors import InputError


def risk_of(case, model, **options):
    given = {"loss": case.loss, "statistics": case.statistics, "parameters": case.parameters}
    return ns.Risk(model, case.inputs, case.targets, **{**given, **options})


def empirical(risk):
    return ns.fisher(risk, kind="empirical")


OPERATORS = {
    "jacobian": ns.jacobian,
    "fisher": ns.fisher,
    "empirical": empirical,
    "hessian": ns.hessian,
}


def use(case, model, which, memory=None):
    risk = risk_of(case, model, memory=memory)
    operator = OPERATORS[which](risk)
    for count in (1, 3):
        operator @ torch.ones(operator.shape[1], count)
    operator.block(risk.parameters.names[0]) @ torch.ones(
        risk.parameters.sizes[0], dtype=operator.dtype
    )
    if getattr(operator, "dual", None) is not None:
        operator.dual @ torch.ones(operator.dual.shape[0])
    operator.close()
    risk.value(), risk.gradient()


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_nothing_changes(case):
    model = prepared(case)
    handle = model.register_forward_hook(lambda *_: None)
    before = fingerprint(model, case.inputs, case.targets)
    for which in OPERATORS:
        use(case, model, which)
        assert fingerprint(model, case.inputs, case.targets) == before, which
    handle.remove()
    assert not model._forward_hooks


class BangError(Exception):
    """The user's own error."""


class Bomb:
    """Raises at its n-th call."""

    def __init__(self, calls, error):
        self.calls, self.error = calls, error

    def __call__(self, *_):
        self.calls -= 1
        if self.calls == 0:
            raise self.error


@settings(max_examples=60, derandomize=True)
@given(
    case=st.sampled_from(ROSTER),
    which=st.sampled_from(sorted(OPERATORS)),
    calls=st.integers(1, 12),
    where=st.sampled_from(["hook", "layer", "loss"]),
    error=st.sampled_from([BangError("user"), RuntimeError("user"), KeyboardInterrupt()]),
)
def test_nothing_changes_after_an_error(case, which, calls, where, error):
    model = prepared(case)
    bomb = Bomb(calls, error)
    if where == "loss":
        case = armed_loss(case, bomb)
    elif where == "hook":
        model.register_forward_hook(bomb)
    else:
        list(model.modules())[-1].register_forward_pre_hook(bomb)
    before = fingerprint(model, case.inputs, case.targets)
    with contextlib.suppress(BangError, RuntimeError, InputError, KeyboardInterrupt):
        use(case, model, which)
    assert fingerprint(model, case.inputs, case.targets) == before


def armed_loss(case, bomb):
    from dataclasses import replace

    def loss(outputs, targets):
        bomb()
        return sum(t.square().mean() for t in pytree.tree_leaves(outputs))

    return replace(case, loss=loss)


@pytest.mark.parametrize("name", ["bn2d-residual-batch", "mlp-tanh", "lstm"])
def test_the_users_error_arrives(name):
    case = BY_NAME[name]
    model = prepared(case)
    model.register_forward_hook(Bomb(1, BangError("user")))
    with pytest.raises(ns.NormscopeError, match="BangError: user") as caught:
        risk_of(case, model)
    assert isinstance(caught.value.__cause__, BangError)


def test_a_shuffling_loader_leaves_the_generators_alone():
    case = BY_NAME["mlp-tanh"]
    model = prepared(case)
    data = torch.utils.data.TensorDataset(case.inputs, case.targets)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    before = fingerprint(model)
    risk = ns.Risk.from_batches(model, loader, loss="mse", statistics="batch")
    assert fingerprint(model) == before
    assert len(risk.batches) == 3


def test_a_stateful_layer_is_put_back():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(3, 2)
            self.calls, self.seen, self.sum = 0, [], torch.zeros(())
            self.recent, self.nested = deque(maxlen=3), {"past": [], "pair": (torch.zeros(2), 1)}
            self.generator = torch.Generator().manual_seed(3)

        def forward(self, x):
            self.calls += 1
            self.seen.append(self.calls)
            self.sum += 1
            self.recent.append(self.calls)
            self.nested["past"].append(x)
            self.nested["pair"][0].add_(1)
            self.extra = x
            return self.body(x)

    model = Counter()
    risk = ns.Risk(model, torch.randn(4, 3), loss="mse", statistics="batch")
    ns.fisher(risk) @ torch.ones(8)
    assert (model.calls, model.seen, float(model.sum)) == (0, [], 0.0)
    assert list(model.recent) == model.nested["past"] == []
    assert not model.nested["pair"][0].any()
    assert not hasattr(model, "extra")
