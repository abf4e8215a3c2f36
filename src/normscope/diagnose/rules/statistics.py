"""Rules about evaluation mode: running statistics, those held in training, and evaluation data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose.rules.base import STARTED, Case, note, ok, problem, rule, warning
from normscope.messages import counted
from normscope.refs import BJORCK2018
from normscope.results import Evidence, Finding, Modes, NormModes, Score

WHERE = "Sec. 1.1, Eq. (1)"
REMAKE = "ns.apply_transform(model, 'recompute-statistics', data=data)"


@dataclass(frozen=True)
class ModeLimits:
    """From where on evaluation mode suffers, and why.

    Attributes:
        suffers: extra loss, as a share of the loss of the best constant answer.
        twice: a smaller extra loss counts where it multiplies the loss by so much.
        little: that smaller extra loss, as a share of the same.
        mean_gap: distance of means, in running deviations.
        variance_gap: factor between variances.
        fresh: share of initial values in running statistics that are not judged yet.
        few_updates: batches from which a small momentum is remarked where the loss suffers.
        slow: momentum from which down it is remarked in any case.
        helps: share of the extra loss that recomputed statistics must take away.
        few: samples in a batch below which its statistics are poor.
        share: part of the frozen norms that must be off.
        shift: distance of the inputs' means, in deviations.
        scale: factor between the inputs' variances.
        seen: samples of both, from which on inputs alone can tell that they are prepared in other
            ways, whatever the loss of an untrained network says.
        far_shift: distance of the means that tells it.
        far_scale: factor between the variances that does.
    """

    suffers: float = 0.15
    twice: float = 2.0
    little: float = 0.05
    mean_gap: float = 1.0
    variance_gap: float = 2.0
    fresh: float = 0.05
    few_updates: int = 20
    slow: float = 0.003
    helps: float = 0.5
    few: int = 16
    share: float = 0.3
    shift: float = 0.5
    scale: float = 2.0
    seen: int = 32
    far_shift: float = 0.75
    far_scale: float = 3.0

    def apart(self, norm: NormModes) -> float:
        """How far stored statistics are off, in units of what is allowed."""
        factor = math.log(norm.variance_gap) / math.log(self.variance_gap)
        return max(norm.mean_gap / self.mean_gap, factor)

    def line(self, case: Case, before: Score, *, much: bool = False) -> float:
        """The loss above which another mode suffers, or does so much, beside ``before``."""
        if not case.chance > 0:
            return self.twice * before.loss
        usual = before.loss + self.suffers * case.chance
        small = max(before.loss + self.little * case.chance, self.twice * before.loss)
        return usual if much else min(usual, small)


LIMITS = ModeLimits()


@dataclass(frozen=True)
class MovingLimits:
    """Thresholds of ``statistics-momentum``.

    Attributes:
        most: weight of the newest batch from which on the others hardly count.
        few: samples in a batch below which one batch says too little; some published models take
            their statistics from the last batch on purpose.
    """

    most: float = 0.9
    few: int = 32


@rule("statistics-momentum", "modes", order=5.05, kind="fact", limits=MovingLimits(),
      suppressed_by=("running-statistics",))  # fmt: skip
def statistics_momentum(case: Case, limits: MovingLimits) -> Finding | None:
    """Running statistics that never move, or that hold the last batch only."""
    live = [norm for norm in case["modes"].live if not math.isnan(norm.momentum)]
    still = [norm for norm in live if norm.momentum == 0]
    last = [norm for norm in live if norm.momentum >= limits.most]
    if not (chosen := still or last):
        return None
    limit = 0.0 if still else limits.most
    shown = (Evidence("weight of the newest batch", chosen[0].momentum, limit),)
    if still:
        return warning(
            title=f"The momentum of {counted(len(still), 'batch norm')} is 0: their running "
            "statistics never move",
            evidence=shown,
            meaning="Training uses the statistics of each batch, evaluation those that the norm "
            "began with.",
            advice="Use momentum=0.1.",
            layer=still[0].name,
        )
    small = last[0].momentum == 1 or case.samples < limits.few
    return (warning if small else note)(
        title=f"The momentum {last[0].momentum:g} of {counted(len(last), 'batch norm')} makes the "
        "running statistics those of the last batch",
        evidence=shown,
        meaning="In torch it is the weight of the newest batch; in other libraries that of the "
        "old statistics.",
        advice="Use momentum=0.1 (one minus the other convention).",
        layer=last[0].name,
    )


@rule("never-in-train-mode", "modes", "wiring", order=5.04, kind="fact")
def never_in_train_mode(case: Case) -> Finding | None:
    """A model in evaluation mode, with an optimizer and norms that saw no batch yet."""
    modes: Modes = case["modes"]
    fresh = [norm for norm in modes.live if norm.initial == 1 and norm.updates == 0]
    if not (modes.evaluating and fresh) or case["wiring"].optimizer.names is None:
        return None
    return warning(
        title=f"The model is in evaluation mode, and its {counted(len(fresh), 'batch norm')} never "
        "saw a batch in train mode",
        evidence=(Evidence("batches behind the running statistics", 0.0),),
        meaning="Trained like this, they do not normalize: they use their initial statistics, "
        "mean 0 and variance 1.",
        advice="Call model.train() before you train. The other findings are for train mode.",
        layer=fresh[0].name,
    )


@rule("evaluation-mode", "modes", order=5.05, kind="note")
def evaluation_mode(case: Case) -> Finding | None:
    """A model that cannot be run in evaluation mode."""
    modes: Modes = case["modes"]
    if not modes.reason:
        return None
    return note(
        title="The model cannot be run in evaluation mode",
        evidence=(Evidence("loss in train mode", modes.train.loss),),
        meaning=f"So nothing is known of how it does after training: {modes.reason}.",
        advice="Run model.eval() and the loss on one batch to see the whole error.",
    )


@rule(
    "running-statistics",
    "modes",
    order=5,
    kind="fact",
    source=BJORCK2018,
    where=WHERE,
    limits=LIMITS,
)
def running_statistics(case: Case, limits: ModeLimits) -> Finding | None:
    """Stored statistics with which the network does far worse than with those of the batch."""
    modes: Modes = case["modes"]
    live = [norm for norm in modes.live if not math.isnan(norm.mean_gap)]
    if not live or modes.running is None:
        return None
    worst = max(live, key=limits.apart)
    line = limits.line(case, modes.batch)
    suffers = not modes.running.loss <= line
    learned = modes.batch.loss < STARTED * case.chance
    fresh = sum(norm.initial > limits.fresh for norm in live) > len(live) / 2
    if fresh and not learned and math.isfinite(limits.apart(worst)):
        return _fresh(worst, limits, suffers=suffers)
    helped = _helped(modes, limits)
    shown = (*_losses(modes, line), *_gaps(worst, limits))
    much = not modes.running.loss <= limits.line(case, modes.batch, much=True)
    finite = math.isfinite(modes.running.loss)  # NaN statistics stay NaN whatever is averaged
    if suffers and finite and not learned and helped and case.learns and _trainable(live):
        return note(
            title=f"The running statistics are those of other data: the loss is "
            f"{modes.running.loss:.3g} with them, {modes.batch.loss:.3g} with batch statistics",
            evidence=shown,
            meaning=f"Training updates them, and the network learns. {_remedy(modes)}",
            advice=f"Train before you evaluate, or recompute them: {REMAKE}.",
            layer=worst.name,
        )
    stale = learned and any(norm.initial > limits.fresh for norm in live)
    if suffers and (not finite or limits.apart(worst) > 1 or stale or (much and helped)):
        lost = not modes.running.loss <= STARTED * case.chance
        cause, advice = _cause(case, live, limits, helped=helped)
        return (problem if learned and lost else warning)(
            title="The running statistics do not fit: the loss is "
            f"{modes.running.loss:.3g} with them, {modes.batch.loss:.3g} with batch statistics",
            evidence=shown,
            meaning=f"{cause} {_remedy(modes)}".strip(),
            advice=advice,
            layer=worst.name,
        )
    if suffers and helped:
        return note(
            title=f"The running statistics lag behind: the loss is {modes.running.loss:.3g} with "
            f"them, {modes.batch.loss:.3g} with batch statistics",
            evidence=shown,
            meaning="They are close to those of the batches, yet the loss feels the difference, "
            f"as while weights still move fast. {_remedy(modes)}",
            advice="It usually passes as the learning rate falls. Before you evaluate now, "
            f"recompute them: {REMAKE}.",
            layer=worst.name,
        )
    if case.samples < limits.few and modes.batch.loss > limits.line(case, modes.running):
        return warning(
            title=f"Batches of {case.samples} are too small for batch norm: the loss is "
            f"{modes.batch.loss:.3g} with their statistics, {modes.running.loss:.3g} with running "
            "statistics",
            evidence=_losses(modes, line),
            meaning="The noise of the batch statistics is a large part of the training loss.",
            advice="Use larger batches, or group norm: ns.apply_transform(model, "
            "'replace:batch->group').",
        )
    return ok(
        title="Running statistics fit",
        evidence=shown,
        meaning="The network does as well in evaluation mode as with the statistics of the batch.",
    )


def _trainable(live: list[NormModes]) -> bool:
    """Whether training goes on to move these statistics, as it moves the weights."""
    return all(norm.trainable and norm.momentum > 0 for norm in live)


def _fresh(norm: NormModes, limits: ModeLimits, *, suffers: bool) -> Finding:
    """Statistics that still hold their initial values: no trouble before training."""
    name = "share of their initial values (mean 0, variance 1) in the running statistics"
    shown = (Evidence(name, norm.initial, limits.fresh), *_gaps(norm, limits))
    late = suffers and norm.updates >= limits.few_updates
    if 0 < norm.momentum < 1 and (late or norm.momentum <= limits.slow):
        needed = math.log(limits.fresh) / math.log1p(-norm.momentum)
        return note(
            title=f"At momentum {norm.momentum:g} the running statistics need about "
            f"{float(f'{needed:.1g}'):,.0f} updates to lose their initial values",
            evidence=shown,
            meaning="Until then evaluation mode lags behind training.",
            advice="Use momentum 0.1, or recompute them after training "
            "(torch.optim.swa_utils.update_bn).",
            layer=norm.name,
        )
    return ok(
        title="Running statistics have had too few updates yet",
        evidence=shown,
        meaning="Training will update them.",
    )


def _losses(modes: Modes, line: float) -> tuple[Evidence, ...]:
    """Both modes side by side, and what recomputing gives."""
    assert modes.running is not None
    shown = [
        Evidence("loss with running statistics", modes.running.loss, line),
        Evidence("loss with batch statistics", modes.batch.loss),
    ]
    if modes.recomputed is not None:
        shown.append(Evidence("loss with recomputed statistics", modes.recomputed.loss))
    if not math.isnan(modes.running.accuracy):
        shown.append(Evidence("accuracy with running statistics", modes.running.accuracy))
        shown.append(Evidence("accuracy with batch statistics", modes.batch.accuracy))
    return tuple(shown)


def _gaps(norm: NormModes, limits: ModeLimits) -> tuple[Evidence, ...]:
    """How far the statistics of a layer are off, the worse of the two first."""
    shown = (
        Evidence("largest gap of means, in running deviations", norm.mean_gap, limits.mean_gap),
        Evidence(
            "factor between batch and running variances there",
            norm.variance_gap,
            limits.variance_gap,
        ),
    )
    by_mean = norm.mean_gap / limits.mean_gap >= limits.apart(norm)
    return shown if by_mean else shown[::-1]


def _helped(modes: Modes, limits: ModeLimits) -> bool:
    """Whether recomputed statistics take the extra loss away."""
    if modes.recomputed is None or modes.running is None:
        return False
    lost = modes.running.loss - modes.batch.loss
    left = modes.recomputed.loss - modes.batch.loss
    return left < (1 - limits.helps) * lost or (not math.isfinite(lost) and math.isfinite(left))


def _remedy(modes: Modes) -> str:
    if modes.recomputed is None or modes.running is None:
        return ""
    return (
        "Tried on a copy: with statistics recomputed from these batches the loss is "
        f"{modes.recomputed.loss:.3g} in evaluation mode, before {modes.running.loss:.3g}."
    )


def _cause(
    case: Case, live: list[NormModes], limits: ModeLimits, *, helped: bool
) -> tuple[str, str]:
    """The likely cause, and what to do about it."""
    never = [norm for norm in live if norm.initial == 1]
    slow = [norm for norm in live if norm.initial > limits.fresh]
    again = f"Recompute them: {REMAKE}, or torch.optim.swa_utils.update_bn(loader, model)."
    if never and all(norm.momentum == 0 for norm in never):
        return "Likely cause: momentum 0 never updates them.", f"Set momentum=0.1. {again}"
    if len(never) == len(live):
        return (
            "Likely cause: they were never updated, or not averaged or copied along with the "
            "weights (EMA, SWA): they still hold their initial values.",
            f"{again} With averaged weights average or copy the buffers too "
            "(AveragedModel(use_buffers=True)).",
        )
    if never:
        names = ", ".join(repr(norm.name) for norm in never[:3])
        more = f" and {len(never) - 3} more" if len(never) > 3 else ""
        return (
            f"Likely cause: those of {names}{more} were never updated.",
            f"{again} Look for what keeps them in evaluation mode in training.",
        )
    if slow:
        one = max(slow, key=lambda norm: norm.initial)
        return (
            f"Likely cause: momentum {one.momentum:g} is too small for {one.updates} updates, "
            f"{one.initial:.0%} of the initial values are left.",
            f"Use momentum=0.1. {again}",
        )
    if helped and all(math.isnan(norm.momentum) for norm in live):
        return (
            "Likely cause: momentum=None averages all batches since the start, also those of "
            "early weights.",
            f"Use momentum=0.1 in training. {again}",
        )
    if not helped and case.samples < limits.few:
        return (
            f"Likely cause: statistics of batches of {case.samples} scatter so much that no "
            "average of them fits.",
            "Use larger batches, or group norm: ns.apply_transform(model, 'replace:batch->group').",
        )
    return (
        "Likely cause: they belong to other data (prepared in another way) or to other weights "
        "(averaged, loaded or changed since).",
        f"Check that the data is prepared as in training. {again}",
    )


@rule(
    "frozen-norms", "modes", order=5.1, kind="fact", source=BJORCK2018, where=WHERE, limits=LIMITS
)
def frozen_norms(case: Case, limits: ModeLimits) -> Finding | None:
    """Norms in evaluation mode in training whose statistics are not those of the data."""
    modes: Modes = case["modes"]
    known = [norm for norm in modes.frozen if not math.isnan(norm.mean_gap)]
    if not known:
        return None
    off = [norm for norm in known if limits.apart(norm) > 1]
    worst = max(known, key=limits.apart)
    shown: tuple[Evidence, ...] = (
        Evidence("share of frozen norms that do not fit", len(off) / len(known), limits.share),
        *_gaps(worst, limits),
    )
    if modes.thawed is not None:
        line = limits.line(case, modes.thawed)
        shown = (
            Evidence("loss with the frozen statistics", modes.train.loss, line),
            Evidence("loss with batch statistics", modes.thawed.loss),
            *shown,
        )
    untouched = bool(off) and all(norm.initial == 1 for norm in off)
    suffers = modes.thawed is not None and not modes.train.loss <= line
    if len(off) < limits.share * len(known) or not (suffers or untouched):
        return ok(
            title=f"The statistics of the {len(known)} frozen norms fit",
            evidence=shown,
            meaning="Norms in evaluation mode use them in training too.",
        )
    return (note if case.clear and not untouched else warning)(
        title=f"{len(known)} norms are frozen with running statistics that do not fit the data"
        + (
            f": loss {modes.train.loss:.3g}, {modes.thawed.loss:.3g} with those of the batch"
            if modes.thawed is not None
            else ""
        ),
        evidence=shown,
        meaning="They are in evaluation mode in training too, and do not normalize. "
        + ("The statistics still hold their initial values." if untouched else ""),
        advice="Load the statistics that belong to the weights, recompute them "
        f"({REMAKE}), or let the norms train.",
        layer=worst.name,
    )


@rule("statistics-still-move", "modes", order=5.2, kind="fact", limits=LIMITS)
def statistics_still_move(case: Case, limits: ModeLimits) -> Finding | None:
    """Norms with frozen weights that update their statistics: usual mistake of fine-tuning."""
    modes: Modes = case["modes"]
    moving = [norm for norm in modes.live if norm.affine and not norm.trainable]
    if not moving or modes.running is None:
        return None
    line = limits.line(case, modes.running)
    learned = all(norm.initial <= limits.fresh for norm in moving)
    apart = max(limits.apart(norm) for norm in moving)
    worse = (learned and apart > 1) or not modes.batch.loss <= line
    return (warning if worse else note)(
        title=f"The weights of {counted(len(moving), 'norm')} are frozen, but their statistics "
        "still move",
        evidence=(
            Evidence("norms with frozen weights in train mode", len(moving), 0),
            Evidence("loss with batch statistics", modes.batch.loss, line),
            Evidence("loss with running statistics", modes.running.loss),
        ),
        meaning="In train mode they normalize by the batch and update their running statistics, "
        "although requires_grad is False: the frozen part changes all the same.",
        advice="To hold them too: ns.apply_transform(model, 'freeze-statistics'), or layer.eval() "
        "for each after every model.train().",
        layer=moving[0].name,
    )


@rule(
    "evaluation-data",
    "modes",
    order=5.3,
    kind="fact",
    suppressed_by=("running-statistics",),
    limits=LIMITS,
)
def evaluation_data(case: Case, limits: ModeLimits) -> Finding | None:
    """Evaluation data that is not distributed like the training data."""
    modes: Modes = case["modes"]
    if modes.eval_running is None or modes.running is None:
        return None
    line = limits.line(case, modes.running)
    shown = [
        Evidence("loss on eval_data", modes.eval_running.loss, line),
        Evidence("loss on data, in evaluation mode", modes.running.loss),
    ]
    refit = False
    if modes.eval_recomputed is not None:
        again = modes.eval_recomputed.loss
        lost, left = modes.eval_running.loss - modes.running.loss, again - modes.running.loss
        much = modes.eval_running.loss > limits.line(case, modes.running, much=True)
        refit = much and left < (1 - limits.helps) * lost
        shown.append(Evidence("loss on eval_data with statistics recomputed on it", again))
    moved = False
    if not math.isnan(modes.shift):
        ratio = max(modes.scale_shift, 1 / max(modes.scale_shift, 1e-300))
        moved = modes.shift > limits.shift or ratio > limits.scale
        shown.append(Evidence("distance of the inputs' means, in deviations", modes.shift,
                              limits.shift))  # fmt: skip
        shown.append(Evidence("variance of the inputs of eval_data / of data", modes.scale_shift))
    enough = min(modes.eval_running.num_samples, modes.running.num_samples) >= limits.seen
    usual = 1 / limits.far_scale < modes.scale_shift < limits.far_scale
    far = moved and (modes.shift > limits.far_shift or not usual)
    other = far and enough and case.untrained and not modes.running.loss < STARTED * case.chance
    if modes.eval_running.loss <= line and not other:
        return ok(
            title="The network does as well on eval_data as on data",
            evidence=tuple(shown),
            meaning="In evaluation mode, on as many batches.",
        )
    remade = math.inf if modes.eval_recomputed is None else modes.eval_recomputed.loss
    lower = remade < modes.running.loss - limits.suffers * case.chance
    if not moved and modes.running.loss >= case.chance and not lower:
        return None  # losses above that of a constant differ by chance
    if not (moved or refit):
        return note(
            title=f"The loss is {modes.eval_running.loss:.3g} on eval_data, "
            f"{modes.running.loss:.3g} on data",
            evidence=tuple(shown),
            meaning="The inputs have about the same means and scales, so overfitting is the likely "
            "cause.",
            advice="Check the labels of eval_data; then regularize, or train on more data.",
        )
    losses = f"loss {modes.eval_running.loss:.3g} on it, {modes.running.loss:.3g} on data"
    if not moved and modes.eval_recomputed is not None:
        return warning(
            title=f"The running statistics do not fit eval_data: {losses}, "
            f"{modes.eval_recomputed.loss:.3g} with statistics recomputed on it",
            evidence=tuple(shown),
            meaning="The inputs have about the same means and scales, the signals behind the first "
            "layers have not: weights were averaged or changed after the statistics were taken, or "
            "eval_data is prepared in another way.",
            advice=f"Recompute the running statistics ({REMAKE}), and prepare both alike.",
        )
    what = f"the mean of its inputs differs by {modes.shift:.2g} deviations"
    if not modes.shift > limits.shift:
        what = f"the scale of its inputs differs ({modes.scale_shift**0.5:.2g} times as large)"
    return warning(
        title=f"eval_data is not prepared like data: {what} ({losses})",
        evidence=tuple(shown),
        meaning="Its inputs have other means or scales.",
        advice="Use the same normalization and scaling of the inputs for both.",
    )
