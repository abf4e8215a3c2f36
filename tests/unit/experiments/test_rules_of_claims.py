"""Every rule by exact cases, and by its error rates over simulated experiments."""

import math

import numpy as np
import pytest
from scipy import stats

from normscope.errors import InputError
from normscope.results.rules import (
    BLOCKED,
    FAILED,
    PARTLY,
    REPRODUCED,
    RULES,
    UNDECIDED,
    WIDEST,
    bound,
    boundary,
    count,
    fitted_slope,
    formula,
    identity,
    judge,
    number,
    reading,
    sign,
    within,
)

EPS = np.finfo("float64").eps
INF, NAN = math.inf, math.nan


def rate(verdicts, wanted):
    """Share of the verdicts, and its standard error."""
    share = np.mean([v in wanted for v in verdicts])
    return share, math.sqrt(max(share * (1 - share), 1 / len(verdicts)) / len(verdicts))


def assert_rate(verdicts, wanted, expected):
    share, se = rate(verdicts, wanted)
    assert abs(share - expected) < 4 * se, (share, expected, se)


def assert_at_most(verdicts, wanted, most):
    share, se = rate(verdicts, wanted)
    assert share < most + 3 * se, (share, most, se)


# identity


@pytest.mark.parametrize(
    ("multiple", "holds", "fails"),
    [
        (0, REPRODUCED, FAILED),
        (100, REPRODUCED, FAILED),
        (101, UNDECIDED, UNDECIDED),
        (99_000, UNDECIDED, UNDECIDED),
        (100_000, FAILED, REPRODUCED),
        (INF, FAILED, UNDECIDED),
        (NAN, UNDECIDED, UNDECIDED),
    ],
)
def test_identity_and_counter_example(multiple, holds, fails):
    seen = {"error": [0.0, -multiple * 30 * EPS], "size": 30}
    assert identity(seen).verdict == holds
    assert identity(seen, holds=False).verdict == fails
    assert identity(seen).seeds == 2


def test_identity_scales_with_precision_condition_and_factor():
    assert identity({"error": 1e-6, "precision": "float32"}).verdict == REPRODUCED
    assert identity({"error": 1e-6}).verdict == FAILED
    assert identity({"error": 1e-6, "condition": 1e9}).verdict == REPRODUCED
    assert identity({"error": 200 * EPS}).verdict == UNDECIDED
    assert identity({"error": 200 * EPS}, factor=300).verdict == REPRODUCED
    assert identity({"error": 0.1, "condition": INF}).verdict == UNDECIDED


# number


def test_number_by_hand():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]  # mean 3, standard error sqrt(2.5 / 5)
    se = math.sqrt(0.5)
    one = number({"values": values}, expected=3 + 2.99 * se)
    assert one.verdict == REPRODUCED
    assert one.tolerance == pytest.approx(3 * se, rel=1e-8)
    assert number({"values": values}, expected=3 + 3.01 * se).verdict == FAILED
    t = stats.t.ppf(0.975, 4)
    single = number({"values": values}, expected=3.0, single=True)
    assert single.tolerance == pytest.approx(t * math.sqrt(2.5) * math.sqrt(1 + 1 / 5))
    student = number({"values": values, "remainder": 0.25}, expected=3.0, student=True)
    assert student.tolerance == pytest.approx(t * se + 0.25)
    assert number({"mean": 3.0, "se": se, "n": 5, "expected": 4.0}).error == 1.0


def test_number_is_undecided_if_the_tolerance_is_too_wide_and_refutes_all_the_same():
    wide = [10**-0.6, 1.0, 10**0.6]
    one = number({"values": wide}, expected=1.0, log10=True)
    assert one.verdict == UNDECIDED
    assert one.tolerance > WIDEST
    assert number({"values": wide}, expected=1e3, log10=True).verdict == FAILED
    assert number({"values": wide}, expected=1.0, log10=True, resolution=2.0).verdict == REPRODUCED


