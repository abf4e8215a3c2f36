"""Data sets in their standard layouts, checked, standardized, in an order that a seed decides."""

from normscope.data.augment import FlipAndCrop as FlipAndCrop
from normscope.data.dataset import Batches as Batches
from normscope.data.dataset import DataSet as DataSet
from normscope.data.load import is_data_name as is_data_name
from normscope.data.load import load_data as load_data
from normscope.data.order import batch_order as batch_order
from normscope.data.sources import RawData as RawData
from normscope.data.sources import Source as Source
from normscope.data.sources import data_sets as data_sets
from normscope.data.streamed import StreamedData as StreamedData
from normscope.data.streamed import StreamedImages as StreamedImages
from normscope.data.streamed import checksum as checksum
