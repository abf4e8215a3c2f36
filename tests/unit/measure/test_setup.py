"""What one training step taken apart shows, on networks with a defect and their healthy twins."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from fingerprints import fingerprint
from normscope.measure.setup import data_card, set_up
from normscope.results.wiring import Held
from normscope.subject.batch import Batch
from normscope.subject.problem import as_problem

N, FEATURES, CLASSES = 24, 8, 4


def rows(*shape, seed=0):
    return torch.randn(N, *shape, generator=torch.Generator().manual_seed(seed))


def labels(classes=CLASSES):
    return torch.arange(N) % classes


def mlp(*end, act=nn.ReLU, out=CLASSES):
    return nn.Sequential(nn.Linear(FEATURES, 12), act(), nn.Linear(12, out), *end)


class By(nn.Module):
    """A function between two layers."""

    def __init__(self, between, width=12):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, width), nn.Linear(width, CLASSES)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def taken_apart(model, data=None, loss="cross_entropy", loss_fn=None):
    data = (rows(FEATURES), labels()) if data is None else data
    problem = as_problem(model, data, None if loss_fn else loss, loss_fn)
    batch = next(iter(problem.source.stream(1)))
    return set_up(problem, batch, Held(), frozenset())


def wiring(*args, **kwargs):
    return taken_apart(*args, **kwargs).wiring


def tokens():
    return torch.randint(9, (N, 6), generator=torch.Generator().manual_seed(0))


def tokenwise(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


# ---- the loss


@pytest.mark.parametrize(
    ("end", "made_by", "simplex"),
    [((), "Addmm", False), ((nn.Softmax(1),), "Softmax", True), ((nn.Sigmoid(),), "Sigmoid", False),
     ((nn.ReLU(), nn.Flatten()), "Relu", False)],
)  # fmt: skip
def test_the_loss_says_what_it_is_given(end, made_by, simplex):
    [call] = wiring(mlp(*end)).calls
    assert (call.kind, call.made_by, call.simplex) == ("cross_entropy", made_by, simplex)
    assert (call.shape, call.target_shape, call.classes) == ((N, CLASSES), (N,), CLASSES)


@pytest.mark.parametrize(("squeezed", "expected"), [(False, True), (True, False)])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_broadcast_is_seen_in_a_torch_loss_and_in_own_code(own, squeezed, expected):
    def loss(model, batch):
        out = model(batch[0])
        out = out.squeeze(1) if squeezed else out
        return ((out - batch[1]) ** 2).mean() if own else functional.huber_loss(out, batch[1])

    [call] = wiring(mlp(out=1), (rows(FEATURES), rows()), loss_fn=loss).calls
    assert call.broadcast is expected
    assert call.kind == ("difference" if own else "absolute")


def test_log_probabilities_are_told_from_logits():
    values = [wiring(mlp(*end), loss=nn.NLLLoss()).call.log_sum
              for end in ((), (nn.LogSoftmax(1),))]  # fmt: skip
    assert values[0] > 0.1
    assert values[1] < 1e-5


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 1.0), ("sum", 2.0)])
def test_a_summed_loss_doubles_with_the_batch(reduction, expected):
    found = wiring(mlp(nn.Dropout(0.5)), loss=nn.CrossEntropyLoss(reduction=reduction))
    assert found.doubling == pytest.approx(expected, rel=1e-9)


def test_ignored_labels_and_a_loss_that_is_no_number():
    found = wiring(mlp(), (rows(FEATURES), torch.full((N,), -100)), functional.cross_entropy)
    assert found.calls[0].ignored == 1
    assert math.isnan(found.loss)
    assert found.origin == ""


def test_labels_that_the_loss_leaves_out_and_weights_of_classes():
    y = torch.tensor([0, 0, 0, 1, 2, 3] * 4)
    [one] = wiring(mlp(), (rows(FEATURES)[: len(y)], y), nn.CrossEntropyLoss(ignore_index=0)).calls
    assert (one.ignored, one.ignored_label, one.padding) == (0.5, 0, False)
    padded = torch.cat([1 + torch.arange(12) % 3, torch.zeros(12, dtype=torch.long)])
    [one] = wiring(mlp(), [(rows(FEATURES), padded)], nn.CrossEntropyLoss(ignore_index=0)).calls
    assert one.padding
    inverse, upside_down = torch.ones(CLASSES), torch.ones(CLASSES)
    inverse[0], upside_down[0] = 1 / 3, 3.0
    for weight, expected in ((inverse, 1 / 3), (upside_down, 3.0)):
        loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.25)
        [one] = wiring(mlp(), (rows(FEATURES)[: len(y)], y), loss).calls
        assert one.uneven == pytest.approx(expected, rel=1e-5)
        assert one.smoothing == 0.25
    rare = (y == 3).to(rows(1).dtype)[:, None]  # one in six: five times as many negatives
    for weight, expected in ((5.0, 1 / 5), (0.02, 50.0)):
        loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weight))
        [one] = wiring(mlp(out=1), (rows(FEATURES)[: len(y)], rare), loss).calls
        assert one.uneven == pytest.approx(expected, rel=1e-5)


def test_targets_that_are_no_probabilities_and_the_loss_itself():
    several = (rows(CLASSES) > 0).to(rows(1).dtype)
    [one] = wiring(mlp(), (rows(FEATURES), several), functional.cross_entropy).calls
    assert one.target_sum == several.sum(1).max()
    found = wiring(mlp(), loss=lambda o, t: -functional.cross_entropy(o, t))
    assert found.loss == pytest.approx(-found.calls[0].value)

    def distance(outputs, targets):
        return functional.kl_div(outputs.softmax(1), targets, reduction="batchmean")

    [one] = wiring(mlp(), (rows(FEATURES), rows(CLASSES).softmax(1)), distance).calls
    assert (one.kind, one.target_sum) == ("kl", pytest.approx(1))
    assert one.log_sum > 1


@pytest.mark.parametrize(("factor", "term", "expected"), [(100.0, 0.0, 0.0), (1.0, 50.0, 0.97)])
def test_other_terms_of_a_loss(factor, term, expected):
    found = wiring(mlp(), loss=lambda o, t: factor * functional.cross_entropy(o, t) + term)
    assert found.beside == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_logits_that_are_cosines(scale):
    def likeness(outputs, targets):
        unit = functional.normalize(outputs, dim=1)
        return functional.cross_entropy(scale * unit @ unit.flip(0).T, targets)

    [one] = wiring(mlp(), (rows(FEATURES), torch.arange(N)), likeness).calls
    assert one.bound == pytest.approx(scale, rel=1e-4)
    assert wiring(mlp()).calls[0].bound == math.inf


@pytest.mark.parametrize("act", [nn.Identity, nn.ReLU])
def test_layers_without_an_activation(act):
    assert (wiring(mlp(act=act)).linear < 1e-5) == (act is nn.Identity)
    assert math.isnan(wiring(Tokens(causal=True), (tokens(), tokens()), tokenwise).linear)


@pytest.mark.parametrize("always", [False, True])
def test_dropout_that_stays_on(always):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(FEATURES, 12), nn.Linear(12, CLASSES)

        def forward(self, x):
            return self.last(functional.dropout(self.first(x), 0.3, always or self.training))

    assert wiring(Drops()).dropping == (0.3 if always else 0.0)
    assert wiring(mlp(nn.Dropout(0.2))).dropping == 0.0


def test_frozen_layers_that_hold_initial_weights():
    net = nn.Sequential(
        nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, CLASSES)
    )
    net[0].requires_grad_(False)
    net[2].requires_grad_(False)
    with torch.no_grad():
        net[2].weight.add_(0.01 * torch.randn(40, 40))  # a little training
    initial = {p.name: p.initial for p in wiring(net).parameters}
    assert initial == {n: n == "0.weight" for n in initial}


@pytest.mark.parametrize("by", [0, 1, 2])
def test_tokens_that_are_shifted(by):
    long = torch.randint(9, (N, 9), generator=torch.Generator().manual_seed(0))
    data = long[:, :6], long[:, by : by + 6]
    assert wiring(Tokens(causal=True), data, tokenwise).shift == by
    assert wiring(Tokens(causal=False), data, tokenwise).shift == (by or None)


@pytest.mark.parametrize("positions", [False, True])
def test_the_order_of_tokens(positions):
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, CLASSES)
            self.place = torch.randn(6, 8)

        def forward(self, i):
            x = self.table(i)
            return self.head(((x * self.place) if positions else x).mean(1))

    assert (wiring(Mean(), (tokens(), labels())).ordered > 0.01) == positions


def test_the_first_layer_that_is_not_finite_is_named():
    assert wiring(By(lambda h: h / (h * 0))).origin == "last"


# ---- parameters


def test_what_the_loss_does_not_reach_and_what_is_not_used():
    found = wiring(By(torch.detach))
    assert {p.name for p in found.unreached} == {"first.weight", "first.bias"}
    model = By(torch.relu)
    model.spare = nn.Linear(3, 3)
    found = wiring(model)
    assert not found.unreached
    assert {p.name for p in found.unused} == {"spare.weight", "spare.bias"}


class Dropping(By):
    """Its first layer is skipped by chance, and one head is left out of the loss."""

    def __init__(self):
        super().__init__(torch.relu)
        self.spare = nn.Linear(FEATURES, 2)

    def forward(self, x):
        skipped = torch.rand(()) < 2
        return self.last(self.first(x).detach() * 0 if skipped else self.first(x)), self.spare(x)


def test_what_the_loss_leaves_out_is_not_cut_off():
    def loss(model, batch):
        return functional.cross_entropy(model(batch[0])[0], batch[1])

    found = wiring(Dropping(), loss_fn=loss)
    assert not found.unreached
    assert {p.name.partition(".")[0] for p in found.unused} == {"first", "spare"}


def test_a_gradient_that_is_cut_is_told_from_weights_that_start_at_zero():
    def by_zero(model):
        nn.init.zeros_(model.last.weight)
        return model

    assert {p.name for p in wiring(By(lambda h: h.round() + 0 * h.sign())).cut} == {
        "first.weight", "first.bias"
    }  # fmt: skip
    found = wiring(by_zero(By(torch.relu)))
    assert not found.cut
    assert [p.gradient for p in found.parameters if p.name == "first.weight"] == [0]


class Reverse(nn.Module):
    """Of the way back only its first step is used, at which there is no memory yet."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(FEATURES, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def test_weights_without_effect_have_no_gradient_that_could_be_cut():
    found = wiring(Reverse(), (rows(5, FEATURES), labels()))
    zero = [p.name for p in found.parameters if p.gradient == 0]
    assert zero == ["cell.weight_hh_l0_reverse"]
    assert not found.cut


