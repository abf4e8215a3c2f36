"""Every error normscope raises on purpose.

A message states what was wrong, the value found, why it matters and the way out.
Numerical failure is not an exception by default: results carry ``converged`` and a reason.
"""

from __future__ import annotations

__all__ = ["ConvergenceError", "InputError", "MeasurementError", "NormscopeError", "TheoryError"]


class NormscopeError(Exception):
    """Base of all errors below, so that one ``except`` catches them."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in the words of Python, numpy or torch."""
    words = str(error).lower()
    signs = ("out of memory", "can't allocate", "unable to allocate", "not enough memory")
    return isinstance(error, MemoryError) or any(sign in words for sign in signs)


class InputError(NormscopeError, ValueError):
    """An argument cannot be used: it names the argument, the value and what would do."""


class TheoryError(NormscopeError, ValueError):
    """The network is outside what the theory covers: it names the assumption that fails."""


class MeasurementError(NormscopeError, RuntimeError):
    """A model or its data cannot be measured as asked: it names where and why."""


class ConvergenceError(NormscopeError, RuntimeError):
    """An iteration ended before its tolerance, and the caller asked for ``strict=True``."""
