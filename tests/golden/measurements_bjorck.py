"""Reference values of Bjorck et al. 2018 at initialization: as printed, and as measured.

ResNet-110, Xavier, batch of 128, CIFAR-10, at initialization. ``TABLE_1`` holds the printed T1 to
T4 (Tables 1 and 4). Ranges are plausibility bands from three seeds of a prototype.
"""

from __future__ import annotations

# (layer, batch norm) -> T1, T2, T3, T4
TABLE_1 = {
    (18, True): (7.44509e-05, 4.56393e-06, 1.30080e-05, 2.95631e-07),
    (19, True): (5.20086e-05, 3.42920e-06, 9.15506e-06, 2.62803e-07),
    (54, True): (1.90210e-05, 2.49563e-06, 3.31031e-06, 1.68555e-07),
    (55, True): (1.62719e-05, 2.16015e-06, 2.82755e-06, 1.70799e-07),
    (90, True): (6.62426e-06, 3.24293e-06, 1.12625e-06, 1.62689e-07),
    (91, True): (5.44784e-06, 3.07908e-06, 9.09220e-07, 1.98679e-07),
    (18, False): (6.31433e-05, 3.65324e-05, 4.06954e-05, 3.63081e-05),
    (19, False): (5.34921e-05, 1.99664e-05, 2.90620e-05, 1.95912e-05),
    (54, False): (2.19251e-04, 8.63927e-05, 1.54601e-04, 8.35946e-05),
    (55, False): (6.82446e-05, 2.08266e-05, 4.50409e-05, 1.95185e-05),
    (90, False): (2.59182e-04, 1.59253e-04, 1.80002e-04, 1.23079e-04),
    (91, False): (1.37431e-04, 8.61152e-05, 9.31557e-05, 6.46625e-05),
}

# T4/T1 of layers 18, 54, 90
ALIGNED_BATCH_NORM = {18: (0.002, 0.01), 54: (0.006, 0.03), 90: (0.015, 0.08)}
ALIGNED_PLAIN = (0.12, 0.75)
BY_POSITION_BATCH_NORM = (0.14, 0.27)  # T3/T1, about 1/sqrt(batch)
FIRST_OVER_SECOND = (1.1, 1.8)  # T1 of layer 18 over layer 19, with batch norm
GRADIENT_GAP = 50  # T4 plain over batch norm: at least
STD_GAP = 10  # Fig. 2: std of the gradient of layer 55, plain over batch norm: at least
VARIANCE_SLOPE = (0.03, 0.08)  # Fig. 3: log10 variance per layer, plain, even and odd layers
FLAT_SLOPE = 0.001  # Fig. 3: |slope| of the second convolutions with batch norm: at most
MATRIX_PLAIN = {"max_over_median": 20, "rank_one_signed": 0.9, "column_cv": 0.6}  # at least
MATRIX_BATCH_NORM = {"max_over_median": 15, "rank_one_signed": 0.85, "column_cv": 0.5}  # at most
MEAN_CORRELATION = 0.6  # Fig. 18: plain at least
CHANNEL_RATIO = 10  # Fig. 18: batch norm at most

# depth -> T4/T1 with batch norm, without (seeds 0, 1, 2), T4 without over with; batch of 32
DEPTH_PROBE = {
    20: ((0.024, 0.024, 0.025), (0.086, 0.132, 0.066), (0.24, 0.97, 0.26)),
    32: ((0.022, 0.023, 0.022), (0.24, 0.22, 0.19), (1.8, 2.6, 1.3)),
    56: ((0.021, 0.018, 0.022), (0.58, 0.22, 0.27), (51, 6.7, 17)),
    110: ((0.019, 0.021, 0.022), (0.28, 0.41, 0.27), (279, 1270, 1550)),
}
