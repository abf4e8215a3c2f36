"""The order of samples: a pure function of seed and epoch, so that it can be resumed anywhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.seeds import checked_seed, numpy_generator


def batch_order(
    samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> tuple[Tensor, ...]:
    """Positions of the samples of each batch of one epoch, int64, each sample once.

    Example:
        >>> [b.tolist() for b in batch_order(5, 2, shuffle=False)]
        [[0, 1], [2, 3], [4]]
    """
    size = checked_count(batch_size, "batch_size")
    order = np.arange(samples)
    if shuffle:
        order = numpy_generator(seed, "order", checked_seed(epoch)).permutation(samples)
    batches = torch.split(torch.from_numpy(order), size)
    if drop_last and len(batches[-1]) < size:
        batches = batches[:-1]
    if not batches:
        raise InputError(
            f"No batch is left: batch_size={size} exceeds the {samples} samples and "
            "drop_last=True. Use a smaller batch, or drop_last=False."
        )
    return tuple(batches)
