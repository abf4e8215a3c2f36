"""The workloads W1-W7: networks, data and float64 references that share no code with normscope."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, replace_all_batch_norm_modules_, vjp
from torch.nn import functional

from benchmarks.products import mlp, resnet20

__all__ = ["CLASSES", "WORKLOADS", "Workload", "gauss_newton", "reference", "unbuffered"]

CLASSES = 10
Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Workload:
    """One question about one network and one batch."""

    name: str
    question: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor  # class labels; the quantities of W1, W4 and W6 do not depend on them
    loss: str  # "mse" (half the sum over outputs, mean over samples) or "cross_entropy"
    task: str  # "eigenvalues", "gram", "density" or "moments"
    k: int = 1

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss; for mse the target is the output itself, so that the Hessian is the Fisher."""
        if self.loss == "mse":
            return 0.5 * (outputs - outputs.detach()).square().sum() / len(outputs)
        return functional.cross_entropy(outputs, targets)

    def gradient(self) -> None:
        """The unit: one loss gradient, as a training step computes it."""
        outputs = self.model(self.inputs)
        if self.loss == "mse":
            loss = 0.5 * (outputs - functional.one_hot(self.targets, CLASSES)).square().sum()
        else:
            loss = functional.cross_entropy(outputs, self.targets)
        torch.autograd.grad(loss, list(self.model.parameters()))


def unbuffered(model: nn.Module) -> nn.Module:
    """A copy whose batch norm keeps no running statistics, which torch.func cannot update."""
    return replace_all_batch_norm_modules_(copy.deepcopy(model))


def gauss_newton(work: Workload, dtype: torch.dtype) -> tuple[Product, int]:
    """v -> J^T H J v by jvp and vjp, both afresh, and the number of parameters."""
    model = unbuffered(work.model).to(dtype)
    inputs = work.inputs.to(dtype)
    values = {name: p.detach() for name, p in model.named_parameters()}
    shapes = {name: value.shape for name, value in values.items()}
    sizes = [value.numel() for value in values.values()]

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (inputs,))

    def product(vector: np.ndarray) -> np.ndarray:
        flat = torch.from_numpy(np.asarray(vector).ravel()).to(dtype)
        parts = flat.split(sizes)
        tangent = {n: part.view(shapes[n]) for n, part in zip(values, parts, strict=True)}
        primal, pushed = jvp(outputs, (values,), (tangent,))
        _, pull = vjp(outputs, values)
        (pulled,) = pull(output_curvature(work.loss, primal, pushed))
        return torch.cat([p.flatten() for p in pulled.values()]).detach().numpy()

    return product, sum(sizes)


def output_curvature(loss: str, outputs: Tensor, pushed: Tensor) -> Tensor:
    """The Hessian of the loss in the outputs, times ``pushed``."""
    if loss == "mse":
        return pushed / len(outputs)
    p = outputs.softmax(1)
    return p * (pushed - (p * pushed).sum(1, keepdim=True)) / len(outputs)


@functools.cache
def reference(work: Workload) -> np.ndarray:
    """Converged float64 eigenvalues, largest first."""
    if work.task == "gram":
        return _dense_gram(work)
    if work.task == "moments":
        from benchmarks.moments import hooked

        return hooked(work, torch.float64)
    if work.task == "density":
        return np.zeros(0)  # fixed work: random vectors differ between the contestants
    product, size = gauss_newton(work, torch.float64)
    op = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.random.default_rng(7).normal(size=size)
    found = eigsh(op, work.k, which="LA", tol=1e-7, v0=start, return_eigenvectors=False)
    return np.sort(found)[::-1]


def _dense_gram(work: Workload) -> np.ndarray:
    """Eigenvalues of J J^T / T with the Jacobian formed, a few samples at a time."""
    model, inputs = copy.deepcopy(work.model).double(), work.inputs.double()
    values = {name: p.detach() for name, p in model.named_parameters()}
    rows = []
    for part in inputs.split(20):
        made = jacrev(lambda p, x=part: functional_call(model, p, (x,)).flatten())(values)
        # float32 storage halves the memory; its rounding is 1e-7 of the largest eigenvalue
        rows.append(torch.cat([block.flatten(1) for block in made.values()], 1).float())
    jacobian = torch.cat(rows)
    gram = torch.zeros(len(jacobian), len(jacobian), dtype=torch.float64)
    for columns in jacobian.split(20_000, dim=1):
        wide = columns.double()
        gram += wide @ wide.T
    return torch.linalg.eigvalsh(gram / len(inputs)).flip(0).numpy()


def _dense(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _labels(count: int) -> Tensor:
    return torch.randint(CLASSES, (count,))


def _w1(full: bool) -> Workload:
    question = "lambda_max of J^T J / T, MLP 784-1000-1000-1000-10, T=1024"
    x = torch.randn(1024, 784)
    return Workload("W1", question, mlp(False), x, _labels(1024), "mse", "eigenvalues")


def _resnet(name: str, what: str, norm: bool, samples: int, task: str) -> Workload:
    question = f"{what}, ResNet-20 {'with train-mode batch norm' if norm else 'without norms'}"
    x = torch.randn(samples, 3, 32, 32)
    question += f", cross-entropy, T={samples}"
    return Workload(name, question, resnet20(norm), x, _labels(samples), "cross_entropy", task)


def _w2(full: bool) -> Workload:
    samples = 256 if full else 32
    return _resnet("W2", "lambda_max of the Gauss-Newton matrix", False, samples, "eigenvalues")


def _w3(full: bool) -> Workload:
    samples = 256 if full else 32
    return _resnet("W3", "lambda_max of the Gauss-Newton matrix", True, samples, "eigenvalues")


def _w4(full: bool) -> Workload:
    question = "all non-zero eigenvalues of J^T J / T, MLP 784-500-500-10, T=200"
    x = torch.randn(200, 784)
    return Workload("W4", question, _dense((784, 500, 500, 10)), x, _labels(200), "mse", "gram")


def _w5(full: bool) -> Workload:
    samples = 512 if full else 64
    what = "Kronecker factors of every layer (patches, expected labels) and all their eigenvalues"
    work = _resnet("W5", what, False, samples, "moments")
    for layer in work.model.modules():  # some packages treat a bias as one more input
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_parameter("bias", None)
    return work


def _w6(full: bool) -> Workload:
    samples = 512 if full else 256
    question = f"top ten eigenvalues of J^T J / T, MLP 784-500-500-10, T={samples}"
    x, model = torch.randn(samples, 784), _dense((784, 500, 500, 10))
    return Workload("W6", question, model, x, _labels(samples), "mse", "eigenvalues", k=10)


def _w7(full: bool) -> Workload:
    what = "spectral density of the Hessian, 2 x 10 products"
    return _resnet("W7", what, False, 256 if full else 16, "density")


WORKLOADS: dict[str, Callable[[bool], Workload]] = {
    "W1": _w1,
    "W2": _w2,
    "W3": _w3,
    "W4": _w4,
    "W5": _w5,
    "W6": _w6,
    "W7": _w7,
}
