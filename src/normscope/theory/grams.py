"""T F* of a stack of networks under one of the theories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.refs import Equation, equations_of
from normscope.theory.fisher import mean_direction
from normscope.theory.meanfield.batchnorm import (
    TrainGram,
    batch_norm_hats,
    frozen_forward,
    printed_forward,
    scaled_pair,
    terms_as_printed,
    train_gram,
)
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import (
    Forward,
    GramTerms,
    OrderParameters,
    backward,
    bias_terms,
    overlap_slope,
    pooled,
    weight_terms,
)
from normscope.theory.meanfield.residual import residual_gram
from normscope.theory.meanfield.vanilla import layer_norm_forward, plain_forward

PLOTTED = "wei2019-as-plotted"  # positions counted as in the paper's figures, not as in (45)
PRINTED = ("wei2019", PLOTTED)  # the variance behind batch norm is taken as q
TINY_GAMMA = 1e-6  # stands for gamma = 0: ratios of vanishing variances stay defined


@dataclass(frozen=True)
class Gram:
    """T F* of n networks: terms by kind, order parameters, and what the bounds need."""

    kinds: dict[str, GramTerms]
    order: dict[str, Array]
    slope: Array | None  # (n,), A2' where the linearised form holds
    last_hats: tuple[Array, Array] | None  # (n,) each, for the lower bound (22)
    printed: Array | None  # (L, n), f_l that replace the terms under PRINTED theories
    equations: tuple[Equation, ...]

    def per_layer(self, samples: Array) -> Array:
        """Each layer's term in the mean direction: (L, n)."""
        if self.printed is not None:
            return self.printed
        pairs = ((terms.diagonal, terms.offdiagonal) for terms in self.kinds.values())
        return np.asarray(sum(mean_direction(*pair, samples=samples) for pair in pairs))


def gram_of(nets: Networks, theory: str, parameters: str) -> Gram:
    """T F* of ``nets`` under ``theory``; ``parameters`` adds biases, gamma and beta."""
    _check_covered(nets, theory)
    nets = replace(nets, gamma=np.where(nets.gamma == 0, TINY_GAMMA, nets.gamma))
    if nets.branch_scale is not None:
        gram = _residual(nets)
    elif nets.norm == "batch" and theory == "corrected":
        gram = _train(nets)
    else:
        gram = _frozen(nets, theory)
    if parameters == "weights":
        return replace(gram, kinds={"weight": gram.kinds["weight"]})
    present = {"gamma": nets.has_scale, "beta": nets.has_shift}
    kinds = {
        name: _kept(terms, present[name]) if name in present else terms
        for name, terms in gram.kinds.items()
    }
    return replace(gram, kinds=kinds)


def _kept(terms: GramTerms, present: Array) -> GramTerms:
    """The terms of the layers whose norm has that parameter; the read-out has none."""
    mask = np.vstack([present, np.zeros((1, present.shape[1]))])
    return GramTerms(mask * terms.diagonal, mask * terms.offdiagonal)


def _check_covered(nets: Networks, theory: str) -> None:
    if theory in PRINTED and (nets.norm == "layer" or nets.branch_scale is not None):
        what = "layer norm" if nets.norm == "layer" else "residual branches"
        raise TheoryError(
            f"theory={theory!r} covers networks without norm and with batch norm. Found {what}. "
            "Use theory='corrected'."
        )
    if nets.norm == "batch" and (nets.weight_variance[:-1] == 0).any():
        raise InputError(
            "weight_variance is 0 in a hidden layer followed by batch norm: its output does not "
            "depend on the data, and the norm would divide by zero. Use a positive variance."
        )
    if nets.norm == "layer":
        spread = nets.weight_variance[:-1] + nets.bias_variance[:-1]
        if (spread == 0).any():
            raise InputError(
                "weight_variance and bias_variance are both 0 in a hidden layer followed by layer "
                "norm, which would divide by zero. Use a positive variance."
            )
    if nets.norm == "batch" and theory == "frozen":
        counts = np.array([nets.statistics_count(layer) for layer in range(1, nets.depth)])
        if (counts <= 3).any():
            raise InputError(
                "theory='frozen' needs more than 3 values behind each batch statistic, because "
                f"E[1/s^2] is infinite below. Got {int(counts.min())}. Use more samples, or "
                "theory='corrected'."
            )


