"""``normscope predict``: the theory's answer for one network, at one gamma or several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import Delivery
from normscope.cli.options import Option
from normscope.cli.subjects import WEIGHTS, loaded, users_code
from normscope.errors import InputError, TheoryError
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results import Prediction, PredictionSet
    from normscope.spec import NetworkSpec

NETWORK, CONV, THEORY = "network", "one architecture only", "theory"
MODULE = "your own network"
OPTIONS = (
    Option("architecture", opt.text, "mlp:784-1000-10, cnn:3x32x32:30-60-90 or resmlp:500x4-10; "
           "with --data resnet20, or your own: file.py:factory", "ARCHITECTURE", group=NETWORK,
           positional=True),
    Option("activation", opt.text, "relu, tanh, leaky_relu(0.1), ...", "NAME", "relu", NETWORK),
    Option("weight_variance", opt.number, "weights are N(0, this / fan-in)", "S2", 2.0, NETWORK),
    Option("bias_variance", opt.number, "biases are N(0, this)", "S2", 0.0, NETWORK),
    Option("norm", opt.text, "none, batch or layer, in all hidden layers", "NAME", "none", NETWORK),
    Option("gamma", opt.numbers, "the norm's gain: 1, or 0.1,0.5,1, or start:stop:count", "G", None,
           NETWORK),
    Option("last_norm", opt.text, "none, mean, variance, batch or layer, on the outputs", "NAME",
           "none", NETWORK),
    Option("kernel", opt.whole, "cnn: side of the kernels", "N", 3, CONV),
    Option("stride", opt.whole, "cnn: stride of every convolution", "N", 1, CONV),
    Option("padding", opt.whole, "cnn: zeros on every side", "N", 0, CONV),
    Option("outputs", opt.whole, "cnn: number of classes", "N", 10, CONV),
    Option("head", opt.text, "cnn: flatten or pool", "NAME", "flatten", CONV),
    Option("branch_scale", opt.number, "resmlp: beta in x + beta (W phi(x) + b)", "B", 1.0, CONV),
    Option("samples", opt.samples, "number of samples T, or inf", "T", "inf", THEORY),
    Option("theory", opt.names, "graph, corrected, frozen, wei2019, wei2019-as-plotted, or several "
           "with commas", "NAMES", "graph", THEORY),
    Option("statistics", opt.text, "batch norm in train mode (batch), with constant statistics "
           "(frozen) or with stored ones (running)", "NAME", "batch", THEORY),
    Option("level", opt.text, "homogeneous, positions or gram (default: by cost)", "NAME",
           group=THEORY),
    Option("parameters", opt.text, "weights or all (default: weights); with --data also names of "
           "layers or parameters (default: all)", "SET", group=THEORY),
    Option("inputs", opt.text, "real data (samples, features) in place of random inputs",
           "FILE.npy", None, THEORY),
    Option("momentum", opt.number, "momentum, for the critical learning rate", "MU", 0.0,
           THEORY),
    Option("seed", opt.whole, "seed for random inputs and outputs, and the order of data", "N", 0,
           THEORY),
    Option("data", opt.text, "predict a module on the first batch of this data: digits, cifar10, "
           "random:3x32x32, or your own: file.py:loader", "DATA", group=MODULE),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group=MODULE),
    WEIGHTS,
    Option("widths", opt.numbers, "also for networks so many times as wide, such as 2,4,8", "K",
           group=MODULE),
    Option("chart", opt.text, "draw lambda_max and critical lr against gamma: png, svg, pdf, html",
           "FILE"),
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip
SPEC_OPTIONS = (
    *("activation", "weight_variance", "bias_variance", "last_norm"),
    *("kernel", "stride", "padding", "outputs", "head", "branch_scale"),
)
COLUMNS = ("norm", "gamma", "theory", "lambda_max", "lower", "upper", "trace", "critical_lr")


DESCRIPTION = """Largest eigenvalue of the Fisher matrix J^T J / T of a random wide network,
and the largest learning rate that it is stable at, 2 (1 + momentum) / lambda_max."""
EPILOG = """example:
  normscope predict mlp:784-1000x3-10 --norm batch --gamma 0.1,0.5,1 \\
      --bias-variance 0.5 --samples 400 --momentum 0.9 --chart figure1.html
  normscope predict my_model:make --data my_data:loader --widths 2,4"""


def run(given: dict[str, Any]) -> int | None:
    """Predict, save the files, print the summary."""
    if "data" in given:
        return _run_module(given)
    if extra := [name for name in ("data_dir", "weights", "widths") if name in given]:
        raise InputError(f"--{extra[0].replace('_', '-')} is for modules. Give --data as well.")
    request = _Request(given)
    deliver = Delivery(given, _Answer.show)
    with interruptible():
        asked = request.predictions(request.norm, request.gammas, request.theories)
        plain = request.family(None, (None,), request.theories) if request.norm else ((), [])
    code = deliver(_Answer(request, asked, plain[0]))
    for line in dict.fromkeys(plain[1]):
        output.note(line)
    return code


def _run_module(given: dict[str, Any]) -> int | None:
    """The same for a module on its data."""
    if "architecture" not in given:
        raise InputError("Which network? Give one, such as resnet20 or my_model.py:make.")
    ours = ("architecture", *(option.name for option in OPTIONS if option.group == MODULE))
    theory = ("samples", "statistics", "level", "parameters", "momentum", "seed")
    for name in given:
        if name not in (*ours, *theory, "chart", "save_data", "json"):
            raise InputError(
                f"--{name.replace('_', '-')} is for architectures. With --data the network is a "
                "module, which says itself what it is. Leave it out."
            )
    settings = opt.defaults(OPTIONS) | given
    deliver = Delivery(given)
    with users_code(settings["seed"]):
        with output.working("Loading"):
            model, data = loaded(settings | {"model": settings["architecture"]})
        with interruptible():
            from normscope.prediction import predict

            named = settings["parameters"]
            made = predict(
                model,
                data,
                parameters=None if named in (None, "all") else opt.names(named),
                **{n: settings[n] for n in ("samples", "statistics", "level", "seed")},
            )
            found = _Module(made, settings["momentum"], settings["widths"] or ())
            found.summary()  # a width or a momentum that cannot be is found before files are made
    return deliver(found)


@dataclass(frozen=True)
class _Module:
    """The prediction of a module, and of networks of other widths."""

    prediction: Any
    momentum: float
    widths: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """What ``Prediction.from_dict`` reads, with critical_lr and other widths added."""
        made = self.prediction
        wider = [made.scaled(width) for width in self.widths]
        rates = [p.row(self.momentum)["critical_lr"] for p in (made, *wider)]
        shown = [p.to_dict() | {"critical_lr": r} for p, r in zip(wider, rates[1:], strict=True)]
        extra = {"critical_lr": rates[0], "momentum": self.momentum, "wider": shown}
        return made.to_dict() | extra

    def chart(self) -> Any:
        """Each layer's share of lambda_max."""
        return self.prediction.chart()

    def summary(self) -> str:
        """What is printed."""
        return self.prediction.summary(self.momentum, self.widths)


