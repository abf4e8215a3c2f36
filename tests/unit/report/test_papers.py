"""Pages of the ledger: sections in the order of the paper, errors only where there is evidence."""

import math

import pytest

from normscope.report.panels import panel_chart
from normscope.report.papers import paper_page, papers_page
from normscope.results.ledger import VERDICTS, Ledger, LedgerRow, PaperLedger
from normscope.results.panel import Curve, HeatMap, Panel

CURVES = (
    Curve("network", (0.1, 1.0, 3.0), (1.0, 2.0, 3.0), (0.9, 1.9, 2.9), (1.1, 2.1, 3.1)),
    Curve("theory", (0.1, 3.0), (1.0, 3.0), style="line"),
    Curve("as printed", (0.1, 3.0), (3.0, 1.0), style="dashed"),
    Curve("noise", (0.1, 3.0), (1.0, 3.0), (0.5, 2.0), (2.0, 4.0), "band"),
)
PANEL = Panel("Fig. 2", "gamma", "learning rate", CURVES)


def row(name, verdict="reproduced", experiment="wei2019/a", kind="paper", **more):
    return LedgerRow(
        f"wei2019/{name}", f"Place {name}", f"Statement {name}.", kind, "figure",
        verdict=verdict, experiment=experiment, **more,
    )  # fmt: skip


def page(*rows):
    titles = {"wei2019/a": "Experiment A", "wei2019/b": "Experiment B"}
    return paper_page(PaperLedger("wei2019", rows, titles, {"wei2019/a": (PANEL,)}))


def test_sections_stand_in_the_order_of_the_claims():
    text = page(row("first", experiment="wei2019/b"), row("second"))
    assert text.index("<h2>Experiment B") < text.index("<h2>Experiment A")
    assert "Fig. 2" in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_an_error_of_the_paper_needs_evidence(verdict):
    """The correction was written before the run; a claim that holds all the same is no error."""
    own = page(row("x", verdict, wrong="The factor is 2."))
    assert ("The factor is 2." in own) == (verdict in ("partly", "not reproduced"))
    ours = page(row("x", verdict, kind="ours", wrong="The factor is 2."))
    assert ("The factor is 2." in ours) == (verdict in ("partly", "reproduced"))


def test_texts_of_a_row_cannot_steer_the_page():
    text = page(row("x", observed="<script>1</script>", limits="a < b & c", seeds_needed=12))
    assert "<script>1</script>" not in text
    assert "a &lt; b &amp; c" in text
    assert "About 12 runs would decide." in text


def test_the_page_of_all_papers_links_to_every_figure():
    ledger = Ledger([PaperLedger("wei2019", (row("x"), row("y", "blocked by scale")))])
    text = papers_page(ledger)
    assert 'href="wei2019.html#wei2019-x"' in text
    assert "1 of 1" in text  # judged, of those that are not blocked
    assert "0 of 0" in papers_page(Ledger([]))


def test_a_panel_tells_theory_from_measurement_in_its_legend():
    groups = panel_chart(PANEL).to_dict()["layer"]
    legends = {}
    for group in groups:
        (colour,) = {str(layer["encoding"]["color"]) for layer in group["layer"]}
        first = group["layer"][0]["encoding"]["color"]
        legends[first["scale"]["domain"][0]] = first["legend"]
        assert colour
    assert legends["network"]["symbolType"] == "circle"
    assert legends["theory"]["symbolType"] == legends["as printed"]["symbolType"] == "stroke"
    assert legends["as printed"]["symbolDash"] == [6, 4]
    assert legends["theory"]["symbolDash"] == [1, 0]
    assert legends["noise"]["symbolType"] == "square"
    colours = {tuple(g["layer"][0]["encoding"]["color"]["scale"]["range"]) for g in groups}
    assert len(colours) == 4


@pytest.mark.parametrize("log", [False, True])
def test_a_panel_of_names_of_nothing_positive_and_of_one_point(log):
    """Charts of small runs: they are drawn, whatever is missing."""
    names = Curve("a", ("x", "y"), (1.0, float("nan")), (0.5, 1.0), (2.0, 3.0))
    single = Curve("b", (1.0,), (-1.0,))
    for curves in ((names,), (single,), ()):
        made = panel_chart(Panel("Fig.", "x", "y", curves, log_x=log, log_y=log))
        assert made.to_dict()["title"]["text"] == "Fig."


def test_a_heat_map_has_its_own_cells_in_every_column_and_none_where_runs_diverged():
    z = (1.0, 0.1, math.inf, 0.5, 0.2)
    heat = HeatMap("log10 test loss", (0.1, 0.1, 0.1, 3.0, 3.0), (0.1, 1.0, 10.0, 0.01, 0.1), z=z)
    panel = Panel("Fig. 2", "gamma", "learning rate", (heat, *CURVES[:2]), log_y=True)
    assert Panel.from_json(panel.to_json()) == panel
    chart = panel_chart(panel).to_dict()
    cells, *others = chart["layer"]
    assert len(others) == 2
    assert cells["encoding"]["color"]["legend"]["title"] == "log10 test loss"
    drawn = {(r["value"], r["lr"]): r for r in chart["datasets"][cells["data"]["name"]]}
    assert {k: r["shown"] for k, r in drawn.items()} == pytest.approx(
        {
            (0.1, 0.1): 0.0,
            (0.1, 1.0): -1.0,
            (3.0, 0.01): math.log10(0.5),
            (3.0, 0.1): math.log10(0.2),
        }
    )
    assert drawn[0.1, 1.0]["y"] == pytest.approx(10**-0.5)  # half-way in log10
    assert drawn[3.0, 0.01]["y"] == pytest.approx(0.01)
