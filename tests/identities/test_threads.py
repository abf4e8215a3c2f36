"""Other threads run undisturbed while a model is read, and an interrupt leaves nothing patched."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time

import pytest
import torch
import torch._dynamo  # adds filters of warnings
from torch import nn
from torch.utils.checkpoint import checkpoint

import normscope as ns
from fingerprints import fingerprint, process
from injection import WATCHED, interrupted
from normscope.subject.graph import read_graph

X, Y = torch.randn(16, 6, dtype=torch.float64), torch.randint(3, (16,))
PAIR = (X, Y)


def trained():
    """Statistics of its batch norm are not those it began with, so that it can be folded."""
    hidden = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(8, 3))
    model(torch.randn(32, 6))
    return model


READERS = {
    "read_graph": lambda m: read_graph(m, lambda: m(X)),
    "describe": lambda m: ns.describe(m, X),
    "norm before last": lambda m: ns.apply_transform(m, "norm-before-last"),
    "fold": lambda m: ns.apply_transform(m, "fold"),
    "examine": lambda m: ns.examine(m, PAIR, preset="standard"),
}
ROUNDS = {"examine": 1}  # of the others there are more, as they are short


@contextlib.contextmanager
def serving(model):
    """A thread that calls a model all the time, and what went wrong there."""
    x = torch.randn(4, 6)
    expected, wrong = model(x).detach(), []
    started, stop = threading.Event(), threading.Event()

    def serve():
        while not stop.is_set():
            started.set()
            try:
                if not torch.equal(model(x).detach(), expected):
                    wrong.append("another output")
            except BaseException as error:
                wrong.append(repr(error))

    thread = threading.Thread(target=serve)
    thread.start()
    started.wait()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join()


# ---- another thread's model


@pytest.mark.parametrize("name", READERS)
def test_another_threads_model_runs_undisturbed(name):
    model, before = trained(), process()
    other = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    with serving(other) as wrong:
        for _ in range(ROUNDS.get(name, 20)):
            READERS[name](model)
    assert wrong == []
    assert process() == before


@pytest.mark.parametrize("name", ["read_graph", "describe", "norm before last"])
def test_the_same_model_may_run_in_another_thread(name):
    """In evaluation mode, where a forward pass changes nothing."""
    model = trained().eval()
    with serving(model) as wrong:
        for _ in range(20):
            READERS[name](model)
    assert wrong == []


def together(runs):
    """Run functions at once; what each gave or raised."""
    given, gate = [None] * len(runs), threading.Barrier(len(runs))

    def work(i):
        gate.wait()
        try:
            given[i] = runs[i]()
        except BaseException as error:
            given[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given


def test_two_threads_describe_their_own_models():
    models = [trained(), nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))]
    before = process()
    alone = [ns.describe(model, X).to_dict() for model in models]

    def many(model):
        return [ns.describe(model, X).to_dict() for _ in range(20)]

    found = together([lambda model=model: many(model) for model in models])
    assert found == [[one] * 20 for one in alone]
    assert process() == before


def test_two_threads_change_their_own_models():
    models, before = [trained(), trained()], process()
    run = lambda m: [ns.apply_transform(m, "norm-before-last")(X) for _ in range(10)]  # noqa: E731
    found = together([lambda model=model: run(model) for model in models])
    assert [len(outputs) for outputs in found] == [10, 10]
    assert process() == before


def test_two_threads_examine_their_own_models():
    models, before = [trained(), trained()], process()
    prints = [fingerprint(model)[0] for model in models]
    alone = [measured(model) for model in models]
    found = together([lambda model=model: measured(model) for model in models])
    assert found == alone
    assert [fingerprint(model)[0] for model in models] == prints
    assert process() == before


class Switching(nn.Module):
    """Needs all that a measurement switches for the whole process."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.attend, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)
        self.compile(backend="eager")

    def forward(self, x):
        h, _ = self.rnn(x[:, None])
        h, _ = self.attend(h, h, h)
        return checkpoint(self.head, h[:, 0], use_reentrant=False)


