"""A model that cannot be run: what it said, where, and the way out where it is known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from normscope.errors import MeasurementError, NormscopeError
from normscope.subject.batch import Batch, failed_on
from normscope.subject.functional import ModelFunction

__all__ = ["readable_failures"]


@contextlib.contextmanager
def readable_failures(function: ModelFunction, batch: Batch, where: str) -> Iterator[None]:
    """Turn what a user's model raises into an error that says ``where``, and the way out."""
    try:
        yield
    except NormscopeError:
        raise
    except Exception as error:
        raise MeasurementError(
            f"The model cannot be run {where}: {_said(error, function, batch)}"
        ) from error


def _said(error: Exception, function: ModelFunction, batch: Batch) -> str:
    if "more than 1 value per channel" in str(error):
        return (
            f"{type(error).__name__}: {error}. Batch norm has no statistics of a single sample: "
            "use larger batches, leave a last batch of one out (drop_last=True), or pass "
            "statistics='running'."
        )
    return failed_on(error, function.model, batch.inputs, batch.targets)
