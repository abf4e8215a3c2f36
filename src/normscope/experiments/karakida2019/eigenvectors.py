"""Theorem 3.1 and Lemmas A.1, A.2: the mean gradients are the leading eigenvectors."""

import numpy as np
from scipy.sparse.linalg import eigsh

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts


def trial(network: str, outputs: int, width: int, seed: int) -> Values:
    """Leading eigenvectors of F and F* of one network with T = M, all from the Gram matrix."""
    layer = network == "relu-layer"
    norms = {"norm": "layer", "last_norm": "layer"} if layer else {}
    of = common.spec(network, [width] * 3 + [outputs], **norms)
    whole = common.gram(of, width, seed)
    matrix, blocks = common.flat(whole), whole.transpose(1, 3, 0, 2) * width
    count = outputs - 1 if layer else outputs  # outputs of layer norm sum to zero
    values, vectors = eigsh(matrix, count, v0=np.ones(len(matrix)))
    means = np.tile(np.eye(outputs), (width, 1)) / np.sqrt(width)  # nu_k of (S.13)
    overlaps = means.T @ vectors
    # an eigenvector of F is R w / sqrt(lambda), the mean gradient R nu_k
    inner = np.linalg.pinv(means.T @ matrix @ means, hermitian=True, rcond=1e-10)
    shares = values * np.einsum("ki,kj,ji->i", overlaps, inner, overlaps)
    found = {"lost": float(1 - shares.mean()), "lost_dual": float(1 - (overlaps**2).sum(0).mean())}
    if outputs > 1 and not layer:
        off = ~np.eye(outputs, dtype=bool)
        found["blocks"] = float(np.sqrt((blocks[off] ** 2).mean()) / blocks[~off].mean())
    if not layer:
        theory = common.prediction(network, width, width).lambda_max
        start = means[:, 0]
        rest = matrix @ start - theory * start
        sizes = [float(np.sqrt(v @ matrix @ v)) for v in (rest, theory * start)]
        found |= {"residual": sizes[0], "ratio": sizes[0] / sizes[1]}
    return found


def observe(table: Table) -> Values:
    """Exponents of the width."""
    plain = [(n, c) for n in ("relu", "tanh") for c in table.where(network=n).values_of("outputs")]
    layer = [("relu-layer", c) for c in table.where(network="relu-layer").values_of("outputs")]

    def orders(cells: list[tuple[str, int]], name: str, end: str = "", **limit: float) -> Values:
        return {f"{n}, C={c}{end}": common.order(table, name, network=n, outputs=c, **limit)
                for n, c in cells}  # fmt: skip

    singles, several = ([c for c in plain if (c[1] > 1) is many] for many in (False, True))
    residual = orders(singles, "residual", ", entries", below=1.0)
    return {"thm3.1": parts(orders(plain, "lost")), "s13": parts(orders(plain, "lost_dual")),
            "ln-eigenvectors": parts(orders(layer, "lost")),
            "lemmaA1": parts(orders(several, "blocks", below=-0.5)),
            "s16": parts(residual | orders(singles, "ratio", ", share", below=0.0))}  # fmt: skip
