"""The page of an examination: alone in the world, the same for any names, readable by all."""

import base64
import html
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from examinations import GREEK, QUOTES, SCRIPT, hostile, normalized
from normscope.diagnose.steps import steps_of
from normscope.errors import InputError, NormscopeError
from normscope.report import page, page_fragment, save_page
from normscope.report.page import LARGEST, within_limit
from normscope.report.wording import SECTIONS, meaning, number
from normscope.results import Evidence, Examination, Finding, PredictionSet

VOID = {"meta", "br", "img", "input", "link"}


class Elements(HTMLParser):
    """Elements with attributes, in order, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self._open = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag  # well formed

    def handle_data(self, data):
        if not self._open or self._open[-1] not in ("script", "style"):
            self.text += data

    def named(self, *tags):
        return [(tag, attrs) for tag, attrs in self.found if tag in tags]


@pytest.fixture(scope="module")
def text():
    return page(hostile())


@pytest.fixture(scope="module")
def elements(text):
    return Elements(text)


def test_one_small_file_that_loads_nothing(text, elements):
    assert len(text.encode()) < LARGEST
    assert text.count("window.vegaEmbed=") == 1  # the bundle stands there once
    for tag, attrs in elements.found:
        assert tag not in ("link", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "xlink:href", "data"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, attrs)
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"@import|url\(", style)
    assert [a["content"] for _, a in elements.named("meta") if "http-equiv" in a] == [
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    ]


def renamed(value, names):
    """Data with parts of its strings replaced."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [renamed(v, names) for v in value]
    return {k: renamed(v, names) for k, v in value.items()} if isinstance(value, dict) else value


def test_names_of_the_model_change_nothing_but_text(elements):
    names = {SCRIPT: "first", QUOTES: "second", GREEK: "third", "last <b>": "last"}
    harmless = Examination.from_dict(renamed(hostile().to_dict(), names))
    plain = Elements(page(harmless))
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in plain.found]
    assert [sorted(attrs) for _, attrs in elements.found] == [sorted(a) for _, a in plain.found]
    for name in (SCRIPT, QUOTES, GREEK, "last <b>"):
        assert name in elements.text


def test_a_name_does_not_turn_the_text_after_it():
    turned = page(Examination.from_dict(renamed(hostile().to_dict(), {SCRIPT: "a\u202eb\u2066c"})))
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", turned)
    assert not re.search(r"\\u202[a-e]|\\u206[6-9]", turned)  # in the data of the charts
    assert "a\ufffdb\ufffdc" in Elements(turned).text


def test_scripts_hold_the_names_as_data(text):
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == text.count("<script") == 2
    line = next(x for x in scripts[1].splitlines() if x.startswith("const NORMSCOPE_CHARTS = "))
    assert "<" not in line
    specs = json.loads(line.removeprefix("const NORMSCOPE_CHARTS = ").removesuffix(";"))
    shown = json.dumps(specs, ensure_ascii=False)
    assert all(json.dumps(name, ensure_ascii=False) in shown for name in (SCRIPT, QUOTES, GREEK))


