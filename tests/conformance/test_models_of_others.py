"""Models of transformers and MONAI, and recurrent ones: read right, and examined as a whole."""

from __future__ import annotations

import pytest
import torch

import normscope as ns
from fingerprints import fingerprint, process
from models.foreign import FOREIGN, HELD_OUT, SAMPLES
from models.truth import mismatches, outputs_of
from normscope.subject.graph import read_graph

ENOUGH = 32  # samples, from which on all rules are judged
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in HELD_OUT]
EVERY = [*FOREIGN, *SLOW]
# Its small initial weights vanish beside the eps of its norms, and its loss does not fall in 60
# updates.
NOT_TRAINING = {
    "EfficientNet": {"signal-lost", "small-weights"},
    "Cohere": {"learning-rate"},  # it divides its logits by 16: a larger rate is better indeed
}


@pytest.fixture(autouse=True)
def _single_precision(_float64_and_seed):
    """As these models are used."""
    torch.set_default_dtype(torch.float32)


def made(name):
    torch.manual_seed(1)
    return {**FOREIGN, **HELD_OUT}[name]()


@pytest.mark.parametrize("name", EVERY)
def test_structure(name):
    example = made(name)
    graph = read_graph(example.model, example.call)
    assert mismatches(graph, example.model, example.truth) == []
    assert graph.coverage["layers"] + graph.coverage["norms"] > 0.9


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_changed(name):
    untouched, example = made(name), made(name)
    data = example.inputs, example.keywords
    before = fingerprint(example.model, data), process()
    read_graph(example.model, example.call)
    assert (fingerprint(example.model, data), process()) == before
    for a, b in zip(outputs_of(untouched), outputs_of(example), strict=True):
        assert torch.equal(a, b)


# ---- the whole way


def larger(batch):
    """More samples of the same kind: noise on numbers, tokens in other orders."""
    generator = torch.Generator().manual_seed(0)

    def varied(value):
        more = value.repeat(ENOUGH // SAMPLES, *[1] * (value.ndim - 1))
        if more.is_floating_point():
            return more + 0.1 * torch.randn(more.shape, generator=generator)
        if more.ndim < 2:
            return more
        return torch.stack([row[torch.randperm(len(row), generator=generator)] for row in more])

    return {name: varied(value) for name, value in batch.items()}


def asked(example):
    """Data and the natural loss of its library, as `examine` takes them."""
    if example.keywords:
        natural = lambda model, batch: model(**batch).loss  # noqa: E731
        return {"data": [larger(example.keywords)], "loss_fn": natural}
    inputs = larger({"x": example.inputs[0]})["x"]
    outputs = example.model(inputs)
    targets = torch.randint(outputs.shape[1], (len(outputs), *outputs.shape[2:]))
    return {"data": (inputs, targets), "loss": "cross_entropy"}


def layout_of(example):
    return ns.examine(example.model, **asked(example))["layout"]


@pytest.mark.parametrize("name", EVERY)
def test_examined_as_a_whole(name):
    example = made(name)
    truth, question = example.truth, asked(example)
    before = fingerprint(example.model, question["data"]), process()
    # Their labels are random and they are small: at 3e-4 few updates say nothing.
    found = ns.examine(example.model, **question, optimizer="adamw", lr=3e-3)
    assert (fingerprint(example.model, question["data"]), process()) == before
    assert [(step.name, step.reason) for step in found.plan.steps if step.status != "ok"] == []
    for part in ("layout", "activations"):
        assert found[part].coverage.parameters >= 0.9, found[part].coverage.summary()
    layout = found["layout"]
    assert layout.last == truth.head
    if truth.states.get(truth.head) == "sum":  # of normalized branches
        assert layout.last_input_norm in {norm.name for norm in layout.norms}
    else:
        assert layout.last_input_norm == truth.norm
    assert len({norm.name.partition("#")[0] for norm in layout.norms}) == truth.norms
    assert layout.unused == ()
    assert applicable(truth) <= {finding.rule for finding in found.findings}
    warned = {finding.rule for finding in found.above("warning")}
    assert warned <= NOT_TRAINING.get(name, set()), found.summary()


def applicable(truth):
    """The rules of the preset that have something to judge in such a model."""
    rules = {"signal-growth", "input-independent-gradients"}
    if "recurrent" in truth.kinds.values():  # one linear layer shows no growth with depth
        rules = {"favoured-class"}
    if truth.norms:
        rules |= {"unused-norm"}
    if truth.norm_kinds == {"batch"}:
        rules |= {"running-statistics", "last-layer-unnormalized"}
    return rules


@pytest.mark.parametrize(
    ("name", "head", "norm"),
    [
        ("GPT-2", "lm_head", "transformer.ln_f"),
        ("T5", "lm_head", "decoder.final_layer_norm"),
        ("Llama", "lm_head", "model.norm"),
        ("ViT", "classifier", "vit.layernorm"),
    ],
)
def test_the_last_layer_and_its_norm_are_said(name, head, norm):
    said = layout_of(made(name)).summary()
    assert f"last layer '{head}'" in said
    assert norm in said


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "ViT"])
def test_layers_behind_a_norm_count_as_normalized(name):
    """In a pre-norm transformer two of six layers of a block are not."""
    layout = layout_of(made(name))
    assert layout.normalized >= 0.5 * layout.hidden_layers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "ConvNeXt", "ResNet", "MONAI U-Net", "RegNet"])
def test_no_false_warning_of_the_standard_preset(name):
    example = made(name)
    found = ns.examine(
        example.model, **asked(example), optimizer="adamw", lr=3e-3, preset="standard"
    )
    assert not found.above("warning"), found.summary()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_gradients_of_a_stock_resnet_do_not_explode(optimizer):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(
        ResNetConfig(embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2],
                     layer_type="basic", num_labels=10)
    )  # fmt: skip
    data = torch.randn(32, 3, 64, 64), torch.arange(32) % 10
    found = ns.examine(model, data, optimizer=optimizer, lr=0.05 if optimizer == "sgd" else 3e-4)
    [one] = [f for f in found.findings if f.rule == "bn-gradient-explosion"]
    assert one.severity == "ok"
    assert not found.above("warning"), found.summary()


def test_samples_of_a_batch_encoding_are_counted():
    from transformers import BatchEncoding

    example = made("BERT")
    batch = BatchEncoding(larger(example.keywords))
    natural = lambda model, batch: model(**batch).loss  # noqa: E731
    found = ns.examine(example.model, [batch], loss_fn=natural, optimizer="adamw")
    assert found.convention["batch"] == ENOUGH
    assert "1 batch of 32 samples" in found.summary()
    assert not found.above("note"), found.summary()
