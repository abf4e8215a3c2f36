"""Watching the signals of a network as it runs: hooks and functions of this model only.

A layer is known by what it computes: a product with a parameter, whichever function or module makes
it. Nothing is kept: a watcher gets each signal, and each gradient, at the moment it exists.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.measure.probes import _operations as known
from normscope.measure.probes import sites
from normscope.measure.probes._places import Places
from normscope.measure.probes.sites import ACTIVATION, CONV, EMBEDDING, EXPERTS, LINEAR, NORM, Site
from normscope.subject.graph.graph import Graph, Layer, owner_of
from normscope.subject.graph.record import Key
from normscope.subject.graph.recorder import tensors_in
from normscope.subject.graph.watching import Watching, unseen
from normscope.subject.interrupts import held
from normscope.subject.norms import NormCard, norm_cards

Found = tuple[Site, Tensor]


class Watcher(ABC):
    """What is told about every signal, in forward order; ``x`` and ``out`` must not be changed."""

    @abstractmethod
    def entering(self, site: Site, x: Tensor) -> None:
        """``x`` is about to go into the operation (which may overwrite it)."""

    @abstractmethod
    def leaving(self, site: Site, x: Tensor, out: Tensor) -> Tensor | None:
        """The operation gave ``out``; ``x`` is overwritten if it works in place.

        What is returned, if anything, goes on in place of ``out``.
        """

    def calling(self, capture: Capture) -> None:  # noqa: B027 - most have no use for it
        """The model itself, not a part of it, is about to run."""

    def returned(self, out: Any) -> None:  # noqa: B027
        """The model itself has run and gave ``out``; None if it raised an error."""


class Capture(Watching):
    """A context in which every pass of ``model`` is watched; its hooks are gone afterwards.

    Args:
        model: the module that will run, by itself or inside a loss.
        watcher: is told of every signal.
        graph: graph of the model: what a call of a function does and how deep it is; without
            one a layer is a product with a parameter, and layers are numbered as they run.

    Attributes:
        inputs: what the model was given last.
        outputs: what it returned.
        reached: names of the modules that have run.
        cards: the norms among the modules.

    Example:
        >>> import torch
        >>> class Printer(Watcher):
        ...     def entering(self, site, x): ...
        ...     def leaving(self, site, x, out):
        ...         print(site.layer, site.kind, site.name, tuple(out.shape))
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> with Capture(net, Printer()):
        ...     _ = net(torch.ones(5, 3))
        1 linear 0 (5, 4)
        1 activation 1 (5, 4)
        2 linear 2 (5, 2)
    """

    def __init__(self, model: nn.Module, watcher: Watcher, graph: Graph | None = None) -> None:
        super().__init__(model)
        self._watcher = watcher
        self.follow(graph)
        self.inputs: Any = None
        self.outputs: Any = None
        self.reached: set[str] = set()
        self._samples = 0  # first axis of the model's input
        self._turned: dict[str, bool] | None = None
        self.begin_pass()

    def follow(self, graph: Graph | None) -> None:
        """Number and name layers as in ``graph`` from the next pass on."""
        self.graph, modules = graph, dict(self.model.named_modules())
        with held():  # an interrupt at the end of a generator would be lost
            self._places, cards = Places(graph), norm_cards(self.model)
        cards |= self._places.cards
        self.cards: dict[nn.Module, NormCard] = {modules[n]: card for n, card in cards.items()}

    def learn_axes(self, turned: dict[str, bool]) -> None:
        """By site: whether positions come before samples, where a pass of few samples shows it."""
        self._turned = turned

    def __enter__(self) -> Capture:
        self.begin_pass()
        with held():
            super().__enter__()
            for module in self.cards:  # behind the user's own hooks, which may change the input
                if not isinstance(module, torch.jit.ScriptModule):
                    hook = module.register_forward_pre_hook(self._normalizing, with_kwargs=True)
                    self._handles.append(hook)
        return self

    def begin_pass(self) -> None:
        """Count layers and uses from the beginning again, and look up the parameters anew."""
        super().begin_pass()
        self._uses: Counter[str] = Counter()
        self._layer = 0
        self._open_norms: list[tuple[nn.Module, Site, Tensor]] = []
        self._axes: dict[tuple[int, ...], int] = {}
        self._named = dict(self.model.named_parameters())
        self._ids = {id(p): name for name, p in self._named.items()}
        self._storages = {
            p.untyped_storage().data_ptr(): name
            for name, p in self._named.items()
            if p.untyped_storage().nbytes()
        }

    # ---- modules: which one is running

    def entering_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the model's inputs."""
        self.reached.add(self.names[module])
        if module is self.model and len(self._stack) == 1:
            self.inputs = kwargs or (args[0] if len(args) == 1 else args)
            tensors = [t for t in tensors_in((args, kwargs)) if t.ndim]
            self._samples = tensors[0].shape[0] if tensors else 0
            self._watcher.calling(self)

    def _normalizing(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread or self._open_norms or self.inside is not module:
            return
        with unseen():
            if tensors := tensors_in((args, kwargs)):
                self._open_norm(module, tensors[0])

    def _open_norm(self, module: nn.Module, x: Tensor) -> None:
        name, kind = self.names[module], type(module).__name__
        owned = tuple(self._ids[id(p)] for p in module.parameters() if id(p) in self._ids)
        depth = self._places.frames.get((name, self._visits[name]), self._layer)
        axis = self.cards[module].channel_axis
        site = self._counted(Site(name, NORM, kind, depth, axis=axis, parameters=owned), x)
        self._open_norms.append((module, site, x))
        self._watcher.entering(site, x)

    def leaving_module(self, module: nn.Module, args: Any, out: Any) -> Any:
        """Tell of a norm, and of the end of the model."""
        new = None
        if self._open_norms and self._open_norms[-1][0] is module:
            _, site, x = self._open_norms.pop()
            new = self._told(site, x, out) if isinstance(out, Tensor) else None
        if module is self.model and not self._stack:
            self.outputs = out if new is None else new
            self._watcher.returned(self.outputs)
        return new

    # ---- functions: what is computed

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function and tell the watcher if it is one of those watched."""
        name = getattr(func, "__name__", str(func))
        key = self.key(name)
        # the inside of a norm layer is its own affair
        found = None if self._open_norms else self._found(func, name, key, args, kwargs)
        if found is None:
            return func(*args, **kwargs)
        self._watcher.entering(*found)
        return self._told(*found, func(*args, **kwargs))

    def _told(self, site: Site, x: Tensor, out: Any) -> Any:
        first = out if isinstance(out, Tensor) else out[0]
        if site.kind != ACTIVATION:
            self._axes[tuple(first.shape)] = site.axis
        new = self._watcher.leaving(site, x, first)
        if new is None:
            return out
        return new if isinstance(out, Tensor) else (new, *out[1:])

    def _found(self, func: Any, name: str, key: Key, args: Any, kwargs: Any) -> Found | None:
        layers = self._places.layers.get(key, [])
        if name in known.PRODUCTS:
            return self._product(name, key, layers, args, kwargs)
        if name in known.RECURRENT or layers:
            return self._other(name, key, layers, args, kwargs)
        if func in known.NORMS:
            return self._plain(NORM, *known.NORMS[func], key, args, kwargs)
        if operation := known.activation_of(func, args, kwargs):
            return self._plain(ACTIVATION, operation, None, key, args, kwargs)
        return None

    def _product(
        self, name: str, key: Key, layers: list[Layer], args: Any, kwargs: Any
    ) -> Found | None:
        """A product of a signal with weights."""
        one, two, added = known.factors(name, args, kwargs)
        if not isinstance(one, Tensor) or not isinstance(two, Tensor):
            return None
        names = self._parameter(one), self._parameter(two)
        first = name not in known.TOLD and names[0] is not None
        if first and names[1] is not None:  # a learned query is a signal
            first = bool(layers) and names[0] == layers[0].weight
        x, weight, parameter = (two, one, names[0]) if first else (one, two, names[1])
        if name not in known.TOLD and not layers:
            formula = None not in names or ".parametrizations." in key[0]
            if parameter is None or formula or key in self._places.calls:
                return None
        form = known.form_of(name, args, x, weight, first=first)
        stored = self._named[parameter] if parameter else weight
        looked_up, conv = name in known.LOOKUPS, name in known.CONVOLUTIONS
        kind = CONV if conv else EMBEDDING if looked_up else LINEAR
        if kind == LINEAR and stored.ndim > 2 and name != "einsum":
            kind, form = EXPERTS, form._replace(matrix=False)
        flipped = weight.ndim == stored.ndim == 2 and _rising(weight) != _rising(stored)
        geometry = known.conv_geometry(name, weight, args, kwargs) if conv else None
        site = Site(
            "", kind, name, 0, parameter, form.axis, geometry,
            parameters=self._parameters((one, two, added)),
            bias=self._parameter(added),
            matrix=form.matrix,
            transposed=kind == LINEAR and form.columns != flipped,
        )  # fmt: skip
        return self._weighted(site, key, layers, x), x

    def _other(
        self, name: str, key: Key, layers: list[Layer], args: Any, kwargs: Any
    ) -> Found | None:
        """A recurrent layer, or another function in which the graph has seen weights act."""
        tensors = tensors_in((args, kwargs))
        used = self._parameters(tensors)
        signals = [t for t in tensors if self._parameter(t) is None]
        kind = sites.RECURRENT if name in known.RECURRENT or not layers else layers[0].kind
        if not signals or not (used or layers):
            return None
        x = signals[0]
        turned = name in known.RECURRENT[:4] and x.ndim == 3 and args[-1] is False
        weight = max(used, key=lambda n: self._named[n].numel(), default=None)
        site = Site("", kind, name, 0, weight, parameters=used, matrix=False)
        return self._weighted(site, key, layers, x, x.shape[1] if turned else None), x

    def _weighted(
        self, site: Site, key: Key, layers: list[Layer], x: Tensor, turned: int | None = None
    ) -> Site:
        """The site with name and depth, as the graph has them."""
        depth, weight = self._places.calls.get(key, self._layer + 1), site.weight
        if weight and not (layers and weight in layers[0].parameters):  # another way, today
            found = self._places.weights.get((weight, site.kind == EMBEDDING))
            layers, depth = ([found], found.depth) if found else ([], self._layer + 1)
        self._layer = depth
        name = layers[0].name if layers else owner_of(weight) if weight else key[0]
        name = key[0] if site.kind == sites.RECURRENT else name
        used = sorted({*site.parameters, *(n for layer in layers for n in layer.parameters)})
        side = bool(layers) and layers[0].side
        placed = replace(site, name=name, layer=depth, parameters=tuple(used), side=side)
        return self._counted(placed, x, turned)

    def _plain(
        self, kind: str, operation: str, axis: int | None, key: Key, args: Any, kwargs: Any
    ) -> Found | None:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return None
        inside = self.inside or self.model
        alone = kind == ACTIVATION and not any(True for _ in inside.children())
        # nn.ReLU is called by its own name; F.relu by that of the module that calls it.
        own = alone and type(inside).__module__.startswith("torch.nn.")
        name = key[0] if own and key[0] else f"{key[0]}.{operation}".lstrip(".")
        depth = self._places.calls.get(key, self._layer)
        axis = self._axis(x) if axis is None else axis
        used = self._parameters((*args, *kwargs.values()))
        site = Site(name, kind, operation, depth, axis=axis, parameters=used)
        return self._counted(site, x), x

    # ---- names

    def _axis(self, x: Tensor) -> int:
        """The channel axis of a signal without weights: that of the layer that made its shape."""
        if x.ndim <= 2:
            return -1
        return self._axes.get(tuple(x.shape), 1 if x.ndim > 3 else -1)

    def _counted(self, site: Site, x: Tensor, turned: int | None = None) -> Site:
        """The site with the number of its use, and with where the samples of ``x`` are."""
        if self.query is not None:  # inside, signals are (positions, samples, channels), or flat
            turned = self.query.shape[1] if self.query.ndim == 3 else 1
        name = site.name or site.operation
        if site.kind != EXPERTS:  # which run one by one, as many as are asked
            self._uses[name] += 1
            name = name if self._uses[name] == 1 else f"{name}#{self._uses[name]}"
        samples = turned or (self._folded(x) if site.axis == -1 else None)
        if turned is None and self._turned is not None and site.axis == -1 and x.ndim > 2:
            first, second = (size == self._samples for size in x.shape[:2])
            if second and x.ndim == 3 and self._turned.get(name):
                turned = samples = self._samples
            elif first and second and self._turned.get(name) is not False:
                samples = 1  # samples cannot be told from positions
        return replace(site, name=name, samples=samples, positions_first=turned is not None)

    def _folded(self, x: Tensor) -> int | None:
        """How many samples there are, where they share the first axis with positions."""
        n = self._samples
        if x.ndim < 2 or n == 0 or x.shape[0] == n or x.shape[0] % n:
            return None
        return None if x.ndim > 2 and x.shape[1] == n else n

    def _parameter(self, value: Any) -> str | None:
        """The parameter that a tensor is, or is a part of."""
        if not isinstance(value, Tensor):
            return None
        if (name := self._ids.get(id(value))) is not None:
            return name
        return self._storages.get(value.untyped_storage().data_ptr())

    def _parameters(self, values: Any) -> tuple[str, ...]:
        found = (self._parameter(value) for value in values)
        return tuple(dict.fromkeys(name for name in found if name is not None))


def _rising(matrix: Tensor) -> bool:
    return matrix.stride(0) < matrix.stride(1)
