"""Table B, VGG: networks without BN, with and without a BN before the last layer."""

from normscope.experiments.huang2020._table_b import table_b

EXPERIMENT = table_b("VGG", 1500, 2250)
