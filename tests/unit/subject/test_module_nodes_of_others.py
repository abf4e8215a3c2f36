"""ResNets of other libraries as the nodes that the theory reads.

The libraries are imported inside the tests: whoever runs others does not wait for them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.errors import TheoryError
from normscope.subject.nodes import module_nodes


def test_a_resnet_of_monai():
    from monai.networks.nets import ResNet

    net = ResNet(
        "basic", [1, 1, 1, 1], [4, 8, 16, 32], spatial_dims=2, n_input_channels=3, num_classes=5,
        conv1_t_size=3, conv1_t_stride=1, no_max_pool=True, shortcut_type="A",
    )  # fmt: skip
    read = module_nodes(net, torch.randn(4, 3, 16, 16))
    found = [type(node).__name__ for node in read.graph.nodes]
    block = ["Conv", "BatchNorm", "Activate", "Conv", "BatchNorm"]
    assert found[:11] == ["Input", *block[:3], *block, "Add", "Activate"]
    assert found[11:19] == [*block, "Shortcut", "Add", "Activate"]
    assert found.count("Shortcut") == 3
    assert read.graph.num_parameters() == sum(p.numel() for p in net.parameters())


def test_a_resnet_of_transformers():
    import transformers as hf

    config = hf.ResNetConfig(
        num_channels=3, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        num_labels=5,
    )  # fmt: skip
    net = hf.ResNetForImageClassification(config)
    with pytest.raises(TheoryError, match=r"max pooling, node 'resnet\.embedder\.pooler'"):
        module_nodes(net, torch.randn(4, 3, 32, 32))
    net.resnet.embedder.pooler = nn.AvgPool2d(3, 2, 1)
    read = module_nodes(net, torch.randn(4, 3, 32, 32))
    kinds = [type(node).__name__ for node in read.graph.nodes]
    assert kinds.count("Add") == 2
    assert kinds.count("AveragePool") == 1
    assert read.graph.num_parameters() == sum(p.numel() for p in net.parameters())
