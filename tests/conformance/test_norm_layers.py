"""Every norm layer through one suite: derivatives of every order, transforms, compile, state."""

from __future__ import annotations

import copy
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from normscope.nn.init import initialize
from normscope.nn.norm import (
    BatchNorm,
    FilterResponseNorm,
    GroupNorm,
    LayerNorm,
    PopulationNorm,
    RMSNorm,
    norm_after,
)

# torch's own first use of forward-mode derivatives scripts some functions
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.\\w+. is deprecated")

DENSE, MAPS = (5, 4), (3, 4, 2, 3)
PAIRS = [(), ("mean",), ("variance",), ("mean", "variance"), ("scale", "shift"),
         ("mean", "scale", "shift"), ("variance", "scale", "shift"),
         ("mean", "variance", "scale"), ("mean", "variance", "shift")]  # fmt: skip


@dataclass(frozen=True)
class Layer:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = DENSE

    def build(self) -> nn.Module:
        """The layer away from special values, with some history where it keeps one."""
        layer = self.make()
        generator = torch.Generator().manual_seed(3)
        for parameter in layer.parameters():
            with torch.no_grad():
                parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator))
        for _ in range(2):
            layer(1.5 * torch.randn(self.shape, generator=generator) + 0.3)
        return layer

    def input(self) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return torch.randn(self.shape, generator=generator) * 0.8 + 0.5

    def __str__(self) -> str:
        return self.name


def population(channels: int) -> PopulationNorm:
    layer = PopulationNorm(channels)
    layer.set_statistics(torch.linspace(-1, 1, channels), torch.linspace(0.5, 2, channels))
    return layer


def weight_normed(kind: str) -> nn.Module:
    layer = initialize(nn.Linear(4, 3, bias=False), "he", seed=2)
    return nn.Sequential(layer, norm_after(layer, kind))


ROSTER = [
    *[Layer(f"batch-{'-'.join(p) or 'none'}", lambda p=p: BatchNorm(4, parts=p)) for p in PAIRS],
    Layer("batch", lambda: BatchNorm(4)),
    Layer("batch-maps", lambda: BatchNorm(4), MAPS),
    Layer("batch-eps-0", lambda: BatchNorm(4, eps=0.0)),
    Layer("batch-gain", lambda: BatchNorm(4, parts=("mean", "variance"), gamma=0.3)),
    Layer("batch-rms", lambda: BatchNorm(4, parts=("variance", "shift"), deviation="rms"), MAPS),
    Layer("batch-average", lambda: BatchNorm(4, momentum=None)),
    Layer("batch-untracked", lambda: BatchNorm(4, track_running_stats=False)),
    Layer("ghost", lambda: BatchNorm(4, statistics_batch=3), (6, 4)),
    Layer("ghost-last", lambda: BatchNorm(4, statistics_batch=2, channel_axis=-1), (4, 2, 4)),
    Layer("alternating-2", lambda: BatchNorm(4, every=2), MAPS),
    Layer("alternating-3", lambda: BatchNorm(4, every=3)),
    Layer("frozen", lambda: BatchNorm(4, every=None)),
    Layer("population", lambda: population(4), MAPS),
    Layer("layer", lambda: LayerNorm(4)),
    Layer("layer-no-mean", lambda: LayerNorm(4, parts=("variance", "scale"))),
    Layer("layer-eps-0", lambda: LayerNorm((2, 3), eps=0.0), MAPS),
    Layer("group", lambda: GroupNorm(2, 4), MAPS),
    Layer("group-dense", lambda: GroupNorm(1, 4, parts=("mean", "variance", "shift"))),
    Layer("rms", lambda: RMSNorm(4)),
    Layer("rms-channels", lambda: RMSNorm(4, channels_first=True, eps=1e-3), MAPS),
    Layer("frn", lambda: FilterResponseNorm(4), MAPS),
    Layer("weight", lambda: weight_normed("weight")),
    Layer("weight-mean", lambda: weight_normed("weight-mean")),
    Layer("weight-variance", lambda: weight_normed("weight-variance")),
]  # fmt: skip
INDUCTOR = ("batch-maps", "batch-rms", "alternating-2", "population", "layer-eps-0", "group",
            "rms-channels", "weight-variance")  # fmt: skip  # one of each formula; 10 s each
every_layer = pytest.mark.parametrize("case", ROSTER, ids=str)


