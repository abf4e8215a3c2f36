"""A training stopped anywhere, and continued, equals one that never stopped: bit for bit."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.data import FlipAndCrop, load_data
from normscope.train import fit, gamma_decay

STEPS = 23


class Killed(Exception):  # noqa: N818
    """Stands for the end of the process: nothing is written any more."""


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def bits(model, run):
    state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return state, run.losses.tobytes(), run.lrs.tobytes(), run.events


DATA = load_data("digits").rows(slice(150))


def tensors():
    return TensorDataset(DATA.images.double(), DATA.labels)


class NoisyDataset(torch.utils.data.Dataset):
    """Draws from all three global generators, as users' augmentations do."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        noise = torch.randn(1) + random.random() + np.random.rand()  # noqa: NPY002
        return DATA.images[index].double() + 0.1 * noise, DATA.labels[index]


FEEDS = {
    "data set": lambda: (DATA, {"batch_size": 32, "augment": FlipAndCrop(padding=1)}),
    "pair": lambda: ((DATA.images.double(), DATA.labels), {"batch_size": 32}),
    "list": lambda: ([(x.double(), y) for x, y in DATA.batches(32)], {}),
    "shuffled loader": lambda: (DataLoader(tensors(), 32, shuffle=True), {}),
    "loader with its generator": lambda: (
        DataLoader(tensors(), 32, shuffle=True, generator=torch.Generator().manual_seed(5)),
        {},
    ),
    "noisy loader": lambda: (DataLoader(NoisyDataset(), 32, shuffle=True), {}),
}
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
    "adam": {"optimizer": "adam", "lr": 0.01},
}


def complete(feed, optimizer, *, path=None, stops=(), every=1):
    """Train to the end, thrown out after each step of ``stops`` and started anew each time."""
    for stop in (*stops, None):

        def end(event, stop=stop):
            if event.kind == "step" and event.step == stop:
                raise Killed

        data, options = FEEDS[feed]()
        model = network()
        try:
            run = fit(
                model,
                data,
                "cross_entropy",
                **options,
                **OPTIMIZERS[optimizer],
                steps=STEPS,
                schedule="step",
                penalty=gamma_decay(0.01),
                callbacks=[end],
                checkpoint=path,
                checkpoint_every=every,
            )
        except Killed:
            continue
        return bits(model, run)
    raise AssertionError("it never came to its end")


@functools.cache
def unbroken(feed, optimizer):
    return complete(feed, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("feed", FEEDS)
def test_stopped_training_equals_unbroken_training(tmp_path, feed, optimizer):
    # within an epoch (5 batches), at its end, twice in one, and before the first checkpoint
    found = complete(feed, optimizer, path=tmp_path / "c.pt", stops=(2, 7, 10, 11, 11, 18))
    assert found == unbroken(feed, optimizer)


@settings(max_examples=15)
@given(
    stops=st.lists(st.integers(1, STEPS), max_size=4).map(sorted),
    every=st.integers(1, 9),
    feed=st.sampled_from(sorted(FEEDS)),
)
def test_any_stops_and_any_cadence(tmp_path_factory, stops, every, feed):
    path = tmp_path_factory.mktemp("resume") / "c.pt"
    found = complete(feed, "sgd", path=path, stops=stops, every=every)
    assert found == unbroken(feed, "sgd")


def test_helpers_with_a_state_are_continued(tmp_path):
    class Halving:
        """A penalty whose strength depends on how often it was asked."""

        def __init__(self):
            self.strength = 1.0

        def __call__(self, model):
            self.strength *= 0.7
            return gamma_decay(self.strength)(model)

        def state_dict(self):
            return {"strength": self.strength}

        def load_state_dict(self, state):
            self.strength = state["strength"]

    def final(path, stop=None):
        def end(event):
            if event.kind == "step" and event.step == stop:
                raise Killed

        model = network()
        try:
            run = fit(
                model,
                DATA,
                "cross_entropy",
                lr=0.1,
                steps=9,
                penalty=Halving(),
                callbacks=[end],
                checkpoint=path,
                checkpoint_every=1,
            )
        except Killed:
            return None
        return bits(model, run)

    expected = final(None)
    assert final(tmp_path / "c.pt", stop=4) is None
    assert final(tmp_path / "c.pt") == expected


def test_buffers_outside_the_state_dict_are_continued(tmp_path):
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(64), persistent=False)
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            x = x.flatten(1)
            with torch.no_grad():
                self.mean += 0.1 * (x.mean(0) - self.mean)
            return self.linear(x - self.mean)

    def final(path, stop=None):
        def end(event):
            if event.kind == "step" and event.step == stop:
                raise Killed

        torch.manual_seed(0)
        model = Memory()
        options = {"lr": 0.1, "steps": 9, "callbacks": [end], "batch_size": 32}
        try:
            run = fit(model, DATA, "cross_entropy", checkpoint=path, checkpoint_every=1, **options)
        except Killed:
            return None
        return *bits(model, run), model.mean.tolist()

    expected = final(None)
    assert final(tmp_path / "c.pt", stop=4) is None
    assert final(tmp_path / "c.pt") == expected