def _frozen(nets: Networks, theory: str) -> Gram:
    forward_of: Callable[[Networks], Forward]
    if nets.norm == "batch":
        forward_of = printed_forward if theory in PRINTED else frozen_forward
    else:
        forward_of = layer_norm_forward if nets.norm == "layer" else plain_forward
    forward = forward_of(nets)
    order = backward(nets, forward)
    kinds = {"weight": weight_terms(nets, order), "bias": bias_terms(order)}
    if nets.norm is not None:
        kinds["gamma"], kinds["beta"] = _affine(nets, order)
    used: list[Callable[..., object]] = [forward_of, backward, weight_terms]
    printed = None
    if theory == PLOTTED:
        printed = kinds["weight"].offdiagonal
    elif theory in PRINTED:
        printed = terms_as_printed(nets, forward)
        used.append(terms_as_printed)
    slope = overlap_slope(nets, order) if nets.norm != "batch" and nets.dense else None
    hats = _hats(nets) if nets.norm == "batch" and theory not in PRINTED else None
    return Gram(kinds, _as_dict(order), slope, hats, printed, _equations(used))


def _train(nets: Networks) -> Gram:
    terms, forward, diagonal = train_gram(nets)
    order = OrderParameters(
        forward,
        *(np.vstack([x, np.ones((1, nets.count))]) for x in _train_tildes(nets, diagonal, terms)),
        *(np.zeros((nets.depth, nets.count)) for _ in range(2)),
    )
    kinds = {"weight": terms.weight, "bias": terms.bias, "gamma": terms.scale, "beta": terms.shift}
    return Gram(kinds, _as_dict(order), None, _hats(nets), None, _equations([train_gram]))


def _train_tildes(nets: Networks, diagonal: Array, terms: TrainGram) -> tuple[Array, Array]:
    """Diagonal and off-diagonal of D^l, in the place of q-tilde."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = terms.weight.offdiagonal[:-1] / terms.weight.diagonal[:-1]
    return diagonal, diagonal * np.where(np.isfinite(ratio), ratio, 0.0)


def _residual(nets: Networks) -> Gram:
    order, weights, biases = residual_gram(nets)
    kinds = {"weight": weights, "bias": biases}
    return Gram(kinds, _as_dict(order), None, None, None, _equations([residual_gram]))


def _hats(nets: Networks) -> tuple[Array, Array] | None:
    if nets.depth < 2:
        return None
    count = nets.statistics_count(nets.depth - 1)
    hats = batch_norm_hats(nets.activations[-1], nets.gamma[-1], count=count)
    return pooled(nets, nets.depth - 1, *hats)


def _affine(nets: Networks, order: OrderParameters) -> tuple[GramTerms, GramTerms]:
    """Terms of gamma and beta with statistics held constant; the read-out has none."""
    f = order.forward
    shape = (nets.depth, nets.count)
    scale_t, scale_st, shift_t, shift_st = (np.zeros(shape) for _ in range(4))
    for row, act in enumerate(nets.activations):
        same = order.same_t[row] / f.scale2[row], order.same_st[row] / f.scale2[row]
        cross = order.cross_t[row] / f.scale2[row], order.cross_st[row] / f.scale2[row]
        shift_t[row], shift_st[row] = same[0] + cross[0], same[1] + cross[1]
        gamma = nets.gamma[row]
        own = scaled_pair(act, gamma, np.ones(nets.count)) / f.slope_t[row]
        pair = scaled_pair(act, gamma, f.arg_st[row] / f.arg_t[row]) / f.slope_st[row]
        scale_t[row] = same[0] * own + cross[0] * pair
        scale_st[row] = (same[1] + cross[1]) * pair
    return GramTerms(scale_t, scale_st), GramTerms(shift_t, shift_st)


def _as_dict(order: OrderParameters) -> dict[str, Array]:
    f = order.forward
    return {
        "q": f.q_t,
        "q_st": f.q_st,
        "qhat": f.in_t,
        "qhat_st": f.in_st,
        "qtilde": order.same_t,
        "qtilde_st": order.same_st,
        "qtilde_positions": order.cross_t,
        "qtilde_positions_st": order.cross_st,
    }


def _equations(functions: list[Callable[..., object]]) -> tuple[Equation, ...]:
    return tuple(dict.fromkeys(e for f in functions for e in equations_of(f)))
