"""The loop against a loop written by hand, its events, and what it leaves as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from normscope.data import DataSet, FlipAndCrop, load_data
from normscope.errors import InputError
from normscope.nn import PopulationRefresher, network, refresh_population
from normscope.train import Event, StopTraining, TrainingRun, evaluate, fit, gamma_decay


def mlp(*, dropout=0.0, seed=0, norm=True):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.BatchNorm1d(20) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(20, 10),
    )


@pytest.fixture(scope="module")
def digits():
    return load_data("digits").rows(slice(300)).to(dtype=torch.float64)


def same_weights(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_sgd_equals_the_update_written_out(digits, momentum, weight_decay):
    model, twin = mlp(), mlp()
    run = fit(
        model,
        digits,
        "cross_entropy",
        lr=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
        epochs=2,
        batch_size=64,
        seed=3,
    )
    velocity = [torch.zeros_like(p) for p in twin.parameters()]
    losses = []
    for epoch in range(2):
        for images, labels in digits.batches(64, seed=3, epoch=epoch):
            loss = functional.cross_entropy(twin(images), labels)
            losses.append(loss.item())
            grads = torch.autograd.grad(loss, list(twin.parameters()))
            with torch.no_grad():
                for p, g, v in zip(twin.parameters(), grads, velocity, strict=True):
                    v.mul_(momentum).add_(g + weight_decay * p)
                    p.sub_(0.1 * v)
    assert run.losses == pytest.approx(losses, rel=1e-12)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    assert run.updates == len(losses) == 10


def test_adam_equals_torch(digits):
    model, twin = mlp(), mlp()
    fit(model, digits, "cross_entropy", optimizer="adam", lr=0.01, steps=7, batch_size=50)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01)
    batches = [b for e in (0, 1) for b in digits.batches(50, epoch=e)][:7]
    for images, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(twin(images), labels).backward()
        optimizer.step()
    assert same_weights(model, twin)


def test_the_schedule_is_followed(digits):
    run = fit(mlp(), digits, "cross_entropy", lr=0.1, epochs=4, batch_size=100, schedule="step")
    assert run.lrs == pytest.approx([0.1] * 6 + [0.01] * 3 + [0.001] * 3)


def test_clipping_bounds_the_step(digits):
    model = mlp(norm=False)
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    fit(model, digits, "cross_entropy", lr=0.5, steps=1, clip=0.01)
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert float((after - before).norm()) == pytest.approx(0.5 * 0.01, rel=1e-4)


def test_mse_takes_one_hot_targets(digits):
    model = mlp()
    run = fit(model, digits, "mse", lr=0.01, steps=1, batch_size=300)
    rows = digits.one_hot()
    expected = 0.5 * (mlp()(digits.images) - rows).square().sum(1).mean()
    assert run.initial_loss == pytest.approx(float(expected.detach()), rel=1e-12)


def test_the_penalty_is_no_part_of_the_loss_recorded(digits):
    plain = fit(mlp(), digits, "cross_entropy", lr=0.1, steps=3)
    decayed = fit(mlp(), digits, "cross_entropy", lr=0.1, steps=3, penalty=gamma_decay(5.0))
    assert plain.losses[0] == decayed.losses[0]
    assert plain.losses[1] != decayed.losses[1]


def test_events_come_in_order(digits):
    seen = []
    run = fit(
        mlp(), digits, "cross_entropy", lr=0.1, epochs=2, batch_size=150, callbacks=[seen.append]
    )
    kinds = ["start"] + ["step", "step", "epoch"] * 2 + ["done"]
    assert [event.kind for event in seen] == kinds
    assert [e.step for e in seen] == [0, 1, 2, 2, 3, 4, 4, 4]
    assert [e.loss for e in seen if e.kind == "step"] == run.losses.tolist()
    epochs = [e for e in seen if e.kind == "epoch"]
    assert [e.loss for e in epochs] == pytest.approx(run.losses.reshape(2, 2).mean(1))
    assert [e.epoch for e in epochs] == [0, 1]
    assert seen[-1].outcome == "finished"
    assert run.events == tuple(e for e in seen if e.kind not in ("start", "step"))


def test_steps_may_end_within_an_epoch_or_with_it(digits):
    kinds = {}
    for steps in (1, 2, 3):
        run = fit(mlp(), digits, "cross_entropy", lr=0.1, steps=steps, batch_size=150)
        kinds[steps] = [e.kind for e in run.events]
        assert run.updates == steps
    assert kinds == {1: ["done"], 2: ["epoch", "done"], 3: ["epoch", "done"]}


def test_a_callback_can_stop(digits):
    def stop(event):
        if event.step == 3:
            raise StopTraining("enough")

    run = fit(mlp(), digits, "cross_entropy", lr=0.1, epochs=9, batch_size=50, callbacks=[stop])
    assert (run.outcome, run.updates, run.reason) == ("stopped", 3, "enough")


def test_a_key_press_is_an_outcome(digits):
    def press(event):
        if event.kind == "step" and event.step == 2:
            raise KeyboardInterrupt

    run = fit(mlp(), digits, "cross_entropy", lr=0.1, epochs=9, batch_size=50, callbacks=[press])
    assert (run.outcome, run.updates) == ("interrupted", 2)
    assert run.events[-1].outcome == "interrupted"


def global_states():
    state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()


@pytest.mark.parametrize("fail", [False, True])
def test_random_state_and_modes_come_back(digits, fail):
    def callback(event):
        if fail and event.step == 2:
            raise RuntimeError("from the user")

    model = mlp(dropout=0.5).eval()
    model[2].train()
    before, modes = global_states(), [m.training for m in model.modules()]
    if fail:
        with pytest.raises(RuntimeError, match="from the user"):
            fit(model, digits, "cross_entropy", lr=0.1, steps=5, callbacks=[callback])
    else:
        fit(model, digits, "cross_entropy", lr=0.1, steps=5)
    assert global_states() == before
    assert [m.training for m in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_result_depends_on_the_seed_and_not_on_the_global_state(digits):
    def final(seed, noise):
        torch.manual_seed(noise)
        model = mlp(dropout=0.5)
        torch.rand(noise)
        fit(model, digits, "cross_entropy", lr=0.1, steps=5, batch_size=40, seed=seed)
        return model

    assert same_weights(final(1, 3), final(1, 4))
    assert not same_weights(final(1, 3), final(2, 3))


def test_the_model_trains_in_train_mode_though_given_in_evaluation_mode(digits):
    model = mlp().eval()
    fit(model, digits, "cross_entropy", lr=0.1, steps=3)
    assert int(model[2].num_batches_tracked) == 3


def test_augmentation_is_used_and_can_be_repeated(digits):
    def final(augment):
        model = mlp()
        fit(model, digits, "cross_entropy", lr=0.1, steps=4, augment=augment)
        return model

    assert same_weights(final(FlipAndCrop(padding=1)), final(FlipAndCrop(padding=1)))
    assert not same_weights(final(FlipAndCrop(padding=1)), final(None))


def test_the_batches_of_a_data_set_are_drawn_anew_every_epoch(digits):
    one, other = mlp(), mlp()
    fit(one, digits, "cross_entropy", lr=0.1, epochs=3, batch_size=64, seed=0)
    fit(other, digits.batches(64), "cross_entropy", lr=0.1, epochs=3)
    assert same_weights(one, other)


def test_a_float32_data_set_fits_a_float64_model_and_the_other_way_round(digits):
    assert fit(mlp(), "digits", "cross_entropy", lr=0.1, steps=1).updates == 1
    assert fit(mlp().float(), digits, "cross_entropy", lr=0.1, steps=1).updates == 1


def test_gradients_are_cleared_and_frozen_layers_untouched(digits):
    model = mlp()
    model[1].requires_grad_(False)
    kept = model[1].weight.clone()
    fit(model, digits, "cross_entropy", lr=0.1, steps=3, weight_decay=0.1)
    assert torch.equal(model[1].weight, kept)
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_function_of_model_and_batch_takes_any_batch():
    torch.manual_seed(0)
    model = nn.Bilinear(3, 4, 1)
    batch = {"a": torch.randn(8, 3), "b": torch.randn(8, 4), "y": torch.randn(8, 1)}

    def loss_fn(m, b):
        return (m(b["a"], b["b"]) - b["y"]).square().mean()

    run = fit(model, [batch], loss_fn=loss_fn, lr=0.05, steps=200)
    assert run.final_loss < 0.5 * run.initial_loss


def test_several_inputs_in_a_pair():
    torch.manual_seed(0)
    data = ((torch.randn(20, 3), torch.randn(20, 4)), torch.randn(20, 1))
    run = fit(nn.Bilinear(3, 4, 1), data, nn.MSELoss(), lr=0.05, steps=100, batch_size=7)
    assert run.final_loss < run.initial_loss


def test_a_refresher_steps_before_every_update(digits):
    class Counter:
        def __init__(self):
            self.calls, self.seen = 0, []

        def step(self):
            self.seen.append(len(losses))
            self.calls += 1

        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            self.calls = state["calls"]

    losses, counter = [], Counter()
    fit(
        mlp(),
        digits,
        "cross_entropy",
        lr=0.1,
        steps=4,
        refreshers=[counter],
        callbacks=[lambda e: losses.append(e.loss) if e.kind == "step" else None],
    )
    assert counter.seen == [0, 1, 2, 3]


def test_population_norm_is_refreshed_during_training(digits):
    from normscope.nn.norm import PopulationNorm, PopulationRefresher

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), PopulationNorm(20), nn.Linear(20, 10))
    refresher = PopulationRefresher(model, digits.images, num_samples=None, every=2)
    run = fit(
        model, digits, "cross_entropy", lr=0.1, steps=20, batch_size=100, refreshers=[refresher]
    )
    assert run.final_loss < 0.5 * run.initial_loss
    assert refresher.state_dict() == {"steps": 20}


def test_the_record(digits):
    run = fit(mlp(), digits, "cross_entropy", lr=0.1, momentum=0.9, steps=3)
    assert TrainingRun.from_json(run.to_json()) == run
    frame = run.to_frame()
    assert list(frame.columns) == ["loss", "lr"]
    assert frame["loss"].tolist() == run.losses.tolist()
    assert "finished after 3 updates" in run.summary()
    assert run.convention["momentum"] == 0.9
    assert "cross_entropy: softmax" in run.convention["loss"]
    assert "finished, 3 updates" in repr(run)
    assert Event.from_json(run.events[-1].to_json()) == run.events[-1]


def _nan_loader(bad_batch, bad_sample):
    batches = [
        (torch.zeros(4, 64, dtype=torch.float64), torch.zeros(4, dtype=torch.long))
        for _ in range(3)
    ]
    batches[bad_batch][0][bad_sample, 5] = torch.nan
    return batches


PAIR = (torch.zeros(9, 64, dtype=torch.float64), torch.zeros(9, dtype=torch.long))
HIGH = (PAIR[0], torch.full((9,), 10))
BATCHES = DataSet(*PAIR).batches(4)
BAD = {
    "nan in a loader": (
        (_nan_loader(2, 3), "cross_entropy"),
        {},
        "inputs of batch 2.* hold nan at index .3, ",
    ),
    "nan in a pair": ((_nan_loader(0, 1)[0], "cross_entropy"), {}, "hold nan at index .1, "),
    "label too large": (
        (HIGH, "cross_entropy"),
        {},
        r"Batch 0 of epoch 0: The labels run .* 0\.\.9",
    ),
    "empty list": (([], "cross_entropy"), {}, "There are no batches"),
    "empty pair": (((PAIR[0][:0], PAIR[1][:0]), "cross_entropy"), {}, "at least one"),
    "lengths": (((PAIR[0], PAIR[1][:3]), "cross_entropy"), {}, "one row per sample"),
    "one sample": ((PAIR, "cross_entropy"), {"batch_size": 4}, "BatchNorm1d '2' .* drop_last"),
    "batch of one": (
        ([tuple(t[:1] for t in PAIR)], "mse"),
        {},
        "One batch of every epoch has one sample",
    ),
    "not a pair": (([PAIR[0]], "cross_entropy"), {}, "no targets.*outputs_fn"),
    "tensor": ((PAIR[0], "cross_entropy"), {}, "Got a Tensor"),
    "number": ((3, "cross_entropy"), {}, "Got an int"),
    "unknown data": (("mist", "cross_entropy"), {}, "Did you mean 'mnist'"),
    "unknown loss": ((PAIR, "cross-entropie"), {}, "Did you mean 'cross_entropy'"),
    "no loss": ((PAIR,), {}, "Got neither"),
    "two losses": ((PAIR, "mse"), {"loss_fn": print}, "Got both"),
    "two lengths": ((PAIR, "cross_entropy"), {"epochs": 2}, "exactly one of epochs= and steps="),
    "no steps": ((PAIR, "cross_entropy"), {"steps": 0}, "steps must be a whole number"),
    "clip": ((PAIR, "cross_entropy"), {"clip": 0.0}, "clip must be"),
    "penalty": ((PAIR, "cross_entropy"), {"penalty": 0.1}, "a function of the model"),
    "divergence": ((PAIR, "cross_entropy"), {"divergence": 1e3}, "must be a rule"),
    "callback": ((PAIR, "cross_entropy"), {"callbacks": print}, "in a list"),
    "seed": ((PAIR, "cross_entropy"), {"seed": -1}, "seed"),
    "loader and size": (([PAIR], "cross_entropy"), {"batch_size": 3}, "brings its own batches"),
    "batches and size": ((BATCHES, "cross_entropy"), {"shuffle": False}, "shuffle cannot be set"),
    "augmented pair": ((PAIR, "cross_entropy"), {"augment": FlipAndCrop()}, "DataSet"),
    "detached": ((PAIR, lambda o, t: o.sum().detach()), {}, "does not depend on any trainable"),
    "schedule": ((iter([PAIR]), "cross_entropy"), {"schedule": "epoch"}, "a loader with a length"),
}


@pytest.mark.parametrize(("arguments", "options", "text"), BAD.values(), ids=BAD)
def test_bad_input(arguments, options, text, tmp_path):
    model = mlp()
    before, modes = global_states(), [m.training for m in model.modules()]
    with pytest.raises(InputError, match=text):
        fit(
            model,
            *arguments,
            **{"lr": 0.1, "steps": 5, "checkpoint": tmp_path / "c.pt", **options},
        )
    assert global_states() == before
    assert [m.training for m in model.modules()] == modes
    assert not list(tmp_path.iterdir())


def test_a_refused_single_sample_leaves_the_statistics_alone():
    model = mlp()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="one sample"):
        fit(model, PAIR, "cross_entropy", lr=0.1, steps=3, batch_size=4)
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_one_image_with_many_positions_is_no_single_sample():
    data = DataSet(torch.randn(5, 1, 6, 6), torch.arange(5) % 2)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    assert fit(model, data, "cross_entropy", lr=0.1, epochs=1, batch_size=2).updates == 3


def test_a_generator_is_read_once_and_its_batches_are_used_again(digits):
    batches = list(digits.batches(150))
    given = (batch for batch in batches)
    run = fit(mlp(), given, "cross_entropy", lr=0.1, steps=5 * len(batches))
    assert (
        run.losses.tolist()
        == fit(mlp(), batches, "cross_entropy", lr=0.1, steps=5 * len(batches)).losses.tolist()
    )
    with pytest.raises(InputError, match="already used up"):
        fit(mlp(), given, "cross_entropy", lr=0.1, steps=5)


def test_only_a_module_can_be_trained():
    with pytest.raises(InputError, match="Got a str"):
        fit("resnet20", PAIR, "cross_entropy", lr=0.1, steps=1)


def test_a_callback_sees_the_network_before_the_first_update(digits):
    model, seen = mlp(), []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def look(event):
        if event.kind == "start":
            same = all(torch.equal(p, before[name]) for name, p in model.named_parameters())
            seen.append((event.step, event.lr, same, evaluate(model, digits).loss))

    run = fit(model, digits, "cross_entropy", lr=0.1, steps=2, callbacks=[look])
    plain = fit(mlp(), digits, "cross_entropy", lr=0.1, steps=2)
    assert seen == [(0, 0.1, True, evaluate(mlp(), digits).loss)]
    assert np.array_equal(run.losses, plain.losses)


@pytest.mark.parametrize("form", ["set", "pair", "loader", "generator"])
def test_validation_after_every_epoch(digits, form):
    held_out = load_data("digits", "test").subset(90)
    pairs = held_out.images, held_out.labels
    loader = DataLoader(TensorDataset(*pairs), 40, shuffle=True)
    given = {"set": held_out, "pair": pairs, "loader": loader}.get(form)
    given = (batch for batch in loader) if given is None else given
    model, by_hand = network("mlp:64-20-10", dropout=0.2), []

    def look(event):
        if event.kind == "epoch":
            found = evaluate(model, held_out)
            by_hand.append((event.epoch, event.step, found.loss, found.accuracy))

    options = {"lr": 0.1, "epochs": 3, "batch_size": 50, "seed": 4}
    run = fit(model, digits, "cross_entropy", callbacks=[look], validation=given, **options)
    found = run.validation
    for row, expected in zip(vars(found).values(), zip(*by_hand, strict=True), strict=True):
        np.testing.assert_allclose(row, expected, rtol=1e-6)
    plain_model = network("mlp:64-20-10", dropout=0.2)
    plain = fit(plain_model, digits, "cross_entropy", **options)
    assert np.array_equal(plain.losses, run.losses)
    assert len(plain.validation.loss) == 0
    assert "validation, last epoch: loss" in run.summary()
    assert type(run).from_json(run.to_json()).validation == found


@pytest.mark.parametrize("stat_grad", ["detach", "through"])
def test_validation_of_population_norm_is_that_of_the_present_weights(digits, stat_grad):
    def made():
        options = {"stat_grad": stat_grad}
        return network("mlp:64-16-10", norm="population", norm_options=options)

    def trained(model, **more):
        refresher = PopulationRefresher(
            model, digits.images, num_samples=100, every=1 if stat_grad == "through" else 4
        )
        return fit(model, digits, "cross_entropy", lr=0.1, epochs=2, batch_size=60,
                   refreshers=[refresher], **more), refresher  # fmt: skip

    model = made()
    run, refresher = trained(model, validation=digits)
    plain, _ = trained(made())
    assert np.array_equal(plain.losses, run.losses)
    stale = evaluate(model, digits).loss
    refresh_population(model, refresher.population)
    assert run.validation.loss[-1] == pytest.approx(evaluate(model, digits).loss, rel=1e-6)
    assert run.validation.loss[-1] != stale


def test_validation_goes_on_in_a_resumed_training(digits, tmp_path):
    def press(event):
        if event.kind == "step" and event.step == 4:
            raise KeyboardInterrupt

    options = {"lr": 0.1, "epochs": 4, "batch_size": 150, "validation": digits.subset(40)}
    file = {"checkpoint": tmp_path / "training.pt"}
    whole = fit(mlp(), digits, "cross_entropy", **options)
    part = fit(mlp(), digits, "cross_entropy", **options, **file, callbacks=[press])
    assert len(part.validation.loss) < 4
    assert fit(mlp(), digits, "cross_entropy", **options, **file).validation == whole.validation
    with pytest.raises(InputError, match="other settings"):
        fit(mlp(), digits, "cross_entropy", **{**options, "validation": digits.subset(41)}, **file)
