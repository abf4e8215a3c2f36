"""The real files: read whole, checked, with the moments that everyone quotes."""

import pickle

import numpy as np
import pytest
import torch

from normscope.data import data_sets, load_data
from normscope.data._files import data_folder

pytestmark = pytest.mark.real_data

# name: (shape, means, deviations) of the training split
PUBLISHED = {
    "mnist": ((60000, 1, 28, 28), [0.13066], [0.30811]),
    "fashion-mnist": ((60000, 1, 28, 28), [0.28604], [0.35302]),
    "cifar10": (
        (50000, 3, 32, 32),
        [0.49140, 0.48216, 0.44653],
        [0.24703, 0.24349, 0.26159],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_moments_and_classes(name):
    shape, means, deviations = PUBLISHED[name]
    train, test = load_data(name), load_data(name, "test")
    assert train.images.shape == shape
    assert test.images.shape == (10000, *shape[1:])
    assert np.allclose(train.mean.flatten(), means, atol=1e-5)
    assert np.allclose(train.std.flatten(), deviations, atol=1e-5)
    assert abs(float(train.images.double().mean())) < 1e-6
    counts = torch.bincount(test.labels, minlength=10)
    assert len(counts) == 10
    if name != "mnist":  # both others are balanced
        assert counts.tolist() == [1000] * 10
        assert torch.bincount(train.labels).tolist() == [len(train) // 10] * 10


def test_the_pickled_layout_of_the_real_images_has_the_same_checksums(tmp_path):
    folder = data_folder(None)
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    for name in [n for files in data_sets["cifar10"].files.values() for n, _ in files]:
        content = (folder / "cifar-10-batches-bin" / f"{name}.bin").read_bytes()
        table = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        entry = {b"data": table[:, 1:].copy(), b"labels": [int(v) for v in table[:, 0]]}
        (place / name).write_bytes(pickle.dumps(entry, protocol=2))
    pickled = load_data("cifar10", "test", data_dir=tmp_path)  # verified by content
    binary = load_data("cifar10", "test")
    assert torch.equal(pickled.images, binary.images)
    assert torch.equal(pickled.labels, binary.labels)
