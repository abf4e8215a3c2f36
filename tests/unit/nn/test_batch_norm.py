"""Parts, statistics and evaluation mode of ``BatchNorm``."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError
from normscope.nn.norm import PARTS, BatchNorm, GroupNorm, LayerNorm, RMSNorm, make_norm, norm_after


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 1.7 + 0.6


EVERY_SUBSET = [s for k in range(5) for s in itertools.combinations(PARTS, k)]


@pytest.mark.parametrize("parts", EVERY_SUBSET, ids="-".join)
@pytest.mark.parametrize("deviation", ["centred", "rms"])
@pytest.mark.parametrize("training", [True, False])
def test_every_subset_of_parts_is_the_written_formula(parts, deviation, training):
    layer = BatchNorm(3, parts=parts, deviation=deviation, eps=1e-3)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0)
    for seed in range(3):
        layer(draw(7, 3, 2, seed=seed))
    layer.train(training)
    mean, square = layer.running_mean.clone(), layer.running_var.clone()
    x = draw(5, 3, 4, seed=9)
    found = layer(x)
    if training:
        mean, square = x.mean((0, 2)), x.var((0, 2), correction=0)
        if deviation == "rms" and "mean" not in parts:
            square = x.square().mean((0, 2))
    expected = x
    if "mean" in parts:
        expected = expected - mean[:, None]
    if "variance" in parts:
        expected = expected / (square[:, None] + 1e-3).sqrt()
    if "scale" in parts:
        expected = expected * layer.weight[:, None]
    if "shift" in parts:
        expected = expected + layer.bias[:, None]
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_parts_as_the_paper_describes_them():
    x = draw(50, 4)
    assert torch.equal(BatchNorm(4, parts=())(x), x)
    mean_only = BatchNorm(4, parts=["mean"])(x)
    torch.testing.assert_close(mean_only.mean(0), torch.zeros(4), rtol=0, atol=1e-14)
    torch.testing.assert_close(mean_only.var(0), x.var(0), rtol=1e-12, atol=0)
    variance_only = BatchNorm(4, parts=["variance"], eps=0.0)(x)
    torch.testing.assert_close(variance_only.var(0, correction=0), torch.ones(4))
    torch.testing.assert_close(variance_only.mean(0), x.mean(0) / x.std(0, correction=0))
    rms = BatchNorm(4, parts=["variance"], deviation="rms", eps=0.0)(x)
    torch.testing.assert_close(rms.square().mean(0), torch.ones(4))


def test_running_statistics_follow_the_parts():
    """Running values are those that evaluation uses: variance unbiased, mean square as it is."""
    x = draw(6, 3)
    centred = BatchNorm(3, parts=["variance"], momentum=1.0)
    centred(x)
    torch.testing.assert_close(centred.running_var, x.var(0))
    rms = BatchNorm(3, parts=["variance"], deviation="rms", momentum=1.0)
    rms(x)
    torch.testing.assert_close(rms.running_var, x.square().mean(0))
    nothing = BatchNorm(3, parts=["scale", "shift"], momentum=1.0)
    nothing(x)
    assert torch.equal(nothing.running_mean, torch.zeros(3))
    assert int(nothing.num_batches_tracked) == 0


@pytest.mark.parametrize("every", [2, 3])
def test_alternating_statistics_by_hand(every):
    layer = BatchNorm(3, every=every, eps=1e-3, momentum=0.3)
    running_mean, running_var = torch.zeros(3), torch.ones(3)
    for step in range(3 * every):
        x = draw(5, 3, seed=step).requires_grad_()
        if step % every == 0:
            held = x.detach().mean(0), x.detach().var(0, correction=0)
            running_mean = 0.7 * running_mean + 0.3 * held[0]
            running_var = 0.7 * running_var + 0.3 * x.detach().var(0)
            twin = nn.BatchNorm1d(3, eps=1e-3)
            expected = twin(x)
        else:
            expected = (x - held[0]) / (held[1] + 1e-3).sqrt()
        found = layer(x)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        cotangent = draw(5, 3, seed=99)
        (a,) = torch.autograd.grad(found, x, cotangent)
        (b,) = torch.autograd.grad(expected, x, cotangent)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(layer.running_mean, running_mean, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(layer.running_var, running_var, rtol=1e-13, atol=1e-14)
    x = draw(5, 3, seed=50)
    expected = (x - running_mean) / (running_var + 1e-3).sqrt()
    torch.testing.assert_close(layer.eval()(x), expected)


def test_average_momentum_with_alternation_is_the_mean_over_fresh_batches():
    layer = BatchNorm(2, every=2, momentum=None)
    batches = [draw(4, 2, seed=s) for s in range(6)]
    for batch in batches:
        layer(batch)
    expected = torch.stack([b.mean(0) for b in batches[::2]]).mean(0)
    torch.testing.assert_close(layer.running_mean, expected)


def test_frozen_statistics_are_constants_and_stay():
    layer = BatchNorm(3)
    for seed in range(4):
        layer(draw(8, 3, seed=seed))
    expected = layer.eval()(draw(5, 3, seed=9))
    layer.train().freeze()
    before = layer.running_mean.clone()
    x = draw(5, 3, seed=9).requires_grad_()
    found = layer(x)
    assert torch.equal(found, expected)
    assert torch.equal(before, layer.running_mean)
    jacobian = torch.autograd.functional.jacobian(layer, x.detach())
    assert float(jacobian[0, 0, 1:, 0].abs().max()) == 0  # samples are not coupled
    assert torch.equal(layer(x[:1]), found[:1])  # a batch of one is fine


@pytest.mark.parametrize("value", [0.0, 3.7, -1e6])
@pytest.mark.parametrize("batch", [2, 3, 7, 100])
def test_eps_zero_on_a_constant_channel_is_the_limit_not_nan(value, batch):
    x = draw(batch, 2)
    x[:, 0] = value
    x.requires_grad_()
    y = BatchNorm(2, eps=0.0)(x)
    assert torch.equal(y[:, 0], torch.zeros(batch))
    (gradient,) = torch.autograd.grad(y.sin().sum(), x)
    assert bool(gradient.isfinite().all())
    torch.testing.assert_close(y[:, 1].var(correction=0), torch.tensor(1.0))


def test_eps_zero_is_the_limit_of_small_eps():
    x = draw(6, 3)
    tiny = nn.BatchNorm1d(3, eps=1e-30)(x)
    torch.testing.assert_close(BatchNorm(3, eps=0.0)(x), tiny, rtol=1e-14, atol=1e-14)


def test_gain_without_scale_is_a_constant_factor():
    x = draw(6, 3)
    layer = BatchNorm(3, parts=["mean", "variance"], gamma=0.25)
    assert not list(layer.parameters())
    torch.testing.assert_close(layer(x), 0.25 * BatchNorm(3)(x))


def test_channels_on_the_last_axis():
    x = draw(4, 5, 3)
    last, first = BatchNorm(3, channel_axis=-1), BatchNorm(3)
    torch.testing.assert_close(last(x), first(x.movedim(-1, 1)).movedim(1, -1))
    torch.testing.assert_close(last.running_var, first.running_var)


def test_norms_by_name_agree_with_the_layers():
    x = draw(4, 8, 3, 2)
    torch.testing.assert_close(make_norm("group4", 8)(x), nn.GroupNorm(4, 8)(x))
    torch.testing.assert_close(make_norm("layer", 8)(x), nn.GroupNorm(1, 8)(x))
    expected = nn.RMSNorm(8)(x.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(make_norm("rms", 8)(x), expected)
    assert make_norm("alternating5", 8).every == 5
    assert make_norm("frozen", 8).every is None


@pytest.mark.parametrize("kind", ["weight", "weight-mean", "weight-variance"])
def test_weight_norm_by_hand(kind):
    """t = v w x / |w|, minus its batch mean, or divided by its batch deviation."""
    layer = nn.Conv2d(3, 4, 3, bias=False)
    x = draw(5, 3, 6, 6)
    plain = layer(x).detach()
    lengths = layer.weight.detach().flatten(1).norm(dim=1)
    norm = norm_after(layer, kind, eps=0.0)
    unit = plain / lengths[:, None, None]
    torch.testing.assert_close(layer(x), unit)
    mean, deviation = unit.mean((0, 2, 3)), unit.std((0, 2, 3), correction=0)
    expected = {
        "weight": plain,  # nothing changes but the parameters
        "weight-mean": plain - (lengths * mean)[:, None, None],
        "weight-variance": unit / deviation[:, None, None],
    }[kind]
    torch.testing.assert_close(norm(layer(x)), expected)


def test_weight_norm_of_zero_weights_is_refused():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight[1:].detach())
    with pytest.raises(InputError, match="output unit 1"):
        norm_after(layer, "weight")


def test_weight_norm_makes_the_scale_of_the_weights_irrelevant():
    layer = nn.Linear(3, 4, bias=False)
    x = draw(5, 3)
    norm = norm_after(layer, "weight")
    before = norm(layer(x)).detach()
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(7.0)
    torch.testing.assert_close(norm(layer(x)), before)
    (gradient,) = torch.autograd.grad(
        norm(layer(x)).sin().sum(), layer.parametrizations.weight.original
    )
    rowwise = (gradient * layer.parametrizations.weight.original).sum(1)
    assert rowwise.abs().max() < 1e-12


BAD = [
    (lambda: BatchNorm(0), "num_features"),
    (lambda: BatchNorm(3, parts=["means"]), "mean"),
    (lambda: BatchNorm(3, deviation="rsm"), "rms"),
    (lambda: BatchNorm(3, eps=-1.0), "eps"),
    (lambda: BatchNorm(3, eps=float("nan")), "eps"),
    (lambda: BatchNorm(3, momentum=2.0), "momentum"),
    (lambda: BatchNorm(3, every=0), "every"),
    (lambda: BatchNorm(3, every=2, track_running_stats=False), "track_running_stats"),
    (lambda: BatchNorm(3, statistics_batch=0), "statistics_batch"),
    (lambda: BatchNorm(3, statistics_batch=4, every=2), "several in one batch"),
    (lambda: BatchNorm(3, statistics_batch=4)(torch.zeros(6, 3)), "multiple of it"),
    (lambda: BatchNorm(3, statistics_batch=1)(torch.zeros(6, 3)), "two values per channel"),
    (lambda: BatchNorm(3, gamma=float("inf")), "gamma"),
    (lambda: BatchNorm(3, channel_axis=2), "channel_axis"),
    (lambda: BatchNorm(3, track_running_stats=False).freeze(), "running statistics"),
    (lambda: BatchNorm(3)(torch.zeros(4, 5)), "3 channels"),
    (lambda: BatchNorm(3)(torch.zeros(3)), "shape"),
    (lambda: BatchNorm(3)(torch.zeros(1, 3)), "two values per channel"),
    (lambda: BatchNorm(3)(torch.zeros(0, 3)), "two values per channel"),
    (lambda: GroupNorm(3, 4), "divisor"),
    (lambda: GroupNorm(2, 4)(torch.zeros(2, 3)), "4 channels"),
    (lambda: LayerNorm(3)(torch.zeros(2, 4)), "last axes"),
    (lambda: LayerNorm(()), "at least one axis"),
    (lambda: RMSNorm((2, 3), channels_first=True), "one axis"),
    (lambda: make_norm("bach", 3), "Did you mean 'batch'"),
    (lambda: make_norm("batch3", 3), "Unknown norm 'batch3'"),
    (lambda: make_norm("alternating1", 3), "fresh every 2"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_says_what_and_why(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_refused_batch_leaves_the_statistics():
    layer = BatchNorm(3)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    with pytest.raises(InputError):
        layer(torch.zeros(1, 3))
    assert all(torch.equal(v, layer.state_dict()[k]) for k, v in before.items())


def test_one_sample_with_positions_is_a_batch_as_in_torch():
    x = draw(1, 3, 4, 4)
    torch.testing.assert_close(BatchNorm(3)(x), nn.BatchNorm2d(3)(x))


@pytest.mark.parametrize("shape", [(12, 3), (12, 3, 2, 2)])
def test_ghost_batch_norm_is_torchs_on_each_piece(shape):
    x = draw(*shape).requires_grad_()
    ghost = BatchNorm(3, statistics_batch=4, momentum=0.3)
    plain = nn.BatchNorm1d(3) if len(shape) == 2 else nn.BatchNorm2d(3)
    whole = torch.cat([plain(piece) for piece in x.split(4)])
    torch.testing.assert_close(ghost(x), whole)
    weights = draw(*shape, seed=3)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (ghost(x), whole))
    torch.testing.assert_close(ours, theirs)


def test_ghost_running_statistics_move_by_the_mean_of_the_pieces():
    x = draw(12, 3, 2)
    ghost = BatchNorm(3, statistics_batch=4, momentum=0.25)
    ghost(x)
    pieces = [nn.BatchNorm1d(3, momentum=0.25) for _ in range(3)]
    for layer, piece in zip(pieces, x.split(4), strict=True):
        layer(piece)
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(layer, name) for layer in pieces]).mean(0)
        torch.testing.assert_close(getattr(ghost, name), mean)
    assert ghost.num_batches_tracked == 1
    expected = (x - ghost.running_mean[:, None]) / (ghost.running_var[:, None] + 1e-5).sqrt()
    torch.testing.assert_close(ghost.eval()(x[:5]), expected[:5])  # 5 samples are no matter here


def test_a_piece_of_the_whole_batch_is_plain_batch_norm():
    x, plain = draw(8, 3, 2), BatchNorm(3)
    ghost = BatchNorm(3, statistics_batch=8)
    torch.testing.assert_close(ghost(x), plain(x), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ghost.state_dict(), plain.state_dict())


@pytest.mark.parametrize("statistics", ["frozen", "running"])
def test_ghost_batch_norm_in_measurements(statistics):
    model = ns.network("mlp:6-8-3", norm_options={"statistics_batch": 4})
    assert model.norm1.statistics_batch == 4
    x, y = draw(12, 6), torch.arange(12) % 3
    found = float(ns.Risk(model, x, y, loss="cross_entropy", statistics=statistics).value())
    model.train(statistics == "frozen")
    assert found == pytest.approx(float(nn.functional.cross_entropy(model(x), y).detach()))


def test_ghost_batch_norm_and_batch_noise():
    model = ns.network("mlp:6-8-3", norm_options={"statistics_batch": 4})
    with pytest.raises(InputError, match="statistics over 4 samples, whatever the batch size"):
        ns.bn_regularization(
            model, (draw(32, 6), torch.arange(32) % 3), "cross_entropy", batch_size=8
        )
