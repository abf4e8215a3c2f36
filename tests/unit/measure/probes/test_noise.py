"""Gradient noise: what it accepts, what it says, what it refuses."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cases import BY_NAME, mlp, scrambled_dropout
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.noise import gradient_noise
from normscope.results.noise import GradientNoise

GENERATOR = torch.Generator().manual_seed(11)
X = torch.randn(40, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(2, (40,), generator=GENERATOR)


def batch_norm_net():
    return BY_NAME["bn1d-batch"].build()


def test_the_way_samples_are_batched_does_not_matter():
    model = mlp(activation=nn.ReLU)
    whole = gradient_noise(model, (X, LABELS), "cross_entropy")
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=7, shuffle=True)
    pieces = gradient_noise(model, loader, "cross_entropy")
    assert whole.num_samples == pieces.num_samples == 40
    np.testing.assert_allclose(pieces.noise, whole.noise, rtol=1e-10)
    np.testing.assert_allclose(pieces.signal, whole.signal, rtol=1e-10)


def test_formulas_of_batches():
    ones = torch.ones_like(LABELS)  # a gradient that is told from zero
    found = gradient_noise(mlp(), (X, ones), "cross_entropy", batch_sizes=[40, 1, 10, 64])
    assert found.batch_sizes.tolist() == [1, 10, 40, 64]
    np.testing.assert_allclose(found.with_replacement[0] * found.batch_sizes, found.total)
    expected = [1, 30 / 39, 0]
    np.testing.assert_allclose(
        found.without_replacement[0, :3] / found.with_replacement[0, :3], expected, atol=1e-14
    )
    assert np.isnan(found.without_replacement[0, 3])
    n, m, g = 40, found.total, found.gradient2[0]
    signal = g - m / (n - 1)
    assert found.signal[0, 0] == pytest.approx(signal)
    assert found.noise_scale[0, 0] == pytest.approx(n / (n - 1) * m / signal)


def test_a_loss_function_of_the_model_and_a_summed_loss():
    model = mlp()
    plain = gradient_noise(model, (X, LABELS), "cross_entropy")

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    named = gradient_noise(model, [{"x": X, "y": LABELS}], loss_fn=loss_fn)
    summed = gradient_noise(model, (X, LABELS), nn.CrossEntropyLoss(reduction="sum"))

    def summing(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    for other in (named, summed, gradient_noise(model, [(X, LABELS)], loss_fn=summing)):
        np.testing.assert_allclose(other.noise, plain.noise, rtol=1e-10)


def test_layers_can_be_chosen_and_frozen_ones_are_named():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    whole = gradient_noise(model, (X, LABELS), "cross_entropy")
    assert whole.layers == ("0", "2", "4")
    some = gradient_noise(model, (X, LABELS), "cross_entropy", layers=[1, "4"])
    assert some.layers == ("0", "4")
    assert some.total == pytest.approx(whole.by_layer["0"] + whole.by_layer["4"])
    model[2].requires_grad_(False)
    left = gradient_noise(model, (X, LABELS), "cross_entropy")
    assert left.layers == ("0", "4")
    [frozen] = left.coverage.left_out
    assert (frozen.name, frozen.status) == ("2", "skipped")
    assert "frozen" in frozen.reason
    frame = left.to_frame()
    assert frame[frame.status != "ok"].layer.tolist() == ["2"]
    with pytest.raises(InputError, match="No layer of this network is reached under 'five'"):
        gradient_noise(model, (X, LABELS), "cross_entropy", layers="five")


def test_batch_norm_is_measured_by_batches_and_says_so():
    model = batch_norm_net()
    found = gradient_noise(model, (X, LABELS), "cross_entropy", batch_sizes=[4, 16], draws=40)
    assert found.coupled
    assert "BatchNorm1d '1' normalizes by the statistics of the batch" in found.summary()
    assert "single samples have no gradient of their own" in found.summary()
    assert np.isnan(found.noise).all()
    assert (found.without_replacement_error > 0).all()
    assert found.draws == 40
    again = gradient_noise(model, (X, LABELS), "cross_entropy", batch_sizes=[4, 16], draws=40)
    assert again == found
    other = gradient_noise(
        model, (X, LABELS), "cross_entropy", batch_sizes=[4, 16], draws=40, seed=1
    )
    assert other != found


@pytest.mark.parametrize("statistics", ["running", "frozen"])
def test_without_batch_statistics_batch_norm_has_gradients_of_samples(statistics):
    found = gradient_noise(batch_norm_net(), (X, LABELS), "cross_entropy", statistics=statistics)
    assert not found.coupled
    assert found.total > 0


def test_noise_of_dropout_counts():
    model = scrambled_dropout()
    same = (X[:1].repeat(400, 1), LABELS[:1].repeat(400))
    assert gradient_noise(model, same, "cross_entropy", statistics="running").total < 1e-14
    found = gradient_noise(model, same, "cross_entropy")
    assert not found.coupled
    assert "random masks" in found.convention["noise"]
    twin = copy.deepcopy(model).train()
    rows = []
    for _ in range(400):
        loss = nn.functional.cross_entropy(twin(X[:1]), LABELS[:1])
        grads = torch.autograd.grad(loss, list(twin.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    rows = torch.stack(rows)
    squares = (rows - rows.mean(0)).square().sum(1)
    trace = found.total * 400 / 399
    error = np.hypot(float(squares.std()) / 20, float(squares.std()) / 20)
    assert abs(float(squares.mean()) * 400 / 399 - trace) < 4.5 * error


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(4, 5, num_layers=2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inner(x, x, x)[0].mean(1))


@pytest.mark.parametrize("build", [Recurrent, Attending])
def test_dropout_inside_layers_does_not_couple_samples(build):
    x = torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(1))
    found = gradient_noise(build(), (x, torch.arange(12) % 3), "cross_entropy")
    assert not found.coupled, found.coupling
    assert "random masks" in found.convention["noise"]


def test_a_noise_scale_without_an_error_is_not_told():
    few = gradient_noise(mlp(), (X[:2], LABELS[:2]), "cross_entropy")
    assert np.isnan(few.noise_scale_error).all()
    assert "not told from infinite" in few.summary()
    assert "nan" not in few.summary()


def test_equal_samples_have_no_noise_and_one_is_too_few():
    same = (X[:1].repeat(5, 1), LABELS[:1].repeat(5))
    found = gradient_noise(mlp(), same, "cross_entropy")
    assert found.total == pytest.approx(0, abs=1e-14 * found.gradient2[0])
    with pytest.raises(InputError, match="two samples at least"):
        gradient_noise(mlp(), (X[:1], LABELS[:1]), "cross_entropy")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_sizes": [0]}, "each of batch_sizes must be a whole number from 1"),
        ({"batch_sizes": []}, "batch_sizes is empty"),
        ({"batch_sizes": [2.5]}, "Got 2.5"),
        ({"draws": 1}, "draws must be a whole number from 4"),
        ({"statistics": "no"}, "Unknown statistics"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        gradient_noise(mlp(), (X, LABELS), "cross_entropy", **options)


def test_bad_data_is_refused():
    with pytest.raises(InputError, match="no batches"):
        gradient_noise(mlp(), [], "cross_entropy")
    with pytest.raises(InputError, match="has no targets"):
        gradient_noise(mlp(), [(X, None)], "cross_entropy")
    with pytest.raises(InputError, match="labels run from"):
        gradient_noise(mlp(), (X, LABELS + 5), "cross_entropy")
    with pytest.raises(InputError, match=r"sizes must lie in 2\.\.40"):
        gradient_noise(batch_norm_net(), (X, LABELS), "cross_entropy", batch_sizes=[41])
    broken = mlp()
    with torch.no_grad():
        broken[2].weight[0, 0] = torch.nan
    with pytest.raises(MeasurementError, match=r"first layer with a non-finite output is .*'2'"):
        gradient_noise(broken, (X, LABELS), "cross_entropy")


def test_the_record_round_trips_and_describes_itself():
    found = gradient_noise(mlp(), (X, LABELS), "cross_entropy")
    assert GradientNoise.from_json(found.to_json()) == found
    assert repr(found).startswith("GradientNoise(M=")
    assert "noise scale" in found.summary()
    assert "3 of 3" not in found.summary()
    assert "2 of 2 layers" in found.summary()
    frame = found.to_frame()
    assert len(frame) == 3 * len(found.batch_sizes)
    assert (frame.status == "ok").all()
