"""From a name and a folder to a data set; every bad folder is explained."""

import hashlib
import importlib.resources
import itertools
import pickle

import numpy as np
import pytest
import torch

from data_files import (
    idx_contents,
    tiny_cifar,
    tiny_images,
    tiny_mnist,
    write_cifar,
    write_idx,
)
from normscope.data import data_sets, load_data
from normscope.errors import InputError


@pytest.fixture(autouse=True)
def _no_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def registered(monkeypatch):
    """The tiny files count as the published ones."""
    monkeypatch.setitem(data_sets._entries, "mnist", tiny_mnist())
    monkeypatch.setitem(data_sets._entries, "cifar10", tiny_cifar())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_plain_and_gzipped(tmp_path, registered, packed, split):
    write_idx(tmp_path, packed=packed)
    data = load_data("mnist", split, data_dir=tmp_path, standardize="none")
    images, labels = tiny_images(split, channels=1, size=28)
    assert data.images.dtype == torch.float32
    assert np.array_equal((data.images * 255).round().numpy(), images)
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == labels.tolist()
    assert data.classes == tuple("0123456789")


@pytest.mark.parametrize("layout", ["binary", "pickled"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar_in_both_layouts(tmp_path, registered, layout, split):
    write_cifar(tmp_path, layout)
    data = load_data("cifar10", split, data_dir=tmp_path, standardize="none")
    images, labels = tiny_images(split, channels=3, size=32)
    assert np.array_equal((data.images * 255).round().numpy(), images)
    assert data.labels.tolist() == labels.tolist()
    assert data.input_shape == (3, 32, 32)
    assert data.classes[3] == "cat"


def test_the_folder_comes_from_the_argument_then_the_environment(tmp_path, registered, monkeypatch):
    write_idx(tmp_path / "a")
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "a"))
    assert len(load_data("mnist")) == 30
    with pytest.raises(InputError, match="MNIST was not found"):
        load_data("mnist", data_dir=tmp_path / "b")


def test_a_download_of_earlier_is_found_in_the_cache_folder(tmp_path, registered):
    write_idx(tmp_path / "cache" / "normscope")
    assert len(load_data("mnist", "test")) == 12


def test_a_missing_file_says_what_was_looked_for_and_what_to_do(tmp_path):
    with pytest.raises(InputError) as caught:
        load_data("fashion-mnist", data_dir=tmp_path)
    text = str(caught.value)
    for part in ("FashionMNIST/raw/train-images-idx3-ubyte.gz", "data_dir=", "download=True"):
        assert part in text


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="is a file"):
        load_data("mnist", data_dir=tmp_path / "x")


def test_another_content_under_the_right_name(tmp_path, registered):
    write_idx(tmp_path, seed=1)
    with pytest.raises(InputError, match=r"published file [0-9a-f]{32}"):
        load_data("mnist", data_dir=tmp_path)
    assert len(load_data("mnist", data_dir=tmp_path, verify=False)) == 30


def test_one_wrong_bit_is_found(tmp_path, registered):
    path = write_cifar(tmp_path, "binary") / "data_batch_4.bin"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_4\.bin is damaged"):
        load_data("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("train-images-idx3-ubyte", 1000, "announces 30 x 28 x 28 = 23520 bytes, 984 follow"),
        ("train-labels-idx1-ubyte", 3, "truncated: 3 bytes"),
        ("train-labels-idx1-ubyte", 0, "truncated: 0 bytes"),
    ],
)
def test_truncated_files(tmp_path, name, size, text):
    path = write_idx(tmp_path) / name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=text) as caught:
        load_data("mnist", data_dir=tmp_path, verify=False)
    assert str(path) in str(caught.value)


def test_truncated_gzip(tmp_path):
    path = write_idx(tmp_path, packed=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="cannot be unpacked"):
        load_data("mnist", data_dir=tmp_path, verify=False)


def test_images_and_labels_that_do_not_belong_together(tmp_path):
    place = write_idx(tmp_path)
    (place / "train-labels-idx1-ubyte").write_bytes(idx_contents()["t10k-labels-idx1-ubyte"])
    with pytest.raises(InputError, match=r"30 images .* but 12 labels"):
        load_data("mnist", data_dir=tmp_path, verify=False)


def test_labels_out_of_range(tmp_path):
    path = write_idx(tmp_path) / "train-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[8 + 17] = 77
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"label 77 of sample 17 .* 0\.\.9") as caught:
        load_data("mnist", data_dir=tmp_path, verify=False)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("layout", ["binary", "pickled"])
def test_labels_out_of_range_name_the_batch(tmp_path, layout):
    name = {"binary": "data_batch_3.bin", "pickled": "data_batch_3"}[layout]
    path = write_cifar(tmp_path, layout) / name
    if layout == "binary":
        content = bytearray(path.read_bytes())
        content[2 * 3073] = 10
        path.write_bytes(content)
    else:
        entry = {"data": np.zeros((3, 3072), np.uint8), "labels": [0, 9, 10]}
        path.write_bytes(pickle.dumps(entry, protocol=2))
    with pytest.raises(InputError, match=r"label 10 of sample 2") as caught:
        load_data("cifar10", data_dir=tmp_path, verify=False)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("minst",), "Did you mean 'mnist'"),
        (("digits", "tset"), "Unknown split 'tset'. Did you mean 'test'"),
    ],
)
def test_unknown_names(arguments, text):
    with pytest.raises(InputError, match=text):
        load_data(*arguments)


def test_digits_need_no_file_and_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    truth = load_digits()
    parts = [load_data("digits", split, standardize="none") for split in ("train", "test")]
    images = torch.cat([part.images for part in parts])
    assert np.array_equal(images[:, 0].numpy() * 16, truth.images.astype(np.float32))
    assert list(itertools.chain(*(p.labels.tolist() for p in parts))) == truth.target.tolist()
    assert [len(part) for part in parts] == [1437, 360]


def test_digits_are_small_and_come_with_their_licence():
    folder = importlib.resources.files("normscope.data")
    assert len(folder.joinpath("_digits.npz").read_bytes()) < 100_000
    assert "CC BY 4.0" in folder.joinpath("_digits_LICENSE.txt").read_text()


def test_the_checksums_are_32_hex_digits_and_all_different():
    sums = [
        checksum
        for name in ("mnist", "fashion-mnist", "cifar10")
        for files in data_sets[name].files.values()
        for _, checksum in files
    ]
    assert len(sums) == len(set(sums)) == 14
    assert all(len(s) == len(hashlib.md5().hexdigest()) and int(s, 16) for s in sums)
