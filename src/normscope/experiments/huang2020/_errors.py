"""Training runs with errors on training and test images, as in Fig. XII and Table B."""

from itertools import pairwise
from typing import Any

import numpy as np

import normscope as ns
from normscope.data import FlipAndCrop
from normscope.experiments.huang2020._training import DIVERGED, images_of, late
from normscope.train import Event, evaluate, fit


def trial(net: str, seed: int, *, norm: str = "none", last: bool = False, init: str = "he-fan-out",
          freeze: str = "", data: str = "cifar10", images: int = 0, test: int = 0, shrink: int = 1,
          augment: bool = False, lr: float = 0.01, schedule: str = "step", batch: int = 64,
          steps: int = 1, moments: int = 1) -> dict[str, Any]:  # fmt: skip
    """Train one network; errors at the start and at ``moments`` equally spaced times, as shares.

    ``losses`` are the first one and the means between these times. ``last`` puts a BN before the
    last layer. ``images`` and ``test`` are numbers of images, 0 for all. The training error is
    that of as many training images as there are test images.
    """
    seen, held = (images_of(data, split, n, seed, shrink) for split, n in
                  (("train", images), ("test", test)))  # fmt: skip
    places = ("before-last",) if last else ()
    named = None if norm == "none" else norm
    model = ns.network(net, norm=named, extra_norms=places, init=init, seed=seed)
    model = ns.apply_transform(model, f"freeze:{freeze}") if freeze else model
    at = [round(k * steps / moments) for k in range(moments + 1)]
    parts = {"training": seen.rows(slice(len(held))), "test": held}
    errors = {name: np.full(len(at), 0.9) for name in parts}  # a diverged network guesses

    def measure(event: Event) -> None:
        if event.kind in ("start", "step") and event.step in at:
            for name, part in parts.items():
                found = evaluate(model, part).accuracy or 0.0
                errors[name][at.index(event.step)] = 1 - found

    run = fit(model, seen, "cross_entropy", lr=lr, momentum=0.9, schedule=schedule, steps=steps,
              batch_size=batch, drop_last=True, seed=seed, callbacks=[measure],
              augment=FlipAndCrop() if augment else None)  # fmt: skip
    spans = [run.losses[:1], *(run.losses[a:b] for a, b in pairwise(at))]
    losses = [min(DIVERGED, s.mean()) if len(s) and np.isfinite(s).all() else DIVERGED
              for s in spans]  # fmt: skip
    return errors | {"losses": losses, "late": late(run), "diverged": run.diverged}