@pytest.mark.parametrize("options", [{}, {"student": True}, {"single": True}])
def test_number_names_the_runs_that_decide(options):
    sd, n = 0.4, 5
    z = np.array([-2, -1, 0, 1, 2]) / math.sqrt(2.5) * sd
    limit = 1.0 if options == {"single": True} else 0.2
    one = number({"values": 5 + z}, expected=5.0, resolution=limit, **options)
    assert one.verdict == UNDECIDED
    assert one.seeds == n

    def tolerance(runs):
        seen = {"mean": 5.0, "se": sd / math.sqrt(runs), "n": runs}
        return number(seen, expected=5.0, resolution=limit, **options).tolerance

    assert tolerance(one.seeds_needed) <= limit < tolerance(one.seeds_needed - 1)


def test_no_number_of_runs_narrows_a_prediction_interval_below_the_spread():
    one = number({"values": [-1.0, 0, 1]}, expected=0.0, resolution=1.0, single=True)
    assert (one.verdict, one.seeds_needed) == (UNDECIDED, None)


def test_stored_digits_refute_nothing():
    """Observations are kept with nine digits; runs that agree have no spread."""
    assert number({"values": [0.333333333] * 3}, expected=1 / 3).verdict == REPRODUCED
    assert number({"values": [0.333333] * 3}, expected=1 / 3).verdict == FAILED
    assert number({"values": [0.333333333] * 3}, expected=1 / 3, log10=True).verdict == REPRODUCED


def test_what_is_not_random_needs_no_second_run():
    exact = {"mean": 0.2503, "se": 0.0, "n": 1, "remainder": 1e-3}
    assert number(exact, expected=0.25).verdict == REPRODUCED
    assert number(exact, expected=0.26).verdict == FAILED
    assert sign(exact, threshold=0.25).verdict == REPRODUCED
    assert bound(exact, direction="negative").verdict == FAILED
    assert number(exact | {"se": 1e-4}, expected=0.25).verdict == UNDECIDED


def test_prediction_interval_covers_the_network_of_the_paper():
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((2000, 6))
    for n in (3, 5):
        found = [number({"values": d[:n], "expected": d[5]}, single=True).verdict for d in draws]
        assert_rate(found, [REPRODUCED], 0.95)
        logs = [
            number({"values": 10 ** (0.05 * d[:n]), "expected": 10 ** (0.05 * d[5])},
                   single=True, log10=True, resolution=9.0).verdict for d in draws
        ]  # fmt: skip
        assert found == logs


@pytest.mark.parametrize(("n", "most"), [(2, 0.05), (3, 0.05), (5, 0.05), (20, 0.01)])
def test_number_rejects_the_truth_rarely(n, most):
    draws = np.random.default_rng(n).standard_normal((2000, n))
    found = [number({"values": d}, expected=0.0).verdict for d in draws]
    assert_at_most(found, [FAILED], most)
    student = [number({"values": d}, expected=0.0, student=True).verdict for d in draws]
    assert_rate(student, [FAILED], 0.05)


# formula


def networks(rng, sizes, n, *, offset=0.0, slope=3.0, noise=1.2):
    """Networks whose distance from the theory 2 M is offset + slope / M of it."""
    theory = 2.0 * np.asarray(sizes)
    values = [
        t * (1 + offset + slope / m + noise / math.sqrt(m) * rng.standard_normal(n))
        for m, t in zip(sizes, theory, strict=True)
    ]
    return {"sizes": sizes, "theory": theory, "values": values}


@pytest.mark.parametrize(
    ("sizes", "n", "most"),
    [((100, 200, 400, 800), 20, 0.01), ((100, 200), 20, 0.01), ((100, 200, 400), 5, 0.05),
     ((100, 200, 400), 3, 0.05)],
)  # fmt: skip
def test_a_true_formula_with_a_remainder_is_rarely_rejected(sizes, n, most):
    rng = np.random.default_rng(n)
    made = [formula(networks(rng, sizes, n), resolution=INF).verdict for _ in range(2000)]
    assert_at_most(made, [FAILED], most)


