"""Pages of the ledger: sections in the order of the paper, errors only where there is evidence."""

import math
from dataclasses import replace

import pytest

from normscope.report.claims import card
from normscope.report.panels import panel_chart
from normscope.report.papers import paper_page, papers_page
from normscope.results.ledger import VERDICTS, Ledger, LedgerRow, PaperLedger, shipped_ledger
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
    assert '<details class="contents"><summary>' in text  # one line: links land below it
    assert "scroll-behavior" not in text


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
    assert "1 of 1" in text  # decided, of those that are not blocked
    assert "0 of 0" in papers_page(Ledger([]))
    assert "not run, or are blocked by scale" in text.partition("wei2019-x")[2]  # folded, behind


def judged(rule, observation, verdict="reproduced", parameters=None, **more):
    return row(
        "x", verdict, rule=rule, observation=observation, parameters=parameters or {}, **more
    )


SIGNS = {"parts": {"a": {"mean": 0.5, "se": 0.01, "n": 9}, "b": {"mean": 0.0, "se": 0.1, "n": 9}}}


@pytest.mark.parametrize(
    ("claim", "expected", "found", "distance"),
    [
        (judged("identity", {"error": 0.048}, parameters={"holds": False}),
         "not 0: claimed not to hold", "0.048", "2.2 × 10⁻¹⁴"),
        (judged("identity", {"error": 0.0}), "0 to rounding", "0", "2.2 × 10⁻¹⁴"),
        (judged("bound", {"mean": 0.2, "se": 0.01, "n": 9}), "at least 0", "0.2 ± 0.03", ""),
        (judged("sign", {"mean": 0.2, "se": 0.0, "n": 1, "threshold": 0.5},
                parameters={"direction": "negative"}), "below 0.5", "0.2", ""),
        (judged("number", {"mean": 200.0, "se": 0.0, "n": 1}, expected=100.0,
                parameters={"log10": True}), "100", "200", "2 (1)"),
        (judged("number", {"mean": 3.0, "se": 0.0, "n": 1}, expected=2.0),
         "2", "3", "1 (3 × 10⁻⁹)"),
        (judged("formula", {"sizes": [9], "values": [[1.1, 1.3]], "theory": [1.0]}),
         "1", "1.2", "20 % (130 %) too noisy"),
        (judged("boundary", {"intervals": [[1.0, 1.0]], "line": 0.5}), "0.5", "1", "2 (1)"),
        (judged("count", {"holds": [True, False]}), "true in 2 of 2", "true in 1 of 2", ""),
        (judged("within", {"value": 1.1, "interval": [1.0, 1.2], "n": 9},
                parameters={"expected": 1.0, "slack": 0.5}), "1 ± 0.5", "1.1 (1 to 1.2)", ""),
    ],
)  # fmt: skip
def test_a_card_shows_numbers_of_one_kind(claim, expected, found, distance):
    (part,) = card(claim).parts
    assert (part.expected, part.found, part.distance) == (expected, found, distance)


def test_a_card_lists_its_parts():
    made = card(judged("sign", SIGNS, "undecided", limits="Five seeds; log10 of the ratio."))
    assert [part.verdict for part in made.parts] == ["reproduced", "undecided"]
    assert made.headline == "2 parts: 1 reproduced, 1 undecided"
    assert [part.name for part in made.brief] == ["b", "a"]  # what decided comes first
    assert (made.unit, made.folded) == ("log10 of the ratio", False)
    text = page(made.row)
    assert "<td>above 0</td><td>0.5 ± 0.0" in text
    assert "Numbers: log10 of the ratio." in text
    many = card(judged("sign", {"parts": dict.fromkeys("abcde", SIGNS["parts"]["b"])}))
    assert many.headline == "5 of 5 parts undecided"
    assert many.folded
    assert "5 of 5 parts undecided; a: 0 ± 0.23, expected above 0</summary>" in page(many.row)


def test_every_row_of_the_ledger_has_a_card():
    for one in shipped_ledger():
        made = card(one)
        assert bool(made.parts) == bool(one.observation)
        if len(made.parts) == 1:
            assert made.parts[0].verdict == one.verdict, one.id
        good = sum(part.verdict == "reproduced" for part in made.parts)
        if made.parts:
            assert (good == len(made.parts)) == (one.verdict == "reproduced"), one.id


def test_misprints_and_late_changes_are_told_apart():
    slip = replace(row("slip", "not reproduced", wrong="A factor is missing."), group="misprint")
    late = row("late", "partly", wrong="The factor is 2.", changed="The rule was two-sided.")
    text = page(slip, late)
    listed = text.partition('id="wrong"')[2].partition("</section>")[0]
    assert "pill" not in listed  # a badge belongs to the claim
    assert listed.index("Errors") < listed.index("The factor is 2.") < listed.index("Misprints")
    assert "The paper says: Statement slip." in listed
    assert "not reproduced" not in text.partition('class="counts"')[2].partition("</p>")[0]
    assert text.count("changed after the run") == 2  # in the counts and on the card
    assert "<strong>Changed after the run:</strong> The rule was two-sided." in text
    whole = papers_page(Ledger([PaperLedger("wei2019", (slip, late))]))
    assert whole.count("misprint</span>") == 1


def test_charts_stand_before_the_first_claim_that_names_them():
    figures = [replace(PANEL, title=f"Fig. {name}, means") for name in ("2", "XI", "9")]
    first, second = (replace(row(n), item=i) for n, i in (("c", "Sec. 2"), ("d", "Fig. XI (a)")))
    made = PaperLedger("wei2019", (first, second), {"wei2019/a": "A"}, {"wei2019/a": figures})
    text = paper_page(made)
    order = [text.index(f">{name}<") for name in ("Fig. 2, means", "Fig. 9, means")]
    order += [text.index(f'id="wei2019-{name}"') for name in ("c", "d")]
    assert order == sorted(order)
    assert order[2] < text.index(">Fig. XI, means<") < order[3]


def test_line_and_points_of_a_setting_share_a_colour():
    """Unless they are of one style, where nothing else would tell them apart."""
    names = {"WN, theory": "line", "WN, N = 9": "points", "A": "points", "A: theory": "dashed",
             "B, 1 step": "points", "B, 2 steps": "points"}  # fmt: skip
    curves = tuple(Curve(name, (0.1, 3.0), (1.0, 2.0), style=how) for name, how in names.items())
    colours = {}
    for group in panel_chart(Panel("Fig.", "x", "y", curves)).to_dict()["layer"]:
        scale = group["layer"][0]["encoding"]["color"]["scale"]
        colours |= dict(zip(scale["domain"], scale["range"], strict=True))
    assert colours["WN, theory"] == colours["WN, N = 9"]
    assert colours["A"] == colours["A: theory"]
    assert len(set(colours.values())) == 4


@pytest.mark.parametrize(("x", "below"), [((0.0, 0.5, 40.0), 0.0), ((0.05, 4.2), 0.0)])
def test_an_axis_does_not_start_below_what_is_possible(x, below):
    chart = panel_chart(Panel("Fig.", "time", "y", (Curve("a", x, x),))).to_dict()
    scale = chart["layer"][0]["layer"][0]["encoding"]["x"]["scale"]
    assert scale["domain"][0] == below
    assert scale["domain"][1] > max(x)
    assert not scale["nice"]


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
