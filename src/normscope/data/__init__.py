"""Data sets in their standard layouts, checked, standardized, in an order that a seed decides."""

from normscope.data.augment import FlipAndCrop
from normscope.data.dataset import Batches, DataSet
from normscope.data.load import load_data
from normscope.data.order import batch_order
from normscope.data.sources import RawData, Source, data_sets

__all__ = [
    "Batches",
    "DataSet",
    "FlipAndCrop",
    "RawData",
    "Source",
    "batch_order",
    "data_sets",
    "load_data",
]