class _Request:
    """What was asked, defaults filled in, and how to predict a network of it."""

    def __init__(self, given: dict[str, Any]) -> None:
        from normscope.spec.names import FORMS

        if "architecture" not in given:
            raise InputError(
                "Which network? Give an architecture such as "
                f"{', '.join(FORMS.values())}, or a --config file that has one."
            )
        if given["architecture"].partition(":")[0] not in FORMS:
            raise InputError(
                f"Unknown architecture {given['architecture']!r}. Give one such as "
                f"{', '.join(FORMS.values())}; a module, such as resnet20 or my_model.py:make, "
                "needs --data."
            )
        self.given = given
        self.settings = opt.defaults(OPTIONS) | given
        self.name: str = self.settings["architecture"]
        self.norm = _named(self.settings["norm"])
        self.gammas: tuple[float | None, ...] = self.settings["gamma"] or (None,)
        self.theories: tuple[str, ...] = self.settings["theory"]
        self.momentum: float = self.settings["momentum"]
        self.inputs = _array(self.settings["inputs"])
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1. Got {self.momentum!r}.")

    def network(self, norm: str | None, gamma: float | None) -> NetworkSpec:
        """The network asked for, with this norm."""
        from normscope.spec.names import network as spec_network

        chosen = {name: self.settings[name] for name in SPEC_OPTIONS}
        chosen["last_norm"] = _named(chosen["last_norm"])
        chosen |= {"norm": norm, "gamma": gamma}
        return spec_network(self.name, chosen, given=self.given)

    def predictions(
        self, norm: str | None, gammas: tuple[float | None, ...], theories: tuple[str, ...]
    ) -> PredictionSet:
        """All of them in one call."""
        from normscope.theory import predict

        return predict(
            [self.network(norm, gamma) for gamma in gammas],
            samples=self.settings["samples"],
            theory=theories,
            parameters=self.settings["parameters"] or "weights",
            data=self.inputs,
            statistics=self.settings["statistics"],
            level=self.settings["level"],
            seed=self.settings["seed"],
        )  # type: ignore[return-value]  # several specs give a set

    def family(
        self, norm: str | None, gammas: tuple[float | None, ...], theories: tuple[str, ...]
    ) -> tuple[tuple[Prediction, ...], list[str]]:
        """For comparison: what the theories cover, and a note for each that does not."""
        found: tuple[Prediction, ...] = ()
        notes = []
        for theory in theories:
            try:
                found += tuple(self.predictions(norm, gammas, (theory,)))
            except TheoryError as error:
                notes.append(f"Left out, {norm or 'no'} norm under {theory}: {error}")
        return found, notes


