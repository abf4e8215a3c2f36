"""Values of a wrong kind: refused in words, by an error of normscope, not in the middle of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import NormscopeError

X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
D, CE, HUGE = (X, Y), "cross_entropy", 10**400
SHORT = {"steps": 2, "seeds": 1}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def risk(**how):
    return ns.Risk(net(), X, Y, loss=CE, **{"statistics": "batch", **how})


def op():
    return ns.fisher(risk())


class Unsized:
    """A loader whose length cannot be had."""

    def __init__(self, length) -> None:
        self._length = length

    def __len__(self) -> int:
        if isinstance(self._length, Exception):
            raise self._length
        return self._length

    def __iter__(self):
        return iter([D])


REFUSED = {
    "seed, array": lambda: ns.examine(net(), D, seed=np.ones(2)),
    "seed, class": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, seed=int),
    "seed, tensor": lambda: ns.examine(net(), D, seed=torch.ones(2)),
    "lr": lambda: ns.examine(net(), D, lr=HUGE),
    "momentum": lambda: ns.examine(net(), D, momentum=HUGE),
    "max_seconds": lambda: ns.examine(net(), D, max_seconds=HUGE),
    "lr of fit": lambda: ns.fit(net(), D, CE, lr=HUGE, steps=2),
    "tol": lambda: ns.max_stable_lr(net(), D, CE, tol=HUGE, **SHORT),
    "statistics": lambda: risk(statistics=["batch"]),
    "spatial_scale": lambda: ns.conditioning(net(), D, CE, spatial_scale=[1]),
    "sampling": lambda: ns.bn_regularization(net(), D, CE, batch_size=8, sampling=[1]),
    "preset": lambda: ns.examine(net(), D, preset=np.ones(2)),
    "which": lambda: ns.top_eigenvalues(op(), which=np.ones(2)),
    "method": lambda: ns.trace(op(), method=np.ones(2)),
    "norm": lambda: ns.mlp([3, 3], norm=np.ones(2)),
    "array of text": lambda: ns.examine(net(), (np.array(["a"] * 64), Y)),
    "array of objects": lambda: ns.examine(net(), (np.array([None] * 64), Y)),
    "meta data": lambda: ns.examine(net(), (X.to("meta"), Y)),
    "meta batch": lambda: ns.examine(net(), [(X.to("meta"), Y)]),
    "sparse data": lambda: ns.examine(net(), (X.to_sparse(), Y)),
    "limit": lambda: ns.gram_spectrum(risk(), limit=None),
    "operator": lambda: ns.layer_blocks(None),
    "memory": lambda: risk(memory=HUGE),
    "parameters": lambda: risk(parameters=torch.tensor(1)),
    "changes": lambda: ns.what_if(net(), D, 3),
    "change": lambda: ns.what_if(net(), D, [3]),
    "transform": lambda: ns.apply_transform(net(), None),
    "class as a factory": lambda: ns.max_stable_lr(nn.Linear, D, CE, **SHORT),
    "model": lambda: ns.evaluate("mlp", D),
    "clip": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, clip="1"),
    "checkpoint": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, checkpoint=0.5),
    "refreshers": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, refreshers="x"),
    "penalty": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, penalty=lambda model: None),
    "batch_size": lambda: ns.fit(net(), D, CE, lr=0.1, steps=2, batch_size=HUGE),
    "layers": lambda: ns.activations(net(), D, layers=0.5),
    "layers of norms": lambda: ns.bn_regularization(net(), D, CE, batch_size=8, layers=3),
    "num_batches": lambda: ns.bn_regularization(net(), D, CE, batch_size=8, num_batches=10**12),
    "probes": lambda: ns.bn_regularization(net(), D, CE, batch_size=8, probes=10**12),
    "quantities": lambda: ns.gradients(net(), D, CE, quantities=None),
    "p": lambda: ns.conditioning(net(), D, CE, p=None),
    "p, text": lambda: ns.conditioning(net(), D, CE, p="x"),
    "batch_sizes": lambda: ns.gradient_noise(net(), D, CE, batch_sizes=0.5),
    "divergence": lambda: ns.landscape(net(), D, CE, divergence=None),
    "distances": lambda: ns.landscape(net(), D, CE, distances=HUGE),
    "width": lambda: ns.spectral_density(op(), width="x"),
    "width, huge": lambda: ns.spectral_density(op(), width=HUGE),
    "grid": lambda: ns.spectral_density(op(), grid="x"),
    "dtype": lambda: ns.build(ns.mlp([3, 4, 2]), dtype="float32"),
    "device": lambda: ns.build(ns.mlp([3, 4, 2]), device="nope"),
    "momentum of a norm": lambda: ns.BatchNorm(3, momentum="x"),
    "dtype of a norm": lambda: ns.BatchNorm(3, dtype="float32"),
    "lazy model": lambda: ns.Monitor(nn.LazyLinear(3)),
    "parts of a norm": lambda: ns.BatchNorm(3, parts=0.5),
    "data_dir": lambda: ns.load_data("digits", data_dir=0.5),
    "widths": lambda: ns.mlp(torch.tensor(3)),
    "width of a layer": lambda: ns.predict(ns.mlp([5, HUGE, 3])),
    "samples": lambda: ns.predict(ns.mlp([5, 5, 3]), samples=HUGE),
    "variance": lambda: ns.phase_diagram("relu", HUGE, [0.0]),
    "slope": lambda: ns.predict(ns.mlp([17, 17, 17], activation="leaky_relu(1e300)")),
    "scale": lambda: ns.predict(ns.mlp([17, 17, 17], activation="erf(1e300)")),
    "seeds": lambda: ns.max_stable_lr(net(), D, CE, steps=2, seeds=10**7),
    "draws": lambda: ns.gradient_noise(net(), D, CE, draws=10**9),
    "histogram": lambda: ns.activations(net(), D, histogram=10**8),
    "points": lambda: ns.phase_diagram("relu", np.linspace(1, 2, 10**4), np.linspace(0, 1, 10**4)),
}  # fmt: skip


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused_in_words(call):
    with pytest.raises(NormscopeError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


class Three:
    """A whole number of a kind of its own."""

    def __index__(self) -> int:
        return 3


TAKEN = {
    "batch_size": lambda: ns.bn_regularization(net(), D, CE, batch_size=torch.tensor(4)),
    "k": lambda: ns.top_eigenvalues(op(), k=Three()),
    "max_matvecs": lambda: ns.top_eigenvalues(op(), max_matvecs=Three()),
    "num_vectors": lambda: ns.spectral_density(op(), num_vectors=Three(), steps=Three()),
    "steps": lambda: ns.fit(net(), D, CE, lr=0.1, steps=Three()),
    "seed": lambda: ns.landscape(net(), D, CE, seed=np.int64(3)),
    "seed of noise": lambda: ns.gradient_noise(net(), D, CE, batch_sizes=[8], seed=np.int64(3)),
    "length fails": lambda: ns.fit(net(), Unsized(OSError("no")), CE, lr=0.1, steps=2),
    "length is huge": lambda: ns.fit(net(), Unsized(10**30), CE, lr=0.1, steps=2),
    "length is negative": lambda: ns.fit(net(), Unsized(-1), CE, lr=0.1, steps=2),
}


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_taken_as_it_is_meant(call):
    call()


@pytest.mark.parametrize("change", [lambda a: a.astype(">f4"), lambda a: a[::-1].copy()[::-1]],
                         ids=["big-endian", "reversed"])  # fmt: skip
def test_arrays_of_any_layout(change):
    plain = ns.evaluate(net(), (X.numpy(), Y.numpy()))
    assert ns.evaluate(net(), (change(X.numpy()), Y.numpy())) == plain
    assert ns.evaluate(net(), [(change(X.numpy()), Y.numpy())]).loss == pytest.approx(plain.loss)
