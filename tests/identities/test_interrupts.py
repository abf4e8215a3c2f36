"""A signal at any moment: the model, the process and the signal handlers are afterwards as before.

The deterministic tests send the signal from a trace function, at chosen lines and calls of
normscope and of the context managers it uses; also at the first line of an ``__exit__``, where no
``finally`` has begun yet. The slow test sends it by a timer.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import normscope as ns
from fingerprints import fingerprint, process
from injection import WATCHED, interrupted
from normscope.errors import InputError
from normscope.subject import interrupts
from normscope.subject.interrupts import held, interruptible, safe_point
from normscope.subject.transforms import apply_transform, undo_transform
from normscope.train import diverging_update, fit, lr_range_test

X, Y = torch.randn(16, 6), torch.randint(3, (16,))
PAIR = (X, Y)


class Uncopyable(nn.Sequential):
    def __deepcopy__(self, memo):
        raise RuntimeError("not me")


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


def layers():
    hidden = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1)]
    return [*hidden, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]


def lived(model):
    """A model in the middle of its life."""
    model[-2].eval() if isinstance(model, nn.Sequential) else None
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    model.register_forward_hook(lambda *_: None)
    return model


def plain():
    return lived(nn.Sequential(*layers()))


def uncopyable():
    return lived(Uncopyable(*layers()))


def attending():
    return lived(Attending())


def hessian(model):
    risk = ns.Risk(model, *PAIR, loss="cross_entropy", statistics="batch")
    operator = ns.hessian(risk)
    operator @ torch.ones(operator.shape[1], 2)
    risk.value(), risk.gradient()


def fisher(model):
    risk = ns.Risk(model, *PAIR, loss="cross_entropy", statistics="frozen")
    ns.top_eigenvalues(ns.fisher(risk), k=2)


LIMIT = {"steps": 2, "seeds": 1, "tol": 0.5}
MEASUREMENTS = {
    "landscape": (plain, lambda m: ns.landscape(m, PAIR, "cross_entropy", distances=[0.0, 0.1])),
    "landscape of attention": (
        attending, lambda m: ns.landscape(m, PAIR, "cross_entropy", distances=[0.0, 0.1])
    ),
    "gradient_noise": (plain, lambda m: ns.gradient_noise(m, [PAIR] * 2, "cross_entropy")),
    "evaluate": (plain, lambda m: ns.evaluate(m, PAIR)),
    "examine": (plain, lambda m: ns.examine(m, PAIR)),
    "order_parameters": (plain, lambda m: ns.order_parameters(m, PAIR, "cross_entropy")),
    "activations": (plain, lambda m: ns.activations(m, [PAIR] * 2)),
    "gradients": (plain, lambda m: ns.gradients(m, [PAIR] * 2, "cross_entropy")),
    "conditioning": (plain, lambda m: ns.conditioning(m, PAIR, "cross_entropy")),
    "hessian": (plain, hessian),
    "fisher": (plain, fisher),
    "bn_regularization": (
        plain, lambda m: ns.bn_regularization(m, PAIR, "cross_entropy", batch_size=4, num_batches=4)
    ),
    "max_stable_lr": (plain, lambda m: ns.max_stable_lr(m, PAIR, "cross_entropy", **LIMIT)),
    "max_stable_lr without copies": (
        uncopyable, lambda m: ns.max_stable_lr(m, PAIR, "cross_entropy", **LIMIT)
    ),
    "what_if": (plain, lambda m: ns.what_if(m, PAIR, ["gamma=0.5"], limits=False)),
    "describe": (plain, lambda m: ns.describe(m, X)),
    "describe attention": (attending, lambda m: ns.describe(m, X)),
    "apply_transform": (plain, lambda m: ns.apply_transform(m, ["fold", "norm-output"])),
    "lr_range_test": (
        uncopyable, lambda m: lr_range_test(m, PAIR, "cross_entropy", steps=10)
    ),
    "diverging_update": (
        uncopyable, lambda m: diverging_update(m, PAIR, "cross_entropy", lr=0.1, max_steps=3)
    ),
}  # fmt: skip

# These may answer with what they know by then.
PARTIAL = {"examine", "what_if", "max_stable_lr", "max_stable_lr without copies", "lr_range_test"}


# ---- at chosen events


def spread(name, points, watched=WATCHED):
    """Interrupt at points spread over all events; those that changed something."""
    make, run = MEASUREMENTS[name]
    model = make()
    run(model)  # imports
    before = fingerprint(model, *PAIR), process()
    total, _ = interrupted(run, model, watched=watched)
    assert (fingerprint(model, *PAIR), process()) == before
    draw, changed, raised = random.Random(name), [], 0
    for k in range(points):
        event = int((k + draw.random()) * total / points) + 1
        raised += interrupted(run, model, event, watched=watched)[1]
        if (fingerprint(model, *PAIR), process()) != before:
            changed.append(event)
            model = make()
            before = fingerprint(model, *PAIR), process()
    return changed, raised


# Python drops what is raised while it deletes a generator that is not used up.
LOST = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@LOST
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_one_interrupt_anywhere(name):
    changed, raised = spread(name, 10)
    assert changed == []
    assert raised >= (0 if name in PARTIAL else 8)


@LOST
@pytest.mark.slow
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_many_interrupts_anywhere(name):
    assert spread(name, 300, watched=("/normscope/subject/", *WATCHED[1:]))[0] == []


@LOST
@pytest.mark.parametrize(
    "change", ["fold", "norm-before-last", "gamma=0.5", "replace:batch->layer"]
)
def test_a_change_in_place_is_made_as_a_whole_or_not_at_all(change):
    def run(model):
        apply_transform(model, ["scale-weights=2", change], inplace=True, example=X)

    model, made = uncopyable(), 0
    values = {name: value.clone() for name, value in model.state_dict().items()}
    total, _ = interrupted(run, model)
    undo_transform(model)
    for k in range(12):
        before = fingerprint(model, *PAIR), process()
        interrupted(run, model, int((k + 0.5) * total / 12) + 1)
        if fingerprint(model, *PAIR) == before[0]:
            with pytest.raises(InputError, match="no transform"):
                undo_transform(model)
        else:
            undo_transform(model)
            made += 1
        assert process() == before[1]
        assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert made < 12


# ---- by a timer


@LOST
@pytest.mark.slow
def test_two_thousand_interrupts_by_a_timer():
    """At random times of the run, measured on this machine: none leaves a trace."""
    draw = random.Random(0)
    models = {name: make() for name, (make, _) in MEASUREMENTS.items()}
    spans = {}
    for name, (_, run) in MEASUREMENTS.items():
        run(models[name])
        began = time.perf_counter()
        run(models[name])
        spans[name] = time.perf_counter() - began
    before = {name: (fingerprint(model, *PAIR)[0], process()) for name, model in models.items()}
    changed, sent = [], 0
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        while sent < 2000:
            name = draw.choice(sorted(MEASUREMENTS))
            found = fingerprint(models[name], *PAIR)
            state = process()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, spans[name]))
                    MEASUREMENTS[name][1](models[name])
                finally:
                    sent += signal.setitimer(signal.ITIMER_REAL, 0)[0] == 0
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if (fingerprint(models[name], *PAIR), process()) != (found, state):
                changed.append(name)
                models[name] = MEASUREMENTS[name][0]()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert changed == []
    assert all(fingerprint(m, *PAIR)[0] == before[name][0] for name, m in models.items())


# ---- the shield itself


def test_every_measurement_is_guarded():
    """By `measurement` or `training`, which give back what is the process's."""
    from normscope.subject import process

    decorated = {process.measurement(len).__code__, process.training(len).__code__}
    for name in ns.__all__:
        value = getattr(ns, name)
        if inspect.isfunction(value):
            first = list(inspect.signature(value).parameters)[:2]
            if first == ["model", "data"]:
                assert value.__code__ in decorated, name


