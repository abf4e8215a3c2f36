"""How batch norm regularizes: variances, gamma decay and loss gaps of every layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import near_match
from normscope.results.base import DataFrame, Drawable, framed

FAR = 0.25  # share by which the paper's form may miss the complete one before it is said
ADDING = 0.1  # share by which the sum of the layers may miss the whole before it is said
KINKED = 0.1  # share of curvature outside the Hessian before it is said
SURE = 2  # standard errors before a difference is spoken of
ALL = "(all)"  # the row of all layers together
# columns of a table, in two parts, and where one is kept under another name
_NOISE = ("effective_batch_size", "mean_variance", "deviation_variance")
_GAPS = (
    *("zeta", "mean_share", "paper", "first_order", "second_order", "formula", "formula_error"),
    *("predicted", "predicted_error", "measured", "measured_error", "ratio", "ratio_error"),
)
_STORED = {"formula_error": "second_order_error", "predicted_error": "wide_second_order_error"}


@dataclass(frozen=True, eq=False, repr=False)
class LayerRegularization(Record):
    r"""One batch-norm layer over several batch sizes M.

    ``paper`` is the diagonal form :math:`\sum_i \zeta_i\gamma_i^2`, ``formula`` the complete gap
    R_f + R_q to order 1/M, ``predicted`` the same with the curvature averaged over the width of
    the noise, which sees the kinks of ReLU and max-pooling; ``measured`` has this layer under
    batch statistics and the others under population statistics.
    """

    layer: str
    kind: str  # class of the layer
    positions: int  # values per sample and channel
    batch_sizes: NDArray[np.int64]  # (M,)
    gamma: Array  # (channels,)
    excess_kurtosis: Array  # (channels,) of the layer's input
    skewness: Array  # (channels,)
    mean_variance: Array  # (M, channels) Var(mu_B) / sigma_P^2, exact
    deviation_variance: Array  # (M, channels) Var(sigma_B) / sigma_P^2; exact to order 1/M
    zeta_mean: Array  # (M, channels) gamma decay from the batch mean
    zeta_deviation: Array  # (M, channels) from the batch deviation
    first_order: Array  # (M,) R_f
    second_order: Array  # (M,) R_q, from the Hessian
    second_order_error: Array  # (M,) standard error of the probes; 0 if exact
    wide_second_order: Array  # (M,) R_q, from symmetric differences as wide as the noise
    wide_second_order_error: Array  # (M,) standard error of the probes, not of the expansion
    measured: Array  # (M,)
    measured_error: Array  # (M,) standard error over batches
    curvature: str  # how the curvature behind zeta was had
    scaled: bool = True  # the layer has scales to decay (affine=True); else gamma is its gain

    @property
    def zeta(self) -> Array:
        """Gamma decay of every channel, (M, channels); negative where the loss curves down."""
        return self.zeta_mean + self.zeta_deviation

    @property
    def formula(self) -> Array:
        """R_f + R_q to order 1/M, (M,); without the kinks of ReLU and max-pooling."""
        return self.first_order + self.second_order

    @property
    def predicted(self) -> Array:
        """R_f + R_q with the curvature averaged over the width of the noise, (M,)."""
        return self.first_order + self.wide_second_order

    @property
    def paper(self) -> Array:
        """The diagonal form sum_i zeta_i gamma_i^2, (M,)."""
        return self.zeta @ self.gamma**2

    @property
    def mean_share(self) -> Array:
        """Part of ``paper`` that comes from the batch mean, (M,)."""
        total = self.paper
        return np.divide(
            self.zeta_mean @ self.gamma**2, total, out=np.zeros_like(total), where=total != 0
        )

    @property
    def effective_batch_size(self) -> Array:
        """Independent values whose mean would vary as much, mean over channels, (M,)."""
        variance = self.mean_variance.mean(axis=1)
        return np.divide(1.0, variance, out=np.full_like(variance, np.inf), where=variance > 0)

    @property
    def ratio(self) -> Array:
        """Measured over predicted gap, (M,)."""
        return self.measured / _nonzero(self.predicted)

    @property
    def ratio_error(self) -> Array:
        """Standard error of ``ratio``, (M,)."""
        error = np.hypot(self.measured_error, self.ratio * self.wide_second_order_error)
        return error / np.abs(_nonzero(self.predicted))

    def rows(self) -> list[dict[str, Any]]:
        """One row per batch size, means over channels."""
        numbers = {name: getattr(self, _STORED.get(name, name)) for name in (*_NOISE, *_GAPS)}
        law = {name: float(getattr(self, name).mean()) for name in ("excess_kurtosis", "skewness")}
        return [
            {"layer": self.layer, "batch_size": int(size), "channels": len(self.gamma)}
            | {name: float(np.mean(numbers[name][i])) for name in _NOISE}
            | law
            | {name: float(np.mean(numbers[name][i])) for name in _GAPS}
            for i, size in enumerate(self.batch_sizes)
        ]

    def __repr__(self) -> str:
        return f"LayerRegularization({self.layer!r}, {len(self.gamma)} channels)"


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormRegularization(Drawable):
    """The regularization that batch norm gives a network, by layer and batch size.

    ``together`` is the measured gap with all these layers under batch statistics: smaller than
    the sum of the layers' gaps where a later norm removes noise of an earlier one. ``everywhere``
    is that of all batch norms of the network, also those that were not asked for.

    The chart: gaps over the batch size, predicted and measured, one panel per layer.
    """

    layers: tuple[LayerRegularization, ...]
    batch_sizes: NDArray[np.int64]  # (M,)
    together: Array  # (M,) measured gap, all layers
    together_error: Array  # (M,) standard error over batches
    everywhere: Array  # (M,) measured gap, all layers of the network
    everywhere_error: Array  # (M,) standard error over batches
    population_loss: float  # mean loss under population norm
    samples: int  # of the population
    num_batches: int  # behind each measured gap
    sampling: str
    loss: str
    seed: int
    notes: tuple[str, ...] = ()
    convention: dict[str, Any] = field(default_factory=dict)  # every setting that was in effect

    def layer(self, name: str) -> LayerRegularization:
        """The layer called ``name``."""
        known = {layer.layer: layer for layer in self.layers}
        if name not in known:
            raise InputError(f"No measured layer is called {name!r}. {near_match(name, [*known])}")
        return known[name]

    def restoring_decay(self, batch_size: int, new_batch_size: int) -> dict[str, Array]:
        """The gamma decay that makes up for a change of batch size, by layer, (channels,) each.

        zeta at ``batch_size`` less zeta at ``new_batch_size``, at least 0, for
        ``fit(penalty=gamma_decay(...))``. Layers without scales (affine=False) are left out.
        """
        before, after = self._index(batch_size), self._index(new_batch_size)
        return {
            layer.layer: np.maximum(layer.zeta[before] - layer.zeta[after], 0.0)
            for layer in self.layers
            if layer.scaled
        }

    def advice(self) -> tuple[str, ...]:
        """What another batch size would change, and what would make up for it."""
        lines = []
        if len(self.batch_sizes) > 1:
            lines += [self._change(), self._remedy()]
        else:
            lines.append("Measure several batch sizes to see what a change would do.")
        lines += self._warnings()
        return tuple(lines)

    def to_frame(self) -> DataFrame:
        """One row per layer and batch size; the rows "(all)" are all layers together."""
        rows = [row for layer in self.layers for row in layer.rows()]
        for i, size in enumerate(self.batch_sizes):
            gap = {"measured": self.together[i], "measured_error": self.together_error[i]}
            rows.append({"layer": ALL, "batch_size": int(size), **gap})
        return framed(rows)

    def summary(self) -> str:
        """A table and the advice, for a terminal."""
        wide = max(len(ALL), *(len(layer.layer) for layer in self.layers)) + 1
        lines = [
            f"Loss under population norm {self.population_loss:.5g} ({self.loss}); "
            f"{self.samples} samples, {self.num_batches} batches each, seed {self.seed}; "
            "+- is one standard error",
            f"{'layer':<{wide}}{'M':>6}{'M_eff':>9}{'zeta':>10}{'from mean':>10}{'paper':>10}"
            f"{'formula':>10}{'predicted':>10}{'measured':>10}{'+-':>8}{'ratio':>9}{'+-':>8}",
        ]
        lines += [
            f"{row['layer']:<{wide}}{row['batch_size']:>6}{row['effective_batch_size']:>9.4g}"
            f"{row['zeta']:>10.3g}{row['mean_share']:>10.0%}{row['paper']:>10.3g}"
            f"{row['formula']:>10.3g}{row['predicted']:>10.3g}{row['measured']:>10.3g}"
            f"{row['measured_error']:>8.1g}{_ratio(row)}"
            for layer in self.layers
            for row in layer.rows()
        ]
        for size, gap, error in zip(
            self.batch_sizes, self.together, self.together_error, strict=True
        ):
            lines.append(f"{ALL:<{wide}}{size:>6}{'':>59}{gap:>10.3g}{error:>8.1g}")
        return "\n".join([*lines, *(f"- {line}" for line in (*self.advice(), *self.notes))])

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        return f"BatchNormRegularization({len(self.layers)} layers, batch sizes {sizes})"

    @staticmethod
    def _misses_kinks(layer: LayerRegularization) -> bool:
        """At the largest batch, where a smooth network's curvature is that of its Hessian."""
        missed = abs(layer.wide_second_order[-1] - layer.second_order[-1])
        error = np.hypot(layer.wide_second_order_error[-1], layer.second_order_error[-1])
        return bool(missed > KINKED * abs(layer.second_order[-1]) + 3 * error)

    @staticmethod
    def _kinks(layer: LayerRegularization) -> str:
        return (
            f"{layer.layer}: the Hessian sees a curvature of {layer.second_order[-1]:.3g}, the "
            f"noise one of {layer.wide_second_order[-1]:.3g} at batch size "
            f"{layer.batch_sizes[-1]}: kinks (ReLU, max-pooling) have no second derivative, and a "
            "confident network curves more further out."
        )

    def _index(self, batch_size: int) -> int:
        found = np.flatnonzero(self.batch_sizes == batch_size)
        if not len(found):
            sizes = ", ".join(map(str, self.batch_sizes))
            raise InputError(
                f"Batch size {batch_size!r} was not measured. Measured: {sizes}. Measure again "
                f"with batch_size=[..., {batch_size}]."
            )
        return int(found[0])

    def _change(self) -> str:
        small, large = int(self.batch_sizes[0]), int(self.batch_sizes[-1])
        low, high = float(self.together[0]), float(self.together[-1])
        errors = self.together_error
        part = f" ({low / self.population_loss:.2g} of the loss)" if self.population_loss else ""
        sure = SURE * np.hypot(errors[0], errors[-1])
        end = ": the larger batch regularizes less" if low - high > sure and high > 0 else ""
        return (
            f"From batch size {small} to {large} the loss that batch noise adds goes from "
            f"{low:.3g} +- {errors[0]:.1g}{part} to {high:.3g} +- {errors[-1]:.1g}{end}."
        )

    def _remedy(self) -> str:
        small, large = int(self.batch_sizes[0]), int(self.batch_sizes[-1])
        decay = self.restoring_decay(small, large)
        if not decay:
            return "No layer has scales to decay (affine=False), so that gamma decay has no hold."
        values = np.concatenate(list(decay.values()))
        per_sample = values.mean() / (1 / small - 1 / large)
        return (
            f"At batch size {large} a gamma decay of restoring_decay({small}, {large}) makes up "
            f"for it in the paper's form: {len(values)} scales, mean zeta {values.mean():.3g}, at "
            f"most {values.max():.3g}; or about zeta = {per_sample:.3g} (1/M_old - 1/M_new) for "
            "every scale."
        )

    def _warnings(self) -> list[str]:
        found = [_off_diagonal(layer) for layer in self.layers]
        found += [self._kinks(layer) for layer in self.layers if self._misses_kinks(layer)]
        total = float(sum(layer.measured[0] for layer in self.layers))
        spread = [layer.measured_error[0] for layer in self.layers] + [self.together_error[0]]
        missed = abs(self.together[0] - total)
        if missed > max(ADDING * abs(total), SURE * float(np.linalg.norm(spread))):
            found.append(
                f"Layers do not add: together {self.together[0]:.3g}, their sum {total:.3g} at "
                f"batch size {self.batch_sizes[0]}."
            )
        return [line for line in found if line]


