"""Models of other libraries made from small configs, and recurrent classifiers.

Batches are what a training loop gives: ``model(**batch).loss`` for those of transformers.
The libraries are imported where they are used: whoever runs other tests does not wait for them.
"""

from __future__ import annotations

import torch
from torch import nn

from models.truth import Example, Maker, Truth

FOREIGN: dict[str, Maker] = {}  # those that the issue names
HELD_OUT: dict[str, Maker] = {}  # truths written before a graph was seen
VOCABULARY, CLASSES, SAMPLES = 40, 5, 8


def example(name, where=FOREIGN):
    def keep(maker):
        where[name] = maker
        return maker

    return keep


def held_out(name):
    return example(name, HELD_OUT)


def tokens(length=7):
    return torch.randint(5, VOCABULARY, (SAMPLES, length))


def pictures(size=32, channels=3):
    return torch.randn(SAMPLES, channels, size, size)


def classes():
    return torch.arange(SAMPLES) % CLASSES


def made(kind, head="ForCausalLM", **options):
    """A model of transformers by the name of its kind."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**options)
    return getattr(transformers, f"{kind}{head}")(config)


def of_words(model, truth):
    ids = tokens()
    return Example(model, (), truth, {"input_ids": ids, "labels": ids})


def of_pictures(model, truth, size=32):
    return Example(model, (), truth, {"pixel_values": pictures(size), "labels": classes()})


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
GROUPED = {**SMALL, "num_key_value_heads": 1}


def decoder(**changes):
    """A pre-norm decoder of two layers: attention and a feed-forward part, each added."""
    known = {
        "head": "lm_head",
        "depth": 10,
        "norm": "model.norm",
        "norms": 5,
        "direct": r"[qkv]_proj$|gate_proj$|up_proj$|^lm_head$",
        "attention": 2,
        "residuals": (4, 0),
    }
    return Truth(**{**known, **changes})


# ---- language models of transformers


@example("GPT-2")
def _():
    model = made("GPT2", "LMHeadModel", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2,
                 n_positions=16)  # fmt: skip
    block = "transformer.h.0"
    truth = decoder(
        norm="transformer.ln_f",
        norm_kinds={"layer"},
        named=r"ln_1$|ln_2$|ln_f$",
        direct=r"c_attn$|c_fc$|lm_head$",
        layers=11,
        depths={
            "transformer.wte": 1,
            "transformer.wpe": 1,
            f"{block}.attn.c_attn": 2,
            f"{block}.attn.c_proj": 3,
            f"{block}.mlp.c_fc": 4,
            f"{block}.mlp.c_proj": 5,
        },
        kinds={"transformer.wte": "embedding", f"{block}.attn.c_attn": "linear"},
    )
    return of_words(model, truth)


@example("BERT")
def _():
    model = made("Bert", "ForSequenceClassification", **SMALL, num_labels=CLASSES)
    block = "bert.encoder.layer.0"
    truth = Truth(
        "classifier",
        11,
        norms=5,
        named="LayerNorm$",
        direct=r"query$|key$|value$|intermediate\.dense$|pooler\.dense$",
        layers=17,
        depths={f"{block}.attention.self.query": 2, f"{block}.intermediate.dense": 4,
                "bert.pooler.dense": 10},
        attention=2,
        residuals=(4, 0),
    )  # fmt: skip
    return Example(model, (), truth, {"input_ids": tokens(), "labels": classes()})


@example("Llama")
def _():
    depths = {
        "model.embed_tokens": 1,
        "model.layers.0.self_attn.q_proj": 2,
        "model.layers.0.self_attn.o_proj": 3,
        "model.layers.1.mlp.down_proj": 9,
    }
    truth = decoder(norm_kinds={"rms"}, layers=16, depths=depths)
    return of_words(made("Llama", **GROUPED), truth)


@example("Qwen3")
def _():
    named = r"layernorm$|[qk]_norm$|^model\.norm$"
    model = made("Qwen3", **GROUPED, head_dim=8)
    return of_words(model, decoder(norms=9, norm_kinds={"rms"}, named=named, layers=16))


@example("Mixtral")
def _():
    model = made("Mixtral", **GROUPED, num_local_experts=3)
    part = "model.layers.0.mlp"
    truth = decoder(
        direct=r"[qkv]_proj$|mlp\.gate$|gate_up_proj$|^lm_head$",
        depths={f"{part}.experts.gate_up_proj": 4, f"{part}.experts.down_proj": 5},
        kinds={f"{part}.experts.gate_up_proj": "experts"},
        side={f"model.layers.{i}.mlp.gate" for i in range(2)},
    )
    return of_words(model, truth)


@example("T5")
def _():
    model = made("T5", "ForConditionalGeneration", vocab_size=VOCABULARY, d_model=16, d_kv=8,
                 d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)  # fmt: skip
    first = "decoder.block.0.layer"
    truth = Truth(
        "lm_head",
        20,
        "decoder.final_layer_norm",
        norms=12,
        norm_kinds={"rms"},
        named="layer_norm$",
        direct=r"\.[qkv]$|\.wi$|lm_head",
        depths={
            "encoder.block.0.layer.0.SelfAttention.q": 2,
            f"{first}.0.SelfAttention.q": 2,
            f"{first}.1.EncDecAttention.q": 4,
            f"{first}.1.EncDecAttention.k": 10,
            f"{first}.1.EncDecAttention.o": 11,
        },
        kinds={"lm_head": "linear"},
        attention=6,
        residuals=(10, 0),
    )
    return of_words(model, truth)


@example("Mamba")
def _():
    model = made("Mamba", vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4)
    mixer = "backbone.layers.0.mixer"
    truth = decoder(
        depth=12,
        norm="backbone.norm_f",
        norms=3,
        direct=r"in_proj$|lm_head",
        depths={f"{mixer}.in_proj": 2, f"{mixer}.conv1d": 3, f"{mixer}.x_proj": 4,
                f"{mixer}.dt_proj": 5, f"{mixer}.out_proj": 6},
        attention=0,
        residuals=(2, 0),
        other=r"A_log$|mixer\.D$",
    )  # fmt: skip
    return of_words(model, truth)


# ---- images


@example("ViT")
def _():
    model = made("ViT", "ForImageClassification", **_without(SMALL, "vocab_size"), image_size=32,
                 patch_size=8, num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        10,
        "vit.layernorm",
        norms=5,
        direct=r"query$|key$|value$|[qkv]_proj$|intermediate\.dense$|fc1$|classifier$",
        layers=14,
        attention=2,
        residuals=(4, 0),
        other="cls_token$|position_embeddings$",
    )
    return of_pictures(model, truth)


def _without(options, *names):
    return {name: value for name, value in options.items() if name not in names}


@example("ConvNeXt")
def _():
    model = made("ConvNext", "ForImageClassification", hidden_sizes=[8, 12], depths=[1, 2],
                 num_stages=2, image_size=32, num_labels=CLASSES)  # fmt: skip
    second = "convnext.encoder.stages.1"
    truth = Truth(
        "classifier",
        12,
        "convnext.layernorm",
        norms=6,
        direct=r"pwconv1$|downsampling_layer\.1$|classifier$|stages\.0\.layers\.0\.dwconv$",
        layers=12,
        depths={"convnext.embeddings.patch_embeddings": 1, f"{second}.downsampling_layer.1": 5,
                f"{second}.layers.0.dwconv": 6},
        residuals=(3, 0),
        other="layer_scale_parameter$",
    )  # fmt: skip
    return of_pictures(model, truth)


@example("ResNet")
def _():
    model = made("ResNet", "ForImageClassification", embedding_size=8, hidden_sizes=[12, 16],
                 depths=[2, 1], layer_type="bottleneck", num_labels=CLASSES)  # fmt: skip
    first = "resnet.encoder.stages.0.layers.0"
    truth = Truth(
        "classifier.1",
        11,
        norms=12,
        norm_kinds={"batch"},
        layers=13,
        depths={f"{first}.shortcut.convolution": 2, f"{first}.layer.2.convolution": 4},
        states={"classifier.1": "sum"},
        residuals=(1, 2),
    )
    return of_pictures(model, truth, size=64)


@example("MONAI U-Net")
def _():
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2),
                 num_res_units=2)  # fmt: skip
    truth = Truth(
        "model.2.1.conv.unit0.conv",
        10,
        "model.2.0.adn.N",
        norms=9,
        norm_kinds={"instance"},
        layers=13,
        depths={"model.0.conv.unit1.conv": 2, "model.0.residual": 1, "model.2.0.conv": 9},
        residuals=(2, 3),
        other=r"adn\.A\.weight$",
    )
    return Example(model, (pictures(channels=1),), truth)


@example("MONAI basic U-Net")
def _():
    from monai.networks.nets import BasicUNet

    model = BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=(4, 4, 6, 6, 8, 4))
    depths = {"down_4.convs.conv_1.conv": 10, "upcat_4.upsample.deconv": 11}
    truth = Truth(
        "final_conv", 23, "upcat_1.convs.conv_1.adn.N", norms=18, layers=23, depths=depths
    )
    return Example(model, (pictures(channels=1),), truth)


# ---- recurrence


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, and a head at the last step."""

    def __init__(self, kind, **options):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.rnn = kind(8, 12, batch_first=True, **options)
        self.head = nn.Linear(12 * (1 + self.rnn.bidirectional), CLASSES)

    def forward(self, ids):
        return self.head(self.rnn(self.tokens(ids))[0][:, -1])


