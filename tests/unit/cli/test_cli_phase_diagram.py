"""``normscope phase-diagram`` says what ``normscope.phase_diagram`` says."""

import json

import numpy as np
import pytest

import normscope as ns
from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.phase_diagram import OPTIONS
from normscope.results import PhaseDiagram

GRID = ["--weight-variances", "0.5:4:8", "--bias-variances", "0,0.1,0.5"]


def output(words, capsys, *, code=0):
    assert main(["phase-diagram", *map(str, words)]) == code
    return capsys.readouterr()


def test_json_is_the_diagram(capsys):
    found = PhaseDiagram.from_dict(json.loads(output(["tanh", *GRID, "--json"], capsys).out))
    assert found == ns.phase_diagram("tanh", np.linspace(0.5, 4, 8), [0, 0.1, 0.5])


def test_the_table_has_phases_and_the_edge(capsys):
    shown = output(["tanh", *GRID], capsys).out
    lines = shown.splitlines()
    assert lines[0].startswith("tanh: 24 points")
    header = next(i for i, line in enumerate(lines) if "bias_variance" in line)
    assert lines[header].split() == ["bias_variance", "edge_at", "ordered", "edge", "chaotic"]
    rows = [list(map(float, line.split())) for line in lines[header + 1 :]]
    assert [row[0] for row in rows] == [0, 0.1, 0.5]
    assert rows[0][1] == 1  # tanh'(0) = 1, so chi_1 = sigma_w^2 without bias
    grid = np.linspace(0.5, 4, 8)
    for _, edge_at, ordered, edge, chaotic in rows:
        assert ordered == (grid < edge_at).sum()
        assert edge == (grid == edge_at).sum()
        assert chaotic == (grid > edge_at).sum()


def test_a_large_grid_is_shown_in_eleven_rows(capsys):
    words = ["relu", "--weight-variances", "1:3:3", "--bias-variances", "0:1:41"]
    shown = output(words, capsys).out.splitlines()
    rows = [line.split() for line in shown[shown.index("") + 2 :]]
    assert len(rows) == 11
    assert (rows[0][0], rows[-1][0]) == ("0", "1")
    assert {row[1] for row in rows} == {"2"}


def test_no_edge_is_a_dash(capsys):
    words = ["softplus", "--weight-variances", "1,2", "--bias-variances", "0"]
    assert output(words, capsys).out.splitlines()[-1].split()[:2] == ["0", "-"]


def test_a_toml_file(capsys, tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(
        'activation = "tanh"\nweight_variances = "0.5:4:8"\nbias_variances = [0, 0.1, 0.5]'
    )
    assert output(["--config", path], capsys).out == output(["tanh", *GRID], capsys).out
    assert_keys_are_checked(
        OPTIONS, path, lambda file: output(["--config", file], capsys, code=2).err
    )


def test_chart_and_quantity(capsys, tmp_path):
    for quantity, title in (("chi1", "χ_1"), ("correlation_depth", "ξ_c")):
        path = tmp_path / f"{quantity}.svg"
        words = ["tanh", *GRID, "--quantity", quantity, "--chart", path]
        assert output(words, capsys).err == f"Wrote {path}\n"
        assert title in path.read_text()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which activation?", "tanh"]),
        (["tahn"], ["Unknown activation 'tahn'", "Did you mean 'tanh'"]),
        (["tanh", "--weight-variances=-1,2"], ["weight_variances", "not negative. Got -1"]),
        (["tanh", "--bias-variances", "0:1"], ["start:stop:count"]),
        (["tanh", *GRID, "--quantity", "chi", "--chart", "a.svg"], ["Unknown quantity", "'chi1'"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = output(words, capsys, code=2).err
    assert_one_line(message, parts)