def test_a_wrong_formula_is_rejected():
    rng = np.random.default_rng(0)
    made = [formula(networks(rng, (100, 200, 400, 800), 20, offset=0.15)) for _ in range(200)]
    assert all(one.verdict == FAILED for one in made)
    mean = np.mean([one.error for one in made])
    assert mean == pytest.approx(0.15, abs=4 * made[0].tolerance / 3 / math.sqrt(200))


def test_formula_against_weighted_least_squares():
    seen = networks(np.random.default_rng(3), (100, 300, 900), 8)
    one = formula(seen, power=0.5, terms=1)
    gaps = [v / t - 1 for v, t in zip(seen["values"], seen["theory"], strict=True)]
    means = np.array([g.mean() for g in gaps])
    errors = np.array([g.std(ddof=1) / math.sqrt(8) for g in gaps])
    line, covariance = np.polyfit(
        np.array(seen["sizes"]) ** -0.5, means, 1, w=1 / errors, cov="unscaled"
    )
    assert one.error == pytest.approx(abs(line[1]))
    assert one.tolerance == pytest.approx(3 * math.sqrt(covariance[1, 1]))
    assert one.observed == pytest.approx(np.mean(seen["values"][2]))
    back = {k: list(v)[::-1] for k, v in seen.items()}  # the order of the sizes does not matter
    assert formula(back, power=0.5, terms=1).observed == one.observed
    assert formula(back, power=0.5, terms=1).error == pytest.approx(one.error)
    assert formula(back, power=0.5).error == pytest.approx(formula(seen, power=0.5).error)


def test_a_remainder_of_two_terms():
    sizes = (4, 8, 16)
    exact = {
        "sizes": sizes,
        "theory": [1.0] * 3,
        "values": [[1 + 2 / m + 3 / m**2] * 2 for m in sizes],
    }
    assert formula(exact, terms=2).error < 1e-9
    assert formula(exact, terms=1).verdict == FAILED
    with pytest.raises(InputError, match="more than 3 sizes"):
        formula(exact, terms=3)


@pytest.mark.parametrize("sizes", [(15, 30, 60), (100, 300, 900, 1500)])
def test_an_unknown_second_order_is_noise_that_all_sizes_share(sizes):
    """The same as least squares whose errors have the second order as a common part."""
    seen = networks(np.random.default_rng(7), sizes, 8)
    gaps = [v / t - 1 for v, t in zip(seen["values"], seen["theory"], strict=True)]
    means, x = np.array([g.mean() for g in gaps]), sizes[0] / np.array(sizes)
    errors = np.array([g.std(ddof=1) / math.sqrt(8) for g in gaps])
    first = np.polyfit(x, means, 1, w=1 / errors)[0]
    weight = np.linalg.inv(np.diag(errors**2) + np.outer(first * x**2, first * x**2))
    design = np.stack([np.ones_like(x), x], 1)
    covariance = np.linalg.inv(design.T @ weight @ design)
    one = formula(seen)
    assert one.error == pytest.approx(abs((covariance @ design.T @ weight @ means)[0]))
    assert one.tolerance == pytest.approx(3 * math.sqrt(covariance[0, 0]))


@pytest.mark.parametrize("second", [-0.025, 0.0, 0.025, 0.05])
@pytest.mark.parametrize("sizes", [(100, 200, 400), (50, 100, 200, 400)])
def test_a_second_order_is_told_from_a_wrong_formula(sizes, second):
    """First order 5 % at the smallest size, the second as large at most; noise 0.1 %."""
    rng, x = np.random.default_rng(1), sizes[0] / np.array(sizes)

    def verdicts(offset):
        gap = offset + 0.05 * x + second * x**2
        noisy = gap[:, None] + 1e-3 * rng.standard_normal((300, len(x), 10))
        seen = {"sizes": sizes, "theory": np.ones(len(x))}
        return [formula(seen | {"values": 1 + one}).verdict for one in noisy]

    assert_at_most(verdicts(0.0), [FAILED], 0.01)
    assert_at_most(verdicts(0.02), [REPRODUCED], 0.01)
    assert_at_most(verdicts(-0.02), [REPRODUCED], 0.01)


