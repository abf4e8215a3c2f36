"""Models whose forward-mode derivative is not what backward gives: every number follows backward.

``padding_idx``, ``no_grad`` inside the model and tensor hooks act on the backward pass alone. The
oracle is a dense Jacobian from one backward pass per output.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.measure import frobenius_norm, layer_blocks


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 3, padding_idx=0)
        self.mix = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)
        nn.init.normal_(self.embed.weight)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.embed(x)).mean(1)))


class Target(nn.Module):
    """The same encoder twice, once as a fixed target."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            target = self.encoder(x + 1)
        return self.head(self.encoder(x) * target)


class Hooked(nn.Module):
    def __init__(self, hook=lambda gradient: -0.5 * gradient):
        super().__init__()
        self.body, self.head, self.side = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.hook = hook

    def forward(self, x):
        h = torch.tanh(self.body(x))
        out, turned = self.head(h), h * 1
        if turned.requires_grad:
            turned.register_hook(self.hook)
        return out + self.side(turned)


def tokens():
    x = torch.randint(1, 6, (9, 5))
    x[:, 3:] = 0
    return x


CASES = {
    "padding": (Padded, tokens),
    "no-grad": (Target, lambda: torch.randn(9, 3)),
    "hook": (Hooked, lambda: torch.randn(9, 3)),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    build, inputs = CASES[request.param]
    model, x = build(), inputs()
    rows = []
    for output in model(x).reshape(-1):
        grads = torch.autograd.grad(
            output, list(model.parameters()), retain_graph=True, allow_unused=True
        )
        grads = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(grads, model.parameters(), strict=True)
        ]
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return model, x, torch.stack(rows)


def close(found, expected, tolerance=1e-10):
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    return float((found - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("memory", [None, 2000], ids=["kept", "run-again"])
def test_matrices(case, memory):
    model, x, J = case
    risk = ns.Risk(model, x, loss="mse", statistics="batch", memory=memory)
    assert close(ns.jacobian(risk).to_dense(), J)
    v, u = torch.randn(J.shape[1]), torch.randn(J.shape[0])
    assert close(ns.jacobian(risk).matvec(v), J @ v)
    assert close(ns.jacobian(risk).rmatvec(u), J.T @ u)
    assert close(ns.fisher(risk).to_dense(), J.T @ J / 9)
    assert close(ns.fisher(risk).dual.to_dense(), J @ J.T / 9)


def test_blocks(case):
    model, x, J = case
    risk = ns.Risk(model, x, loss="mse", statistics="batch")
    for layer, block in layer_blocks(ns.fisher(risk)).items():
        names = [n for n in risk.parameters.names if n.rpartition(".")[0] == layer]
        index = torch.cat([torch.arange(J.shape[1])[risk.parameters.slices[n]] for n in names])
        part = J[:, index]
        assert (block.to_dense() - part.T @ part / 9).norm() < 1e-10 * J.norm() ** 2


def test_estimators(case):
    model, x, J = case
    values = torch.linalg.eigvalsh(J @ J.T / 9).flip(0)
    risk = ns.Risk(model, x, loss="mse", statistics="batch")
    assert close(ns.top_eigenvalues(ns.fisher(risk), k=3).values, values[:3], 1e-3)
    assert close(ns.gram_spectrum(risk).values[:3], values[:3])
    for found, exact in (
        (ns.trace(ns.fisher(risk)), values.sum()),
        (frobenius_norm(ns.fisher(risk)), values.norm()),
    ):
        assert abs(found.value - float(exact)) <= 5 * found.standard_error + 1e-9
    density = ns.spectral_density(ns.fisher(risk), num_vectors=8)
    assert density.nodes.max() == pytest.approx(float(values[0]), rel=1e-6)
    directions = ns.leading_directions(risk, k=2)
    assert close(directions.values, values[:2], 1e-3)


def test_cross_entropy(case):
    model, x, J = case
    risk = ns.Risk(model, x, torch.randint(2, (9,)), loss="cross_entropy", statistics="batch")
    p = model(x).softmax(1).detach()
    S = torch.block_diag(*[torch.diag(q) - torch.outer(q, q) for q in p])
    assert close(ns.fisher(risk).to_dense(), J.T @ S @ J / 9)


def test_gradients_that_are_clipped_are_refused():
    model = Hooked(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    risk = ns.Risk(model, torch.randn(9, 3), loss="mse", statistics="batch")
    with pytest.raises(ns.NormscopeError, match="not a linear function"):
        ns.fisher(risk).to_dense()


def test_examine_measures_a_padded_language_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 6, padding_idx=0)
            self.body = nn.GRU(6, 6, batch_first=True)
            self.head = nn.Linear(6, 20)

        def forward(self, x):
            return self.head(self.body(self.embed(x))[0]).transpose(1, 2)

    torch.manual_seed(0)
    x, y = torch.randint(1, 20, (16, 8)), torch.randint(1, 20, (16, 8))
    x[:, 5:] = 0
    found = ns.examine(Model().float(), (x, y), "cross_entropy")
    assert not found.partial, found


def test_examine_measures_a_model_with_autocast_inside():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.body(x)

    torch.manual_seed(0)
    model = Mixed().float()
    data = torch.randn(32, 8).float(), torch.randint(4, (32,))
    mixed, plain = (ns.examine(m, data, "cross_entropy") for m in (model, model.body))
    assert not mixed.partial, mixed
    assert [e.value for e in mixed.numbers] == [e.value for e in plain.numbers]
