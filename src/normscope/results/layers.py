"""Which layers a measurement covers, and why it leaves out others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError
from normscope.record import Record
from normscope.results.base import framed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class LayerStatus(Record):
    """What became of one layer.

    Attributes:
        name: name of the layer, ``#2`` for its second use.
        number: how many layers with weights lie on the longest way to it, itself included.
        kind: ``"linear"``, ``"conv"``, ``"embedding"``, ``"experts"``, ``"recurrent"``,
            ``"norm"``, ``"activation"`` or ``"other"``.
        status: ``"ok"``, ``"skipped"`` or ``"failed"``.
        reason: why not ok, in words.
        share: share of the model's parameters, without those that count elsewhere.
    """

    name: str
    number: int
    kind: str
    status: str = "ok"
    reason: str = ""
    share: float = 0.0

    def row(self, **columns: Any) -> dict[str, Any]:
        """A row of a table: which layer, ``columns``, and whether it was measured."""
        place = {"layer": self.name, "number": self.number, "kind": self.kind}
        return place | columns | {"status": self.status, "reason": self.reason}

    def numbered_row(self, **columns: Any) -> dict[str, Any]:
        """A row of a table by the number of the layer, with ``columns`` at the end."""
        place = {"layer": self.number, "name": self.name, "kind": self.kind}
        return place | {"status": self.status, "reason": self.reason} | columns


def _percent(share: float) -> str:
    """A share of the parameters in words; empty for none."""
    if share < 1e-9:
        return ""
    percent = f"{100 * share:.0f}" if share > 0.005 else "below 1"
    return f"{percent} % of the parameters"


def not_measured(what: str, layer: object, names: Sequence[str]) -> InputError:
    """The error for a layer that a result does not have."""
    return InputError(
        f"No {what} was measured at {layer!r}. Names: {', '.join(names[:5])}, ...; or the number "
        "of a layer."
    )


@dataclass(frozen=True, eq=False, repr=False)
class Coverage(Record):
    """The layers of a measurement, in forward order, and the share that was measured."""

    layers: tuple[LayerStatus, ...]
    parameters: float  # share of the model's parameters that belong to layers that are ok
    total_parameters: int

    @property
    def ok(self) -> tuple[LayerStatus, ...]:
        """The layers that were measured."""
        return tuple(layer for layer in self.layers if layer.status == "ok")

    @property
    def left_out(self) -> tuple[LayerStatus, ...]:
        """The layers that were not, each with its reason."""
        return tuple(layer for layer in self.layers if layer.status != "ok")

    def to_frame(self, rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
        """One row per layer: ``rows`` of those measured, the reason of those left out."""
        table = [x.row(**(rows.get(x.name, {}) if x.status == "ok" else {})) for x in self.layers]
        return framed(table).set_index("layer")

    def summary(self) -> str:
        """One line, and one for each reason to leave parameters out, with their share."""
        lines = [
            f"{len(self.ok)} of {len(self.layers)} layers measured, with "
            f"{100 * self.parameters:.0f} % of {self.total_parameters:,} parameters"
        ]
        reasons: dict[tuple[str, str], list[LayerStatus]] = {}
        for layer in self.left_out:
            reasons.setdefault((layer.status, layer.reason), []).append(layer)
        for (status, reason), layers in reasons.items():
            shown = ", ".join(layer.name for layer in layers[:3])
            shown += f" and {len(layers) - 3} more" if layers[3:] else ""
            share = _percent(sum(layer.share for layer in layers))
            lines.append(f"  {status}: {shown}: {reason}{share and f' ({share})'}")
        rest = 1 - self.parameters - sum(layer.share for layer in self.left_out)
        if share := _percent(rest):
            lines.append(f"  not covered: norms or other layers ({share})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Coverage({len(self.ok)} of {len(self.layers)} layers)"
