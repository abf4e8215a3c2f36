"""Changes to a user's own model, by name."""

from normscope.nn.transforms import norms, weights  # noqa: F401  the entries of TRANSFORMS
from normscope.nn.transforms.base import (
    TRANSFORMS,
    Transform,
    TransformKind,
    apply_transform,
    parse_transform,
    undo_transform,
)
from normscope.nn.transforms.norms import NoNorm

__all__ = [
    "TRANSFORMS",
    "NoNorm",
    "Transform",
    "TransformKind",
    "apply_transform",
    "parse_transform",
    "undo_transform",
]