def test_layers_in_a_plain_list_are_counted():
    model = By(torch.relu)
    hidden = [nn.Linear(12, 12)]
    model.between = hidden[0].forward
    assert wiring(model).unregistered == 12 * 12 + 12
    ours = frozenset(id(p) for p in hidden[0].parameters())
    problem = as_problem(model, (rows(FEATURES), labels()), "cross_entropy")
    batch = next(iter(problem.source.stream(1)))
    assert set_up(problem, batch, Held(), ours).wiring.unregistered == 0


# ---- samples and tokens


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.cell, self.head = nn.LSTM(FEATURES, 6, batch_first=batch_first), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize(
    ("made", "positions", "mixes"),
    [
        (lambda: By(lambda h: h.softmax(0)), (), True),
        (lambda: By(lambda h: h.softmax(1)), (), False),
        (lambda: Recurrent(batch_first=False), (5,), True),
        (lambda: Recurrent(batch_first=True), (5,), False),
        (lambda: By(lambda h: h + torch.randn_like(h)), (), False),
        (lambda: By(nn.BatchNorm1d(12)), (), False),
        (lambda: By(nn.Dropout(0.5)), (), False),
    ],
)
def test_samples_that_mix(made, positions, mixes):
    found = wiring(made(), (rows(*positions, FEATURES), labels()))
    assert found.skipped == {}
    assert (found.mixing > 1e-3) is mixes
    if not mixes:
        assert found.mixing < 1e-12


