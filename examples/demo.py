"""`make demo`: one network without norms and with batch norm, predicted, measured and trained.

Then one claim of each of five papers is computed again, and their pages are written. Everything
comes with the package: the networks, the data (8 x 8 digits), the ledger of the papers.
"""

import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import normscope as ns
from normscope import report
from normscope.experiments import reproduce
from normscope.results.ledger import VERDICTS, shipped_ledger

WIDTHS = [64, 256, 256, 256, 10]
NETWORKS = {"without norms": None, "with batch norm": "batch"}
LR, STEPS, SAMPLES, PRESET = 2.0, 100, 256, "standard"
# one claim of each paper: quick to run, and not one that cannot fail
CLAIMS = ("wei2019/eq6", "karakida2019/eq9-zero", "huang2020/thm2-input",
          "bjorck2018/prop1-reduction", "luo2019/eq17-18")  # fmt: skip
PAGES = Path(__file__).resolve().parents[1] / "out"


def fresh(norm):
    """The network before training, always with the same weights."""
    return ns.network(f"mlp:{'-'.join(map(str, WIDTHS))},norm={norm or 'none'}")


def predicted(norm, images):
    """Sharpness by theory, of a random network of these widths on the same data."""
    return ns.predict(ns.mlp(WIDTHS, norm=norm), images.flatten(1).numpy()).lambda_max


def measured(norm, images, labels):
    """The same quantity of the real network on real data."""
    risk = ns.Risk(fresh(norm), images, labels, loss="mse", statistics="batch",
                   parameters="weights")  # fmt: skip
    return ns.top_eigenvalues(ns.fisher(risk)).largest


def story(norm):
    """All numbers about one network, and the examination behind them."""
    digits = ns.load_data("digits")
    images, labels = digits.images[:SAMPLES], digits.labels[:SAMPLES]
    run = ns.fit(fresh(norm), digits, "cross_entropy", lr=LR, steps=STEPS)
    found = ns.examine(fresh(norm), digits, lr=LR, preset=PRESET)
    limit = ns.max_stable_lr(fresh(norm), digits, "cross_entropy", seeds=1, tol=0.2).diverges.lr
    return predicted(norm, images), measured(norm, images, labels), run, limit, found


def in_words(run):
    """How a training run went."""
    if run.diverged:
        return f"diverged at step {run.updates}"
    return f"loss {run.initial_loss:.3g} -> {run.final_loss:.2g}"


def again(claim):
    """Run the experiment behind a claim again: what the paper says, what we find, the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        (experiment,) = reproduce.chosen([claim])
        return reproduce.run(experiment, "desk", folder, workers=1).judgements[claim]


def papers(console):
    """One claim of each paper computed again, then the totals of the ledger and its pages."""
    ledger = shipped_ledger()
    console.print("\n[bold]Five papers on normalization[/bold]: one claim of each, run again")
    narrow = {"box": None, "pad_edge": False, "padding": (0, 2, 0, 0)}
    table = Table("claim", "found", "verdict", "in the ledger", **narrow)
    with console.status("Running them ..."):
        for claim in CLAIMS:
            found, row = again(claim), ledger[claim]
            shown = f"{found.observed:.4g}" if isinstance(found.observed, float) else found.observed
            table.add_row(claim, shown, found.verdict, row.verdict)
    console.print(table)
    totals = Table("paper", "claims", *VERDICTS, **narrow | {"padding": (0, 1, 0, 0)})
    for line in ledger.totals():
        totals.add_row(line["paper"], *(str(line[name]) for name in ("rows", *VERDICTS)))
    console.print("\nAll claims of the five papers, as the ledger has them")
    console.print(totals)
    page, *_ = report.save_papers(ledger, PAGES)
    console.print(f"\nEvery claim with our number and its verdict: {page}", soft_wrap=True)


def main():
    PAGES.mkdir(exist_ok=True)
    console = Console()
    console.print(f"One network, layers of {'-'.join(map(str, WIDTHS))} units, on 8 x 8 digits.\n")
    with console.status("Predicting, measuring and training it ..."):
        theory, sharpness, runs, limits, found = zip(*map(story, NETWORKS.values()), strict=True)
    table = Table("", *NETWORKS, box=None)
    table.add_row("sharpness, predicted by theory", *(f"{value:.3g}" for value in theory))
    table.add_row("sharpness, measured", *(f"{value:.3g}" for value in sharpness))
    table.add_row(f"{STEPS} steps at learning rate {LR:g}", *map(in_words, runs))
    table.add_row("training diverges above", *(f"{value:.2g}" for value in limits))
    console.print(table)
    flatter, expected = sharpness[0] / sharpness[1], theory[0] / theory[1]
    console.print(
        f"\nBatch norm makes the loss {flatter:.0f} times flatter, and theory says "
        f"{expected:.0f} times. Training is stable up to a learning rate "
        f"{limits[1] / limits[0]:.0f} times as large."
    )
    console.print(
        f"(Sharpness is the largest eigenvalue of J^T J / T, of the weights, T = {SAMPLES} digits.)"
    )
    for title, result in zip(NETWORKS, found, strict=True):
        page = result.save(PAGES / f"{title.replace(' ', '-')}.html")
        console.print(f"\nThe whole examination {title}: {page}", soft_wrap=True)
    papers(console)
    console.print("\nYour own network: normscope examine my_model.py:make --data my_data.py:loader")


if __name__ == "__main__":
    main()
