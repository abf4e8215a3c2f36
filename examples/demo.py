"""What normscope says of a network before it is trained, and measures on it: `make demo`.

A fully connected ReLU network, without and with batch norm: how sharp is its loss, which
learning rate can it bear, what does the norm's gain change, and does a real network agree?
"""

from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import normscope as ns
from normscope import report
from normscope.results import PredictionSet

WIDTHS = [784, 1000, 1000, 1000, 10]
MOMENTUM = 0.9
THEORIES = ("corrected", "frozen", "wei2019")
CHART = Path(__file__).resolve().parents[1] / "out" / "prediction.html"


def network(norm: str | None = None, gamma: float | None = None) -> ns.NetworkSpec:
    return ns.mlp(WIDTHS, weight_variance=2.0, bias_variance=0.5, norm=norm, gamma=gamma)


def module(norm: str | None, generator: torch.Generator) -> nn.Module:
    """The same network as a torch module, drawn at random."""
    layers: list[nn.Module] = []
    for before, after in pairwise(WIDTHS):
        linear = nn.Linear(before, after)
        nn.init.normal_(linear.weight, 0, (2.0 / before) ** 0.5, generator=generator)
        nn.init.normal_(linear.bias, 0, 0.5**0.5, generator=generator)
        layers += [linear, *([nn.BatchNorm1d(after)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers[: -2 if norm else -1])


def measured(norm: str | None) -> float:
    """lambda_max of a real network on 400 random inputs, batch norm in train mode."""
    generator = torch.Generator().manual_seed(0)
    model = module(norm, generator)
    inputs = torch.randn(400, WIDTHS[0], generator=generator)
    risk = ns.Risk(model, inputs, loss="mse", statistics="batch", parameters="weights")
    return ns.top_eigenvalues(ns.fisher(risk)).largest


def main() -> None:
    print(f"A ReLU network {'-'.join(map(str, WIDTHS))} at random initialization, 400 samples.\n")
    plain = ns.predict([network()], samples=400, theory=THEORIES)
    normed = ns.predict(
        [network("batch", gamma) for gamma in (0.1, 0.5, 1.0)], samples=400, theory=THEORIES
    )
    print(PredictionSet((*plain, *normed)).summary(MOMENTUM))

    before, (small, _, after) = plain[0], normed.select("corrected")
    print(
        f"\nWithout norm it can bear a learning rate of {before.critical_lr(MOMENTUM):.2g} (SGD, "
        f"momentum {MOMENTUM}).\nBatch norm makes it "
        f"{before.lambda_max / after.lambda_max:.0f} times flatter at gamma = 1 (learning rate "
        f"{after.critical_lr(MOMENTUM):.2g}),\n"
        f"and {before.lambda_max / small.lambda_max:.0f} times at gamma = 0.1 "
        f"({small.critical_lr(MOMENTUM):.2g})."
    )

    print("\nMeasured on one random network, 400 random inputs (J^T J / T, weights):")
    for norm, prediction in ((None, before), ("batch", after)):
        print(
            f"  {norm or 'no'} norm: lambda_max {measured(norm):.4g}, predicted "
            f"{prediction.lambda_max:.4g}, with splitting {prediction.lambda_max_split:.4g}"
        )

    gammas = [round(0.1 * step, 1) for step in range(1, 42)]
    curve = ns.predict([network("batch", g) for g in gammas], samples=400, theory=THEORIES)
    CHART.parent.mkdir(exist_ok=True)
    report.save(PredictionSet((*plain, *curve)).chart(momentum=MOMENTUM), CHART)
    print(f"\nThe whole curve over gamma, to open in a browser: {CHART}")
    print("The same on the command line: normscope predict --help")


if __name__ == "__main__":
    main()
