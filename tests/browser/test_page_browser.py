"""Pages in a headless Chromium: charts with marks and hover, no requests, no errors, any screen.

Run by `make test-browser`, which installs playwright; NORMSCOPE_CHROMIUM names the browser.
"""

import os
import re
import shutil
from dataclasses import replace

import pytest

from examinations import SCRIPT, complete, hostile, normalized
from normscope import report
from normscope.diagnose.steps import steps_of
from normscope.results import PredictionSet, compare_examinations

pytestmark = pytest.mark.browser

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
DRAWN = "document.documentElement.dataset.charts === 'drawn'"
UNFOLDED = f"{DRAWN} && !document.querySelector('figure:not(.drawn)')"
UNFOLD = "document.querySelectorAll('details').forEach(details => { details.open = true; })"
SCREEN = 900  # pixels
SCREENS = {"fast": 6, "complete": 12}  # of a page, at most, at a width of 1200
AREA_TEXT = 4.5  # contrast that WCAG AA asks of text


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("NORMSCOPE_CHROMIUM") or shutil.which("chromium")
    assert path, "No chromium found: install it, or name it in NORMSCOPE_CHROMIUM."
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    hostile().save(folder / "hostile.html")
    normalized().save(folder / "normalized.html")
    compare_examinations(normalized(), hostile()).save(folder / "difference.html")
    report.save(normalized()["regularization"].chart(), folder / "chart.html")
    wordy().save(folder / "wordy.html")
    complete().save(folder / "complete.html")
    fast().save(folder / "fast.html")
    partial().save(folder / "partial.html")
    return folder


def fast():
    """What the preset that is used most makes."""
    kept = [step.name for step in steps_of("fast")]
    found = {name: r for name, r in normalized().measurements.items() if _fast(name, kept)}
    steps = tuple(step for step in normalized().plan.steps if step.name in kept)
    return replace(normalized(), measurements=found, plan=replace(normalized().plan, steps=steps))


def _fast(name, kept):
    steps = [step for step in normalized().plan.steps if step.name in kept]
    return any(name in (step.name, *step.gives) for step in steps)


def wordy():
    """An examination whose tables hold long sentences, and many measurements that failed."""
    sentence = ("a sentence of many words " * 30,)
    flagged = PredictionSet(tuple(replace(p, flags=sentence) for p in normalized()["prediction"]))
    steps = normalized().plan.steps
    failed = [replace(s, status="failed", reason="a reason " * 12) for s in steps]
    return replace(
        normalized(),
        measurements={"prediction": flagged},
        findings=(),
        plan=replace(normalized().plan, steps=(*steps, *failed)),
    )


def partial():
    """An examination that was interrupted after its first measurements with charts."""
    first = dict(list(normalized().measurements.items())[:8])
    return replace(normalized(), measurements=first, partial="interrupted during 'x'")


class Visit:
    """One page in one window, with all that it says and asks for."""

    def __init__(self, browser, path, size="desktop", ground="light", **options):
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=ground, **options
        )
        self.context.set_default_timeout(600_000)  # ms; a guard against hanging only
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def drawn(self):
        """The page with all its charts, those too that were folded."""
        self.page.wait_for_function(DRAWN)
        self.page.evaluate(UNFOLD)
        self.page.wait_for_function(UNFOLDED)
        return self.page

    def quiet(self):
        assert self.said == []
        assert len(self.asked) == 1  # the file itself


@pytest.mark.parametrize("name", list(SCREENS))
def test_a_page_is_not_longer_than_its_reader_is_patient(browser, pages, name):
    with Visit(browser, pages / f"{name}.html") as visit:
        visit.page.set_viewport_size({"width": 1200, "height": SCREEN})
        visit.page.wait_for_function(DRAWN)
        high = visit.page.evaluate("document.documentElement.scrollHeight")
        assert high <= SCREENS[name] * SCREEN


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", ["fast", "hostile"])
def test_the_answer_is_seen_first_and_the_network_without_scrolling(browser, pages, name, size):
    with Visit(browser, pages / f"{name}.html", size) as visit:
        heading = visit.page.locator("h1").bounding_box()
        assert heading["y"] < 80
        model = visit.page.locator(".model").bounding_box()
        assert model["y"] + model["height"] < SIZES[size][1]


def test_a_link_unfolds_what_it_leads_to(browser, pages):
    with Visit(browser, pages / "hostile.html") as visit:
        page = visit.page
        page.wait_for_function(DRAWN)
        figure = page.locator("details.measured figure").first
        assert not figure.is_visible()
        page.evaluate("id => { location.hash = id; }", figure.get_attribute("id"))
        page.wait_for_function("id => document.getElementById(id).matches('.drawn')",
                               arg=figure.get_attribute("id"))  # fmt: skip
        assert figure.is_visible()
        assert marks(figure).count() > 0
        visit.quiet()


