"""Eq. (3), Theorem 1: the gap between batch norm and population norm, for one neuron."""

import numpy as np
from scipy.special import expit, spence

from normscope.checks import Array
from normscope.experiments.observing import Panel, Table, Values, columns, curve, over_sizes, parts
from normscope.theory import regularization as theory
from normscope.theory.laws import LAWS, draw, nodes

SIZES = (16, 32, 64, 128, 256)
COUNTS = {"30": 30, "100000": 100_000}  # samples P behind R_f
# law, gamma and beta of the student, scale and shift of the labels softplus(t n + u)
CASES: dict[str, tuple[str, float, float, float, float]] = {
    "gamma=1": ("Gauss", 1.0, 0.2, 1.0, 0.2), "gamma=2": ("Gauss", 2.0, 0.3, 2.0, 0.3),
    "other labels": ("Gauss", 1.0, 0.2, 1.5, -0.5),
    **{law: (law, 1.0, 0.2, 1.0, 0.2) for law in LAWS if law != "Gauss"}}  # fmt: skip


def softplus(h: Array) -> Array:
    """The activation A'; A is -Li2(-e^h)."""
    return np.logaddexp(0, h)


def _antiderivative(h: Array) -> Array:
    return -np.asarray(spence(1 + np.exp(h)), float)


def trial(batches: int, seed: int) -> Values:
    """Measured gaps (sizes,) of every case, within the batch and with statistics of another."""
    rng = np.random.default_rng([seed, 3])
    made: Values = {name: [] for name in (*CASES, "independent", "relu")}
    for size in SIZES:
        for name, (law, gamma, beta, scale, shift) in CASES.items():
            n = draw(law, (batches, size), rng)
            mean, std = n.mean(1, keepdims=True), n.std(1, keepdims=True)
            here, label = gamma * n + beta, softplus(scale * n + shift)
            base = _antiderivative(here)

            def added(moved: Array, fixed: tuple[Array, ...] = (here, label, base)) -> float:
                h, y, a = fixed
                return float(np.mean(_antiderivative(moved) - a - y * (moved - h)))

            made[name].append(added(gamma * (n - mean) / std + beta))
            if name == "gamma=1":
                other = (n - np.roll(mean, 1, 0)) / np.roll(std, 1, 0)
                made["independent"].append(added(gamma * other + beta))
                moved = np.maximum((n - mean) / std, 0) - np.maximum(n, 0)
                made["relu"].append(float(np.mean(moved**2) / 2))
    return made | {"I": _fisher(rng), "Rf": _first_order(rng)}


def _fisher(rng: np.random.Generator) -> list[float]:
    """I(gamma) as a mean squared slope: labels without noise, labels drawn from the model."""
    n = rng.standard_normal(20_000)
    h = n + 0.2
    noisy = np.sqrt(expit(h)) * rng.standard_normal(len(n))  # Var(y | x) = A''
    return [float(np.mean((slope * n) ** 2)) for slope in (softplus(h) - softplus(h), -noisy)]


def _first_order(rng: np.random.Generator) -> dict[str, float]:
    """|R_f| / R_q of P samples, with noisy labels of the model and with other labels."""
    found = {}
    for words, count in COUNTS.items():
        n = rng.standard_normal(count)
        n = (n - n.mean()) / n.std()
        h = n + 0.2
        noise = np.sqrt(expit(h)) * rng.standard_normal(count)
        slopes = {"model": -noise, "other": softplus(h) - softplus(1.5 * n - 0.5) - noise}
        second = theory.second_order_gap(expit(h), n, 1.0, 32)
        for name, slope in slopes.items():
            first = theory.first_order_gap(slope, n, 1.0, 32)
            found[f"labels of {name}, P={words}"] = abs(first) / second
    return found


def _published(name: str) -> Array:
    """Decay zeta gamma^2 of Eq. (3) for each size."""
    law, gamma, beta, _, _ = CASES[name]
    n, w = nodes(law)
    bent = expit(gamma * n + beta)
    zeta = [theory.gamma_decay_strength(bent, n, m, weights=w) for m in SIZES]
    return gamma**2 * np.array(zeta)


def _complete(name: str) -> Array:
    """R_f + R_q for each size."""
    law, gamma, beta, scale, shift = CASES[name]
    n, w = nodes(law)
    given: Values = {"target_scale": scale, "target_shift": shift}
    given |= {"normalized": n, "weights": w}
    return np.array([theory.softplus_gap(gamma, beta, m, **given) for m in SIZES])


def observe(table: Table) -> Values:
    """Gaps over the batch sizes against Eq. (3) and against the complete expansion."""

    def of(measured: str, expected: Array) -> Values:
        return over_sizes(SIZES, table(measured).T, expected)

    skewed = [law for law in LAWS if law != "Gauss"]
    shift = table("independent") - table("gamma=1")
    n, w = nodes("Gauss")
    curved = float(w @ (expit(n + 0.2) * n**2))
    squared = table("I").T
    ratios = [row["Rf"] for _, row in table]
    return {
        "eq3-matched": parts({k: of(k, _published(k)) for k in ("gamma=1", "gamma=2")}),
        "eq3-mismatch": of("other labels", _published("other labels")),
        "eq3-mismatch-corrected": of("other labels", _complete("other labels")),
        "eq3-independent": of("independent", _published("gamma=1")),
        "eq3-independent-equal": columns(shift, [f"M={m}" for m in SIZES]),
        "eq3-I": parts({"no label noise": squared[0], "labels drawn from the model": squared[1]},
                       expected=curved), "eq3-I-drawn": {"values": squared[1], "expected": curved},
        "eq3-Rf": parts({k: [r[k] for r in ratios] for k in ratios[0]}),
        "eq3-relu": of("relu", np.array([theory.relu_decay(m) for m in SIZES])),
        "eq3-nongauss": parts({k: of(k, _published(k)) for k in skewed}),
        "eq3-nongauss-corrected": parts({k: of(k, _complete(k)) for k in skewed})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """M times the gap, which Eq. (3) says is constant."""
    scale = np.array(SIZES, float)
    measured = {"gamma=1": "labels of the model", "other labels": "other labels",
                "exponential": "exponential input",
                "independent": "statistics of other batches"}  # fmt: skip
    lines = {"Eq. (3)": _published("gamma=1"), "other labels, R_f + R_q": _complete("other labels"),
             "exponential input, Eq. (3)": _published("exponential"),
             "exponential input, R_f + R_q": _complete("exponential")}  # fmt: skip
    made = [curve(words, SIZES, (table(name) * scale).T) for name, words in measured.items()]
    made += [curve(words, SIZES, line * scale, style="dashed" if "R_f" in words else "line")
             for words, line in lines.items()]  # fmt: skip
    title = "Luo et al. 2019, Eq. (3): loss that batch statistics add to one softplus unit"
    return [Panel(title, "batch size M", "M x (loss under BN - loss under PN)", tuple(made),
                  log_x=True)]  # fmt: skip
