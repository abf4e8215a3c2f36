"""Wei, Stokes and Schwab (2019), Mean-field analysis of batch normalization."""
