"""normscope, its peers and two recipes in plain torch, each as one function of a workload.

A function takes the workload and a setting (Lanczos steps, tolerance; None for normscope, which
stops by itself) and returns the eigenvalues, largest first. All its set-up is inside.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from benchmarks.moments import (
    curvlinops_moments,
    hooked_moments,
    nngeometry_moments,
    our_moments,
)
from benchmarks.workloads import Workload, gauss_newton, output_curvature, unbuffered

__all__ = ["CONTESTANTS", "Contestant", "start_vector"]

TOL = 1e-3
RUNS, STEPS = 2, 10  # of the spectral density
Solver = Callable[[Workload, float | None], np.ndarray]
Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Contestant:
    """A name, the package it needs, and what it can do."""

    name: str
    module: str
    distribution: str
    solvers: dict[str, Solver]
    settings: str = "steps"  # what its setting means: "steps", "tol" or "none"
    own_start: bool = False  # draws its start vector itself

    @property
    def missing(self) -> str | None:
        """Why it cannot take part, or None."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(self.module)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None


def _eigsh(product: Product, size: int, k: int, steps: int) -> np.ndarray:
    """ARPACK with a basis of ``steps`` vectors and a tolerance that ends it after the first."""
    op = LinearOperator((size, size), matvec=product, dtype=np.float32)
    found = eigsh(
        op, k, which="LA", ncv=steps, tol=1e3, v0=start_vector(size), return_eigenvectors=False
    )
    return np.sort(found)[::-1]


def start_vector(size: int) -> np.ndarray:
    """The common start vector of all contestants that let one choose it."""
    return np.random.default_rng(0).normal(size=size).astype(np.float32)


# --- normscope -------------------------------------------------------------------------------


def _risk(work: Workload) -> ns.Risk:
    targets = None if work.loss == "mse" else work.targets
    return ns.Risk(work.model, work.inputs, targets, loss=work.loss, statistics="batch")


def _ours(work: Workload, setting: float | None) -> np.ndarray:
    return ns.top_eigenvalues(ns.fisher(_risk(work)), work.k, tol=TOL).values


def _our_gram(work: Workload, setting: float | None) -> np.ndarray:
    return ns.gram_spectrum(_risk(work)).values


def _our_density(work: Workload, setting: float | None) -> np.ndarray:
    op = ns.hessian(_risk(work))
    return ns.spectral_density(op, num_vectors=RUNS, steps=STEPS).nodes


# --- recipes in plain torch ------------------------------------------------------------------


def _torch_func(work: Workload, setting: float | None) -> np.ndarray:
    product, size = gauss_newton(work, torch.float32)
    return _eigsh(product, size, work.k, int(setting or 0))


