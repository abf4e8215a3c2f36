"""Our norm layers in a measurement: as torch's own, for each part, statistic and kind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn import functional

import normscope as ns
from normscope.nn import BatchNorm, refresh_population

SEED = torch.Generator().manual_seed(4)
INPUTS = torch.randn(11, 4, generator=SEED, dtype=torch.float64) + 0.5
LABELS = torch.randint(3, (11,), generator=SEED)
PARTS = {
    "all": {},
    "none": {"parts": ()},
    "mean": {"parts": ("mean",)},
    "variance": {"parts": ("variance", "shift")},
    "rms": {"parts": ("variance", "scale"), "deviation": "rms"},
    "affine": {"parts": ("scale", "shift")},
    "gain": {"parts": ("mean", "variance"), "gamma": 0.3, "eps": 0.0},
    "untracked": {"track_running_stats": False},
}


def network(norm: nn.Module, *, passes: int = 3) -> nn.Module:
    """One norm, some history, weights away from special values."""
    model = nn.Sequential(nn.Linear(4, 5), norm, nn.Tanh(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
        for _ in range(passes):
            model(2 * torch.randn(9, 4, generator=generator) + 1)
    return model


def measured(model: nn.Module, statistics: str) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian; the model must come out as it went in."""
    before = {k: v.clone() for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    modes = [m.training for m in model.modules()]
    risk = ns.Risk(model, INPUTS, LABELS, loss="cross_entropy", statistics=statistics)
    gradient = risk.gradient()
    matrix = ns.hessian(risk) @ torch.eye(len(gradient))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert modes == [m.training for m in model.modules()]
    return gradient, matrix


def differentiated(model: nn.Module, *, training: bool) -> tuple[Tensor, Tensor]:
    """The same by torch.func on a copy, buffers fresh in each call."""
    twin = copy.deepcopy(model).train(training)
    shapes = {k: p.shape for k, p in twin.named_parameters()}
    point = torch.cat([p.detach().flatten() for p in twin.parameters()])

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split([s.numel() for s in shapes.values()])
        given = {k: v.view(s) for (k, s), v in zip(shapes.items(), pieces, strict=True)}
        given |= {k: b.clone() for k, b in twin.named_buffers()}
        return functional.cross_entropy(functional_call(twin, given, INPUTS), LABELS)

    return grad(loss)(point), jacrev(grad(loss))(point)


def held(model: nn.Module, mean: Tensor, variance: Tensor) -> nn.Module:
    """The model with these statistics as constants."""
    twin = copy.deepcopy(model)
    norm = twin[1]
    frozen = BatchNorm(5, parts=norm.parts, deviation=norm.deviation, eps=norm.eps,
                       gamma=norm.gain, every=None)  # fmt: skip
    frozen.load_state_dict(dict(norm.named_parameters()), strict=False)
    frozen.running_mean.copy_(mean)
    frozen.running_var.copy_(variance)
    twin[1] = frozen
    return twin


def by_hand(model: nn.Module) -> tuple[Tensor, Tensor]:
    h, norm = model[0](INPUTS).detach(), model[1]
    about_zero = norm.deviation == "rms" and "mean" not in norm.parts
    return h.mean(0), h.square().mean(0) if about_zero else h.var(0, correction=0)


def close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
def test_ours_is_measured_as_torchs(statistics):
    ours, torchs = network(BatchNorm(5)), network(nn.BatchNorm1d(5))
    ours.load_state_dict(torchs.state_dict())
    close(measured(ours, statistics), measured(torchs, statistics))


@pytest.mark.parametrize("options", PARTS.values(), ids=PARTS)
def test_each_part(options):
    model = network(BatchNorm(5, **options))
    close(measured(model, "batch"), differentiated(model, training=True))
    close(measured(model, "frozen"), differentiated(held(model, *by_hand(model)), training=True))
    if options.get("track_running_stats", True):
        close(measured(model, "running"), differentiated(model, training=False))


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 4])
def test_alternating_statistics_are_those_of_the_next_batch(passes):
    """Fresh or held, and the same in every pass of the measurement."""
    model = network(BatchNorm(5, every=3), passes=passes)
    norm = model[1]
    fresh = passes % 3 == 0
    plain = network(BatchNorm(5))
    plain.load_state_dict(model.state_dict(), strict=False)
    constant = held(model, norm.held_mean, norm.held_var)
    expected = differentiated(plain if fresh else constant, training=True)
    close(measured(model, "batch"), expected)


@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
@pytest.mark.parametrize("kind", ["frozen", "population"])
def test_constants_are_constants_in_every_mode(kind, statistics):
    model = network(BatchNorm(5))
    if kind == "frozen":
        model[1].freeze()
    else:
        model = ns.apply_transform(model, "replace:batch->population")
        refresh_population(model, INPUTS)
    close(measured(model, statistics), differentiated(model, training=True))
