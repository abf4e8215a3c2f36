"""``normscope regularization``: how strongly batch norm regularizes, by layer and batch size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import Delivery
from normscope.cli.options import Option
from normscope.cli.subjects import GROUP, MODEL_AND_DATA, WEIGHTS, check_given, loaded, users_code
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results import BatchNormRegularization

MEASURE, TRAIN = "measurement", "train first"


def _sizes(value: Any) -> tuple[int, ...]:
    """Whole numbers with commas, or a TOML array of them."""
    return tuple(opt.whole(item) for item in opt.items(value))


OPTIONS = (
    *MODEL_AND_DATA,
    WEIGHTS,
    Option("loss", opt.text, "cross_entropy or mse", "NAME", "cross_entropy", GROUP),
    Option("batch_sizes", _sizes, "numbers with commas", "SIZES", "16,64,256,1024", MEASURE),
    Option("layers", opt.names, "names of batch-norm layers (default: all)", "NAMES",
           group=MEASURE),
    Option("num_batches", opt.whole, "number of batches for each measured gap", "N", 128, MEASURE),
    Option("max_samples", opt.whole, "samples for the population statistics", "N", 2048, MEASURE),
    Option("sampling", opt.text, "independent or epoch (without replacement)", "NAME",
           "independent", MEASURE),
    Option("curvature", opt.text, "auto, exact or probes", "NAME", "auto", MEASURE),
    Option("seed", opt.whole, "seed for weights, training, subset and batches", "SEED", 0, MEASURE),
    Option("steps", opt.whole, "updates before the measurement", "N", group=TRAIN),
    Option("lr", opt.number, "learning rate", "LR", 0.1, TRAIN),
    Option("momentum", opt.number, "SGD momentum", "MU", 0.9, TRAIN),
    Option("train_batch_size", opt.whole, "batch size for training", "N", 128, TRAIN),
    opt.CHART,
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip
COLUMNS = {
    "layer": "layer", "M": "batch_size", "M_eff": "effective_batch_size", "zeta": "zeta",
    "from_mean": "mean_share", "paper": "paper", "formula": "formula", "predicted": "predicted",
    "measured": "measured", "s.e.": "measured_error", "ratio": "ratio", "(s.e.)": "ratio_error",
}  # fmt: skip


DESCRIPTION = """The noise of batch statistics as a regularizer (Luo et al. 2019): for every
batch-norm layer and batch size the equivalent gamma decay zeta, and the loss it
adds, predicted and measured."""
EPILOG = """example:
  normscope regularization mlp:64-64-10 --data digits --steps 200 \\
      --batch-sizes 16,64,256 --chart gaps.png"""


def run(given: dict[str, Any]) -> int | None:
    """Measure, save the files, print the summary."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    deliver = Delivery(given, _print)
    with users_code(settings["seed"]):
        result = _measured(settings, own_sizes="batch_sizes" in given)
    return deliver(result)


def _measured(settings: dict[str, Any], *, own_sizes: bool) -> BatchNormRegularization:
    from normscope.measure import bn_regularization

    model, data = loaded(settings)
    with interruptible():
        sizes = _fitting(settings, model, data, own_sizes=own_sizes)
    if settings["steps"] is not None:
        _train(settings, model, data)
    with output.working("Measuring batch norm's regularization"):
        names = ("layers", "num_batches", "max_samples", "sampling", "curvature", "seed")
        chosen = {name: settings[name] for name in names}
        return bn_regularization(model, data, settings["loss"], batch_size=sizes, **chosen)


def _fitting(
    settings: dict[str, Any], model: Any, data: Any, *, own_sizes: bool
) -> tuple[int, ...]:
    """Batch sizes that the data are enough for: known before a training, not after it."""
    from normscope.measure.regularization.pool import pool_of
    from normscope.measure.regularization.strength import checked_batch_sizes
    from normscope.subject.problem import as_problem

    problem = as_problem(model, data, settings["loss"], seed=settings["seed"])
    pool = pool_of(problem, max_samples=settings["max_samples"])
    sizes = settings["batch_sizes"]
    fitting = tuple(size for size in sizes if size <= pool.size)
    return checked_batch_sizes(sizes if own_sizes or not fitting else fitting, pool.size)


def _train(settings: dict[str, Any], model: Any, data: Any) -> None:
    from normscope.subject.data import as_source
    from normscope.subject.reading import Reading
    from normscope.train import fit

    own = as_source(data, Reading()).own_batches  # a loader's batches
    chosen = {name: settings[name] for name in ("lr", "momentum", "steps", "seed")}
    size = None if own else settings["train_batch_size"]
    run = fit(model, data, settings["loss"], batch_size=size, **chosen)
    output.note(f"Trained {run.updates} steps: {run.outcome}, loss {run.losses[-1]:.4g}")
    if run.outcome == "interrupted":
        raise KeyboardInterrupt
    if run.outcome == "diverged":
        raise InputError(f"{run.reason} Lower --lr, or measure without --steps.")


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
