"""How a loss and the targets of a batch are read, where the functions of all of them agree."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import InputError, out_of_memory
from normscope.subject.objective import as_loss, as_objective

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3
QUIET = {"statistics": "batch"}


class Tokens(nn.Module):
    """Scores of every position: (samples, positions, classes)."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def positions(model, batch):
    return model(batch["x"]).flatten(0, 1), batch["y"].flatten()


def tokens(samples=12, length=4):
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(5, (samples, length), generator=draw)
    return [{"x": x, "y": x.roll(1, 1)}]


def test_no_gradient_goes_through_targets():
    """As it is in a measurement: they are what the outputs are compared with."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    how = {"loss": "mse", "outputs_fn": lambda model, batch: (model(batch), 2 * model(batch) + 1)}
    gradient = ns.Risk.from_data(net, [X], **how, **QUIET).gradient()
    before = torch.cat([p.detach().flatten() for p in net.parameters()])
    ns.fit(net, [X], **how, lr=1.0, steps=1)
    after = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(before - after, gradient)


def test_targets_of_a_part_are_those_of_its_samples():
    """One row a position: they cannot be cut with the batch, and are found anew."""
    torch.manual_seed(0)
    net = Tokens()
    noise = ns.gradient_noise(net, tokens(), "cross_entropy", outputs_fn=positions)
    alone = ns.gradient_noise(
        net, tokens(), loss_fn=lambda m, b: functional.cross_entropy(*positions(m, b))
    )
    assert noise.total == pytest.approx(alone.total, rel=1e-9)


def test_targets_that_are_drawn_go_with_the_outputs_of_their_pass():
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    truth = nn.Linear(3, 2).requires_grad_(False)

    def scaled(model, batch):
        x = batch * torch.randn(())
        return model(x), truth(x)

    def as_one(model, batch):
        outputs, targets = scaled(model, batch)
        return 0.5 * (outputs - targets).square().sum(1).mean()

    found = ns.gradient_noise(net, [X], "mse", outputs_fn=scaled)
    wanted = ns.gradient_noise(net, [X], loss_fn=as_one)
    assert found.total == pytest.approx(wanted.total, rel=1e-9)


@pytest.mark.parametrize("kind", ["loss", "model"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("Unable to allocate 4 GiB"),
    ],
    ids=["cpu", "cuda", "numpy"],
)
def test_memory_that_runs_out_halves_the_batch_wherever_it_does(error, kind):
    class Hungry(nn.Linear):
        def forward(self, x):
            if kind == "model" and len(x) > 40:
                raise error
            return super().forward(x)

    def loss(outputs, targets):
        if kind == "loss" and len(outputs) > 40:
            raise error
        return functional.cross_entropy(outputs, targets)

    assert out_of_memory(error)
    data = [(torch.randn(64, 3), torch.arange(64) % 3)]
    found = ns.examine(Hungry(3, 3), data, loss)
    assert found.convention["batch"] == 32
    assert any("Memory ran out" in note for note in found.notes)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("Cross-Entropy", "cross_entropy"),
        (nn.CrossEntropyLoss(), "cross_entropy"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "cross_entropy"),
        ("MSE", "squared"),
        (nn.MSELoss(), "squared"),
        (nn.BCEWithLogitsLoss(), "bernoulli"),
        (nn.NLLLoss(), "log_probability"),
        (functional.cross_entropy, "cross_entropy"),
        (lambda outputs, targets: outputs.sum(), "other"),
    ],
)
def test_what_a_loss_is(loss, kind):
    assert as_loss(loss).kind == kind


def test_labels_under_the_squared_loss_are_rows_with_a_single_one():
    """Also of outputs with positions."""
    squared = as_loss("mse")
    maps = torch.randn(2, 3, 4, 5)
    labels = torch.randint(3, (2, 4, 5))
    rows = functional.one_hot(labels, 3).movedim(-1, 1).to(maps)
    squared.check(maps, labels)
    torch.testing.assert_close(squared.value(maps, labels), squared.value(maps, rows))
    numbers = torch.randn(6, 1)
    with pytest.raises(InputError, match=r"targets\[:, None\]"):
        squared.check(numbers, torch.arange(6))
    squared.check(numbers, torch.arange(6)[:, None])  # numbers to be hit
    with pytest.raises(InputError, match="labels run from 1 to 3"):
        squared.check(torch.randn(3, 3), torch.tensor([1, 2, 3]))


def test_what_a_loss_must_return():
    net = nn.Linear(3, 3)
    for value, words in (
        (lambda m, b: m(b[0]).sum().item(), "a float. Return the tensor itself"),
        (lambda m, b: (m(b[0]).sum(), 1), "a tuple. Return the tensor itself"),
        (lambda m, b: m(b[0]).sum(1), r"shape \(12,\). Reduce it with .mean"),
    ):
        with pytest.raises(ns.NormscopeError, match=words):
            ns.gradients(net, [(X, Y)], loss_fn=value)


def test_both_functions_cannot_be_had():
    with pytest.raises(InputError, match="leave one of them out"):
        as_objective(None, lambda m, b: 0, lambda m, b: (0, 0))


def test_a_loss_that_runs_a_model_of_its_own_changes_nothing():
    """By mistake: the copies that are trained are the argument."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net[0].weight.grad = torch.ones(4, 3)
    held = net[0].weight.grad
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ns.NormscopeError, match=r"model (of its own|that it is given)"):
        ns.max_stable_lr(
            net, [(X, Y)], loss_fn=lambda _, b: functional.cross_entropy(net(b[0]), b[1])
        )
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net[0].weight.grad is held
    assert bool((held == 1).all())
    assert net[2].weight.grad is None


def test_scores_with_classes_on_the_last_axis_are_explained():
    with pytest.raises(InputError, match="second axis"):
        ns.gradients(Tokens(), [(tokens()[0]["x"], tokens()[0]["y"])], "cross_entropy")


def test_a_search_reads_a_loader_with_its_own_generator_alike_in_every_trial():
    seen = []

    class Noted(nn.Linear):
        def forward(self, x):
            seen.append(x[:, 0].tolist())
            return super().forward(x)

    own = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True, generator=own)
    limit = ns.max_stable_lr(Noted(3, 3), loader, "cross_entropy", steps=3, seeds=1, tol=0.5)
    firsts = {tuple(rows) for rows in seen}
    assert len(limit.trials) > 2
    assert len(firsts) <= 3 * (1 + max(t.updates for t in limit.trials) // 3)  # of a few epochs
    first = next(iter(DataLoader(TensorDataset(X, Y), 4, shuffle=True, generator=own)))
    assert seen[0] == first[0][:, 0].tolist()  # where it was
