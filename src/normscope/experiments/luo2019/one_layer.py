"""Fig. 2e, f: batch norm at one layer, batch size by batch size."""

import numpy as np

import normscope as ns
from normscope.experiments import observing
from normscope.experiments.luo2019._training import images, loss_of, train
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts
from normscope.sweeps.table import by_seed

PROTOCOLS = {"epochs": "equal epochs", "updates": "equal updates"}
NAMES = {"gamma": "mean gamma^2", "product": "mean gamma^2 |w_next|^2", "loss": "validation loss"}


def trial(protocol: str, size: int, layer: int, net: str, data: str, samples: int, epochs: int,
          lr: float, batch: int, seed: int) -> Values:  # fmt: skip
    """Equal epochs: batches of ``size``, rate in proportion. Equal updates: statistics of so many.

    ``lr`` is the rate of batches of ``batch`` samples, which all runs with equal updates have.
    """
    shown, test = images(data, samples, seed)
    ghost = {"norm_options": {"statistics_batch": size}} if protocol == "updates" else {}
    model = ns.network(net, norm="batch", norm_layers=(layer,), seed=seed, **ghost)
    step = batch if protocol == "updates" else size
    found = train(model, shown, test, epochs, lr=lr * step / batch, batch_size=step, seed=seed)
    weights = dict(model.named_parameters())
    gamma = weights[f"norm{layer}.weight"].detach().double().square()
    after = weights[f"layer{layer + 1}.weight"].detach().double()
    reach = after.reshape(len(after), len(gamma), -1).square().sum((0, 2))
    return {"gamma": float(gamma.mean()), "product": float((gamma * reach).mean()),
            "loss": found["loss"][-1], "train": loss_of(model, shown)}  # fmt: skip


def _over_sizes(table: Table, name: str, *protocols: str) -> dict[str, tuple[list[int], Array]]:
    """Batch sizes, and for each the values of its seeds."""
    made = {}
    for protocol in protocols:
        for layer in table.values_of("layer"):
            chosen = table.where(protocol=protocol, layer=layer)
            sizes = chosen.values_of("size")
            found = [by_seed(chosen, name, {"size": m}) for m in sizes]
            groups = np.array([[one[seed] for seed in sorted(one)] for one in found])
            made[f"layer {layer}, {PROTOCOLS[protocol]}"] = (sizes, groups)
    return made


def observe(table: Table) -> Values:
    """Slopes over log2 M, one for each seed."""

    def slope(name: str, *protocols: str) -> Values:
        found = _over_sizes(table, name, *protocols)
        return parts({k: observing.slopes(np.log2(m), rows.T) for k, (m, rows) in found.items()})

    return {"fig2e": slope("gamma", *PROTOCOLS), "fig2e-next": slope("product", "updates"),
            "fig2f": slope("loss", *PROTOCOLS)}  # fmt: skip


def panels(table: Table) -> Panels:
    """Both panels of the figure, and the scale times the weights that follow."""
    for name, place in (("gamma", "e"), ("loss", "f"), ("product", "e, control")):
        found = _over_sizes(table, name, *PROTOCOLS)
        curves = tuple(curve(k, *groups) for k, groups in found.items())
        title = f"Luo et al. 2019, Fig. 2{place}: batch norm at one layer"
        yield Panel(title, "batch size M of the statistics", NAMES[name], curves, log_x=True)
