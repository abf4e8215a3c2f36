"""A stand-in for Figure XIV: ResNet-20 on CIFAR-10 with and without a BN before the last layer."""

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Panel, Table, Values


def observe(table: Table) -> Values:
    """Late training loss without the extra BN minus that with it."""
    without, with_bn = (runs.late_of(table, net=net) for net in table.values_of("net"))
    return {"standin-last-bn": {"values": without - with_bn}}


def panels(table: Table) -> list[Panel]:
    """The training loss of both."""
    names = zip(("ResNet-20", "ResNet-20_LastBN"), table.values_of("net"), strict=True)
    arms = {name: {"net": net} for name, net in names}
    return [runs.loss_panel(table, "In place of Fig. XIV: ResNet-20 on CIFAR-10", arms)]


trial = runs.trial
