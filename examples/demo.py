"""What normscope says of a network before it is trained: `make demo`.

A fully connected ReLU network, without and with batch norm: how sharp is its loss, which
learning rate can it bear, and what does the norm's gain change?
"""

from pathlib import Path

import normscope as ns
from normscope import report
from normscope.results import PredictionSet

WIDTHS = [784, 1000, 1000, 1000, 10]
MOMENTUM = 0.9
THEORIES = ("corrected", "frozen", "wei2019")
CHART = Path(__file__).resolve().parents[1] / "out" / "prediction.html"


def network(norm: str | None = None, gamma: float | None = None) -> ns.NetworkSpec:
    return ns.mlp(WIDTHS, weight_variance=2.0, bias_variance=0.5, norm=norm, gamma=gamma)


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

    gammas = [round(0.1 * step, 1) for step in range(1, 42)]
    curve = ns.predict([network("batch", g) for g in gammas], samples=400, theory=THEORIES)
    CHART.parent.mkdir(exist_ok=True)
    report.save(PredictionSet((*plain, *curve)).chart(momentum=MOMENTUM), CHART)
    print(f"\nThe whole curve over gamma, to open in a browser: {CHART}")
    print("The same on the command line: normscope predict --help")


if __name__ == "__main__":
    main()
