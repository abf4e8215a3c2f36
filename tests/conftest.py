"""float64, fixed seeds and warnings as errors for every test (markers: pyproject.toml)."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _float64_and_seed(request):
    """Tests compute in float64 unless they say otherwise, and never depend on their order."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    if (trial := sys.modules.get("normscope.diagnose.trial")) is not None:
        trial.SECONDS.update(dict.fromkeys(trial.SECONDS, 1e6))  # whatever the machine
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def machine(monkeypatch):
    """normscope runs on a machine whose seconds are those of the operations it is given."""
    from machine import Machine, readers_of_the_clock

    on_paper = Machine()
    for module in readers_of_the_clock():
        monkeypatch.setattr(module, "time", on_paper)
    with on_paper:
        yield on_paper


def _may_be_skipped(node, reason):
    return node.get_closest_marker("gpu") or reason.startswith("platform: ")


def _refuse_skip(report, node):
    """Under make a test that did not run for want of something is a failure."""
    if not os.environ.get("NORMSCOPE_NO_SKIPS") or not report.skipped:
        return
    if hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not _may_be_skipped(node, reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped: {reason}. NORMSCOPE_NO_SKIPS is set, so that a green "
            "run means that it ran: install what is missing."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    _refuse_skip(report, item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    _refuse_skip(report, collector)
    return report
