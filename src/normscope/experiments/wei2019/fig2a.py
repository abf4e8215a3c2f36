"""Fig. 2a: the fully connected network on MNIST, and which parameters are trained."""

from functools import partial
from typing import Any

from normscope.experiments.observing import Scale, Table
from normscope.experiments.wei2019 import _boundary
from normscope.experiments.wei2019._boundary import GAMMAS, against, rows
from normscope.experiments.wei2019._common import rate_of


def observe(table: Table) -> dict[str, Any]:
    """The boundaries, and those of the network that trains its weights alone."""
    found = _boundary.observe(table)
    for trained in ("weights", "weights+biases"):
        found[f"only-{trained}"] = against(table, None, trained=trained)
    for name, theory in (("line", "corrected"), ("wei2019", "wei2019")):
        line = partial(rate_of, theory=theory)
        found[f"only-weights-{name}"] = against(table, line, trained="weights")
    return found


def _rows(network: str, squared: Any, entropy: Any, **more: Any) -> list[dict[str, Any]]:
    return [*rows(network, "mse", squared, **more),
            *rows(network, "mse", [0.1], trained="weights", **more),
            *rows(network, "mse", [0.1], trained="weights+biases", **more),
            *rows(network, "cross_entropy", entropy, **more)]  # fmt: skip


panels = partial(_boundary.panels, title="Fig. 2a: MNIST, fully connected")
TITLE = "Largest stable learning rate of the fully connected network on MNIST"
trial = _boundary.trial
SMOKE = Scale(_rows("digits-fc", [None, 0.1, 1.0], [None, 1.0], samples=128, steps=8), 1, 9.0)
DESK = Scale(_rows("mnist-fc", [None, *GAMMAS], [None, 0.1, 1.0, 3.0]), 5, 800.0, ("mnist",))