def found_handlers():
    return [signal.getsignal(number) for number in interrupts._SIGNALS]


@contextlib.contextmanager
def handler(number, value):
    before = signal.signal(number, value)
    try:
        yield
    finally:
        signal.signal(number, before)


class Told:
    """A user's handler that notes and does not raise."""

    def __init__(self):
        self.numbers = []

    def __call__(self, number, frame):
        self.numbers.append(number)


class Terminated(BaseException):
    """What a user's handler of SIGTERM raises."""


def raising(*_):
    raise Terminated


@pytest.mark.parametrize(
    "value", [signal.default_int_handler, Told(), raising, signal.SIG_IGN, signal.SIG_DFL]
)
def test_the_handler_is_put_back(value):
    with handler(signal.SIGINT, value):
        with held():
            exchanged = signal.getsignal(signal.SIGINT) is not value
            assert exchanged == callable(value)
            with held(), interruptible(), held():
                pass
        assert signal.getsignal(signal.SIGINT) is value
        with pytest.raises(ZeroDivisionError), held(), interruptible():
            1 / 0  # noqa: B018
        assert signal.getsignal(signal.SIGINT) is value


def test_a_handler_that_is_not_pythons_is_left_alone():
    """Set by another library before Python starts, ``getsignal`` gives None for it."""
    code = """
import ctypes, signal, _signal
from normscope.subject.interrupts import held
libc = ctypes.CDLL(None)
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
told = []
own = kind(told.append)
address = ctypes.cast(own, ctypes.c_void_p).value
libc.signal(signal.SIGINT, address)
known = _signal.getsignal  # knows only what was there when Python started
_signal.getsignal = lambda number: None if number == signal.SIGINT else known(number)
with held():
    signal.raise_signal(signal.SIGINT)
    assert told == [2], told
assert libc.signal(signal.SIGINT, address) == address
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def came_out(function, *args):
    """What a function raises, other than by returning."""
    try:
        function(*args)
    except BaseException as error:
        return error
    return None


def test_noted_until_the_end():
    steps = []

    def run():
        with held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            with held():
                steps.append("inside")
            steps.append("after")
        steps.append("never")

    assert isinstance(came_out(run), KeyboardInterrupt)
    assert steps == ["inside", "after"]
    assert interrupts._state.pending == []


def test_raised_at_once_in_marked_code_and_noted_on_the_way_out():
    steps = []

    def marked():
        with interruptible():
            try:
                signal.raise_signal(signal.SIGINT)
                steps.append("never")
            finally:
                signal.raise_signal(signal.SIGINT)  # a second one while unwinding
                steps.append("unwound")

    def run():
        with held():
            try:
                marked()
            finally:
                signal.raise_signal(signal.SIGINT)  # and a third one while restoring
                steps.append("restored")

    error = came_out(run)
    assert isinstance(error, KeyboardInterrupt)
    assert isinstance(error.__context__, KeyboardInterrupt)
    assert steps == ["unwound", "restored"]


@pytest.mark.parametrize("mark", [safe_point, lambda: interruptible().__enter__()])
def test_what_was_noted_is_raised_where_marked_code_begins(mark):
    steps = []

    def run():
        with held():
            signal.raise_signal(signal.SIGINT)
            mark()
            steps.append("never")

    assert isinstance(came_out(run), KeyboardInterrupt)
    assert steps == []
    with held():
        safe_point()


def test_a_caught_interrupt_leaves_the_outer_marked_code_open():
    with held(), interruptible():
        with pytest.raises(KeyboardInterrupt), held(), interruptible():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGWINCH)


def test_a_handler_that_does_not_raise_leaves_marked_code_open():
    told = Told()
    with handler(signal.SIGTERM, told), held():
        signal.raise_signal(signal.SIGTERM)
        assert told.numbers == []
        with interruptible():
            assert told.numbers == [signal.SIGTERM]
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert len(told.numbers) == 3


def several():
    with held():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.raise_signal(number)


def test_all_noted_signals_are_delivered():
    told = Told()
    with handler(signal.SIGTERM, told), handler(signal.SIGALRM, raising):
        error = came_out(several)
        assert isinstance(error, Terminated)
        assert isinstance(error.__context__, KeyboardInterrupt)
        assert told.numbers == [signal.SIGTERM]


def test_a_handler_that_the_users_code_sets_stays():
    told = Told()
    before = signal.getsignal(signal.SIGINT)
    try:
        with held(), interruptible():
            signal.signal(signal.SIGINT, told)
        assert signal.getsignal(signal.SIGINT) is told
        with held():
            signal.raise_signal(signal.SIGINT)
        assert told.numbers == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_ours_that_is_put_back_later_passes_on():
    with held():
        ours = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, ours)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with held():
            pass
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with held():
            seen.append((found_handlers(), interrupts._state.depth))
            with interruptible():
                safe_point()

    before = found_handlers()
    for spans in (contextlib.nullcontext(), held()):
        with spans:
            depth = interrupts._state.depth
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert seen.pop()[1] == depth
    assert found_handlers() == before


def test_a_measurement_in_another_thread_is_the_same():
    model, found = plain(), []
    before = fingerprint(model)
    thread = threading.Thread(target=lambda: found.append(ns.activations(model, PAIR)))
    thread.start()
    thread.join()
    assert fingerprint(model) == before
    assert found


def test_a_forked_child_is_not_held():
    with held():
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 1
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def test_cost(monkeypatch):
    """By count, as times depend on the machine: two exchanges outermost, none inside another."""
    calls, real = [], interrupts._signal.signal
    monkeypatch.setattr(
        interrupts._signal, "signal", lambda *given: calls.append(given) or real(*given)
    )
    with held():
        assert len(calls) == 1
        with held(), interruptible():
            safe_point()
        assert len(calls) == 1
    assert len(calls) == 2


def test_nothing_is_set_by_an_import():
    code = """
