"""Which trials a sweep has, and what they are called."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.sweeps import Plan, Trial
from normscope.sweeps.plan import as_trial, grid, make_plan
from sweep_trials import product


def plan(settings, **options):
    return make_plan(as_trial(product), settings, **options)


def test_a_grid_is_every_combination():
    rows = grid({"x": [1, 2], "y": np.linspace(0, 1, 3), "name": "word"}, seeds=[4, 7])
    assert len(rows) == 12
    assert rows[0] == {"x": 1, "y": 0.0, "name": "word", "seed": 4}
    assert rows[-1] == {"x": 2, "y": 1.0, "name": "word", "seed": 7}
    assert type(rows[0]["y"]) is float


def test_keys_do_not_depend_on_the_order_and_do_on_everything_else():
    def key(trial, row):
        return make_plan(trial, [row]).keys[0]

    base = key(Trial(product), {"x": 1, "y": 2.0})
    assert key(Trial(product), {"y": 2.0, "x": 1}) == base
    assert key(Trial(product), {"x": 2, "y": 2.0}) != base
    assert key(Trial(product, version=2), {"x": 1, "y": 2.0}) != base


def test_keys_are_the_same_in_every_process():
    code = (
        "from normscope.sweeps.plan import as_trial, make_plan; from sweep_trials import product; "
        "print(make_plan(as_trial(product), {'x': [1, 2.5]}, seeds=3).identity)"
    )
    env = os.environ | {
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert ran.stdout.strip() == plan({"x": [1, 2.5]}, seeds=3).identity, ran.stderr


def test_shards_are_disjoint_and_complete_in_a_fixed_order():
    made = plan({"x": range(10)}, seeds=3)
    parts = [made.shard(i, 4) for i in (1, 2, 3, 4)]
    assert sorted(key for part in parts for key in part) == sorted(made.keys)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = plan({"x": list(range(9, -1, -1))}, seeds=3)
    assert [again.shard(i, 4) for i in (1, 2, 3, 4)] == parts
    neighbours = [made.trials[key]["x"] for key in made.shard(1, 1)]
    assert neighbours != sorted(neighbours)


@pytest.mark.parametrize(
    "settings",
    [{"x": 1}, {"x": [1, 2], "y": 0.5}, [{"x": 1}, {"x": 2, "y": 3.0}, {"x": 1, "seed": 4}]],
)
def test_the_file_gives_the_plan_back(settings):
    made = plan(settings)
    again = Plan.from_json(made.to_json(), Path("plan.json"))
    assert again.rows == made.rows
    assert again.identity == made.identity


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"x": []}, "x has no value"),
        ([], "without points"),
        ([{"x": 1}, {"x": 1}], "Two trials have the same settings"),
        ({"x": [1, 1]}, "Two trials have the same settings: {'x': 1}"),
        ({"x": 1, "sed": 3}, "Did you mean 'seed'"),
        ({"y": 1}, "needs the setting 'x'"),
        ({"x": float("nan")}, "must be finite"),
        ({"x": object()}, "Settings are numbers"),
        ([1, 2], "a dict, or a list of dicts. Got an int"),
        (None, "a dict, or a list of dicts"),
        ("x", "a dict, or a list of dicts"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(InputError, match=said.replace("{", r"\{")):
        plan(settings)


@pytest.mark.parametrize(
    ("settings", "seeds", "said"),
    [
        ({"x": 1}, 2.5, "seeds must be a whole number from 1"),
        ({"x": 1}, 0, "seeds must be a whole number from 1"),
        ({"x": 1}, True, "seeds must be a whole number from 1"),
        ({"x": 1}, "3", "seeds must be a whole number"),
        ({"x": 1}, ["a"], "each of seeds must be a whole number"),
        ({"x": 1}, [], "without points"),
        ({"x": 1, "seed": 5}, 2, "both as a setting and by seeds="),
    ],
)
def test_bad_seeds_are_refused(settings, seeds, said):
    with pytest.raises(InputError, match=said):
        plan(settings, seeds=seeds)


@pytest.mark.parametrize("values", [[1, 1.0], [1, True], [0.0, -0.0], [[1], [1.0]], [None, 0]])
def test_values_that_python_calls_equal_are_told_apart(values):
    made = plan({"x": values})
    assert Plan.from_json(made.to_json(), Path("plan.json")).identity == made.identity


def test_a_lambda_has_no_name():
    with pytest.raises(InputError, match="lambda"):
        as_trial(lambda x: {"x": x})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "reads format 1"),
        ({"rows": [1, 5]}, "damaged"),
        ({"rows": None}, "no plan"),
    ],
)
def test_a_foreign_or_damaged_plan_is_refused(change, said):
    data = json.loads(plan({"x": [1, 2]}).to_json()) | change
    with pytest.raises(InputError, match=said):
        Plan.from_json(json.dumps(data), Path("plan.json"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (make_plan(Trial(product, version=2), {"x": [1, 2]}), "version 1 there, 2 here"),
        (plan({"x": [1, 3]}), "x: 2 values, 1 ... 2 there, 2 values, 1 ... 3 here"),
        (plan({"x": [1, 2], "y": 2.0}), "y: not set there, 2.0 here"),
    ],
)
def test_the_difference_of_two_plans_is_named(other, said):
    assert plan({"x": [1, 2]}).difference(other) == said
    assert not other.difference(other)
