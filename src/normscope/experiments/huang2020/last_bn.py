"""A stand-in for Figure XIV: ResNet-20 on CIFAR-10 with and without a BN before the last layer."""

from typing import Any

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Panel, Scale, Table


def observe(table: Table) -> dict[str, Any]:
    """Late training loss without the extra BN minus that with it."""
    without, with_bn = (runs.late_of(table, net=net) for net in table.values_of("net"))
    return {"standin-last-bn": {"values": without - with_bn}}


def panels(table: Table) -> list[Panel]:
    """The training loss of both."""
    names = zip(("ResNet-20", "ResNet-20_LastBN"), table.values_of("net"), strict=True)
    arms = {name: {"net": net} for name, net in names}
    return [runs.loss_panel(table, "In place of Fig. XIV: ResNet-20 on CIFAR-10", arms)]


_BN = {"norm": "batch", "init": "he-fan-out", "momentum": 0.9, "measured": 64, "layers": "fc"}
_NETS = ["resnet{}:width={}", "resnet{}:width={}:extra_norms=before-last"]
_CIFAR = {"steps": 250, "batch": 128, "data": "cifar10", "images": 5000, "shrink": 2}
_DESK = _BN | _CIFAR | {"net": [n.format(20, 8) for n in _NETS]}
TITLE = "ResNet-20 with and without a BN before the last layer"
trial = runs.trial
SMOKE = Scale(_BN | {"net": [n.format(8, 4) for n in _NETS], "steps": 3}, 1, 1)
DESK = Scale(_DESK, 5, 180, ("cifar10",))
