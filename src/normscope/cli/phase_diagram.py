"""``normscope phase-diagram``: where signals and gradients survive depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import Delivery
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results import PhaseDiagram

OPTIONS = (
    Option("activation", opt.text, "relu, tanh, erf, gelu, ...", "ACTIVATION", group="network",
           positional=True),
    Option("weight_variances", opt.numbers, "start:stop:count, or numbers with commas", "GRID",
           "0.5:4:100", "network"),
    Option("bias_variances", opt.numbers, "start:stop:count, or numbers with commas", "GRID",
           "0:1:100", "network"),
    Option("quantity", opt.text,
           "what the chart shows: chi1, correlation_depth, length_depth or length", "NAME", "chi1"),
    opt.CHART,
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip
MOST_ROWS = 11  # of the table; the diagram itself may have any number
PHASES = ("ordered", "edge", "chaotic", "diverges")


DESCRIPTION = """Fixed points, chi_1 and depth scales of wide networks without norm, on a
grid of weight and bias variances. chi_1 < 1: ordered, gradients vanish with
depth; chi_1 > 1: chaotic, gradients explode."""
EPILOG = """example:
  normscope phase-diagram tanh --weight-variances 0.5:4:100 \\
      --bias-variances 0:1:100 --chart phases.png"""


def run(given: dict[str, Any]) -> int | None:
    """Solve the recursions, save the files, print the summary."""
    from normscope.theory import phase_diagram

    if "activation" not in given:
        raise InputError("Which activation? Give one, such as tanh, or a --config file.")
    settings = opt.defaults(OPTIONS) | given
    deliver = Delivery(given, _print)
    weight, bias = settings["weight_variances"], settings["bias_variances"]
    with output.working(f"Solving {len(weight) * len(bias)} fixed points"), interruptible():
        diagram = phase_diagram(given["activation"], weight, bias)
    return deliver(diagram, quantity=settings["quantity"])


def _print(diagram: PhaseDiagram) -> None:
    """Phases of some rows of the grid, and where the edge of chaos lies."""
    output.print_text(f"{diagram.summary()}. chi_1 = 1 at weight variance edge_at.")
    output.print_text("")
    total = len(diagram.bias_variances)
    count = min(total, MOST_ROWS)
    rows = sorted({round(i * (total - 1) / max(count - 1, 1)) for i in range(count)})
    phases = [phase for phase in PHASES if (diagram.status == phase).any()]
    table = []
    for row in rows:
        bias = float(diagram.bias_variances[row])
        numbers = [str(int((diagram.status[row] == phase).sum())) for phase in phases]
        table.append(
            [output.number(bias), output.number(_edge(diagram.activation, bias)), *numbers]
        )
    output.print_table(["bias_variance", "edge_at", *phases], table)


def _edge(activation: str, bias_variance: float) -> float | None:
    from normscope.theory.meanfield.fixed_points import critical_weight_variance

    try:
        return critical_weight_variance(activation, bias_variance)
    except InputError:  # this activation has no edge at this bias variance
        return None
