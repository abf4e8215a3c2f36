"""Normalization layers, known by what they do: one card per layer, which everything else asks."""

from normscope.subject.norms.card import NormCard
from normscope.subject.norms.finding import norm_card, norm_cards
from normscope.subject.norms.known import register_norm

__all__ = ["NormCard", "norm_card", "norm_cards", "register_norm"]