def test_formula_without_noise_of_one_size_and_of_zero():
    exact = {"sizes": [10, 20], "theory": [1.0, 2.0], "values": [[1.1] * 2, [2.1] * 2]}
    assert formula(exact).verdict == REPRODUCED  # 1 + 1/M of the theory
    shifted = exact | {"values": [[1.2] * 2, [2.3] * 2]}
    assert formula(shifted).verdict == FAILED
    one = {"sizes": [10], "theory": [0.0], "values": [[-1.0, 1.0, 0.1]]}
    assert formula(one, relative=False, resolution=9.0).verdict == REPRODUCED
    negative = {"sizes": [10, 20], "theory": [-1.0, -2.0], "values": [[-1.1] * 2, [-2.1] * 2]}
    assert formula(negative).verdict == REPRODUCED
    with pytest.raises(InputError, match="relative=False"):
        formula(one)
    with pytest.raises(InputError, match="every size once"):
        formula({"sizes": [10, 10], "theory": [1.0, 1.0], "values": [[1.0, 1.1]] * 2})
    with pytest.raises(InputError, match="for each size"):
        formula({"sizes": [10, 20], "theory": [1.0], "values": [[1.0, 1.1]] * 2})


def test_formula_too_noisy_names_the_networks_that_decide():
    rng = np.random.default_rng(0)
    one = formula(networks(rng, (100, 200), 20, noise=6.0))
    assert one.verdict == UNDECIDED
    assert "too noisy" in one.reason
    needed = 20 * (one.tolerance / 0.25) ** 2
    assert one.seeds_needed == math.ceil(needed)
    more = [formula(networks(rng, (100, 200), 2 * one.seeds_needed, noise=6.0)) for _ in range(20)]
    assert all(m.verdict in (REPRODUCED, FAILED) for m in more)


# sign


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_no_effect_is_decided_in_five_percent(n):
    draws = np.random.default_rng(n).standard_normal((2000, n))
    found = [sign({"values": d}).verdict for d in draws]
    assert_rate(found, [REPRODUCED, FAILED], 0.05)
    assert_rate(found, [REPRODUCED], 0.025)
    other = [sign({"values": 7 - d, "threshold": 7}, direction="negative").verdict for d in draws]
    assert other == found
    assert_at_most(
        [sign({"values": d}, sigma=True).verdict for d in draws], [REPRODUCED, FAILED],
        0.01 if n == 20 else 0.05,
    )  # fmt: skip


def test_the_power_of_sign_at_the_number_of_seeds_it_names():
    """An effect of half a standard deviation: with so many seeds about half are decided."""
    n = next(n for n in range(2, 99) if stats.t.ppf(0.975, n - 1) / math.sqrt(n) < 0.5)
    seen = {"mean": 0.5, "se": 1 / math.sqrt(5), "n": 5}
    assert sign(seen).verdict == UNDECIDED
    assert sign(seen).seeds_needed == n
    draws = 0.5 + np.random.default_rng(0).standard_normal((3000, n))
    power = 1 - stats.nct.cdf(stats.t.ppf(0.975, n - 1), n - 1, 0.5 * math.sqrt(n))
    assert 0.45 < power < 0.6
    assert_rate([sign({"values": d}).verdict for d in draws], [REPRODUCED], power)


def test_sign_by_hand():
    assert sign({"values": [1.0, 1.0]}).verdict == REPRODUCED
    assert sign({"values": [1.0, 1.0]}, direction="negative").verdict == FAILED
    assert sign({"values": [1.0, 1.0]}, threshold=2.0).verdict == FAILED
    equal = sign({"values": [2.0, 2.0]}, threshold=2.0)
    assert (equal.verdict, equal.reason) == (FAILED, "no difference in any run")
    assert sign({"values": [1.0]}).verdict == UNDECIDED
    assert sign({"values": [-1.0, 1.0]}).seeds_needed is None  # no distance, no number of seeds
    with pytest.raises(InputError, match="'up'"):
        sign({"values": [1.0]}, direction="up")


