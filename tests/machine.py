"""A machine on paper: its clock goes by the operations that torch is given, not by the real one.

What a time limit cuts off, and how well a time was estimated, is then the same everywhere.
"""

import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# of an ordinary core
SECONDS_PER_CALL = 5e-6
SECONDS_PER_NUMBER = 1e-9
SECONDS_PER_FLOP = 1 / 3e10


class Machine(TorchDispatchMode):
    """Stands in for the module ``time`` where normscope reads the clock.

    Attributes:
        seconds: since it was switched on.
    """

    def __init__(self):
        super().__init__()
        self.seconds = 0.0

    def spend(self, seconds):
        self.seconds += seconds

    def monotonic(self):
        return self.seconds

    perf_counter = process_time = monotonic

    def __getattr__(self, name):
        """The calendar, which no limit goes by, is the real one."""
        if name in ("time", "time_ns", "strftime", "gmtime", "sleep"):
            return getattr(time, name)
        raise AttributeError(name)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = operation(*args, **kwargs)
        count_flops = flop_registry.get(operation.overloadpacket)
        flops = 0 if count_flops is None else count_flops(*args, **kwargs, out_val=given)
        numbers = sum(t.numel() for t in tree_leaves(given) if isinstance(t, torch.Tensor))
        self.spend(SECONDS_PER_CALL + SECONDS_PER_NUMBER * numbers + SECONDS_PER_FLOP * flops)
        return given


def readers_of_the_clock():
    """The modules of normscope that import ``time``."""
    import normscope.cli
    import normscope.diagnose
    import normscope.train  # noqa: F401 - those that are loaded late

    loaded = [m for name, m in sys.modules.items() if name.partition(".")[0] == "normscope"]
    return [module for module in loaded if vars(module).get("time") is time]
