"""The stability limits of Wei et al. (2019), Figure 2, finely: rates close to the theory's only.

    python examples/wei2019_boundaries.py examples/wei2019_mnist_fc.toml DIR

The settings are those of the map; the rates of each gamma are the corrected critical rate times
10^-0.3 to 10^0.4 in steps of 0.05 decades. The data sets are those of NORMSCOPE_DATA.
"""

import sys
from pathlib import Path

import numpy as np

import normscope as ns
from normscope.train import TRAINING, stability_map
from normscope.train.trial import checksum_of, spec_of

DECADES = np.linspace(-0.3, 0.4, 15)


def settings_of(path):
    """One dict for each gamma and rate, and the number of seeds."""
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml
    common = toml.loads(Path(path).read_text())
    gammas, seeds = common.pop("gamma"), common.pop("seeds")
    del common["lr"]
    common["data_checksum"] = checksum_of(common)
    rows = []
    for gamma in map(float, gammas):
        spec = spec_of(common | {"gamma": gamma})
        made = ns.predict(spec, samples=common["batch_size"], parameters="all",
                          theory="corrected")  # fmt: skip
        rates = made.critical_lr(common["momentum"]) * 10**DECADES
        # seven digits, so that another processor asks for the same trials
        rows += [common | {"gamma": gamma, "lr": float(f"{rate:.7g}")} for rate in rates]
    return rows, seeds


if __name__ == "__main__":
    rows, seeds = settings_of(sys.argv[1])
    found = ns.sweep(TRAINING, rows, seeds=seeds, output=sys.argv[2])
    print(found.summary())
    print(stability_map(found).summary())
