"""Order parameters of a network, measured and predicted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of
from normscope.results.layers import Coverage

CLEAR = 3.0  # standard errors from zero, below which a ratio says nothing


@dataclass(frozen=True, eq=False, repr=False)
class OrderProfile(Drawable):
    """Order parameters layer by layer, in forward order.

    The chart: order parameters by layer, the theory's as lines.

    Attributes:
        names: names of the layers measured.
        measured: ``q``, ``qhat``, ``qtilde`` (one sample with itself) and ``q_st``, ``qhat_st``,
            ``qtilde_st`` (two samples of one batch), (layers,) each. qhat is of a layer's input,
            q of its output (both per unit), qtilde of d outputs / d that output (summed).
        errors: standard errors: over samples and, for a layer of random weights, over its units.
            What the layers before it drew is common to all units and is not in them.
        theory: the same six numbers for a random network of the same variances; empty if the
            theory does not apply.
        theory_reason: why it does not.
        theory_notes: what its numbers rest on.
        backward_reason: why there is no qtilde, if there is none.
        coupled: whether batch statistics further up couple the samples; qtilde is then of
            sum_a d f(s)/d u(a) . d f(t)/d u(a), over the samples a of the batch.
        coverage: which layers were measured.
        convention: what was run, in words.
        num_samples: samples seen.
        num_batches: in so many batches.
        seed: seed for random directions.
        positions: positions of the feature map of each layer's output, 1 if it is dense.
        across: the six numbers for two different positions a, b: q_ab of one sample, q_ab,st of
            two; a mean over the pairs of positions, but qtilde is the sum over them, so that
            qtilde + qtilde_ab is that of the sum of delta over positions. NaN with one position.
        across_errors: standard errors.
        pairs: ``q_st``, ``qhat_st``, ``qtilde_st`` of single pairs of samples, (layers, pairs), if
            they were asked for; qtilde is NaN where samples are coupled.
        pair_errors: standard errors of ``pairs`` over networks, in a mean over several.
        num_networks: networks that it is the mean over; if several, all errors are over networks.
    """

    names: tuple[str, ...]
    measured: dict[str, Array]
    errors: dict[str, Array]
    theory: dict[str, Array]
    theory_reason: str
    theory_notes: tuple[str, ...]
    backward_reason: str
    coupled: NDArray[np.bool_]  # (layers,)
    coverage: Coverage
    convention: dict[str, str] = field(default_factory=dict)
    num_samples: int = 0
    num_batches: int = 0
    seed: int = 0
    positions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    across: dict[str, Array] = field(default_factory=dict)
    across_errors: dict[str, Array] = field(default_factory=dict)
    pairs: dict[str, Array] = field(default_factory=dict)
    pair_errors: dict[str, Array] = field(default_factory=dict)
    num_networks: int = 1

    @classmethod
    def mean(cls, profiles: Iterable[OrderProfile]) -> OrderProfile:
        """The mean over several networks of the same layers, with standard errors over networks.

        The standard deviation over networks is the error times the root of their number.
        """
        found = list(profiles)
        if len(found) < 2 or len({(p.names, *p.pairs) for p in found}) > 1:
            layers = [len(p.names) for p in found]
            raise InputError(
                "A mean over networks needs two or more profiles of the same layers, measured "
                f"alike. Got {len(found)} profiles of {layers} layers."
            )

        def averaged(name: str) -> tuple[dict[str, Array], dict[str, Array]]:
            tables = [getattr(p, name) for p in found]
            keys = [k for k in tables[0] if all(k in t for t in tables)]
            stacks = {k: np.stack([t[k] for t in tables]) for k in keys}
            means = {k: np.asarray(s.mean(axis=0)) for k, s in stacks.items()}
            return means, {k: standard_error_of(s) for k, s in stacks.items()}

        measured, errors = averaged("measured")
        across, across_errors = averaged("across")
        pairs, pair_errors = averaged("pairs")
        return replace(
            found[0], measured=measured, errors=errors, theory=averaged("theory")[0],
            across=across, across_errors=across_errors, pairs=pairs, pair_errors=pair_errors,
            num_networks=len(found),
        )  # fmt: skip

    def ratio(self, name: str) -> Array:
        """Measured over predicted, (layers,); NaN where the theory has no number."""
        check_choice("order parameter", name, self.measured)
        if not self.theory:
            return np.full(len(self.names), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.measured[name] / self.theory[name])

    def correlation(self) -> Array:
        """q_st / q of each layer: how alike two samples look to it, (layers,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.measured["q_st"] / self.measured["q"])

    def to_frame(self) -> DataFrame:
        """One row per layer: each number, its error, the theory's, and the ratio."""
        rows = {name: self._row(i) for i, name in enumerate(self.names)}
        layers = self.coverage.layers
        return framed([layer.numbered_row(**rows.get(layer.name, {})) for layer in layers])

    def _row(self, i: int) -> dict[str, Any]:
        row: dict[str, Any] = {"coupled": bool(self.coupled[i])}
        for name, values in self.measured.items():
            predicted = float(self.theory[name][i]) if self.theory else float("nan")
            row |= {name: float(values[i]), f"{name}_error": float(self.errors[name][i])}
            row |= {f"{name}_theory": predicted, f"{name}_ratio": float(self.ratio(name)[i])}
            if name in self.across:
                row[re.sub("(_st)?$", r"_ab\1", name, count=1)] = float(self.across[name][i])
        return row

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"order parameters of {len(self.names)} layers on {self.num_samples} samples"
            f"{f', mean over {self.num_networks} networks' if self.num_networks > 1 else ''}: "
            "q-hat of inputs, q of outputs (per unit), q-tilde of d outputs / d output of the layer"
        ]
        for name in ("q", "qtilde"):
            if np.isfinite(self.measured[name]).all():
                lines.append(f"  {name}: {self._course(name)}")
        c = self.correlation()
        lines.append(
            f"  two samples correlate {c[0]:.3g} at the first layer, {c[-1]:.3g} at the last"
        )
        lines += [f"  no q-tilde: {self.backward_reason}"] if self.backward_reason else []
        return "\n".join([*lines, *self._theory_lines(), self.coverage.summary()])

    def _course(self, name: str) -> str:
        values = self.measured[name]
        if len(values) < 2 or not (values > 0).all():
            return " ".join(f"{v:.3g}" for v in values)
        rate = (values[-1] / values[0]) ** (1 / (len(values) - 1))
        ends = f"{values[0]:.3g} at the first layer, {values[-1]:.3g} at the last"
        return f"{ends}, x {rate:.3g} a layer"

    def _theory_lines(self) -> list[str]:
        if not self.theory:
            return [f"  theory does not apply: {self.theory_reason}"]
        lines = ["  measured / theory (1 for a wide random network; training moves it):"]
        for name in self.measured:
            clear = np.abs(self.measured[name]) > CLEAR * self.errors[name]
            found = self.ratio(name)[clear & np.isfinite(self.ratio(name))]
            if len(found):
                lines.append(f"    {name}: {found.min():.3g} to {found.max():.3g}")
        return [*lines, *(f"  {note}" for note in self.theory_notes)]

    def __repr__(self) -> str:
        with_theory = "with theory" if self.theory else "without theory"
        return f"OrderProfile({len(self.names)} layers, {self.num_samples} samples, {with_theory})"
