"""What the data looks like: scale, labels, order, repetitions."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.record import Record

NAN = float("nan")


@dataclass(frozen=True, eq=False, repr=False)
class DataCard(Record):
    """The batches that were looked at. NaN, 0 or None stand for what has no meaning for such data.

    Attributes:
        samples: rows that were looked at.
        batches: batches they came in.
        rms: root mean square of the inputs.
        offset: abs(mean) over deviation of all inputs.
        variation: variance of the inputs over the samples, of their mean square: 0 if all samples
            are the same.
        feature: the feature or channel of the largest scale.
        feature_ratio: its scale over that of the median feature, by rms or deviation.
        constant_features: share of the features or channels that do not vary.
        duplicates: share of the samples that are exact copies of others.
        bits: entries of a sample times log2 of the number of distinct values.
        tokens: whether the inputs are whole numbers, such as words.
        labels: number of different labels; 0 if the targets are no labels.
        labels_per_batch: mean number of different labels in a batch.
        classes: how many the model tells apart.
        batch: samples in a batch.
        sorting: (I(label; batch) - that of shuffled labels) over its largest value; NaN for one
            batch.
        given_away: the input feature that is the target itself, but for scale; -1 if none is.
        scrambled: whether images look as if their channels, stored last, were read as first.
        counts: samples of each class; empty where there are none, or very many.
        by_row: whether rows of a table are standardized, and its columns are not.
        replacement: whether the loader draws samples with replacement.
        last: samples in the last batch of the loader, where that is known; 0 if not.
        reason: why the inputs or targets were not looked at.
    """

    samples: int = 0
    batches: int = 0
    rms: float = NAN
    offset: float = NAN
    variation: float = NAN
    feature: int = 0
    feature_ratio: float = NAN
    constant_features: float = 0.0
    duplicates: float = NAN
    bits: float = 0.0
    tokens: bool = False
    labels: int = 0
    labels_per_batch: float = NAN
    classes: int = 0
    batch: int = 0
    sorting: float = NAN
    given_away: int = -1
    scrambled: bool = False
    counts: tuple[int, ...] = ()
    by_row: bool = False
    replacement: bool = False
    last: int = 0
    reason: str = ""

    def __repr__(self) -> str:
        return f"DataCard({self.samples} samples in {self.batches} batches)"
