"""Signals and gradients of random networks: the recursions (5)-(7), and batch norm's (S.70)."""

from typing import Any

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts
from normscope.theory import predict

NAMES = ("qhat", "qhat_st", "qtilde", "qtilde_st")


def trial(network: str, norm: str | None, width: int, samples: int, seed: int) -> Values:
    """Order parameters of every layer of one network with four layers."""
    of = common.spec(network, [width] * 4 + [1], norm=norm)
    x = common.gaussian(samples, width, seed=seed)
    return common.order_values(common.built(of, seed), x)


def observe(table: Table) -> Values:
    """Hidden layers only: q-hat of the inputs and q-tilde of the outputs are what was put in."""

    def part(name: str, layer: int, **where: Any) -> Any:
        def theory(width: int) -> float:
            if where["norm"]:
                return common.arccosine_hat(1.0 if name == "qhat" else -1 / (where["samples"] - 1))
            of = common.spec(where["network"], [width] * 4 + [1])
            return float(predict(of, theory="corrected").order_parameters[name][layer])

        return common.column(table, name, layer, theory, **where)

    plain = [(n, {"network": n, "norm": None, "samples": 100}) for n in ("relu", "tanh")]
    normed = {"norm": "batch"}
    sizes = table.where(norm="batch").values_of("samples")
    return {"eq5": parts({f"{n}, {q}, layer {k}": part(q, k, **w) for n, w in plain
                          for q in NAMES[:2] for k in (1, 2, 3)}),
            "eq7": parts({f"{n}, {q}, layer {k + 1}": part(q, k, **w) for n, w in plain
                          for q in NAMES[2:] for k in (0, 1, 2)}),
            "thm3.4-J": parts({f"{n}, T={t}, {q}": part(q, 3, network=n, samples=t, **normed)
                               for n in ("relu", "relu-layer") for t in sizes
                               for q in NAMES[:2]})}  # fmt: skip
