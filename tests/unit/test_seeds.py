import numpy as np
import pytest

from normscope.errors import InputError
from normscope.seeds import checked_seed, child_seed, numpy_generator


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "0", None, True])
def test_bad_seeds(seed):
    with pytest.raises(InputError) as error:
        checked_seed(seed)
    assert repr(seed) in str(error.value)
    assert "2**63" in str(error.value)


def test_good_seeds():
    assert checked_seed(np.int64(7)) == 7
    assert type(checked_seed(np.int64(7))) is int
    assert checked_seed(2**63 - 1) == 2**63 - 1


def test_streams_are_named_and_independent():
    seeds = {child_seed(s, name, k) for s in (0, 1, 2**40) for name in "ab" for k in range(5)}
    assert len(seeds) == 30
    assert child_seed(3, "a") == child_seed(3, "a")
    assert child_seed(3, 1) != child_seed(3, "1")
    assert all(0 <= s < 2**63 for s in seeds)


def test_generators_repeat_and_leave_the_global_one_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (numpy_generator(5, "x").standard_normal(4) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, numpy_generator(5, "y").standard_normal(4))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
