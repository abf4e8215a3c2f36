"""Section 5 and 6: learning rates, speed, trained networks, and the linearized network."""

from typing import Any

import numpy as np
import torch

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts
from normscope.measure import Risk
from normscope.measure.gram import gram_matrix
from normscope.train import Event, StopTraining, fit, max_stable_lr

GOAL = 0.01  # of the loss of the best constant answer
RATES = np.array([2.0**k for k in range(-1, 8)])  # in units of 2 / lambda_max without norm
ARMS = ("none", "mean")


def trial(case: str, width: int, steps: int, seed: int) -> Values:
    """Gradient descent on the labels of another network, T = M; the case says what is asked."""
    run = {"minimum": _minimum, "linear": _linear}.get(case)
    return run(width, steps, seed) if run else _arm(case, width, steps, seed)


def _problem(width: int, samples: int, seed: int, case: str = "none") -> tuple[Any, Any, Any]:
    of = common.spec("relu", [width] * 3 + [1], last_norm=None if case == "none" else case)
    x = common.gaussian(samples, width, seed=seed)
    teacher = common.built(common.spec("relu", [width] * 3 + [1]), seed + 1_000_000)
    with torch.no_grad():
        y = teacher(x)
    return common.built(of, seed), x, y - y.mean()  # both arms can fit them


def _spectrum(model: Any, x: Any) -> Any:
    matrix = gram_matrix(Risk(model, x, loss="mse", statistics="batch"))
    return torch.linalg.eigvalsh(matrix).flip(0).numpy()


def _arm(case: str, width: int, steps: int, seed: int) -> Values:
    """Updates to the goal at every rate; the spectrum before and after training."""
    plain, x, y = _problem(width, width, seed)
    unit, chance = 2 / _spectrum(plain, x)[0], float(y.square().mean()) / 2
    counts: list[float] = []
    models = []

    def reached(event: Event) -> None:
        if event.loss is not None and event.loss < GOAL * chance:
            raise StopTraining

    for rate in RATES:
        model = _problem(width, width, seed, case)[0].float()
        data = (x.float(), y.float())
        how: Values = {"steps": steps, "batch_size": width, "shuffle": False}
        run = fit(model, data, "mse", lr=float(rate * unit), callbacks=[reached], **how)
        counts.append(run.updates if run.outcome == "stopped" else np.inf)
        models.append(model)
    model = _problem(width, width, seed, case)[0]
    before = _spectrum(model, x)
    found = {"updates": np.array(counts), "own": float(2 / before[0] / unit), "before": before[0]}
    if case == "none":  # at half the limit, and at the rate that was fastest
        after, fast = (_spectrum(models[i].double(), x) for i in (0, int(np.argmin(counts))))
        parameters = sum(p.numel() for p in model.parameters())
        mean = after.sum() / parameters  # over all eigenvalues of F; the rest of them are zero
        found |= {"after": after[0], "small": 1 - float((after > mean).sum()) / parameters}
        found["fast"] = np.log10(fast[0] / before[0])
    return found


def _minimum(width: int, steps: int, seed: int) -> Values:
    """The largest rate at which gradient descent stays at a minimum, over 2 / lambda_max."""
    model, x, _ = _problem(width, width, seed)
    with torch.no_grad():
        y = model(x)
    top = _spectrum(model, x)[0]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-5 * common.gaussian(*p.shape, seed=seed, stream="step") / width**0.5)
    found = max_stable_lr(model, (x, y), "mse", criterion="leaves", seeds=1, steps=steps,
                          batch_size=width, bracket=(1 / top, 4 / top), tol=0.05)  # fmt: skip
    return {"interval": np.array([found.bound.low, found.bound.high]) * top / 2}


def _linear(width: int, steps: int, seed: int) -> Values:
    """Losses of gradient descent beside those of the model linearized at initialization."""
    samples = 50
    model, x, y = _problem(width, samples, seed)
    matrix = gram_matrix(Risk(model, x, loss="mse", statistics="batch")).numpy()
    with torch.no_grad():
        rest = (model(x) - y).numpy()[:, 0]
    lr = 1 / float(np.linalg.eigvalsh(matrix)[-1])
    run = fit(model, (x, y), "mse", lr=lr, steps=steps, batch_size=samples, shuffle=False)
    linear = []
    for _ in range(steps):
        linear.append(float(rest @ rest) / (2 * samples))
        rest = rest - lr * matrix @ rest
    off = np.abs(np.asarray(run.losses[:steps]) / np.array(linear) - 1)
    return {"off": float(off.mean())}


def observe(table: Table) -> Values:
    """Boundaries, paired differences between the arms, orders in the width."""
    widths = table.where(case="none").values_of("width")
    arms = {w: [table("updates", case=a, width=w) for a in ARMS] for w in widths}
    largest = {w: [_largest(a) for a in pair] for w, pair in arms.items()}
    gain = {w: np.log10(b[:, 0] / a[:, 0]) for w, (a, b) in largest.items()}
    fastest = {w: [a.min(1) for a in pair] for w, pair in arms.items()}
    speed = {w: np.log10(b / a) for w, (a, b) in fastest.items()}
    found = {"next to a minimum": table("interval", case="minimum")}
    for w, pair in largest.items():
        for arm, ends in zip(ARMS, pair, strict=True):
            own = table("own", case=arm, width=w)[:, None]
            found[f"from initialization, M={w}, {arm}"] = ends / own
    return {"eq27": parts({k: {"intervals": v} for k, v in found.items()}, line=1.0),
            "sec5-lr": parts({f"M={w}": v for w, v in gain.items()}),
            "sec5-lr-growth": {"values": gain[widths[-1]] - gain[widths[0]]},
            "sec5-speed": parts({f"M={w}": v for w, v in speed.items()}),
            "trained": common.order(table, "after", case="none"),
            "trained-fast": {"values": table("fast", case="none")},
            "trained-small": {"values": table("small", case="none")},
            "sec6-ntk": common.order(table, "off", case="linear")}  # fmt: skip


def _largest(updates: Any) -> Any:
    """For each seed the largest rate that reached the goal and the next one, (seeds, 2)."""
    ends = []
    for row in np.isfinite(updates):
        last = int(np.flatnonzero(row)[-1]) if row.any() else -1
        ends.append([RATES[last] if last >= 0 else np.nan, (*RATES, np.nan)[last + 1]])
    return np.array(ends)
