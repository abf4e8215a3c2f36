"""App. B.3: dropout before batch norm, or behind it."""

from torch import nn

import normscope as ns
from normscope.experiments.luo2019._training import images, train
from normscope.experiments.observing import Panel, Table, Values, arm_bars, paired, parts
from normscope.measure import variance_shift


def trial(net: str, place: str, dropout: float, data: str, samples: int, epochs: int, lr: float,
          batch: int, seed: int) -> Values:  # fmt: skip
    """Dropout before every norm, or behind every hidden layer or residual block."""
    shown, test = images(data, samples, seed)
    ratio = dropout if place == "behind" else 0.0
    model = ns.network(net, norm="batch", dropout=ratio, seed=seed)
    if place == "before":
        for name, norm in list(model.named_modules()):
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                parent, _, own = name.rpartition(".")
                dropped = nn.Sequential(nn.Dropout(dropout), norm)
                setattr(model.get_submodule(parent), own, dropped)
    found = train(model, shown, test, epochs, lr=lr, batch_size=batch, seed=seed)
    return {"shift": variance_shift(model, shown.images, batch), "accuracy": found["accuracy"][-1]}


def _arms(table: Table) -> dict[str, Values]:
    return {f"{net.partition(':')[0]}, dropout {p:g}": {"net": net, "dropout": p}
            for net in table.values_of("net") for p in table.values_of("dropout")
            if table.where(net=net, dropout=p).rows}  # fmt: skip


def observe(table: Table) -> Values:
    """Shift with dropout before less behind."""
    places = ({"place": "before"}, {"place": "behind"})
    return {"b3-order": parts({name: paired(table, "shift", *({**arm, **at} for at in places))
                               for name, arm in _arms(table).items()})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Shift of the variance, and accuracy."""
    arms = {f"{name}, {place}": {**arm, "place": place} for name, arm in _arms(table).items()
            for place in ("before", "behind")}  # fmt: skip
    head = "Luo et al. 2019, App. B.3: dropout before or behind batch norm"
    shown = {"shift": "mean |log10 (variance in training / evaluation)|",
             "accuracy": "validation accuracy"}  # fmt: skip
    return [arm_bars(table, head, arms, key, words) for key, words in shown.items()]
