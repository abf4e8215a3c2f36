"""Figures I to IV: full curvature matrices of small MLPs and their blocks, without and with BN."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from scipy import stats

import normscope as ns
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts
from normscope.results import MomentSpectrum

SHARES = (0.5, 0.8, 0.9)
NORMS = {"none": "Plain", "batch": "BN"}
KINDS = {"sampled": "F", "empirical": "M"}
EPS = float(np.finfo(float).eps)


def small_images(data: str, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in float64: digits, or MNIST as 12 x 12 (means of 2 x 2 of the middle 24 x 24)."""
    chosen = ns.load_data(data).subset(samples, seed)
    images = chosen.images
    if images.shape[-1] == 28:
        images = torch.nn.functional.avg_pool2d(images[..., 2:26, 2:26], 2)
    return images.flatten(1).double(), chosen.labels


def small_mlp(inputs: int, depth: int, width: int, norm: str, seed: int) -> torch.nn.Module:
    """A bias-free MLP of ``depth`` weight matrices in float64, with torch's old default init."""
    widths = "-".join(map(str, [inputs, *[width] * (depth - 1), 10]))
    named = None if norm == "none" else norm
    net = ns.network(f"mlp:{widths}", norm=named, bias=False, init="lecun-uniform", seed=seed)
    return net.double()


def trial(depth: int, width: int, norm: str, kind: str, samples: int, data: str,
          seed: int) -> Values:  # fmt: skip
    """Spectra of the matrix of all weights and of its blocks, for one network and kind."""
    x, y = small_images(data, samples, seed)
    net = small_mlp(x.shape[1], depth, width, norm, seed)
    found = ns.conditioning(net, (x, y), "cross_entropy", kind=kind, exact="full",
                            batch_size=samples, seed=seed)  # fmt: skip
    spectra = [b.spectrum for b in (found.full, *found.blocks) if b is not None]
    known = [s for s in spectra if isinstance(s, MomentSpectrum)]
    loss = torch.nn.functional.cross_entropy(net(x), y)
    slopes = torch.autograd.grad(loss, [p for p in net.parameters() if p.ndim == 2])
    return {
        "largest": [s.largest for s in known],
        # an infinite kappa_p is at least the one that rounding can resolve
        "kappa": [[min(s.kappa(p), 1 / (s.size * EPS)) for s in known] for p in SHARES],
        "resolved": [[bool(np.isfinite(s.kappa(p))) for s in known] for p in SHARES],
        "trace": [s.trace for s in known],
        "factored": found.lambda_max("fisher"),
        "gradient": [float(slope.norm()) for slope in slopes]}  # fmt: skip


def matrices(table: Table) -> list[str]:
    """The full matrix and its blocks, as names of parts."""
    return ["full", *(f"block {k}" for k in range(1, table.rows[0][0]["depth"] + 1))]


def log_ratios(table: Table, kind: str, name: str) -> Array:
    """log10 of BN over Plain: seeds first, matrices last."""
    plain, bn = (table(name, norm=norm, kind=kind) for norm in NORMS)
    return np.log10(bn) - np.log10(plain)


