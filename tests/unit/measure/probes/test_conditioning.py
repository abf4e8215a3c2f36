"""`conditioning`: options, statuses, tables, charts, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cases import D, mlp
from fingerprints import fingerprint
from normscope import report
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.conditioning import conditioning
from normscope.report.conditioning import conditioning_chart
from normscope.results.conditioning import Conditioning, ConditioningCost

X, Y = D["x"], D["labels"]


def net(*norm):
    torch.manual_seed(0)
    return mlp(*norm, activation=nn.ReLU)


@pytest.fixture(scope="module")
def found():
    return conditioning(
        net().double(), (X, Y), "cross_entropy", exact="full", hessian=True, p=(0.5, 1.0)
    )


# ---- the result


def test_table_has_one_row_per_layer(found):
    frame = found.to_frame()
    assert list(frame["name"]) == ["0", "2"]
    assert list(frame["status"]) == ["ok", "ok"]
    first = frame.iloc[0]
    assert first["lambda_max_fisher"] == first["lambda_max_inputs"] * first["lambda_max_gradients"]
    assert first["kappa_50_exact"] == found.block("0").spectrum.kappa(0.5)
    assert first["hessian_min"] == found.hessian("0").spectrum.smallest
    assert (first["d_in"], first["d_out"], first["rows"]) == (3, 4, 6)
    assert {"kappa_50_inputs", "kappa_100_gradients", "exact_reason"} <= set(frame.columns)


def test_layers_by_name_and_number(found):
    assert found["2"] is found[2] is found.layers[1]
    assert [layer.number for layer in found] == [1, 2]
    with pytest.raises(InputError, match="No measured layer 'lin'"):
        found["lin"]
    with pytest.raises(InputError, match="Unknown part 'input'"):
        found.lambda_max("input")


def test_matrices_that_were_not_measured(found):
    plain = conditioning(net(), (X, Y), "cross_entropy")
    with pytest.raises(InputError, match="exact='blocks'"):
        plain.block(1)
    with pytest.raises(InputError, match="hessian=True"):
        plain.hessian(1)
    with pytest.raises(InputError, match="exact='blocks'"):
        plain.lambda_max("exact")
    assert plain.full is None
    assert "lambda_max_exact" not in plain.to_frame().columns


def test_text(found):
    text = found.summary()
    assert "all 20 weights, exact" in text
    assert "2 of 2 layers measured" in text
    assert "lambda_max of F_k" in repr(found)
    assert "6 in 1 batch" in text
    assert "lambda_max" in repr(found[1])
    assert "0.weight" in repr(found.block(1))


def test_long_networks_are_summed_up():
    deep = nn.Sequential(*[nn.Linear(3, 3) for _ in range(20)], nn.Linear(3, 2))
    text = conditioning(deep, (X, Y), "cross_entropy").summary()
    assert "... 9 more" in text
    assert len(text.splitlines()) < 20


def test_json_round_trip(found):
    again = Conditioning.from_json(found.to_json())
    assert again == found
    assert again.kappa(0.7).tolist() == found.kappa(0.7).tolist()


def test_conventions_are_said(found):
    assert "labels of the data" in found.convention["labels"]
    assert "uncentred" in found.convention["moments"]
    assert "batch" in found.convention["statistics"]


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_costs_need_whole_numbers(value):
    with pytest.raises(InputError, match="depth must be"):
        ConditioningCost(depth=value, width=3, samples=4)


# ---- the chart


def test_chart_has_every_number(found, tmp_path):
    drawn = conditioning_chart(found, of="exact")
    rows, kappas = drawn.to_dict()["datasets"].values()
    assert {row["series"] for row in rows} == {
        "inputs Σ_x", "output gradients Σ_g", "Fisher, factored", "Fisher, exact"
    }  # fmt: skip
    assert [r["value"] for r in rows if r["series"] == "Fisher, exact"] == list(
        found.lambda_max("exact")
    )
    finite = [k for p in found.p for k in found.kappa(p, "exact") if k < math.inf]
    assert [row["value"] for row in kappas] == finite
    report.save(drawn, tmp_path / "c.svg")
    assert "p = 50 %" in (tmp_path / "c.svg").read_text()


def test_chart_where_everything_is_singular(tmp_path):
    one = conditioning(net(), (X[:1], Y[:1]), "cross_entropy", p=(1.0,))
    drawn = conditioning_chart(one)
    report.save(drawn, tmp_path / "c.svg")
    assert "infinite, not drawn: p = 100 % in 2 of 2 layers" in (tmp_path / "c.svg").read_text()


def test_chart_of_zeros_is_refused():
    dead = net()
    with torch.no_grad():
        for parameter in dead.parameters():
            parameter.zero_()
    zero = conditioning(dead, (torch.zeros(4, 3), torch.zeros(4, 2)), "mse")
    assert zero.kappa(0.5).tolist() == [math.inf, math.inf]
    with pytest.raises(InputError, match="nothing to draw"):
        conditioning_chart(zero)


# ---- what is measured


def test_frozen_statistics_take_the_coupling_away():
    model = net(nn.BatchNorm1d(4))
    batch = conditioning(model, (X, Y), "cross_entropy", moments=True)
    frozen = conditioning(model, (X, Y), "cross_entropy", statistics="frozen", moments=True)
    np.testing.assert_allclose(batch[2].gradient_moment, frozen[2].gradient_moment, rtol=1e-12)
    assert not np.allclose(batch[1].gradient_moment, frozen[1].gradient_moment, rtol=1e-2)
    h = model[0](X).detach().requires_grad_()
    mean, variance = h.detach().mean(0), h.detach().var(0, unbiased=False)
    s = functional.batch_norm(h, mean, variance, model[1].weight, model[1].bias, eps=model[1].eps)
    out = model[3](functional.relu(s))
    (g,) = torch.autograd.grad(functional.cross_entropy(out, Y, reduction="sum"), h)
    np.testing.assert_allclose(frozen[1].gradient_moment, g.T @ g / len(X), atol=1e-14)


def test_labels_are_reproducible_and_differ_between_seeds():
    def largest(seed):
        return conditioning(net(), (X, Y), "cross_entropy", kind="sampled", seed=seed).lambda_max()

    np.testing.assert_array_equal(largest(3), largest(3))
    assert not np.allclose(largest(3), largest(4))


def test_targets_are_only_needed_for_their_own_gradients():
    model = net()
    for kind in ("sampled", "true"):
        assert conditioning(model, [(X, None)], "cross_entropy", kind=kind).layers
    with pytest.raises(InputError, match="labels of the data"):
        conditioning(model, [(X, None)], "cross_entropy")


def test_squared_loss_true_and_sampled():
    model = nn.Linear(3, 2, bias=False)
    found = conditioning(model, (X, D["y"]), "mse", kind="true", moments=True)
    np.testing.assert_allclose(found[1].gradient_moment, np.eye(2), atol=1e-12)
    assert conditioning(model, (X, D["y"]), "mse", kind="sampled").layers


def test_several_labels_per_example_count_as_their_mean():
    model = nn.Conv2d(2, 2, 1, bias=False)
    found = conditioning(
        model, (D["image"], D["dense_labels"]), "cross_entropy", kind="true", exact="blocks"
    )
    p = model(D["image"]).softmax(1).detach().movedim(1, -1).reshape(-1, 2)
    x = D["image"].movedim(1, -1).reshape(-1, 2)
    fisher = torch.zeros(4, 4)
    for one, probability in zip(x, p, strict=True):
        middle = torch.diag(probability) - torch.outer(probability, probability)
        fisher += torch.kron(middle, torch.outer(one, one)) / len(x)
    values = torch.linalg.eigvalsh(fisher).flip(0)
    np.testing.assert_allclose(found.block(1).spectrum.values, values, atol=1e-12)


def test_float32_models_have_a_floor_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).float()
    x, y = torch.randn(300, 3).float(), torch.randint(4, (300,))
    found = conditioning(model, (x, y), "cross_entropy")
    assert found[2].gradients.kappa(1.0) == math.inf
    assert found[2].gradients.rank == 3


def test_layers_can_be_chosen():
    found = conditioning(net(), (X, Y), "cross_entropy", layers=2, exact="full")
    assert [layer.name for layer in found] == ["2"]
    assert found.full.size == found.block(2).size == 8


def test_nothing_is_left_behind():
    model = net(nn.BatchNorm1d(4))
    before = fingerprint(model, X, Y)
    conditioning(model, (X, Y), "cross_entropy", kind="true", exact="full", hessian=True)
    assert fingerprint(model, X, Y) == before
    with pytest.raises(MeasurementError):
        conditioning(model, [(X[:, :2], Y)], "cross_entropy")
    assert fingerprint(model, X, Y) == before


# ---- what cannot be measured


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.detached = nn.Linear(3, 2), nn.Linear(3, 2)
        self.never = nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x) + self.detached(x).detach()


def test_layers_without_a_gradient_have_a_reason():
    found = conditioning(Branches(), (X, Y), "cross_entropy", exact="blocks")
    frame = found.to_frame().set_index("name")
    assert frame.loc["detached", "status"] == "skipped"
    assert "no gradient" in frame.loc["detached", "reason"]
    assert "never reached" in frame.loc["never", "reason"]
    assert [layer.name for layer in found] == ["used"]


def test_moments_that_do_not_fit_are_left_out():
    wide = nn.Sequential(nn.Linear(3, 60), nn.ReLU(), nn.Linear(60, 2), nn.Linear(2, 2))
    found = conditioning(wide, (X, Y), "cross_entropy", memory="20kB")
    reasons = {s.name: s.reason for s in found.coverage.layers}
    assert "60 x 60 needs 115 kB" in reasons["0"]
    assert "memory=" in reasons["2"]
    assert [layer.name for layer in found] == ["3"]


def test_exact_matrices_that_do_not_fit():
    wide = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2))
    found = conditioning(wide, (X, Y), "cross_entropy", exact="blocks", hessian=True, memory="50kB")
    assert "60 x 60 needs 86.4 kB" in found.block("0").reason
    assert found.block("2").reason == ""
    assert "60 x 60 needs 86.4 kB" in found.hessian("0").reason
    assert math.isnan(found.lambda_max("exact")[0])
    with pytest.raises(InputError, match=r"exact='full'.*Use exact='blocks'"):
        conditioning(wide, (X, Y), "cross_entropy", exact="full", memory="50kB")


def test_computed_weights_have_no_hessian_of_their_own():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    found = conditioning(layer, (X, Y), "cross_entropy", exact="blocks", hessian=True)
    assert found.block(1).spectrum.rank >= 1
    assert "computed from others" in found.hessian(1).reason


def test_frozen_weights_are_measured_but_have_no_hessian():
    model = net()
    model[0].requires_grad_(False)
    found = conditioning(model, (X, Y), "cross_entropy", exact="blocks", hessian=True)
    assert found.block(1).spectrum.largest > 0
    assert "frozen" in found.hessian(1).reason


def test_nan_names_the_first_layer():
    model = net()
    with torch.no_grad():
        model[2 if len(model) > 2 else 0].weight[0, 0] = math.nan
    with pytest.raises(MeasurementError, match="'2'"):
        conditioning(model, (X, Y), "cross_entropy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "observed"}, "kind of labels"),
        ({"spatial_scale": "pixel"}, "spatial_scale"),
        ({"exact": True}, "exact must be"),
        ({"p": (0.5, 50)}, "at most 1"),
        ({"memory": "a lot"}, "memory"),
        ({"statistics": "train"}, "statistics"),
        ({"layers": "conv*"}, "conv"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        conditioning(net(), (X, Y), "cross_entropy", **options)


def test_true_labels_need_a_distribution_and_few_passes():
    with pytest.raises(InputError, match="names none"):
        conditioning(net(), (X, D["y"]), nn.HuberLoss(), kind="true")
    with pytest.raises(InputError, match="names none"):
        conditioning(net(), (X, D["y"]), nn.HuberLoss(), kind="sampled")
    wide = nn.Linear(3, 2500)
    with pytest.raises(InputError, match="2500 backward passes"):
        conditioning(wide, (X, torch.zeros(6).long()), "cross_entropy", kind="true")


def test_detached_outputs_and_bad_data():
    class Detached(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(InputError, match="detached"):
        conditioning(Detached(3, 2), (X, Y), "cross_entropy")
    with pytest.raises(InputError, match="no batches"):
        conditioning(net(), [], "cross_entropy")
    with pytest.raises(InputError, match="labels run"):
        conditioning(net(), (X, Y + 5), "cross_entropy")
    with pytest.raises(InputError, match="Module"):
        conditioning("net", (X, Y), "cross_entropy")
    with pytest.raises(InputError, match="Got neither"):
        conditioning(net(), (X, Y), None)


def test_patches_of_what_has_none_are_left_out():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2))
    found = conditioning(model, (D["image"], D["image_labels"]), "cross_entropy", patches=True)
    assert "one group" in found.coverage.left_out[0].reason
    assert [layer.name for layer in found] == ["2"]


def test_chart_by_the_result_itself(found):
    drawn = found.chart(of="gradients", title="Mine")
    assert drawn.to_dict()["title"]["text"] == "Mine"
    with pytest.raises(InputError, match="no option 'colour'"):
        found.chart(colour="red")
