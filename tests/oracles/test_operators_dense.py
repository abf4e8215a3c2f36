"""Every operator on every network of the roster against matrices from plain autograd loops.

The oracle shares nothing with the library: a deep copy of the module, the loss written out here,
one backward pass per entry. Only the conventions (order of parameters and outputs) are the same.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import normscope as ns
from cases import BY_NAME, ROSTER, smooth_absolute

TOLERANCE = 1e-10


class FixedAffine(nn.Module):
    """Batch norm with given statistics, one pair per call."""

    def __init__(self, layer, statistics):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.statistics, self.calls = statistics, 0

    def forward(self, x):
        mean, var = self.statistics[self.calls % len(self.statistics)]
        self.calls += 1
        shape = [1, -1] + [1] * (x.ndim - 2)
        out = (x - mean.view(shape)) / (var.view(shape) + self.eps).sqrt()
        return out * self.weight.view(shape) + self.bias.view(shape)


def frozen_copy(case, model):
    """The network with each batch-norm layer replaced by the affine map of its own batch."""
    seen = {}

    def note(name):
        def hook(layer, args):
            x = args[0]
            axes = [0, *range(2, x.ndim)]
            mean = x.mean(axes)
            centred = x - x.mean(axes, keepdim=True)
            seen.setdefault(name, []).append((mean.detach(), centred.square().mean(axes).detach()))

        return hook

    layers = {
        n: m for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    handles = [m.register_forward_pre_hook(note(n)) for n, m in layers.items()]
    call(model.train(), case.inputs)
    for handle in handles:
        handle.remove()
    for name, layer in layers.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, FixedAffine(layer, seen[name]))
    return model


def call(model, inputs):
    inputs = copy.deepcopy(inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, dict) and "a" in inputs:
        return model(**inputs)
    return model(inputs)


def tensors(outputs):
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return [t for part in values for t in tensors(part)]


def losses(case, outputs):
    """One loss per sample, and the factor c in front of their sum."""
    outputs = tensors(outputs)
    targets = tensors(case.targets)
    f, y = outputs[0], targets[0]
    count = len(f)
    if case.loss == "mse":
        each = sum(
            0.5 * (f - y).square().reshape(count, -1).sum(1)
            for f, y in zip(outputs, targets, strict=True)
        )
        return each, 1 / count
    if case.loss == "cross_entropy":
        each = -f.log_softmax(1).gather(1, y.unsqueeze(1)).flatten()
        return each, 1 / len(each)
    if case.loss is smooth_absolute:
        return torch.log(torch.cosh(f - y)).sum(1), 1 / count
    if isinstance(case.loss, nn.MSELoss):
        return (f - y).square().mean(1), 1 / count
    if isinstance(case.loss, nn.HuberLoss):
        gap = (f - y).abs()
        return torch.where(gap <= 1, 0.5 * gap.square(), gap - 0.5).mean(1), 1 / count
    if isinstance(case.loss, nn.BCEWithLogitsLoss):
        return (functional.softplus(f) - y * f).flatten(), 1 / f.numel()
    if case.loss.reduction == "sum":
        return -f.log_softmax(1).gather(1, y[:, None])[:, 0], 1.0
    logp, w = f.log_softmax(1), case.loss.weight
    smooth = case.loss.label_smoothing
    each = -(1 - smooth) * w[y] * logp.gather(1, y[:, None])[:, 0] - smooth / 2 * (logp @ w)
    return each * count / w[y].sum(), 1 / count


class Oracle:
    """Dense matrices of one case by autograd loops."""

    def __init__(self, case):
        self.case = case
        model = copy.deepcopy(case.build())
        model.train(case.statistics != "running")
        if case.statistics == "frozen":
            model = frozen_copy(case, model)
        self.model = model
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if case.parameters == "weights":
            named = [(n, p) for n, p in named if p.ndim > 1]
        # replacing a layer moves its parameters within the module list: restore the order
        order = [n for n, p in case.build().named_parameters()]
        named.sort(key=lambda item: order.index(item[0]))
        self.names, self.parameters = [n for n, _ in named], [p for _, p in named]

    def outputs(self):
        with sdpa_kernel(SDPBackend.MATH), pytest.MonkeyPatch.context() as patch:
            # torch's fused weight norm has a wrong double backward (test_norm_hessians)
            patch.setattr(torch, "_weight_norm", lambda v, g, dim: g * v / v.norm(dim=1)[:, None])
            return call(self.model, self.case.inputs)

    def rows(self, scalars, **options):
        rows = []
        for value in scalars:
            grads = torch.autograd.grad(
                value, self.parameters, retain_graph=True, allow_unused=True, **options
            )
            grads = [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, self.parameters, strict=True)
            ]
            rows.append(torch.cat([g.reshape(-1) for g in grads]))
        return torch.stack(rows)

    def flat_outputs(self):
        return torch.cat([t.reshape(-1) for t in tensors(self.outputs())])

    def jacobian(self):
        return self.rows(self.flat_outputs()).detach()

    def hessian(self):
        each, c = losses(self.case, self.outputs())
        gradient = self.rows([c * each.sum()], create_graph=True)[0]
        if not gradient.requires_grad:
            return torch.zeros(len(gradient), len(gradient))
        return self.rows(gradient).detach()

    def empirical(self):
        # The gradient of one sample's own loss, through the whole coupled network.
        each, c = losses(self.case, self.outputs())
        gradients = self.rows(each).detach()
        return c * gradients.T @ gradients

    def true(self):
        # Hessian of the loss in the outputs, entry by entry, between two dense Jacobians.
        outputs = self.outputs()
        leaves = [t.detach().requires_grad_() for t in tensors(outputs)]
        each, c = losses(self.case, leaves)
        slope = torch.autograd.grad(c * each.sum(), leaves, create_graph=True)
        slope = torch.cat([s.reshape(-1) for s in slope])
        rows = []
        for entry in slope:
            second = torch.autograd.grad(entry, leaves, retain_graph=True, allow_unused=True)
            second = [
                torch.zeros_like(x) if s is None else s for s, x in zip(second, leaves, strict=True)
            ]
            rows.append(torch.cat([s.reshape(-1) for s in second]))
        J = self.jacobian()
        return J.T @ torch.stack(rows) @ J


def risk_of(case, **options):
    settings = {"loss": case.loss, "statistics": case.statistics, "parameters": case.parameters}
    return ns.Risk(case.build(), case.inputs, case.targets, **{**settings, **options})


def operators(risk, case):
    found = {
        "jacobian": ns.jacobian(risk),
        "true": ns.fisher(risk),
        "empirical": ns.fisher(risk, kind="empirical"),
        "hessian": ns.hessian(risk),
    }
    if not hasattr(case.loss, "label_smoothing") and not callable(case.loss):
        found["sampled"] = ns.fisher(risk, kind="sampled", seed=3)
    return found


def error(a, b):
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_every_operator_is_the_dense_matrix(case):
    oracle = Oracle(case)
    for name, operator in operators(risk_of(case), case).items():
        dense = operator.to_dense()
        if name != "sampled":
            assert error(dense, getattr(oracle, name)()) < TOLERANCE, name
        check_consistency(name, operator, dense)


def check_consistency(name, operator, dense):
    """Tags hold, several vectors at once = one by one, and the second product = the first."""
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(operator.shape[1], 3, generator=generator)
    stacked = torch.stack([operator @ v for v in V.T], dim=1)
    assert error(stacked, dense @ V) < TOLERANCE, name
    assert error(operator @ V, stacked) < TOLERANCE, name
    if operator.symmetric:
        assert error(dense.T, dense) < TOLERANCE, name
    else:
        U = torch.randn(operator.shape[0], 2, generator=generator)
        assert error(operator.rmatmat(U), dense.T @ U) < TOLERANCE, name
    if operator.psd:
        values = torch.linalg.eigvalsh(dense)
        assert values[0] > -1e-10 * values[-1], name
    dual = getattr(operator, "dual", None)
    if dual is not None:
        check_dual(name, operator, dual, dense)


def check_dual(name, operator, dual, dense):
    gram = dual.to_dense()
    values, vectors = torch.linalg.eigh(gram)
    count = min(len(gram), len(dense))
    primal = torch.linalg.eigvalsh(dense)
    assert error(values[-count:], primal[-count:]) < TOLERANCE, name
    back = operator.from_dual(vectors[:, -1:].T)[0]
    assert error(dense @ back, values[-1] * back) < 1e-8, name


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_blocks_are_sub_matrices(case):
    risk = risk_of(case)
    names = risk.parameters.names
    chosen = [names[0], names[-1]]
    index = torch.cat([torch.arange(risk.num_parameters)[risk.parameters.slices[n]] for n in
                       dict.fromkeys(chosen)])  # fmt: skip
    for name, operator in operators(risk, case).items():
        dense, block = operator.to_dense(), operator.block(chosen).to_dense()
        expected = dense[:, index] if name == "jacobian" else dense[index][:, index]
        assert (block - expected).norm() <= TOLERANCE * dense.norm(), name


def test_layer_blocks_tile_the_diagonal():
    operator = ns.fisher(risk_of(BY_NAME["bn2d-residual-batch"]))
    blocks = ns.measure.layer_blocks(operator)
    assert list(blocks) == ["conv1", "conv2", "norm1", "norm2", "head"]
    assert sum(b.shape[0] for b in blocks.values()) == operator.shape[0]
    total = sum(torch.trace(b.to_dense()) for b in blocks.values())
    assert torch.allclose(total, torch.trace(operator.to_dense()))


UNCOUPLED = [
    c
    for c in ROSTER
    if not (c.statistics == "batch" and ("bn" in c.name or c.name in {"weights-only"}))
    and c.name not in {"frozen-parameters", "loss-module-ce-smooth"}
]


@pytest.mark.parametrize("case", UNCOUPLED, ids=str)
def test_chunked_is_unchunked(case):
    whole = operators(risk_of(case), case)

    from normscope.subject import memory

    needed = memory.forward_bytes(risk_of(case).function(), risk_of(case).batches[0])
    small = risk_of(case, memory=max(1, int(0.8 * memory.PASSING * needed)))
    assert len(small.pieces(small.function())) > 1
    for name, operator in operators(small, case).items():
        V = torch.randn(operator.shape[1], 2)
        products, expected = operator @ V, whole[name] @ V
        if name == "jacobian" and case.name == "tuple-outputs":  # rows in the order of the pieces
            products, expected = products.sort(0).values, expected.sort(0).values
        assert error(products, expected) < 1e-12, name


def test_the_mean_over_batches_is_the_quantity():
    case = BY_NAME["bn1d-batch-ce"]
    model = case.build()
    parts = [(case.inputs[:4], case.targets[:4]), (case.inputs[4:], case.targets[4:])]
    whole = ns.Risk.from_batches(model, parts, loss=case.loss, statistics="batch")
    for make in (ns.fisher, ns.hessian):
        separate = [
            make(ns.Risk(model, x, y, loss=case.loss, statistics="batch")).to_dense()
            for x, y in parts
        ]
        assert error(make(whole).to_dense(), sum(separate) / 2) < 1e-12
    dual = ns.fisher(whole).dual
    assert dual.shape == (12, 12)
    check_dual("true", ns.fisher(whole), dual, ns.fisher(whole).to_dense())
