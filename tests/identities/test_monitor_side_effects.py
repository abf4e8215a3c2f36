"""A training with a monitor is the training without: every bit of it, and nothing stays behind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils import _pytree as pytree

from cases import BY_NAME, ROSTER
from fingerprints import fingerprint, module_state
from normscope.subject.batch import call_arguments, float_leaves
from normscope.train.monitor import Monitor

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}
WITH_GRADIENTS = [c for c in ROSTER if any(p.requires_grad for p in c.build().parameters())]


def called(model, case):
    fresh = pytree.tree_map_only(torch.Tensor, torch.clone, case.inputs)  # some work in place
    args, kwargs = call_arguments(model, fresh)
    return model(*args, **kwargs)


def train(model, case, optimizer, *, steps, fail_at=None):
    """A loop with accumulation, an evaluation pass in between, and clipping."""
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            outputs = called(model, case)
            sum(leaf.square().mean() for leaf in float_leaves(outputs)).backward()
        if fail_at == step:
            raise KeyError("the user's own")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            called(model, case)
        model.train()


def end_of(case, kind, every):
    torch.manual_seed(3)
    model = case.build()
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[kind](wanted)
    if every is None:
        train(model, case, optimizer, steps=3)
    else:
        with Monitor(model, every=every) as monitor:
            train(model, case, optimizer, steps=3)
        assert monitor.num_steps == 3
        assert not [t for t in monitor.result().troubles if t.status == "failed"]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad for p in wanted]
    return values, grads, torch.get_rng_state(), model


@pytest.mark.parametrize("case", WITH_GRADIENTS, ids=str)
def test_every_bit_is_the_same(case):
    for kind in OPTIMIZERS:
        plain, watched = end_of(case, kind, None), end_of(case, kind, 1)
        for name, value in plain[0].items():
            assert torch.equal(value, watched[0][name]), name
        for a, b in zip(plain[1], watched[1], strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a.to_dense(), b.to_dense())
        assert torch.equal(plain[2], watched[2])
        assert hooks(watched[3]) == hooks(plain[3])


def hooks(model):
    return [
        {k: len(v) for k, v in vars(m).items() if "hook" in k and hasattr(v, "__len__")}
        for m in model.modules()
    ]


@settings(max_examples=25, derandomize=True)
@given(
    case=st.sampled_from(WITH_GRADIENTS),
    every=st.integers(1, 3),
    fail_at=st.integers(0, 2),
)
def test_nothing_stays_behind_after_an_error_in_the_loop(case, every, fail_at):
    model = case.build()
    before = hooks(model)
    known = len(optimizers._global_optimizer_pre_hooks)
    optimizer = OPTIMIZERS["sgd"]([p for p in model.parameters() if p.requires_grad])
    with pytest.raises(KeyError, match="the user's own"), Monitor(model, every=every):
        train(model, case, optimizer, steps=3, fail_at=fail_at)
    assert hooks(model) == before
    assert len(optimizers._global_optimizer_pre_hooks) == known
    assert len(optimizers._global_optimizer_post_hooks) == known


class Fragile(nn.Module):
    """Raises in the middle of its forward pass when told to."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.broken = False

    def forward(self, x):
        h = torch.relu(self.norm(self.body(x)))
        if self.broken:
            raise ZeroDivisionError
        return self.head(h)


def test_an_error_inside_the_forward_pass_leaves_a_monitor_that_works():
    model = Fragile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 3)
    before = {name: set(module_state(m)) for name, m in model.named_modules()}
    with Monitor(model, every=1) as monitor:
        model.broken = True
        with pytest.raises(ZeroDivisionError):
            model(x)
        model.broken = False
        model(x).square().mean().backward()
        optimizer.step()
    log = monitor.result()
    assert log.of("activation_mean", "relu").steps.tolist() == [0]
    assert not any("#" in layer for layer in log.layers)
    assert {name: set(module_state(m)) for name, m in model.named_modules()} == before


def test_watching_without_a_step_changes_nothing():
    case = BY_NAME["mlp-tanh"]
    model = case.build()
    before = fingerprint(model, case.inputs)
    monitor = Monitor(model)
    with pytest.warns(UserWarning, match="recorded nothing"):
        monitor.close()
    assert fingerprint(model, case.inputs) == before
