"""A data set is checked once, and its order is a function of seed and epoch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope.data import DataSet, FlipAndCrop, batch_order, load_data
from normscope.errors import InputError


def small(n=10, classes=3):
    images = torch.arange(float(n * 8), dtype=torch.float32).reshape(n, 2, 2, 2)
    return DataSet(images, torch.arange(n) % classes, name="small")


@given(
    n=st.integers(1, 60),
    size=st.integers(1, 70),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_every_sample_comes_once_in_batches_of_the_size(n, size, seed, epoch, shuffle):
    batches = batch_order(n, size, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert all(len(b) == size for b in batches[:-1])
    assert 1 <= len(batches[-1]) <= size


def test_the_order_depends_on_seed_and_epoch_alone():
    state = torch.get_rng_state()
    orders = {
        (seed, epoch): torch.cat(batch_order(50, 7, seed=seed, epoch=epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len({tuple(o.tolist()) for o in orders.values()}) == 9
    assert torch.equal(orders[2, 1], torch.cat(batch_order(50, 13, seed=2, epoch=1)))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_first_sample_is_uniform():
    draws = torch.tensor([int(batch_order(5, 1, seed=s)[0]) for s in range(2000)])
    shares = torch.bincount(draws, minlength=5).double() / 2000
    assert (shares - 0.2).abs().max() < 5 * (0.2 * 0.8 / 2000) ** 0.5


def test_batches_are_a_sequence_with_random_access():
    batches = small().batches(4, seed=3, epoch=2, augment=FlipAndCrop(padding=1))
    listed = list(batches)
    assert len(batches) == len(listed) == 3
    for index in (2, 0, 1, -1):
        assert torch.equal(batches[index][0], listed[index][0])
        assert torch.equal(batches[index][1], listed[index][1])
    assert not torch.equal(batches.at(3)[0][0], listed[0][0])
    with pytest.raises(IndexError):
        batches[3]


def test_images_stay_with_their_labels():
    data = small()
    for images, labels in data.batches(3, seed=1):
        rows = (images[:, 0, 0, 0] / 8).long()
        assert torch.equal(labels, rows % 3)


def test_one_hot_targets():
    data = small()
    (_, rows), (_, labels) = data.batches(5, one_hot=True)[0], data.batches(5)[0]
    assert rows.dtype == torch.float32
    assert torch.equal(rows.argmax(1), labels)
    assert torch.equal(rows.sum(1), torch.ones(5, dtype=torch.float32))
    assert torch.equal(data.one_hot().argmax(1), data.labels)


def test_drop_last():
    assert [len(y) for _, y in small().batches(4, drop_last=True)] == [4, 4]
    with pytest.raises(InputError, match="batch_size=11 exceeds the 10 samples"):
        len(small().batches(11, drop_last=True))


def test_subset_rows_flat_and_type():
    data = small()
    part = data.subset(4, seed=1)
    assert len(set(part.images[:, 0, 0, 0].tolist())) == 4
    assert part.classes == data.classes
    assert not torch.equal(part.images, data.subset(4, seed=2).images)
    assert data.rows(slice(2, 4)).labels.tolist() == [2, 0]
    assert data.flat().images.shape == (10, 8)
    assert data.to(dtype=torch.float64).images.dtype == torch.float64
    assert data.images.dtype == torch.float32


def test_representation_tells_what_it_is():
    shown = "DataSet('digits test': 360 samples of 1 x 8 x 8, 10 classes, standardized: pixel)"
    assert repr(load_data("digits", "test", standardize="pixel")) == shown


X = torch.zeros(3, 2)
Y = torch.tensor([0, 1, 2])
BAD = {
    "not a tensor": (lambda: DataSet([[1.0]], Y), "takes tensors"),
    "float labels": (lambda: DataSet(X, Y.double()), "int64"),
    "two axes": (lambda: DataSet(X, Y[:, None]), "shape .3, 1."),
    "fewer labels": (lambda: DataSet(X, Y[:2]), "one row per label"),
    "integer images": (lambda: DataSet(X.long(), Y), "floating-point"),
    "empty": (lambda: DataSet(X[:0], Y[:0]), "no sample"),
    "label too large": (lambda: DataSet(X, Y, classes=("a", "b")), "at sample 2: 2"),
    "label negative": (lambda: DataSet(X, Y - 1, classes=("a", "b")), "at sample 0: -1"),
    "nan": (lambda: DataSet(X + torch.tensor([[0], [torch.nan], [0]]), Y), "at sample 1"),
    "inf": (lambda: DataSet(X + torch.tensor([[0], [0], [torch.inf]]), Y), "at sample 2"),
    "batch size 0": (lambda: small().batches(0).order, "batch_size must be a whole number"),
    "batch size 1.5": (lambda: small().batches(1.5).order, "batch_size must be a whole number"),
    "subset too large": (lambda: small().subset(11), "at most 10"),
    "bad seed": (lambda: small().batches(2, seed=-1).order, "seed"),
}


@pytest.mark.parametrize(("make", "text"), BAD.values(), ids=BAD)
def test_bad_input(make, text):
    with pytest.raises(InputError, match=text):
        make()


def coloured(standardize):
    """Six raw images of 5 x 6 pixels in 0..1, and the same standardized."""
    raw = torch.rand(6, 2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = {"channel": (0, 2, 3), "pixel": (0,)}[standardize]
    mean, std = raw.mean(axes, keepdim=True)[0], raw.std(axes, keepdim=True)[0]
    labels = torch.arange(6) % 2
    return raw, DataSet((raw - mean) / std, labels, "six", (), standardize, mean, std)


@pytest.mark.parametrize("standardize", ["channel", "pixel"])
def test_crop_and_downsample_of_the_raw_values(standardize):
    raw, data = coloured(standardize)
    small = data.crop(4).downsample(2)
    assert small.input_shape == (2, 2, 2)
    by_hand = torch.stack(
        [raw[..., i : i + 2, j : j + 2].mean((2, 3)) for i in (0, 2) for j in (1, 3)], -1
    ).reshape(6, 2, 2, 2)
    torch.testing.assert_close(small.images * small.std + small.mean, by_hand)
    assert small.standardized == f"{standardize}, then means of 2 x 2 pixels"
    assert torch.equal(small.labels, data.labels)
    if standardize == "channel":  # then the means of the standardized pixels are the same
        cut = data.images[..., 0:4, 1:5]
        torch.testing.assert_close(small.images, torch.nn.functional.avg_pool2d(cut, 2))
        assert torch.equal(small.mean, data.mean)


def test_downsampling_in_two_steps_is_one():
    data = load_data("digits")
    twice = data.downsample(2).downsample(2)
    torch.testing.assert_close(twice.images, data.downsample(4).images)
    assert torch.equal(data.crop(8).images, data.images)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.downsample(3), "multiples of 3"),
        (lambda d: d.downsample(0), "factor"),
        (lambda d: d.crop(7), "larger than the images"),
        (lambda d: d.flat().crop(2), "before flat"),
    ],
)
def test_images_that_cannot_be_made_smaller(call, message):
    with pytest.raises(InputError, match=message):
        call(coloured("channel")[1])
