"""``normscope predict`` says what ``normscope.predict`` says."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

import normscope as ns
from normscope.cli import main
from normscope.cli.predict import OPTIONS
from normscope.results import Prediction, PredictionSet

PAPER = ["mlp:784-1000-1000-1000-10", "--bias-variance", "0.5", "--momentum", "0.9"]
SMALL = "mlp:20-30-30-5"


def output(words, capsys, *, code=0):
    assert main(["predict", *map(str, words)]) == code
    return capsys.readouterr()


def as_json(words, capsys):
    return json.loads(output([*words, "--json"], capsys).out)


def error(words, capsys):
    captured = output(words, capsys, code=2)
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_papers_network(capsys):
    found = as_json(PAPER, capsys)["predictions"]
    assert [p["lambda_max"] for p in found] == pytest.approx([2234.17], abs=0.005)
    assert found[0]["critical_lr"] == pytest.approx(0.001701, abs=5e-7)


def test_json_is_a_prediction_set(capsys):
    words = [*PAPER, "--norm", "batch", "--gamma", "0.1,1", "--samples", "400",
             "--theory", "corrected,wei2019"]  # fmt: skip
    found = as_json(words, capsys)
    nets = [
        ns.mlp([784, 1000, 1000, 1000, 10], bias_variance=0.5, norm="batch", gamma=gamma)
        for gamma in (0.1, 1.0)
    ]
    expected = ns.predict(nets, samples=400, theory=("corrected", "wei2019"))
    assert PredictionSet.from_dict(found) == expected
    assert [p["critical_lr"] for p in found["predictions"]] == [
        p.critical_lr(0.9) for p in expected
    ]
    assert found["momentum"] == 0.9
    assert found["version"] == ns.__version__
    assert found["architecture"] == PAPER[0]
    plain = ns.mlp([784, 1000, 1000, 1000, 10], bias_variance=0.5)
    alone = ns.predict([plain], samples=400, theory=("corrected", "wei2019"))
    assert [p["lambda_max"] for p in found["without_norm"]] == [p.lambda_max for p in alone]


def test_json_is_alone_on_stdout(capsys, tmp_path):
    captured = output([SMALL, "--json", "--chart", tmp_path / "a.svg"], capsys)
    assert captured.out.count("\n") == 1
    assert captured.err == f"Wrote {tmp_path / 'a.svg'}\n"


SETTINGS = [
    (["--activation", "tanh"], {"activation": "tanh"}, {}),
    (["--weight-variance", "1.5"], {"weight_variance": 1.5}, {}),
    (["--bias-variance", "0.2"], {"bias_variance": 0.2}, {}),
    (["--norm", "layer", "--gamma", "0.3"], {"norm": "layer", "gamma": 0.3}, {}),
    (["--norm", "none"], {}, {}),
    (["--last-norm", "mean", "--samples", "50"], {"last_norm": "mean"}, {"samples": 50}),
    (["--last-norm", "layer", "--samples", "50", "--seed", "3"], {"last_norm": "layer"},
     {"samples": 50, "seed": 3}),
    (["--samples", "77"], {}, {"samples": 77}),
    (["--samples", "inf"], {}, {}),
    (["--theory", "frozen"], {}, {"theory": ("frozen",)}),
    (["--parameters", "all"], {}, {"parameters": "all"}),
    (["--norm", "batch", "--samples", "40", "--statistics", "frozen"], {"norm": "batch"},
     {"samples": 40, "statistics": "frozen"}),
    (["--samples", "40", "--level", "homogeneous"], {}, {"samples": 40, "level": "homogeneous"}),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "spec", "call"), SETTINGS, ids=str)
def test_every_flag_reaches_the_api(flags, spec, call, capsys):
    found = PredictionSet.from_dict(as_json([SMALL, *flags], capsys))
    assert found == ns.predict([ns.mlp([20, 30, 30, 5], **spec)], **call)


@pytest.mark.parametrize(("name", "value"), [("kernel", 2), ("stride", 2), ("padding", 1),
                                             ("outputs", 4), ("head", "pool")])  # fmt: skip
def test_every_flag_of_a_cnn(name, value, capsys):
    found = PredictionSet.from_dict(as_json(["cnn:3x9x9:6-8", f"--{name}", value], capsys))
    assert found[0].spec == ns.cnn((3, 9, 9), channels=[6, 8], **{name: value})


def test_branch_scale(capsys):
    words = ["resmlp:30-30-30-4", "--branch-scale", "0.2"]
    found = PredictionSet.from_dict(as_json(words, capsys))
    assert found[0].spec == ns.residual_mlp([30, 30, 30, 4], branch_scale=0.2)


def test_inputs_from_a_file(capsys, tmp_path):
    data = np.random.default_rng(0).normal(size=(12, 20))
    np.save(tmp_path / "x.npy", data)
    found = PredictionSet.from_dict(as_json([SMALL, "--inputs", tmp_path / "x.npy"], capsys))
    assert found[0].lambda_max == ns.predict(ns.mlp([20, 30, 30, 5]), data=data).lambda_max


def test_a_toml_file_holds_the_same_keys_and_flags_win(capsys, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(
        f'[predict]\narchitecture = "{SMALL}"\nnorm = "batch"\ngamma = [0.1, 1]\nsamples = 50\n'
        'theory = ["corrected", "frozen"]\nbias_variance = 0.5\nmomentum = 0.9\n'
    )
    flags = [SMALL, "--norm", "batch", "--gamma", "0.1,1", "--samples", "50", "--theory",
             "corrected,frozen", "--bias-variance", "0.5", "--momentum", "0.9"]  # fmt: skip
    assert as_json(["--config", path], capsys) == as_json(flags, capsys)
    one = as_json(["--config", path, "--gamma", "2"], capsys)["predictions"]
    assert {p["spec"]["layers"][0]["norm"]["gamma"] for p in one} == {2.0}


def test_the_file_knows_every_flag(capsys, tmp_path):
    """A key that the file does not take would be an unknown key, not a bad value."""
    for option in OPTIONS:
        path = tmp_path / "net.toml"
        path.write_text(f"{option.name} = [[]]\n")
        assert f"key '{option.name}'" in error([SMALL, "--config", path], capsys)


def test_the_theory_as_plotted(capsys):
    words = ["cnn:3x32x32:30-60-90", "--stride", "2", "--bias-variance", "0.5", "--norm", "batch",
             "--gamma", "4.1", "--theory", "corrected,wei2019,wei2019-as-plotted"]  # fmt: skip
    shown = output(words, capsys).out
    assert max(map(len, shown.splitlines())) <= 80
    rows = [x.split() for x in shown.splitlines() if x.lstrip().startswith(("none ", "batch "))]
    found = {(row[0], row[2]): float(row[3]) for row in rows}
    assert found["none", "as-plotted"] == pytest.approx(1481.5)
    assert found["batch", "as-plotted"] == pytest.approx(3039, abs=1)
    assert found["none", "wei2019"] > 1e5


def test_the_table_at_80_columns(capsys):
    words = [*PAPER, "--norm", "batch", "--gamma", "0.1,0.5,1", "--samples", "400",
             "--theory", "corrected,frozen,wei2019"]  # fmt: skip
    shown = output(words, capsys).out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert shown.isascii()
    header = next(line for line in lines if "lambda_max " in line).split()
    assert header == ["norm", "gamma", "theory", "lambda_max", "lower", "upper", "trace",
                      "critical_lr"]  # fmt: skip
    rows = [line.split() for line in lines if line.lstrip().startswith(("none ", "batch "))]
    assert len(rows) == 3 + 9
    table = {(row[0], row[1], row[2]): row[3] for row in rows}
    assert table["none", "-", "corrected"] == "2241.8"
    assert table["batch", "1", "corrected"] == "160.33"
    assert table["batch", "1", "wei2019"] == "229.89"


def test_columns_are_aligned(capsys):
    shown = output([*PAPER, "--norm", "batch", "--gamma", "0.1,1"], capsys).out.splitlines()
    start = next(i for i, line in enumerate(shown) if "critical_lr" in line)
    rows = shown[start : start + 4]
    assert len({len(line) for line in rows}) == 1


def test_assumptions_and_flags_stand_below(capsys):
    words = [SMALL, "--norm", "batch", "--gamma", "0", "--theory", "corrected,frozen"]
    shown = " ".join(output(words, capsys).out.split())
    assert "critical_lr = 2 (1 + 0) / lambda_max" in shown
    assert "- Gaussian weights and biases." in shown
    assert "- frozen: Batch statistics are held constant." in shown
    assert "! gamma = 0 in layer(s) 1, 2" in shown
    assert shown.count("! gamma = 0") == 1


def test_no_value_is_a_dash_with_its_reason(capsys):
    shown = output([SMALL, "--last-norm", "batch", "--samples", "50"], capsys).out
    row = next(line for line in shown.splitlines() if line.lstrip().startswith("none"))
    assert row.split()[3] == "-"
    assert "! With batch norm on the outputs only bounds" in shown
    assert "bias variance 0, batch norm on the outputs;" in " ".join(shown.split())


def test_a_standard_error_has_its_column(capsys):
    words = [SMALL, "--last-norm", "layer", "--samples", "50"]
    lines = output(words, capsys).out.splitlines()
    header = next(i for i, line in enumerate(lines) if "s.e." in line)
    shown = dict(zip(lines[header].split(), lines[header + 1].split(), strict=True))
    expected = as_json(words, capsys)["predictions"][0]["standard_error"]
    assert float(shown["s.e."]) == float(f"{expected:.2g}")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_of_80_columns_shows_every_column_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", Terminal())
    words = [*PAPER, "--norm", "batch", "--gamma", "0.1,1", "--last-norm", "layer"]
    assert main(["predict", *words, "--samples", "400"]) == 0
    shown = sys.stdout.getvalue()
    lines = shown.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert any(line.split()[-1:] == ["critical_lr"] and "lambda_max" in line for line in lines)


def test_infinite_rate_in_json(capsys):
    words = [SMALL, "--last-norm", "layer", "--activation", "relu"]
    two = as_json(["mlp:20-30-2", *words[1:]], capsys)["predictions"][0]
    assert two["lambda_max"] == 0.0
    assert two["critical_lr"] == "inf"


def test_the_comparison_that_fails_is_left_out_with_a_note(capsys):
    deep = ["mlp:10-10x500-2", "--weight-variance", "20", "--norm", "batch", "--samples", "50"]
    captured = output([*deep, "--gamma", "0.01", "--theory", "frozen"], capsys)
    assert "Left out, no norm under frozen" in captured.err
    assert "explode" in captured.err
    assert "none" not in captured.out.split("critical_lr =")[0].split("critical_lr")[1]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which network?", "mlp:784"]),
        ([SMALL, "--norm", "bach"], ["Unknown norm 'bach'", "Did you mean 'batch'"]),
        ([SMALL, "--activation", "rleu"], ["Unknown activation 'rleu'", "Did you mean 'relu'"]),
        ([SMALL, "--theory", "wei"], ["Unknown theory 'wei'", "Did you mean 'wei2019'"]),
        ([SMALL, "--last-norm", "men"], ["Unknown last_norm 'men'", "Did you mean 'mean'"]),
        ([SMALL, "--parameters", "al"], ["Unknown parameters 'al'"]),
        ([SMALL, "--gamma", "2"], ["gamma = 2.0 was given", "no norm"]),
        ([SMALL, "--norm", "batch", "--gamma", "-1"], ["gamma must not be negative"]),
        ([SMALL, "--norm", "batch", "--gamma", "nan"], ["gamma must be a finite number"]),
        ([SMALL, "--weight-variance", "-2"], ["weight_variance", "Got -2.0"]),
        ([SMALL, "--norm", "batch", "--samples", "1"], ["at least two samples"]),
        ([SMALL, "--samples", "0"], ["samples must be a positive integer"]),
        ([SMALL, "--momentum", "1"], ["momentum must be at least 0 and below 1"]),
        ([SMALL, "--seed", "-1"], ["seed"]),
        ([SMALL, "--kernel", "3"], ["kernel is an option of cnn"]),
        ([SMALL, "--inputs", "nowhere.npy"], ["There is no file nowhere.npy"]),
        (["resmlp:20-20-4", "--norm", "batch"], ["residual networks covers no norm"]),
        ([SMALL, "--chart", "figure.jpg"], [".png, .svg, .pdf, .html", "figure.jpg"]),
        ([SMALL, "--chart", "nowhere/figure.png"], ["There is no folder nowhere"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_that_says_what_to_do(words, parts, capsys):
    message = error(words, capsys)
    for part in parts:
        assert part in message


def test_inputs_that_are_no_array(capsys, tmp_path):
    for content in ("not an array", ""):
        (tmp_path / "x.npy").write_text(content)
        assert "is not an array" in error([SMALL, "--inputs", tmp_path / "x.npy"], capsys)


def chart_data(path_words, monkeypatch, capsys):
    """The chart that would be written, as Vega-Lite, and what was said on stderr."""
    from normscope import report

    drawn = []
    monkeypatch.setattr(report, "save", lambda chart, path: drawn.append(chart) or path)
    captured = output([*path_words, "--chart", "figure.png"], capsys)
    datasets = drawn[0].to_dict()["datasets"].values()
    return [row for data in datasets for row in data], captured.err


def test_the_chart_is_figure_1(monkeypatch, capsys):
    """No norm beside batch norm, three theories, 41 gammas, whatever one gamma was asked."""
    rows, said = chart_data([*PAPER, "--norm", "batch", "--samples", "400"], monkeypatch, capsys)
    normed = [row for row in rows if row["network"] == "batch norm"]
    assert {row["theory"] for row in normed} == {"corrected", "frozen", "wei2019"}
    gammas = sorted({row["gamma"] for row in normed})
    assert len(gammas) == 41
    assert (gammas[0], gammas[-1]) == (0.1, 4.1)
    assert any(row["network"] == "no norm" for row in rows)
    at_one = {r["theory"]: r["lambda_max"] for r in normed if r["gamma"] == 1.0}
    assert at_one["corrected"] == pytest.approx(160.33, abs=0.005)
    assert "Left out" not in said


def test_the_chart_has_the_gamma_that_was_asked_for(monkeypatch, capsys):
    rows, _ = chart_data([SMALL, "--norm", "batch", "--gamma", "0.25"], monkeypatch, capsys)
    gammas = {row["gamma"] for row in rows}
    assert 0.25 in gammas
    assert len(gammas) == 42


def test_the_chart_keeps_given_gammas_and_theories(monkeypatch, capsys):
    words = [SMALL, "--norm", "batch", "--gamma", "0.5,2", "--theory", "frozen"]
    rows, _ = chart_data(words, monkeypatch, capsys)
    assert {row["gamma"] for row in rows} == {0.5, 2.0}
    assert {row["theory"] for row in rows} == {"frozen"}


def test_the_chart_of_a_plain_network_shows_batch_norm_beside_it(monkeypatch, capsys):
    rows, _ = chart_data([SMALL], monkeypatch, capsys)
    assert {row["network"] for row in rows} == {"no norm", "batch norm"}


def test_the_chart_leaves_out_what_no_theory_covers_and_says_so(monkeypatch, capsys):
    rows, said = chart_data(["resmlp:20-20-20-4"], monkeypatch, capsys)
    assert {row["network"] for row in rows} == {"no norm"}
    assert "Left out, batch norm under corrected: The theory of residual networks" in said
    _, said = chart_data([SMALL, "--norm", "layer"], monkeypatch, capsys)
    assert "Left out, layer norm under wei2019" in said


@pytest.mark.parametrize(("missing", "package"), [("altair", "altair"),
                                                  ("vl_convert", "vl-convert-python")])  # fmt: skip
def test_a_missing_extra_names_the_installation(missing, package, tmp_path):
    """Found before anything is computed, so that nothing is printed but the way out."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from normscope.cli import main; "
        f"sys.exit(main(['predict', {SMALL!r}, '--chart', {str(tmp_path / 'a.png')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"needs the package {package!r}" in done.stderr
    assert "pip install 'normscope[report]'" in done.stderr
    assert done.stderr.count("\n") == 1


MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))
"""
DATA = """
import torch

def loader():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return [(x[:32], None), (x[32:], None)]
"""


@pytest.fixture
def own(tmp_path):
    """A module and its data, as files of the user."""
    for name, text in (("model", MODEL), ("data", DATA)):
        (tmp_path / f"{name}.py").write_text(text)
    return [f"{tmp_path / 'model.py'}:make", "--data", f"{tmp_path / 'data.py'}:loader"]


def test_a_module_on_its_data(own, capsys):
    words = [*own, "--momentum", "0.9", "--statistics", "frozen", "--level", "homogeneous",
             "--parameters", "weight,bias", "--widths", "2,4"]  # fmt: skip
    found = as_json(words, capsys)
    made = Prediction.from_dict(found)
    assert (made.statistics, made.level, made.samples) == ("frozen", "homogeneous", 32)
    assert set(made.per_kind) == {"weight", "bias"}
    assert found["critical_lr"] == made.critical_lr(0.9)
    wider = [Prediction.from_dict(one) for one in found["wider"]]
    assert [one.lambda_max for one in wider] == [made.scaled(k).lambda_max for k in (2, 4)]
    shown = output(words, capsys).out
    assert "3 samples" not in shown
    assert f"{made.scaled(4).lambda_max:.5g}" in shown
    assert "largest shares of lambda_max" in shown


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--norm", "batch"], ["--norm is for architectures"]),
        (["--theory", "wei2019"], ["--theory is for architectures"]),
        (["--widths", "0"], ["width must be a number above 0"]),
        (["--momentum", "2"], ["momentum"]),
        (["--level", "grams"], ["Did you mean 'gram'"]),
        (["--parameters", "conv"], ["selects nothing"]),
        (["--statistics", "moving"], ["'moving'"]),
    ],
    ids=" ".join,
)
def test_bad_input_with_a_module(words, parts, own, capsys):
    message = error([*own, *words], capsys)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("words", "part"),
    [(["resnet20"], "needs --data"), ([SMALL, "--widths", "2"], "--widths is for modules"),
     (["--data", "digits"], "Which network?")],
)  # fmt: skip
def test_a_module_without_data(words, part, capsys):
    assert part in error(words, capsys)
