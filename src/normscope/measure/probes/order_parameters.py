"""Order parameters of a real network: lengths and overlaps of its signals and sensitivities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.measure.probes._order_theory import OrderTheory, order_theory
from normscope.measure.probes._overlaps import OverlapMoments, Overlaps
from normscope.measure.probes.probe import Pass, Probe, SkipLayer
from normscope.measure.probes.run import Layers, Passes, run_probes
from normscope.measure.probes.sites import Site
from normscope.results.order_parameters import OrderProfile
from normscope.seeds import numpy_generator
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.session import original_module

THEORY_SAMPLES = 512  # inputs whose pairs the theory is given


@measurement
def order_parameters(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
    directions: int = 10,
    num_pairs: int = 0,
) -> OrderProfile:
    r"""Order parameters of every weighted layer, measured on data, beside the theory's.

    .. math:: \hat q^{l-1}_{st} = \frac{h^{l-1}(s)\cdot h^{l-1}(t)}{M_{l-1}},\quad
              q^l_{st} = \frac{u^l(s)\cdot u^l(t)}{M_l},\quad
              \tilde q^l_{st} = \delta^l(s)\cdot\delta^l(t),\ \delta^l_k = \partial f_k/\partial u^l

    with h the input and u the output of layer l, f the outputs of the network; averaged over
    samples (s = t: ``q``, ``qhat``, ``qtilde``), over pairs of one batch (``_st``), over outputs k
    and positions (q-tilde is summed over positions). Behind a layer whose samples are coupled by
    batch statistics, q-tilde is of sum_a delta(s; a).delta(t; a), delta(t; a) = d f(t)/d u(a).
    Of feature maps, ``across`` has the same for two different positions (Wei et al. 2019, (31) and
    (33)). ``OrderProfile.mean`` averages over several networks.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: not needed.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for dropout, random directions and the order of a data set.
        directions: backward passes per batch; with no more outputs than this the mean over
            outputs is exact, otherwise it is taken over so many random combinations of them.
        num_pairs: keep the overlaps of so many single pairs of samples, (0, 1), (2, 3), ... of the
            first batch, as ``pairs``; the order of a data set is drawn from ``seed``.

    Returns:
        Six numbers a layer with standard errors, and what the theory gives for a random network
        of the same variances on the same inputs, or the reason why it gives nothing.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> profile = order_parameters(net, (torch.ones(4, 8), None))
        >>> profile.names, float(profile.measured["qhat"][0])
        (('0', '2'), 1.0)
    """
    singles = checked_count(num_pairs, "num_pairs", least=0)
    probe = _OrderProbe(checked_count(directions, "directions"), seed, singles)
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed, required=False)
    passes = run_probes(problem, [probe], num_batches, statistics, layers)
    theory = probe.theory(original_module(model), statistics)
    return _profile(probe, passes, theory, seed)


class _OrderProbe(Probe):
    keeps_graph = True

    def __init__(self, directions: int, seed: int, num_pairs: int) -> None:
        self._directions = directions
        self.num_pairs = num_pairs
        self._random = numpy_generator(seed, "order parameters")
        self._size = 0
        self._example: Any = None
        self._grams: list[np.ndarray[Any, Any]] = []
        self.hats: dict[str, OverlapMoments] = {}
        self.lengths: dict[str, OverlapMoments] = {}
        self.tildes: dict[str, OverlapMoments] = {}
        self.shapes: dict[str, tuple[int, int]] = {}  # positions, channels of an output
        self.coupled: set[str] | None = None
        self.numbers: dict[str, int] = {}
        self.backward_reason = ""

    def sees(self, site: Site, *, selected: bool, gradients: bool) -> bool:
        return selected and site.kind in self.watches

    def starting(self, batch: Batch) -> None:
        if self._size == 0 and batch.size < 2 * self.num_pairs:
            raise InputError(
                f"num_pairs={self.num_pairs} needs {2 * self.num_pairs} samples in the first "
                f"batch, which has {batch.size}. Ask for fewer pairs, or use a larger batch_size."
            )
        self._size = batch.size

    def _take_inputs(self, inputs: Any) -> None:
        """What the theory is given."""
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            self._example = inputs if self._example is None else self._example
            room = THEORY_SAMPLES - sum(len(gram) for gram in self._grams)
            flat = inputs.detach()[:room].flatten(1).double()
            if len(flat) > 1:
                self._grams.append((flat @ flat.T / flat.shape[1]).cpu().numpy())

    def entering(self, site: Site, x: Tensor) -> None:
        self.numbers[site.name] = site.layer
        rows = Overlaps.of(self._rows(site, x), self.num_pairs)
        self.hats.setdefault(site.name, OverlapMoments()).add(rows)

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        rows = self._rows(site, out)
        self.shapes[site.name] = (rows.shape[1], rows.shape[2])
        overlaps = Overlaps.of(rows, self.num_pairs)
        self.lengths.setdefault(site.name, OverlapMoments()).add(overlaps)

    def _rows(self, site: Site, signal: Tensor) -> Tensor:
        rows = site.rows(signal)
        if len(rows) != self._size:
            raise SkipLayer(
                f"its signal has {len(rows)} rows for a batch of {self._size} samples, so that "
                "samples cannot be told apart"
            )
        return rows

    def finished(self, run: Pass) -> None:
        self._take_inputs(run.model_inputs)
        outputs = float_leaves(run.outputs)
        if not any(o.requires_grad for o in outputs):
            self.backward_reason = "no output depends on the parameters"
        elif any(o.ndim == 0 or len(o) != self._size for o in outputs if o.requires_grad):
            shapes = [tuple(o.shape) for o in outputs]
            self.backward_reason = f"the outputs {shapes} are not one row a sample"
        else:
            self._backward(run, outputs)

    def _backward(self, run: Pass, outputs: Sequence[Tensor]) -> None:
        slopes = self._slopes(outputs)
        if self.coupled is None:
            self.coupled = self._coupled(run, slopes[0])
        found: dict[str, list[Overlaps]] = {}
        for slope in slopes:
            equal = self._replayed(run, slope)
            if self.coupled:
                signed = self._replayed(run, self._signed(slope))
                both = self.coupled & equal.keys() & signed.keys()
                equal |= {n: Overlaps.coupled(equal[n], signed[n]) for n in both}
            for name, overlaps in equal.items():
                found.setdefault(name, []).append(overlaps)
        for name, several in found.items():
            self.tildes.setdefault(name, OverlapMoments()).add(Overlaps.mean(several))

    def _slopes(self, outputs: Sequence[Tensor]) -> list[list[Tensor]]:
        """Directions in the space of outputs, the same for every sample: C times the mean is 1."""
        sizes = [o[0].numel() for o in outputs]
        total = sum(sizes)
        if total <= self._directions:
            vectors = np.eye(total)
        else:
            shape = (self._directions, total)
            vectors = self._random.choice([-1.0, 1.0], shape) / math.sqrt(total)
        made = []
        for vector in vectors:
            parts = zip(np.split(vector, np.cumsum(sizes)[:-1]), outputs, strict=True)
            columns = [(torch.as_tensor(part).to(o), o) for part, o in parts]
            made.append([column.reshape(o[:1].shape).expand_as(o) for column, o in columns])
        return made

    def _signed(self, slopes: list[Tensor]) -> list[Tensor]:
        signs = torch.as_tensor(self._random.choice([-1.0, 1.0], self._size))
        return [s * signs.to(s).reshape(-1, *[1] * (s.ndim - 1)) for s in slopes]

    def _coupled(self, run: Pass, slopes: list[Tensor]) -> set[str]:
        """Layers through which the first half of the samples moves outputs of the second."""
        half = self._size // 2
        found: set[str] = set()

        def tell(site: Site, g: Tensor) -> None:
            if bool(site.rows(g)[half:].any()):
                found.add(site.name)

        keep = torch.arange(self._size) < half
        run.replayed([s * keep.to(s).reshape(-1, *[1] * (s.ndim - 1)) for s in slopes], tell)
        return found

    def _replayed(self, run: Pass, slopes: Sequence[Tensor]) -> dict[str, Overlaps]:
        found: dict[str, Overlaps] = {}

        def tell(site: Site, g: Tensor) -> None:
            rows = site.rows(g)
            if len(rows) == self._size:
                found[site.name] = Overlaps.of(rows, self.num_pairs)

        run.replayed(slopes, tell)
        return found

    def theory(self, model: nn.Module, statistics: str) -> OrderTheory:
        """The theory's numbers for the inputs seen."""
        if self._example is None:
            return OrderTheory(reason="the theory takes one tensor of inputs")
        if not self._grams:
            return OrderTheory(reason="one sample has no pairs: pass batches of two or more")
        return order_theory(model, self._example, self._grams, statistics=statistics)


