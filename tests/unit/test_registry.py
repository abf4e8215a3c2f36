import pytest

from normscope.errors import InputError
from normscope.registry import Registry, near_match


@pytest.fixture
def fruit():
    registry = Registry("fruit")
    registry.add("apple", 1)
    registry.add("fig", 2)
    return registry


def test_lookup(fruit):
    assert fruit["apple"] == 1
    assert "fig" in fruit
    assert list(fruit) == ["apple", "fig"]
    assert len(fruit) == 2


def test_unknown_names_suggest_the_near_match(fruit):
    with pytest.raises(InputError) as error:
        fruit["aple"]
    assert str(error.value) == (
        "Unknown fruit 'aple'. Did you mean 'apple'? Known names: apple, fig."
    )


@pytest.mark.parametrize("name", [3, None, ["apple"]])
def test_names_of_other_types_are_unknown(fruit, name):
    with pytest.raises(InputError, match="Unknown fruit"):
        fruit[name]


def test_taken_names(fruit):
    with pytest.raises(InputError, match=r"'apple' is taken.*replace=True"):
        fruit.add("apple", 3)
    assert fruit.add("apple", 3, replace=True) == 3


def test_no_near_match_lists_all():
    assert near_match("zzz", ["b", "a"]) == "Known names: a, b."
