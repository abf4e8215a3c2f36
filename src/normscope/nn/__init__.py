"""Real layers and networks: norms, builders, the papers' architectures."""

from normscope.nn.build import build as build
from normscope.nn.init import INITS as INITS
from normscope.nn.init import gaussian as gaussian
from normscope.nn.init import initialize as initialize
from normscope.nn.init import lsuv as lsuv
from normscope.nn.norm import NORMS as NORMS
from normscope.nn.norm import BatchNorm as BatchNorm
from normscope.nn.norm import GroupNorm as GroupNorm
from normscope.nn.norm import LayerNorm as LayerNorm
from normscope.nn.norm import PopulationNorm as PopulationNorm
from normscope.nn.norm import PopulationRefresher as PopulationRefresher
from normscope.nn.norm import RMSNorm as RMSNorm
from normscope.nn.norm import make_norm as make_norm
from normscope.nn.norm import norm_after as norm_after
from normscope.nn.norm import refresh_population as refresh_population
from normscope.nn.norm import unit_weights as unit_weights
from normscope.nn.zoo import ZOO as ZOO
from normscope.nn.zoo import Design as Design
from normscope.nn.zoo import network as network
