"""Risk: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope as ns
from cases import BY_NAME, mlp

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(6, 2, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 1, 1, 0])


def risk(model=None, inputs=None, targets=None, **options):
    settings = {"loss": "mse", "statistics": "batch", **options}
    inputs = X if inputs is None else inputs
    return ns.Risk(model or mlp(), inputs, targets, **settings)


def refused(match, *args, error=ns.NormscopeError, **options):
    with pytest.raises(error, match=match):
        risk(*args, **options)


class TestValues:
    def test_value_and_gradient_are_those_of_a_training_step(self):
        model = mlp(nn.BatchNorm1d(4)).train()
        loss = 0.5 * (model(X) - Y).square().sum() / 6
        loss.backward()
        measured = risk(model, X, Y)
        assert measured.value() == pytest.approx(loss.item(), rel=1e-12)
        expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        assert torch.allclose(measured.gradient(), expected, rtol=1e-12)

    def test_what_is_printed(self):
        measured = risk(targets=Y)
        assert "mean over samples" in repr(measured)
        assert "6 in 1 batch" in repr(measured)
        size = measured.num_parameters
        assert f"Hessian of the loss: {size} x {size}, symmetric" in repr(ns.hessian(measured))
        assert f"true Fisher matrix: {size} x {size}, psd" in repr(ns.fisher(measured))

    def test_the_convention_says_what_was_measured(self):
        convention = ns.fisher(risk(mlp(nn.BatchNorm1d(4)), parameters="weights")).convention
        assert "true Fisher" in convention["matrix"]
        assert "half the squared error" in convention["loss"]
        assert convention["parameters"].startswith("weights (2 of 6 trainable tensors), 20 numbers")
        assert "samples coupled" in convention["statistics"]
        assert convention["samples"] == "6 in 1 batch"
        plain = ns.fisher(risk(mlp(nn.Identity()))).convention
        assert plain["statistics"] == "batch: train mode, no batch norm layer"

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_mse_module_keeps_its_scale(self, reduction):
        model = mlp()
        named = ns.fisher(risk(model)).to_dense()
        module = ns.fisher(risk(model, loss=nn.MSELoss(reduction=reduction))).to_dense()
        factor = 2 / 2 if reduction == "mean" else 2 * 6  # 2/C and 2T
        assert torch.allclose(module, factor * named)

    def test_log_probabilities_have_the_fisher_matrix_of_the_logits(self):
        logits = mlp()
        logs = nn.Sequential(logits, nn.LogSoftmax(1))
        a = ns.fisher(risk(logits, X, LABELS, loss="cross_entropy")).to_dense()
        b = ns.fisher(risk(logs, X, LABELS, loss=nn.NLLLoss())).to_dense()
        assert torch.allclose(a, b)

    def test_parameters_are_read_when_the_operator_is_made(self):
        model = mlp()
        measured = risk(model)
        old = ns.fisher(measured)
        before = old.to_dense()
        with torch.no_grad():
            model[0].weight.mul_(2)
        assert torch.equal(old.to_dense(), before)
        assert torch.equal(ns.fisher(measured).to_dense(), ns.fisher(risk(model)).to_dense())
        assert not torch.allclose(ns.fisher(measured).to_dense(), before)

    def test_the_data_is_a_copy(self):
        inputs = X.clone()
        measured = risk(mlp(), inputs, Y)
        before = measured.value()
        inputs.zero_()
        assert measured.value() == before

    def test_a_loader_that_reuses_its_memory(self):
        def loader():
            buffer = torch.empty_like(X)
            for scale in (1.0, 2.0):
                yield buffer.copy_(scale * X), Y

        model = mlp()
        measured = ns.Risk.from_batches(model, loader(), loss="mse", statistics="batch")
        separate = [risk(model, s * X, Y).value() for s in (1.0, 2.0)]
        assert measured.value() == pytest.approx(sum(separate) / 2, rel=1e-12)

    def test_numpy_data_and_single_item_batches(self):
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(X), batch_size=3)
        measured = ns.Risk.from_batches(mlp(), loader, loss="mse", statistics="batch")
        assert measured.num_samples == 6
        assert risk(mlp(), X.numpy(), Y.numpy()).num_samples == 6


class TestLossFn:
    def test_hessian_only(self):
        model = mlp()

        def loss_fn(network, batch):
            return 0.5 * (network(batch["x"]) - batch["y"]).square().sum() / len(batch["x"])

        measured = ns.Risk.from_loss_fn(model, [{"x": X, "y": Y}], loss_fn, statistics="batch")
        named = risk(model, X, Y)
        assert torch.allclose(ns.hessian(measured).to_dense(), ns.hessian(named).to_dense())
        assert measured.value() == pytest.approx(named.value())
        for question in (ns.fisher, ns.jacobian):
            with pytest.raises(ns.NormscopeError, match=r"from_loss_fn hides them.*hessian"):
                question(measured)

    def test_a_vector_loss_is_refused(self):
        with pytest.raises(ns.NormscopeError, match=r"one number per batch.*shape \(6,\)"):
            ns.Risk.from_loss_fn(mlp(), [X], lambda m, x: m(x).square().sum(1), statistics="batch")


class TestParameters:
    def names(self, selection, model=None):
        return list(risk(model or mlp(nn.BatchNorm1d(4)), parameters=selection).parameters.names)

    def test_selections(self):
        assert self.names("weights") == ["0.weight", "3.weight"]
        assert self.names("weight") == ["0.weight", "3.weight"]
        assert self.names("bias") == ["0.bias", "3.bias"]
        assert self.names("norm") == ["1.weight", "1.bias"]
        assert self.names("3") == ["3.weight", "3.bias"]
        assert self.names("*.bias") == ["0.bias", "1.bias", "3.bias"]
        assert self.names(["0.weight", "norm"]) == ["0.weight", "1.weight", "1.bias"]
        assert len(self.names(None)) == 6

    def test_weight_norm_counts_as_weights(self):
        names = self.names("weights", BY_NAME["weight-norm"].build())
        assert names == [
            "0.parametrizations.weight.original0",
            "0.parametrizations.weight.original1",
            "2.weight",
        ]

    def test_unknown_names_suggest(self):
        refused("selects nothing.*Did you mean '0.weight'", parameters="0.weihgt")
        refused("selects nothing. Pass None", parameters=[])

    def test_frozen_parameters_are_named(self):
        model = mlp()
        model[0].requires_grad_(False)
        refused("only frozen parameters.*0.weight", model, parameters="0")

    def test_a_layer_with_the_name_of_a_kind(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, 2)

            def forward(self, x):
                return self.head(self.norm(x))

        refused("both a layer.*'norm.\\*'.*'kind:norm'", Net(), parameters="norm")
        assert risk(Net(), parameters="kind:norm").parameters.total == 6


class TestBadInput:
    def test_names(self):
        refused("Unknown loss 'msee'. Did you mean 'mse'", loss="msee")
        refused("Unknown statistics 'bach'. Say what batch norm does", statistics="bach")
        refused("loss must be", loss=3)
        refused("must be a torch.nn.Module", model=torch.relu)
        refused("no amount of memory", memory="much")
        with pytest.raises(ns.NormscopeError, match="Unknown kind of Fisher matrix 'exact'"):
            ns.fisher(risk(), kind="exact")

    def test_loss_and_statistics_have_no_default(self):
        with pytest.raises(TypeError, match="loss"):
            ns.Risk(mlp(), X, statistics="batch")
        with pytest.raises(TypeError, match="statistics"):
            ns.Risk(mlp(), X, loss="mse")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_data_that_is_not_finite(self, value):
        bad = X.clone()
        bad[2, 1] = value
        refused(r"inputs of batch 0 hold (nan|inf) at index \(2, 1\)", mlp(), bad)
        bad = Y.clone()
        bad[1, 0] = value
        refused(r"targets of batch 0 hold (nan|inf) at index \(1, 0\)", mlp(), X, bad)
        refused(r"batch 0\['a'\]", BY_NAME["keyword-inputs"].build(),
                {"a": bad, "b": X})  # fmt: skip

    def test_parameters_that_are_not_finite(self):
        model = mlp()
        model[2].weight.data[0, 0] = float("nan")
        refused("Parameter '2.weight' is not finite \\(1 of 8", model)

    def test_the_first_layer_with_a_bad_output_is_named(self):
        class Root(nn.Module):
            def forward(self, x):
                return x.sqrt()

        model = nn.Sequential(nn.Linear(3, 4), Root(), nn.Linear(4, 2))
        refused("first layer with a non-finite output is Root '1'", model, X, Y)

    def test_bad_outputs_of_a_later_sample_are_found_too(self):
        class Blow(nn.Module):
            def forward(self, x):
                return x / (x[:, :1] != 7.0)

        model = nn.Sequential(Blow(), nn.Linear(3, 2))
        inputs = torch.randn(40, 3)
        inputs[39, 0] = 7.0
        with pytest.raises(ns.NormscopeError, match="Blow '0'"):
            ns.fisher(ns.Risk(model, inputs, loss="mse", statistics="batch"))

    def test_gradients_that_are_not_finite(self):
        class Length(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(3, 2, bias=False)

            def forward(self, x):
                return (self.a(x) * 0).pow(0.5)

        refused("gradient of the loss is not finite.*'a.weight'", Length(), X, Y)

    def test_empty_loaders(self):
        for batches in ([], iter([])):
            with pytest.raises(ns.NormscopeError, match=r"no batches.*already used up"):
                ns.Risk.from_batches(mlp(), batches, loss="mse", statistics="batch")
        refused("Batch 0 is empty", mlp(), torch.zeros(0, 3))

    def test_batches_with_three_parts(self):
        with pytest.raises(ns.NormscopeError, match=r"\(\(first, second\), targets\)"):
            ns.Risk.from_batches(mlp(), [(X, Y, Y)], loss="mse", statistics="batch")

    def test_a_loss_that_is_no_number(self):
        refused(r"one number per batch.*shape \(6, 2\)", mlp(), X, Y, loss=lambda f, y: f - y)
        refused("reduction='none'", mlp(), X, Y, loss=nn.MSELoss(reduction="none"))

    def test_a_loss_that_is_not_connected(self):
        refused("does not depend on the parameters", mlp(), X, Y,
                loss=lambda f, y: f.detach().sum())  # fmt: skip

    def test_no_trainable_parameter(self):
        refused("no trainable parameter", mlp().requires_grad_(False))
        refused("no trainable parameter", nn.ReLU())

    @pytest.mark.parametrize("statistics", ["batch", "frozen"])
    def test_a_batch_of_one(self, statistics):
        model = mlp(nn.BatchNorm1d(4))
        refused("Batch 0 has one sample, and BatchNorm1d '1'", model, X[:1], statistics=statistics)
        assert risk(model, X[:1], statistics="running").num_samples == 1
        assert risk(mlp(), X[:1], statistics=statistics).num_samples == 1

    def test_running_statistics_that_do_not_exist(self):
        model = mlp(nn.BatchNorm1d(4, track_running_stats=False))
        refused("BatchNorm1d '1' keeps none", model, statistics="running")

    def test_targets_that_do_not_fit(self):
        refused(r"outputs have shape \(6, 2\), the targets \(6,\)", mlp(), X, LABELS.double())
        refused("labels run from 3 to 4, but the model has 2", mlp(), X, LABELS % 2 + 3)
        refused(r"need integer labels of shape \(6,\)", mlp(), X, Y[:, 0], loss="cross_entropy")
        refused("labels run from 0 to 2, but the model has 2", mlp(), X,
                torch.tensor([0, 1, 2, 0, 1, 0]), loss="cross_entropy")  # fmt: skip
        refused("one score per class", BY_NAME["scalar-output"].build(), X, LABELS,
                loss="cross_entropy")  # fmt: skip
        refused("takes one output tensor", BY_NAME["tuple-outputs"].build(), X, LABELS,
                loss="cross_entropy")  # fmt: skip

    def test_missing_targets(self):
        measured = risk()
        for question in (
            ns.hessian,
            lambda r: ns.fisher(r, kind="empirical"),
            ns.Risk.value,
            ns.Risk.gradient,
        ):
            with pytest.raises(ns.NormscopeError, match=r"has no targets|needs targets"):
                question(measured)
        assert ns.fisher(measured, kind="sampled").psd

    def test_a_model_that_cannot_take_the_data(self):
        refused("cannot be run on the first batch: RuntimeError: mat1 and mat2", mlp(), X[:, :2])

    def test_too_large_to_densify(self):
        operator = ns.fisher(risk(nn.Linear(3, 10_000), loss="mse"))
        with pytest.raises(ns.NormscopeError, match="above the limit"):
            operator.to_dense()

    def test_lazy_complex_and_scripted(self):
        refused("no shape yet", nn.LazyLinear(2))
        model = mlp()
        model.extra = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
        refused("'extra' is complex", model)

    @pytest.mark.parametrize("selection", [3, [nn.Parameter(torch.zeros(1))], [None]])
    def test_parameters_that_are_no_names(self, selection):
        with pytest.raises(ns.NormscopeError, match="parameters takes names"):
            risk(parameters=selection)

    def test_a_word_for_the_mode_is_explained(self):
        with pytest.raises(ns.NormscopeError, match=r"batch: train mode.*running: evaluation mode"):
            risk(statistics="train")

    @pytest.mark.parametrize("batches", [5, torch.zeros(4, 3)])
    def test_batches_that_are_no_list(self, batches):
        with pytest.raises(ns.NormscopeError, match="DataLoader or a list"):
            ns.Risk.from_batches(mlp(), batches, loss="mse", statistics="batch")

    @pytest.mark.parametrize(
        "ask", [ns.jacobian, ns.fisher, ns.hessian, ns.gram_spectrum, ns.leading_directions]
    )
    def test_a_model_in_place_of_a_risk(self, ask):
        with pytest.raises(ns.NormscopeError, match=r"takes a Risk.*Got a Sequential"):
            ask(mlp())

    @pytest.mark.parametrize(
        "loss",
        [nn.NLLLoss(weight=torch.ones(2).double()), nn.NLLLoss(ignore_index=1), nn.L1Loss()],
        ids=["weights", "ignored", "L1"],
    )
    def test_a_loss_without_curvature_has_no_gauss_newton_matrix(self, loss):
        model = nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(1))
        targets = torch.randn(6, 2) if isinstance(loss, nn.L1Loss) else torch.arange(6) % 2
        measured = ns.Risk(model, torch.randn(6, 3), targets, loss=loss, statistics="batch")
        with pytest.raises(ns.NormscopeError, match="linear in the outputs"):
            ns.fisher(measured)
        assert ns.fisher(measured, kind="empirical").to_dense().any()
        assert ns.hessian(measured).to_dense().any() or isinstance(loss, nn.L1Loss)

    def test_sampled_labels_need_a_distribution(self):
        measured = risk(mlp(), X, Y, loss=lambda f, y: (f - y).abs().pow(3).mean())
        with pytest.raises(ns.NormscopeError, match="draws labels"):
            ns.fisher(measured, kind="sampled")
        assert not ns.fisher(measured).psd

    def test_a_changing_model_is_refused(self):
        state = iter(range(1000))

        class Drifting(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(3, 2)

            def forward(self, x):
                return self.a(x) * next(state)

        refused("Two passes over the same batch differ", Drifting(), X, Y)