def test_sign_of_what_is_infinite():
    """Infinite in every run is on one side of any threshold; in some runs it is not known."""
    every = sign({"values": [INF, INF]}, threshold=5.0)
    assert (every.verdict, every.reason) == (REPRODUCED, "inf in every run, claimed above 5")
    assert sign({"values": [-INF, -INF]}).verdict == FAILED
    assert sign({"values": [INF, 1.0]}).verdict == UNDECIDED
    assert sign({"values": [INF, -INF]}).verdict == UNDECIDED
    assert sign({"values": [INF, INF]}, threshold=INF).verdict == UNDECIDED


# bound


@pytest.mark.parametrize(("n", "most"), [(2, 0.05), (5, 0.025), (20, 0.005)])
def test_a_tight_bound_is_rarely_violated(n, most):
    draws = np.random.default_rng(n).standard_normal((2000, n))
    assert_at_most([bound({"values": d}).verdict for d in draws], [FAILED], most)


def test_bound_is_one_sided():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    se = math.sqrt(0.5)
    assert bound({"values": values}).verdict == REPRODUCED
    assert bound({"values": -values}).verdict == FAILED
    assert bound({"values": -values}, direction="negative").verdict == REPRODUCED
    assert bound({"values": values - 3 - 2.9 * se}).verdict == REPRODUCED
    assert bound({"values": values - 3 - 3.1 * se}).verdict == FAILED
    assert bound({"values": values - 3 - 3.1 * se, "slack": 0.2}).verdict == REPRODUCED
    assert bound({"values": [-INF, -INF]}).verdict == FAILED
    assert bound({"values": [INF, INF]}).verdict == UNDECIDED


# boundary


def around(*middles, half=0.1, line=1.0):
    return {"line": line, "intervals": [[10 ** (m - half), 10 ** (m + half)] for m in middles]}


@pytest.mark.parametrize(
    ("seen", "extra", "verdict", "tolerance"),
    [
        (around(0.09), 0.0, REPRODUCED, 0.1),
        (around(0.11), 0.0, FAILED, 0.1),
        (around(-0.11), 0.3, REPRODUCED, 0.4),
        (around(0.0, 0.4), 0.0, REPRODUCED, 0.3),  # middle .2, half interval .1, half spread .2
        (around(0.3, 0.7), 0.0, FAILED, 0.3),
        (around(2.0, 2.2, line=100.0), 0.0, REPRODUCED, 0.2),
        (around(0.0, half=0.49), 0.0, REPRODUCED, 0.49),
        (around(0.0, half=0.51), 0.0, UNDECIDED, 0.51),
        (around(-0.45, 0.45), 0.0, UNDECIDED, 0.55),
        (around(0.0, half=0.51), 1.0, UNDECIDED, 1.51),  # what is allowed makes it no narrower
        (around(3.0, half=0.6), 0.0, FAILED, 0.6),  # too wide to confirm, but it excludes the line
    ],
)
def test_boundary(seen, extra, verdict, tolerance):
    one = boundary(seen, extra=extra)
    assert one.verdict == verdict
    assert one.tolerance == pytest.approx(tolerance)
    assert one.seeds == len(seen["intervals"])


def test_a_search_without_an_end_decides_nothing():
    for interval in ([0.0, 1.0], [1.0, INF], [NAN, 1.0], [-1.0, 1.0]):
        one = boundary({"line": 1.0, "intervals": [[0.9, 1.1], interval]})
        assert (one.verdict, one.seeds) == (UNDECIDED, 2)
    for line in (0.0, NAN, INF, -1.0):
        assert boundary(around(0.0, line=line)).verdict == UNDECIDED
    with pytest.raises(InputError, match="two learning rates"):
        boundary({"line": 1.0, "intervals": []})


