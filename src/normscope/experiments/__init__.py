"""The claims of five papers, rerun by one command, with a verdict on each."""

from normscope.experiments.claim import Claim as Claim
from normscope.experiments.claim import claims as claims
from normscope.experiments.experiment import Experiment as Experiment
from normscope.experiments.experiment import Scale as Scale
from normscope.experiments.experiment import experiments as experiments
from normscope.results.panel import curve as curve
from normscope.results.rules import judge as judge
from normscope.sweeps import Table as Table