def test_a_norm_without_stored_statistics_mixes_on_purpose():
    found = wiring(By(nn.BatchNorm1d(12, track_running_stats=False)))
    assert found.mixing > 1e-3
    assert found.mixing_by == "between"


class Tokens(nn.Module):
    def __init__(self, *, causal):
        super().__init__()
        self.table, self.head, self.causal = nn.Embedding(9, 8), nn.Linear(8, 9), causal

    def forward(self, i):
        h = self.table(i)
        scores = h @ h.transpose(1, 2)
        if self.causal:
            shut = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(shut, -torch.inf)
        return self.head(scores.softmax(-1) @ h)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_tokens_that_see_later_ones(causal, cut):
    i = torch.randint(9, (N, 7), generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        out = model(batch)[:, :-1] if cut else model(batch[:, :-1])
        return functional.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())

    found = wiring(Tokens(causal=causal), [i], loss_fn=loss)
    assert (found.leak > 1e-3) is not causal
    assert found.mixing < 1e-12


def test_a_network_that_copies_its_tokens_is_no_language_model():
    i = torch.randint(9, (N, 7), generator=torch.Generator().manual_seed(1))

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    assert math.isnan(wiring(Tokens(causal=False), (i, i), loss).leak)


@pytest.mark.parametrize(
    ("made", "part", "loss_fn", "what", "why"),
    [
        (mlp, slice(None), lambda m, b: m[2](m[0](b[0])).square().mean(), "mixing", "as a whole"),
        (lambda: By(lambda h: h.reshape(N, 3, 4).flatten(1)), slice(None), None, "doubling",
         "other rows"),
        (mlp, slice(1), None, "mixing", "single sample"),
    ],
)  # fmt: skip
def test_what_cannot_be_tested_says_why(made, part, loss_fn, what, why):
    data = rows(FEATURES)[part], labels()[part]
    assert why in wiring(made(), [data], loss_fn=loss_fn).skipped[what]


