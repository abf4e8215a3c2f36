"""The signals of every linear layer of a network and their gradients, as tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor], Tensor]
Signals = dict[str, list[Tensor]]


def layer_signals(net: nn.Module, x: Tensor, loss: Loss) -> Signals:
    """Inputs x and outputs h of all linear layers, and the gradients in them and in the weights.

    For whole tensors on one batch, with their graph; ``gradients`` and ``activations`` summarize.

    Args:
        net: a module that calls each of its linear layers once.
        x: its input.
        loss: takes its outputs.

    Returns:
        ``"x"``, ``"h"``, ``"dx"``, ``"dh"`` and ``"dw"``, a tensor for each layer.

    Example:
        >>> found = layer_signals(nn.Sequential(nn.Linear(2, 3)), torch.ones(4, 2), torch.sum)
        >>> found["dw"][0].tolist()
        [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]
    """
    kept: Signals = {"x": [], "h": []}
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept["x"].append(inputs[0])
        kept["h"].append(output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        total = loss(net(x.clone().requires_grad_()))
    finally:
        for hook in hooks:
            hook.remove()
    wanted = [*kept["x"], *kept["h"], *(layer.weight for layer in layers)]
    slopes = torch.autograd.grad(total, wanted)
    for number, name in enumerate(("dx", "dh", "dw")):
        kept[name] = list(slopes[number * len(layers) : (number + 1) * len(layers)])
    return kept
