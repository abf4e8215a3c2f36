"""Every non-zero eigenvalue of the Fisher matrix, through the Gram matrix of gradients.

T F*_{(s,k),(t,k')} = sum over layers of (delta_k(s) . delta_k'(t)) (h(s) . h(t)): per layer the
Hadamard product of two small Gram matrices, from one backward pass per output (Karakida S.3). The
Jacobian is never formed. One product of the exact operator certifies the result; where samples are
coupled by batch statistics, or a layer is of unknown form, the exact products are used throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.errors import InputError, MeasurementError
from normscope.measure._output_norms import output_map
from normscope.measure.operators.base import require_outputs
from normscope.measure.operators.blocks import sub_parameters
from normscope.measure.operators.fisher import FisherOperator, fisher
from normscope.measure.operators.jacobian import JacobianOperator
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.taps import Names, Tap, Taps
from normscope.measure.progress import progress
from normscope.measure.risk import Risk
from normscope.registry import check_choice
from normscope.results.gram import GramSpectrum
from normscope.spec import LAST_NORMS
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.memory import readable_bytes
from normscope.subject.process import measurement

PAIR_BLOCK = 2e7  # entries of a block of pairs of positions
COLUMNS = 64  # of a Gram matrix that are made at a time by products
LIMIT = 20_000  # rows of a Gram matrix that are diagonalised without being asked twice


@overload
def gram_spectrum(
    risk: Risk,
    *,
    last_norm: str | None = ...,
    layers: str | Sequence[str] | None = ...,
    limit: int = ...,
) -> GramSpectrum: ...
@overload
def gram_spectrum(
    risk: Risk,
    *,
    last_norm: tuple[str | None, ...] | list[str | None],
    layers: str | Sequence[str] | None = ...,
    limit: int = ...,
) -> tuple[GramSpectrum, ...]: ...
@measurement
def gram_spectrum(
    risk: Risk,
    *,
    last_norm: str | tuple[str | None, ...] | list[str | None] | None = None,
    layers: str | Sequence[str] | None = None,
    limit: int = LIMIT,
) -> GramSpectrum | tuple[GramSpectrum, ...]:
    r"""All non-zero eigenvalues of the true Fisher matrix.

    .. math:: F = R R^\top,\quad F^* = R^\top R,\quad
              F^*_{(s,k)(t,k')} = \frac1T\sum_l (\delta^l_k(s)\cdot\delta^l_{k'}(t))
              (h^{l-1}(s)\cdot h^{l-1}(t) + 1_{\mathrm{bias}})

    Args:
        risk: what to measure; for ``"mse"`` the matrix is J^T J / T.
        last_norm: apply a norm on the outputs analytically: ``"mean"`` (batch mean subtracted),
            ``"variance"`` (divided by the batch standard deviation), ``"batch"`` or ``"layer"``,
            without gain and shift; squared loss only. Several, such as ``(None, "mean")``, give a
            tuple of spectra in that order from one Gram matrix.
        layers: restrict to layers, names or globs of parameters.
        limit: refuse Gram matrices of more rows (samples x outputs).

    Example:
        >>> model = nn.Linear(2, 1, bias=False).double()
        >>> risk = Risk(model, torch.eye(2).double(), loss="mse", statistics="batch")
        >>> gram_spectrum(risk).values.round(6)
        array([0.5, 0.5])
    """
    several = isinstance(last_norm, tuple | list)
    norms = tuple(last_norm) if isinstance(last_norm, tuple | list) else (last_norm,)
    if not norms:
        raise InputError("last_norm is empty: no spectrum was asked for. Name a norm, or None.")
    for name in norms:
        if name is not None:
            check_choice("last_norm", name, LAST_NORMS)
    matrix, route, operator = _scaled_gram(risk, layers, limit)
    outputs = operator.dual.shape[0] // risk.num_samples if operator.dual else 1
    made = []
    for name in norms:
        normed = matrix if name is None else output_map(risk, name).congruence(matrix)
        values = torch.linalg.eigvalsh(normed).flip(0).double().cpu().numpy()
        noise = torch.finfo(matrix.dtype).eps * len(values) * max(float(values[0]), 0.0)
        found = GramSpectrum(
            values=values[values > noise],
            size=len(values),
            floor=noise,
            trace=float(values.sum()),
            samples=risk.num_samples,
            outputs=outputs,
            route=route,
            last_norm=name,
            convention=operator.convention,
        )
        made.append(found)
    operator.close()
    return tuple(made) if several else made[0]


def gram_matrix(
    risk: Risk, *, last_norm: str | None = None, layers: str | Sequence[str] | None = None
) -> Tensor:
    """F* itself, (rows, rows); row t C + k is output k of sample t, batches one after another.

    For losses other than the squared one the rows are those of S^T J J^T S.
    """
    matrix, _, operator = _scaled_gram(risk, layers, LIMIT)
    operator.close()
    return matrix if last_norm is None else output_map(risk, last_norm).congruence(matrix)


def _scaled_gram(
    risk: Risk, layers: str | Sequence[str] | None, limit: int
) -> tuple[Tensor, str, FisherOperator]:
    require_outputs(risk, "The Gram matrix")
    if risk.sharing is not None:
        raise InputError(
            "The Gram matrix has one row per output of every sample, and no process holds all of "
            "them. Ask for top_eigenvalues(fisher(risk)), which needs products only."
        )
    operator = fisher(risk, layers=layers)
    dual = operator.dual
    if dual is None:
        raise InputError(
            "The Gram matrix needs a loss whose Hessian in the outputs has a known square root "
            f"('mse', 'cross_entropy', BCEWithLogitsLoss, ...). Got {risk.loss.description}. Use "
            "top_eigenvalues(fisher(risk)), which needs products only."
        )
    rows = dual.shape[0]
    if rows > checked_count(limit, "limit"):
        size = rows**2 * torch.finfo(dual.dtype).bits / 8
        raise InputError(
            f"The Gram matrix would have {rows} rows ({readable_bytes(size)}), above the limit of "
            f"{limit}. Use fewer samples, ask for top_eigenvalues(fisher(risk), k=...), or raise "
            "limit=..."
        )
    matrix = _layerwise(risk, operator, layers)
    route = "layer by layer"
    if matrix is None or not _certified(matrix, operator):
        matrix, route = dual.to_dense(limit=rows), f"{rows} exact products"
    return (matrix + matrix.T) / 2, route, operator


def _certified(matrix: Tensor, operator: FisherOperator) -> bool:
    """One product of the exact operator with a fixed vector: the same to rounding, or not used."""
    dual = operator.dual
    assert dual is not None
    index = torch.arange(len(matrix), device=matrix.device, dtype=matrix.dtype)
    vector = torch.cos(1.0 + 1.7 * index)
    exact, found = dual.matvec(vector), matrix @ vector
    tolerance = torch.finfo(matrix.dtype).eps ** 0.6
    return bool((exact - found).norm() <= tolerance * exact.norm() + 1e-30)


def _layerwise(
    risk: Risk, operator: FisherOperator, layers: str | Sequence[str] | None
) -> Tensor | None:
    """S^T J J^T S from taps, or None where the network does not allow it."""
    function = risk.function()
    if function.coupled:
        return None
    wanted = function.parameters
    if layers is not None:
        wanted = sub_parameters(risk, wanted, layers)
    parts = [_BatchFactors.of(risk, batch, set(wanted.names)) for batch in risk.batches]
    if any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    groups = [names for names in found[0].groups if all(names in part.groups for part in found)]
    total: Tensor | None = None
    with progress("Gram matrix", len(groups)) as tick:
        for names in groups:
            term = _parameter_gram(names, found)
            total = term if total is None else total.add_(term)
            tick()
    covered = {name for names in groups for name in names}
    rest = [name for name in wanted.names if name not in covered]
    if rest:
        inner = function.restricted(wanted.subset(rest, "the rest"))
        term = _gram_by_products(JacobianOperator(risk, inner))
        total = term if total is None else total.add_(term)
    if total is None:
        return None
    half = _gathered(risk, total, found)  # S^T G S, batch by batch, with the weight of each
    return _gathered(risk, half.T.contiguous(), found)


def _gram_by_products(jacobian: JacobianOperator) -> Tensor:
    """J J^T some columns at a time; J itself has as many columns as there are parameters."""
    eye = torch.eye(jacobian.shape[0], dtype=jacobian.dtype, device=jacobian.device)
    try:
        columns = [jacobian.matmat(jacobian.rmatmat(unit.T)) for unit in torch.split(eye, COLUMNS)]
    finally:
        jacobian.close()
    return torch.cat(columns, dim=1)


def _gathered(risk: Risk, matrix: Tensor, parts: list[_BatchFactors]) -> Tensor:
    columns, start = [], 0
    for part in parts:
        size = part.outputs.numel()
        root = risk.loss.root(part.outputs)
        assert root is not None
        columns.append(part.weight**0.5 * root.gather(matrix[:, start : start + size]))
        start += size
    return _joined(columns, dim=1)


def _joined(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Concatenated, without a copy where there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)


class _BatchFactors:
    """What J J^T needs of one batch, by groups of parameters: factors (x, d), or per-sample rows.

    A group is the name of one parameter, or of the weight and the bias of one layer.
    """

    def __init__(self, outputs: Tensor, weight: float, risk: Risk) -> None:
        self.outputs = outputs
        self.weight = weight
        self._samples = risk.num_samples  # over all batches: the form must be the same in each
        self._budget = risk.budget
        self.factors: dict[Names, tuple[Tensor, Tensor]] = {}  # (T, K, in), (T, C, K, out)
        self.rows: dict[Names, Tensor] = {}  # (T, C, entries)

    @property
    def groups(self) -> list[Names]:
        """Groups of parameters whose gradients are known."""
        return [*self.factors, *self.rows]

    @property
    def num_bytes(self) -> float:
        """Number of bytes in use."""
        tensors = [*self.rows.values(), *(t for pair in self.factors.values() for t in pair)]
        return float(sum(t.numel() * t.element_size() for t in tensors))

    @classmethod
    def of(cls, risk: Risk, batch: Batch, wanted: set[str]) -> _BatchFactors | None:
        """Factors of all tapped parameters, or None if outputs are not (samples, ...)."""
        taps = Taps(risk.model, wanted)
        capture = Capture(risk.model, taps)

        def run(model: nn.Module, inputs: Any) -> Any:
            capture.begin_pass()
            taps.begin(batch.size)
            return risk.objective.run(model, inputs)

        function = ModelFunction(
            risk.model, risk.parameters, risk.objective,
            statistics=risk.statistics, seed=risk.seed, run=run,
        )  # fmt: skip
        prepared = risk.function().prepared(batch)
        with function.open(), capture:
            with torch.enable_grad():
                outputs = function(function.values, prepared)
            leaves = float_leaves(outputs)
            if len(leaves) != 1 or leaves[0].ndim == 0 or leaves[0].shape[0] != batch.size:
                return None
            if not taps.found or not leaves[0].requires_grad:
                return None
            made = cls(leaves[0].detach(), batch.weight, risk)
            made._fill(taps.found, leaves[0].reshape(batch.size, -1))
        return made

    def _fill(self, taps: list[Tap], outputs: Tensor) -> None:
        offsets = [tap.offset for tap in taps]
        count = outputs.shape[1]
        uses = Counter(name for tap in taps for name in tap.names.values())
        for k in range(count):
            safe_point()
            grads = torch.autograd.grad(
                outputs[:, k].sum(), offsets, retain_graph=k + 1 < count, allow_unused=True
            )
            for tap, grad in zip(taps, grads, strict=True):
                delta = torch.zeros_like(tap.offset) if grad is None else grad
                for names, (x, d) in tap.factors(delta).items():
                    if x is not None and uses[names[0]] == 1 and self._keep_factors(x, d, count):
                        self._add_factors(names, x, d, k, count)
                    else:
                        self._add_rows(names, *tap.stored(x, d), k, count)
            if k == 0:  # all is allocated now, and hardly any of it touched
                self._require_room()

    def _require_room(self) -> None:
        share = self._samples / len(self.outputs)
        needed = self.num_bytes * share
        if needed > self._budget:
            raise MeasurementError(
                f"The layer-wise Gram matrix needs {readable_bytes(needed)} for the slopes of all "
                f"layers, and the budget is {readable_bytes(self._budget)}. Use fewer samples, "
                "raise memory=..., or ask for top_eigenvalues(fisher(risk), k=...)."
            )

    def _keep_factors(self, x: Tensor, d: Tensor, count: int) -> bool:
        """Whether the Hadamard product of Gram matrices over positions costs less."""
        rows, positions = self._samples * count, x.shape[1]
        size_in, size_out = x.shape[2], d.shape[2]
        pairs = (rows * positions) ** 2 * (size_out + 1)
        pairs += (self._samples * positions) ** 2 * size_in
        return pairs < (rows * positions + rows**2) * size_in * size_out

    def _add_factors(self, names: Names, x: Tensor, d: Tensor, k: int, count: int) -> None:
        if names not in self.factors:
            self.factors[names] = (x, d.new_empty(d.shape[0], count, *d.shape[1:]))
        self.factors[names][1][:, k] = d

    def _add_rows(self, names: Names, x: Tensor | None, d: Tensor, k: int, count: int) -> None:
        """Sum over positions of d x^T, added to what other uses of the parameter gave."""
        row = d.sum(1) if x is None else torch.einsum("tko,tki->toi", d, x).flatten(1)
        if names not in self.rows:
            self.rows[names] = row.new_zeros(row.shape[0], count, row.shape[1])
        self.rows[names][:, k] += row


def _parameter_gram(names: Names, parts: list[_BatchFactors]) -> Tensor:
    """J J^T of a group of parameters over all batches: rows (sample, output), batches stacked."""
    if names in parts[0].rows:
        rows = _joined([part.rows[names].flatten(0, 1) for part in parts])
        return rows @ rows.T
    x = _joined([part.factors[names][0] for part in parts])
    d = _joined([part.factors[names][1] for part in parts])
    samples, outputs, positions, width = d.shape
    slopes = d.reshape(-1, width)
    if positions == 1:
        gram = slopes @ slopes.T
        gram.view(samples, outputs, samples, outputs).mul_((x[:, 0] @ x[:, 0].T)[:, None, :, None])
        return gram
    flat = x.reshape(samples * positions, -1)
    blocks = []
    step = max(1, int(PAIR_BLOCK // (outputs * positions * len(slopes))))
    for start in range(0, samples, step):
        some = d[start : start + step]
        left = (some.reshape(-1, width) @ slopes.T).view(-1, outputs, positions, *d.shape[:3])
        right = (x[start : start + step].reshape(-1, flat.shape[1]) @ flat.T).view(
            -1, positions, samples, positions
        )
        block = torch.einsum("tcasdb,tasb->tcsd", left, right)
        blocks.append(block.reshape(len(some) * outputs, -1))
    return torch.cat(blocks)
