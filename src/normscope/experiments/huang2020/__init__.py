"""Huang et al. (2020), Layer-wise conditioning analysis, with its supplement."""
