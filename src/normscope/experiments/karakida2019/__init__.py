"""Karakida, Akaho and Amari (2019), The normalization method for alleviating sharpness."""
