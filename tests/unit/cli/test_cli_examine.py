"""``normscope examine`` says what ``examine`` says; bad input is one line, Ctrl-C saves."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.examine import OPTIONS
from normscope.data import load_data
from normscope.diagnose import examine
from normscope.diagnose.steps import STEPS
from normscope.nn import network
from normscope.results import Examination, Plan
from normscope.subject.process import random_state

NET = ["mlp:64-12-12-10,norm=batch", "--data", "digits"]
OWN = """
import random

import numpy as np
import torch
from torch import nn

def make():
    print("my own words")
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

def loader():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(40, 64, generator=generator), torch.arange(40) % 10)] * 2

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def optimizer(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01)

def apart(model, batch):
    return torch.ones((), requires_grad=True).square()

class Strange(nn.Module):  # most of it is in a product that is no layer
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Parameter(torch.randn(64, 170)), nn.Linear(64, 10)

    def forward(self, x):
        return self.head((x[..., None] * self.table).amax(-1))

def nothing():
    return []

def nan():
    x = torch.zeros(40, 64)
    x[3, 5] = float("nan")
    return [(x, torch.arange(40) % 10)]

def nan_model():
    model = make()
    model[1].weight.data[0, 0] = float("nan")
    return model

def no_module():
    return {"a": 1}

def number():
    return 3

def wide():
    return [(torch.zeros(40, 7), torch.arange(40) % 10)]

def failing():
    for _ in range(2):
        yield loader()[0]
        raise OSError("disk gone")

NUMBER = random.random()

def drawn():
    layer = nn.Linear(64, 10)
    layer.weight.data += 0.01 * NUMBER + 0.01 * np.random.rand()
    return nn.Sequential(nn.Flatten(), layer)

def shuffled():
    data = torch.utils.data.TensorDataset(torch.randn(40, 64), torch.arange(40) % 10)
    return torch.utils.data.DataLoader(data, 16, shuffle=True)

def broken():
    raise RuntimeError("no weights here")

def leaves():
    raise SystemExit(4)

