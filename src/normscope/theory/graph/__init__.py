"""Mean-field theory node by node: kernels of values and gradients through any graph."""
