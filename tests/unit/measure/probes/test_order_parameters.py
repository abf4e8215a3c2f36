"""Order parameters, against Jacobians written out."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian

from cases import ROSTER
from normscope import report
from normscope.errors import InputError
from normscope.measure.probes.order_parameters import order_parameters
from normscope.report.order_parameters import order_chart
from normscope.results.order_parameters import OrderProfile

SAME = {"rtol": 1e-10, "atol": 1e-13}
NAMES = ("q", "q_st", "qhat", "qhat_st", "qtilde", "qtilde_st")


def dense(*, norm=None, outputs=3):
    layers = [nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, outputs)]
    if norm is not None:
        layers.insert(3, norm(6))
        layers.insert(1, norm(7))
    return nn.Sequential(*layers)


def conv(*, norm=False):
    first = [nn.Conv2d(2, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.Tanh()]
    return nn.Sequential(*first, nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def weighted(model):
    kinds = (nn.Linear, nn.Conv2d)
    return [i for i, layer in enumerate(model) if isinstance(layer, kinds)]


def pieces(model, x):
    """Inputs, outputs and d f / d outputs of every weighted layer, samples kept apart."""
    found = []
    for i in weighted(model):
        h = model[:i](x).detach()
        u = model[i](h).detach()
        found.append((h, u, jacobian(model[i + 1 :], u) if i + 1 < len(model) else None))
    return found


def mean_products(rows):
    """Mean of v(t).v(t), and of v(s).v(t) over pairs, of (samples, entries)."""
    gram = rows @ rows.T
    size = len(gram)
    pairs = (gram.sum() - gram.trace()) / (size * (size - 1))
    return float(gram.trace()) / size, float(pairs)


def written_out(model, x):
    """The six numbers of each layer, by their definition."""
    table = {name: [] for name in NAMES}
    for h, u, slope in pieces(model, x):
        for name, signal in (("qhat", h.flatten(1)), ("q", u.flatten(1))):
            one, two = mean_products(signal)
            table[name].append(one / signal.shape[1])
            table[f"{name}_st"].append(two / signal.shape[1])
        samples = range(len(x))
        if slope is None:  # the read-out
            deltas = torch.eye(u.shape[1]).expand(len(x), -1, -1)
        else:
            deltas = torch.stack([slope[t, :, t].flatten(1) for t in samples])  # (T, C, entries)
        each = [mean_products(deltas[:, k]) for k in range(deltas.shape[1])]
        table["qtilde"].append(np.mean([one for one, _ in each]))
        table["qtilde_st"].append(np.mean([two for _, two in each]))
    return table


@pytest.mark.parametrize("make", [dense, lambda: dense(norm=nn.LayerNorm), conv])
def test_every_number_is_its_definition(make):
    model = make()
    x = torch.randn(5, 2, 5, 5) if isinstance(model[0], nn.Conv2d) else torch.randn(5, 4)
    profile = order_parameters(model, (x, None))
    expected = written_out(model, x)
    assert profile.names == tuple(str(i) for i in weighted(model))
    assert not profile.coupled.any()
    for name in NAMES:
        np.testing.assert_allclose(profile.measured[name], expected[name], **SAME, err_msg=name)


def test_batches_are_averaged_over_samples_and_pairs_within():
    model, x = dense(), torch.randn(9, 4)
    parts = [x[:3], x[3:]]
    profile = order_parameters(model, [(part, None) for part in parts])
    tables = [written_out(model, part) for part in parts]
    assert (profile.num_batches, profile.num_samples) == (2, 9)
    for name in NAMES:
        mean = np.average([table[name] for table in tables], axis=0, weights=[3, 6])
        np.testing.assert_allclose(profile.measured[name], mean, **SAME, err_msg=name)


def test_running_statistics_do_not_couple_samples():
    model, x = dense(norm=nn.BatchNorm1d), torch.randn(6, 4)
    model(x)
    profile = order_parameters(model, (x, None), statistics="running")
    expected = written_out(model.eval(), x)
    assert not profile.coupled.any()
    np.testing.assert_allclose(profile.measured["qtilde"], expected["qtilde"], **SAME)
    assert "stored" in profile.theory_reason


def test_frozen_statistics_are_constants_of_the_batch():
    model, x = dense(norm=nn.BatchNorm1d), torch.randn(6, 4)
    profile = order_parameters(model, (x, None), statistics="frozen")
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = 1.0
    model(x)
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):  # torch stores the unbiased variance
            layer.running_var *= 5 / 6
    expected = written_out(model.eval(), x)
    for name in NAMES:
        np.testing.assert_allclose(profile.measured[name], expected[name], **SAME, err_msg=name)


@pytest.mark.parametrize("case", ["dense", "conv"])
def test_batch_statistics_couple_the_samples(case):
    """D_st = sum_a delta(s; a).delta(t; a); the diagonal is a random estimate, so over seeds."""
    model = dense(norm=nn.BatchNorm1d) if case == "dense" else conv(norm=True)
    x = torch.randn(4, 2, 5, 5) if case == "conv" else torch.randn(4, 4)
    seeds = range(60)
    profiles = [order_parameters(model, (x, None), seed=seed) for seed in seeds]
    coupled = [True, True, False] if case == "dense" else [True, False, False]
    assert profiles[0].coupled.tolist() == coupled
    for row, (_, _, slope) in enumerate(pieces(model, x)):
        if not coupled[row]:
            continue
        d = slope.flatten(2).transpose(0, 1)  # (C, T, everything that is differentiated)
        exact = np.mean([mean_products(rows) for rows in d], axis=0)
        for name, value in zip(("qtilde", "qtilde_st"), exact, strict=True):
            found = np.array([p.measured[name][row] for p in profiles])
            error = found.std(ddof=1) / len(seeds) ** 0.5
            assert abs(found.mean() - value) < 5 * error, name
            assert error < 0.2 * abs(exact[0])


def test_random_directions_have_the_mean_over_outputs_as_their_mean():
    model, x = dense(outputs=30), torch.randn(5, 4)
    exact = order_parameters(model, (x, None), directions=30)
    draws = [order_parameters(model, (x, None), seed=s, directions=3) for s in range(80)]
    for name in ("qtilde", "qtilde_st"):
        found = np.array([p.measured[name] for p in draws])[:, :2]
        error = found.std(axis=0, ddof=1) / len(found) ** 0.5
        assert (np.abs(found.mean(axis=0) - exact.measured[name][:2]) < 5 * error).all()
        assert (error > 0).all()


def test_errors_over_samples_and_units_are_what_repeated_draws_scatter():
    """One random layer on fresh inputs: the quoted error is the scatter over draws."""
    found, quoted = [], []
    for seed in range(150):
        torch.manual_seed(seed)
        net = nn.Linear(30, 40, bias=False)
        net.weight.data.normal_(0, (2 / 30) ** 0.5)
        profile = order_parameters(net, (torch.randn(25, 30) + 0.5, None))
        found.append([profile.measured[n][0] for n in ("q", "q_st")])
        quoted.append([profile.errors[n][0] for n in ("q", "q_st")])
    scatter = np.std(found, axis=0, ddof=1)
    typical = np.sqrt(np.mean(np.square(quoted), axis=0))
    # a standard deviation of 150 draws is known to 6 %
    assert (np.abs(typical / scatter - 1) < 0.25).all()


class Weird(nn.Module):
    """A layer on something that is no sample, and several outputs, one of them detached."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))
        self.mix, self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        h = torch.tanh(self.body(x + self.mix(self.table).mean(0)))
        return {"a": self.head(h), "b": h, "c": h.detach()}


