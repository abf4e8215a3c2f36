"""The rules: each in the file of its subject, all in one registry."""

from normscope.diagnose.rules import advice, conditioning, norms, rates, sharpness, signals  # noqa: F401
from normscope.diagnose.rules.base import RULES, Case, Rule

__all__ = ["RULES", "Case", "Rule"]
