"""What a user could find changed after a measurement, for tests that nothing is."""

from __future__ import annotations

import random
import signal
import sys
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree

from normscope.subject import interrupts


def fingerprint(model, *data):
    """All that a user could find changed: values, identities, modes, hooks, generators, flags."""
    modules = {name: module_state(module) for name, module in model.named_modules()}
    tensors = [t for t in pytree.tree_leaves(data) if isinstance(t, torch.Tensor)]
    process = [
        torch.get_rng_state().numpy().tobytes(),
        repr(np.random.get_state()),  # noqa: NPY002
        repr(random.getstate()),
        torch.is_grad_enabled(),
        *switches(),
        torch.get_default_dtype(),
    ]
    return modules, [exact(t) for t in tensors], process


def switches():
    """Of torch, for all threads together."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")  # slow to import, and often not needed
    return [
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.utils.checkpoint.CheckpointFunction,
        torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        "default" if compiler is None else compiler._stance.stance,
    ]


def process():
    """What is the whole process's, beyond what `fingerprint` sees."""
    return [
        list(torch.overrides._get_current_function_mode_stack()),
        len(dispatch._get_current_dispatch_mode_stack()),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        warnings.filters,
        {name: value for name, value in vars(functional).items() if callable(value)},
        {name: value for name, value in vars(nn.Module).items() if callable(value)},
        {name: repr(vars(nn.modules.module)[name]) for name in _GLOBAL_HOOKS},
        torch.Tensor.__torch_function__,
        torch._C._get_torch_function_state(),
        switches(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        (interrupts._state.depth, interrupts._state.open, list(interrupts._state.pending)),
    ]


_GLOBAL_HOOKS = [n for n in vars(nn.modules.module) if n.startswith("_global") and "hook" in n]


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
        grad = value.grad if value.is_leaf else None
        grad = None if grad is None else (id(grad), exact(grad))
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
