"""Proposition 1 of App. C: one layer of a linear network as least squares of its own."""

from typing import Any

import numpy as np

from normscope.seeds import numpy_generator
from normscope.theory import randmat


def trial(seed: int) -> dict[str, Any]:
    """App. C for each matrix in turn; more outputs than rows, so that no loss is zero."""
    rng = numpy_generator(seed, "reduction")
    shapes = ((6, 6), (6, 6), (6, 6), (9, 6))
    weights = [rng.standard_normal(shape) for shape in shapes]
    x, y = rng.standard_normal((6, 40)), rng.standard_normal((9, 40))
    errors, split = [], []
    for i, own in enumerate(weights, start=1):
        found = randmat.linear_reduction(weights, x, targets=y, layer=i)
        small = found.reduced(own)
        loss = randmat.linear_loss(weights, x, targets=y)
        slope = randmat.linear_gradient(weights, x, targets=y, layer=i)
        mine = found.gradient(small) * found.scales @ found.left.T
        best = [*weights[: i - 1], found.restored(found.solution()), *weights[i:]]
        least = randmat.linear_loss(best, x, targets=y)
        errors += [abs(found.loss(small) / loss - 1),
                   float(np.linalg.norm(mine - slope) / np.linalg.norm(slope)),
                   abs(found.optimum() / least - 1)]  # fmt: skip
        least_losses = float(found.to_frame()["least_loss"].sum())
        split.append(abs((least_losses + found.constant) / least - 1))
    return {"prop1-reduction": {"error": errors, "size": 40},
            "prop1-decouple": {"error": split, "size": 40}}  # fmt: skip