def marks(figure):
    """Marks that show data, in what the script drew."""
    return figure.locator(".live .role-mark path, .live .role-mark line")


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize(
    "name", ["hostile", "normalized", "complete", "partial", "difference", "chart"]
)
def test_every_chart_has_marks_and_nothing_complains(browser, pages, name, size, ground):
    with Visit(browser, pages / f"{name}.html", size, ground) as visit:
        page = visit.drawn()
        figures = page.locator("figure").all()
        assert figures
        for figure in figures:
            assert "drawn" in figure.get_attribute("class")
            assert not figure.locator(".still").is_visible()
            assert marks(figure).count() > 0, figure.get_attribute("id")
            box = figure.locator(".live svg").bounding_box()
            assert box["height"] > 40
            wide, room = figure.evaluate("f => [f.scrollWidth, f.clientWidth]")
            assert wide <= room, figure.get_attribute("id")
        wide, room = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= room
        visit.quiet()


def hovered(page, figure):
    """The text of the first tooltip that a mark of the figure brings up."""
    tip = page.locator("#vg-tooltip-element")
    chosen = figure.locator(".live .role-mark:is(.mark-symbol, .mark-rect) path")
    figure.scroll_into_view_if_needed()
    for mark in chosen.all():
        box = mark.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        if tip.count() and "visible" in (tip.get_attribute("class") or ""):
            return tip.inner_text()
    return ""


@pytest.mark.parametrize("name", ["hostile", "normalized", "complete", "difference"])
def test_hover_shows_the_numbers_of_every_chart(browser, pages, name):
    with Visit(browser, pages / f"{name}.html") as visit:
        page = visit.drawn()
        for figure in page.locator("figure").all():
            text = hovered(page, figure)
            assert re.search(r"\d", text), figure.get_attribute("id")
        visit.quiet()


def test_names_are_text_in_tooltips_too(browser, pages):
    with Visit(browser, pages / "hostile.html") as visit:
        page = visit.drawn()
        figure = page.locator("figure[id$='activations-chart1']")
        assert SCRIPT in hovered(page, figure)
        assert page.locator("#vg-tooltip-element script").count() == 0
        assert page.evaluate("[...document.scripts].length") == 2
        visit.quiet()  # no dialog


def test_findings_link_to_their_charts_and_charts_to_findings(browser, pages):
    with Visit(browser, pages / "hostile.html") as visit:
        page = visit.drawn()
        page.emulate_media(reduced_motion="reduce")  # jumps instead of gliding
        links = page.locator("article.finding .links a")
        assert links.count() >= page.locator("article.finding").count()
        for link in links.all():
            link.click()
            target = page.locator(link.get_attribute("href"))
            if target.evaluate("e => e.tagName") == "FIGURE":
                assert marks(target).count() > 0
            box = target.bounding_box()
            assert -1 < box["y"] < 450  # below the line of links, at the top, to a pixel
        back = page.locator("section .links a[href^='#f']").first
        back.click()
        assert -1 < page.locator(back.get_attribute("href")).bounding_box()["y"] < 450
        visit.quiet()


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", ["hostile", "difference", "chart"])
def test_without_javascript_the_stills_stand(browser, pages, name, size):
    with Visit(browser, pages / f"{name}.html", size, "dark", java_script_enabled=False) as visit:
        visit.page.evaluate(UNFOLD)
        figures = visit.page.locator("figure").all()
        assert figures
        for figure in figures:
            still = figure.locator(".still svg")
            assert still.is_visible()
            assert still.bounding_box()["height"] > 40
            assert not figure.locator(".live").is_visible()
            ink = still.locator("text").first.evaluate("t => getComputedStyle(t).fill")
            assert min(rgb(ink)) > 150  # light letters on the dark ground
        visit.quiet()


# letters outside their picture, and entries of a legend that run into one another
FAULTS = """svg => {
  const box = e => e.getBoundingClientRect(), frame = box(svg), faults = [];
  const within = b => b.left >= frame.left - 1 && b.right <= frame.right + 1;
  for (const text of svg.querySelectorAll("text"))
    if (!within(box(text))) faults.push(text.textContent);
  const parts = [...svg.querySelectorAll(".role-legend-symbol path, .role-legend-label text")];
  const beside = (a, b) => a.right <= b.left || a.bottom <= b.top;
  const apart = (a, b) => beside(a, b) || beside(b, a);
  parts.forEach((one, i) => parts.slice(0, i).forEach(other => {
    const close = one.tagName !== other.tagName;  // lines of letters may touch
    if (close && !apart(box(one), box(other))) faults.push(one.textContent + other.textContent);
  }));
  return faults;
}"""


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", ["hostile", "normalized", "complete", "difference"])
def test_letters_of_a_still_keep_to_their_places(browser, pages, name, size):
    with Visit(browser, pages / f"{name}.html", size, java_script_enabled=False) as visit:
        visit.page.evaluate(UNFOLD)
        stills = visit.page.locator("figure .still svg").all()
        assert stills
        for still in stills:
            assert still.evaluate(FAULTS) == []


