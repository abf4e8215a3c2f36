"""Gamma decay: the penalty on the scales of normalization layers (Luo et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.graph import is_norm
from normscope.registry import near_match

__all__ = ["GammaDecay", "Penalty", "gamma_decay", "scales"]

Penalty = Callable[[nn.Module], Tensor]


def scales(model: nn.Module) -> dict[str, nn.Parameter]:
    """The gamma of every normalization layer that has one, by the layer's name.

    Other libraries' norms are known by their class name and a vector of weights.
    """
    found = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        named = "norm" in type(module).__name__.lower() and weight.ndim == 1
        if is_norm(module) or named:
            found[name] = weight
    return found


@dataclass(frozen=True)
class GammaDecay:
    r"""Adds a penalty on the scales gamma to the loss.

    .. math:: \sum_l \sum_i \zeta_{l,i}\, \gamma_{l,i}^2

    The loss is on the scale of Luo et al.'s Eq. (3): total = loss + zeta gamma^2.

    Attributes:
        strength: zeta: one number for all, or per layer name a tensor that fits that layer's
            gamma; layers left out have no penalty.
    """

    strength: float | Mapping[str, Tensor]

    def __post_init__(self) -> None:
        numbers = self.strength if isinstance(self.strength, Mapping) else {"": self.strength}
        if not numbers:
            raise InputError(
                "Gamma decay got no layer: an empty mapping penalizes nothing. Name at least one "
                "norm layer, give one number for all, or train without this penalty."
            )
        for name, value in numbers.items():
            zeta = torch.as_tensor(value)
            if not bool((zeta >= 0).all() and zeta.isfinite().all()):
                where = f" of layer {name!r}" if name else ""
                raise InputError(
                    f"The strength{where} must be finite and at least 0: a negative one rewards "
                    f"growth without bound. Got {value!r}; clip it at 0."
                )

    def __call__(self, model: nn.Module) -> Tensor:
        """The penalty of ``model`` as it is now."""
        gammas = scales(model)
        if not gammas:
            raise InputError(
                f"Gamma decay needs normalization layers with a scale, and {type(model).__name__} "
                "has none. Add norm layers (affine=True), or train without this penalty."
            )
        if isinstance(self.strength, Mapping):
            return torch.stack(
                [self._term(gammas, name, zeta) for name, zeta in self.strength.items()]
            ).sum()
        return self.strength * torch.stack([g.square().sum() for g in gammas.values()]).sum()

    @staticmethod
    def _term(gammas: dict[str, nn.Parameter], name: str, zeta: Tensor) -> Tensor:
        if name not in gammas:
            raise InputError(
                f"No normalization layer with a scale is called {name!r}. "
                f"{near_match(name, list(gammas))}"
            )
        gamma = gammas[name]
        if zeta.ndim and zeta.shape != gamma.shape:
            raise InputError(
                f"The strength of {name!r} has shape {tuple(zeta.shape)}, its gamma "
                f"{tuple(gamma.shape)}."
            )
        return (zeta.detach().to(gamma) * gamma.square()).sum()


def gamma_decay(strength: float | Mapping[str, Tensor]) -> GammaDecay:
    """The penalty ``strength`` times the sum of squared scales, for ``fit(penalty=...)``."""
    return GammaDecay(strength)