@pytest.mark.parametrize(
    ("data", "loss_fn"),
    [
        ([{"x": rows(FEATURES), "y": labels()}],
         lambda m, b: functional.cross_entropy(m(b["x"]), b["y"])),
        ([(rows(FEATURES), labels(), torch.ones(N))],
         lambda m, b: (functional.cross_entropy(m(b[0]), b[1], reduction="none") * b[2]).mean()),
    ],
)  # fmt: skip
def test_batches_of_other_forms(data, loss_fn):
    found = taken_apart(mlp(), data, loss_fn=loss_fn)
    assert found.wiring.skipped == {}
    assert found.wiring.mixing < 1e-12
    assert found.wiring.doubling == pytest.approx(1)
    problem = as_problem(mlp(), data, None, loss_fn)
    card = data_card([next(iter(problem.source.stream(1)))], found.given, found.target, CLASSES)
    assert (card.samples, card.labels) == (N, CLASSES)


# ---- scales


def start(model, x=None):
    return taken_apart(model, (rows(FEATURES) if x is None else x, labels())).start


@pytest.mark.parametrize(
    ("norm", "positions", "values", "axis"),
    [
        (lambda: nn.GroupNorm(12, 12), (), 1, ""),
        (lambda: nn.GroupNorm(3, 12), (), 4, ""),
        (lambda: nn.LayerNorm(12), (), 12, ""),
        (lambda: nn.BatchNorm1d(12), (), N, ""),
        (lambda: nn.BatchNorm1d(5), (5,), N * 12, "tokens"),
        (lambda: nn.LayerNorm(12), (5,), 12, ""),
    ],
)
def test_values_behind_one_statistic(norm, positions, values, axis):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(FEATURES, 12), norm()
            self.last = nn.Linear(12, CLASSES)

        def forward(self, x):
            h = self.norm(self.first(x))
            return self.last(h.mean(1) if h.ndim > 2 else h)

    [found] = start(Net(), rows(*positions, FEATURES)).norms
    assert (found.values, found.axis) == (values, axis)


