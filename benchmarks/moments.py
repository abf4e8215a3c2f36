"""W5: Kronecker factors of every layer, by normscope, its peers, and hooks in plain torch.

The question: E[x x^T] of what the window of each convolution sees and E[g g^T] of its output
gradients, the labels' expectation under the model, and all eigenvalues of both. The packages scale
their factors differently, so that what is compared is lambda_max / trace of each. normscope sums in
float64, the others in the network's float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workloads import CLASSES, Workload
from normscope.measure.probes.conditioning import conditioning

__all__ = ["curvlinops_moments", "hooked_moments", "nngeometry_moments", "our_moments"]

LAYERS = (nn.Conv2d, nn.Linear)


def our_moments(work: Workload, setting: float | None) -> np.ndarray:
    data = [(work.inputs, work.targets)]
    found = conditioning(work.model, data, work.loss, kind="true", patches=True)
    pairs = [(layer.inputs, layer.gradients) for layer in found]
    return np.array([s.largest / s.trace for pair in pairs for s in pair])


def _shares(factors: Iterable[Tensor]) -> np.ndarray:
    """lambda_max / trace, from all eigenvalues."""
    spectra = [torch.linalg.eigvalsh(factor) for factor in factors]
    return np.array([float(s[-1] / s.sum()) for s in spectra])


def hooked_moments(work: Workload, setting: float | None) -> np.ndarray:
    """Forward hooks, one backward pass per class: the recipe of a blog post."""
    return hooked(work, torch.float32)


def hooked(work: Workload, dtype: torch.dtype) -> np.ndarray:
    """The same in any precision; in float64 the reference."""
    model, inputs = copy.deepcopy(work.model).to(dtype), work.inputs.to(dtype)
    layers = [module for module in model.modules() if isinstance(module, LAYERS)]
    into: dict[nn.Module, Tensor] = {}
    outs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        x = args[0].detach()
        if isinstance(layer, nn.Conv2d):
            x = functional.unfold(x, layer.kernel_size, 1, layer.padding, layer.stride)
            x = x.transpose(1, 2).flatten(0, 1)
        into[layer] = x.T @ x
        outs[layer] = out

    handles = [layer.register_forward_hook(keep) for layer in layers]
    logits = model(inputs)
    for handle in handles:
        handle.remove()
    p = logits.detach().softmax(1)
    back: dict[nn.Module, Tensor] = {}
    for c in range(CLASSES):
        slope = p[:, c, None].sqrt() * (functional.one_hot(torch.tensor(c), CLASSES) - p)
        found = torch.autograd.grad(logits, [outs[la] for la in layers], slope, retain_graph=True)
        for layer, g in zip(layers, found, strict=True):
            rows = g.flatten(2).transpose(1, 2).flatten(0, 1) if g.ndim == 4 else g
            back[layer] = back.get(layer, 0) + rows.T @ rows
    return _shares(factor for layer in layers for factor in (into[layer], back[layer]))


def nngeometry_moments(work: Workload, setting: float | None) -> np.ndarray:
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatKFAC

    model = copy.deepcopy(work.model)
    loader = DataLoader(TensorDataset(work.inputs, work.targets), batch_size=len(work.inputs))
    layers = LayerCollection.from_model(model)
    made = FIM(model, loader, PMatKFAC, "classif_logits", "cpu", lambda x, _: model(x), layers)
    return _shares(factor for pair in made.data.values() for factor in pair)


def curvlinops_moments(work: Workload, setting: float | None) -> np.ndarray:
    from curvlinops import KFACLinearOperator

    model = copy.deepcopy(work.model)
    data = [(work.inputs, work.targets)]
    made = KFACLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), data,
        check_deterministic=False, fisher_type="type-2",
    )  # fmt: skip
    made.compute_kronecker_factors()
    sides = made._input_covariances, made._gradient_covariances
    return _shares(side[name] for name in sides[0] for side in sides)