def test_layers_that_see_no_samples_are_left_out_and_say_so():
    profile = order_parameters(Weird(), (torch.randn(6, 4), None))
    assert profile.names == ("body", "head")
    frame = profile.to_frame().set_index("name")
    assert frame.loc["mix", "status"] == "skipped"
    assert "3 rows for a batch of 6 samples" in frame.loc["mix", "reason"]
    assert "cannot be described" in profile.theory_reason
    assert np.isfinite(profile.measured["qtilde"]).all()


def test_outputs_without_gradient_leave_the_forward_half():
    class Detached(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    profile = order_parameters(Detached(4, 3), (torch.randn(6, 4), None))
    assert np.isfinite(profile.measured["q"]).all()
    assert np.isnan(profile.measured["qtilde"]).all()
    assert "no output depends" in profile.backward_reason
    assert "no q-tilde: no output depends" in profile.summary()


def test_outputs_that_are_no_rows_of_samples_are_explained():
    class Total(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()

    profile = order_parameters(Total(4, 3), (torch.randn(6, 4), None))
    assert "not one row a sample" in profile.backward_reason


def test_one_sample_has_no_pairs():
    profile = order_parameters(dense(), (torch.randn(1, 4), None))
    assert np.isfinite(profile.measured["q"]).all()
    assert np.isnan(profile.measured["q_st"]).all()
    assert "one sample has no pairs" in profile.theory_reason


class Two(nn.Linear):
    """A model of two inputs."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x, y):
        return super().forward(x + y)


def test_a_loss_function_says_how_the_model_is_run():
    model, x = dense(), torch.randn(5, 4)
    plain = order_parameters(model, (x, None))
    run = order_parameters(
        model, [{"x": x}], loss_fn=lambda net, batch: net(batch["x"]).square().mean()
    )
    for name in NAMES:
        np.testing.assert_allclose(run.measured[name], plain.measured[name], **SAME)
        np.testing.assert_allclose(run.theory[name], plain.theory[name])  # of what the model got
    several = order_parameters(Two(), [((x, x), None)])
    assert "one tensor of inputs" in several.theory_reason


def test_chosen_layers_alone():
    profile = order_parameters(dense(), (torch.randn(5, 4), None), layers=[2])
    assert profile.names == ("2",)
    assert np.isfinite(profile.ratio("qtilde")).all()


@pytest.mark.parametrize("directions", [0, 2.5, "all"])
def test_directions_are_counted(directions):
    with pytest.raises(InputError, match="directions"):
        order_parameters(dense(), (torch.randn(5, 4), None), directions=directions)


def test_unknown_order_parameters_are_refused():
    profile = order_parameters(dense(), (torch.randn(5, 4), None))
    with pytest.raises(InputError, match="Did you mean 'qhat'"):
        profile.ratio("qhatt")


def test_frame_record_and_chart(tmp_path):
    profile = order_parameters(dense(), (torch.randn(5, 4), None))
    frame = profile.to_frame()
    assert len(frame) == 3
    assert {"q", "q_error", "q_theory", "q_ratio", "status", "reason"} <= set(frame.columns)
    np.testing.assert_allclose(frame["q_ratio"], frame["q"] / frame["q_theory"])
    assert OrderProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    assert "measured / theory" in profile.summary()
    assert repr(profile) == "OrderProfile(3 layers, 5 samples, with theory)"
    drawn = order_chart(profile)
    rows = [row for data in drawn.to_dict()["datasets"].values() for row in data]
    drawn_dots = {(r["name"], r["kind"], r["value"]) for r in rows}
    assert ("4", "one sample", float(profile.measured["q"][2])) in drawn_dots
    assert all(r["low"] is None or 0 < r["low"] <= r["value"] for r in rows)
    report.save(drawn, tmp_path / "order.svg")
    assert "sensitivity of the outputs" in (tmp_path / "order.svg").read_text()


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_every_network_has_numbers_and_a_theory_or_a_reason(case):
    data = [(case.inputs, case.targets)]
    profile = order_parameters(case.build(), data, statistics=case.statistics)
    assert np.isfinite(profile.measured["q"]).all()
    assert bool(profile.theory) != bool(profile.theory_reason)
    assert len(profile.to_frame()) == len(profile.coverage.layers) > 0
    assert profile.summary()


def maps(signal):
    """(samples, ..., positions, channels) of (samples, ..., channels, height, width) or dense."""
    return signal.flatten(-2).transpose(-1, -2)


def apart(rows, s, t):
    """Sum over different positions a, b of v_a(s).v_b(t), of (samples, positions, channels)."""
    gram = rows[s] @ rows[t].T
    return float(gram.sum() - gram.trace())


def test_overlaps_of_different_positions_written_out():
    model, x = conv(), torch.randn(5, 2, 5, 5)
    found = order_parameters(model, (x, None))
    assert found.positions.tolist() == [25, 16, 1]
    for layer, (h, u, slope) in enumerate(pieces(model, x)):
        if u.ndim == 2:
            assert all(np.isnan(values[layer]) for values in found.across.values())
            continue
        for name, rows in (("qhat", maps(h)), ("q", maps(u))):
            _, k, c = rows.shape
            scale = k * (k - 1) * c
            own = np.mean([apart(rows, t, t) for t in range(5)]) / scale
            two = np.mean([apart(rows, s, t) for s in range(5) for t in range(5) if s != t]) / scale
            np.testing.assert_allclose(found.across[name][layer], own, **SAME)
            np.testing.assert_allclose(found.across[f"{name}_st"][layer], two, **SAME)
        deltas = torch.stack(
            [maps(slope[t, :, t]) for t in range(5)]
        )  # (T, C, positions, channels)
        both = [(s, t) for s in range(5) for t in range(5)]
        sums = {p: np.mean([apart(deltas[:, k], *p) for k in range(2)]) for p in both}
        own = np.mean([v for (s, t), v in sums.items() if s == t])
        two = np.mean([v for (s, t), v in sums.items() if s != t])
        np.testing.assert_allclose(found.across["qtilde"][layer], own, **SAME)
        np.testing.assert_allclose(found.across["qtilde_st"][layer], two, **SAME)
    frame = found.to_frame()
    assert frame["q_ab_st"][0] == found.across["q_st"][0]
    assert OrderProfile.from_json(found.to_json()) == found


def test_both_kinds_of_positions_make_up_the_sum_over_positions():
    """Coupled by batch norm: delta summed over positions is that of a bias per channel."""
    model, x = conv(norm=True), torch.randn(6, 2, 5, 5)
    found = order_parameters(model, (x, None))
    assert found.coupled[0]

    def outputs(bias):  # (samples, channels), added to every position of the first layer
        return model[1:](model[0](x) + bias[:, :, None, None])

    slope = jacobian(outputs, torch.zeros(6, 4))  # (T, C, T, channels)
    flat = slope.permute(1, 0, 2, 3).flatten(2)  # sum_a delta(s; a).delta(t; a)
    own, two = np.mean([mean_products(rows) for rows in flat], axis=0)
    total = {n: found.measured[n][0] + found.across[n][0] for n in ("qtilde", "qtilde_st")}
    # equal signs give sum_st exactly, random signs the share of s = t: their sum is exact
    both = total["qtilde"] + 5 * total["qtilde_st"]
    assert both == pytest.approx(own + 5 * two, rel=1e-10)


def test_single_pairs_of_samples():
    model, x = dense(), torch.randn(7, 4)
    found = order_parameters(model, [(x, None)], num_pairs=3)  # a batch keeps its order
    for layer, (h, u, slope) in enumerate(pieces(model, x)):
        for p, (s, t) in enumerate(((0, 1), (2, 3), (4, 5))):
            assert found.pairs["qhat_st"][layer, p] == pytest.approx(float((h[s] * h[t]).mean()))
            assert found.pairs["q_st"][layer, p] == pytest.approx(float((u[s] * u[t]).mean()))
            product = 1.0 if slope is None else float((slope[s, :, s] * slope[t, :, t]).sum()) / 3
            assert found.pairs["qtilde_st"][layer, p] == pytest.approx(product)
    normed = order_parameters(dense(norm=nn.BatchNorm1d), (x, None), num_pairs=1)
    assert np.isnan(normed.pairs["qtilde_st"][:2]).all()  # coupled
    assert np.isfinite(normed.pairs["q_st"]).all()
    with pytest.raises(InputError, match="needs 8 samples"):
        order_parameters(model, (x, None), num_pairs=4)


def test_the_mean_over_networks():
    """Wei's (39)-(41): behind batch norm and ReLU 1/2 and 1/(2 pi), different positions alike."""
    profiles = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 32, 2, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 8, 2, stride=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2),
        )  # fmt: skip
        profiles.append(order_parameters(model, (torch.randn(200, 3, 8, 8), None), num_pairs=1,
                                         batch_size=200))  # fmt: skip
    found = OrderProfile.mean(profiles)
    assert found.num_networks == 12
    by_hand = np.array([p.measured["qhat"] for p in profiles])
    np.testing.assert_allclose(found.measured["qhat"], by_hand.mean(0))
    np.testing.assert_allclose(found.errors["qhat"], by_hand.std(0, ddof=1) / np.sqrt(12))
    assert found.measured["qhat"][1] == pytest.approx(0.5, abs=4 * found.errors["qhat"][1] + 1e-4)
    for table, errors in ((found.across, found.across_errors), (found.measured, found.errors)):
        error = errors["qhat_st"][1]
        assert table["qhat_st"][1] == pytest.approx(1 / (2 * np.pi), abs=4 * error + 1e-4)
    error = found.across_errors["qhat"][1]
    assert found.across["qhat"][1] == pytest.approx(1 / (2 * np.pi), abs=4 * error + 1e-4)
    # a flatten head: the deltas of different positions have independent signs
    assert abs(found.across["qtilde_st"][1]) < 4 * found.across_errors["qtilde_st"][1]
    assert found.pair_errors["q_st"].shape == (3, 1)
    assert "mean over 12 networks" in found.summary()
    with pytest.raises(InputError, match="two or more profiles of the same layers"):
        OrderProfile.mean([profiles[0], order_parameters(dense(), (torch.randn(4, 4), None))])
