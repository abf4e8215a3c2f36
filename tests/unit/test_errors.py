import pytest

from normscope import errors


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n != "NormscopeError"])
def test_one_except_catches_all(name):
    cls = getattr(errors, name)
    assert issubclass(cls, errors.NormscopeError)
    assert cls.__doc__
    with pytest.raises(errors.NormscopeError, match="what happened"):
        raise cls("what happened")


def test_bad_values_are_value_errors():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.TheoryError, ValueError)
    assert issubclass(errors.ConvergenceError, RuntimeError)
