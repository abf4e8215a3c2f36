"""Products of Gaussian matrices: the law of their singular values, their conditioning by depth.

``squared_*`` is the Fuss-Catalan law of the squared singular values, ``singular_*`` the same law
for the singular values themselves; ``conditioning_by_depth`` and ``product_spectrum`` simulate.
"""

from normscope.theory.randmat.conditioning import conditioning_by_depth as conditioning_by_depth
from normscope.theory.randmat.conditioning import product_conditioning as product_conditioning
from normscope.theory.randmat.law import squared_cdf as squared_cdf
from normscope.theory.randmat.law import squared_density as squared_density
from normscope.theory.randmat.law import squared_edge as squared_edge
from normscope.theory.randmat.law import squared_mean as squared_mean
from normscope.theory.randmat.law import squared_moment as squared_moment
from normscope.theory.randmat.law import squared_of_angle as squared_of_angle
from normscope.theory.randmat.law import squared_quantile as squared_quantile
from normscope.theory.randmat.law import squared_samples as squared_samples
from normscope.theory.randmat.linear_network import linear_gradient as linear_gradient
from normscope.theory.randmat.linear_network import linear_loss as linear_loss
from normscope.theory.randmat.linear_network import linear_reduction as linear_reduction
from normscope.theory.randmat.products import gaussian_factors as gaussian_factors
from normscope.theory.randmat.products import ks_distance as ks_distance
from normscope.theory.randmat.products import product_spectrum as product_spectrum
from normscope.theory.randmat.singular import singular_cdf as singular_cdf
from normscope.theory.randmat.singular import singular_density as singular_density
from normscope.theory.randmat.singular import singular_edge as singular_edge
from normscope.theory.randmat.singular import singular_moment as singular_moment
from normscope.theory.randmat.singular import singular_quantile as singular_quantile
from normscope.theory.randmat.singular import singular_samples as singular_samples
