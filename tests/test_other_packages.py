"""The packages whose networks and clusters are examined are installed, and work offline.

They are imported inside the tests: whoever runs others does not wait for them.
"""

import subprocess
import sys

import pytest
import torch

LLAMA = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}


def test_a_transformer_runs():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SMALL, **LLAMA))
    tokens = torch.arange(10)[None]
    found = model(input_ids=tokens, labels=tokens)
    assert found.logits.shape == (1, 10, 50)
    found.loss.backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_an_image_network_of_monai_runs():
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,))
    found = model(torch.randn(1, 1, 16, 16))
    assert found.shape == (1, 2, 16, 16)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_cluster_of_one_runs(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # tells nobody
    for name in ("gcs_server_port_wait_time_s", "worker_register_timeout_seconds"):
        monkeypatch.setenv(f"RAY_{name}", "600")  # a slow machine is no failure
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False)
    try:
        assert ray.get(ray.remote(lambda x: x + 1).remote(2)) == 3
    finally:
        ray.shutdown()
    assert not ray.is_initialized()


def test_they_are_not_imported_unasked():
    code = (
        "import sys, normscope.diagnose, normscope.cli.main, normscope.report; "
        "print({'transformers', 'monai', 'ray'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
