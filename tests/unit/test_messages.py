"""Words for messages: an article that fits, and the user's own line where something failed."""

import collections
import json

import pytest
import torch

from normscope.messages import counted, failure, kind_of


@pytest.mark.parametrize(
    ("value", "words"),
    [(3, "an int"), ([], "a list"), (collections.OrderedDict(), "an OrderedDict"),
     (None, "a NoneType"), (torch.nn.ReLU, "the class ReLU")],
)  # fmt: skip
def test_the_article_fits(value, words):
    assert kind_of(value) == words


def test_counted():
    assert [counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def raised(source, path):
    path.write_text(source)
    try:
        exec(compile(source, str(path), "exec"), {"json": json, "torch": torch})
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\nraise OSError('disk gone')", "OSError: disk gone (mine.py, line 3)"),
        ("\njson.loads('{')", "(mine.py, line 2)"),  # raised within the standard library
        ("torch.nn.Linear(3, 2)(torch.ones(1, 4))", "(mine.py, line 1)"),  # and within a package
        ("raise ValueError('two\\n  lines')", "ValueError: two lines (mine.py, line 1)"),
    ],
)
def test_the_line_is_the_users(source, words, tmp_path):
    assert words in failure(raised(source, tmp_path / "mine.py"))


def test_an_error_that_was_never_raised_has_no_place():
    assert failure(ValueError("so")) == "ValueError: so"


def test_what_a_worker_process_raised():
    text = "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
    assert failure(OSError(text + "last):\n  File x\nOSError: disk gone\n")) == "OSError: disk gone"
