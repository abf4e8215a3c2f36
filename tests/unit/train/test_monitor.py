"""The monitor: which steps it sees, what it reads off them, and what it says when it sees none."""

import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.errors import InputError, MeasurementError
from normscope.results.eigenvalues import generalized_condition_number
from normscope.train.monitor import Monitor, MonitorProbe


def network(width=6):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def batch(size=8):
    return torch.randn(size, 4), torch.randint(3, (size,))


def update(model, optimizer, data):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(data[0]), data[1])
    loss.backward()
    optimizer.step()
    return loss


def trained(model, steps, *, lr=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Monitor(model, **options) as monitor:
        for _ in range(steps):
            update(model, optimizer, batch())
    return monitor


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_first_step_and_then_one_in_so_many():
    monitor = trained(network(), 8, every=3)
    log = monitor.result()
    assert log.num_steps == 8
    for series in log.series:
        assert series.steps.tolist() == [0, 3, 6], series


def test_updates_are_what_they_are_by_hand():
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    twin = network()
    twin.load_state_dict(model.state_dict())
    with Monitor(model, every=1, probes="updates") as monitor:
        update(model, optimizer, data)
    functional.cross_entropy(twin(data[0]), data[1]).backward()
    log = monitor.result()
    for layer in ("0", "3"):
        weight, gradient = (
            float(t.detach().norm())
            for t in (twin[int(layer)].weight, twin[int(layer)].weight.grad)
        )
        found = {q: log.of(q, layer).values[0] for q in log.quantities}
        assert found["weight_norm"] == pytest.approx(weight, rel=1e-12)
        assert found["gradient_norm"] == pytest.approx(gradient, rel=1e-12)
        assert found["gradient_ratio"] == pytest.approx(gradient / weight, rel=1e-12)
        assert found["update_ratio"] == pytest.approx(0.3 * gradient / weight, rel=1e-9)
    norm = twin[1]
    both = torch.cat([norm.weight, norm.bias]).detach().norm()
    assert log.of("weight_norm", "1").values[0] == pytest.approx(float(both), rel=1e-12)


def test_signals_are_what_they_are_by_hand():
    model, data = network(width=40), batch(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1].bias.data[:10] = -50.0  # dead behind the activation
    twin = network(width=40)
    twin.load_state_dict(model.state_dict())
    with Monitor(model, every=1) as monitor:
        update(model, optimizer, data)
    h = twin[:3](data[0]).detach()
    log = monitor.result()
    assert log.of("activation_mean").values[0] == pytest.approx(float(h.mean()))
    assert log.of("activation_variance").values[0] == pytest.approx(float(h.var(correction=0)))
    assert log.of("dead_fraction").values[0] == pytest.approx(
        float((h == 0).all(0).double().mean())
    )
    assert log.of("dead_fraction").values[0] >= 0.25
    assert log.of("last_input_lambda_max").layer == "3"
    values = np.linalg.eigvalsh(h.T.numpy() @ h.numpy() / 16)
    assert log.of("last_input_lambda_max").values[0] == pytest.approx(values[-1])
    assert log.of("last_input_kappa_50").values[0] == np.inf  # 16 samples of 40 entries


def test_last_layer_with_more_samples_than_entries():
    model, data = network(width=5), batch(32)
    model[1] = nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    h = torch.cat([data[0] @ model[0].weight.T + model[0].bias]).relu().detach().numpy()
    with Monitor(model, every=1, probes="last_layer") as monitor:
        update(model, optimizer, data)
    values = np.linalg.eigvalsh(h.T @ h / 32)
    for name, share in (("last_input_kappa_50", 0.5), ("last_input_kappa_80", 0.8)):
        expected = generalized_condition_number(values, share)
        assert monitor.result().of(name).values[0] == pytest.approx(expected, rel=1e-6)


def test_gradient_accumulation_is_one_step():
    model = network(width=5)
    model[1] = nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = [batch(6), batch(6), batch(4)]
    x = torch.cat([p[0] for p in parts])
    h = (x @ model[0].weight.T + model[0].bias).relu().detach()
    with Monitor(model, every=1) as monitor:
        for part in parts:
            functional.cross_entropy(model(part[0]), part[1]).backward()
        expected = float(model[0].weight.grad.norm())
        optimizer.step()
    log = monitor.result()
    assert log.num_steps == 1
    assert log.of("gradient_norm", "0").values.tolist() == [pytest.approx(expected)]
    assert log.of("activation_mean").values.tolist() == [pytest.approx(float(h.mean()))]
    assert log.of("activation_variance").values[0] == pytest.approx(float(h.var(correction=0)))
    top = np.linalg.eigvalsh((h.T @ h).numpy() / len(h))[-1]
    assert log.of("last_input_lambda_max").values[0] == pytest.approx(top)


def test_evaluation_passes_do_not_count():
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = network()
    twin.load_state_dict(model.state_dict())
    expected = float(twin[:3](data[0]).detach().mean())
    with Monitor(model, every=1) as monitor:
        model.eval()
        model(1e3 * torch.randn(9, 4))
        model.train()
        with torch.no_grad():
            kept = {n: b.clone() for n, b in model.named_buffers()}
            model(1e3 * torch.randn(9, 4))
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        update(model, optimizer, data)
    assert monitor.result().of("activation_mean").values[0] == pytest.approx(expected)


def test_parts_that_run_again_in_the_backward_pass_do_not_count():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(checkpoint(self.inner, x, use_reentrant=False))

    model = Checkpointed()
    log = trained(model, 1, every=1).result()
    assert not any("#" in layer for layer in log.layers)
    assert log.of("activation_mean", "inner.1").steps.tolist() == [0]


def test_skipped_steps_of_a_grad_scaler_do_not_count():
    torch.set_default_dtype(torch.float32)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Monitor(model, every=1) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
            plain = {n: p.grad / scaler.get_scale() for n, p in model.named_parameters()}
            scaler.step(optimizer)
            scaler.update()
    log = monitor.result()
    assert log.num_steps == 3
    norms = log.of("gradient_norm", "3").values
    assert np.isfinite(norms).all()
    assert norms[-1] == pytest.approx(float(plain["3.weight"].norm()), rel=1e-5)


def test_an_optimizer_that_takes_the_scale_out_itself():
    torch.set_default_dtype(torch.float32)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    true = []
    with Monitor(model, every=1) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch()
            loss = functional.cross_entropy(model(x), y) * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            true.append(float(model[0].weight.grad.norm()) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    series = monitor.result().of("gradient_norm", "0")
    assert series.steps.tolist() == [0, 1]
    np.testing.assert_allclose(series.values, [true[0], true[2]], rtol=1e-6)


def test_optimizers_that_compute_gradients_inside_the_step():
    model, data = network(), batch()
    model[1] = nn.Identity()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data[0]), data[1])
        loss.backward()
        return loss

    with Monitor(model, every=1) as monitor:
        optimizer.step(closure)
    log = monitor.result()
    assert log.of("gradient_norm", "0").values[0] == float(model[0].weight.grad.norm())
    assert log.of("update_ratio", "0").values[0] > 0


