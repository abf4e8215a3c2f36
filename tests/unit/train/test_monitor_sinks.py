"""Where the readings of a monitor go, and what can be made of them afterwards."""

import json
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from normscope import report
from normscope.errors import InputError, MeasurementError
from normscope.report.monitor import monitor_chart
from normscope.results.monitor import MonitorLog, Reading
from normscope.train.monitor import SINKS, JsonlSink, MemorySink, Monitor, TensorBoardSink


def trained(sinks, *, steps=4, every=2):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, every=every, sinks=sinks) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return monitor


def test_json_lines_hold_what_memory_holds(tmp_path):
    file = tmp_path / "logs" / "run.jsonl"
    monitor = trained(["memory", f"jsonl:{file}"])
    kept = monitor.result()
    read = MonitorLog.from_jsonl(file)
    assert len(file.read_text().splitlines()) == sum(len(s.steps) for s in kept.series)
    assert read.quantities == kept.quantities
    assert kept.convention["model"].startswith("Sequential, 51 trainable numbers")
    assert kept.convention["probes"] == ("updates", "activations", "last_layer")
    assert read.convention == {}  # a line is a reading
    for a, b in zip(read.series, kept.series, strict=True):
        assert a == b  # infinite condition numbers included


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path):
    file = tmp_path / "run.jsonl"
    trained(f"jsonl:{file}")
    text = file.read_text()
    file.write_text(text[:-20])
    assert sum(len(s.steps) for s in MonitorLog.from_jsonl(file).series) == text.count("\n") - 1
    file.write_text("{nonsense\n" + text)
    with pytest.raises(InputError, match="Line 1"):
        MonitorLog.from_jsonl(file)
    file.write_text("")
    with pytest.raises(InputError, match="holds no readings"):
        MonitorLog.from_jsonl(file)


def test_json_lines_can_be_read_while_training_goes_on(tmp_path):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink = JsonlSink(tmp_path / "run.jsonl")
    with Monitor(model, every=1, sinks=[sink], probes="updates"):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        assert MonitorLog.from_jsonl(sink.path).of("weight_norm").steps.tolist() == [0]
    sink.write(Reading(9, "", "still_open", 1.0))  # an object given is not closed
    sink.close()


class FakeWriter:
    made = ()

    def __init__(self, log_dir=None):
        self.log_dir, self.scalars, self.flushed, self.closed = log_dir, [], 0, False
        FakeWriter.made = (*FakeWriter.made, self)

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def flush(self):
        self.flushed += 1

    def close(self):
        self.closed = True


@pytest.fixture
def tensorboard(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    FakeWriter.made = ()


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_gets_scalars_under_grouped_tags():
    monitor = trained(["memory", "tensorboard:runs/a"])
    (writer,) = FakeWriter.made
    assert writer.log_dir == "runs/a"
    assert writer.closed
    assert writer.flushed >= 2
    series = monitor.result().of("gradient_norm", "0")
    tag = "normscope/gradient_norm/0"
    found = [(v, s) for t, v, s in writer.scalars if t == tag]
    assert found == list(zip(series.values.tolist(), series.steps.tolist(), strict=True))


@pytest.mark.usefixtures("tensorboard")
def test_a_writer_of_ones_own_is_left_open():
    writer = FakeWriter()
    trained([TensorBoardSink(writer)])
    assert writer.scalars
    assert not writer.closed
    assert len(FakeWriter.made) == 1


def test_tensorboard_that_is_not_installed_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="pip install tensorboard"):
        Monitor(nn.Linear(2, 2), sinks="tensorboard")


def test_any_object_that_writes_is_a_sink():
    class Mine:
        readings = ()

        def write(self, reading):
            self.readings = (*self.readings, reading)

    mine = Mine()
    monitor = trained(mine)
    assert mine.readings[0] == Reading(0, "0", "weight_norm", mine.readings[0].value)
    assert mine.readings[0].tag == "normscope/weight_norm/0"
    assert Reading(0, "", "loss", 1.0).tag == "normscope/loss"
    with pytest.raises(InputError, match="needs the sink 'memory'"):
        monitor.result()