import signal
before = [signal.getsignal(n) for n in sorted(signal.valid_signals())]
import normscope, normscope.diagnose, normscope.train, normscope.subject.interrupts
assert [signal.getsignal(n) for n in sorted(signal.valid_signals())] == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class Slow(nn.Module):
    """A long forward pass."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        signal.raise_signal(signal.SIGINT)
        STEPS.append("too late")
        return self.last(x)


STEPS: list[str] = []


@pytest.mark.parametrize("name", ["gradients", "hessian", "evaluate", "landscape"])
def test_a_long_forward_pass_is_interrupted_at_once(name):
    STEPS.clear()
    with pytest.raises(KeyboardInterrupt):
        MEASUREMENTS[name][1](Slow())
    assert STEPS == []


def test_a_long_loss_is_interrupted_at_once():
    def loss(outputs, targets):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the loss should have ended")

    with pytest.raises(KeyboardInterrupt):
        ns.gradients(plain(), PAIR, loss)


def test_fit_gives_back_modes_and_generators():
    """What is trained may be half trained; the rest comes back."""
    model = plain()
    fit(model, PAIR, "cross_entropy", lr=0.01, steps=2)
    draw, total = random.Random(0), 0
    run = lambda m: fit(m, PAIR, "cross_entropy", lr=0.01, steps=2)  # noqa: E731
    total, _ = interrupted(run, model)
    modes = [module.training for module in model.modules()]
    before = fingerprint(nn.Identity()), process(), modes
    for _ in range(60):
        interrupted(run, model, draw.randrange(1, total))
        after = [module.training for module in model.modules()]
        assert (fingerprint(nn.Identity())[2], process(), after) == (before[0][2], *before[1:])


def test_a_loaders_generator_comes_back():
    data = torch.utils.data.TensorDataset(X, Y)
    own = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=own)
    model = plain()
    run = lambda m: ns.activations(m, loader)  # noqa: E731
    total, _ = interrupted(run, model)
    draw, before = random.Random(0), own.get_state()
    for _ in range(40):
        interrupted(run, model, draw.randrange(1, total))
        assert torch.equal(own.get_state(), before)


def test_two_interrupts_anywhere():
    make, run = MEASUREMENTS["landscape"]
    model = make()
    total, _ = interrupted(run, model)
    draw = random.Random(0)
    before = fingerprint(model), process()
    for _ in range(40):
        first = draw.randrange(1, total)
        assert interrupted(run, model, first, first + draw.randrange(1, 200))
        assert (fingerprint(model), process()) == before
