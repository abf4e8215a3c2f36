"""``normscope sweep chart``: the stability map of a sweep as a picture."""

from __future__ import annotations

from typing import Any

from normscope.cli import options as opt
from normscope.cli.delivery import Delivery
from normscope.cli.options import Option
from normscope.cli.sweep_status import FOLDER, opened
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

OPTIONS = (
    FOLDER,
    Option("file", opt.text, "picture to write: png, svg, pdf, html", "FILE", group="sweep",
           positional=True),
    Option("axis", opt.text, "the setting beside lr (default: the only other that varies)", "NAME"),
    Option("criterion", opt.text, "what counts as failed: diverges, or does-not-learn (no better "
           "than chance at the end)", "NAME", "diverges"),
    opt.JSON,
)  # fmt: skip
DESCRIPTION = """Final test loss over learning rate and one more setting, white where a run failed,
with the measured stability limit and the critical rates of the theories."""
EPILOG = """example:
  normscope sweep mlp:64-30-10 --data digits --norm batch --loss mse --steps 20 \\
      "lr=logspace(-2,1,4)" gamma=0.5,1 --output map
  normscope sweep chart map map.svg"""


def run(given: dict[str, Any]) -> int | None:
    """Draw it, and print the distances of the theories."""
    from normscope.train import stability_map

    found = opened(given)
    if "file" not in given:
        raise InputError("Which file? Give one such as map.png.")
    deliver = Delivery(given | {"chart": given["file"]})
    settings = opt.defaults(OPTIONS) | given
    with interruptible():
        made = stability_map(found, axis=settings["axis"], criterion=settings["criterion"])
    return deliver(made)