class Hungry(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make()

    def forward(self, x):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
"""


def output(words, capsys, *, code=0):
    assert main(["examine", *map(str, words)]) == code
    return capsys.readouterr()


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_examined.py").write_text(OWN)
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("no weights")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_examined", None)


def same(found, wanted):
    """All but the times."""
    assert found.measurements == wanted.measurements
    assert found.findings == wanted.findings
    assert found.numbers == wanted.numbers
    assert found.convention == wanted.convention


def test_json_is_the_examination(capsys):
    words = [*NET, "--lr", 0.5, "--momentum", 0.9, "--seed", 3, "--json"]
    found = Examination.from_dict(json.loads(output(words, capsys).out))
    model = network(NET[0], seed=3)
    same(found, examine(model, "digits", optimizer="sgd", lr=0.5, momentum=0.9, seed=3))


def test_printed_numbers_are_plain(own, capsys):
    """NaN is null, infinity a word; what is saved keeps its tags, and both can be read back."""
    words = ["my_examined:make", "--data", "my_examined:loader", "--save-data", "run.json"]
    printed = output([*words, "--json"], capsys).out
    saved = (own / "run.json").read_text()
    assert "$float" not in printed
    assert "$float" in saved
    [loss] = [n for n in json.loads(printed)["numbers"] if n["quantity"] == "loss"]
    assert loss["low"] is None
    assert loss["value"] > 0
    same(Examination.from_json(printed), Examination.from_json(saved))


def test_batch_size_and_loss_by_name(capsys):
    words = [*NET, "--batch-size", 32, "--loss", "mse", "--json"]
    found = Examination.from_dict(json.loads(output(words, capsys).out))
    batches = load_data("digits").batches(32, one_hot=True)
    same(found, examine(network(NET[0]), batches, "mse", momentum=0))
    assert found.convention["batch"] == 32


def test_what_is_shown(capsys):
    shown = output([*NET, "--lr", "10"], capsys).out
    lines = shown.splitlines()
    assert lines[0].startswith("WARNING: The learning rate 10 is too large: 25 updates take the lo")
    assert "  -> Use a learning rate of about 1." in lines
    assert "MLP 64-" in shown
    assert "1,114 parameters, SGD lr 10: 1 batch of 128 samples" in shown
    assert "  lambda_max of the loss (Gauss-Newton) = " in shown
    assert "checks passed" in shown


def test_a_terminal_gets_colours(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "70")
    shown = output([*NET, "--lr", "10"], capsys).out
    assert "\x1b[" in shown
    plain = " ".join(shown.split())
    assert "The learning rate 10 is too large" in plain
    assert "loss cross_entropy" in plain
    assert "lr 10" in plain


def test_page_and_data(capsys, tmp_path):
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    said = output([*NET, "--page", page, "--save-data", data], capsys).err
    assert said == f"Wrote {data}\nWrote {page}\n"
    saved = Examination.from_json(data.read_text())
    same(saved, examine(network(NET[0]), "digits", momentum=0))
    assert saved.model in page.read_text()


def test_dry_run_measures_nothing(capsys, monkeypatch):
    for name in STEPS:
        monkeypatch.setitem(STEPS, name, replace(STEPS[name], run=None))
    plan = Plan.from_dict(json.loads(output([*NET, "--dry-run", "--json"], capsys).out))
    assert [step.name for step in plan.steps] == [
        "wiring",
        "layout",
        "sharpness",
        "signals",
        "modes",
        "trial",
    ]
    shown = output([*NET, "--dry-run", "--preset", "full"], capsys).out
    seconds, size, unit = re.search(r"about (\S+) s and (\S+) (MB|GB)", shown).groups()
    assert float(seconds) > 0
    assert 0 < float(size) < 1000
    assert unit == "MB"  # of a thousand parameters
    assert "stability: Which learning rate" in shown


@pytest.mark.parametrize(
    ("severity", "code"), [("note", 1), ("warning", 1), ("problem", 0), (None, 0)]
)
def test_fail_on(severity, code, capsys):
    """A learning rate that is too large is a warning, as long as the loss falls."""
    asked = [] if severity is None else ["--fail-on", severity]
    shown = output([*NET, "--lr", "10", *asked], capsys, code=code).out
    assert "WARNING" in shown
    assert "PROBLEM" not in shown


def test_what_the_user_wrote(own, capsys):
    options = ["--data", "my_examined:loader", "--preset", "standard", "--json"]
    by_name = output(["my_examined:make", *options], capsys)
    assert by_name.err == "my own words\n"  # stdout is JSON alone
    by_file = output([own / "my_examined.py:make", *options], capsys).out
    first, second = (Examination.from_dict(json.loads(t)) for t in (by_name.out, by_file))
    same(first, second)
    assert first.convention["batch"] == 40


def test_the_seed_is_that_of_the_users_code_too(own, capsys):
    words = ["my_examined:drawn", "--data", "my_examined:shuffled", "--json"]
    rest = others()

    def examined(seed):
        sys.modules.pop("my_examined", None)  # numbers are drawn on import as well
        torch.rand(seed)
        before = torch.get_rng_state()
        text = output([*words, "--seed", seed], capsys).out
        assert torch.equal(torch.get_rng_state(), before)
        found = Examination.from_dict(json.loads(text))
        return [found["sharpness"].largest, found["gradients"].loss]

    first = examined(3)
    assert examined(3) == pytest.approx(first, rel=1e-5)  # rounding depends on memory addresses
    assert examined(4) != pytest.approx(first, rel=1e-3)
    assert others() == rest


def others():
    """States of the generators of numpy and Python."""
    state = random_state(torch.device("cpu"))
    return repr(state["numpy"]), state["python"]


@pytest.mark.parametrize(
    "loss", ["my_examined:loss", "my_examined:loss_fn", "torch.nn:CrossEntropyLoss"]
)
def test_a_loss_of_the_user(loss, own, capsys):
    flag = "--loss-fn" if loss == "my_examined:loss_fn" else "--loss"
    words = ["my_examined:make", "--data", "my_examined:loader", flag, loss, "--json"]
    found = Examination.from_dict(json.loads(output(words, capsys).out))
    assert found["sharpness"].largest > 0
    plain = Examination.from_dict(json.loads(output([*words[:3], "--json"], capsys).out))
    smoothed = loss == "my_examined:loss"
    assert (found["gradients"].loss == pytest.approx(plain["gradients"].loss)) != smoothed


def test_an_optimizer_of_the_user(own, capsys):
    words = ["my_examined:make", "--data", "my_examined:loader", "--lr", "10", "--optimizer"]
    shown = output([*words, "my_examined:optimizer"], capsys).out
    assert "local threshold of the learning rate = " not in shown  # RMSprop has none
    assert "local threshold of the learning rate = " in output([*words, "sgd"], capsys).out


def test_a_toml_file(capsys, tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(
        f'[examine]\nmodel = "{NET[0]}"\ndata = "digits"\nlr = 0.5\nmomentum = 0.9\n'
        'preset = "fast"\nfail-on = "problem"\njson = true'
    )
    found = Examination.from_dict(json.loads(output(["--config", path], capsys).out))
    same(found, examine(network(NET[0]), "digits", lr=0.5, momentum=0.9))
    assert_keys_are_checked(
        OPTIONS, path, lambda file: output(["--config", file], capsys, code=2).err
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which model?", "resnet20"]),
        (["mlp:64-6-10"], ["Which data?"]),
        (["no_such:make", "--data", "digits"], ["ModuleNotFoundError", "'no_such'"]),
        (["none.py:make", "--data", "digits"], ["There is no file none.py"]),
        (["my_examined:makee", "--data", "digits"], ["Did you mean 'make'", "Known names: "]),
        (["my_examined.py", "--data", "digits"], ["my_examined.py:make"]),
        (["my_examined:mkae", "--data", "digits"], ["has no 'mkae'", "'make'"]),
        (["my_examined:no_module", "--data", "digits"], ["gives a dict, not a torch module"]),
        (["my_examined:number", "--data", "digits"], ["gives an int, not a torch module"]),
        (["my_examined", "--data", "digits"], ["'my_examined'", "module:make or file.py:make"]),
        (["mlp:64-6-10", "--data", "my_examined"], ["module:loader or file.py:loader"]),
        (["my_examined:make", "--data", "my_examined:wide"],
         ["cannot be run on the first batch", "float32 (40, 7), targets int64 (40,)"]),
        (["my_examined:make", "--data", "my_examined:failing", "--preset", "standard"],
         ["loader failed at batch 1: OSError: disk gone (my_examined.py, line"]),
        (["my_examined:broken", "--data", "digits"], ["no weights here", "my_examined.py, line"]),
        (["my_examined:leaves", "--data", "digits"], ["SystemExit: 4"]),
        (["my_examined:make", "--data", "my_examined:nothing"], ["There are no batches"]),
        (["my_examined:make", "--data", "my_examined:nan"], ["hold nan at index (3, 5)"]),
        (["my_examined:make", "--data", "my_examined:loader", "--batch-size", "8"],
         ["batch_size=8 cannot be set here", "brings its own batches"]),
        (["my_examined:Hungry", "--data", "digits"], ["Memory ran out", "8 samples"]),
        (["resnet20", "--data", "digits"], ["cannot be run on the first batch"]),
        (["resnt20", "--data", "digits"], ["Unknown network 'resnt20'"]),
        (["mlp:64-6-10", "--data", "digitz"], ["Unknown data set", "'digits'"]),
        ([*NET, "--loss", "mes"], ["Unknown loss 'mes'"]),
        ([*NET, "--optimizer", "sdg"], ["Unknown optimizer 'sdg'", "'sgd'"]),
        ([*NET, "--preset", "fats"], ["Unknown preset 'fats'", "'fast'"]),
        ([*NET, "--lr", "-1"], ["lr must be a number above 0"]),
        ([*NET, "--lr", "high"], ["--lr", "Expected a number", "'high'"]),
        ([*NET, "--momentum", "1.5"], ["momentum must be at least 0 and below 1"]),
        ([*NET, "--max-seconds", "0"], ["max_seconds must be a number above 0"]),
        ([*NET, "--device", "cudda"], ["device 'cudda' cannot be used"]),
        ([*NET, "--seed", "-3"], ["seed must be an integer"]),
        ([*NET, "--fail-on", "problm"], ["Unknown severity 'problm'", "'problem'"]),
        ([*NET, "--weights", "none.pt"], ["There is no file none.pt"]),
        ([*NET, "--weights", "other.pt"], ["other.pt does not fit", "Missing key(s)", "layer1.w"]),
        ([*NET, "--weights", "text.pt"], ["text.pt holds no weights", "model.state_dict()"]),
        ([*NET, "--weights", "list.pt"], ["list.pt holds a list"]),
        ([*NET, "--page", "page.pdf"], [".html"]),
        ([*NET, "--page", "nowhere/page.html"], ["There is no folder nowhere"]),
        ([*NET, "--save-data", "data.txt"], [".json"]),
        ([*NET, "--save-data", "nowhere/data.json"], ["There is no folder nowhere"]),
        ([*NET, "--presett", "fast"], ["unknown flag --presett", "--preset"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_input_is_one_line(words, parts, capsys, own):
    said = output(words, capsys, code=2)
    message = said.err.replace("my own words\n", "")
    assert said.out == ""
    assert message.startswith("normscope examine: error: ")
    assert_one_line(message, parts)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["my_examined:nan_model", "--data", "digits"],
         "PROBLEM: The parameter '1.weight' holds NaN or infinite values"),
        (["my_examined:make", "--data", "my_examined:loader", "--loss-fn", "my_examined:apart"],
         "WARNING: 100 % of the parameters (first '1.weight') have no effect on the loss"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_trained_is_a_finding(words, first, capsys, own):
    """The measurements that fail for it are listed, so that it is done in part only."""
    shown = output(words, capsys, code=3)
    assert shown.out.startswith(first)
    assert "NOT COMPLETE" in shown.out


def test_no_batch_of_three_is_half_an_error(own, capsys):
    """A batch of three things needs a loss that takes it."""
    (own / "my_examined.py").write_text(
        OWN + "\ndef triples():\n    x, y = loader()[0]\n    return [(x, y, y)]\n"
        "\ndef first(model, batch):\n    return loss_fn(model, batch[:2])\n"
    )
    words = ["my_examined:make", "--data", "my_examined:triples"]
    assert "Got 3 items" in output(words, capsys, code=2).err
    assert "lambda_max" in output([*words, "--loss-fn", "my_examined:first"], capsys).out


def failing(error, *, times=1):
    """A measurement that raises before it is made."""
    left = [error] * times
    run = STEPS["sharpness"].run

    def broken(subject, results):
        if left:
            raise left.pop()
        return run(subject, results)

    return replace(STEPS["sharpness"], run=broken)


def test_memory_that_runs_out_halves_the_batch(capsys, monkeypatch):
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    monkeypatch.setitem(STEPS, "sharpness", failing(error, times=2))
    found = Examination.from_dict(json.loads(output([*NET, "--json"], capsys).out))
    assert found.notes == (
        "Memory ran out during 'sharpness'; from there on batches of 64 samples were used.",
        "Memory ran out during 'sharpness'; from there on batches of 32 samples were used.",
    )
    monkeypatch.undo()
    x, y = next(iter(load_data("digits").batches(128)))
    wanted = examine(network(NET[0]), [(x[:32], y[:32])])["sharpness"]
    assert found["sharpness"].largest == pytest.approx(wanted.largest, rel=1e-4)


def test_a_measurement_that_fails_leaves_the_rest_and_exits_3(capsys, monkeypatch):
    monkeypatch.setitem(STEPS, "sharpness", failing(ZeroDivisionError("a bug")))
    shown = output(NET, capsys, code=3).out
    assert "sharpness failed: ZeroDivisionError: a bug" in shown
    assert "loss = " in shown


def test_what_could_not_be_judged_exits_3(capsys, own):
    """A finding at or above --fail-on counts more; notes and could not judge are none such."""
    words = ["my_examined:Strange", "--data", "my_examined:loader", "--optimizer", "adam"]
    shown = output(words, capsys, code=3).out
    assert "Could not judge: only 6% of the parameters" in shown  # below a warning about the data
    assert output([*words, "--fail-on", "problem"], capsys, code=3).out
    first = json.loads(output([*words, "--json"], capsys, code=3).out)["findings"][0]
    assert (first["rule"], first["severity"]) == ("coverage", "unjudged")


def test_no_time_for_all(capsys, monkeypatch, machine):
    monkeypatch.setitem(STEPS, "sharpness", replace(STEPS["sharpness"], gradients=1e9))
    shown = output([*NET, "--max-seconds", "60"], capsys, code=3).out
    assert "sharpness left out: takes about" in shown
    assert "of max_seconds" in shown


@pytest.mark.parametrize(
    ("error", "severity", "code"),
    [(RuntimeError("oh"), "note", 1), (RuntimeError("oh"), "problem", 3),
     (KeyboardInterrupt(), "note", 3)],
)  # fmt: skip
def test_a_grave_finding_counts_more_than_a_missing_measurement(
    error, severity, code, capsys, monkeypatch
):
    monkeypatch.setitem(STEPS, "signals", failing(error))
    shown = output([*NET, "--lr", "10", "--fail-on", severity], capsys, code=code).out
    assert "The learning rate 10 is" in shown
    assert "NOT COMPLETE" in shown


def test_interruption_saves_what_is_known(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(STEPS, "sharpness", failing(KeyboardInterrupt()))
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    asked = ["--page", page, "--save-data", data, "--fail-on", "note"]
    shown = output([*NET, *asked], capsys, code=3)
    assert "NOT COMPLETE: interrupted during 'sharpness'" in shown.out
    saved = Examination.from_json(data.read_text())
    assert "layout" in saved.measurements
    assert "sharpness" not in saved.measurements
    statuses = [step.status for step in saved.plan.steps]
    assert statuses == ["ok", "ok", "interrupted", *["left out"] * 3]
    assert "interrupted" in page.read_text()


SIGNALS = """
import signal
from normscope.diagnose import planning
from torch import nn

planning.ENOUGH = float("inf")  # as many passes before the first measurement on every machine
# the background job of a shell ignores Ctrl-C, and so do the processes that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x):
        Net.calls += 1
        if Net.calls == CALLS:
            for name in NAMES:
                signal.raise_signal(getattr(signal, name))
        return self.inner(x.flatten(1))
"""


@pytest.mark.parametrize(
    ("calls", "names", "code"),
    [(1, ["SIGINT"], 130), (100, ["SIGINT"], 3), (100, ["SIGTERM"], 3), (100, ["SIGHUP"], 3),
     (1, ["SIGTERM"], 130), (100, ["SIGINT"] * 3, 3), (100, ["SIGHUP", "SIGTERM", "SIGINT"], 3)],
)  # fmt: skip
def test_signals_in_a_process_of_its_own(calls, names, code, tmp_path):
    """Real ones: before the first measurement there is nothing to save."""
    text = SIGNALS.replace("CALLS", str(calls)).replace("NAMES", repr(names))
    (tmp_path / "signals.py").write_text(text)
    command = [sys.executable, "-m", "normscope", "examine", "signals:Net", "--data", "digits"]
    command += ["--preset", "standard", "--save-data", "data.json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "data.json").exists() == (code == 3)
    if code == 3:
        assert Examination.from_json((tmp_path / "data.json").read_text()).partial
        assert "NOT COMPLETE: interrupted" in done.stdout


def test_what_ignores_a_signal_goes_on_to(tmp_path):
    """``nohup`` has the hangup ignored."""
    text = SIGNALS.replace("CALLS", "100").replace("NAMES", "['SIGHUP']")
    (tmp_path / "signals.py").write_text(text)
    command = [sys.executable, "-m", "normscope", "examine", "signals:Net", "--data", "digits"]
    ignoring = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    ignoring += "os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", ignoring, *command, "--preset", "standard"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_data_come_first_and_a_second_interrupt_skips_the_page(capsys, monkeypatch, tmp_path):
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    seen = []

    def drawing(*_):
        seen.append(Examination.from_json(data.read_text()).partial)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the drawing should have ended")

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    monkeypatch.setitem(STEPS, "sharpness", failing(KeyboardInterrupt()))
    monkeypatch.setattr(Examination, "save", drawing)
    shown = output([*NET, "--page", page, "--save-data", data], capsys, code=3)
    assert seen == ["interrupted during 'sharpness'"]
    assert shown.err.splitlines() == [
        f"Wrote {data}", "Drawing the page; press Ctrl-C again to skip it", f"Skipped {page}"
    ]  # fmt: skip
    assert "NOT COMPLETE" in shown.out
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_interrupts_after_the_first_do_not_cost_the_data(capsys, monkeypatch, tmp_path):
    """While it is written they are noted only, and then skip the page."""
    from normscope.cli import delivery

    page, data = tmp_path / "page.html", tmp_path / "data.json"
    real = delivery.write_atomically

    def writing(path, content):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        real(path, content)

    monkeypatch.setattr(delivery, "write_atomically", writing)
    monkeypatch.setattr(Examination, "save", lambda *_: pytest.fail("should be skipped"))
    shown = output([*NET, "--page", page, "--save-data", data], capsys, code=3)
    assert Examination.from_json(data.read_text()).partial == "interrupted during 'layout'"
    assert f"Skipped {page}" in shown.err
    assert "NOT COMPLETE" in shown.out