def test_several_optimizers_count_for_themselves():
    model, data = network(), batch()
    body = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    head = torch.optim.Adam(model[3].parameters(), lr=0.1)
    with Monitor(model, every=2) as monitor:
        for step in range(6):
            body.zero_grad()
            head.zero_grad()
            functional.cross_entropy(model(data[0]), data[1]).backward()
            if step % 2 == 0:
                body.step()
            head.step()
    log = monitor.result()
    assert log.num_steps == 6
    assert log.of("gradient_norm", "0").steps.tolist() == [0, 2]
    assert log.of("gradient_norm", "3").steps.tolist() == [0, 2, 4]
    assert log.of("activation_mean").steps.tolist() == [0, 2, 4]


def test_two_optimizers_that_step_one_after_the_other():
    model, data = network(), batch()
    body = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    head = torch.optim.SGD(model[3].parameters(), lr=0.1)
    with Monitor(model, every=1) as monitor:
        for _ in range(3):
            functional.cross_entropy(model(data[0]), data[1]).backward()
            body.step()
            head.step()
    log = monitor.result()
    assert all(series.steps.tolist() == [0, 1, 2] for series in log.series)


def test_other_models_are_not_watched():
    mine, other = network(), network()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    monitor = Monitor(mine)
    update(other, optimizer, batch())
    assert monitor.num_steps == 0
    with pytest.warns(UserWarning, match="no torch optimizer that holds parameters of this model"):
        monitor.close()


def test_chosen_optimizers_alone():
    model, data = network(), batch()
    wanted, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with Monitor(model, every=1, optimizers=wanted) as monitor:
        update(model, wanted, data)
        update(model, other, data)
    assert monitor.num_steps == 1
    with pytest.raises(InputError, match="torch optimizers"):
        Monitor(model, optimizers=[3])


def test_parameter_groups_added_later_are_seen():
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with Monitor(model, every=1, probes="updates") as monitor:
        update(model, optimizer, data)
        optimizer.add_param_group({"params": model[3].parameters()})
        update(model, optimizer, data)
    assert monitor.result().of("weight_norm", "3").steps.tolist() == [1]


def test_frozen_layers_have_no_gradient_and_no_update():
    model = network()
    model[0].requires_grad_(False)
    log = trained(model, 1, every=1, probes="updates").result()
    assert log.of("update_ratio", "0").values.tolist() == [0.0]
    with pytest.raises(InputError, match="not recorded for layer '0'"):
        log.of("gradient_norm", "0")


