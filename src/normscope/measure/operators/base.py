"""The one interface between what a matrix is and what is asked of it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure.progress import progress
from normscope.measure.risk import Risk, checked_risk

# Several vectors at once save the overhead of small networks (half to four fifths of the time);
# from some MB of activations on a loop is as fast, and takes less memory.
VECTORIZED_BYTES = 32e6
VECTORIZED_ROW = 2e6
DENSE_LIMIT = 20_000  # rows or columns that `to_dense` accepts without being asked twice


class LinearOperator(ABC):
    """A real matrix known by its products.

    Concrete operators implement ``_forward`` (and ``_adjoint`` if not symmetric) on a stack of
    vectors; ``matvec``, ``matmat``, ``@`` and ``to_dense`` are implemented here, once.

    Attributes:
        shape: (rows, columns).
        dtype: type of the vectors it takes and gives.
        device: where those vectors live.
        symmetric: A = A^T, declared and tested.
        psd: symmetric without negative eigenvalues, declared and tested.
        convention: what was measured and how (loss, parameters, statistics, samples), in words.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        symmetric: bool = False,
        psd: bool = False,
        convention: dict[str, str] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = torch.device(device)
        self.symmetric = symmetric or psd
        self.psd = psd
        self.convention = dict(convention or {})

    @abstractmethod
    def _forward(self, vectors: Tensor) -> Tensor:
        """Products with a stack of vectors, (k, columns) -> (k, rows)."""

    def _adjoint(self, vectors: Tensor) -> Tensor:
        """Products of the transpose, (k, rows) -> (k, columns)."""
        if self.symmetric:
            return self._forward(vectors)
        raise InputError(f"{type(self).__name__} has no products with its transpose.")

    def matvec(self, vector: Tensor) -> Tensor:
        """A v, (columns,) -> (rows,)."""
        self._check(vector, (self.shape[1],), "matvec")
        return self._forward(vector[None])[0]

    def rmatvec(self, vector: Tensor) -> Tensor:
        """A^T v, (rows,) -> (columns,)."""
        self._check(vector, (self.shape[0],), "rmatvec")
        return self._adjoint(vector[None])[0]

    def matmat(self, matrix: Tensor) -> Tensor:
        """A V for several vectors at once, (columns, k) -> (rows, k)."""
        self._check(matrix, (self.shape[1], matrix.shape[-1]), "matmat")
        return self._forward(matrix.T).T

    def rmatmat(self, matrix: Tensor) -> Tensor:
        """A^T V for several vectors at once, (rows, k) -> (columns, k)."""
        self._check(matrix, (self.shape[0], matrix.shape[-1]), "rmatmat")
        return self._adjoint(matrix.T).T

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matvec(other) if other.ndim == 1 else self.matmat(other)

    def __repr__(self) -> str:
        name = self.convention.get("matrix", type(self).__name__)
        tag = "psd" if self.psd else "symmetric" if self.symmetric else "general"
        return f"<{name}: {self.shape[0]} x {self.shape[1]}, {tag}, {self.dtype}, {self.device}>"

    def to_dense(self, *, limit: int = DENSE_LIMIT) -> Tensor:
        """The matrix itself, (rows, columns); refused above ``limit`` rows or columns."""
        rows, columns = self.shape
        if max(rows, columns) > limit:
            size = rows * columns * torch.finfo(self.dtype).bits / 8e9
            raise InputError(
                f"A dense {rows} x {columns} matrix would take {size:.1f} GB and is above the "
                f"limit of {limit} rows or columns. Ask for top_eigenvalues, trace or "
                "spectral_density, which need products only, restrict it to a layer, "
                "or raise limit=..."
            )
        step = 128
        blocks = []
        for start in range(0, columns, step):
            width = min(step, columns - start)
            unit = torch.zeros(width, columns, dtype=self.dtype, device=self.device)
            unit[torch.arange(width), torch.arange(start, start + width)] = 1
            blocks.append(self._forward(unit))
        return torch.cat(blocks).T

    def _check(self, tensor: Tensor, shape: tuple[int, ...], verb: str) -> None:
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"{verb} of a {self.shape[0]} x {self.shape[1]} operator takes a tensor of shape "
                f"{shape}. Got {tuple(tensor.shape)} instead."
            )
        if tensor.dtype != self.dtype or tensor.device.type != self.device.type:
            raise InputError(
                f"{verb} takes {self.dtype} on {self.device}. Got {tensor.dtype} on "
                f"{tensor.device}. Convert it with vector.to(operator.device, operator.dtype)."
            )


class TensorOperator(LinearOperator):
    """A dense matrix as an operator, for tests and for small problems.

    Example:
        >>> import torch
        >>> TensorOperator(torch.diag(torch.tensor([2.0, 1.0])), psd=True) @ torch.ones(2)
        tensor([2., 1.])
    """

    def __init__(self, matrix: Tensor, *, symmetric: bool = False, psd: bool = False) -> None:
        rows, columns = matrix.shape
        super().__init__((rows, columns), matrix.dtype, matrix.device, symmetric=symmetric, psd=psd)
        self._matrix = matrix

    def _forward(self, vectors: Tensor) -> Tensor:
        return vectors @ self._matrix.T

    def _adjoint(self, vectors: Tensor) -> Tensor:
        return vectors @ self._matrix


class Groups:
    """Applies a map to several rows at once where that works and pays, else one by one."""

    def __init__(self, bytes_per_row: float) -> None:
        small = bytes_per_row <= VECTORIZED_ROW
        self._size = int(VECTORIZED_BYTES // max(bytes_per_row, 1.0)) if small else 1

    def apply(
        self, group: Callable[[Tensor], Tensor], one: Callable[[Tensor], Tensor], vectors: Tensor
    ) -> Tensor:
        """The results for all rows of ``vectors``, stacked."""
        if len(vectors) == 1:
            return one(vectors[0])[None]
        if self._size > 1:
            try:
                return self._at_once(group, vectors)
            except (RuntimeError, Warning):
                self._size = 1
        return torch.stack([one(vector) for vector in vectors])

    def _at_once(self, group: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a missing batching rule: slower than a loop
            starts = range(0, len(vectors), self._size)
            return torch.cat([group(vectors[i : i + self._size]) for i in starts])


def summed(what: str, products: Iterator[Tensor], count: int) -> Tensor:
    """The sum of one product per batch, with a progress bar where it takes long."""
    with progress(what, count) as tick:
        total = next(products)
        tick()
        for product in products:
            total += product
            tick()
    return total


def require_outputs(risk: Risk, what: str) -> None:
    """Refuse a risk that was made from a loss alone."""
    if not checked_risk(risk, what).has_outputs:
        raise InputError(
            f"{what} needs the outputs of the model, and Risk.from_loss_fn hides them inside "
            "loss_fn. Use Risk or Risk.from_batches with loss=..., or ask for hessian(risk)."
        )
