"""Lemma 1 and Proposition 1: eigenvalues of a Kronecker product."""

from typing import Any

import numpy as np

from normscope.results import KroneckerSpectrum, MomentSpectrum

LEFT, RIGHT = 7, 5


def trial(seed: int) -> dict[str, Any]:
    """Compare the factored spectrum with that of the whole product, for one random pair."""
    rng = np.random.default_rng(seed)
    roots = [rng.standard_normal((size, 2 * size)) for size in (LEFT, RIGHT)]
    factors = [root @ root.T for root in roots]
    left, right = (MomentSpectrum.of(np.linalg.eigvalsh(factor)) for factor in factors)
    product, whole = KroneckerSpectrum(left, right), np.linalg.eigvalsh(np.kron(*factors))[::-1]
    kappa = float(whole[0] / whole[-1])
    errors = {
        "lemma1": float(np.max(np.abs(np.sort(product.values)[::-1] - whole)) / whole[0]),
        "prop1-lambda": abs(left.largest * right.largest / float(whole[0]) - 1),
        # rounding grows with the condition number
        "prop1-kappa": abs(left.kappa(1.0) * right.kappa(1.0) / kappa - 1) / kappa,
        "prop1-kappa-p": abs(left.kappa(0.8) * right.kappa(0.8) / product.kappa(0.8) - 1),
    }
    return {name: {"error": error, "size": LEFT * RIGHT} for name, error in errors.items()}