def test_ratios_of_zero_weights_are_infinite_not_an_error():
    model = network()
    nn.init.zeros_(model[3].weight)
    log = trained(model, 1, every=1, probes="updates").result()
    assert log.of("gradient_ratio", "3").values.tolist() == [np.inf]


def test_sparse_gradients():
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, every=1) as monitor:
        functional.cross_entropy(
            model(torch.tensor([[1, 1], [2, 3]])), torch.tensor([0, 1])
        ).backward()
        expected = float(model[0].weight.grad.to_dense().norm())
        optimizer.step()
    assert monitor.result().of("gradient_norm", "0").values[0] == pytest.approx(expected)


def test_a_training_that_diverges_is_recorded_to_its_end():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e200)
    with Monitor(model, every=1) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    log = monitor.result()
    assert not log.troubles
    assert not np.isfinite(log.of("last_input_lambda_max").values[-1])
    assert "not finite in" in log.summary()


def test_units_at_nan_are_not_dead():
    model = network()
    with torch.no_grad():
        model[0].weight[0] = torch.nan
        model[1].bias[1:3] = -100.0  # two of six below zero for every sample
    dead = trained(model, 1, every=1).result().of("dead_fraction", "2")
    assert dead.values.tolist() == [2 / 6]


class Broken(MonitorProbe):
    watches = ("linear",)

    def entering(self, site, x):
        raise RuntimeError("bang")

    def readings(self, update):
        yield "", "calls", 1.0


def test_a_failing_probe_does_not_stop_training():
    model = network()
    with pytest.warns(UserWarning, match="bang") as caught:
        monitor = trained(model, 4, every=1, probes=["updates", Broken()])
    assert len(caught) == 1
    log = monitor.result()
    assert log.num_steps == 4
    assert [(t.name, t.status) for t in log.troubles] == [("Broken", "failed")]
    assert "failed: Broken: RuntimeError: bang" in log.summary()
    assert log.of("weight_norm", "0").steps.tolist() == [0, 1, 2, 3]


def test_a_wide_last_layer_is_left_out_with_a_reason():
    model = nn.Sequential(nn.Linear(4, 1500), nn.ReLU(), nn.Linear(1500, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        pytest.warns(UserWarning, match="1500 eigenvalues, above the limit"),
        Monitor(model, every=1) as monitor,
    ):
        update(model, optimizer, batch(1500))
    assert "last_input_lambda_max" not in monitor.result().quantities


def test_hooks_are_there_only_on_recorded_steps():
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = len(optimizers._global_optimizer_post_hooks)
    with Monitor(model, every=3) as monitor:
        seen = []
        for _ in range(7):
            seen.append(hooks_of(model) > 0)
            update(model, optimizer, data)
        assert len(optimizers._global_optimizer_post_hooks) == before + 1
        assert "watching" in repr(monitor)
    assert seen == [True, False, False, True, False, False, True]
    assert hooks_of(model) == 0
    assert len(optimizers._global_optimizer_post_hooks) == before
    assert len(optimizers._global_optimizer_pre_hooks) == before
    monitor.close()  # once more does no harm
    update(model, optimizer, data)
    assert monitor.num_steps == 7
    assert "closed" in repr(monitor)


def test_a_monitor_that_nobody_holds_leaves():
    model = network()
    before = len(optimizers._global_optimizer_post_hooks)
    monitor = Monitor(model)
    assert hooks_of(model) > 0
    del monitor
    gc.collect()
    assert hooks_of(model) == 0
    assert len(optimizers._global_optimizer_post_hooks) == before


def test_two_monitors_see_the_same():
    model = network()
    with Monitor(model, every=1) as outer:
        inner = trained(model, 3, every=1)
    assert [s.to_dict() for s in outer.result().series] == [
        s.to_dict() for s in inner.result().series
    ]


def test_a_loop_of_fit_is_a_loop():
    torch.set_default_dtype(torch.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    twin = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    twin.load_state_dict(model.state_dict())
    with Monitor(model, every=5) as monitor:

        def log_loss(event):
            if event.kind == "step":
                monitor.log(train_loss=event.loss)

        run = ns.fit(
            model, "digits", "cross_entropy", lr=0.1, steps=12, callbacks=[log_loss]
        )  # fmt: skip
    ns.fit(twin, "digits", "cross_entropy", lr=0.1, steps=12)
    log = monitor.result()
    assert log.num_steps == run.updates == 12
    assert log.of("gradient_norm", "1").steps.tolist() == [0, 5, 10]
    assert log.of("activation_mean").steps.tolist() == [0, 5, 10]
    assert log.of("train_loss").values.tolist() == run.losses.tolist()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_numbers_of_ones_own():
    model = network()
    monitor = Monitor(model, every=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        monitor.log(loss=loss, lr=0.1)
        losses.append(float(loss.detach()))
        optimizer.step()
    monitor.close()
    log = monitor.result()
    assert (log.of("loss").steps.tolist(), log.of("loss").values.tolist()) == ([0, 1, 2], losses)
    assert log.of("lr", "").values.tolist() == [0.1] * 3
    with pytest.raises(InputError, match="log takes one number each"):
        monitor.log(loss=torch.ones(3))
    with pytest.raises(InputError, match="Got loss = 'high'"):
        monitor.log(loss="high")


# ---- nothing recorded


def test_no_step_is_explained():
    monitor = Monitor(network())
    with pytest.raises(MeasurementError, match="Nothing was recorded: no torch optimizer"):
        monitor.result()
    with pytest.warns(UserWarning, match="made a step"):
        monitor.close()


def test_an_error_in_the_loop_is_not_drowned_in_a_warning():
    model = network()
    with pytest.raises(ZeroDivisionError), Monitor(model):  # a warning would be an error here
        raise ZeroDivisionError
    assert hooks_of(model) == 0


def test_parts_called_in_place_of_the_model_are_explained():
    model, (x, y) = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, every=1)
    functional.cross_entropy(model[3](model[:3](x)), y).backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="recorded no signals: no forward pass of the model"):
        monitor.close()
    log = monitor.result()
    assert "gradient_norm" in log.quantities
    assert {t.name for t in log.troubles} == {"activations", "last_layer"}


def test_signals_alone_that_were_not_seen():
    model, (x, y) = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, probes="activations")
    model.eval()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="recorded nothing: activations: no forward pass"):
        monitor.close()


