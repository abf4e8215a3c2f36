"""The rules: each in the file of its subject, all in one registry."""

from normscope.diagnose.rules import (  # noqa: F401
    advice,
    conditioning,
    data,
    initialization,
    losses,
    norms,
    optimizers,
    parameters,
    rates,
    regularizers,
    samples,
    sharpness,
    signals,
    statistics,
    targets,
)
from normscope.diagnose.rules.base import RULES, Case, Rule

__all__ = ["RULES", "Case", "Rule"]