@pytest.mark.parametrize(("last", "axis"), [(False, ""), (True, "width")])
def test_layer_norm_over_the_width_of_an_image(last, axis):
    norm = nn.LayerNorm(6) if last else nn.GroupNorm(1, 6)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(216, CLASSES)
    )
    [found] = start(model, rows(1, 8, 8)).norms
    assert found.axis == axis


def test_gains_saturation_and_constant_units():
    model = mlp(act=nn.Tanh)
    nn.init.normal_(model[0].weight, 0, 40)
    nn.init.constant_(model[2].weight, 0.1)
    first, tanh, last = start(model).signals
    assert first.gain == pytest.approx(40 * FEATURES**0.5, rel=0.2)
    assert tanh.saturated > 0.9
    assert last.same
    assert not first.same


def test_forget_gates_that_are_closed():
    model = Recurrent(batch_first=True)
    [usual] = start(model, rows(5, FEATURES)).recurrent
    assert usual.forget == pytest.approx(0.5, abs=0.1)
    assert usual.saturated == 0
    with torch.no_grad():
        model.cell.bias_ih_l0[6:12] = -8
    assert start(model, rows(5, FEATURES)).recurrent[0].forget < 0.01


@pytest.mark.parametrize("fused", [False, True])
def test_attention_that_looks_at_one_token(fused):
    def made(scale):
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 16, 0.0, batch_first=True)
        with torch.no_grad():
            layer.self_attn.in_proj_weight[: 2 * FEATURES] *= scale

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.head = layer, nn.Linear(FEATURES, CLASSES)

            def forward(self, x):
                if fused:
                    x = scale * x
                    x = functional.scaled_dot_product_attention(x, x, x)
                else:
                    x = self.layer(x)
                return self.head(x.mean(1))

        return start(Net(), rows(5, FEATURES)).attention[0].entropy

    assert made(1.0) > 0.5
    assert made(30.0) < 0.2


# ---- data


def card(x, y, batches=4):
    problem = as_problem(mlp(), [*zip(x.chunk(batches), y.chunk(batches), strict=True)], "mse")
    seen = list(problem.source.stream(None))
    return data_card(seen, seen[0].inputs, seen[0].targets, CLASSES)


def test_sorted_labels():
    assert card(rows(FEATURES), labels()).sorting < 0.1
    assert card(rows(FEATURES), labels().sort().values).sorting == pytest.approx(1, abs=0.05)


def test_few_samples_in_a_batch_are_not_sorted():
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(4, (24,), generator=generator)
    pairs = [Batch(rows(FEATURES)[:2], data[i : i + 2]) for i in range(0, 24, 2)]
    assert data_card(pairs, pairs[0].inputs, pairs[0].targets, 4).sorting == 0


def test_a_target_among_the_inputs_and_images_that_were_viewed():
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    for column, expected in ((3.0 * x[:, 2] - 1, 2), (x.sum(1), -1)):
        found = data_card([Batch(x, column)], x, column)
        assert found.given_away == expected
    wave = torch.linspace(0, 6, 16).sin()
    images = wave[:, None] + wave + 2 * torch.randn(16, 3, 1, 1)
    images = images.permute(0, 2, 3, 1)  # channels last
    for made, expected in (
        (images.permute(0, 3, 1, 2).contiguous(), False),
        (images.contiguous().view(16, 3, 16, 16), True),
    ):
        assert data_card([Batch(made, labels()[:16])], made, None).scrambled == expected


def test_repeated_constant_and_unequal_features():
    x = rows(FEATURES)
    assert card(x, labels()).duplicates == 0
    assert card(x[:6].repeat(4, 1), labels()).duplicates == pytest.approx(0.75)
    assert card(x[:1].expand(N, -1), labels()).variation < 1e-12
    x[:, 2] *= 1000
    x[:, 4] = 3.0
    found = card(x, labels())
    assert found.feature == 2
    assert found.feature_ratio > 300
    assert found.constant_features == 1 / FEATURES


