"""Reference values of layer-wise conditioning, copied as numbers.

``EXACT``: hard values. ``FIGURE_I``: the 8-layer MLP on 10000 MNIST images, sampled labels, uniform
initialization, as (lambda_max, kappa_50, kappa_80, factored / exact lambda_max) for the plain and
the batch-norm network; from other draws of weights and labels, so to be met within a factor.
"""

from __future__ import annotations

from typing import NamedTuple

# eigenvalues, p -> kappa_p
KAPPA = [
    ((8.0, 4.0, 2.0, 1.0), {0.25: 1.0, 0.5: 2.0, 0.75: 4.0, 1.0: 8.0}),
]

# eigenvalues of the factors, lambda_max and kappa_100% of the product, kappa_50%, product of the
# factors' kappa_50%
KRONECKER = [((4.0, 1.0), (3.0, 2.0, 1.0), 12.0, 12.0, 3.0, 1.5)]

# widths -> number of weights
WEIGHTS = {
    (144, *[24] * 7, 10): 7152,
    (144, *[24] * 3, 10): 4848,
    (144, *[36] * 3, 10): 8136,
}

# depth, width -> ratio of the cubic terms: full / layer-wise, layer-wise / factored
COST = {(8, 24): (64, 13824)}

# slope of log10 lambda_max(F_k) per layer, 100-layer batch-norm MLP at initialization
DEEP_SLOPE = (-0.19, -0.12)


class Row(NamedTuple):
    lambda_max: float
    kappa_50: float
    kappa_80: float
    factored: float


FIGURE_I: dict[str, tuple[Row, Row]] = {
    "full": (Row(1.45e-4, 9.11e4, 6.37e6, 0.0), Row(44.9, 6.29e3, 9.41e4, 0.0)),
    "layer1": (Row(3.84e-5, 6e3, 9.01e4, 0.85), Row(40.1, 2.3e3, 3.31e4, 0.93)),
    "layer2": (Row(1.24e-5, 704, 2.69e3, 0.92), Row(8, 113, 296, 0.85)),
    "layer3": (Row(1.77e-5, 2.59e3, 1.38e4, 0.87), Row(5.76, 142, 431, 0.75)),
    "layer4": (Row(1.96e-5, 6.09e3, 5.88e4, 0.83), Row(3.59, 175, 544, 0.72)),
    "layer5": (Row(4.04e-5, 3.14e4, 4.23e6, 0.81), Row(2.5, 200, 635, 0.88)),
    "layer6": (Row(5.5e-5, 8.22e4, 2.72e10, 0.86), Row(1.72, 224, 779, 0.82)),
    "layer7": (Row(1.92e-5, 1.66e5, 2.41e22, 0.93), Row(0.945, 213, 747, 0.91)),
    "layer8": (Row(6.93e-6, 4.04e3, 1.84e8, 0.95), Row(0.609, 57.7, 186, 0.81)),
}