def _profile(probe: _OrderProbe, passes: Passes, theory: OrderTheory, seed: int) -> OrderProfile:
    names = tuple(layer.name for layer in passes.coverage[0].ok)
    measured: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    across: dict[str, Any] = {}
    across_errors: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    places, channels = np.array([probe.shapes[n] for n in names]).reshape(-1, 2).T
    # Pixels are no draw of random units: the input of the first layer has no error over them.
    inner = [probe.numbers[n] > 1 for n in names]
    every = [True] * len(names)
    empty = OverlapMoments()
    kinds: dict[str, tuple[list[OverlapMoments], list[bool], Any, Any]] = {
        "q": ([probe.lengths[n] for n in names], every, 1, 1),
        "qhat": ([probe.hats[n] for n in names], inner, 1, 1),
        "qtilde": (
            [probe.tildes.get(n, empty) for n in names], every,
            places * channels, places * (places - 1) * channels,
        ),
    }  # fmt: skip
    for name, (found, units, factor, factor_across) in kinds.items():
        for key, method in ((name, OverlapMoments.own), (f"{name}_st", OverlapMoments.pair)):
            same = [method(m, units=u) for m, u in zip(found, units, strict=True)]
            apart = [method(m.across, units=u) for m, u in zip(found, units, strict=True)]
            measured[key], errors[key] = factor * np.array(same).reshape(-1, 2).T
            across[key], across_errors[key] = factor_across * np.array(apart).reshape(-1, 2).T
        if probe.num_pairs:
            lacking = np.full(probe.num_pairs, math.nan)
            rows = [m.singles.numpy() if len(m.singles) else lacking for m in found]
            pairs[f"{name}_st"] = (factor * np.array(rows).T).T
    coupled = probe.coupled or set()
    return OrderProfile(
        names=names,
        measured=measured,
        errors=errors,
        theory={name: theory.at(name, names) for name in measured} if theory.order else {},
        theory_reason=theory.reason,
        theory_notes=theory.notes,
        backward_reason=probe.backward_reason,
        coupled=np.array([n in coupled for n in names]),
        positions=places,
        across=across,
        across_errors=across_errors,
        pairs=pairs,
        **passes.record() | {"seed": seed},
    )