def observe(table: Table) -> Values:
    """Observations of all claims on these matrices, by name."""
    made: Values = {}
    names = matrices(table)
    for kind, letter in KINDS.items():
        lambdas, kappas = (log_ratios(table, kind, name) for name in ("largest", "kappa"))
        plain, bn = (table("resolved", norm=norm, kind=kind) for norm in NORMS)
        known = np.min(plain + bn, axis=0) > 0  # both at the rounding floor: nothing to compare
        tops = {n: lambdas[:, k] for k, n in enumerate(names)}
        by_share = {f"{n} ({p:.0%})": kappas[:, i, k] for k, n in enumerate(names)
                    for i, p in enumerate(SHARES) if known[i, k]}  # fmt: skip
        chosen = {
            "": by_share, "-full": {n: v for n, v in by_share.items() if n.startswith("full")},
            "-sub": {n: v for n, v in by_share.items() if not n.startswith("full")},
            "-90": {n: v for n, v in by_share.items() if n.endswith("(90%)")},
            "-50-80": {n: v for n, v in by_share.items() if not n.endswith("(90%)")}}  # fmt: skip
        made |= {f"kappa-{letter}{end}": parts(some) for end, some in chosen.items()}
        made |= {f"lambda-{letter}": parts(tops), f"lambda-{letter}-full": {"values": tops["full"]},
                 f"lambda-{letter}-sub": parts(dict(list(tops.items())[1:]))}  # fmt: skip
        made[f"both-{letter}"] = parts({f"lambda_max of {n}": v for n, v in tops.items()} | {
            f"kappa_p of {n}": -v for n, v in by_share.items()})  # fmt: skip
        same = {"lambda_max": np.all(lambdas > 0, 1)} | {f"kappa_p ({p:.0%})": np.all(
            kappas[:, i, known[i]] < 0, 1) for i, p in enumerate(SHARES)}  # fmt: skip
        made[f"agreement-{letter}"] = parts({n: {"holds": v} for n, v in same.items()})
        made[f"kfac-{letter}"] = parts(dict(_factored(table, kind)))
    made["interlacing"] = {"error": _interlacing(table), "size": _weights(table)}
    made["ranks"] = _ranks(table, [("largest", "sampled", "largest", "empirical")])
    pairs = [("largest", kind, "gradient", kind) for kind in KINDS]
    made["gradient-size"] = _ranks(table, pairs)
    return made


def _factored(table: Table, kind: str) -> Iterator[tuple[str, Array]]:
    """How many decades the factored lambda_max is away from the exact one, in any direction."""
    for norm, title in NORMS.items():
        exact = table("largest", norm=norm, kind=kind)[:, 1:]
        off = np.abs(np.log10(table("factored", norm=norm, kind=kind) / exact))
        yield from ((f"{title} block {k}", v) for k, v in enumerate(off.T, 1))


def _interlacing(table: Table) -> Array:
    largest, trace = table("largest"), table("trace")
    full, blocks = largest[:, 0], largest[:, 1:]
    below = np.maximum(blocks.max(1) / full - 1, 0)
    above = np.maximum(full / blocks.sum(1) - 1, 0)
    return np.maximum.reduce([below, above, np.abs(trace[:, 1:].sum(1) / trace[:, 0] - 1)])


def _weights(table: Table) -> int:
    settings = table.rows[0][0]
    inputs = 64 if settings["data"] == "digits" else 144
    depth, width = settings["depth"], settings["width"]
    return int(inputs * width + (depth - 2) * width**2 + 10 * width)


def _ranks(table: Table, pairs: Sequence[tuple[str, str, str, str]]) -> Values:
    """Spearman's rank correlation over layers, for each seed."""
    made = {}
    for a, kind_a, b, kind_b in pairs:
        for norm, title in NORMS.items():
            left, right = (table(n, norm=norm, kind=k) for n, k in ((a, kind_a), (b, kind_b)))
            depth, runs = table.rows[0][0]["depth"], zip(left, right, strict=True)
            rho = [stats.spearmanr(u[-depth:], v[-depth:]).statistic for u, v in runs]
            made[f"{KINDS[kind_a]} of {title}"] = rho
    return parts(made)


def panels(table: Table, figures: Mapping[str, str]) -> Panels:
    """Charts as in the paper: lambda_max and kappa_p of the full matrix and of each block."""
    for kind, letter in KINDS.items():
        title = f"{figures[letter]}, {letter}"
        x = [letter, *(f"{letter}_{k}" for k in range(1, len(matrices(table))))]
        tops = {words: table("largest", norm=n, kind=kind).T for n, words in NORMS.items()}
        kappas = {f"{words}, p = {p:.0%}": table("kappa", norm=n, kind=kind)[:, i].T
                  for n, words in NORMS.items() for i, p in enumerate(SHARES[:2])}  # fmt: skip
        for words, y, found, claimed in (
            ("largest eigenvalue", "lambda_max", tops, "smaller for Plain in every matrix"),
            ("condition number", "kappa_p", kappas, "smaller for BN at the same p"),
        ):
            lines = tuple(curve(name, x, rows, log=True) for name, rows in found.items())
            note = f"Claimed: {claimed}."
            yield Panel(f"{title}: {words}", "matrix", y, lines, log_y=True, note=note)
