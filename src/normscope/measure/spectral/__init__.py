"""Questions to an operator: eigenvalues, density, trace and norm; products are all they see."""

from normscope.measure.spectral.density import spectral_density
from normscope.measure.spectral.lanczos import top_eigenvalues
from normscope.measure.spectral.trace import frobenius_norm, trace, trace_of_square

__all__ = ["frobenius_norm", "spectral_density", "top_eigenvalues", "trace", "trace_of_square"]
