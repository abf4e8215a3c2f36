"""``normscope regularization``: how strongly batch norm regularizes, by layer and batch size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output, targets
from normscope.cli.options import Option, command_parser
from normscope.cli.parser import Parser
from normscope.cli.subjects import check_given, users_code
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.results import BatchNormRegularization

__all__ = ["OPTIONS", "parser", "run"]

NETWORK, MEASURE, TRAIN = "network and data", "measurement", "train first"


def _sizes(value: Any) -> tuple[int, ...]:
    """Whole numbers with commas, or a TOML array of them."""
    items = value.split(",") if isinstance(value, str) else value
    items = items if isinstance(items, list) else [items]
    return tuple(opt.whole(item) for item in items)


OPTIONS = (
    Option("model", opt.text, "resnet20, mlp:64-32-10,norm=batch, or your own: module:factory, "
           "file.py:factory", "MODEL", group=NETWORK, positional=True),
    Option("data", opt.text, "digits, mnist, fashion-mnist, cifar10, or your own: module:loader",
           "DATA", group=NETWORK),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group=NETWORK),
    Option("weights", opt.text, "state dict to load into the network (torch.save)", "FILE",
           group=NETWORK),
    Option("loss", opt.text, "cross_entropy or mse", "NAME", "cross_entropy", NETWORK),
    Option("batch_sizes", _sizes, "numbers with commas", "SIZES", "16,64,256,1024", MEASURE),
    Option("layers", opt.names, "names of batch-norm layers (default: all)", "NAMES",
           group=MEASURE),
    Option("num_batches", opt.whole, "batches behind each measured gap", "N", 128, MEASURE),
    Option("max_samples", opt.whole, "samples that stand for the population", "N", 2048, MEASURE),
    Option("sampling", opt.text, "independent or epoch (without replacement)", "NAME",
           "independent", MEASURE),
    Option("curvature", opt.text, "auto, exact or probes", "NAME", "auto", MEASURE),
    Option("seed", opt.whole, "of weights, training, subset and batches", "SEED", 0, MEASURE),
    Option("steps", opt.whole, "updates before the measurement", "N", group=TRAIN),
    Option("lr", opt.number, "learning rate", "LR", 0.1, TRAIN),
    Option("momentum", opt.number, "of sgd", "MU", 0.9, TRAIN),
    Option("train_batch_size", opt.whole, "batch size of the training", "N", 128, TRAIN),
    Option("chart", opt.text, "draw the gaps: png, svg, pdf, html", "FILE"),
    Option("output", opt.text, "write the result as JSON", "FILE"),
    opt.JSON,
)  # fmt: skip
COLUMNS = {
    "layer": "layer", "M": "batch_size", "M_eff": "effective_batch_size", "zeta": "zeta",
    "from_mean": "mean_share", "paper": "paper", "formula": "formula", "predicted": "predicted",
    "measured": "measured", "s.e.": "measured_error", "ratio": "ratio", "(s.e.)": "ratio_error",
}  # fmt: skip


def parser() -> Parser:
    """The flags of this command."""
    return command_parser(
        "regularization",
        OPTIONS,
        description="The noise of batch statistics as a regularizer (Luo et al. 2019): for every\n"
        "batch-norm layer and batch size the gamma decay zeta it amounts to, and the loss it\n"
        "adds, predicted and measured.",
        epilog="example:\n  normscope regularization mlp:64-64-10 --data digits --steps 200 \\\n"
        "      --batch-sizes 16,64,256 --chart gaps.png",
    )


def run(given: dict[str, Any]) -> None:
    """Measure, print, draw."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    save = output.chart_saver(given["chart"]) if "chart" in given else None
    with users_code(settings["seed"]):
        result = _measured(settings, own_sizes="batch_sizes" in given)
    if given.get("json"):
        output.print_json(result.to_dict())
    else:
        _print(result)
    if "output" in given:
        Path(given["output"]).write_text(result.to_json(indent=1), encoding="utf-8")
        output.note(f"Wrote {given['output']}")
    if save is not None:
        save(result.chart())


def _measured(settings: dict[str, Any], *, own_sizes: bool) -> BatchNormRegularization:
    from normscope.measure import bn_regularization

    data = targets.data_target(settings["data"], data_dir=settings["data_dir"])
    settings = settings | {"batch_sizes": _fitting(settings, data, own_sizes=own_sizes)}
    model = _network(settings, data)
    with output.working("Measuring batch norm's regularization"):
        return bn_regularization(
            model,
            data,
            settings["loss"],
            batch_size=settings["batch_sizes"],
            layers=settings["layers"],
            num_batches=settings["num_batches"],
            max_samples=settings["max_samples"],
            sampling=settings["sampling"],
            curvature=settings["curvature"],
            seed=settings["seed"],
        )


def _fitting(settings: dict[str, Any], data: Any, *, own_sizes: bool) -> tuple[int, ...]:
    """Batch sizes that the data are enough for: known before a training, not after it."""
    import torch

    from normscope.measure.regularization._pool import pool_of
    from normscope.measure.regularization.strength import checked_batch_sizes

    limit, sizes = settings["max_samples"], settings["batch_sizes"]
    pool = pool_of(data, max_samples=limit, one_hot=False, dtype=torch.float32, seed=0)
    fitting = tuple(size for size in sizes if size <= pool.size)
    return checked_batch_sizes(sizes if own_sizes or not fitting else fitting, pool.size)


def _network(settings: dict[str, Any], data: Any) -> Any:
    model = targets.network_target(settings["model"], seed=settings["seed"])
    if settings["weights"] is not None:
        targets.load_weights(model, settings["weights"])
    if settings["steps"] is not None:
        from normscope.train import fit

        own = not hasattr(data, "batches") and not isinstance(data, tuple)  # a loader's batches
        run = fit(
            model,
            data,
            settings["loss"],
            lr=settings["lr"],
            momentum=settings["momentum"],
            steps=settings["steps"],
            batch_size=None if own else settings["train_batch_size"],
            seed=settings["seed"],
        )
        output.note(f"Trained {run.updates} steps: {run.outcome}, loss {run.losses[-1]:.4g}")
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        if run.outcome == "diverged":
            raise InputError(f"{run.reason} Lower --lr, or measure without --steps.")
    return model


def _print(result: BatchNormRegularization) -> None:
    output.print_text(
        f"Loss under population norm {result.population_loss:.5g} ({result.loss}); "
        f"{result.samples} samples, {result.num_batches} batches each, seed {result.seed}"
    )
    output.print_text("")
    frame = result.to_frame()
    rows = [
        [output.number(_cell(row[source]), digits=4) for source in COLUMNS.values()]
        for row in frame.to_dict("records")
    ]
    output.print_table(list(COLUMNS), rows)
    output.print_text("")
    for line in (*result.advice(), *result.notes):
        output.print_text(line, bullet="- ")


def _cell(value: Any) -> Any:
    """A dash for what the rows of all layers together do not have."""
    return None if isinstance(value, float) and math.isnan(value) else value
