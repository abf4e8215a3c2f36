"""Two settings over the same seeds: against scipy's t-test, tables and a simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from normscope.errors import InputError
from normscope.results import PairedComparison, paired_comparison


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_that_of_the_paired_t_test(log, confidence):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, (2, 7))
    found = paired_comparison(a, b, log, confidence=confidence)
    shown = (np.log10(a), np.log10(b)) if log else (a, b)
    test = stats.ttest_rel(*shown)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(confidence)))
    assert (found.verdict == "undecided") == (test.pvalue > 1 - confidence)
    assert found.difference / found.standard_error == pytest.approx(test.statistic)
    assert found.ratio == pytest.approx(stats.gmean(a / b)) if log else math.isnan(found.ratio)


def test_quantiles_of_the_tables():
    assert paired_comparison([1, 2, 3], [1, 1, 1]).quantile == pytest.approx(4.303, abs=5e-4)
    assert paired_comparison(range(5), [1] * 5).quantile == pytest.approx(2.776, abs=5e-4)


def test_the_verdict_and_its_sentence():
    """Ghost batch norm, three seeds: t = 3.3 is below the 4.30 that three seeds need."""
    few = paired_comparison([-0.218, -0.298, -0.577], [0, 0, 0], names=("ghost", "batch"))
    assert few.verdict == "undecided"
    assert few.difference / few.standard_error == pytest.approx(-3.3, abs=0.1)
    assert 3 < few.seeds_needed <= 6
    assert few.summary().startswith("whether ghost is lower or higher than batch is undecided (")
    lower = paired_comparison([1.0, 1.1, 1.05], [2.0, 2.1, 2.06])
    assert lower.verdict == "lower"
    assert lower.seeds_needed == 3
    assert lower.summary().startswith("a is lower than b: difference -1.00")
    assert paired_comparison([2.0, 2.1, 2.06], [1.0, 1.1, 1.05]).verdict == "higher"
    assert PairedComparison.from_json(few.to_json()) == few


def test_the_number_of_seeds_decides_in_four_of_five_cases():
    rng = np.random.default_rng(1)
    found = paired_comparison([0.0, 1.0, 2.0, 0.1, 0.4], [0.3] * 5)
    n = int(found.seeds_needed)
    assert found.verdict == "undecided"
    effect = found.difference / found.differences.std(ddof=1)
    share = {}
    for seeds in (n - 1, n):
        draws = rng.standard_normal((20_000, seeds)) + effect
        t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(seeds))
        share[seeds] = float((t > stats.t.ppf(0.975, seeds - 1)).mean())
    error = math.sqrt(0.8 * 0.2 / 20_000)
    assert share[n - 1] < 0.8 + 3 * error
    assert share[n] > 0.8 - 3 * error


def test_no_difference_is_never_decided():
    same = paired_comparison([1.0, 2.0], [2.0, 1.0])
    assert (same.verdict, same.seeds_needed) == ("undecided", math.inf)
    assert "would" not in same.summary()
    equal = paired_comparison([1.0, 2.0], [1.0, 2.0])
    assert (equal.verdict, equal.seeds_needed) == ("undecided", math.inf)
    assert paired_comparison([1.0, 2.0], [2.0, 3.0]).verdict == "lower"  # no scatter at all


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ([1.0], [2.0], {}, "two or more seeds"),
        ([1.0, 2.0], [2.0], {}, "equal length"),
        ([1.0, math.inf], [2.0, 3.0], {}, "Pair 1 is inf"),
        ([1.0, 0.0], [2.0, 3.0], {"log": True}, "above 0"),
        ([1.0, 2.0], [2.0, 3.0], {"confidence": 95}, "probability"),
    ],
)
def test_bad_input(a, b, options, message):
    with pytest.raises(InputError, match=message):
        paired_comparison(a, b, **options)
