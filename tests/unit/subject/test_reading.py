"""Batches, epoch after epoch: order, prefixes, what is left out, what is kept."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from normscope.errors import InputError
from normscope.subject.data import as_source, repeatable
from normscope.subject.reading import Kept, Reading

X = torch.arange(10.0)[:, None]
Y = torch.arange(10)


def firsts(batches):
    return [batch.inputs[:, 0].long().tolist() for batch in batches]


def test_an_epoch_may_be_entered_anywhere():
    for data in ((X, Y), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), 3, shuffle=True)):
        size = None if isinstance(data, DataLoader) else 3
        source = as_source(data, Reading(batch_size=size, seed=4))
        whole = firsts(source.epoch(1))
        assert firsts(source.epoch(1, 2)) == whole[2:]
        assert sorted(row for rows in whole for row in rows) == list(range(10))
        assert whole != firsts(source.epoch(0))


def test_a_number_of_batches_counts_from_the_start_of_the_epoch():
    """Also for an epoch that is entered behind its start, as in a resumed training."""
    for data in ((X, Y), [(X[k : k + 2], Y[k : k + 2]) for k in range(0, 10, 2)]):
        size = 2 if isinstance(data, tuple) else None
        source = as_source(data, Reading(batch_size=size, num_batches=3))
        assert source.per_epoch == 3
        assert firsts(source.epoch(0, 2)) == firsts(source.epoch(0))[2:]
        assert len(list(source.epoch(0, 2))) == 1
        assert list(source.epoch(0, 3)) == []


def test_a_loader_does_not_draw_from_the_outside_nor_it_from_the_loader():
    loader = DataLoader(TensorDataset(X, Y), 3, shuffle=True)
    quiet = firsts(as_source(loader, Reading(seed=1)).epoch(0))
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    numbers = [torch.rand(()), np.random.rand()]  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    batches = as_source(loader, Reading(seed=1)).epoch(0)
    busy = [next(batches)]
    assert [torch.rand(()), np.random.rand()] == numbers  # noqa: NPY002
    busy += list(batches)
    assert firsts(busy) == quiet


@pytest.mark.parametrize(
    ("sizes", "kept", "left_out"),
    [
        ([4, 4, 2], [4, 4], 2),
        ([4, 2, 4], [4, 2, 4], 0),  # a shorter one in the middle is one like the others
        ([2, 4, 3], [2, 4], 3),
        ([3], [3], 0),
        ([2, 2], [2, 2], 0),
        ([2, 4], [2, 4], 0),
    ],
)
def test_a_last_shorter_batch(sizes, kept, left_out):
    batches = [(X[:size], Y[:size]) for size in sizes]
    stream = as_source(batches, Reading()).stream(None)
    assert [batch.size for batch in stream] == stream.sizes == kept
    assert stream.left_out == left_out
    exact = as_source(batches, Reading(exact=True)).stream(None)
    assert [batch.size for batch in exact] == sizes


def test_no_batch_is_read_ahead_unless_a_shorter_one_came():
    given = []

    def counted():
        for size in (4, 4, 2, 2, 2):
            given.append(size)
            yield X[:size], Y[:size]

    stream = as_source(counted(), Reading()).stream(2)
    assert len(list(stream)) == 2
    assert given == [4, 4]


def test_what_is_kept_is_what_was_read():
    source = as_source((X, Y), Reading(batch_size=4))
    stream = source.stream(None)
    kept = Kept(list(stream), source.reading, left_out=stream.left_out)
    again = kept.stream(None)
    assert firsts(again) == firsts(source.stream(None))
    assert again.convention == stream.convention
    first, second = next(kept.epoch(0)), next(kept.epoch(0))
    first.inputs.zero_()  # a layer that works in place
    assert bool(second.inputs.any())
    assert bool(kept.batches[0].inputs.any())


def test_a_generator_is_read_once_and_no_further_than_needed():
    given = []

    def counted():
        for k in range(100):
            given.append(k)
            yield X[:2] + k, Y[:2]

    data = repeatable(counted(), 3)
    for _ in range(2):
        assert firsts(as_source(data, Reading()).epoch(0)) == [[0, 1], [1, 2], [2, 3]]
    assert given == [0, 1, 2]


def test_structures():
    pair = namedtuple("pair", "x y")
    for item in (pair(X, Y), pair(X.numpy(), Y.numpy()), [X.numpy(), Y]):
        [batch] = as_source([item], Reading()).epoch(0)
        assert torch.equal(batch.inputs, X)
        assert torch.equal(batch.targets, Y)
    with pytest.raises(InputError, match="another structure"):
        list(as_source([{"a": X}, {"b": X}], Reading(pairs=False)).epoch(0))
    lists = [([X[:1]] * 3, Y), ([X[:1]] * 2, Y)]  # of any length, as in detection
    assert len(list(as_source(lists, Reading(pairs=False)).epoch(0))) == 2


class NoLength(Dataset):
    def __getitem__(self, index):
        return X[index], Y[index]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (NoLength(), "has no length. Give it a __len__"),
        ((X, X, Y), "several inputs as"),
        (lambda: (X, Y), "call it"),
        ((X, [0, 1]), "Found an int"),
        ((X, Y[:3]), "length 10 and 3"),
        ([(x, y) for x, y in zip(X, Y, strict=True)], "looks like one sample"),
        (X, r"inputs without targets are \(inputs, None\)"),
    ],
)
def test_what_cannot_be_read(data, words):
    with pytest.raises(InputError, match=words):
        list(as_source(data, Reading()).epoch(0))
