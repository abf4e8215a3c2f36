"""Standardization against numpy in float64, and what it must leave behind."""

import numpy as np
import pytest
import torch

from data_files import tiny_images, write_cifar
from normscope.data import load_data
from normscope.data.standardize import standardization, standardized
from normscope.errors import InputError

AXES = {"dataset": (0, 1, 2, 3), "channel": (0, 2, 3), "pixel": (0,)}


@pytest.mark.parametrize("kind", AXES)
def test_moments_equal_those_of_numpy(kind):
    images, _ = tiny_images("train", channels=3, size=32)
    mean, std = standardization(kind, images, 255)
    scaled = images.astype(np.float64) / 255
    assert np.allclose(mean.numpy().squeeze(), scaled.mean(AXES[kind]).squeeze(), rtol=1e-6)
    assert np.allclose(std.numpy().squeeze(), scaled.std(AXES[kind]).squeeze(), rtol=1e-6)


@pytest.mark.parametrize("kind", AXES)
def test_training_images_come_out_with_mean_0_and_deviation_1(kind):
    images, _ = tiny_images("train", channels=3, size=32)
    result = standardized(images, 255, *standardization(kind, images, 255)).double().numpy()
    assert np.abs(result.mean(AXES[kind])).max() < 1e-6
    assert np.abs(result.std(AXES[kind]) - 1).max() < 1e-6


def test_moments_do_not_overflow():
    # 60000 images of one value: N^2 times the second moment is beyond 64 bits.
    images = np.full((60000, 1, 28, 28), 255, np.uint8)
    images[0, 0, 0, 0] = 0
    mean, std = standardization("dataset", images, 255)
    n = images.size
    assert float(mean) == pytest.approx(1 - 1 / n, rel=1e-7)
    assert float(std) == pytest.approx(np.sqrt(n - 1) / n, rel=1e-6)


def test_a_constant_pixel_becomes_zero():
    images = np.full((10, 1, 2, 2), 7, np.uint8)
    images[:, 0, 0, 0] = np.arange(10)
    result = standardized(images, 255, *standardization("pixel", images, 255))
    assert result.isfinite().all()
    assert not result[:, 0, 1, 1].any()


def test_the_test_split_takes_the_statistics_of_the_training_split(tmp_path):
    write_cifar(tmp_path, "binary")
    train, test = (
        load_data("cifar10", split, data_dir=tmp_path, verify=False) for split in ("train", "test")
    )
    assert torch.equal(train.mean, test.mean)
    assert torch.equal(train.std, test.std)
    raw, _ = tiny_images("test", channels=3, size=32)
    assert torch.allclose(test.images * test.std + test.mean, torch.from_numpy(raw / 255).float())


def test_given_numbers_and_statistics_that_need_no_training_file(tmp_path):
    place = write_cifar(tmp_path, "binary")
    for path in place.glob("data_batch_*"):
        path.unlink()
    mean, std = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
    data = load_data("cifar10", "test", data_dir=tmp_path, standardize=(mean, std), verify=False)
    raw, _ = tiny_images("test", channels=3, size=32)
    expected = (raw[:, 2] - 113.9) / 66.7
    assert np.allclose(data.images[:, 2].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("chanel", "Did you mean 'channel'"),
        (([0.5, 0.5], [1, 1]), "one per channel"),
        (([0.5] * 3, [1, 1, 0]), "above 0"),
        (([0.5], [np.nan]), "finite"),
        (3, "a pair"),
        ((["a"], ["b"]), "a pair"),
    ],
)
def test_bad_choices(kind, text):
    images, _ = tiny_images("train", channels=3, size=32)
    with pytest.raises(InputError, match=text):
        standardization(kind, images, 255)