# count and reading


@pytest.mark.parametrize(
    ("holds", "at_least", "verdict", "expected"),
    [
        ([True] * 5, 1.0, REPRODUCED, "5 of 5"),
        ([True, False], 1.0, PARTLY, "2 of 2"),
        ([False, False], 1.0, FAILED, "2 of 2"),
        ([True, False, False], 1.0, FAILED, "3 of 3"),
        ([True] * 9 + [False], 0.9, REPRODUCED, "9 of 10"),
        ([True] * 29 + [False], 29 / 30, REPRODUCED, "29 of 30"),
        ([True] * 19 + [False], 0.96, PARTLY, "20 of 20"),
        ([None, NAN], 1.0, FAILED, "2 of 2"),
        (np.array([True, True]), 1.0, REPRODUCED, "2 of 2"),
    ],
)
def test_count(holds, at_least, verdict, expected):
    one = count({"holds": holds}, at_least=at_least)
    assert (one.verdict, one.expected, one.seeds) == (verdict, expected, len(holds))


def test_reading():
    one = reading({}, verdict=FAILED, reason="Two places differ.")
    assert (one.verdict, one.observed, one.seeds) == (FAILED, "by reading", None)
    with pytest.raises(InputError, match="'maybe'"):
        reading({}, verdict="maybe", reason="")


# slopes


def test_fitted_slope_against_polyfit_and_its_error_by_simulation():
    rng, x = np.random.default_rng(5), np.array([100.0, 200, 400, 800])

    def groups():
        return [3 * m**0.9 * (1 + 0.05 * rng.standard_normal(20)) for m in x]

    one = groups()
    errors = [g.std(ddof=1) / math.sqrt(20) / g.mean() / math.log(10) for g in one]
    line, covariance = np.polyfit(
        np.log10(x), [math.log10(g.mean()) for g in one], 1, w=1 / np.array(errors), cov="unscaled"
    )
    found = fitted_slope(x, one)
    assert found["mean"] == pytest.approx(line[0])
    assert found["se"] == pytest.approx(math.sqrt(covariance[0, 0]))
    assert found["n"] == 20
    many = [fitted_slope(x, groups()) for _ in range(600)]
    scatter = np.std([m["mean"] for m in many], ddof=1)
    assert abs(scatter / np.mean([m["se"] for m in many]) - 1) < 4 / math.sqrt(2 * 600) + 0.03
    verdicts = [number(m, expected=0.9).verdict for m in many]
    assert_at_most(verdicts, [FAILED], 0.01)


def test_a_slope_that_cannot_be_fitted_decides_nothing():
    for groups in ([[1.0], [2.0]], [[1.0, -3.0], [2.0, 2.1]], [[NAN, 1.0], [2.0, 2.1]]):
        seen = fitted_slope([1.0, 2.0], groups)
        assert number(seen, expected=1.0).verdict == UNDECIDED
        assert sign(seen).verdict == UNDECIDED
        assert bound(seen).verdict == UNDECIDED


# parts, and what no rule may do


def part(verdict):
    step = {REPRODUCED: [1.0, 1.0], FAILED: [-1.0, -1.0], UNDECIDED: [-1.0, 1.0, 1.2]}
    return {"values": step[verdict]}


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REPRODUCED, FAILED], PARTLY),
        ([REPRODUCED, UNDECIDED], UNDECIDED),
        ([REPRODUCED, UNDECIDED, FAILED], PARTLY),
        ([UNDECIDED, FAILED], FAILED),
        ([FAILED, FAILED], FAILED),
        ([UNDECIDED, UNDECIDED], UNDECIDED),
    ],
)
def test_parts(verdicts, whole):
    seen = {"parts": {f"part {i}": part(v) for i, v in enumerate(verdicts)}}
    one = judge("sign", seen, {})
    good = verdicts.count(REPRODUCED)
    found = f"{good} of {len(verdicts)}"
    if whole == UNDECIDED:
        found = f"{verdicts.count(UNDECIDED)} of {len(verdicts)} parts undecided"
    assert (one.verdict, one.observed) == (whole, found)
    assert one.seeds == min(len(part(v)["values"]) for v in verdicts)
    assert (one.seeds_needed is not None) == (UNDECIDED in verdicts)
    for i, verdict in enumerate(verdicts):
        listed = next(words for words in one.reason.split("; ") if words.startswith(verdict))
        assert f"part {i}" in listed


