"""From measurements to advice: `examine`, `what_if`, `suggest_lr`."""

from normscope.diagnose import measurements as _measurements  # noqa: F401 - fills the registry
from normscope.diagnose.examine import examine, plan_examination
from normscope.diagnose.findings import findings_of
from normscope.diagnose.learning_rate import suggest_lr
from normscope.diagnose.what_if import promising_changes, what_if

__all__ = [
    "examine",
    "findings_of",
    "plan_examination",
    "promising_changes",
    "suggest_lr",
    "what_if",
]
