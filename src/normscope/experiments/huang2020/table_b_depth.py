"""Table B, ResNet over depth: needs all 160 epochs, so that no desk can run it."""

from dataclasses import replace

from normscope.experiments.huang2020 import table_b_resnet

_SCALES = {k: v for k, v in table_b_resnet.EXPERIMENT.scales.items() if k != "desk"}
EXPERIMENT = replace(
    table_b_resnet.EXPERIMENT, title="ResNets without BN over depth", scales=_SCALES, hours=50
)
