"""``normscope report`` makes the page again, from the data alone."""

import json
import subprocess
import sys

import pytest

from examinations import hostile
from normscope._version import __version__
from normscope.cli import main
from normscope.report import page


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return hostile().save(tmp_path_factory.mktemp("run") / "a.json")


def test_the_page_beside_the_data(saved, capsys):
    assert main(["report", str(saved)]) == 0
    target = saved.with_suffix(".html")
    written = target.read_text(encoding="utf-8")
    assert written == page(hostile())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"Wrote {target} ({target.stat().st_size:,} bytes)" in captured.err


def test_a_folder_json_and_text(saved, tmp_path, capsys):
    target = tmp_path / "p.html"
    assert main(["report", str(saved.parent), "--page", str(target), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["page"] == str(target)
    assert shown["bytes"] == target.stat().st_size
    assert shown["worst"] == "problem"
    assert len(shown["findings"]) == len(hostile().findings)
    assert main(["report", str(saved), "--page", str(target), "--text"]) == 0
    assert capsys.readouterr().out == hostile().summary() + "\n"


def test_data_of_another_version(saved, tmp_path, capsys):
    data = json.loads(saved.read_text()) | {"version": "99.0"}
    file = tmp_path / "b.json"
    file.write_text(json.dumps(data))
    assert main(["report", str(file)]) == 0
    assert "was written by normscope 99.0; this is" in capsys.readouterr().err
    file.write_text(json.dumps(data | {"version": __version__}))
    assert main(["report", str(file)]) == 0
    assert "was written by" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "Which examination?"),
        (["no.json"], "There is no file or folder no.json"),
        (["SAVED", "--page", "p.pdf"], "ends in .html"),
        (["SAVED", "--page", "no/p.html"], "There is no folder no"),
    ],
)
def test_refusals(words, part, saved, capsys):
    assert main(["report", *(str(saved) if w == "SAVED" else w for w in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert part in captured.err


def test_neither_report_nor_compare_needs_torch(saved, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from normscope.cli import main\n"
        f"a, out = {str(saved)!r}, {str(tmp_path)!r}\n"
        "assert main(['report', a, '--page', out + '/r.html']) == 0\n"
        "assert main(['compare', a, a, '--page', out + '/c.html']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").read_text(encoding="utf-8").endswith("</html>")
    assert (tmp_path / "c.html").is_file()
