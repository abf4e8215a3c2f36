"""Changes to a user's own model: what they do, that they are undone, when they are refused."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import InputError
from normscope.nn import BatchNorm, GroupNorm, LayerNorm, PopulationNorm, RMSNorm, network
from normscope.subject.transforms import (
    TRANSFORMS,
    NoNorm,
    Transform,
    apply_transform,
    base,
    parse_transform,
    undo_transform,
)


class UserNet(nn.Module):
    """Written as users do: module names of their own, functional activations, a shortcut."""

    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(3, 4, 3, padding=1)
        self.bn_in = nn.BatchNorm2d(4)
        self.conv_mid = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn_mid = nn.BatchNorm2d(4, eps=1e-3, momentum=0.3)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = functional.relu(self.bn_in(self.conv_in(x)))
        x = functional.relu(x + self.bn_mid(self.conv_mid(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def images(count=6, seed=0):
    return torch.randn(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) + 0.2


def trained(model=None):
    """A network away from special values, with running statistics."""
    model = UserNet() if model is None else model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for seed in range(3):
        model(images(seed=seed))
    return model


def state(model):
    flags = [(n, p.requires_grad) for n, p in model.named_parameters()]
    modules = [(n, type(m), m.training) for n, m in model.named_modules()]
    return {k: v.clone() for k, v in model.state_dict().items()}, flags, modules


def equal_states(a, b):
    return a[1:] == b[1:] and a[0].keys() == b[0].keys() and all(
        torch.equal(v, b[0][k]) for k, v in a[0].items()
    )  # fmt: skip


EVERY = ["remove-norms", "remove-norms:bn_in", "replace:batch->layer", "replace:batch->group2",
         "replace:batch->rms", "replace:batch->batch", "replace:any->mean", "replace:batch->frozen",
         "replace:batch->population", "replace:batch->alternating3", "replace:batch->weight",
         "replace:batch->weight-mean", "replace:batch->weight-variance", "gamma=0.1",
         "gamma:bn_mid=0", "norm-on-top", "norm-on-top=layer", "norm-before-last",
         "norm-before-last=rms", "norm-before-last=layer", "norm-output", "norm-output=mean",
         "norm-output=layer", "fold", "fold:bn_in", "freeze:conv_*", "freeze:*.weight",
         "scale-weights=2", "scale-weights:fc=-3"]  # fmt: skip


@pytest.mark.parametrize("text", EVERY)
def test_a_copy_is_changed_and_the_model_is_not(text):
    model = trained()
    before, rng = state(model), torch.get_rng_state()
    changed = apply_transform(model, text)
    assert changed is not model
    assert equal_states(before, state(model))
    assert torch.equal(rng, torch.get_rng_state())
    assert not equal_states(before, state(changed))
    out = changed(images())
    assert out.shape == (6, 5)
    assert bool(out.isfinite().all())
    out.square().sum().backward()
    assert equal_states(before, state(model))


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("training", [True, False])
def test_in_place_and_back(text, training):
    model = trained().train(training)
    before, expected = state(model), model.eval()(images())
    model.train(training)
    assert apply_transform(model, text, inplace=True) is model
    assert not equal_states(before, state(model))
    assert all(m.training == training for m in model.modules())
    assert undo_transform(model) is model
    assert equal_states(before, state(model))
    assert torch.equal(model.eval()(images()), expected)


def test_several_in_turn_are_undone_as_one():
    model = trained()
    before = state(model)
    apply_transform(model, ["remove-norms", "norm-before-last", "norm-output=mean"], inplace=True)
    apply_transform(model, "gamma=0.5", inplace=True)
    out = model(images())
    torch.testing.assert_close(out.mean(0), torch.zeros(5), rtol=0, atol=1e-12)
    undo_transform(undo_transform(model))
    assert equal_states(before, state(model))
    with pytest.raises(InputError, match="no transform"):
        undo_transform(model)


def test_a_failure_half_way_changes_nothing():
    model = trained()
    before = state(model)
    with pytest.raises(InputError, match="no normalization layer"):
        apply_transform(model, ["remove-norms", "gamma=0.1"], inplace=True)
    assert equal_states(before, state(model))
    with pytest.raises(InputError, match="no transform"):
        undo_transform(model)


def test_history_does_not_keep_a_model_alive():
    model = trained()
    apply_transform(model, ["remove-norms", "norm-output", "freeze:conv_in"], inplace=True)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not any(key is None for key in base._HISTORY)


def test_remove_norms_is_the_network_without_them():
    model = trained()
    x = functional.relu(model.conv_in(images()))
    x = functional.relu(x + model.conv_mid(x))
    expected = model.fc(x.mean((2, 3)))
    torch.testing.assert_close(apply_transform(model, "remove-norms")(images()), expected)


def test_gamma_is_set_in_every_norm():
    changed = apply_transform(trained(), "gamma=0.1")
    assert changed.bn_in.weight.unique().tolist() == [0.1]
    assert changed.bn_mid.weight.unique().tolist() == [0.1]


def test_replace_keeps_scale_shift_eps_and_statistics():
    model = trained()
    layer = apply_transform(model, "replace:batch->layer")
    assert isinstance(layer.bn_mid, GroupNorm)
    assert torch.equal(layer.bn_mid.weight, model.bn_mid.weight)
    assert layer.bn_mid.eps == 1e-3
    for after in ("batch", "frozen", "population"):
        same = apply_transform(model, f"replace:batch->{after}")
        torch.testing.assert_close(same.eval()(images()), model.eval()(images()))
    ours = apply_transform(model, "replace:batch->batch").train()
    torch.testing.assert_close(ours(images()), model.train()(images()))
    assert ours.bn_mid.momentum == 0.3
    torch.testing.assert_close(ours.bn_mid.running_var, model.bn_mid.running_var)


def test_replace_without_affine_or_statistics():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2),
                          nn.BatchNorm1d(2, track_running_stats=False))  # fmt: skip
    changed = apply_transform(model, "replace:batch->batch")
    assert changed[1].parts == ("mean", "variance")
    x = torch.randn(6, 3)
    torch.testing.assert_close(changed(x), model(x))
    torch.testing.assert_close(changed.eval()(x), model.eval()(x))
    with pytest.raises(InputError, match="no running statistics"):
        apply_transform(model, "replace:batch->frozen")


def test_replace_layer_norm_of_a_sequence():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 7, 3)
    rms = apply_transform(model, "replace:layer->rms")
    assert isinstance(rms[1], RMSNorm)
    torch.testing.assert_close(rms[1](x @ model[0].weight.T), nn.RMSNorm(4, eps=1e-5)(
        x @ model[0].weight.T))  # fmt: skip
    batch = apply_transform(model, "replace:layer->batch")
    h = batch[1](model[0](x))
    torch.testing.assert_close(h.mean((0, 1)), torch.zeros(4), rtol=0, atol=1e-12)
    ours = apply_transform(model, "replace:layer->layer")
    assert isinstance(ours[1], LayerNorm)
    torch.testing.assert_close(ours(x), model(x))
    with pytest.raises(InputError, match="feature maps"):
        apply_transform(model, "replace:layer->group")


def test_weight_norm_replaces_the_norm_and_keeps_the_layer():
    model = trained()
    changed = apply_transform(model, "replace:batch->weight")
    plain = apply_transform(model, "remove-norms")
    torch.testing.assert_close(changed(images()), plain(images()))  # lengths became scales
    lengths = changed.conv_mid.weight.detach().flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(4))


@pytest.mark.parametrize("make", [
    UserNet,
    lambda: network("resnet8", width=4),
    lambda: network("resnet8", width=4, norm="variance"),
    lambda: network("resnet8", width=4, norm="mean-affine"),
    lambda: network("resnet8", width=4, norm="variance-rms"),
    lambda: network("resnet8", width=4, norm="weight-mean"),
    lambda: network("cnn6", side=5, norm="batch-no-affine"),
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(75, 4), BatchNorm(4, eps=0.0), nn.ReLU(),
                          nn.Linear(4, 2)),
    lambda: nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (5, 15)), nn.Conv1d(5, 4, 3),
                          nn.BatchNorm1d(4), nn.Identity()),
])  # fmt: skip
def test_fold_is_evaluation_mode_without_norms(make):
    model = trained(make())
    folded = apply_transform(model, "fold")
    assert not any("Norm" in type(m).__name__ for m in folded.modules())
    expected = model.eval()(images())
    torch.testing.assert_close(folded.eval()(images()), expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(folded.train()(images()), expected, rtol=1e-11, atol=1e-12)


def test_folding_weight_norm_leaves_the_original_whole():
    """Torch's own removal of a parametrization would break every copy's original."""
    model = trained(network("resnet8", width=4, norm="weight"))
    before = model(images()).detach()
    folded = apply_transform(model, "fold")
    torch.testing.assert_close(model(images()), before)
    torch.testing.assert_close(folded(images()), before)
    apply_transform(model, "fold", inplace=True)
    undo_transform(model)
    torch.testing.assert_close(model(images()), before)


def test_fold_of_population_norm():
    from normscope.nn import refresh_population

    model = apply_transform(trained(), "replace:batch->population")
    refresh_population(model, images(20))
    folded = apply_transform(model, "fold")
    torch.testing.assert_close(folded(images()), model(images()))
    assert not any(isinstance(m, PopulationNorm) for m in folded.modules())


def test_norm_on_top_is_the_only_norm_and_before_pooling():
    model = apply_transform(trained(), "norm-on-top")
    norms = {n: m for n, m in model.named_modules() if isinstance(m, BatchNorm)}
    assert list(norms) == ["avgpool.norm"]
    assert norms["avgpool.norm"].num_features == 4
    resnet = apply_transform(network("resnet8"), "norm-on-top")
    twin = network("resnet8", norm=None, extra_norms="top")
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(resnet(x), twin(x))


def test_norm_before_last_and_norm_output():
    resnet = apply_transform(network("resnet8"), "norm-before-last")
    twin = network("resnet8", extra_norms="before-last")
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(resnet(x), twin(x))
    for kind in ("mean", "batch", "layer"):
        out = apply_transform(trained(), f"norm-output={kind}")(images())
        axis = 1 if kind == "layer" else 0
        zero = out.mean(axis)
        torch.testing.assert_close(zero, torch.zeros_like(zero), rtol=0, atol=1e-12)
    changed = apply_transform(trained(), "norm-output")
    assert len(list(changed.parameters())) == len(list(UserNet().parameters()))  # no affine


def test_freeze_and_scale():
    model = trained()
    frozen = apply_transform(model, "freeze:conv_*")
    assert [n for n, p in frozen.named_parameters() if not p.requires_grad] == [
        "conv_in.weight", "conv_in.bias", "conv_mid.weight"]  # fmt: skip
    group = apply_transform(network("vgg16:width=2"), "freeze:group1.layer*")
    assert sum(not p.requires_grad for p in group.parameters()) == 3  # norms go on training
    scaled = apply_transform(model, "scale-weights=2")
    assert torch.equal(scaled.conv_mid.weight, 2 * model.conv_mid.weight)
    assert torch.equal(scaled.conv_in.bias, model.conv_in.bias)
    assert torch.equal(scaled.bn_in.weight, model.bn_in.weight)


def test_shared_norms_are_exchanged_everywhere():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model.append(model[1])
    changed = apply_transform(model, "replace:batch->mean")
    assert isinstance(changed[1], BatchNorm)
    assert changed[1] is changed[3]
    with pytest.raises(InputError, match="used 2 times"):
        apply_transform(model, "fold")


def test_transformer_layers_do_not_fall_back_to_layer_norm_in_evaluation():
    """Torch's fused path would compute layer norm whatever the norm layers are."""
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 3, 4)
    for text in ("remove-norms", "replace:layer->rms", "gamma=0.5"):
        changed = apply_transform(model, text)
        expected = changed(x).detach()
        with torch.no_grad():
            torch.testing.assert_close(changed(x), expected)
    removed = apply_transform(model, "remove-norms", inplace=True)
    assert isinstance(removed.norm1, NoNorm)
    undo_transform(model)
    assert model.activation_relu_or_gelu == 1


