"""Batch norm's regularization: forms of data, bad input, no trace on the model, the record."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.data import DataSet
from normscope.errors import InputError, MeasurementError
from normscope.measure import bn_regularization, decay_strengths
from normscope.nn import BatchNorm, PopulationNorm, network
from normscope.results import BatchNormRegularization


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 3),
        BatchNorm(3), nn.Softplus(), nn.Linear(3, 2),
    )  # fmt: skip


def pair(size=20):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 4, generator=generator), torch.arange(size) % 2


def measured(model=None, data=None, loss="cross_entropy", **options):
    given = {"batch_size": [4, 10], "num_batches": 6} | options
    return bn_regularization(model or net(), pair() if data is None else data, loss, **given)


def test_every_form_of_data_gives_the_same():
    x, y = pair()
    reference = measured()
    for data in (
        DataSet(x, y),
        [x, y],
        TensorDataset(x, y),
        (x.float().numpy().astype(np.float64) * 0 + x.numpy(), y.numpy()),
    ):
        assert measured(data=data) == reference
    in_order = measured(data=[(x, y)])
    for data in (
        DataSet(x, y).batches(7, shuffle=False),
        DataLoader(TensorDataset(x, y), batch_size=6),
        [(x[:11], y[:11]), (x[11:], y[11:])],
    ):
        assert measured(data=data) == in_order
    assert in_order.population_loss == pytest.approx(reference.population_loss, rel=1e-12)


def test_squared_loss_takes_labels_as_rows():
    x, y = pair()
    rows = torch.eye(2)[y]
    assert measured(data=DataSet(x, y), loss="mse") == measured(data=(x, rows), loss="mse")


def test_a_summed_loss_is_counted_per_sample():
    mean, summed = (measured(loss=nn.CrossEntropyLoss(reduction=r)) for r in ("mean", "sum"))
    for name in ("measured", "formula", "predicted", "paper"):
        a, b = (getattr(run.layers[1], name) for run in (mean, summed))
        assert a == pytest.approx(b, rel=1e-9), name


def test_max_samples_is_a_drawn_subset():
    assert measured(max_samples=12).samples == 12
    assert measured(data=[pair(8)] * 4, max_samples=12).samples == 12
    assert measured(max_samples=None).samples == 20
    a, b = measured(max_samples=12, seed=1), measured(max_samples=12, seed=2)
    assert a.population_loss != b.population_loss


def test_a_data_set_by_name_and_a_model_in_float32():
    model = network("mlp:64-8-10").float()
    found = bn_regularization(
        model, "digits", "cross_entropy", batch_size=16, num_batches=4, max_samples=64
    )
    assert found.samples == 64
    assert np.isfinite(found.layers[0].zeta).all()


def test_same_seed_same_numbers():
    assert measured() == measured()
    assert measured() != measured(seed=1)


def state(model):
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    modules = [
        (name, module.training, sorted(vars(module)), len(module._forward_hooks))
        for name, module in model.named_modules()
    ]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    flags = [p.requires_grad for p in model.parameters()]
    process = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())  # noqa: NPY002
    return tensors, modules, grads, flags, process, torch.is_grad_enabled()


def same(a, b):
    assert a[0].keys() == b[0].keys()
    assert all(torch.equal(a[0][k], b[0][k]) for k in a[0])
    assert a[1] == b[1]
    assert all(
        (x is None and y is None) or torch.equal(x, y) for x, y in zip(a[2], b[2], strict=True)
    )
    assert a[3:] == b[3:]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("curvature", ["exact", "probes"])
def test_no_trace_on_the_model(training, curvature):
    model = net().train(training)
    nn.functional.cross_entropy(model(pair()[0]), pair()[1]).backward()
    model[0].weight.requires_grad_(False)
    before = state(model)
    measured(model, curvature=curvature)
    decay_strengths(model, pair(), "cross_entropy", batch_size=4, curvature=curvature)
    same(before, state(model))


@pytest.mark.parametrize("at", [1, 2, 4, 30, 60])
def test_no_trace_after_an_exception(at):
    model, calls = net(), []

    def failing(outputs, targets):
        calls.append(1)
        if len(calls) >= at:
            raise RuntimeError("from the loss")
        return nn.functional.cross_entropy(outputs, targets)

    before = state(model)
    with pytest.raises((RuntimeError, InputError), match="from the loss"):
        measured(model, loss=failing)
    same(before, state(model))


def test_gradients_are_not_needed_by_the_caller():
    reference = measured()
    with torch.no_grad():
        assert measured() == reference
    with torch.inference_mode():
        assert measured() == reference


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(self.norm(x)))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.idle = nn.Linear(4, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(9)

    def forward(self, x):
        return self.norm(self.layer(x))


def nan_pair():
    x, y = pair()
    x[3, 1] = float("nan")
    return x, y


def frozen():
    return nn.Sequential(nn.Linear(4, 2), BatchNorm(2).freeze())


class Foreign(nn.Module):
    def batch_statistics(self, x):
        return (x.mean(0),)

    def normalize(self, x, mean):
        return x - mean


BAD = {
    "no batch norm": (lambda: measured(nn.Linear(4, 2)), "Linear has no batch-norm layer"),
    "layer norm": (lambda: measured(nn.Sequential(nn.LayerNorm(4))), "no batch-norm layer"),
    "population norm": (lambda: measured(nn.Sequential(PopulationNorm(4))), "no batch-norm"),
    "frozen": (lambda: measured(frozen()), "does not normalize each batch"),
    "foreign": (lambda: measured(nn.Sequential(nn.Linear(4, 2), Foreign())), "way of its own"),
    "no module": (lambda: measured(lambda x: x), "torch.nn.Module"),
    "one sample": (lambda: measured(batch_size=1), "no deviation"),
    "zero": (lambda: measured(batch_size=0), "whole number from 2"),
    "sizes in a text": (lambda: measured(batch_size="16,64"), "Got '16,64'"),
    "none": (lambda: measured(batch_size=[]), "is empty"),
    "larger than the data": (lambda: measured(batch_size=[4, 21]), "population of 20"),
    "fraction": (lambda: measured(batch_size=2.5), "batch_size"),
    "nan": (lambda: measured(data=nan_pair()), "nan at index"),
    "few": (lambda: measured(data=pair(3), batch_size=2), "too few"),
    "layer": (lambda: measured(layers=["2"]), "called '2'"),
    "no layer": (lambda: measured(layers=[]), "layers is empty"),
    "sampling": (lambda: measured(sampling="epochs"), "'epoch'"),
    "curvature": (lambda: measured(curvature="exakt"), "'exact'"),
    "one batch": (lambda: measured(num_batches=1), "at least 2"),
    "loss": (lambda: measured(loss="cross"), "cross_entropy"),
    "no targets": (lambda: measured(data=[pair()[0]]), "needs targets"),
    "rows": (lambda: measured(data=(pair()[0], torch.zeros(7).long())), "one row per sample"),
    "no data": (lambda: measured(data=7), "Got an int"),
    "empty loader": (lambda: measured(data=[]), "no batches"),
    "twice": (lambda: measured(Twice()), "used twice"),
    "seed": (lambda: measured(seed=-1), "seed"),
    "probes": (lambda: measured(probes=0), "probes"),
    "shapes": (lambda: measured(data=[pair(8), (torch.zeros(8, 5), pair(8)[1])]), "joined"),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_bad_input(make, text):
    with pytest.raises(InputError, match=text):
        make()


def test_a_diverged_model_is_said_to_be_one():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("inf"))
    with pytest.raises(MeasurementError, match=r"not finite|loss is nan"):
        measured(model)


def test_data_that_do_not_fit_are_reported():
    with pytest.raises(MeasurementError, match="cannot be run on the data"):
        measured(data=(torch.zeros(20, 5), pair()[1]))


def test_an_unused_layer_is_noted_and_left_out():
    found = measured(Unused())
    assert [layer.layer for layer in found.layers] == ["norm"]
    assert any("idle" in note for note in found.notes)
    with pytest.raises(InputError, match="never used"):
        measured(Unused(), layers="idle")


def test_a_constant_channel_gives_no_nan():
    model = net()
    with torch.no_grad():
        model[0].weight[1] = 0.0
    found = measured(model)
    assert "1: 1 of 3 channels are constant" in found.notes[0]
    for layer in found.layers:
        for name in ("zeta", "mean_variance", "excess_kurtosis", "measured", "predicted"):
            assert np.isfinite(getattr(layer, name)).all(), name
    assert found.layers[0].zeta[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_channel_is_known_in_each_type(dtype):
    """Its mean is rounded to the type; in units of sqrt(eps) that is no longer nothing."""
    model = net().to(dtype)
    with torch.no_grad():
        model[0].weight[1] = 0.0
        model[0].bias[1] = 0.37
    x, y = pair(200)
    found = measured(model, (x.to(dtype), y))
    assert "1: 1 of 3 channels are constant" in found.notes[0]
    assert found.layers[0].excess_kurtosis[1] == 0


def test_batches_of_the_whole_population_have_no_noise():
    found = measured(batch_size=[10, 20], sampling="epoch")
    for layer in found.layers:
        for name in ("mean_variance", "deviation_variance", "zeta", "predicted", "formula"):
            assert np.all(getattr(layer, name)[1] == 0), name
        assert layer.effective_batch_size[1] == np.inf
        assert layer.measured[1] == pytest.approx(0, abs=1e-12)


def test_layers_without_scales_are_measured_and_not_decayed():
    model = net()
    model[1] = nn.BatchNorm1d(3, affine=False)
    found = measured(model)
    assert [layer.scaled for layer in found.layers] == [False, True]
    assert list(found.restoring_decay(4, 10)) == ["5"]
    strengths = decay_strengths(model, pair(), "cross_entropy", batch_size=4)
    assert list(strengths) == ["5"]
    model[5] = nn.BatchNorm1d(3, affine=False)
    with pytest.raises(InputError, match="no scales to decay"):
        decay_strengths(model, pair(), "cross_entropy", batch_size=4)


def test_the_record():
    found = measured()
    assert BatchNormRegularization.from_json(found.to_json()) == found
    frame = found.to_frame()
    assert list(frame["layer"]) == ["1"] * 2 + ["5"] * 2 + ["(all)"] * 2
    assert list(frame["batch_size"]) == [4, 10] * 3
    row = frame.iloc[1]
    assert row["ratio"] == pytest.approx(row["measured"] / row["predicted"])
    assert row["predicted"] == pytest.approx(
        row["first_order"] + found.layers[0].wide_second_order[1]
    )
    assert row["formula"] == pytest.approx(row["first_order"] + row["second_order"])
    layer = found.layer("1")
    assert layer.paper[0] == pytest.approx((layer.zeta[0] * layer.gamma**2).sum())
    assert layer.zeta == pytest.approx(layer.zeta_mean + layer.zeta_deviation)
    decay = found.restoring_decay(4, 10)
    assert decay["1"] == pytest.approx(np.maximum(layer.zeta[0] - layer.zeta[1], 0))
    for text in (found.summary(), " ".join(found.advice())):
        assert "restoring_decay(4, 10)" in text
    with pytest.raises(InputError, match="was not measured"):
        found.restoring_decay(4, 5)
    with pytest.raises(InputError, match="called '2'"):
        found.layer("2")
    assert "several batch sizes" in measured(batch_size=4).advice()[0]


def test_half_precision_is_measured_in_float32():
    x, y = pair()
    model = net().to(torch.bfloat16)
    found = measured(model, (x, y))
    assert np.isfinite(found.layers[0].measured).all()
