"""The driver of probes: gradients, streams, losses, failures, coverage."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from cases import BY_NAME, ROSTER
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes import run
from normscope.measure.probes.probe import Probe, SkipLayer
from normscope.subject.problem import as_problem


def run_probes(model, data, loss, probes, *, loss_fn=None, outputs_fn=None, **options):
    problem = as_problem(model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, required=False)
    return run.run_probes(problem, probes, **options)


class Taker(Probe):
    """Keeps everything, as no probe may."""

    watches = ("linear", "conv", "norm", "activation")
    needs_gradients = True
    keeps_graph = True

    def __init__(self):
        self.x, self.g, self.passes, self.sites = {}, {}, [], {}

    def leaving(self, site, x, out):
        self.sites[site.name] = site

    def gradient(self, site, x, g):
        self.x.setdefault(site.name, []).append(x)
        self.g.setdefault(site.name, []).append(g)

    def finished(self, run):
        self.passes.append(run)


class Forward(Probe):
    watches = ("linear", "conv", "activation")

    def __init__(self):
        self.means = {}

    def leaving(self, site, x, out):
        self.means[site.name] = float(out.mean())


def mlp(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), *layers, nn.ReLU(), nn.Linear(5, 4))


X = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.arange(8) % 4


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_gradient_at_a_linear_layer_makes_its_weight_gradient(case):
    """sum over rows of g x^T is the gradient of W: exact where a weight is used by linear alone."""
    probe = Taker()
    model = case.build()
    run_probes(model, [(case.inputs, case.targets)], case.loss, [probe], statistics=case.statistics)
    [done] = probe.passes
    made = {}
    for name, site in probe.sites.items():
        if site.kind == "linear" and site.weight is not None and name in probe.g:
            x, g = probe.x[name][0], probe.g[name][0]
            product = g.reshape(-1, g.shape[-1]).T @ x.reshape(-1, x.shape[-1])
            whole = product.shape == done.weights[site.weight].shape
            made[site.weight] = made.get(site.weight, 0) + product if whole else math.nan
    checked = [n for n, v in made.items() if isinstance(v, torch.Tensor)]
    for name in checked:
        if case.name != "tied-weights" or name != "encoder.weight":  # once transposed
            torch.testing.assert_close(made[name], done.gradients[name], rtol=1e-9, atol=1e-11)
    reference = model_gradient(case, model)
    for name, value in reference.items():
        found = done.gradients[name]
        found = torch.zeros_like(value) if found is None else found
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-11)


def model_gradient(case, model):
    """The same by way of the risk, which is tested elsewhere."""
    risk = ns.Risk(
        model, case.inputs, case.targets, loss=case.loss, statistics=case.statistics
    )  # trainable parameters only
    pieces = risk.parameters.split(risk.gradient())
    return dict(zip(risk.parameters.names, pieces, strict=True))


def test_partial_pass_is_linear_and_not_watched():
    probe = Taker()

    class Partial(Taker):
        def finished(self, run):
            slopes = torch.softmax(run.outputs, 1) - functional.one_hot(run.targets, 4)
            slopes = slopes.detach() / len(slopes)
            found = run.pulled_back([slopes], ["0.weight"])["0.weight"]
            torch.testing.assert_close(found, run.gradients["0.weight"])
            super().finished(run)

    probe = Partial()
    run_probes(mlp(), (X, LABELS), "cross_entropy", [probe])
    assert all(len(g) == 1 for g in probe.g.values())


def test_every_form_of_data_gives_the_same_signals():
    net = mlp()

    def means(data, loss="cross_entropy", **how):
        probe = Forward()
        run_probes(net, data, loss, [probe], **how)
        return probe.means

    pair = pytest.approx(means((X, LABELS)), rel=1e-12)  # its rows are in another order
    assert means([(X, LABELS)]) == pair
    assert means(DataLoader(TensorDataset(X, LABELS), batch_size=8)) == pair
    assert means((X, LABELS) for _ in range(1)) == pair
    dicts = [{"x": X, "y": LABELS}]
    assert means(dicts, None, loss_fn=lambda m, b: m(b["x"]).square().mean()) == pair
    assert means(dicts, outputs_fn=lambda m, b: (m(b["x"]), b["y"])) == pair
    assert means([(X, None)], None) == pair


def test_names_of_data_sets_are_streamed():
    probe = Forward()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).float()
    passes = run_probes(net, "digits", "mse", [probe])
    assert (passes.num_samples, passes.num_batches) == (1408, 11)
    assert passes.convention["left out"].startswith("29 samples")
    assert passes.num_samples + 29 == len(ns.load_data("digits", "train"))
    assert passes.convention["precision"] == "float32"


def test_a_function_of_the_other_kind_is_explained():
    with pytest.raises(InputError, match=r"called with outputs.*pass it as loss_fn="):
        run_probes(mlp(), (X, LABELS), lambda m, b: m(b[0]).mean(), [Taker()])
    with pytest.raises(InputError, match=r"loss_fn\(model, batch\).*pass it as loss="):
        run_probes(mlp(), (X, LABELS), None, [Taker()], loss_fn=lambda a, b: (a - b).mean())


def test_failing_layer_is_left_out_with_its_reason():
    class Picky(Taker):
        def gradient(self, site, x, g):
            if site.name == "0":
                raise SkipLayer("too plain")
            if site.name == "1":
                raise ZeroDivisionError("oh")
            super().gradient(site, x, g)

    [coverage] = run_probes(mlp(), (X, LABELS), "cross_entropy", [Picky()]).coverage
    found = {layer.name: (layer.status, layer.reason) for layer in coverage.layers}
    assert found == {
        "0": ("skipped", "too plain"),
        "1": ("failed", "ZeroDivisionError: oh"),
        "2": ("ok", ""),
    }
    assert coverage.parameters == 24 / 44
    assert "too plain" in coverage.summary()


def test_one_failing_probe_does_not_hurt_another():
    class Broken(Forward):
        def leaving(self, site, x, out):
            raise RuntimeError("broken")

    fine = Forward()
    with pytest.raises(MeasurementError, match="RuntimeError: broken"):
        run_probes(mlp(), (X, LABELS), "cross_entropy", [Broken(), fine])
    assert len(fine.means) == 3


def test_layer_never_reached_and_layer_not_known_are_reported():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.head, self.spare = nn.Linear(4, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    [coverage] = run_probes(Odd(), (X[:, None], LABELS % 2), "cross_entropy", [Taker()]).coverage
    reasons = {layer.name: layer.reason for layer in coverage.left_out}
    assert reasons["spare"] == "never reached in the forward pass"
    assert "recurrent" in reasons["lstm"]
    assert "never reached in the forward pass (4 % of the parameters)" in coverage.summary()
    assert 0 < coverage.parameters < 0.2


def test_signals_that_stop_being_finite_name_the_first_layer():
    net = mlp(nn.Linear(5, 5))
    net[1].weight.data[0, 0] = math.inf
    net[1].weight.data[0, 1] = -math.inf
    probe = Forward()
    [coverage] = run_probes(net, (X, LABELS), None, [probe]).coverage
    assert [layer.status for layer in coverage.layers] == ["ok", "failed", "failed", "failed"]
    assert all("from '1' on" in layer.reason for layer in coverage.left_out)
    with pytest.raises(MeasurementError, match="first layer with a non-finite output is '1'"):
        run_probes(net, (X, LABELS), "cross_entropy", [Taker()])


def test_layers_are_chosen_by_name_glob_and_number():
    def seen(layers):
        probe = Forward()
        run_probes(mlp(), (X, LABELS), None, [probe], layers=layers)
        return list(probe.means)

    assert seen("0") == ["0"]
    assert seen(1) == ["0", "1"]
    assert seen(["[02]"]) == ["0", "2"]
    with pytest.raises(InputError, match="reached under 'conv1'"):
        seen("conv1")
    with pytest.raises(InputError, match="layers is empty"):
        seen([])
    with pytest.raises(InputError, match=r"numbers from 1\. Got 1\.5"):
        seen([1.5])


@pytest.mark.parametrize(
    ("data", "loss", "message"),
    [
        ([], "cross_entropy", "There are no batches"),
        ((X, LABELS + 9), "cross_entropy", "label"),
        ((X * math.nan, LABELS), "cross_entropy", "not finite"),
        (X, "cross_entropy", "data must be a loader"),
        ((X, LABELS), "cross_entrpy", "Unknown loss"),
        ((X, LABELS), None, "A loss is missing"),
        ([(X, None)], "cross_entropy", "the data has no targets"),
        ((X[:, :2], LABELS), "cross_entropy", "cannot be run"),
        ((X, LABELS), lambda outputs, targets: torch.ones(()), "does not depend"),
    ],
)
def test_bad_input_is_explained(data, loss, message):
    with pytest.raises((InputError, MeasurementError), match=message):
        run_probes(mlp(), data, loss, [Taker()])


def test_module_without_a_layer_is_refused():
    with pytest.raises(InputError, match="no floating-point parameters"):
        run_probes(nn.Sequential(nn.ReLU()), (X, LABELS), "mse", [Taker()])
    with pytest.raises(MeasurementError, match="Not one layer of Scale could be measured"):
        run_probes(Scale(), (X, X), "mse", [Taker()])
    with pytest.raises(InputError, match="must be a torch"):
        run_probes(lambda x: x, (X, LABELS), "mse", [Taker()])


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.factor


def test_half_precision_is_computed_in_float32():
    probe = Taker()
    passes = run_probes(mlp().half(), (X.half(), LABELS), "cross_entropy", [probe])
    assert probe.g["0"][0].dtype == torch.float32
    assert passes.convention["precision"] == "float32 (the model is in float16)"


def test_frozen_parameters_have_gradients_at_their_outputs_too():
    case = BY_NAME["bn1d-batch"]
    model = case.build()
    model.requires_grad_(False)
    probe = Taker()
    run_probes(model, (case.inputs, case.targets), "mse", [probe])
    assert set(probe.g) == set(probe.sites)
    assert not any(p.requires_grad for p in model.parameters())


def test_generators_are_put_back_while_the_error_is_still_in_hand():
    loader = DataLoader(TensorDataset(X, LABELS), batch_size=2, shuffle=True)

    class Stopping(Taker):
        def finished(self, run):
            raise KeyboardInterrupt

    net = mlp()
    before = torch.get_rng_state()
    try:
        run_probes(net, loader, "cross_entropy", [Stopping()])
    except KeyboardInterrupt:  # its traceback keeps every frame alive
        assert torch.equal(torch.get_rng_state(), before)
