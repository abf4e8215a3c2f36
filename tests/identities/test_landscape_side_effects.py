"""Planes and diverging updates leave nothing behind; nor does a loss that fails half way."""

import pytest

from cases import ROSTER
from fingerprints import fingerprint, prepared
from normscope.errors import NormscopeError
from normscope.measure.probes.landscape import landscape
from normscope.measure.probes.noise import gradient_noise
from normscope.subject.objective import as_loss
from normscope.train.diverging import diverging_update


def noise(model, data, loss, statistics):
    return gradient_noise(model, data, loss, statistics=statistics, batch_sizes=[2], draws=4)


def line(model, data, loss, statistics):
    return landscape(model, data, loss, statistics=statistics, distances=[0, 1e-3, 1e12])


def plane(model, data, loss, statistics):
    ways = ("gradient", "random")
    return landscape(model, data, loss, statistics=statistics, direction=ways, distances=[0, 0.1])


def update(model, data, loss, statistics):
    return diverging_update(model, data, loss, lr=0.1, max_steps=2)


SOME = ROSTER[::4]  # a plane is a line twice over; an update is made on a copy


@pytest.mark.parametrize("measure", [plane, update])
@pytest.mark.parametrize("case", SOME, ids=str)
def test_nothing_is_left_behind(case, measure):
    model = prepared(case)
    before = fingerprint(model, case.inputs, case.targets)
    measure(model, [(case.inputs, case.targets)], case.loss, case.statistics)
    assert fingerprint(model, case.inputs, case.targets) == before


class Fragile:
    """A loss that fails at a later call."""

    def __init__(self, loss, calls):
        self._loss, self._left = as_loss(loss), calls

    def __call__(self, outputs, targets):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("on purpose")
        return self._loss.value(outputs, targets)


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("measure", [noise, line, plane, update])
@pytest.mark.parametrize("name", ["mlp-tanh", "bn1d-batch-ce", "bn2d-frozen", "tied-weights"])
def test_nothing_is_left_behind_after_an_error(name, measure, calls):
    case = next(c for c in ROSTER if c.name == name)
    model = prepared(case)
    before = fingerprint(model, case.inputs, case.targets)
    failing = Fragile(case.loss, calls)

    def loss(outputs, targets):
        return failing(outputs, targets)

    with pytest.raises((NormscopeError, RuntimeError), match="on purpose"):
        measure(model, [(case.inputs, case.targets)], loss, case.statistics)
    assert fingerprint(model, case.inputs, case.targets) == before