def test_a_transform_is_a_value_too():
    transform = parse_transform(" gamma=0.5 ")
    assert isinstance(transform, Transform)
    assert transform.text == "gamma=0.5"
    model = trained()
    assert transform(model) is not model
    assert transform(model, inplace=True) is model
    assert all(TRANSFORMS[name].usage.startswith(name) for name in TRANSFORMS)


class Uncopyable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.handle = (i for i in range(3))

    def forward(self, x):
        return self.layer(x)


class Branching(UserNet):
    """Its forward pass depends on values."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class TwoInputs(UserNet):
    """No single tensor can be tried."""

    def forward(self, x, shift):
        return super().forward(x + shift)


class TwiceUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        h = self.layer(x)
        return h + self.norm(h)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.a(h), self.b(h)


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(3, 3), nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        return functional.linear(torch.relu(self.layer(x)), self.weight)


class FlatLinear(nn.Linear):
    """Flattens what it takes, so that a norm before it would see another axis."""

    def __init__(self):
        super().__init__(8, 2)

    def forward(self, x):
        return super().forward(x.view(-1, 8))


class FunctionalPool(UserNet):
    def forward(self, x):
        return self.fc(functional.relu(self.bn_in(self.conv_in(x))).mean((2, 3)))


def cifar_pre():
    return network("preresnet8", width=4)


PLAIN = lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))  # noqa: E731
REFUSED = [
    (PLAIN, "remove-norms", "no normalization layer"),
    (PLAIN, "gamma=0.1", "no normalization layer"),
    (PLAIN, "fold", "no normalization layer"),
    (PLAIN, "norm-on-top", "no pooling"),
    (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), "norm-before-last", "no linear layer"),
    (nn.ReLU, "scale-weights=2", "no linear or convolutional"),
    (lambda: nn.BatchNorm1d(3), "remove-norms", "is itself"),
    (lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), "norm-output", "not the output"),
    (lambda: nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), "fold", "no stored statistics"),
    (lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), "fold", "follows input"),
    (lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.BatchNorm1d(2)), "fold", "activation"),
    (lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)), "gamma=1", "scale"),
    (TwiceUsed, "fold", "also used elsewhere"),
    (cifar_pre, "fold", "glob"),
    (TwoInputs, "norm-on-top", "example="),
    (TwoInputs, "norm-before-last", "example="),
    (TwoInputs, "norm-output", "example="),
    (TwoInputs, "fold", "not neighbours.*example="),
    (TwoHeads, "norm-before-last", "2 last layers \\(a, b\\)"),
    (ByHand, "norm-before-last", "no module of its own"),
    (lambda: nn.Sequential(nn.Linear(3, 4), FlatLinear()), "norm-before-last", "of its own"),
    (lambda: nn.LSTM(3, 4), "norm-before-last", "no linear layer"),
    (lambda: torch.export.export(PLAIN(), (torch.zeros(2, 3),)), "gamma=1", "was exported"),
    (FunctionalPool, "norm-on-top", "is a function"),
    (UserNet, "replace:layer->batch", "no 'layer' norm"),
    (UserNet, "replace:batch", "two norms"),
    (UserNet, "replace:batch->bacht", "batch"),
    (UserNet, "remove-norms:nope*", "No norm layer is named"),
    (UserNet, "freeze:nope", "No layer or parameter"),
    (UserNet, "freeze", "names layers"),
    (UserNet, "gamma=big", "finite number"),
    (UserNet, "gamma=nan", "finite number"),
    (UserNet, "gamma", "finite number"),
    (UserNet, "scale-weights=0", "other than 0"),
    (UserNet, "norm-output=group", "mean"),
    (UserNet, "norm-before-last:fc", "nothing behind ':'"),
    (UserNet, "norm-on-top=weight", "norm of weights"),
    (UserNet, "remove-norms=1", "no value"),
    (UserNet, "remove-norm", "Did you mean 'remove-norms'"),
    (UserNet, "gamma=", "Nothing stands behind"),
    (UserNet, "?", "A transform is written"),
    (UserNet, [], "at least one"),
    (lambda: "resnet20", "gamma=1", "nn.Module. Got a str"),
    (Uncopyable, "scale-weights=2", "cannot be copied"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text", "message"), REFUSED)
def test_refused_with_a_reason_and_nothing_changed(make, text, message):
    model = make()
    before = state(model) if isinstance(model, nn.Module) else None
    for inplace in (False, True) if message != "cannot be copied" else (False,):
        with pytest.raises(InputError, match=message):
            apply_transform(model, text, inplace=inplace)
    if before is not None:
        assert equal_states(before, state(model))


STRUCTURE = ["fold", "replace:batch->weight", "norm-on-top", "norm-before-last", "norm-output"]


@pytest.mark.parametrize("text", STRUCTURE)
def test_passes_that_depend_on_values_are_read(text):
    model, plain = trained(Branching()), UserNet()
    plain.load_state_dict(model.state_dict())
    for example in (None, images()):
        changed = apply_transform(model, text, example=example)
        expected = apply_transform(plain, text)
        torch.testing.assert_close(changed(images()), expected(images()))


@pytest.mark.parametrize("text", STRUCTURE)
def test_an_example_says_what_a_model_takes(text):
    model, plain = trained(), TwoInputs()
    plain.load_state_dict(model.state_dict())
    zero = torch.zeros(())
    expected = apply_transform(model, text)(images())
    for example in ((images(), zero), {"shift": zero, "x": images()}):
        changed = apply_transform(plain, text, example=example)
        torch.testing.assert_close(changed(images(), zero), expected)
    with pytest.raises(InputError, match=r"cannot be run on the example.*Pass a batch"):
        apply_transform(plain, "norm-before-last", example=images())


def test_models_that_cannot_be_run_fold_where_layers_are_neighbours():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())

        def forward(self, x, y):
            return self.body(x + y)

    model = Two()
    model(torch.randn(8, 3), 1)
    x = torch.randn(5, 3)
    folded = apply_transform(model, "fold")
    torch.testing.assert_close(folded(x, 1), model.eval()(x, 1))


class Tied(nn.Module):
    """A language model whose head is its embedding; the layer before it is written by hand."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.body = Transposed(4, 4)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return {"logits": self.head(torch.tanh(self.body(self.embedding(tokens))))}