def recurrent(kind, **options):
    truth = Truth(
        "head",
        2 + options.get("num_layers", 1),
        layers=3,
        depths={"tokens": 1},
        kinds={"tokens": "embedding", "rnn": "recurrent", "head": "linear"},
    )
    return Example(Recurrent(kind, **options), (tokens(),), truth)


@example("LSTM")
def _():
    return recurrent(nn.LSTM, num_layers=2)


@example("GRU")
def _():
    return recurrent(nn.GRU, bidirectional=True)


# ---- held out: written down from configs and modules before anything was run


@held_out("Gemma 2")
def _():
    named = r"layernorm$|^model\.norm$"
    model = made("Gemma2", **GROUPED, head_dim=8)
    return of_words(model, decoder(norms=9, norm_kinds={"rms"}, named=named, layers=16))


@held_out("Phi")
def _():
    """Attention and feed-forward part side by side, behind one norm."""
    truth = decoder(
        depth=6,
        norm="model.final_layernorm",
        norms=3,
        direct=r"[qkv]_proj$|fc1$|^lm_head$",
        depths={"model.layers.0.mlp.fc1": 2, "model.layers.1.self_attn.dense": 5},
        residuals=(2, 0),
    )
    return of_words(made("Phi", **SMALL), truth)


@held_out("OPT")
def _():
    model = made("OPT", vocab_size=VOCABULARY, hidden_size=16, word_embed_proj_dim=16, ffn_dim=32,
                 num_hidden_layers=2, num_attention_heads=2,
                 max_position_embeddings=16)  # fmt: skip
    norm = "model.decoder.final_layer_norm"
    return of_words(model, decoder(norm=norm, direct=r"[qkv]_proj$|fc1$|lm_head$"))


