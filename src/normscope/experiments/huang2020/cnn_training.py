"""Figures VIII and IX: VGG-20 and ResNet-20 on CIFAR-10, Plain and BN."""

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Panels, Table, Values, parts

NETS = {"vgg20": ("fig8", "Fig. VIII", "VGG-20"), "resnet20": ("fig9", "Fig. IX", "ResNet-20")}
PLAIN, BN = {"norm": "none", "lr": 0.01}, {"norm": "batch", "lr": 0.1}
FAST = {"norm": "none", "lr": 0.1}


def named(table: Table, name: str) -> str:
    """The network of this name as the settings call it, with its options."""
    return next(str(net) for net in table.values_of("net") if net.startswith(name))


def observe(table: Table) -> Values:
    """Observations of Figs VIII and IX, and of the learning rate 0.1."""
    made: Values = {}
    for name, (figure, _, _) in NETS.items():
        arms = [{"net": named(table, name)} | arm for arm in (PLAIN, BN, FAST)]
        late = [runs.late_of(table, **arm) for arm in arms]
        for panel, side in (("a", "x"), ("b", "g")):
            found = runs.kappa_parts(table, f"kappa_{side}", (0.8, 1.0), arms[0], arms[1])
            made[f"{figure}-{panel}"] = found
        made[f"{figure}-c"] = {"values": late[0] - late[1]}
        made[f"secC1-lr01-{name[:-2]}"] = parts({"not at 0.1": late[2] - (runs.CHANCE - 0.01),
                                                 "at 0.01": runs.CHANCE - late[0]})  # fmt: skip
    return made


def panels(table: Table) -> Panels:
    """kappa_p of inputs and gradients, and the loss, of each network."""
    note = "A stand-in: fewer channels, pixels and updates than the paper's."
    for name, (_, figure, title) in NETS.items():
        net = {"net": named(table, name)}
        arms = {"Plain, rate 0.01": net | PLAIN, "BN, rate 0.1": net | BN}
        yield from runs.step_panels(table, f"{figure}, {title}", arms, 1.0, note)


trial = runs.trial
