"""Signals, kills and full disks at random moments: no file is broken, nothing measured is lost."""

from __future__ import annotations

import pytest

from storms import CASES, full_disks, interrupts, kills, prepared

# Python drops what is raised while it deletes a generator that is not used up.
LOST = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=CASES)
def case(request, tmp_path, monkeypatch, capsys):
    return CASES[request.param](tmp_path, prepared(monkeypatch), monkeypatch)


def check_interrupts(case, folder, count, *, several):
    wrong, codes = interrupts(case, folder, count, several=several)
    assert wrong == []
    assert {*codes} <= {0, 3, 130}
    assert 3 in codes


@LOST
@pytest.mark.parametrize("several", [False, True])
def test_interrupts(case, several, tmp_path):
    check_interrupts(case, tmp_path, 12, several=several)


@LOST
@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_two_thousand_interrupts(case, several, tmp_path):
    check_interrupts(case, tmp_path, 334, several=several)


def test_kills(case, tmp_path):
    wrong, _ = kills(case, tmp_path, 6)
    assert wrong == []


@pytest.mark.slow
def test_a_hundred_kills(case, tmp_path):
    assert kills(case, tmp_path, 40)[0] == []


def check_full_disks(case, folder, count):
    wrong, codes = full_disks(case, folder, count)
    assert wrong == []
    # `fit` ends with the error of the disk, a command says which file it could not write
    assert {*codes} <= ({0, 2} if case.words else {1, 3})


def test_full_disks(case, tmp_path):
    check_full_disks(case, tmp_path, 6)


@pytest.mark.slow
def test_a_hundred_full_disks(case, tmp_path):
    check_full_disks(case, tmp_path, 34)