@dataclass(frozen=True)
class _Answer:
    """What was asked for, beside the same network without norm."""

    request: _Request
    asked: PredictionSet
    plain: tuple[Prediction, ...]

    def to_dict(self) -> dict[str, Any]:
        """What ``PredictionSet.from_dict`` reads, with critical_lr added."""
        from normscope._version import __version__

        momentum = self.request.momentum

        def entry(prediction: Prediction) -> dict[str, Any]:
            return prediction.to_dict() | {"critical_lr": prediction.row(momentum)["critical_lr"]}

        return {
            "type": "PredictionSet",
            "version": __version__,
            "architecture": self.request.name,
            "momentum": momentum,
            "predictions": [entry(prediction) for prediction in self.asked],
            "without_norm": [entry(prediction) for prediction in self.plain],
        }

    def chart(self) -> Any:
        """The paper's Figure 1: no norm beside the norm, all theories, over gamma."""
        from normscope.results import PredictionSet
        from normscope.theory import THEORIES

        request = self.request
        theories = request.theories if "theory" in request.given else THEORIES[:3]  # of Figure 1
        gammas = request.gammas if len(request.gammas) > 1 else _grid(request.gammas)
        plain, left_out = request.family(None, (None,), theories)
        normed, more = request.family(request.norm or "batch", gammas, theories)
        for line in dict.fromkeys(left_out + more):
            output.note(line)
        return PredictionSet(plain + normed).chart(momentum=request.momentum)

    def show(self) -> None:
        """A heading, a table, and what it rests on."""
        _print(self.request, (*self.plain, *self.asked))


def _grid(extra: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """The 41 gammas of the paper's figure, and the one that was asked for."""
    paper = {round(0.1 * step, 10) for step in range(1, 42)}
    return tuple(sorted(paper | {gamma for gamma in extra if gamma is not None}))


def _print(request: _Request, shown: tuple[Prediction, ...]) -> None:
    output.print_text(_heading(request, shown[-1]))
    output.print_text("")
    rows = [prediction.row(request.momentum) for prediction in shown]
    rows = [row | {"theory": row["theory"].replace("wei2019-", "")} for row in rows]  # 80 columns
    columns = list(COLUMNS)
    if any(prediction.standard_error is not None for prediction in shown):
        columns.insert(4, "s.e.")
        errors = [output.number(prediction.standard_error, digits=2) for prediction in shown]
        rows = [row | {"s.e.": error} for row, error in zip(rows, errors, strict=True)]
    output.print_table(columns, [[output.number(row[c]) for c in columns] for row in rows])
    output.print_text("")
    output.print_text(f"critical_lr = 2 (1 + {request.momentum:g}) / lambda_max of F = J^T J / T")
    for line in _assumptions(shown):
        output.print_text(line, bullet="- ")
    for flag in dict.fromkeys(flag for prediction in shown for flag in prediction.flags):
        output.print_text(flag, bullet="! ")


def _heading(request: _Request, prediction: Prediction) -> str:
    spec, settings = prediction.spec, request.settings
    what = "weights" if prediction.parameters == "weights" else "parameters"
    limit = "infinitely many" if prediction.samples is None else str(prediction.samples)
    last = f", {spec.last_norm} norm on the outputs" if spec and spec.last_norm else ""
    return (
        f"{request.name}: {settings['activation']}, weight variance "
        f"{settings['weight_variance']:g}, bias variance {settings['bias_variance']:g}{last}; "
        f"{prediction.num_parameters:,} {what}, {limit} samples"
    )


def _assumptions(shown: tuple[Prediction, ...]) -> list[str]:
    """Each assumption once; with the theory's name if not all theories make it."""
    makers: dict[str, list[str]] = {}
    for prediction in shown:
        for line in prediction.assumptions:
            makers.setdefault(line, []).append(prediction.theory)
    theories = {prediction.theory for prediction in shown}
    return [
        line if set(by) == theories else f"{', '.join(dict.fromkeys(by))}: {line}"
        for line, by in makers.items()
    ]


def _named(word: str) -> str | None:
    return None if word.lower() == "none" else word


def _array(path: str | None) -> Any:
    if path is None:
        return None
    import numpy as np

    if not Path(path).is_file():
        raise InputError(f"There is no file {path}. Give --inputs an array saved by numpy.save.")
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not an array saved by numpy.save: {error}") from None
