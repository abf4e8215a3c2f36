"""The papers, and the tie between a formula and its equation number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Reference:
    """One paper, as a reader would look it up."""

    key: str
    authors: str
    title: str
    venue: str
    year: int

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.venue}."


@dataclass(frozen=True)
class Equation:
    """Where a formula stands: the paper, the equation number, and a remark."""

    reference: Reference
    number: str

    def __str__(self) -> str:
        return f"{self.reference.key} {self.number}".strip()


WEI2019 = Reference(
    "wei2019",
    "Wei, Stokes, Schwab",
    "Mean-field analysis of batch normalization",
    "ICLR 2019 submission",
    2019,
)
KARAKIDA2019 = Reference(
    "karakida2019",
    "Karakida, Akaho, Amari",
    "The normalization method for alleviating pathological sharpness in wide neural networks",
    "NeurIPS",
    2019,
)
KARAKIDA2018 = Reference(
    "karakida2018",
    "Karakida, Akaho, Amari",
    "Universal statistics of Fisher information in deep neural networks: mean field approach",
    "AISTATS",
    2019,
)
HUANG2020 = Reference(
    "huang2020",
    "Huang et al.",
    "Layer-wise conditioning analysis in exploring the learning dynamics of DNNs",
    "ECCV",
    2020,
)
BJORCK2018 = Reference(
    "bjorck2018",
    "Bjorck, Gomes, Selman, Weinberger",
    "Understanding batch normalization",
    "NeurIPS",
    2018,
)
LUO2019 = Reference(
    "luo2019",
    "Luo et al.",
    "Towards understanding regularization in batch normalization",
    "ICLR",
    2019,
)
CHO2009 = Reference("cho2009", "Cho, Saul", "Kernel methods for deep learning", "NeurIPS", 2009)
WILLIAMS1997 = Reference(
    "williams1997", "Williams", "Computing with infinite networks", "NeurIPS", 1997
)
POOLE2016 = Reference(
    "poole2016",
    "Poole et al.",
    "Exponential expressivity in deep neural networks through transient chaos",
    "NeurIPS",
    2016,
)
SCHOENHOLZ2017 = Reference(
    "schoenholz2017", "Schoenholz et al.", "Deep information propagation", "ICLR", 2017
)
YANG2019 = Reference(
    "yang2019", "Yang et al.", "A mean field theory of batch normalization", "ICLR", 2019
)
NORMSCOPE = Reference(
    "normscope", "The normscope authors", "Derivations in docs/design", "normscope", 2026
)


def equation(reference: Reference, number: str) -> Callable[[F], F]:
    """Attach an equation to a function: data only, the function is returned unchanged."""

    def attach(function: F) -> F:
        function.__equations__ = (  # type: ignore[attr-defined]
            Equation(reference, number),
            *equations_of(function),
        )
        return function

    return attach


def equations_of(function: Callable[..., object]) -> tuple[Equation, ...]:
    """The equations that a function computes, in the order they were attached."""
    return getattr(function, "__equations__", ())


def references() -> dict[str, Reference]:
    """All papers by their key."""
    return {one.key: one for one in globals().values() if isinstance(one, Reference)}
