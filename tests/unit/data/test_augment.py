"""Flip and crop against a loop over pixels."""

import pytest
import torch
from torch.nn import functional

from normscope.data import FlipAndCrop
from normscope.errors import InputError


def images(n=64, channels=3, size=8):
    return torch.arange(1.0, 1 + n * channels * size * size).reshape(n, channels, size, size)


def test_only_flips():
    x = images()
    y = FlipAndCrop(padding=0)(x, 0)
    flipped = [torch.equal(b, a.flip(-1)) for a, b in zip(x, y, strict=True)]
    same = [torch.equal(b, a) for a, b in zip(x, y, strict=True)]
    assert all(f != s for f, s in zip(flipped, same, strict=True))


def test_flips_come_with_probability_one_half():
    x = images(n=4000, channels=1, size=2)
    share = (FlipAndCrop(padding=0)(x, 1) != x).flatten(1).any(1).double().mean()
    assert abs(float(share) - 0.5) < 5 * 0.5 / 4000**0.5


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_every_crop_is_a_window_of_the_padded_image(mode):
    x = images(n=200)
    y = FlipAndCrop(flip=False, padding=2, mode=mode)(x, 0)
    padded = functional.pad(x, (2,) * 4, mode="constant" if mode == "zeros" else "reflect")
    corners = set()
    for whole, part in zip(padded, y, strict=True):
        found = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(whole[:, i : i + 8, j : j + 8], part)
        ]
        assert found
        corners.add(found[0])
    assert len(corners) == 25  # 200 draws miss one of 25 with probability 0.7 %, and are fixed


def test_the_seed_alone_decides_and_nothing_is_changed():
    x = images()
    before, state = x.clone(), torch.get_rng_state()
    augment = FlipAndCrop()
    assert torch.equal(augment(x, 5), augment(x, 5))
    assert not torch.equal(augment(x, 5), augment(x, 6))
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_draw_does_not_depend_on_the_default_type():
    x = images()
    first = FlipAndCrop()(x, 3)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(FlipAndCrop()(x, 3), first)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FlipAndCrop(mode="mirror"), "'zeros' or 'reflect'"),
        (lambda: FlipAndCrop(padding=-1), "padding"),
        (lambda: FlipAndCrop(padding=True), "padding"),
        (lambda: FlipAndCrop()(torch.zeros(3, 64), 0), "before flattening"),
        (lambda: FlipAndCrop(padding=8, mode="reflect")(images(), 0), "at most 7"),
    ],
)
def test_bad_use(make, text):
    with pytest.raises(InputError, match=text):
        make()
