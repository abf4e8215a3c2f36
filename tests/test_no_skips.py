"""A skip is a failure under make, unless nobody could run the test on such a machine."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_a_package(): pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="no browser")
def test_a_condition(): pass

@pytest.mark.skip
def test_no_reason(): pass

@pytest.fixture
def missing(): pytest.skip("no data")

def test_a_fixture(missing): pass
"""
ALLOWED = """
import pytest

@pytest.mark.gpu
def test_a_device(): pytest.skip("no CUDA device")

@pytest.mark.skipif(True, reason="platform: no fork")
def test_a_platform(): pass

@pytest.mark.xfail
def test_expected(): assert False
"""
MODULE = """
import pytest

pytest.importorskip("no_such_package")

def test_never_seen(): pass
"""


@pytest.fixture
def outcomes(pytester, monkeypatch):
    """Counts of outcomes of a run of its own, with and without the variable."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = gpu: needs a device\n")

    def run(text, *, refused):
        monkeypatch.setenv("NORMSCOPE_NO_SKIPS", "1" if refused else "")
        pytester.makepyfile(text)
        done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
        return done.parseoutcomes(), done

    return run


def test_skips_fail(outcomes):
    assert outcomes(TESTS, refused=False)[0] == {"skipped": 4}
    found, done = outcomes(TESTS, refused=True)
    assert found == {"failed": 1, "errors": 3}
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*test_a_package was skipped: *no_such_package*"])


def test_skips_of_a_whole_module_fail(outcomes):
    assert outcomes(MODULE, refused=False)[0] == {"skipped": 1}
    found, done = outcomes(MODULE, refused=True)
    assert found == {"errors": 1}
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*was skipped: *no_such_package*"])


@pytest.mark.parametrize("refused", [False, True])
def test_devices_and_platforms_may_be_missing(outcomes, refused):
    assert outcomes(ALLOWED, refused=refused)[0] == {"skipped": 2, "xfailed": 1}
