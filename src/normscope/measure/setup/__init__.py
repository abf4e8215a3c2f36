"""A training set-up: loss, parameters, samples, scales and data, from one pass and a few rows."""

from normscope.measure.setup.data_card import data_card as data_card
from normscope.measure.setup.measurement import SetUp as SetUp
from normscope.measure.setup.measurement import set_up as set_up
