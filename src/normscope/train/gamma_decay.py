"""Gamma decay: the penalty on the scales of normalization layers (Luo et al. 2019).

`gamma_decay` has strengths that stay; `adaptive_gamma_decay` measures them again during training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.measure.regularization import decay_strengths
from normscope.measure.regularization.strength import check_curvature, checked_batch_sizes
from normscope.registry import near_match
from normscope.seeds import checked_seed
from normscope.subject.data import repeatable
from normscope.subject.norms import norm_cards
from normscope.subject.objective import OutputsFn, as_objective

Penalty = Callable[[nn.Module], Tensor]
Strength = Tensor | NDArray[np.float64] | float


def scales(model: nn.Module) -> dict[str, Tensor]:
    """The gamma of every normalization layer that has one, by the layer's name."""
    cards = norm_cards(model, strict=True).items()
    found = {name: card.gamma(model.get_submodule(name)) for name, card in cards}
    return {name: gamma for name, gamma in found.items() if gamma is not None}


@dataclass(frozen=True)
class GammaDecay:
    r"""Adds a penalty on the scales gamma to the loss.

    .. math:: \sum_l \sum_i \zeta_{l,i}\, \gamma_{l,i}^2

    The loss is on the scale of Luo et al.'s Eq. (3): total = loss + zeta gamma^2.

    Attributes:
        strength: zeta: one number for all, or per layer name a tensor or array that fits that
            layer's gamma; layers left out have no penalty.
    """

    strength: float | Mapping[str, Strength]

    def __post_init__(self) -> None:
        numbers = self.strength if isinstance(self.strength, Mapping) else {"": self.strength}
        if not numbers:
            raise InputError(
                "Gamma decay got no layer: an empty mapping penalizes nothing. Name at least one "
                "norm layer, give one number for all, or train without this penalty."
            )
        for name, value in numbers.items():
            try:
                zeta = torch.as_tensor(value)
            except (TypeError, ValueError, RuntimeError):
                raise InputError(
                    f"A strength is a number, an array or a tensor. Got {value!r}."
                ) from None
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
    def _term(gammas: dict[str, Tensor], name: str, strength: Strength) -> Tensor:
        zeta = torch.as_tensor(strength)
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


class AdaptiveGammaDecay:
    r"""What batch norm at ``batch_size`` does to the scales, as a penalty for population norm.

    Gamma decay whose strengths follow the network, penalty and refresher in one: pass it to
    ``fit`` as ``penalty`` and among ``refreshers``, behind the ``PopulationRefresher``.

    .. math:: \sum_l \sum_i \zeta_{l,i}\, \gamma_{l,i}^2,\quad \zeta_{l,i} = \tfrac12\left[
              v_\sigma\,\partial^2 L/\partial\gamma_i^2 + v_\mu\,\partial^2 L/\partial\beta_i^2
              \right]

    The diagonal form of Luo et al.'s App. C.4, with the variances that the batch statistics would
    have at ``batch_size``. Strengths are constants of the gradient, at least 0 (the loss can curve
    down early in training), and measured again every ``every`` steps.

    Args:
        model: a network with ``PopulationNorm`` (or batch-norm) layers, the one being trained.
        data: training data, as ``bn_regularization`` takes them.
        loss: that of the training.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: whose regularization to imitate; it need not be that of the training.
        every: steps between two measurements; the number of batches for once an epoch.
        num_samples: drawn from ``data`` for the measurement; None is all.
        curvature: ``"exact"`` (Hessian), ``"probes"`` (Gauss-Newton, labels drawn from the model),
            or ``"auto"``: exact for layers of up to 64 channels without positions.
        probes: label draws per sample.
        seed: seed for subset and probes.

    Example:
        decay = adaptive_gamma_decay(net, data, "cross_entropy", batch_size=128)
        fit(net, data, "cross_entropy", ..., penalty=decay, refreshers=[population, decay])
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: Any,
        *,
        outputs_fn: OutputsFn | None = None,
        batch_size: int,
        every: int = 50,
        num_samples: int | None = 1000,
        curvature: str = "auto",
        probes: int = 4,
        seed: int = 0,
    ) -> None:
        self.model = model
        (self.batch_size,) = checked_batch_sizes(batch_size)
        self.every = checked_count(every, "every")
        self.steps = 0
        self._data = repeatable(data)
        self._loss = as_objective(loss, None, outputs_fn)
        self._options: dict[str, Any] = {
            "max_samples": num_samples,
            "curvature": check_curvature(curvature),
            "probes": checked_count(probes, "probes"),
            "seed": checked_seed(seed),
        }
        self._decay: GammaDecay | None = None

    @property
    def strength(self) -> dict[str, Tensor]:
        """The present zeta by layer, (channels,) each; empty before the first step."""
        found = {} if self._decay is None else self._decay.strength
        assert isinstance(found, Mapping)
        return {name: torch.as_tensor(zeta) for name, zeta in found.items()}

    def __call__(self, model: nn.Module) -> Tensor:
        """The penalty of ``model`` as it is now."""
        if self._decay is None:
            raise InputError(
                "This gamma decay has not been measured yet. Pass it to fit twice: "
                "penalty=decay and refreshers=[..., decay]; or call decay.step() first."
            )
        return self._decay(model)

    def step(self) -> bool:
        """Call before each training step; True if the strengths were measured anew."""
        due = self.steps % self.every == 0
        if due:
            self.refresh()
        self.steps += 1
        return due

    def refresh(self) -> None:
        """Measure the strengths now."""
        found = decay_strengths(
            self.model, self._data, self._loss, batch_size=self.batch_size, **self._options
        )
        self._decay = GammaDecay({name: torch.from_numpy(zeta) for name, zeta in found.items()})

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: steps taken, and the strengths in force."""
        return {"steps": self.steps, "strength": self.strength}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.steps = int(state["steps"])
        self._decay = GammaDecay(dict(state["strength"])) if state["strength"] else None


# the penalties as calls of fit name them
gamma_decay = GammaDecay
adaptive_gamma_decay = AdaptiveGammaDecay