def as_function(layer: nn.Module, x: Tensor) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The layer as a function of its input and parameters, with buffers of its own each call."""
    names = [name for name, _ in layer.named_parameters()]
    point = [x, *(p.detach().clone() for p in layer.parameters())]

    def function(x: Tensor, *parameters: Tensor) -> Tensor:
        buffers = {name: b.clone() for name, b in layer.named_buffers()}
        return functional_call(layer, {**dict(zip(names, parameters, strict=True)), **buffers}, x)

    return function, point


def as_loss(layer: nn.Module, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A curved scalar of one flat vector: input and parameters, jointly."""
    function, point = as_function(layer, x)
    sizes, shapes = [p.numel() for p in point], [p.shape for p in point]
    generator = torch.Generator().manual_seed(11)
    target = torch.randn(function(*point).shape, generator=generator)

    def loss(flat: Tensor) -> Tensor:
        pieces = [p.view(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        return (torch.sin(function(*pieces) + target) * target).sum()

    return loss, torch.cat([p.reshape(-1) for p in point]).detach()


def difference_of_gradients(loss: Callable[[Tensor], Tensor], at: Tensor, v: Tensor) -> Tensor:
    """H v by the sixth-order central difference of first gradients: no second derivative."""

    def gradient(point: Tensor) -> Tensor:
        leaf = point.clone().requires_grad_()
        return torch.autograd.grad(loss(leaf), leaf)[0]

    step = 5e-4  # truncation step^6, rounding epsilon / step: both far below 1e-10
    weights = {1: 45.0, 2: -9.0, 3: 1.0}
    total = sum(
        w * (gradient(at + k * step * v) - gradient(at - k * step * v)) for k, w in weights.items()
    )
    return total / (60 * step)


def snapshot(layer: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in [*layer.parameters(), *layer.buffers()]]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@every_layer
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_first_and_second_derivatives_by_differences_of_values(case: Layer, training: bool) -> None:
    function, point = as_function(case.build().train(training), case.input())
    leaves = [p.requires_grad_() for p in point]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@every_layer
def test_second_order_compositions(case: Layer) -> None:
    loss, at = as_loss(case.build(), case.input())
    v = torch.randn(len(at), generator=torch.Generator().manual_seed(2))
    truth = difference_of_gradients(loss, at, v)
    leaf = at.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (double,) = torch.autograd.grad(first @ v, leaf)
    found = {
        "double backward": double,
        "jvp(grad)": jvp(grad(loss), (at,), (v,))[1],
        "jvp(jacrev)": jvp(jacrev(loss), (at,), (v,))[1],
        "grad(jvp)": grad(lambda p: jvp(loss, (p,), (v,))[1])(at),
        "hessian": hessian(loss)(at) @ v,
    }
    scale = truth.abs().max()
    for name, value in found.items():
        assert (value - truth).abs().max() <= 1e-10 * scale, name
        assert (value - double).abs().max() <= 1e-12 * scale, name


@every_layer
def test_transforms_leave_no_trace(case: Layer) -> None:
    layer, x = case.build(), case.input()
    before = snapshot(layer)
    grad(lambda x: layer(x).sin().sum())(x)
    jvp(layer, (x,), (x,))
    vmap(layer)(torch.stack([x, 2 * x]))
    grad(lambda _: layer(x).sum())(torch.tensor(1.0))  # an input the transform knows nothing of
    assert same(before, snapshot(layer))
    assert all(not b.requires_grad for b in layer.buffers())


@every_layer
def test_vmap_is_a_loop(case: Layer) -> None:
    layer, x = case.build(), case.input()
    function, point = as_function(layer, x)
    stacked = torch.stack([x, x.flip(0) * 2, x + x.square()])
    together = vmap(lambda x: function(x, *point[1:]))(stacked)
    one_by_one = torch.stack([function(x, *point[1:]) for x in stacked])
    torch.testing.assert_close(together, one_by_one, rtol=1e-13, atol=1e-13)


@every_layer
def test_forward_mode_leaves_plain_statistics(case: Layer) -> None:
    layer, x = case.build(), case.input()
    twin = copy.deepcopy(layer)
    twin(x)
    with forward_ad.dual_level():
        layer(forward_ad.make_dual(x, torch.ones_like(x)))
    assert same(snapshot(twin), snapshot(layer))


@every_layer
def test_state_dict_round_trip(case: Layer) -> None:
    layer, x = case.build(), case.input()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = case.make()
    other.load_state_dict(torch.load(file, weights_only=True))
    for training in (True, False, True):  # the third step is after both moved on
        layer.train(training), other.train(training)
        assert torch.equal(layer(x), other(x))
    assert same(snapshot(layer), snapshot(other))


@every_layer
def test_copies_are_independent(case: Layer) -> None:
    layer, x = case.build(), case.input()
    other = copy.deepcopy(layer)
    before = snapshot(layer)
    other(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert same(before, snapshot(layer))


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_precision_of_the_input_is_kept(case: Layer, dtype: torch.dtype) -> None:
    low = case.build().to(dtype)
    exact, x = copy.deepcopy(low).double(), case.input().to(dtype)
    found, expected = low(x), exact(x.double())
    assert found.dtype == dtype
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= 16 * torch.finfo(dtype).eps  # a handful of roundings


@every_layer
def test_compiles_without_a_graph_break(case: Layer) -> None:
    check_compiled(case, "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("case", [c for c in ROSTER if c.name in INDUCTOR], ids=str)
def test_compiles_with_inductor(case: Layer) -> None:
    check_compiled(case, "inductor")


def check_compiled(case: Layer, backend: str) -> None:
    torch._dynamo.reset()
    plain, x = case.build(), case.input()
    other = copy.deepcopy(plain)
    compiled = torch.compile(other, backend=backend, fullgraph=True)
    for training in (True, True, False):
        plain.train(training), other.train(training)
        leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, found = plain(leaf), compiled(twin)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        expected.sin().sum().backward()
        found.sin().sum().backward()
        torch.testing.assert_close(twin.grad, leaf.grad, rtol=1e-11, atol=1e-12)
    for a, b in zip(snapshot(plain), snapshot(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


TWINS = [
    (lambda: BatchNorm(4), lambda: nn.BatchNorm1d(4), (6, 4)),
    (lambda: BatchNorm(4), lambda: nn.BatchNorm1d(4), (6, 4, 5)),
    (lambda: BatchNorm(4), lambda: nn.BatchNorm2d(4), (3, 4, 5, 2)),
    (lambda: BatchNorm(4), lambda: nn.BatchNorm3d(4), (3, 4, 2, 2, 3)),
    (lambda: BatchNorm(4, momentum=None, eps=1e-3), lambda: nn.BatchNorm2d(4, 1e-3, None),
     (3, 4, 5, 2)),
    (lambda: BatchNorm(4, momentum=0.7), lambda: nn.BatchNorm1d(4, momentum=0.7), (6, 4)),
    (lambda: BatchNorm(4, parts=("mean", "variance")), lambda: nn.BatchNorm1d(4, affine=False),
     (6, 4)),
    (lambda: BatchNorm(4, track_running_stats=False),
     lambda: nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 2)),
    (lambda: LayerNorm(4), lambda: nn.LayerNorm(4), (6, 3, 4)),
    (lambda: LayerNorm((5, 2), eps=1e-3), lambda: nn.LayerNorm((5, 2), 1e-3), (3, 4, 5, 2)),
    (lambda: LayerNorm(4, parts=("mean", "variance", "scale")),
     lambda: nn.LayerNorm(4, bias=False), (6, 4)),
    (lambda: GroupNorm(2, 4), lambda: nn.GroupNorm(2, 4), (3, 4, 5, 2)),
    (lambda: GroupNorm(1, 4), lambda: nn.LayerNorm(4), (6, 4)),
    (lambda: RMSNorm(4), lambda: nn.RMSNorm(4), (6, 3, 4)),
    (lambda: RMSNorm((3, 4), eps=1e-3), lambda: nn.RMSNorm((3, 4), 1e-3), (6, 3, 4)),
    (lambda: RMSNorm(4, scale=False), lambda: nn.RMSNorm(4, elementwise_affine=False), (6, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "torchs", "shape"), TWINS)
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_parity_with_torch(
    ours: Callable[[], nn.Module], torchs: Callable[[], nn.Module], shape: tuple[int, ...],
    offset: float,
) -> None:  # fmt: skip
    """Outputs, gradients and running statistics within 1e-12, in training and in evaluation."""
    a, b = ours(), torchs()
    for p in b.parameters():
        with torch.no_grad():
            p.add_(torch.randn_like(p))
    a.load_state_dict(b.state_dict())
    for step in range(6):
        training = step != 3
        a.train(training), b.train(training)
        x = torch.randn(shape) * 1.7 + offset
        leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = a(leaf), b(twin)
        close(found, expected)
        cotangent = torch.randn_like(expected)
        found.backward(cotangent)
        expected.backward(cotangent)
        close(leaf.grad, twin.grad)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            close(p.grad, q.grad)
        for name, value in b.state_dict().items():
            close(a.state_dict()[name], value)


def close(found: Tensor, expected: Tensor) -> None:
    error, scale = (found - expected).detach().abs().max(), expected.detach().abs().max()
    assert error <= 1e-12 * scale, (float(error), float(scale))