# ---- no trace


class Drawing(nn.Module):
    """Draws, counts its calls, and fails where it is told to."""

    def __init__(self, fails):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 12),
            nn.BatchNorm1d(12),
            nn.Dropout(0.3),
            nn.ReLU(),
            nn.Linear(12, CLASSES),
        )
        self.calls, self.fails = 0, fails

    def forward(self, x):
        self.calls += 1
        if self.fails == "train" or (self.fails == "eval" and not self.training):
            raise RuntimeError("no")
        return self.net(x) + 0.1 * torch.randn(len(x), CLASSES)


@pytest.mark.parametrize("fails", ["", "eval", "train"])
def test_nothing_is_left_behind(fails):
    model = Drawing(fails)
    model.net[1].eval()
    optimizer = torch.optim.Adam(model.parameters())
    before = fingerprint(model), torch.get_rng_state(), copy.deepcopy(optimizer.state_dict())
    if fails == "train":
        with pytest.raises(Exception, match="no"):
            taken_apart(model)
    else:
        found = taken_apart(model).wiring
        assert ("mixing" in found.skipped) is (fails == "eval")
        assert math.isfinite(found.loss)
    assert fingerprint(model) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert optimizer.state_dict() == before[2]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_without_a_lower_bound_falls_faster_than_its_outputs_grow():
    x, y = rows(FEATURES), torch.ones(N, 1)

    def with_sign(sign):
        def loss(rate, y):
            return sign * (rate.exp() - y * rate).mean()

        return wiring(mlp(out=1), (x, y), loss).falling

    assert with_sign(-1) > 2.5
    assert not with_sign(1) > 2.5
    linear = wiring(mlp(out=1), (x, y), lambda out, y: out.mean())
    assert linear.falling == pytest.approx(2, rel=1e-4)


def test_padding_with_a_label_is_seen():
    words = torch.arange(N * 6).reshape(N, 6) % 7 + 1
    words[:, 3:] = 0
    tags = (words % 3).masked_fill(words == 0, 1)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(9, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.words(x)).transpose(1, 2)

    assert wiring(Tagger(), (words, tags)).padded == pytest.approx(0.5)
    ignored = tags.masked_fill(words == 0, -100)
    assert wiring(Tagger(), (words, ignored), functional.cross_entropy).padded == 0
    assert wiring(Tagger(), (words.flip(1), tags.flip(1))).padded == 0


def test_convolutions_that_see_the_next_value_leak():
    x = rows(1, 12)[:, 0]

    class Next(nn.Module):
        def __init__(self, left, right):
            super().__init__()
            self.conv, self.pad = nn.Conv1d(1, 1, 3), (left, right)

        def forward(self, x):
            return self.conv(functional.pad(x[:, None], self.pad))[:, 0]

    data = (x[:, :-1].contiguous(), x[:, 1:].contiguous())
    assert wiring(Next(1, 1), data, "mse").leak > 0.01
    assert wiring(Next(2, 0), data, "mse").leak == 0


def test_the_last_operation_may_be_dropout():
    x, y = rows(FEATURES), torch.randn(N, 1)
    dropped = wiring(mlp(nn.Dropout(0.5), out=1), (x, y), nn.MSELoss())
    inside = wiring(mlp(act=nn.Dropout, out=1), (x, y), nn.MSELoss())
    assert [w.calls[0].made_by for w in (dropped, inside)] == ["Dropout", "Addmm"]


def test_nodes_of_a_graph_are_joined_on_purpose():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("joined", torch.rand(N, N))
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.joined @ self.layer(x)

    assert "graph" in wiring(Graph()).skipped["mixing"]


def test_tables_that_are_standardized_by_row():
    x = rows(FEATURES) * 0.1 + torch.arange(FEATURES)
    by_row = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    by_column = (x - x.mean(0)) / x.std(0)
    cards = [data_card([Batch(t)], t, None) for t in (by_row, by_column)]
    assert [card.by_row for card in cards] == [True, False]