def test_a_sink_that_fails_does_not_stop_training():
    class Full:
        def write(self, reading):
            raise OSError("no space left")

    with pytest.warns(UserWarning, match="no space left") as caught:
        monitor = trained([Full(), "memory"])
    assert len(caught) == 1
    log = monitor.result()
    assert log.num_steps == 4
    assert [(t.name, t.status) for t in log.troubles] == [("Full", "failed")]


def test_sinks_of_plugins_are_found_by_name():
    made = []

    class Mine(MemorySink):
        def __init__(self, target="somewhere"):
            super().__init__()
            made.append(target)

    SINKS.add("mine-for-a-test", Mine)
    trained(["mine-for-a-test:else", "mine-for-a-test"])
    assert made == ["else", "somewhere"]


# ---- the log


def log_of(**values):
    readings = [
        Reading(step, layer, quantity, value)
        for quantity, layers in values.items()
        for layer, course in layers.items()
        for step, value in enumerate(course)
    ]
    return MonitorLog.from_readings(readings)


def test_the_long_table():
    frame = log_of(weight_norm={"a": [1.0, 2.0], "b": [3.0]}).to_frame()
    assert frame.columns.tolist() == ["step", "layer", "quantity", "value"]
    assert frame.to_numpy().tolist() == [
        [0, "a", "weight_norm", 1.0],
        [1, "a", "weight_norm", 2.0],
        [0, "b", "weight_norm", 3.0],
    ]


def test_one_series_and_what_is_missing():
    log = log_of(weight_norm={"a": [1.0], "b": [2.0]}, loss={"": [3.0]})
    assert log.of("loss").values.tolist() == [3.0]
    assert log.of("weight_norm", "b").values.tolist() == [2.0]
    with pytest.raises(InputError, match="Did you mean 'weight_norm'"):
        log.of("weight_nrm")
    with pytest.raises(InputError, match="Known names: a, b"):
        log.of("weight_norm")


def test_records_go_to_json_and_back():
    log = trained("memory").result()
    assert MonitorLog.from_dict(json.loads(json.dumps(log.to_dict()))) == log
    assert repr(log).startswith("MonitorLog(")
    assert "Series(weight_norm of 0, 2 steps)" in repr(log.series[0])


def test_a_summary_names_the_largest_layer_and_the_meaning():
    text = trained("memory").result().summary()
    assert "over 4 optimizer steps, one in 2" in text
    assert "gradient norm / weight norm" in text
    assert "middle of 2 layers; largest" in text


def test_a_chart_has_a_panel_per_quantity_and_skips_what_is_not_finite(tmp_path):
    log = log_of(
        weight_norm={"a": [1.0, 2.0], "b": [30.0, np.nan]},
        kappa={"b": [np.inf, np.inf]},
        loss={"": [0.5, 0.4]},
    )
    drawn = log.chart()
    spec = drawn.to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["loss", "weight norm"]
    rows = [row for data in spec["datasets"].values() for row in data]
    assert {(r["layer"], r["step"], r["value"]) for r in rows} == {
        ("a", 0, 1.0), ("a", 1, 2.0), ("b", 0, 30.0), ("network", 0, 0.5), ("network", 1, 0.4),
    }  # fmt: skip
    assert "not drawn: 3 readings" in spec["title"]["subtitle"][1]
    report.save(drawn, tmp_path / "watched.svg")
    assert "optimizer step" in (tmp_path / "watched.svg").read_text()


def test_a_chart_of_chosen_quantities_and_layers():
    log = log_of(weight_norm={"a": [1.0], "b.c": [2.0]}, loss={"": [0.5]})
    spec = monitor_chart(log, quantities=["weight_norm"], layers="b.*").to_dict()
    (rows,) = spec["datasets"].values()
    assert [row["layer"] for row in rows] == ["b.c"]
    with pytest.raises(InputError, match="Did you mean 'loss'"):
        monitor_chart(log, quantities=["los"])
    with pytest.raises(InputError, match="nothing to draw"):
        monitor_chart(log, layers="zzz")


def test_a_result_before_the_first_reading_is_an_error_with_reasons():
    monitor = Monitor(nn.Linear(2, 2))
    with pytest.raises(MeasurementError, match="Nothing was recorded"):
        monitor.result()
    with pytest.warns(UserWarning, match="recorded nothing"):
        monitor.close()