def test_parts_of_counts_and_bad_observations():
    halves = {"parts": {"a": {"holds": [True, False]}, "b": {"holds": [False]}}}
    assert judge("count", halves, {}).verdict == PARTLY
    with pytest.raises(InputError, match="empty list of parts"):
        judge("sign", {"parts": {}}, {})
    with pytest.raises(InputError, match="lacks 'values'; it has holds"):
        judge("sign", {"holds": [True]}, {})
    for name in ("identity", "number", "sign", "bound", "count"):
        key = {"identity": "error", "count": "holds"}.get(name, "values")
        with pytest.raises(InputError, match="one for each run"):
            judge(name, {key: [], "expected": 1.0}, {})
        with pytest.raises(InputError, match="under 'parts'"):
            judge(name, {key: [[1.0, 1.0]], "expected": 1.0}, {})
    with pytest.raises(InputError, match="Did you mean 'boundary'"):
        judge("boundry", {}, {})
    with pytest.raises(InputError, match="needs an expected value"):
        number({"values": [1.0, 2.0]})


STRANGE = ([NAN, NAN], [1.0, NAN], [INF, 1.0], [INF, -INF], [NAN], [1.0], [-1.0, 1.0])


@pytest.mark.parametrize("values", STRANGE, ids=str)
def test_what_is_not_finite_or_single_never_reproduces(values):
    """And no rule fails on it, not even by a warning."""
    cases = [
        identity({"error": [NAN, *values]}, holds=False),
        number({"values": values}, expected=1.0, log10=True),
        number({"values": values, "expected": NAN}),
        number({"mean": values[0], "se": NAN, "n": 3}, expected=1.0),
        number({"mean": 0.0, "se": 1.0, "n": 3}, expected=1.0, log10=True),
        formula({"sizes": [1, 2], "theory": [1.0, 1.0], "values": [values, [1.0, NAN]]}),
        sign({"values": values}),
        sign({"values": values, "threshold": NAN}),
        bound({"values": values if values != [-1.0, 1.0] else [NAN]}),
        boundary({"intervals": [[1.0, v] for v in values] + [[1.0, NAN]], "line": 1.0}),
    ]
    assert not {one.verdict for one in cases} & {REPRODUCED, PARTLY, BLOCKED}


def test_infinite_as_expected_is_said():
    one = number({"values": [INF, INF]}, expected=INF)
    assert (one.verdict, one.reason) == (REPRODUCED, "infinite in every run")
    assert number({"values": [INF, INF]}, expected=1.0).verdict == FAILED
    assert number({"values": [1.0, 1.1]}, expected=INF).verdict == FAILED


def test_every_rule_is_tested_here():
    assert set(RULES) <= set(globals())


def test_parts_share_the_rate_of_false_refusals():
    """A true claim of many parts fails as rarely as one of one part."""
    rng = np.random.default_rng(11)
    runs, parts, n = 1500, 12, 400
    refused = 0
    for means in rng.standard_normal((runs, parts)):
        seen = {str(i): {"mean": m, "se": 1.0, "n": n} for i, m in enumerate(means)}
        refused += judge("number", {"parts": seen}, {"expected": 0.0}).verdict != "reproduced"
    rate, allowed = refused / runs, 2 * stats.norm.sf(3.0)
    assert rate <= allowed + 3 * np.sqrt(allowed / runs)
    one = judge("number", {"mean": 3.1, "se": 1.0, "n": n}, {"expected": 0.0})
    assert one.verdict == "not reproduced"


