"""The fresh set-ups of the benchmark of findings: enough of them, fair words, and they run."""

import re

import pytest
import torch
from benchmarks.findings import harness
from benchmarks.findings.fresh.common import Catalog, explained, shapes
from benchmarks.findings.setup import Parts, collected, loss_of

MODULE = "benchmarks.findings.setups_fresh"
KNOWN = {name: setup for name, (_, setup) in collected([MODULE]).items()}
BROKEN = [setup for setup in KNOWN.values() if setup.defect]


def test_the_harness_finds_them_as_one_set_beside_the_others():
    assert [name for name in harness.modules() if "fresh" in name] == [MODULE]


def test_there_are_enough_of_them_of_many_kinds():
    assert len(KNOWN) - len(BROKEN) >= 24
    assert len(BROKEN) >= 48
    assert len({setup.family for setup in KNOWN.values()}) >= 12
    assert len({setup.defect for setup in BROKEN}) == len(BROKEN)


def test_words_compile_and_do_not_name_everything():
    for setup in BROKEN:
        for text in ("The network trains well.", "The loss at initialization is as expected."):
            assert not any(re.search(word, text, re.IGNORECASE) for word in setup.words), setup.name


def test_a_broken_set_up_is_its_twin_with_one_option():
    catalog = Catalog()

    @catalog.healthy("fine", "mlp", 7)
    def fine(seed, rate=0.1):
        return Parts(None, None, rate)

    catalog.broken("bad", "fine", "The rate is 5.", ["rate"], rate=5.0)
    bad = catalog.setups["bad"]
    assert (bad.twin, bad.family, bad.updates, bad.words) == ("fine", "mlp", 7, ("rate",))
    assert (fine(0).optimizer, bad.make(0).optimizer) == (0.1, 5.0)


def test_the_pictures_are_those_that_their_description_names():
    pictures, kinds, masks, _ = shapes(40, 10)
    assert 0 <= float(pictures.min()) <= float(pictures.max()) <= 1
    assert set(kinds.tolist()) == {0, 1, 2, 3}
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert all(0.02 < float(mask.mean()) < 0.5 for mask in masks)


def test_a_prediction_that_is_not_finite_explains_nothing():
    x = torch.linspace(-1, 1, 9)[:, None]
    same, lost = torch.nn.Identity(), torch.nn.Threshold(9.0, float("nan"))
    assert explained(x, x)(same) == 1.0
    assert explained(x, 0.5 * x, 2.0)(same) == 1.0  # predictions in another unit
    assert explained(x, x)(lost) == -1.0


@pytest.fixture
def single_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("setup", KNOWN.values(), ids=lambda setup: setup.name)
def test_every_set_up_has_a_loss_and_a_score(setup):
    parts = setup.make(0)
    assert loss_of(parts, next(iter(parts.data))).ndim == 0
    assert isinstance(parts.score(parts.model), float)
