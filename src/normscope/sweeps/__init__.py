"""Sweeps: a function over many settings, in a folder that no kill can harm."""

from normscope.sweeps.api import Sweep as Sweep
from normscope.sweeps.api import sweep as sweep
from normscope.sweeps.driver import FailedTrialsError as FailedTrialsError
from normscope.sweeps.locks import BusyError as BusyError
from normscope.sweeps.plan import Plan as Plan
from normscope.sweeps.plan import Trial as Trial
from normscope.sweeps.store import Store as Store
from normscope.sweeps.store import StoreError as StoreError
from normscope.sweeps.table import Table as Table