@contextlib.contextmanager
def paused(run, model):
    """Another thread has begun to run the model, and goes on at the end or when released."""
    inside, go_on, wrong = threading.Event(), threading.Event(), []

    def wait(*_):
        inside.set()
        go_on.wait()

    def work():
        try:
            run(model)
        except BaseException as error:
            wrong.append(error)
        finally:
            inside.set()

    handle, thread = model.register_forward_pre_hook(wait), threading.Thread(target=work)

    def release():
        go_on.set()
        thread.join()
        handle.remove()
        assert wrong == []

    thread.start()
    inside.wait()
    try:
        yield release
    finally:
        release()


@pytest.mark.parametrize("first_out", [0, 1])
@pytest.mark.parametrize("name", ["read_graph", "describe", "examine"])
def test_measurements_that_overlap_leave_nothing_switched(name, first_out):
    models = [Switching().double(), Switching().double()]
    with torch.compiler.set_stance("force_eager"):
        models[0](X)  # the first compiled run changes nn.Module, by itself
    before = [fingerprint(model) for model in models], process()
    with paused(READERS[name], models[0]) as first, paused(READERS[name], models[1]) as second:
        assert not torch.backends.mha.get_fastpath_enabled()
        (first, second)[first_out]()
        assert not torch.backends.mha.get_fastpath_enabled()  # the other still needs it so
        assert not torch.backends.cudnn.enabled
    assert ([fingerprint(model) for model in models], process()) == before


@pytest.mark.parametrize("reentrant", [True, False])
def test_another_threads_checkpoints_recompute(reentrant):
    """Only those of a measured model do not."""
    calls, x = [], torch.ones(2, requires_grad=True)

    def block(x):
        calls.append(threading.get_ident())
        return x.sin().sin()

    with paused(READERS["describe"], Switching().double()):
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert len(calls) == 2
    torch.testing.assert_close(x.grad, (x.cos() * x.sin().cos()).detach())


def measured(model):
    """What an examination says of the structure; random numbers are the process's."""
    found = ns.examine(model, PAIR, preset="standard")
    layout = found["layout"]
    steps = [(step.name, step.status) for step in found.plan.steps]
    return layout.last, layout.last_input_norm, layout.normalized, len(layout.norms), steps


# ---- interrupts


# Where Python looks for signals: not while a function returns. What such a function has begun
# would be closed with its frame, which no traceback knows.
EVENTS = {
    "watched": (*WATCHED, "_python_dispatch.py", "/torch/fx/", "/torch/nn/modules/module.py"),
    "kinds": ("call", "line"),
}
# `examine` may answer with what it knows by then.
PARTIAL = {"examine"}
LOST = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def spread(name, points):
    """Interrupt at points spread over all events; those that changed something."""
    run, model = READERS[name], trained()
    run(model)  # imports
    before = fingerprint(model, *PAIR), process()
    total, _ = interrupted(run, model, **EVENTS)
    assert (fingerprint(model, *PAIR), process()) == before
    draw, changed, raised = random.Random(name), [], 0
    for k in range(points):
        event = int((k + draw.random()) * total / points) + 1
        raised += interrupted(run, model, event, **EVENTS)[1]
        if (fingerprint(model, *PAIR), process()) != before:
            changed.append(event)
            model = trained()
            before = fingerprint(model, *PAIR), process()
    return changed, raised


@LOST
@pytest.mark.parametrize("name", READERS)
def test_an_interrupt_leaves_nothing_patched(name):
    points = 4 if name == "examine" else 25
    changed, raised = spread(name, points)
    assert changed == []
    assert raised >= (0 if name in PARTIAL else points - 2)


@LOST
@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_interrupts_leave_nothing_patched(name):
    """Over five hundred together with those of a timer."""
    assert spread(name, 40 if name == "examine" else 150)[0] == []


@LOST
@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_interrupts_by_a_timer_leave_nothing_patched(name):
    """At random times of the run, as long as it takes on this machine."""
    run, model, draw = READERS[name], trained(), random.Random(name)
    run(model)
    began = time.perf_counter()
    run(model)
    span = time.perf_counter() - began
    before = fingerprint(model, *PAIR), process()
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    state = process()
    try:
        for _ in range(20 if name == "examine" else 100):
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, span))
                    run(model)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert process() == state
    finally:
        signal.signal(signal.SIGALRM, old)
    assert (fingerprint(model, *PAIR), process()) == before
