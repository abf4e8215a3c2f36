"""A name on the command line is the same network as the constructor's."""

import pytest

import normscope as ns
from normscope.errors import InputError
from normscope.spec.names import ARCHITECTURES, FORMS, network

SHARED = {"activation": "tanh", "weight_variance": 1.5, "bias_variance": 0.1, "norm": "batch",
          "gamma": 0.5, "last_norm": "mean"}  # fmt: skip
CONV = {"kernel": 5, "stride": 2, "padding": 1, "outputs": 7, "head": "pool"}


def test_mlp():
    found = network("mlp:784-100-50-10", SHARED | CONV | {"branch_scale": 1.0})
    assert found == ns.mlp([784, 100, 50, 10], **SHARED)


def test_repeated_widths():
    assert network("mlp:784-100x3-10", {}) == ns.mlp([784, 100, 100, 100, 10])


def test_cnn():
    found = network("cnn:3x32x24:30-60x2", SHARED | CONV, given=CONV)
    assert found == ns.cnn((3, 32, 24), channels=[30, 60, 60], **SHARED, **CONV)


def test_residual_mlp():
    plain = SHARED | {"norm": None, "gamma": None}
    found = network("resmlp:500x4-10", plain | {"branch_scale": 0.3}, given=["branch_scale"])
    assert found == ns.residual_mlp([500] * 4 + [10], **plain, branch_scale=0.3)


def test_every_architecture_has_a_form_that_works():
    assert set(FORMS) == set(ARCHITECTURES)
    for kind, form in FORMS.items():
        assert form.startswith(f"{kind}:")
        assert network(form, {}).depth > 1


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mpl:3-4", ["Unknown architecture 'mpl'", "Did you mean 'mlp'"]),
        ("resnet:3", ["Unknown architecture 'resnet'", "resmlp"]),
        ("mlp", ["'mlp' has no sizes", "mlp:784"]),
        ("mlp:", ["has no sizes"]),
        ("mlp:784,10", ["Got '784,10'", "joined by '-'"]),
        ("mlp:784--10", ["Got ''"]),
        ("mlp:784-1e3-10", ["Got '1e3'"]),
        ("mlp:784-10x999999999-10", ["Got '10x999999999'"]),
        ("mlp:784", ["An MLP needs an input and an output width"]),
        ("mlp:784-0-10", ["at least 1. Got 0"]),
        ("cnn:3x32:30", ["Got '3x32'", "channels x height x width"]),
        ("cnn:3x32x32", ["Got ''"]),
        ("cnn:3x2x2:30", ["leaves no positions"]),
    ],
)
def test_bad_names_say_how_to_write_them(name, parts):
    with pytest.raises(InputError) as caught:
        network(name, {})
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "owner"),
    [("mlp:3-4-5", "kernel", "cnn"), ("cnn:3x8x8:4", "branch_scale", "resmlp"),
     ("resmlp:4-4-5", "head", "cnn")],
)  # fmt: skip
def test_an_option_of_another_architecture_is_refused(name, option, owner):
    with pytest.raises(InputError, match=f"{option.replace('_', '-')} is an option of {owner}"):
        network(name, {}, given=[option])