class Transposed(nn.Module):
    """Like transformers' Conv1D."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


def test_the_last_layer_is_that_of_the_graph():
    model, tokens = Tied(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    changed = apply_transform(model, "norm-before-last=layer")
    assert list(changed.head._modules) == ["norm", "layer"]
    assert changed.head.layer.weight is changed.embedding.weight
    h = functional.layer_norm(torch.tanh(model.body(model.embedding(tokens))), (4,))
    torch.testing.assert_close(changed(tokens)["logits"], model.head(h))
    out = apply_transform(model, "norm-output=layer")(tokens)["logits"]
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 3), rtol=0, atol=1e-12)
    ends = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Transposed(4, 2))
    changed = apply_transform(ends, "norm-before-last=rms")
    assert list(changed[2]._modules) == ["norm", "layer"]
    assert changed(torch.randn(5, 3)).shape == (5, 2)


def test_pooling_of_the_users_own():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    model = nn.Sequential(nn.Conv2d(3, 4, 1), Mean(), nn.Linear(4, 2))
    changed = apply_transform(model, "norm-on-top")
    assert changed[1].norm.num_features == 4
    assert changed(images()).shape == (6, 2)


def test_deep_copies_have_no_history():
    model = trained()
    apply_transform(model, "gamma=0.5", inplace=True)
    with pytest.raises(InputError, match="no transform"):
        undo_transform(copy.deepcopy(model))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_are_refused():
    with pytest.raises(InputError, match="before it was scripted"):
        apply_transform(torch.jit.script(PLAIN()), "norm-before-last")
