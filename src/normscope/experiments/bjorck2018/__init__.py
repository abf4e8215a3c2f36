"""Bjorck, Gomes, Selman and Weinberger (2018), Understanding batch normalization."""