def test_headings_go_down_one_level_at_a_time(elements):
    levels = [int(tag[1]) for tag, _ in elements.named("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_ids_are_unique_and_links_lead_somewhere(elements):
    ids = Counter(a["id"] for _, a in elements.found if "id" in a)
    assert set(ids.values()) == {1}
    links = [a["href"] for _, a in elements.named("a") if "download" not in a]
    assert all(link.removeprefix("#") in ids for link in links)


def test_every_finding_links_to_its_chart_or_numbers(text):
    charts = set(re.findall(r'<(?:figure|tbody) id="([^"]+)"', text))
    articles = re.findall(r"<article.*?</article>", text, re.S)
    assert len(articles) == sum(f.severity != "ok" for f in hostile().findings)
    shown = {name for name in hostile().measurements if re.search(rf'id="m\d+-{name}', text)}
    findings = sorted(
        (f for f in hostile().findings if f.severity != "ok"), key=lambda f: not f.warns
    )
    assert {"layout", "trial", "hessian"} <= shown
    for article, finding in zip(articles, findings, strict=True):
        if not shown & {e.source for e in finding.evidence}:
            continue
        assert set(re.findall(r'href="#([^"]+)"', article)) & charts, article


def test_findings_stand_before_charts_and_gravest_first(text):
    severities = re.findall(r'<article class="finding (?:answer )?(\w+)"', text)
    assert severities == [f.severity for f in hostile().findings if f.severity != "ok"]
    assert text.rindex("<article") < text.index("<figure")


def test_figures_have_a_still_with_a_label(text):
    figures = re.findall(r"<figure.*?</figure>", text, re.S)
    assert len(figures) >= 7
    for one in figures:
        assert re.search(r'<div role="img" aria-label="[^"]{10,}"><svg', one)
        assert "#1f2328" not in one  # the ink is that of the page, on either ground
    body = text[: text.index("<script>")]
    assert body.count("<svg") == len(figures)  # there before any script has run


def test_the_page_follows_from_the_saved_data(text):
    again = Examination.from_json(hostile().to_json())
    assert page(again) == text


def test_sections_have_titles_for_humans(elements):
    for name, result in hostile().measurements.items():
        assert SECTIONS[name].title in elements.text or not hasattr(result, "to_frame")


def test_every_measurement_and_headline_has_words():
    named = {step.name for step in steps_of("full")} | set(normalized().measurements)
    assert named | {"advice"} <= set(SECTIONS)
    assert all(meaning(n.quantity) for e in (hostile(), normalized()) for n in e.numbers)


def test_a_normalized_network_shows_all_charts():
    text = page(normalized())
    for name in ("layout", "trial", "outliers", "conditioning", "density"):
        assert re.search(rf'<figure id="m\d+-{name}-chart1"', text), name
    assert "checks passed" in text


def test_the_answer_stands_above_everything():
    cause = Finding("learning-rate", "problem", "Too <large>", (), "It diverges.", "Use 0.1.", "a")
    note = replace(cause, severity="note", title="Another title")
    text = page(replace(hostile(), answer="PROBLEM: Too <large> [a].", findings=(note, cause)))
    assert f"<title>PROBLEM: {html.escape(hostile().model)}</title>" in text
    body = text[text.index("<header>") : text.index("<script>")]
    order = ["<h1>", "Too &lt;large&gt; [a].", "Use 0.1.", "It diverges.", 'class="model"']
    places = [body.index(part) for part in [*order, 'class="lead"', "<main>", "Another title"]]
    assert places == sorted(places)
    assert body.count("<h1>") == body.count("Too &lt;large&gt;") == body.count("Use 0.1.") - 1 == 1


@pytest.mark.parametrize(
    ("answer", "severity", "shown"),
    [
        ("OK: 25 updates at lr 0.1: fine.", "ok", "25 updates at lr 0.1: fine."),
        ("COULD NOT JUDGE: nothing is known.", "unjudged", "COULD NOT JUDGE: nothing is known."),
        ("", "", "a network"),
    ],
)
def test_the_answer_has_its_severity(answer, severity, shown):
    found = replace(hostile(), model="a network", answer=answer, measurements={}, findings=())
    heading = re.search(r"<h1>(.*?)</h1>", page(found))[1]
    assert heading.endswith(shown)
    assert bool(severity) == ("pill" in heading)
    assert severity in heading


def test_one_learning_rate_at_the_top_and_the_others_under_method():
    numbers = (
        Evidence("lambda_max of the loss (Hessian)", 12.0, source="sharpness"),
        Evidence("local threshold of the learning rate", 0.25, source="sharpness"),
        Evidence("recommended learning rate", 0.0734, low=0.04, high=0.13, source="advice"),
        Evidence("diverges at", 1.254e8, source="stability"),
        Evidence("stops learning above", 16.0, source="stability"),
    )
    text = page(replace(hostile(), numbers=numbers, findings=()))
    head, rest = text.split("</header>")
    assert re.findall(r"<dt>(.*?)</dt>", head) == [
        "your learning rate",
        "recommended learning rate",
    ]
    assert re.findall(r"<dd>(.*?)</dd>", re.sub("</?a[^>]*>", "", head)) == ["50", "0.073"]
    rates = rest[rest.index('id="rates"') :].partition("</table>")[0]
    names = re.findall(r"<tr><td>(.*?)</td><td class=\"num\">(.*?)</td>", rates)
    theory = 2 / hostile()["comparison"].loss_predicted
    assert names == [
        ("your learning rate", "50"),
        ("recommended learning rate", "0.073"),
        ("local threshold of the learning rate", "0.25"),
        ("diverges at", "above 1000"),
        ("stops learning above", "16"),
        ("threshold that mean-field theory predicts for the learning rate", number(theory, 3)),
    ]


def test_what_has_no_content_has_no_section():
    found = hostile()
    parts = {name: found[name] for name in ("data", "hessian", "layout")}
    text = page(replace(found, measurements=parts, findings=()))
    assert '="m1-data"' not in text
    single = text[text.index('<tbody id="m2-hessian"') :].partition("</tbody>")[0]
    assert SECTIONS["hessian"].title in single
    assert 'id="m2-hessian"' not in text.replace('<tbody id="m2-hessian"', "")
    assert '<details class="measured printed" id="m3-layout"' in text  # there is no norm
    assert "<h3>Learning rates" in text


def test_a_section_is_unfolded_where_a_warning_rests_on_it():
    found = normalized()
    cause = Evidence("median kappa", 1e6, 1e3, source="conditioning")
    for severity in ("warning", "note"):
        finding = Finding("ill-conditioned-layer", severity, "a title", (cause,), "a meaning")
        text = page(replace(found, findings=(finding,)))
        assert bool(re.search(r'<section id="m\d+-conditioning"', text)) == (severity == "warning")


def test_a_chart_does_not_repeat_the_heading_of_its_section(text):
    whole = page(normalized())
    for part in (text, whole):
        assert "Gradients by depth" in part
        assert part.count("<h3>Gradients by depth") + part.count("<h2>Gradients by depth") == 1
    questions = [step.question for step in normalized().plan.steps]
    assert not any(question in Elements(whole).text for question in questions)


def test_tables_are_narrow_and_the_data_has_all_columns():
    text = page(normalized())
    heads = re.findall(r"<thead>(.*?)</thead>", text, re.S)
    assert heads
    assert max(head.count("<th ") for head in heads) <= 8
    data = re.findall(
        r'download="(\w+)\.csv" href="data:text/csv;charset=utf-8;base64,(.*?)"', text
    )
    rows = {name: base64.b64decode(code).decode().splitlines() for name, code in data}
    frame = normalized()["conditioning"].to_frame()
    assert len(frame.columns) > 8
    assert rows["conditioning"][0].split(",")[-1] == frame.columns[-1]
    assert len(rows["conditioning"]) == 1 + len(frame)


def test_what_is_missing_is_said():
    steps = hostile().plan.steps
    failed = replace(steps[1], status="failed", reason="lambda_max broke <here>")
    plan = replace(hostile().plan, steps=(steps[0], failed))
    found = replace(
        hostile(), plan=plan, partial="interrupted during 'x'", measurements={}, findings=()
    )
    text = Elements(page(found)).text
    assert "interrupted during 'x'" in text
    assert f"Not measured: {SECTIONS[steps[1].name].title}" in text
    assert "λmax broke <here>" in text  # as everywhere else
    assert "No rule could be applied" in text


def test_measurements_of_another_version_are_named():
    strange = {"type": "Tomorrow<i>", "value": 1.0}
    found = replace(hostile(), measurements={"new thing": strange}, findings=())
    elements = Elements(page(found))
    assert "cannot read measurements of the kind Tomorrow<i>" in elements.text
    assert "New thing" in elements.text


def test_a_page_that_grows_too_large_gets_simpler_stills():
    sizes = {"svg": LARGEST + 1, "png": LARGEST, "none": 10}
    assert len(within_limit(lambda stills: "x" * sizes[stills])) == LARGEST
    with pytest.raises(NormscopeError, match=r"3\.0 MB, above 3 MB"):
        within_limit(lambda _: "x" * (LARGEST + 1))


@pytest.mark.parametrize(("form", "part"), [("png", "<img src="), ("none", "needs JavaScript")])
def test_simpler_stills(form, part):
    from normscope.report.html import figure

    drawn = figure(hostile()["density"].chart().to_dict(), "a", form)
    assert part in drawn.still
    assert "<svg" not in drawn.still


def test_a_sentence_that_a_chart_cuts_is_whole_in_a_page():
    from normscope.report.html import figure

    spec = hostile()["density"].chart().to_dict()
    notes = spec["title"]["subtitle"]
    assert figure(spec, "a", "none").notes == tuple(notes)
    assert figure(spec, "a", "none", sentence=" ".join(notes)).notes == (" ".join(notes),)
    assert figure(spec, "a", "none", sentence="another").notes == tuple(notes)


def test_settings_without_a_value_are_not_shown():
    found = replace(hostile(), measurements={}, findings=())
    silent = replace(found, convention=hostile().convention | {"no_threshold": "", "seed": 0})
    settings = page(silent).partition('<dl class="settings">')[2].partition("</dl>")[0]
    assert "<dt>seed</dt><dd>0</dd>" in settings
    assert "threshold" not in settings
    assert "<dd></dd>" not in settings
    told = page(
        replace(found, convention=found.convention | {"no_threshold": "adam scales its steps"})
    )
    assert "<dt>no local threshold because</dt><dd>adam scales its steps</dd>" in told


def test_sentences_stand_below_their_rows_in_the_page():
    first, *others = normalized()["prediction"]
    plain = [replace(other, flags=()) for other in others]
    flagged = PredictionSet((replace(first, flags=("lambda_max says <why> " * 9,)), *plain))
    found = replace(normalized(), measurements={"prediction": flagged}, findings=())
    text = page(found)
    said = re.findall(r'<tr class="said">(.*?)</tr>', text, re.S)
    assert len(said) == 1
    assert "<p>flags: λ<sub>max</sub> says &lt;why&gt; " in said[0]
    width = int(re.search(r'colspan="(\d+)"', said[0])[1])
    table = text[: text.index('<tr class="said">')].rpartition("<table>")[2]
    assert table.count("<th ") == width


def test_save_page(tmp_path):
    small = replace(hostile(), measurements={})
    target = save_page(small, tmp_path / "p.html")
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match=r"saved as \.html .* or \.json"):
        save_page(hostile(), tmp_path / "p.pdf")
    with pytest.raises(InputError, match="There is no folder"):
        save_page(hostile(), tmp_path / "no" / "p.html")


def test_fragment_is_escaped():
    text = page_fragment(hostile())
    Elements(text)
    assert "<script>" not in text
    assert "last &lt;b&gt;" in text


def test_the_fragment_shows_what_needs_attention_only():
    text = page_fragment(hostile())
    fine = [f.title for f in hostile().findings if f.severity == "ok"]
    assert fine
    assert text.count("<tr>") == 1 + len(hostile().findings) - len(fine)
    assert "<b>ok</b>" not in text
