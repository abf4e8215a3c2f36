"""What the experiments of this paper share: networks of its figures, Gram matrices, orders."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Array, Panel, Table, curve, fitted_slope, over_sizes
from normscope.measure.gram import gram_matrix
from normscope.measure.layer_signals import layer_signals
from normscope.seeds import child_seed
from normscope.theory.integrals import arccosine_kernel

# activation, weight variance, bias variance; the first two are those of the paper's figures
NETWORKS = {"relu": ("relu", 2.0, 0.0), "tanh": ("tanh", 3.0, 0.64),
            "leaky": ("leaky_relu(0.1)", 1.8, 0.2), "erf": ("erf", 2.0, 0.3),
            "sigmoid": ("sigmoid", 2.0, 0.0), "relu-biases": ("relu", 2.0, 0.1),
            "relu-layer": ("relu", 2.0, 0.5), "tanh-centred": ("tanh", 3.0, 0.0)}  # fmt: skip


def spec(network: str, widths: Sequence[int], **options: Any) -> ns.NetworkSpec:
    """A dense network with the variances of the paper."""
    activation, weights, biases = NETWORKS[network]
    given = {"weight_variance": weights, "bias_variance": biases} | options
    return ns.mlp(list(widths), activation=activation, **given)


def built(of: ns.NetworkSpec, seed: int) -> Any:
    """The module in float64."""
    return ns.build(of, seed, dtype=torch.float64)


def gaussian(*shape: int, seed: int, stream: str = "inputs") -> torch.Tensor:
    """Independent standard normal numbers, Eq. (3)."""
    generator = torch.Generator().manual_seed(child_seed(seed, stream))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def risk(of: ns.NetworkSpec, samples: int, seed: int, *, inputs: Any = None,
         parameters: Any = "weights", statistics: str = "batch") -> ns.Risk:  # fmt: skip
    """A random network on Gaussian inputs; only weights are differentiated, as in the theory."""
    x = gaussian(samples, math.prod(of.input_shape), seed=seed) if inputs is None else inputs
    return ns.Risk(built(of, seed), x, loss="mse", parameters=parameters, statistics=statistics)


def gram(of: ns.NetworkSpec, samples: int, seed: int, **options: Any) -> Array:
    """F* of a random network as (T, C, T, C)."""
    matrix = gram_matrix(risk(of, samples, seed, **options)).numpy()
    return matrix.reshape(samples, of.outputs, samples, of.outputs)


def centred(matrix: Array) -> Array:
    """F* when the mean over samples is subtracted from every output, (S.20)."""
    half = matrix - matrix.mean(0, keepdims=True)
    return np.asarray(half - half.mean(2, keepdims=True))


def flat(matrix: Array) -> Array:
    """The square matrix of (T, C, T, C)."""
    return matrix.reshape(matrix.shape[0] * matrix.shape[1], -1)


def spectrum(matrix: Array) -> dict[str, float]:
    """Largest eigenvalue, trace and trace of the square."""
    square = flat(matrix)
    values = torch.linalg.eigvalsh(torch.from_numpy(square))
    return {"top": float(values[-1]), "trace": float(square.trace()),
            "second": float((square**2).sum())}  # fmt: skip


def over_widths(table: Table, name: str | Callable[[int], Array], theory: Any,
                **where: Any) -> dict[str, Any]:  # fmt: skip
    """What the rule ``formula`` reads: values of all networks at each width, and the theory's."""
    widths = table.where(**where).values_of("width")
    get: Any = name if callable(name) else lambda width: table(name, width=width, **where)
    return over_sizes(widths, [get(width) for width in widths], theory)


def order(table: Table, name: str, *, above: float | None = None, below: float | None = None,
          **where: Any) -> dict[str, Any]:  # fmt: skip
    """The exponent of the width with which a value grows, or its distance from a limit."""
    widths = table.where(**where).values_of("width")
    found = fitted_slope(widths, [table(name, width=w, **where) for w in widths])
    if above is not None:
        return found | {"mean": found["mean"] - above}
    return found if below is None else found | {"mean": below - found["mean"]}


def column(table: Table, name: str, layer: int, theory: Any, **where: Any) -> dict[str, Any]:
    """``over_widths`` of what a trial returns for every layer."""
    return over_widths(table, lambda w: table(name, width=w, **where)[:, layer], theory, **where)


def limit(found: dict[str, Any]) -> dict[str, Any]:
    """Relative distance from the theory in the limit of wide networks: a of a + b / M, with se."""
    sizes, theory = (np.asarray(found[k], float) for k in ("sizes", "theory"))
    groups = [np.asarray(g) / t - 1 for g, t in zip(found["values"], theory, strict=True)]
    errors = np.array([g.std(ddof=1) / math.sqrt(len(g)) for g in groups])
    design = np.stack([np.ones_like(sizes), 1 / sizes], 1) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    offset = covariance @ design.T @ (np.array([g.mean() for g in groups]) / errors)
    return {"mean": float(offset[0]), "se": math.sqrt(covariance[0, 0]), "n": len(groups[0])}


@cache
def prediction(network: str, width: int, samples: int, outputs: int = 1,
               **options: Any) -> ns.Prediction:  # fmt: skip
    """The theory of a network with three layers of equal width."""
    of = spec(network, [width] * 3 + [outputs], **options)
    return ns.predict(of, samples=samples, theory="corrected")


def overlaps(model: torch.nn.Module, x: torch.Tensor) -> list[tuple[Array, Array]]:
    """h(s).h(t) of the inputs and delta(s).delta(t) (of output 1) of every affine layer."""
    found = layer_signals(model, x, lambda out: out[:, 0].sum())
    grams = [[(r @ r.T).detach().numpy() for r in found[name]] for name in ("x", "dh")]
    return list(zip(*grams, strict=True))


def order_values(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Array]:
    """q-hat of the input and q-tilde (of output 1) of every affine layer: one sample, and pairs."""
    found = overlaps(model, x)
    sizes = [m.in_features for m in model.children() if isinstance(m, torch.nn.Linear)]
    hats = [hat / size for (hat, _), size in zip(found, sizes, strict=True)]
    made = {}
    for name, grams in {"qhat": hats, "qtilde": [tilde for _, tilde in found]}.items():
        count, traces = len(x), np.array([g.trace() for g in grams])
        made[name] = traces / count
        made[f"{name}_st"] = ([g.sum() for g in grams] - traces) / (count * (count - 1))
    return made


def arccosine_hat(overlap: float) -> float:
    """E relu(x) relu(y) of standard normal x, y with this overlap: J / 2 of (S.70)."""
    return float(arccosine_kernel(overlap)) / 2


def width_panel(title: str, table: Table, curves: dict[str, tuple[Any, str]], note: str = "",
                **where: Any) -> Panel:  # fmt: skip
    """lambda_max over the width: a curve is a name in the table or a function, and its style."""
    widths = table.where(**where).values_of("width")

    def values(of: Any) -> list[Any]:
        return [of(w) if callable(of) else table(of, width=w, **where) for w in widths]

    made = [curve(name, widths, values(of), style=style) for name, (of, style) in curves.items()]
    return Panel(title, "width M", "largest eigenvalue of F", tuple(made), True, True, note)