def test_a_bound_within_much_noise_is_undecided():
    """A pass that only the noise allows decides nothing; one beyond the noise does."""
    noisy = {"mean": 0.02, "se": 0.15, "n": 40}
    assert bound(noisy).verdict == REPRODUCED
    one = bound(noisy, resolution=0.25)
    assert one.verdict == UNDECIDED
    assert one.seeds_needed == 130  # 3 x 0.15 sqrt(40 / n) = 0.25
    assert bound({"mean": 0.6, "se": 0.15, "n": 40}, resolution=0.25).verdict == REPRODUCED
    assert bound({"mean": -0.6, "se": 0.15, "n": 40}, resolution=0.25).verdict == FAILED
    assert bound({"mean": 0.0, "se": 0.01, "n": 40}, resolution=0.25).verdict == REPRODUCED


def test_many_parts_are_counted_and_few_are_named():
    few = judge("count", {"parts": {"a": {"holds": [True]}, "b": {"holds": [False]}}}, {})
    assert few.reason.startswith("reproduced: a; not reproduced: b")
    many = judge("count", {"parts": {str(i): {"holds": [True]} for i in range(20)}}, {})
    assert many.reason.startswith("reproduced: 20 parts.")


# within


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-1.2, -0.8, REPRODUCED),
        (-1.5, -0.5, REPRODUCED),
        (-1.2, -0.4, UNDECIDED),
        (-2.0, 0.0, UNDECIDED),
        (-INF, -1.0, UNDECIDED),
        (-0.4, INF, FAILED),
        (-3.0, -1.6, FAILED),
    ],
)
def test_an_interval_inside_outside_or_across(low, high, verdict):
    found = within({"value": -1.0, "interval": [low, high], "n": 5}, expected=-1.0, slack=0.5)
    assert found.verdict == verdict
    assert found.seeds == 5


def test_an_interval_of_one_run_or_without_a_value_decides_nothing():
    one = {"value": -1.0, "interval": [-1.0, -1.0], "n": 1}
    assert within(one, expected=-1.0, slack=0.5).verdict == UNDECIDED
    none = {"value": NAN, "interval": [NAN, NAN], "n": 5, "why": "nothing there"}
    found = within(none, expected=-1.0, slack=0.5)
    assert (found.verdict, found.reason) == (UNDECIDED, "nothing there")


@pytest.mark.parametrize(
    ("rule", "seen", "given", "words"),
    [
        ("identity", {"error": [0.3]}, {"holds": False}, "; claimed not to hold"),
        ("number", {"values": [9.0, 10.0, 11.0], "expected": 10.0}, {"log10": True},
         "against 10, compared as log10: off by"),
        ("sign", {"mean": 0.5, "se": 0.1, "n": 9}, {},
         "0.5, claimed above 0: on the claimed side by 0.5, noise"),
        ("sign", {"mean": 0.5, "se": 0.1, "n": 9}, {"direction": "negative"},
         "0.5, claimed below 0: on the other side by 0.5, noise"),
        ("bound", {"mean": 0.5, "se": 0.1, "n": 9}, {}, "inside the bound by 0.5, noise 0.3"),
        ("bound", {"mean": -0.2, "se": 0.1, "n": 9}, {},
         "violated by 0.2, within the noise of 0.3"),
        ("bound", {"mean": 0.5, "se": 0.1, "n": 9}, {"direction": "negative"},
         "violated by 0.5, beyond the noise of 0.3"),
        ("formula", {"sizes": [10], "values": [[0.99, 0.98]], "theory": [1.0]}, {},
         "differs from theory by -1.5 % +- 0.5 %"),
    ],
)  # fmt: skip
def test_the_reason_in_words(rule, seen, given, words):
    assert words in judge(rule, seen, given).reason


def test_an_undecided_claim_counts_its_open_parts():
    parts = {name: {"values": [1.0]} for name in "abcd"}
    one = judge("sign", {"parts": parts}, {})
    assert (one.verdict, one.observed) == (UNDECIDED, "4 of 4 parts undecided")
