"""The settings of an examination, as rules and readers need them."""

from __future__ import annotations

from typing import Any

from normscope.diagnose._curvature import descent
from normscope.diagnose.subject import Subject
from normscope.subject.statistics import in_words


def settings_of(subject: Subject) -> dict[str, Any]:
    """What was in effect, in words and numbers."""
    how = descent(subject)
    return {
        "loss": subject.objective.loss.description,
        "loss_kind": subject.objective.loss.kind,
        "statistics": in_words(subject.model, "batch"),
        "parameters": "all trainable",
        **subject.source.convention,
        "eval_data": "none"
        if subject.evaluation is None
        else subject.evaluation.source.description,
        "optimizer": subject.optimizer_name,
        "lr": subject.lr,
        "momentum": how.momentum,
        "no_threshold": how.obstacle,
        "batch": subject.samples,
        "chance": subject.chance,
        "seed": subject.seed,
    }