def _torch_linearize(work: Workload, setting: float | None) -> np.ndarray:
    """What an expert would write: ``linearize`` once and ``vjp`` once, both replayed."""
    model, inputs = unbuffered(work.model), work.inputs
    values = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [value.numel() for value in values.values()]

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (inputs,))

    primal, push = torch.func.linearize(outputs, values)
    _, pull = torch.func.vjp(outputs, values)

    def product(vector: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(vector.ravel()).split(sizes)
        tangent = {n: p.view(values[n].shape) for n, p in zip(values, parts, strict=True)}
        (pulled,) = pull(output_curvature(work.loss, primal, push(tangent)), retain_graph=True)
        return torch.cat([p.flatten() for p in pulled.values()]).detach().numpy()

    return _eigsh(product, sum(sizes), work.k, int(setting or 0))


# --- peers -----------------------------------------------------------------------------------


def _curvlinops_operator(work: Workload, kind: str) -> tuple[object, float]:
    """The operator on a copy whose batch norm it can differentiate, and the factor to our mse."""
    import curvlinops

    model = unbuffered(work.model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss: nn.Module = nn.CrossEntropyLoss()
    targets, factor = work.targets, 1.0
    if work.loss == "mse":
        loss, factor = nn.MSELoss(), 10 / 2
        targets = torch.zeros(len(work.inputs), 10)
    make = getattr(curvlinops, kind)
    data = [(work.inputs, targets)]
    return make(model, loss, parameters, data, check_deterministic=False), factor


def _curvlinops(work: Workload, setting: float | None) -> np.ndarray:
    operator, factor = _curvlinops_operator(work, "GGNLinearOperator")
    op = operator.to_scipy()
    return factor * _eigsh(lambda v: op @ v.ravel(), op.shape[0], work.k, int(setting or 0))


def _curvlinops_unaided(work: Workload, setting: float | None) -> np.ndarray:
    """As a user would call it who does not know the answer: scipy's default basis, tol=1e-3."""
    operator, factor = _curvlinops_operator(work, "GGNLinearOperator")
    op = operator.to_scipy()
    start = start_vector(op.shape[0])
    found = eigsh(op, work.k, which="LA", tol=TOL, v0=start, return_eigenvectors=False)
    return factor * np.sort(found)[::-1]


def _curvlinops_density(work: Workload, setting: float | None) -> np.ndarray:
    from curvlinops import LanczosApproximateSpectrumCached

    operator, _ = _curvlinops_operator(work, "HessianLinearOperator")
    torch.manual_seed(0)  # boundaries given, or it would spend products on them
    cache = LanczosApproximateSpectrumCached(operator, STEPS, boundaries=(-100.0, 100.0))
    cache.approximate_spectrum(num_repeats=RUNS)
    return np.array([nodes.numpy() for nodes, _ in cache._lanczos_iters])


def _eigenthings(work: Workload, setting: float | None) -> np.ndarray:
    import hessian_eigenthings as he

    model = unbuffered(work.model)
    loss = he.supervised_loss_of_output(work.criterion)
    op = he.GGNOperator(model, [(work.inputs, work.targets)], he.supervised_forward, loss)
    steps = int(setting or 0)
    found = he.lanczos(op, k=work.k, max_iter=steps, which="LA", seed=0).eigenvalues
    return found.numpy()


def _eigenthings_density(work: Workload, setting: float | None) -> np.ndarray:
    import hessian_eigenthings as he

    loss = he.supervised_loss(work.criterion)
    op = he.HessianOperator(copy.deepcopy(work.model), [(work.inputs, work.targets)], loss)
    density = he.spectral_density(op, num_runs=RUNS, lanczos_steps=STEPS, seed=0)
    return density.raw_eigenvalues.numpy()


def _backpack(work: Workload, setting: float | None) -> np.ndarray:
    from backpack.hessianfree.ggnvp import ggn_vector_product

    model = copy.deepcopy(work.model)
    outputs = model(work.inputs)
    loss = work.criterion(outputs, work.targets)
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]

    def product(vector: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(vector.ravel()).split(sizes)
        tangent = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        found = ggn_vector_product(loss, outputs, model, tangent)
        return torch.cat([f.flatten() for f in found]).detach().numpy()

    return _eigsh(product, sum(sizes), work.k, int(setting or 0))


def _pyhessian(work: Workload, setting: float | None) -> np.ndarray:
    """Power iteration on the Hessian of a loss whose Hessian is the Gauss-Newton matrix."""
    from pyhessian import hessian

    model = copy.deepcopy(work.model)
    with torch.no_grad():
        outputs = unbuffered(model)(work.inputs)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if work.loss == "mse":
            data, loss = (work.inputs, outputs), _half_distance
        else:  # the model's own probabilities as labels: the residual term vanishes
            data, loss = (work.inputs, outputs.softmax(1)), nn.CrossEntropyLoss()
        made = hessian(model, loss, data=data, cuda=False)
        values, _ = made.eigenvalues(maxIter=500, tol=setting, top_n=work.k)
    return np.array(values)


def _half_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum() / len(outputs)


def _nngeometry_gram(work: Workload, setting: float | None) -> np.ndarray:
    from nngeometry.gram import GramMatrix

    loader = DataLoader(TensorDataset(work.inputs, work.targets), batch_size=len(work.inputs))
    model = copy.deepcopy(work.model)
    made = GramMatrix(model, loader, function=lambda x, _: model(x)).to_torch()
    rows = len(work.inputs) * made.shape[0]
    return torch.linalg.eigvalsh(made.reshape(rows, rows) / len(work.inputs)).flip(0).numpy()


def _nngeometry(work: Workload, setting: float | None) -> np.ndarray:
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatImplicit, PVector

    model = copy.deepcopy(work.model)
    data = TensorDataset(work.inputs, work.targets)
    layers = LayerCollection.from_model(model)
    variant = "regression" if work.loss == "mse" else "classif_logits"
    loader = DataLoader(data, batch_size=len(work.inputs))
    matrix = FIM(model, loader, PMatImplicit, variant, "cpu", lambda x, _: model(x), layers)
    size = sum(p.numel() for p in model.parameters())

    def product(vector: np.ndarray) -> np.ndarray:
        flat = torch.from_numpy(np.array(vector.ravel()))
        found = matrix.mv(PVector(layers, vector_repr=flat))
        return found.to_torch().detach().numpy()

    return _eigsh(product, size, work.k, int(setting or 0))


CONTESTANTS = [
    Contestant(
        "normscope",
        "normscope",
        "normscope",
        {
            "eigenvalues": _ours,
            "gram": _our_gram,
            "density": _our_density,
            "moments": our_moments,
        },
        "none",
    ),
    Contestant("torch.func", "torch.func", "torch", {"eigenvalues": _torch_func}),
    Contestant("torch hooks", "torch", "torch", {"moments": hooked_moments}, "none"),
    Contestant("torch.func linearize", "torch.func", "torch", {"eigenvalues": _torch_linearize}),
    Contestant(
        "curvlinops",
        "curvlinops",
        "curvlinops-for-pytorch",
        {
            "eigenvalues": _curvlinops,
            "density": _curvlinops_density,
            "moments": curvlinops_moments,
        },
    ),
    Contestant(
        "curvlinops, unaided",
        "curvlinops",
        "curvlinops-for-pytorch",
        {"eigenvalues": _curvlinops_unaided},
        "none",
    ),
    Contestant(
        "hessian-eigenthings",
        "hessian_eigenthings",
        "hessian-eigenthings",
        {"eigenvalues": _eigenthings, "density": _eigenthings_density},
        own_start=True,
    ),
    Contestant("backpack", "backpack", "backpack-for-pytorch", {"eigenvalues": _backpack}),
    Contestant("pyhessian", "pyhessian", "pyhessian", {"eigenvalues": _pyhessian}, "tol"),
    Contestant(
        "nngeometry",
        "nngeometry",
        "nngeometry",
        {"eigenvalues": _nngeometry, "gram": _nngeometry_gram, "moments": nngeometry_moments},
    ),
]
