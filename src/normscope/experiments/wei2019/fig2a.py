"""Fig. 2a: the fully connected network on MNIST, and which parameters are trained."""

from functools import partial

from normscope.experiments.observing import Table, Values
from normscope.experiments.wei2019 import _boundary
from normscope.experiments.wei2019._boundary import against
from normscope.experiments.wei2019._common import rate_of


def observe(table: Table) -> Values:
    """The boundaries, and those of the network that trains its weights alone."""
    found = _boundary.observe(table)
    for trained in ("weights", "weights+biases"):
        found[f"only-{trained}"] = against(table, None, trained=trained)
    for name, theory in (("line", "corrected"), ("wei2019", "wei2019")):
        line = partial(rate_of, theory=theory)
        found[f"only-weights-{name}"] = against(table, line, trained="weights")
    return found


panels = partial(_boundary.panels, title="Fig. 2a: MNIST, fully connected")
trial = _boundary.trial
