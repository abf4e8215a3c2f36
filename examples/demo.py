"""`make demo`: a deep network that blows up, its normalized twin, and what normscope says of them.

Everything comes with the package: the networks, the data (8 x 8 digits), the pages it writes.
"""

from pathlib import Path

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel

import normscope as ns

PLAIN = "mlp:64-" + "64-" * 10 + "10,norm=none"  # ten hidden layers of 64
NORMED = PLAIN.replace("none", "batch")
LR, PRESET = 2.0, "full"
PAGES = Path(__file__).resolve().parents[1] / "out"
WIDE = 120  # characters for two columns; a narrower terminal shows one below the other


def trained(name: str) -> str:
    """What becomes of a fresh copy at this learning rate."""
    run = ns.fit(ns.network(name), "digits", "cross_entropy", lr=LR, steps=100)
    end = f"diverged after {run.updates} steps" if run.diverged else f"trained {run.updates} steps"
    return f"{end}: loss {run.losses[0]:.3g} -> {run.losses[-1]:.3g}"


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    width = console.width // 2 if console.width >= WIDE else console.width
    columns = []
    for title, name in (("without norms", PLAIN), ("with batch norm", NORMED)):
        console.print(f"Trained at lr {LR:g} {title}: {trained(name)}")
        found = ns.examine(ns.network(name), "digits", lr=LR, preset=PRESET)
        page = found.save(PAGES / f"{title.replace(' ', '-')}.html")
        columns.append(Panel(found, title=title, subtitle=page.name, width=width))
    console.print(Columns(columns, padding=0))
    console.print(f"The whole story, to open in a browser: {PAGES}/*.html", soft_wrap=True)
    console.print("Your own network: normscope examine my_model:make --data my_data:loader")


if __name__ == "__main__":
    main()