@pytest.mark.parametrize("size", list(SIZES))
def test_the_table_of_measurements_and_its_reasons_are_seen_whole(browser, pages, size):
    with Visit(browser, pages / "wordy.html", size) as visit:
        high, room = visit.page.locator("#steps .scroll").evaluate(
            "e => [e.scrollHeight, e.clientHeight]"
        )
        assert high > 600  # more than a box of rows would show
        assert high <= room


@pytest.mark.parametrize("size", list(SIZES))
def test_sentences_make_no_row_high_and_are_read_without_scrolling(browser, pages, size):
    with Visit(browser, pages / "wordy.html", size) as visit:
        visit.page.evaluate(UNFOLD)
        grid = visit.page.locator("details .more .scroll").first
        rows = grid.locator("tbody tr:not(.said)").all()
        assert rows
        assert all(row.bounding_box()["height"] < 60 for row in rows)
        sentences = [one.bounding_box() for one in grid.locator(".said p").all()]
        assert len(sentences) == len(rows)
        assert all(box["x"] >= 0 for box in sentences)
        assert all(box["x"] + box["width"] <= SIZES[size][0] for box in sentences)
        high, room = grid.evaluate("e => [e.scrollHeight, e.clientHeight]")
        assert high <= room  # a short table stands there whole


def test_panels_below_one_another_have_labels_each(browser, pages):
    with Visit(browser, pages / "normalized.html") as visit:
        labels = visit.drawn().locator("figure[id$='prediction-chart1'] .live .role-axis-label")
        named = [group.inner_html().count("norm") for group in labels.all()]
        assert [count for count in named if count] == [2, 2]  # two networks in either panel


def rgb(colour):
    """Red, green and blue of ``rgb(r, g, b)``, or of ``color(srgb r g b)`` with parts up to 1."""
    parts = [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
    return [255 * part for part in parts] if colour.startswith("color(srgb") else parts


def luminance(colour):
    parts = [c / 255 for c in rgb(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


GROUND = """element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}"""


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, pages, ground):
    with Visit(browser, pages / "hostile.html", ground=ground) as visit:
        page = visit.drawn()
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) < 0.05) == (ground == "dark")
        for selector in ("p", ".soft", ".pill", "a", "dt", "dd", "th", "summary", ".partial"):
            for element in page.locator(selector).all()[:6]:
                colour = element.evaluate("e => getComputedStyle(e).color")
                assert contrast(colour, element.evaluate(GROUND)) >= AREA_TEXT, selector
        for letter in page.locator("figure .live text").all()[:20]:
            assert contrast(letter.evaluate("t => getComputedStyle(t).fill"), paper) >= AREA_TEXT


def test_charts_follow_the_setting_of_the_reader(browser, pages):
    with Visit(browser, pages / "normalized.html", ground="light") as visit:
        page = visit.drawn()
        letter = page.locator("figure .live text").first
        before = luminance(letter.evaluate("t => getComputedStyle(t).fill"))
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            "getComputedStyle(document.querySelector('figure:last-of-type .live text')).fill"
            " !== 'rgb(87, 96, 106)'"
        )
        after = luminance(letter.evaluate("t => getComputedStyle(t).fill"))
        assert before < 0.2 < after
        visit.quiet()


def test_a_window_that_gets_narrow(browser, pages):
    with Visit(browser, pages / "normalized.html") as visit:
        page = visit.drawn()
        figure = page.locator("figure[id$='conditioning-chart1']")
        before = figure.locator(".live svg").bounding_box()
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function(
            "[...document.querySelectorAll('figure')].every(f => f.scrollWidth <= f.clientWidth)"
        )
        after = figure.locator(".live svg").bounding_box()
        assert after["width"] <= 390 < before["width"]
        assert after["height"] > before["height"]  # panels below one another
        visit.quiet()


def test_on_paper_the_stills_in_light_colours(browser, pages):
    with Visit(browser, pages / "normalized.html", ground="dark") as visit:
        page = visit.page
        page.wait_for_function(DRAWN)
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF-")
        assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 30
        page.emulate_media(media="print")
        for figure in page.locator("figure").all():
            assert figure.locator(".still").is_visible()
            assert not figure.locator(".live").is_visible()
            ink = figure.locator(".still text").first.evaluate("t => getComputedStyle(t).fill")
            assert max(rgb(ink)) < 120
        assert not page.locator("nav").is_visible()
        assert page.locator("details.fine li").first.is_visible()  # folded on screen, not here
        visit.quiet()


@pytest.mark.parametrize("name", ["complete", "wordy"])
def test_on_paper_no_table_is_cut(browser, pages, name):
    with Visit(browser, pages / f"{name}.html") as visit:
        visit.drawn()
        visit.page.set_viewport_size({"width": 673, "height": 1000})  # A4 without its margins
        visit.page.emulate_media(media="print")
        tables = visit.page.locator("table:visible").all()
        assert len(tables) >= 2
        for table in tables:
            assert table.evaluate("t => t.scrollWidth <= t.closest('.scroll').clientWidth")
            assert all(row.bounding_box()["height"] < 80 for row in table.locator("tr").all())