@pytest.mark.parametrize("how", ["wrapped", "in place", "part"])
def test_compiled_models_are_watched_by_their_updates(how):
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = model
    if how == "wrapped":
        run = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model[0].compile(backend="eager")
    with Monitor(run, every=1) as monitor:
        update(run, optimizer, data)
    log = monitor.result()
    assert log.of("gradient_norm", "0").steps.tolist() == [0]
    reasons = {t.name: t.reason for t in log.troubles}
    assert set(reasons) == {"activations", "last_layer"}
    assert "hooks do not run inside compiled code" in reasons["activations"]


def test_a_compiled_copy_behind_the_monitors_back():
    model, data = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, backend="eager")
    monitor = Monitor(model, every=1)
    for _ in range(2):
        update(run, optimizer, data)
    with pytest.warns(UserWarning, match="a compiled version"):
        monitor.close()
    assert monitor.result().of("gradient_norm", "0").steps.tolist() == [0, 1]
    assert hooks_of(model) == 0


# ---- wrong arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every"),
        ({"probes": "update"}, "Did you mean 'updates'"),
        ({"probes": []}, "probes is empty"),
        ({"probes": [3]}, "or a MonitorProbe"),
        ({"sinks": "tensorbord"}, "Did you mean 'tensorboard'"),
        ({"sinks": [3]}, "an object with write"),
        ({"probes": 3}, "or a MonitorProbe"),
        ({"sinks": "memory:here"}, "takes no target"),
        ({"sinks": []}, "sinks is empty"),
        ({"sinks": "jsonl:/dev/null/run.jsonl"}, "cannot write to '/dev/null/run.jsonl'"),
        ({"optimizers": 3}, "must be torch optimizers"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_nothing(options, message):
    model = network()
    before = len(optimizers._global_optimizer_post_hooks)
    with pytest.raises(InputError, match=message):
        Monitor(model, **options)
    assert hooks_of(model) == 0
    assert len(optimizers._global_optimizer_post_hooks) == before


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "must be a torch.nn.Module. Got an int"),
        (nn.ReLU(), "no parameters"),
        (nn.DataParallel(nn.Linear(2, 2)), "Pass the module inside it"),
    ],
)
def test_models_that_cannot_be_watched(model, message):
    with pytest.raises(InputError, match=message):
        Monitor(model)


def test_last_layer_view_of_a_norm_before_the_last_layer():
    """Huang: behind a fresh batch norm the trace is the width, so that lambda_max is at most it."""
    torch.set_default_dtype(torch.float32)
    found = []
    for last in ([], [nn.BatchNorm1d(32)]):
        torch.manual_seed(0)
        body = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()]
        model = nn.Sequential(*body, *last, nn.Linear(32, 10))
        with Monitor(model, every=4, probes="last_layer") as monitor:
            ns.fit(model, "digits", "cross_entropy", lr=0.5, steps=20)
        found.append(monitor.result().of("last_input_lambda_max"))
    plain, normed = found
    assert plain.layer == "5"
    assert normed.layer == "6"
    assert normed.values[0] <= 32
    assert plain.values.max() / plain.values.min() > normed.values.max() / normed.values.min()
