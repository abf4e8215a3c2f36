"""What a measurement of batch norm's regularization advises, and what it keeps silent about."""

from dataclasses import replace

import numpy as np
import pytest

from normscope.results import BatchNormRegularization, LayerRegularization

SIZES = np.array([16, 64])
GAPS = np.array([0.2, 0.05])


def layer(name="norm", *, zeta=GAPS[:, None] / 6, wide=GAPS, error=0.0, **changed):
    """Three scales of 1: the paper's form is 6 times ``zeta``, half of it from the mean."""
    table = np.broadcast_to(zeta, (2, 3))
    made = LayerRegularization(
        layer=name, kind="BatchNorm1d", positions=1, batch_sizes=SIZES, gamma=np.ones(3),
        excess_kurtosis=np.zeros(3), skewness=np.zeros(3),
        mean_variance=np.ones((2, 3)) / SIZES[:, None],
        deviation_variance=np.ones((2, 3)) / SIZES[:, None] / 2,
        zeta_mean=table, zeta_deviation=table, first_order=np.zeros(2), second_order=wide,
        second_order_error=np.zeros(2), wide_second_order=wide,
        wide_second_order_error=np.full(2, error), measured=wide,
        measured_error=np.full(2, 0.01), curvature="exact Hessian",
    )  # fmt: skip
    return replace(made, **changed)


def result(*layers, together=GAPS, errors=(0.01, 0.01)):
    return BatchNormRegularization(
        layers=layers, batch_sizes=SIZES, together=np.array(together),
        together_error=np.array(errors), everywhere=np.array(together),
        everywhere_error=np.array(errors), population_loss=0.5, samples=100, num_batches=10,
        sampling="independent", loss="cross_entropy", seed=0,
    )  # fmt: skip


def test_where_the_forms_agree_nothing_is_said_of_them():
    change, remedy = result(layer()).advice()
    assert "0.2 +- 0.01 (0.4 of the loss) to 0.05 +- 0.01: the larger batch regularizes less" in (
        change
    )
    assert "restoring_decay(16, 64)" in remedy


def test_a_change_within_its_error_is_not_interpreted():
    (change, *_) = result(layer(), errors=(0.1, 0.1)).advice()
    assert "regularizes less" not in change


def test_what_lowers_the_loss_is_said_only_beyond_the_error():
    low = {"first_order": np.array([-0.3, -0.08])}
    said = result(layer(**low)).advice()[2]
    assert "predicted to lower the loss" in said
    assert "R_f -0.3 outweighs R_q 0.2" in said
    unsure = " ".join(result(layer(error=0.1, **low)).advice())
    assert "lower the loss" not in unsure
    assert "zero within its error" in unsure


def test_the_factor_between_the_forms():
    said = result(layer(zeta=GAPS[:, None] / 12)).advice()[2]
    assert "gives 0.1, the complete one 0.2; multiply its decay by 2 for" in said
    assert len(result(layer(zeta=GAPS[:, None] / 12, error=0.06)).advice()) == 2


def test_layers_that_do_not_add_beyond_their_errors():
    two = (layer("a"), layer("b"))
    assert (
        "Layers do not add: together 0.3, their sum 0.4"
        in (result(*two, together=(0.3, 0.08)).advice()[-1])
    )
    assert len(result(*two, together=(0.3, 0.08), errors=(0.06, 0.01)).advice()) == 2


def test_layers_without_scales_have_none_to_decay():
    plain = layer("plain", scaled=False)
    assert list(result(plain, layer()).restoring_decay(16, 64)) == ["norm"]
    assert result(plain).restoring_decay(16, 64) == {}
    assert "No layer has scales" in result(plain).advice()[1]


def test_the_table_holds_long_names_and_has_no_ratio_to_nothing():
    name = "stage3.block2.shortcut.downsample.norm"
    quiet = {"wide": np.array([0.2, 0.0]), "zeta": np.array([[0.2 / 6], [0.0]])}
    lines = result(layer(name, **quiet)).summary().splitlines()
    rows = [line.split() for line in lines if line.startswith(name)]
    assert [row[1] for row in rows] == ["16", "64"]
    assert rows[0][-2:] == ["1", "0.05"]  # ratio and its standard error
    assert rows[1][-1] == "-"
    assert lines[4].split() == ["(all)", "16", "0.2", "0.01"]


def test_older_files_without_the_new_field_are_read():
    given = layer().to_dict()
    del given["scaled"]
    assert LayerRegularization.from_dict(given).scaled
    assert LayerRegularization.from_dict(layer(scaled=False).to_dict()).scaled is False


def test_the_paper_form_of_these_records():
    assert layer().paper == pytest.approx(GAPS)
