"""Products of Gaussian matrices: the law of their singular values, their conditioning by depth.

``squared_*`` is the Fuss-Catalan law of the squared singular values, ``singular_*`` the same law
for the singular values themselves; ``conditioning_by_depth`` and ``product_spectrum`` simulate.
"""

from normscope.theory.randmat.conditioning import conditioning_by_depth, product_conditioning
from normscope.theory.randmat.law import (
    squared_cdf,
    squared_density,
    squared_edge,
    squared_mean,
    squared_moment,
    squared_of_angle,
    squared_quantile,
    squared_samples,
)
from normscope.theory.randmat.linear_network import linear_gradient, linear_loss, linear_reduction
from normscope.theory.randmat.products import gaussian_factors, ks_distance, product_spectrum
from normscope.theory.randmat.singular import (
    singular_cdf,
    singular_density,
    singular_edge,
    singular_moment,
    singular_quantile,
    singular_samples,
)

__all__ = [
    "conditioning_by_depth",
    "gaussian_factors",
    "ks_distance",
    "linear_gradient",
    "linear_loss",
    "linear_reduction",
    "product_conditioning",
    "product_spectrum",
    "singular_cdf",
    "singular_density",
    "singular_edge",
    "singular_moment",
    "singular_quantile",
    "singular_samples",
    "squared_cdf",
    "squared_density",
    "squared_edge",
    "squared_mean",
    "squared_moment",
    "squared_of_angle",
    "squared_quantile",
    "squared_samples",
]
