"""Numbers, symbols, columns and tables as a page shows them."""

import math

import numpy as np
import pandas as pd
import pytest

from normscope.report.tables import ROWS, table
from normscope.report.wording import (
    amount,
    cell,
    column,
    is_rate,
    meaning,
    number,
    prose,
    spread,
    wording,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (-3, "−3"),
        (123456.0, "123,456"),
        (0.123456, "0.1235"),
        (-0.5, "−0.5"),
        (2.293e5 + 0.5, "2.293 × 10⁵"),
        (1.2e-7, "1.2 × 10⁻⁷"),
        (6.8e12, "6.8 × 10¹²"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "–"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_cells():
    values = (True, np.bool_(False), None, "a<b", np.float64(0.25), np.int64(7))
    assert [cell(value) for value in values] == ["yes", "no", "", "a<b", "0.25", "7"]
    assert cell({"a": (1, "ß")}) == '{"a": [1, "ß"]}'
    assert cell("J^T J / T") == "JᵀJ / T"


def test_a_remark_does_not_change_a_meaning():
    assert meaning("lambda_max of the loss (Gauss-Newton)") == meaning("lambda_max of the loss")
    assert meaning("lambda_max of the loss").startswith("curvature")
    assert meaning("something (else)") == ""


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("lambda_max of <b>", "λ<sub>max</sub> of &lt;b&gt;"),
        ("largest kappa_50% here", "largest κ<sub>50%</sub> here"),
        ("J^T J / T", "JᵀJ / T"),
        ("zeta gamma^2", "ζ γ²"),
        ("kappa_1 C / M", "κ<sub>1</sub> C / M"),
        ("kappa_50 here, kappa_5%", "κ<sub>50%</sub> here, κ<sub>5%</sub>"),
        ("beta, mu, sigma^2; sigma_w^2", "β, μ, σ²; σ<sub>w</sub>²"),
        (
            "kappa_p at eta 0.1; a metadata beta_name",
            "κ<sub>p</sub> at η 0.1; a metadata beta_name",
        ),
        ("about 2.3e+05 and 1e-07", "about 2.3 × 10<sup>5</sup> and 1 × 10<sup>−7</sup>"),
        ("10^4.6 over", "10<sup>4.6</sup> over"),
        ("what_if(m, ['gamma=1']) now", "<code>what_if(m, [&#39;gamma=1&#39;])</code> now"),
        ("f(...).g(a)", "<code>f(...).g(a)</code>"),
        ("sigma_max(gradient)", "sigma_max(gradient)"),
        ("x('<script>')", "<code>x(&#39;&lt;script&gt;&#39;)</code>"),
    ],
)
def test_prose(text, html):
    assert str(prose(text)) == html


def test_columns():
    assert column("kappa_50_fisher") == "κ_50% of fisher"
    assert column("kappa_80") == "κ_80%"
    assert column("lambda_max_inputs") == "λ_max of inputs"
    assert column("mean_abs_mean") == "mean |μ|"
    assert column("some_other") == "some other"


def test_measurements_without_words_are_called_by_their_name():
    assert wording("gradient_noise").title == "Gradient noise"


def test_tables_leave_out_idle_columns_and_cut_long_ones():
    frame = pd.DataFrame(
        {"name": [f"l{i}" for i in range(500)], "value": np.arange(500) / 3}
        | {"status": "ok", "reason": "", "nothing": math.nan}
    )
    shown = table(frame)
    assert shown.columns == [("name", ""), ("value", "num")]
    assert len(shown.rows) == ROWS
    assert shown.total == 500
    assert not shown.short
    assert shown.rows[1] == ["l1", "0.333"]


def test_a_status_that_differs_stays():
    frame = pd.DataFrame({"status": ["ok", "failed"], "reason": ["", "why"]})
    shown = table(frame)
    assert [heading for heading, _ in shown.columns] == ["status", "reason"]
    assert shown.short


def test_sentences_stand_below_their_rows():
    name = "a" * 80  # long, and no sentence
    frame = pd.DataFrame({"layer": [name, "b"], "value": [1, 2], "reason": ["why " * 20, ""]})
    shown = table(frame)
    assert shown.columns == [("layer", ""), ("value", "num")]
    assert shown.rows == [[name, "1"], ["b", "2"]]
    assert shown.sentences == [[("reason", "why " * 20)], []]


def test_what_the_rows_are_about_stays_a_column():
    shown = table(pd.DataFrame({"matrix": ["a matrix " * 10], "value": [1.0], "why": ["so " * 30]}))
    assert [heading for heading, _ in shown.columns] == ["matrix", "value"]


def test_updates_that_are_not_known_are_not_shown():
    unknown = pd.DataFrame({"name": ["a", "b"], "updates": [-1, -1]})
    assert [heading for heading, _ in table(unknown).columns] == ["name"]
    mixed = pd.DataFrame({"name": ["a", "b"], "updates": [-1, 5]})
    assert table(mixed).rows == [["a", "–"], ["b", "5"]]


def test_an_index_with_a_name_is_a_column():
    frame = pd.DataFrame({"value": [1.5]}, index=pd.Index([3], name="rank"))
    assert table(frame).rows == [["3", "1.5"]]


def test_no_rows_no_table():
    assert table(pd.DataFrame({"a": []})) is None
    assert table(pd.DataFrame({"reason": ["", ""]})) is None


@pytest.mark.parametrize(
    ("value", "low", "high", "shown", "ends"),
    [
        (110.854, 105.312, 116.397, "111", "105 to 116"),
        (0.0180417, 0.0171825, 0.0189912, "0.018", "0.0172 to 0.019"),
        (0.008097, -0.032, 0.048, "0.008", "−0.032 to 0.048"),
        (290.4, 26.3, 512345.0, "290", "26 to 510,000"),
        (2.578078, math.nan, math.nan, "2.58", ""),
        (3.0, 3.0, 3.0, "3", ""),
        (1.0, 0.5, math.inf, "1", "0.5 to ∞"),
    ],
)
def test_no_more_digits_than_the_interval_supports(value, low, high, shown, ends):
    assert amount(value, "loss", low, high) == shown
    assert spread(low, high, "loss") == ends


def test_rates_and_shares_in_words():
    assert amount(1.254e8, "stops learning above") == "above 1000"
    assert amount(0.5, "share of dead units") == "50 %"
    assert amount(0.512345, "share of lambda_max", 0.40, 0.62) == "51 %"
    assert spread(0.40, 0.62, "share of lambda_max") == "40 % to 62 %"
    assert is_rate("recommended learning rate")
    assert not is_rate("largest stable rate, changed / unchanged")


def test_columns_that_differ_come_before_those_that_do_not():
    frame = pd.DataFrame({"name": ["a", "b"]} | {f"same{i}": 1 for i in range(9)} | {"x": [1, 2]})
    shown = table(frame)
    assert [heading for heading, _ in shown.columns] == [
        "name",
        *(f"same{i}" for i in range(6)),
        "x",
    ]
    assert shown.left == 3


def test_a_long_table_brings_no_data():
    frame = pd.DataFrame({"name": ["n" * 100] * 3000})
    assert table(frame).data == ""
    assert table(frame[:10]).data != ""
