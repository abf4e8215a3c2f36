"""What a user could find changed after a measurement, for tests that nothing is."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils import _pytree as pytree


def fingerprint(model, *data):
    """All that a user could find changed: values, identities, modes, hooks, generators, flags."""
    modules = {name: module_state(module) for name, module in model.named_modules()}
    tensors = [t for t in pytree.tree_leaves(data) if isinstance(t, torch.Tensor)]
    process = [
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state()),  # noqa: NPY002
        repr(random.getstate()),
        torch.is_grad_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        id(torch.utils.checkpoint.CheckpointFunction),
        id(torch.utils.checkpoint._checkpoint_without_reentrant_generator),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.get_default_dtype(),
    ]
    return modules, [exact(t) for t in tensors], process


def module_state(module):
    state = {}
    for key, value in vars(module).items():
        if isinstance(value, dict):
            state[key] = [(k, id(v), exact(v)) for k, v in value.items()]
        else:
            state[key] = (id(value), exact(value))
    return state


def exact(value):
    if isinstance(value, torch.Tensor):
        grad = None if value.grad is None else (id(value.grad), exact(value.grad))
        version = value._version
        content = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()  # bfloat16 too
        return content, value.requires_grad, grad, version
    if isinstance(value, list | tuple):
        return [(id(v), exact(v) if isinstance(v, torch.Tensor) else repr(v)) for v in value]
    return repr(value) if isinstance(value, int | float | str | bool | set) else None


def prepared(case):
    """A model in the middle of its life: gradients, a hook, an unusual mode, moved generators."""
    model = case.build()
    model.train(case.name != "mlp-tanh")
    next(iter(model.children())).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.5)
    torch.rand(3), np.random.rand(2), random.random()  # noqa: NPY002
    return model
