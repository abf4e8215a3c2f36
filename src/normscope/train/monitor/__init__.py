"""Watching a training as it runs, whoever runs it."""

from normscope.train.monitor.monitor import Monitor
from normscope.train.monitor.probes import PROBES, MonitorProbe, Update
from normscope.train.monitor.sharpness import SharpnessProbe
from normscope.train.monitor.sinks import SINKS, JsonlSink, MemorySink, Sink, TensorBoardSink

__all__ = [
    "PROBES",
    "SINKS",
    "JsonlSink",
    "MemorySink",
    "Monitor",
    "MonitorProbe",
    "SharpnessProbe",
    "Sink",
    "TensorBoardSink",
    "Update",
]
