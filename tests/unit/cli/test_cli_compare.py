"""``normscope compare`` says what ``compare_examinations`` says."""

import json
import re

import pytest

from examinations import hostile, normalized
from normscope.cli import main
from normscope.results import ExaminationDifference, compare_examinations


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return str(normalized().save(folder / "a.json")), str(hostile().save(folder / "b.json"))


def test_json_is_the_difference(saved, capsys):
    assert main(["compare", *saved, "--json"]) == 0
    found = ExaminationDifference.from_dict(json.loads(capsys.readouterr().out))
    assert found == compare_examinations(normalized(), hostile(), names=saved)


def test_usage_names_both(capsys):
    assert main(["compare", "--help"]) == 0
    assert "usage: normscope compare A B [options]" in capsys.readouterr().out


def test_the_table(saved, capsys):
    assert main(["compare", *saved]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("A  ")
    head = next(line for line in lines if "lambda_max of the loss" in line).split()
    a, b = normalized()["sharpness"].largest, hostile()["sharpness"].largest
    assert [float(x) for x in head[-3:]] == pytest.approx([a, b, b / a], rel=1e-3)
    assert any(re.match(r"\s*appeared\s+ok\s+note\s+Activations grow", line) for line in lines)
    missing = next(line for line in lines if line.split()[:2] == ["regularization", "zeta"])
    assert missing.split()[-2:] == ["-", "-"]
    found = compare_examinations(normalized(), hostile())
    assert f"{len(found.changed('not judged'))} not judged" in lines[-1]


def test_the_page_is_alone_and_escaped(saved, tmp_path, capsys):
    target = tmp_path / "c.html"
    assert main(["compare", *saved, "--page", str(target)]) == 0
    assert f"Wrote {target}" in capsys.readouterr().err
    text = target.read_text(encoding="utf-8")
    assert len(text.encode()) < 3_000_000
    assert "default-src 'none'" in text
    body = text[text.index("<body>") : text.index("<script>")]
    assert "Appeared: Activations grow with depth" in body
    assert "last &lt;b&gt;" in body
    assert '<figure id="ratios">' in body
    assert "<svg" in body


def test_the_page_of_no_difference(saved, tmp_path):
    target = tmp_path / "c.html"
    assert main(["compare", saved[1], saved[1], "--page", str(target)]) == 0
    text = target.read_text(encoding="utf-8")
    assert "No finding appeared, disappeared or changed its severity" in text
    assert "<figure" not in text
    assert "<script" not in text  # no chart, no bundle


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "the first is missing"),
        (["A"], "the second is missing"),
        (["A", "no.json"], "There is no file or folder no.json"),
        (["A", "B", "--page", "p.png"], "A page file ends in .html"),
    ],
)
def test_refusals(words, part, saved, capsys):
    given = {"A": saved[0], "B": saved[1]}
    assert main(["compare", *(given.get(w, w) for w in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err