@held_out("OLMo 2")
def _():
    """Norms stand behind the branches: only the head has a normalized input."""
    return of_words(made("Olmo2", **GROUPED), decoder(norms=9, direct="lm_head$"))


@held_out("GPT-NeoX")
def _():
    truth = decoder(
        depth=6,
        norm="gpt_neox.final_layer_norm",
        direct=r"query_key_value$|dense_h_to_4h$|lm_head$",
        residuals=(2, 0),
    )
    return of_words(made("GPTNeoX", **SMALL), truth)


@held_out("Cohere")
def _():
    truth = decoder(depth=6, norms=3, norm_kinds={"layer"}, residuals=(2, 0))
    return of_words(
        made("Cohere", **GROUPED, pad_token_id=0, bos_token_id=1, eos_token_id=2), truth
    )


@held_out("ModernBERT")
def _():
    model = made("ModernBert", "ForMaskedLM", **SMALL, pad_token_id=0, bos_token_id=1,
                 eos_token_id=2, cls_token_id=1, sep_token_id=2)  # fmt: skip
    truth = decoder(
        head="decoder",
        depth=11,
        norm="head.norm",
        norms=6,
        direct=r"Wqkv$|Wi$|head\.dense$|decoder$",
    )
    return of_words(model, truth)


@held_out("BART")
def _():
    model = made("Bart", "ForConditionalGeneration", vocab_size=VOCABULARY, d_model=16,
                 encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                 decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                 max_position_embeddings=16)  # fmt: skip
    block = "model.decoder.layers.0"
    truth = decoder(
        norm=f"{block}.final_layer_norm",
        norms=7,
        direct=r"[qkv]_proj$|fc1$|lm_head$",
        depths={f"{block}.encoder_attn.q_proj": 4, f"{block}.encoder_attn.k_proj": 6},
        attention=3,
        residuals=(5, 0),
    )
    return of_words(model, truth)


@held_out("Swin")
def _():
    model = made("Swin", "ForImageClassification", image_size=16, patch_size=2, embed_dim=8,
                 depths=[2, 1], num_heads=[2, 2], window_size=2, num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        15,
        "swin.layernorm",
        norms=9,
        direct=r"[qkv]_proj$|query$|key$|value$|fc1$|intermediate\.dense$|reduction$",
        attention=3,
        residuals=(6, 0),
        other="relative_position_bias_table$",
    )
    return of_pictures(model, truth, size=16)