def test_an_interrupted_training_goes_on(tmp_path):
    def press(event):
        if event.kind == "step" and event.step == 6:
            raise KeyboardInterrupt

    def run(callbacks, path):
        model = network()
        options = {"lr": 0.1, "steps": 9, "batch_size": 32, "checkpoint_every": 4}
        result = fit(model, DATA, "cross_entropy", callbacks=callbacks, checkpoint=path, **options)
        return result.outcome, bits(model, result)

    path = tmp_path / "c.pt"
    assert run([press], path)[0] == "interrupted"
    assert run([], path) == run([], None)


PROGRAM = textwrap.dedent(
    """
    import hashlib, json, os, signal, sys
    import torch
    from torch import nn
    from normscope.data import FlipAndCrop
    from normscope.train import fit

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(144, 10),
    )
    path = sys.argv[1] if len(sys.argv) > 1 else None
    steps, begin, calls = json.loads(sys.argv[2]) if len(sys.argv) > 2 else (0, "", 0)
    taken = made = 0

    def count(frame, kind, called):
        global made
        if made or frame.f_code.co_name == begin:
            made += 1
        if made == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    def report(event):
        global taken
        print(event.kind, event.step, flush=True)
        taken += event.kind == "step"
        if event.kind == "step" and taken == steps:
            sys.setprofile(count)

    run = fit(
        model, "digits", "cross_entropy", lr=0.05, momentum=0.9, steps=200, batch_size=32,
        augment=FlipAndCrop(padding=1), schedule="step", callbacks=[report], checkpoint=path,
        checkpoint_every=3,
    )
    digest = hashlib.sha256(run.losses.tobytes())
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print(json.dumps({"digest": digest.hexdigest(), "outcome": run.outcome}))
    """
)


def run(*arguments):
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)


PLACES = [("report", 1100), ("save", 17_000), ("write_atomically", 84)]  # update, save, file


def last_line(done):
    return done.stdout.splitlines()[-1]


@functools.cache
def never_killed():
    return json.loads(last_line(run()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_process_resumes_to_the_same_bits(tmp_path, seed):
    expected = never_killed()
    assert expected["outcome"] == "finished"
    rng = random.Random(seed)
    path = tmp_path / "c.pt"
    reached = []
    while True:
        # steps of this process, then calls of functions from the begin of one
        begin, calls = rng.choice(PLACES)
        moment = json.dumps([rng.randrange(1, 60), begin, rng.randrange(1, calls)])
        done = run(path, *([moment] if len(reached) < 6 else []))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        reached.append(int(last_line(done).split()[1]))
    assert len(reached) >= 3, reached
    assert json.loads(last_line(done)) == expected
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]