def _off_diagonal(layer: LayerRegularization) -> str:
    """Where the paper's form misses the complete one at the smallest batch; empty if it does not.

    Differences within the error of the prediction are not spoken of.
    """
    complete, paper = float(layer.predicted[0]), float(layer.paper[0])
    error = SURE * float(layer.wide_second_order_error[0])
    if complete < -error:
        return (
            f"{layer.layer}: batch noise is predicted to lower the loss: the first-order term R_f "
            f"{layer.first_order[0]:.2g} outweighs R_q {layer.wide_second_order[0]:.2g}. The "
            "labels are not the model's own, and gamma decay does not imitate that."
        )
    if abs(paper - complete) <= FAR * abs(complete) + error:
        return ""
    forms = (
        f"{layer.layer}: the diagonal form behind zeta gives {paper:.2g}, the complete one "
        f"{complete:.2g}"
    )
    if complete <= error:
        return f"{forms}, zero within its error: gamma decay would do more than batch norm does."
    factor = complete / _nonzero(paper)
    return f"{forms}; multiply its decay by {factor:.2g} for the same total."


def _ratio(row: dict[str, Any]) -> str:
    """Ratio and its error; a dash where nothing is predicted (batches of all samples)."""
    if not row["predicted"]:
        return f"{'-':>9}"
    return f"{row['ratio']:>9.3g}{row['ratio_error']:>8.1g}"


def _nonzero(values: Any) -> Any:
    """The values, a tiny number in the place of zero: a ratio to nothing is huge, not NaN."""
    return np.where(np.asarray(values) == 0, np.finfo(float).tiny, values)
