"""Parts by load."""

from collections.abc import Mapping
from typing import Any

from normscope.experiments.observing import Values, parts


def by_load(groups: Mapping[float, Any], **more: Any) -> Values:
    """An observation with a part for each load alpha."""
    return parts({f"alpha={a:g}": v for a, v in groups.items()}, **more)
