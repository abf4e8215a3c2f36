"""Fig. 2a, b, g, h and App. B.3: batch sizes, population norm, dropout, weight norm."""

import numpy as np

import normscope as ns
from normscope.experiments.luo2019._training import images, train
from normscope.experiments.observing import Array, Panel, Table, Values, by_seed, parts
from normscope.nn.norm import PopulationRefresher
from normscope.sweeps.panels import training_panel
from normscope.train import adaptive_gamma_decay, gamma_decay

LARGE = 8  # times the batch size of the others, and twice their epochs
ZETAS = (1e-4, 1e-2)
PN = {"norm": "population", "norm_options": {"stat_grad": "batch"}}
ARMS: dict[str, Values] = {  # sizes in units of the paper's 128
    "BN 128": {}, "BN 16 of 128": {"piece": 1 / 8},
    "BN 1024": {"size": LARGE}, "BN 128 of 1024": {"size": LARGE, "piece": 1},
    "BN 1024, dropout 0.1": {"size": LARGE, "dropout": 0.1},
    **{f"BN 1024, zeta {zeta:g}": {"size": LARGE, "zeta": zeta} for zeta in ZETAS},
    "PN": PN, "PN + gamma decay": {**PN, "decay": True},
    "WN": {"norm": "weight"}, "WN, dropout 0.2": {"norm": "weight", "dropout": 0.2},
    "BN 32": {"size": 1 / 4}, "BN 32, dropout 0.1": {"size": 1 / 4, "dropout": 0.1},
    "BN 32, dropout 0.2": {"size": 1 / 4, "dropout": 0.2}}  # fmt: skip
NAMES = {"train": "training loss", "loss": "validation loss", "accuracy": "validation accuracy"}


def trial(arm: str, net: str, data: str, samples: int, epochs: int, unit: int, lr: float,
          population: int, seed: int) -> Values:  # fmt: skip
    """Train one arm; ``unit`` is the batch size that stands for 128."""
    shown, test = images(data, samples, seed)
    settings = {"norm": "batch", "size": 1.0, **ARMS[arm]}
    size = settings.pop("size")
    piece, zeta, decay = (settings.pop(name, None) for name in ("piece", "zeta", "decay"))
    if piece:
        settings["norm_options"] = {"statistics_batch": round(piece * unit)}
    model = ns.network(net, seed=seed, **settings)
    options: Values = {"penalty": gamma_decay(zeta)} if zeta else {}
    if settings["norm"] == "population":
        options["refreshers"] = [PopulationRefresher(model, shown.images, num_samples=population)]
    if decay:
        strengths = adaptive_gamma_decay(model, shown, "cross_entropy", batch_size=unit,
                                         num_samples=population)  # fmt: skip
        options |= {"penalty": strengths, "refreshers": [*options["refreshers"], strengths]}
    length = 2 * epochs if size == LARGE else epochs
    return train(model, shown, test, length, lr=lr * size, batch_size=round(size * unit), seed=seed,
                 **options)  # fmt: skip


def observe(table: Table) -> Values:
    """Differences between arms of the same seed."""
    epochs = len(next(iter(by_seed(table, "loss", {"arm": "BN 128"}).values())))

    def values(arm: str, key: str, epoch: int) -> Array:
        get = {"gap": lambda run: run["loss"][epoch] - run["train"][epoch],
               "lost": lambda run: -run["accuracy"][epoch],
               "loss": lambda run: run["loss"][epoch]}[key]  # fmt: skip
        found = by_seed(table, get, {"arm": arm})
        return np.array([found[seed] for seed in sorted(found)])

    def worse(a: str, b: str, *keys: str, at: tuple[int, int] = (-1, -1), view: str = "") -> Values:
        """How much worse arm a is than arm b."""
        words = {"loss": "validation loss", "lost": "accuracy lost", "gap": "gap to training loss"}
        return {view + words[key]: values(a, key, at[0]) - values(b, key, at[1]) for key in keys}

    pair, three = ("loss", "lost"), ("loss", "lost", "gap")
    early = 2 * epochs // LARGE - 1  # the epoch with as many updates as the large batches make
    versions = (
        worse("BN 1024", "BN 128", *three, at=(epochs - 1, epochs - 1), view="equal epochs, ")
        | worse("BN 1024", "BN 128", *three, at=(-1, early), view="equal updates, ")
        | worse("BN 128", "BN 16 of 128", *three, view="statistics of 16 and 128, ")
        | worse("BN 1024", "BN 128 of 1024", *three, view="statistics of 128 and 1024, ")
    )
    lost = values("BN 1024", "loss", -1) - values("BN 128 of 1024", "loss", -1)
    half = lost / 2 if lost.mean() > 0 else np.full_like(lost, np.nan)  # nothing to win back
    gains = {f"zeta={z:g}": -worse(f"BN 1024, zeta {z:g}", "BN 1024", "loss")["validation loss"]
             for z in ZETAS}  # fmt: skip
    small = {f"dropout {p}": f"BN 32, dropout {p}" for p in (0.1, 0.2)}
    return {"fig2a-batch": parts(versions),
            "fig2a-pn": parts(worse("PN + gamma decay", "BN 128", *pair)),
            "fig2a-pn-only": parts(worse("PN", "BN 128", "gap")),
            "fig2g-dropout": parts(worse("BN 1024, dropout 0.1", "BN 1024", *pair)),
            "fig2h-wn": parts(worse("WN, dropout 0.2", "WN", *pair)),
            "fig2h-below": parts(worse("WN, dropout 0.2", "BN 128", *pair)),
            "b3-constant": parts({name: gain - half for name, gain in gains.items()}),
            "b3-small-batch": parts({word: worse(arm, "BN 32", "lost")["accuracy lost"]
                                     for word, arm in small.items()})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """The four panels over epochs, and the arms of App. B.3."""
    ours = ["BN 128", "BN 16 of 128", "BN 1024", "BN 128 of 1024", "PN", "PN + gamma decay"]
    wn = ["WN", "WN, dropout 0.2"]
    dropout = ["BN 128", "BN 1024", "BN 1024, dropout 0.1", *wn]
    appendix = [name for name in ARMS if name not in (*ours, *wn)]
    shown = [("Fig. 2a", ours, ("train", "loss")), ("Fig. 2b", ours, ("accuracy",)),
             ("Fig. 2g", dropout, ("train", "loss")), ("Fig. 2h", dropout, ("accuracy",)),
             ("App. B.3", appendix, ("loss", "accuracy"))]  # fmt: skip
    return [training_panel(table, f"Luo et al. 2019, {place}: {NAMES[key]}",
                           {name: {"arm": name} for name in names}, key, x="epoch, from 0",
                           y=NAMES[key])
            for place, names, keys in shown for key in keys]  # fmt: skip
