"""Models of Hugging Face, from small configurations: what is read, and what is judged."""

from __future__ import annotations

import functools

import pytest
import torch
import transformers as hf

from normscope.diagnose import examine

WORDS, CLASSES = 64, 4
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 4}  # fmt: skip
IMAGES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
          "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
          "num_labels": CLASSES}  # fmt: skip


def gpt2():
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=3, n_head=4, **ends)
    )


def t5():
    config = hf.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                         decoder_start_token_id=0)  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


# name -> (model, last layer, norm before it, hidden layers normalized, places of attention, norms)
MODELS = {
    "gpt2": (gpt2, "lm_head", "transformer.ln_f", (7, 13), 3, 7),
    "llama": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)),
        "lm_head", "model.norm", (16, 22), 3, 7),
    "t5": (t5, "lm_head", "decoder.final_layer_norm", (23, 33), 6, 12),
    "vit": (
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGES)),
        "classifier", "vit.layernorm", (13, 19), 3, 7),
    "bert": (
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZES, num_labels=CLASSES)),
        "classifier", None, (13, 20), 3, 7),
}  # fmt: skip
# what could apply: no batch norm, few or no rectifiers, a loss that hides the outputs
RULES = {"last-layer-unnormalized", "unused-norm"}
SIGNALS = {"signal-growth", "input-independent-gradients"}


@functools.cache
def examined(name):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = MODELS[name][0]()
    words = torch.randint(WORDS, (32, 12), generator=generator)
    batch = {"input_ids": words, "labels": words}
    if name == "vit":
        batch = {"pixel_values": torch.randn(32, 3, 16, 16, generator=generator)}
    if name in ("vit", "bert"):
        batch["labels"] = torch.arange(32) % CLASSES
    return examine(
        model, [batch], loss_fn=lambda model, batch: model(**batch).loss, optimizer="adamw", lr=3e-4
    )


@pytest.mark.parametrize("name", MODELS)
def test_where_it_is_normalized(name):
    _, last, norm, counts, attention, norms = MODELS[name]
    found = examined(name)["layout"]
    assert (found.last, found.last_input_norm) == (last, norm)
    assert (found.normalized, found.hidden_layers) == counts
    assert (found.attention, len(found.norms), found.unused) == (attention, norms, ())
    assert examined(name).plan.coverage > 0.95


@pytest.mark.parametrize("name", MODELS)
def test_every_rule_that_could_apply_is_judged(name):
    found = examined(name)
    judged = {finding.rule for finding in found.findings}
    # Conv1D is not seen by the probes of signals and gradients
    assert judged >= (RULES if name == "gpt2" else RULES | SIGNALS)
    assert not found.above("warning"), found.summary()
    assert "Could not judge" not in found.summary()