@held_out("RegNet")
def _():
    model = made("RegNet", "ForImageClassification", embedding_size=8, hidden_sizes=[8, 16],
                 depths=[1, 2], groups_width=4, layer_type="y", num_labels=CLASSES)  # fmt: skip
    block = "regnet.encoder.stages.{}.layers.{}.layer.2.attention.{}"
    truth = Truth(
        "classifier.1",
        11,
        norms=12,
        norm_kinds={"batch"},
        states={"classifier.1": "sum"},
        side={block.format(s, i, j) for s, i in ((0, 0), (1, 0), (1, 1)) for j in (0, 2)},
        residuals=(1, 2),
    )
    return of_pictures(model, truth)


@held_out("ConvNeXt V2")
def _():
    model = made("ConvNextV2", "ForImageClassification", hidden_sizes=[8, 12], depths=[1, 1],
                 num_stages=2, image_size=32, num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        9,
        "convnextv2.layernorm",
        norms=5,
        direct=r"pwconv1$|downsampling_layer\.1$|classifier$|stages\.0\.layers\.0\.dwconv$",
        layers=9,
        residuals=(2, 0),
        other=r"grn\.",
    )
    return of_pictures(model, truth)


@held_out("DINOv2")
def _():
    model = made("Dinov2", "ForImageClassification", hidden_size=16, num_hidden_layers=2,
                 num_attention_heads=2, mlp_ratio=2, image_size=32, patch_size=8,
                 num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        10,
        "dinov2.layernorm",
        norms=5,
        direct=r"[qkv]_proj$|query$|key$|value$|fc1$",
        states={"classifier": "act"},
        attention=2,
        residuals=(4, 0),
        unused={"dinov2.embeddings.mask_token"},
        other="cls_token$|position_embeddings$|lambda1$",
    )
    return of_pictures(model, truth)


@held_out("PoolFormer")
def _():
    model = made("PoolFormer", "ForImageClassification", num_encoder_blocks=2, depths=[1, 1],
                 hidden_sizes=[8, 12], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
                 num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        7,
        "norm",
        norms=5,
        norm_kinds={"layer"},  # one group
        direct=r"output\.conv1$",
        layers=7,
        residuals=None,  # the first add of a block goes around a pooling only
        other="layer_scale_",
    )
    return of_pictures(model, truth)


@held_out("MobileNetV2")
def _():
    model = made("MobileNetV2", "ForImageClassification", depth_multiplier=0.25, image_size=64,
                 num_labels=CLASSES)  # fmt: skip
    truth = Truth(
        "classifier",
        53,
        "mobilenet_v2.conv_1x1.normalization",
        norms=52,
        norm_kinds={"batch"},
        direct=r"layer\.(0|1|3|6|10|13)\.expand_1x1\.|mobilenet_v2\.conv_1x1\.",
        layers=53,
        residuals=(10, 0),
    )
    return of_pictures(model, truth, size=64)


@held_out("EfficientNet")
def _():
    model = made("EfficientNet", "ForImageClassification", width_coefficient=0.25,
                 depth_coefficient=1.0, in_channels=[32, 16], out_channels=[16, 24],
                 kernel_sizes=[3, 3], strides=[1, 2], num_block_repeats=[1, 2],
                 expand_ratios=[1, 6], hidden_dim=320, num_labels=CLASSES)  # fmt: skip
    gate = "efficientnet.encoder.blocks.{}.squeeze_excite.{}"
    truth = Truth(
        "classifier",
        11,
        "efficientnet.encoder.top_bn",
        norms=10,
        norm_kinds={"batch"},
        direct=r"blocks\.[12]\.expansion\.expand_conv$",
        side={gate.format(i, part) for i in range(3) for part in ("reduce", "expand")},
        residuals=(1, 0),
    )
    return of_pictures(model, truth)


@held_out("MONAI DenseNet")
def _():
    from monai.networks.nets import DenseNet

    model = DenseNet(spatial_dims=2, in_channels=1, out_channels=CLASSES, init_features=8,
                     growth_rate=4, block_config=(2, 2), bn_size=2)  # fmt: skip
    truth = Truth("class_layers.out", 11, "features.norm5", norms=11, layers=11)
    return Example(model, (pictures(channels=1),), truth)


@held_out("MONAI SegResNet")
def _():
    from monai.networks.nets import SegResNet

    model = SegResNet(spatial_dims=2, init_filters=8, blocks_down=(1, 1), blocks_up=(1,))
    truth = Truth(
        "conv_final.2.conv", 10, "conv_final.0", norms=7, norm_kinds={"group"}, residuals=(4, 0)
    )
    return Example(model, (pictures(channels=1),), truth)
