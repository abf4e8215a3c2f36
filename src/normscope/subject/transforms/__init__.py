"""Changes to a user's own model, by name."""

from normscope.subject.transforms import norms, weights  # noqa: F401  the entries of TRANSFORMS
from normscope.subject.transforms.base import (
    TRANSFORMS,
    Transform,
    TransformKind,
    apply_transform,
    parse_transform,
    undo_transform,
)
from normscope.subject.transforms.norms import NoNorm

__all__ = [
    "TRANSFORMS",
    "NoNorm",
    "Transform",
    "TransformKind",
    "apply_transform",
    "parse_transform",
    "undo_transform",
]
