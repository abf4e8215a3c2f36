"""Charts as files: valid, sharp, and alone in the world."""

import base64
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest

import normscope as ns
from normscope import report
from normscope.errors import InputError, NormscopeError


@pytest.fixture(scope="module")
def chart():
    nets = [ns.mlp([20, 30, 30, 5], norm="batch", gamma=g, bias_variance=0.5) for g in (0.1, 1, 2)]
    return ns.predict(nets, theory=("corrected", "frozen")).chart(title="<script>1 & 2</script>")


def written(chart, folder, ending):
    path = report.save(chart, folder / f"chart{ending}")
    assert path == folder / f"chart{ending}"
    return path.read_bytes()


def test_png(chart, tmp_path):
    data = written(chart, tmp_path, ".png")
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1200  # two panels at twice the nominal size
    assert height > 500
    assert data[-8:-4] == b"IEND"


def test_svg(chart, tmp_path):
    root = ElementTree.fromstring(written(chart, tmp_path, ".SVG"))
    assert root.tag.endswith("svg")


def test_pdf(chart, tmp_path):
    data = written(chart, tmp_path, ".pdf")
    assert data.startswith(b"%PDF-")
    assert b"%%EOF" in data[-32:]


class Elements(HTMLParser):
    """Every element with its attributes; what stands inside <script> is text, as in a browser."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_html_fetches_nothing(chart, tmp_path):
    page = written(chart, tmp_path, ".html").decode()
    assert len(page) < 3_000_000
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "xlink:href", "data"):
            assert attributes.get(name, "data:").startswith(("data:", "#")), (tag, attributes)
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"@import|url\(", style)
    # what the scripts could not load even if they tried
    policies = [a["content"] for tag, a in Elements(page).found if a.get("http-equiv")]
    assert policies == [
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    ]


def test_html_of_a_large_grid_stays_small(tmp_path):
    grid = ns.phase_diagram("relu", np.linspace(0.5, 4, 100), np.linspace(0, 1, 100))
    page = written(grid.chart(), tmp_path, ".html").decode()
    assert len(page) < 3_000_000
    images = [a["src"] for tag, a in Elements(page).found if tag == "img"]
    assert len(images) == 1
    assert base64.b64decode(images[0].partition(",")[2]).startswith(b"\x89PNG")


def test_html_has_a_still_picture_both_grounds_and_safe_names(chart, tmp_path):
    page = written(chart, tmp_path, ".html").decode()
    body = page[page.index("<body>") :]
    still = body[body.index("<svg") : body.index("</svg>") + len("</svg>")]
    ElementTree.fromstring(still)
    assert body.index("<svg") < body.index("<script>")  # there before any script has run
    assert "prefers-color-scheme: dark" in page
    assert page.count("<script>") == page.count("</script>") == 2
    assert "<title>&lt;script&gt;1 &amp; 2&lt;/script&gt;</title>" in page
    assert "@@" not in page


def test_html_without_title_is_named(tmp_path):
    import altair as alt

    bare = alt.Chart(alt.InlineData(values=[{"a": 1}])).mark_point().encode(x="a:Q")
    assert "<title>normscope</title>" in written(bare, tmp_path, ".html").decode()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.jpg", "ends in one of .png, .svg, .pdf, .html. Got 'a.jpg'"),
        ("a", "Got 'a'"),
        ("a.pgn", "Did you mean '.png'"),
        ("no/a.png", "There is no folder"),
    ],
)
def test_bad_paths(chart, tmp_path, name, part):
    with pytest.raises(InputError) as caught:
        report.save(chart, tmp_path / name)
    assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file(chart, tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        report.save(chart, tmp_path / "a.png")


def test_the_converter_is_named_if_missing(chart, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(NormscopeError, match=r"vl-convert-python.*normscope\[report\]"):
        report.save(chart, tmp_path / "a.png")


LIMITED = """
import sys
from pathlib import Path

import normscope as ns
from examinations import hostile
from normscope import report
from normscope.errors import NormscopeError

found = hostile()
import resource
resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
for target in ("a.png", "a.html"):
    try:
        report.save(found.chart("activations"), target)
    except NormscopeError as error:
        assert "ulimit -v" in str(error), error
    else:
        raise AssertionError(target)
page = found.save("page.html").read_text()
assert page.endswith("</html>") and "<figure" not in page and page.count("ulimit -v") > 3
"""


def test_a_limit_of_memory_leaves_charts_out_and_the_process_alive(tmp_path):
    """The engine of the converter would end the whole interpreter."""
    code = LIMITED.replace("LIMIT, LIMIT", "9 * 10**9, 9 * 10**9")
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_python_without_docstrings_is_named(tmp_path):
    code = "import normscope as ns; ns.predict(ns.mlp([5, 4, 3])).chart()"
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], check=False, capture_output=True, text=True
    )
    assert "NormscopeError: Charts cannot be drawn by a Python that drops docstrings" in done.stderr
