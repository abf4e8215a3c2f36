"""Residual networks at random initialization: predicted and measured numbers of F = J^T J / T.

All parameters, weights N(0, 2 / fan_in) (or ``sw2``), the head N(0, 1 / fan_in) with a bias of 0,
eps = 1e-5. Data: ``gauss`` is torch.randn of a seeded generator in float64; ``cifar`` the first
test images of CIFAR-10, averaged down to 8 x 8 and standardized per channel. ``PREDICTED`` holds
for the largest width, which stands in ``NETWORKS``. Measured: exact Gram matrices in float64.
"""

# name | options, and below data; setting
NETWORKS = """
mlp-pre-relu-batch | builder=residual_mlp blocks=3 style=pre norm=batch activation=relu
  gauss seed=11 shape=40x50; statistics=batch outputs=1 width=800
mlp-post-relu-batch | builder=residual_mlp blocks=3 style=post norm=batch activation=relu
  gauss seed=11 shape=40x50; statistics=batch outputs=1 width=800
mlp-post-relu-frozen | builder=residual_mlp blocks=3 style=post norm=batch activation=relu
  gauss seed=11 shape=40x50; statistics=frozen outputs=1 width=800
mlp-pre-relu-none | builder=residual_mlp blocks=3 style=pre norm=none activation=relu
  gauss seed=11 shape=40x50; statistics=batch outputs=1 width=800
mlp-pre-tanh-batch | builder=residual_mlp blocks=3 style=pre norm=batch activation=tanh sw2=1.0
  gauss seed=11 shape=40x50; statistics=batch outputs=1 width=800
mlp-post-relu-batch-zerogamma | builder=residual_mlp blocks=3 style=post norm=batch activation=relu
  last_gamma=0.0 & gauss seed=11 shape=40x50; statistics=batch outputs=1 width=800
r8-post-A-batch | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-post-A-frozen | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=1 width=64
r8-post-A-none | builder=resnet blocks=1 style=post norm=none activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-post-B-batch | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-post-B-frozen | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=1 width=64
r8-post-B-none | builder=resnet blocks=1 style=post norm=none activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-pre-A-batch | builder=resnet blocks=1 style=pre norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-pre-A-frozen | builder=resnet blocks=1 style=pre norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=1 width=64
r8-pre-A-none | builder=resnet blocks=1 style=pre norm=none activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-pre-B-batch | builder=resnet blocks=1 style=pre norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r8-pre-B-frozen | builder=resnet blocks=1 style=pre norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=1 width=64
r8-pre-B-none | builder=resnet blocks=1 style=pre norm=none activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r20-post-A-batch | builder=resnet blocks=3 style=post norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r20-post-B-batch | builder=resnet blocks=3 style=post norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=128
r20-pre-B-batch | builder=resnet blocks=3 style=pre norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=128
r20-pre-A-batch | builder=resnet blocks=3 style=pre norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
r20-post-A-frozen | builder=resnet blocks=3 style=post norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=1 width=64
r8-post-A-batch-cifar | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=A
  cifar samples=16 size=8 start=0; statistics=batch outputs=1 width=64
r8-pre-B-batch-cifar | builder=resnet blocks=1 style=pre norm=batch activation=relu shortcut=B
  cifar samples=16 size=8 start=0; statistics=batch outputs=1 width=128
r8-post-A-frozen-cifar | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=A
  cifar samples=16 size=8 start=0; statistics=frozen outputs=1 width=64
r20-post-A-batch-cifar | builder=resnet blocks=3 style=post norm=batch activation=relu shortcut=A
  cifar samples=16 size=8 start=0; statistics=batch outputs=1 width=64
r20-pre-B-batch-cifar | builder=resnet blocks=3 style=pre norm=batch activation=relu shortcut=B
  cifar samples=16 size=8 start=0; statistics=batch outputs=1 width=128
r8-post-A-batch-C10 | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=A
  gauss seed=12 shape=16x3x8x8; statistics=batch outputs=10 width=64
r8-post-B-frozen-C10 | builder=resnet blocks=1 style=post norm=batch activation=relu shortcut=B
  gauss seed=12 shape=16x3x8x8; statistics=frozen outputs=10 width=64
mlp-pre-relu-batch-C10 | builder=residual_mlp blocks=3 style=pre norm=batch activation=relu
  gauss seed=11 shape=40x50; statistics=batch outputs=10 width=400
r20-post-A-batch-T64 | builder=resnet blocks=3 style=post norm=batch activation=relu shortcut=A
  gauss seed=13 shape=64x3x8x8; statistics=batch outputs=1 width=32
r8-post-B-batch-flatten | builder=resnet blocks=1 style=post norm=batch activation=relu
  head=flatten shortcut=B & gauss seed=12 shape=16x3x8x8; statistics=batch outputs=1 width=64
"""

# name, level, relative tolerance; lambda_max, with the splitting by outputs, mean direction, trace
PREDICTED = """
mlp-pre-relu-batch homogeneous 0.01 132.65212 132.65212 132.65212 855.5299
mlp-pre-relu-batch gram 0.02 133.41649 133.41649 132.58874 871.5303
mlp-post-relu-batch homogeneous 0.03 1025.54709 1025.54709 1025.54709 7345.4266
mlp-post-relu-batch gram 0.03 1028.30136 1028.30136 1022.34615 7412.7821
mlp-post-relu-frozen homogeneous 0.03 1809.75858 1809.75858 1809.75858 10836.566
mlp-post-relu-frozen gram 0.03 1834.53827 1834.53827 1821.75663 11027.3497
mlp-pre-relu-none homogeneous 0.01 6339.55872 6339.55872 6339.55872 15986.5057
mlp-pre-relu-none gram 0.02 6381.25666 6381.25666 6333.68009 15986.5057
mlp-pre-tanh-batch homogeneous 0.01 25.82054 25.82054 5.62226 1012.6234
mlp-pre-tanh-batch gram 0.02 55.56814 55.56814 5.72845 1043.0516
mlp-post-relu-batch-zerogamma homogeneous 0.03 131.43117 131.43117 131.43117 417.8355
mlp-post-relu-batch-zerogamma gram 0.03 132.61172 132.61172 131.75331 418.0907
r8-post-A-batch homogeneous 0.03 151.66726 151.66726 151.66726 834.8282
r8-post-A-batch positions 0.03 144.55564 144.55564 144.55564 831.0154
r8-post-A-batch gram 0.03 144.78459 144.78459 144.19007 832.3553
r8-post-A-frozen homogeneous 0.03 433.87015 433.87015 433.87015 1323.5324
r8-post-A-frozen positions 0.03 422.9365 422.9365 422.9365 1326.9242
r8-post-A-frozen gram 0.03 423.78074 423.78074 421.76073 1330.3434
r8-post-A-none homogeneous 0.03 758.00393 758.00393 758.00393 1116.4061
r8-post-A-none positions 0.03 875.99293 875.99293 875.99293 1297.4533
r8-post-A-none gram 0.03 872.91271 872.91271 869.55099 1294.8191
r8-post-B-batch homogeneous 0.03 101.39562 101.39562 101.39562 833.1141
r8-post-B-batch positions 0.03 100.94209 100.94209 100.94209 847.5695
r8-post-B-batch gram 0.03 101.16581 101.16581 100.68807 850.3782
r8-post-B-frozen homogeneous 0.03 318.44265 318.44265 318.44265 1287.406
r8-post-B-frozen positions 0.03 321.01435 321.01435 321.01435 1320.1398
r8-post-B-frozen gram 0.03 322.94109 322.94109 321.18335 1328.032
r8-post-B-none homogeneous 0.03 1238.12479 1238.12479 1238.12479 1876.9613
r8-post-B-none positions 0.03 1316.7128 1316.7128 1316.7128 2027.512
r8-post-B-none gram 0.03 1311.31259 1311.31259 1305.81984 2021.5309
r8-pre-A-batch homogeneous 0.01 46.23986 46.23986 46.23986 347.9819
r8-pre-A-batch positions 0.01 46.00539 46.00539 46.00539 354.1834
r8-pre-A-batch gram 0.02 45.85994 45.85994 45.67109 358.3909
r8-pre-A-frozen homogeneous 0.01 153.68933 153.68933 153.68933 535.5138
r8-pre-A-frozen positions 0.01 154.74693 154.74693 154.74693 548.0067
r8-pre-A-frozen gram 0.02 156.41052 156.41052 155.65303 556.2988
r8-pre-A-none homogeneous 0.01 429.86967 429.86967 429.86967 752.0827
r8-pre-A-none positions 0.01 496.85293 496.85293 496.85293 869.3665
r8-pre-A-none gram 0.02 496.50582 496.50582 494.46278 868.1492
r8-pre-B-batch homogeneous 0.01 45.32532 45.32532 45.32532 285.9044
r8-pre-B-batch positions 0.01 45.13295 45.13295 45.13295 300.388
r8-pre-B-batch gram 0.02 45.24163 45.24163 45.06269 305.252
r8-pre-B-frozen homogeneous 0.01 122.50157 122.50157 122.50157 429.9774
r8-pre-B-frozen positions 0.01 126.87715 126.87715 126.87715 455.2213
r8-pre-B-frozen gram 0.02 128.68978 128.68978 128.05761 464.8249
r8-pre-B-none homogeneous 0.01 959.24034 959.24034 959.24034 1556.5902
r8-pre-B-none positions 0.01 1014.60723 1014.60723 1014.60723 1676.2318
r8-pre-B-none gram 0.02 1013.03189 1013.03189 1008.64848 1672.8974
r20-post-A-batch homogeneous 0.03 678.17605 678.17605 678.17605 6746.4489
r20-post-A-batch positions 0.03 660.70735 660.70735 660.70735 7370.0794
r20-post-A-batch gram 0.03 662.87443 662.87443 657.40309 7322.4336
r20-post-B-batch homogeneous 0.03 1243.25674 1243.25674 910.28325 19559.1344
r20-post-B-batch positions 0.03 1364.96123 1364.96123 937.90651 21412.325
r20-post-B-batch gram 0.03 1548.45213 1548.45213 932.02298 21240.5407
r20-pre-B-batch homogeneous 0.01 130.23952 130.23952 107.24611 2060.8389
r20-pre-B-batch positions 0.01 143.95079 143.95079 109.54123 2268.803
r20-pre-B-batch gram 0.02 167.63124 167.63124 108.31813 2302.0552
r20-pre-A-batch homogeneous 0.01 59.44972 59.44972 53.37951 945.1253
r20-pre-A-batch positions 0.01 63.73776 63.73776 53.88187 1009.9483
r20-pre-A-batch gram 0.02 74.17273 74.17273 53.41963 1023.7433
r20-post-A-frozen homogeneous 0.03 2451.67702 2451.67702 2451.67702 11294.9203
r20-post-A-frozen positions 0.03 2475.53399 2475.53399 2475.53399 12518.4902
r20-post-A-frozen gram 0.03 2473.69772 2473.69772 2456.84985 12450.0157
r8-post-A-batch-cifar homogeneous 0.03 153.1597 153.1597 153.1597 851.0444
r8-post-A-batch-cifar positions 0.03 150.0376 150.0376 150.0376 872.8602
r8-post-A-batch-cifar gram 0.03 159.671 159.671 145.84782 885.1062
r8-pre-B-batch-cifar homogeneous 0.01 89.28098 89.28098 89.28098 581.8811
r8-pre-B-batch-cifar positions 0.01 89.3631 89.3631 89.3631 623.7659
r8-pre-B-batch-cifar gram 0.02 97.87942 97.87942 87.29449 672.1894
r8-post-A-frozen-cifar homogeneous 0.03 443.03728 443.03728 443.03728 1355.1606
r8-post-A-frozen-cifar positions 0.03 439.48759 439.48759 439.48759 1397.5338
r8-post-A-frozen-cifar gram 0.03 474.31259 474.31259 436.14218 1440.6409
r20-post-A-batch-cifar homogeneous 0.03 682.40501 682.40501 682.40501 6808.8131
r20-post-A-batch-cifar positions 0.03 674.5542 674.5542 674.5542 7544.9289
r20-post-A-batch-cifar gram 0.03 894.42447 894.42447 637.49797 7193.4759
r20-pre-B-batch-cifar homogeneous 0.01 132.53133 132.53133 107.64391 2095.6138
r20-pre-B-batch-cifar positions 0.01 149.40908 149.40908 110.46491 2351.6011
r20-pre-B-batch-cifar gram 0.02 312.17816 312.17816 111.70132 2529.0998
r8-post-A-batch-C10 homogeneous 0.03 151.66726 158.25368 151.66726 8348.282
r8-post-A-batch-C10 positions 0.03 144.55564 151.16774 144.55564 8310.1537
r8-post-A-batch-C10 gram 0.03 144.72352 151.45517 144.13113 8325.1808
r8-post-B-frozen-C10 homogeneous 0.03 318.44265 401.75735 318.44265 12874.0603
r8-post-B-frozen-C10 positions 0.03 321.01435 405.46564 321.01435 13201.3979
r8-post-B-frozen-C10 gram 0.03 322.94109 408.11118 321.18335 13280.32
mlp-pre-relu-batch-C10 homogeneous 0.01 67.09701 67.51387 67.09701 4428.8323
mlp-pre-relu-batch-C10 gram 0.02 67.48078 67.92105 67.06841 4515.6424
r20-post-A-batch-T64 homogeneous 0.03 294.24739 294.24739 294.24739 3399.5491
r20-post-A-batch-T64 positions 0.03 280.9335 280.9335 280.9335 3692.7237
r8-post-B-batch-flatten homogeneous 0.03 686.72445 686.72445 686.72445 4054.3762
r8-post-B-batch-flatten positions 0.03 685.76729 685.76729 685.76729 4117.8285
r8-post-B-batch-flatten gram 0.03 688.78801 688.78801 684.22312 4128.6831
"""

# name, width; mean, standard error and absolute tolerance of lambda_max, mean direction, trace
MEASURED = """
mlp-pre-relu-batch 100 18.5482 0.0616 0.556 17.8804 0.0401 0.536 139.696 6.06 34.3
mlp-pre-relu-batch 200 35.0927 0.0686 1.05 34.1912 0.0966 1.03 241.887 7.59 42.9
mlp-pre-relu-batch 400 68.2737 0.196 2.05 67.138 0.192 2.01 460.043 10.3 58.2
mlp-pre-relu-batch 800 134.191 0.0789 4.03 132.641 0.129 3.98 888.112 8.79 49.7
mlp-post-relu-batch 100 135.836 0.814 4.6 131.153 0.516 3.93 1203.83 57.4 325.0
mlp-post-relu-batch 200 265.417 0.749 7.96 259.567 1.0 7.79 2054.69 89.6 507.0
mlp-post-relu-batch 400 523.756 1.23 15.7 515.288 0.868 15.5 3896.79 171.0 969.0
mlp-post-relu-batch 800 1036.39 1.49 31.1 1024.94 0.926 30.7 7620.79 174.0 982.0
mlp-post-relu-frozen 100 263.368 9.1 51.5 251.726 8.39 47.4 1772.55 93.7 530.0
mlp-post-relu-frozen 200 484.868 15.1 85.6 470.34 14.8 83.5 3039.28 152.0 858.0
mlp-post-relu-frozen 400 953.299 28.1 159.0 933.526 27.9 158.0 5797.3 294.0 1660.0
mlp-post-relu-frozen 800 1888.5 28.9 163.0 1862.28 28.2 160.0 11401.8 295.0 1670.0
mlp-pre-relu-none 100 908.859 91.9 520.0 847.439 85.0 481.0 2218.57 169.0 958.0
mlp-pre-relu-none 200 1714.03 61.3 347.0 1648.55 59.5 337.0 4302.24 107.0 606.0
mlp-pre-relu-none 400 3419.13 131.0 742.0 3338.71 128.0 724.0 8361.98 224.0 1270.0
mlp-pre-relu-none 800 6840.86 213.0 1200.0 6741.9 197.0 1110.0 16597.8 419.0 2370.0
mlp-pre-tanh-batch 100 11.9671 0.541 3.06 2.09384 0.0545 0.308 168.749 8.4 47.5
mlp-pre-tanh-batch 200 19.0808 0.841 4.76 2.60022 0.065 0.368 288.361 11.9 67.2
mlp-pre-tanh-batch 400 34.0811 1.19 6.73 3.70808 0.0907 0.513 549.226 20.4 115.0
mlp-pre-tanh-batch 800 63.716 1.08 6.13 5.86315 0.119 0.673 1075.75 19.8 112.0
mlp-post-relu-batch-zerogamma 100 18.909 0.0697 0.567 18.4298 0.0643 0.553 68.1674 0.86 4.87
mlp-post-relu-batch-zerogamma 200 35.0685 0.0818 1.05 34.5715 0.066 1.04 118.112 0.745 4.22
mlp-post-relu-batch-zerogamma 400 67.7938 0.13 2.03 67.0306 0.127 2.01 218.775 0.782 6.56
mlp-post-relu-batch-zerogamma 800 133.22 0.144 4.0 131.973 0.156 3.96 418.695 0.213 12.6
r8-post-A-batch 16 37.9975 0.609 3.44 37.2441 0.585 3.31 207.081 7.28 41.2
r8-post-A-batch 32 73.7571 0.699 3.95 72.947 0.706 3.99 436.882 10.7 60.4
r8-post-A-batch 64 144.903 0.714 4.35 143.597 0.729 4.31 817.918 12.5 70.9
r8-post-A-frozen 16 106.404 3.52 19.9 103.927 3.44 19.4 327.638 12.6 71.1
r8-post-A-frozen 32 214.56 6.04 34.2 211.515 5.97 33.8 685.178 26.7 151.0
r8-post-A-frozen 64 409.083 13.0 73.8 405.345 12.8 72.4 1269.29 50.4 285.0
r8-post-A-none 16 216.951 19.4 110.0 214.065 19.2 109.0 313.995 24.0 136.0
r8-post-A-none 32 443.25 21.6 122.0 439.854 21.5 121.0 655.118 28.5 161.0
r8-post-A-none 64 838.354 23.6 133.0 833.505 23.5 133.0 1246.77 31.8 180.0
r8-post-B-batch 16 27.301 0.369 2.09 26.4031 0.289 1.63 208.873 8.66 49.0
r8-post-B-batch 32 52.3297 0.462 2.61 51.4018 0.382 2.16 432.345 15.2 86.0
r8-post-B-batch 64 102.727 1.18 6.67 101.553 1.05 5.93 871.16 45.7 259.0
r8-post-B-frozen 16 80.603 2.86 16.2 77.754 2.59 14.6 321.726 13.9 78.4
r8-post-B-frozen 32 166.833 3.37 19.1 163.977 3.28 18.6 683.306 13.2 74.6
r8-post-B-frozen 64 322.303 7.07 40.0 318.965 6.94 39.2 1307.77 31.0 175.0
r8-post-B-none 16 292.466 33.8 191.0 287.86 33.3 188.0 450.627 46.1 261.0
r8-post-B-none 32 727.06 42.8 242.0 720.97 43.0 243.0 1082.86 50.0 283.0
r8-post-B-none 64 1164.41 48.0 271.0 1156.49 47.2 267.0 1811.37 71.5 404.0
r8-pre-A-batch 16 12.768 0.0582 0.383 12.5121 0.0576 0.375 91.3393 3.54 20.0
r8-pre-A-batch 32 24.0295 0.128 0.726 23.658 0.12 0.71 184.39 9.26 52.4
r8-pre-A-batch 64 46.0902 0.205 1.38 45.6205 0.187 1.37 337.211 16.6 93.9
r8-pre-A-frozen 16 40.8501 1.57 8.9 39.77 1.56 8.81 140.531 5.94 33.6
r8-pre-A-frozen 32 80.7988 1.74 9.85 79.5257 1.71 9.66 283.75 7.32 41.4
r8-pre-A-frozen 64 155.868 2.55 14.5 154.083 2.53 14.3 545.375 10.3 58.2
r8-pre-A-none 16 126.443 11.6 65.8 123.978 11.5 64.8 212.154 16.1 91.2
r8-pre-A-none 32 268.397 28.5 161.0 265.752 28.3 160.0 466.099 41.2 233.0
r8-pre-A-none 64 413.963 29.5 167.0 410.708 29.4 166.0 732.755 45.9 260.0
r8-pre-B-batch 16 12.4984 0.0629 0.375 12.2488 0.0605 0.367 77.4223 2.47 14.0
r8-pre-B-batch 32 23.4937 0.0581 0.705 23.1578 0.0522 0.695 157.681 2.88 16.3
r8-pre-B-batch 64 45.4617 0.108 1.36 45.0299 0.106 1.35 304.923 7.16 40.5
r8-pre-B-frozen 16 33.0372 0.808 4.57 32.1631 0.769 4.35 116.648 4.03 22.8
r8-pre-B-frozen 32 66.0562 1.9 10.8 65.0188 1.86 10.5 234.719 7.48 42.3
r8-pre-B-frozen 64 136.634 7.33 41.5 135.195 7.17 40.5 494.445 31.7 179.0
r8-pre-B-none 16 228.662 23.8 134.0 224.078 23.2 131.0 377.236 35.8 203.0
r8-pre-B-none 32 512.001 24.4 138.0 506.579 24.3 137.0 836.948 34.3 194.0
r8-pre-B-none 64 966.395 29.3 166.0 959.108 29.2 165.0 1605.17 43.3 245.0
r20-post-A-batch 16 211.432 16.9 95.4 172.487 5.54 31.4 2122.26 194.0 1100.0
r20-post-A-batch 32 352.123 17.7 100.0 326.987 9.2 52.0 3514.38 288.0 1630.0
r20-post-A-batch 64 693.404 16.9 95.8 666.366 10.4 58.8 7504.56 359.0 2030.0
r20-post-B-batch 16 293.534 17.0 96.3 120.232 2.89 16.4 2813.0 134.0 758.0
r20-post-B-batch 32 586.279 76.0 430.0 245.478 7.81 44.2 6059.09 581.0 3290.0
r20-post-B-batch 64 957.469 65.5 371.0 492.605 15.2 86.2 11444.0 814.0 4600.0
r20-post-B-batch 128 1756.45 101.0 570.0 955.456 13.6 76.9 22220.8 1160.0 6550.0
r20-pre-B-batch 16 31.331 1.6 9.04 15.2358 0.219 1.24 317.377 11.9 67.2
r20-pre-B-batch 32 53.5299 2.34 13.3 28.652 0.369 2.09 606.387 33.7 191.0
r20-pre-B-batch 64 98.5454 7.12 40.3 56.8125 1.3 7.35 1249.42 89.2 505.0
r20-pre-B-batch 128 182.289 8.55 48.4 110.748 1.19 6.75 2389.99 134.0 758.0
r20-pre-A-batch 16 29.0802 3.76 21.3 14.9286 0.276 1.56 293.655 21.6 122.0
r20-pre-A-batch 32 45.5678 4.0 22.7 27.7902 0.549 3.1 505.418 39.7 224.0
r20-pre-A-batch 64 87.2957 2.63 14.9 54.3798 0.351 1.99 1067.26 27.6 156.0
r20-post-A-frozen 16 743.632 74.3 420.0 713.396 70.5 399.0 3633.18 347.0 1960.0
r20-post-A-frozen 32 1218.84 92.9 526.0 1188.06 91.3 516.0 5975.54 503.0 2850.0
r20-post-A-frozen 64 2582.69 96.2 544.0 2544.12 94.9 537.0 12827.3 601.0 3400.0
r8-post-A-batch-cifar 16 43.6753 0.811 4.59 37.4214 0.775 4.38 225.354 8.25 46.7
r8-post-A-batch-cifar 32 84.9741 1.51 8.52 74.318 0.719 4.07 456.263 14.4 81.6
r8-post-A-batch-cifar 64 163.383 2.69 15.2 146.746 1.38 7.8 849.272 25.1 142.0
r8-pre-B-batch-cifar 16 14.3302 0.413 2.33 12.1133 0.0823 0.465 87.3836 3.65 20.6
r8-pre-B-batch-cifar 32 27.8306 0.717 4.05 22.8407 0.102 0.685 177.371 4.15 23.5
r8-pre-B-batch-cifar 64 51.3421 1.02 5.76 44.5209 0.216 1.34 353.211 18.0 102.0
r8-pre-B-batch-cifar 128 99.3338 1.45 8.22 88.1912 0.133 2.65 698.735 4.86 27.5
r8-post-A-frozen-cifar 16 126.767 4.26 24.1 111.247 4.14 23.4 369.618 14.3 81.0
r8-post-A-frozen-cifar 32 251.984 8.0 45.3 224.581 5.61 31.7 747.69 25.4 144.0
r8-post-A-frozen-cifar 64 456.233 13.7 77.4 421.051 12.2 69.3 1375.37 46.5 263.0
r20-post-A-batch-cifar 16 301.225 22.0 124.0 169.167 4.71 26.6 1982.44 161.0 908.0
r20-post-A-batch-cifar 32 478.599 41.6 235.0 323.428 8.93 50.5 3459.85 232.0 1310.0
r20-post-A-batch-cifar 64 947.541 51.4 291.0 673.541 13.6 76.8 7640.77 413.0 2340.0
r20-pre-B-batch-cifar 16 52.4014 3.54 20.0 15.8403 0.266 1.51 355.067 15.4 86.9
r20-pre-B-batch-cifar 32 100.569 8.94 50.6 29.3634 0.51 2.89 680.16 37.6 212.0
r20-pre-B-batch-cifar 64 181.089 5.45 30.8 59.0129 1.23 6.98 1436.04 90.4 511.0
r20-pre-B-batch-cifar 128 333.15 17.9 101.0 113.331 1.12 6.36 2653.99 105.0 591.0
r8-post-A-batch-C10 16 43.5984 0.95 5.38 36.8193 0.713 4.03 2129.41 43.5 246.0
r8-post-A-batch-C10 32 80.6167 1.24 7.02 72.5214 1.19 6.71 4110.56 114.0 645.0
r8-post-A-batch-C10 64 151.985 1.86 10.5 141.789 1.33 7.54 8149.82 60.3 341.0
r8-post-B-frozen-C10 16 154.968 7.09 40.1 83.1105 1.38 7.81 3439.88 59.8 338.0
r8-post-B-frozen-C10 32 248.993 9.47 53.6 162.263 1.94 11.0 6664.48 142.0 804.0
r8-post-B-frozen-C10 64 427.436 6.69 37.8 318.61 3.6 20.4 13091.1 155.0 875.0
mlp-pre-relu-batch-C10 100 19.1045 0.0824 0.573 17.859 0.0282 0.536 1316.96 23.1 131.0
mlp-pre-relu-batch-C10 200 35.6085 0.0844 1.07 34.2542 0.0853 1.03 2434.71 28.9 163.0
mlp-pre-relu-batch-C10 400 68.697 0.191 2.06 67.0251 0.176 2.01 4474.66 28.3 160.0
r20-post-A-batch-T64 16 143.966 1.68 9.51 140.401 1.61 9.11 1855.49 133.0 751.0
r20-post-A-batch-T64 32 276.825 4.76 26.9 272.996 4.57 25.8 3270.66 286.0 1620.0
r8-post-B-batch-flatten 16 181.275 2.75 15.6 175.56 2.56 14.5 1083.65 25.8 146.0
r8-post-B-batch-flatten 32 356.696 3.94 22.3 350.016 3.88 21.9 2108.66 29.0 164.0
r8-post-B-batch-flatten 64 685.705 8.46 47.8 677.494 7.97 45.1 4036.76 104.0 591.0
"""

# at smaller widths: name, level, width; lambda_max, lambda_max_split, mean_direction, trace
NARROW = """
mlp-pre-relu-batch homogeneous 100 17.93068 17.93068 17.93068 133.3982
mlp-pre-relu-batch gram 100 18.02911 18.02911 17.92815 136.5897
mlp-pre-relu-batch homogeneous 200 34.31946 34.31946 34.31946 236.5599
mlp-pre-relu-batch gram 200 34.51295 34.51295 34.30824 241.5812
mlp-pre-relu-batch homogeneous 400 67.09701 67.09701 67.09701 442.8832
mlp-pre-relu-batch gram 400 67.48078 67.48078 67.06841 451.5642
mlp-post-relu-batch homogeneous 100 131.5481 131.5481 131.5481 1123.098
mlp-post-relu-batch gram 100 131.9681 131.9681 131.2008 1139.366
mlp-post-relu-batch homogeneous 200 259.2623 259.2623 259.2623 2012.002
mlp-post-relu-batch gram 200 260.0155 260.0155 258.5073 2035.568
mlp-post-relu-batch homogeneous 400 514.6905 514.6905 514.6905 3789.81
mlp-post-relu-batch gram 400 516.1107 516.1107 513.1203 3827.973
mlp-post-relu-frozen homogeneous 100 237.4546 237.4546 237.4546 1610.024
mlp-post-relu-frozen gram 100 241.4831 241.4831 239.771 1650.321
mlp-post-relu-frozen homogeneous 200 462.0695 462.0695 462.0695 2928.101
mlp-post-relu-frozen gram 200 469.0611 469.0611 465.769 2989.896
mlp-post-relu-frozen homogeneous 400 911.2992 911.2992 911.2992 5564.256
mlp-post-relu-frozen gram 400 924.2197 924.2197 917.7648 5669.047
mlp-pre-relu-none homogeneous 100 797.6805 797.6805 797.6805 2171.871
mlp-pre-relu-none gram 100 803.5424 803.5424 797.4479 2171.871
mlp-pre-relu-none homogeneous 200 1589.377 1589.377 1589.377 4145.39
mlp-pre-relu-none gram 200 1600.358 1600.358 1588.338 4145.39
mlp-pre-relu-none homogeneous 400 3172.771 3172.771 3172.771 8092.429
mlp-pre-relu-none gram 400 3193.99 3193.99 3170.119 8092.429
mlp-pre-tanh-batch homogeneous 100 3.96345 3.96345 2.04959 156.6242
mlp-pre-tanh-batch gram 100 8.49196 8.49196 2.06735 161.7662
mlp-pre-tanh-batch homogeneous 200 7.08589 7.08589 2.55997 278.9098
mlp-pre-tanh-batch gram 200 15.21673 15.21673 2.59036 287.6641
mlp-pre-tanh-batch homogeneous 400 13.33078 13.33078 3.58074 523.481
mlp-pre-tanh-batch gram 400 28.66704 28.66704 3.63639 539.4599
mlp-post-relu-batch-zerogamma homogeneous 100 18.39574 18.39574 18.39574 67.8375
mlp-post-relu-batch-zerogamma gram 100 18.53171 18.53171 18.43582 68.0927
mlp-post-relu-batch-zerogamma homogeneous 200 34.54366 34.54366 34.54366 117.8372
mlp-post-relu-batch-zerogamma gram 200 34.82831 34.82831 34.62403 118.0924
mlp-post-relu-batch-zerogamma homogeneous 400 66.8395 66.8395 66.8395 217.8366
mlp-post-relu-batch-zerogamma gram 400 67.42259 67.42259 67.00046 218.0918
r8-post-A-batch homogeneous 16 39.49753 39.49753 39.49753 220.2596
r8-post-A-batch positions 16 37.72208 37.72208 37.72208 219.4645
r8-post-A-batch gram 16 37.79111 37.79111 37.64487 220.16
r8-post-A-batch homogeneous 32 76.88744 76.88744 76.88744 425.1158
r8-post-A-batch positions 32 73.33327 73.33327 73.33327 423.3148
r8-post-A-batch gram 32 73.45556 73.45556 73.15994 424.2251
r8-post-A-frozen homogeneous 16 111.1658 111.1658 111.1658 344.7171
r8-post-A-frozen positions 16 108.4298 108.4298 108.4298 345.7976
r8-post-A-frozen gram 16 108.7183 108.7183 108.2094 347.4988
r8-post-A-frozen homogeneous 32 218.7339 218.7339 218.7339 670.9889
r8-post-A-frozen positions 32 213.2653 213.2653 213.2653 672.8398
r8-post-A-frozen gram 32 213.7391 213.7391 212.7265 675.1137
r8-post-A-none homogeneous 16 190.4427 190.4427 190.4427 282.9239
r8-post-A-none positions 16 219.9594 219.9594 219.9594 328.5175
r8-post-A-none gram 16 219.2315 219.2315 218.3901 327.8801
r8-post-A-none homogeneous 32 379.6298 379.6298 379.6298 560.7513
r8-post-A-none positions 32 438.6372 438.6372 438.6372 651.4961
r8-post-A-none gram 32 437.1252 437.1252 435.4437 650.1931
r8-post-B-batch homogeneous 16 26.89075 26.89075 26.89075 222.7187
r8-post-B-batch positions 16 26.77762 26.77762 26.77762 226.6756
r8-post-B-batch gram 16 26.83916 26.83916 26.72403 227.8749
r8-post-B-batch homogeneous 32 51.72571 51.72571 51.72571 426.1839
r8-post-B-batch positions 32 51.49911 51.49911 51.49911 433.6402
r8-post-B-batch gram 32 51.61461 51.61461 51.37871 435.376
r8-post-B-frozen homogeneous 16 82.60491 82.60491 82.60491 339.459
r8-post-B-frozen positions 16 83.31545 83.31545 83.31545 348.1694
r8-post-B-frozen gram 16 83.92035 83.92035 83.47668 351.3426
r8-post-B-frozen homogeneous 32 161.2175 161.2175 161.2175 655.4413
r8-post-B-frozen positions 32 162.5484 162.5484 162.5484 672.1595
r8-post-B-frozen gram 32 163.5939 163.5939 162.7122 676.9058
r8-post-B-none homogeneous 16 310.7471 310.7471 310.7471 477.4534
r8-post-B-none positions 16 330.4004 330.4004 330.4004 515.2287
r8-post-B-none gram 16 329.1478 329.1478 327.7684 513.7836
r8-post-B-none homogeneous 32 619.873 619.873 619.873 943.956
r8-post-B-none positions 32 659.1712 659.1712 659.1712 1019.323
r8-post-B-none gram 32 656.536 656.536 653.7855 1016.366
r8-pre-A-batch homogeneous 16 12.66839 12.66839 12.66839 92.309
r8-pre-A-batch positions 16 12.61118 12.61118 12.61118 94.0046
r8-pre-A-batch gram 16 12.5673 12.5673 12.52441 95.2632
r8-pre-A-batch homogeneous 32 23.85888 23.85888 23.85888 177.5333
r8-pre-A-batch positions 32 23.74258 23.74258 23.74258 180.7309
r8-pre-A-batch gram 32 23.66461 23.66461 23.57331 182.9724
r8-pre-A-frozen homogeneous 16 40.02872 40.02872 40.02872 140.185
r8-pre-A-frozen positions 16 40.30624 40.30624 40.30624 143.5036
r8-pre-A-frozen gram 16 40.77048 40.77048 40.58079 146.0128
r8-pre-A-frozen homogeneous 32 77.91559 77.91559 77.91559 271.9613
r8-pre-A-frozen positions 32 78.45314 78.45314 78.45314 278.3379
r8-pre-A-frozen gram 32 79.31713 79.31713 78.9382 282.7748
r8-pre-A-none homogeneous 16 108.4174 108.4174 108.4174 191.9751
r8-pre-A-none positions 16 125.1768 125.1768 125.1768 221.5403
r8-pre-A-none gram 16 125.1229 125.1229 124.6105 221.2519
r8-pre-A-none homogeneous 32 215.5681 215.5681 215.5681 378.6776
r8-pre-A-none positions 32 249.0688 249.0688 249.0688 437.4824
r8-pre-A-none gram 32 248.9172 248.9172 247.8946 436.8843
r8-pre-B-batch homogeneous 16 12.44732 12.44732 12.44732 77.4462
r8-pre-B-batch positions 16 12.40088 12.40088 12.40088 81.2041
r8-pre-B-batch gram 16 12.42769 12.42769 12.38639 82.678
r8-pre-B-batch homogeneous 32 23.40665 23.40665 23.40665 146.9323
r8-pre-B-batch positions 32 23.31157 23.31157 23.31157 154.2654
r8-pre-B-batch gram 32 23.3655 23.3655 23.27849 156.8693
r8-pre-B-frozen homogeneous 16 32.43719 32.43719 32.43719 114.7265
r8-pre-B-frozen positions 16 33.55522 33.55522 33.55522 121.2365
r8-pre-B-frozen gram 16 34.0719 34.0719 33.91317 124.1664
r8-pre-B-frozen homogeneous 32 62.45865 62.45865 62.45865 219.8102
r8-pre-B-frozen positions 32 64.66253 64.66253 64.66253 232.5648
r8-pre-B-frozen gram 32 65.61115 65.61115 65.29465 237.7192
r8-pre-B-none homogeneous 16 241.0332 241.0332 241.0332 397.4755
r8-pre-B-none positions 16 254.8768 254.8768 254.8768 427.4584
r8-pre-B-none gram 16 254.5673 254.5673 253.4645 426.6677
r8-pre-B-none homogeneous 32 480.4356 480.4356 480.4356 783.847
r8-pre-B-none positions 32 508.1202 508.1202 508.1202 843.7162
r8-pre-B-none gram 32 507.3888 507.3888 505.1925 842.0776
r20-post-A-batch homogeneous 16 173.5183 173.5183 173.5183 1765.452
r20-post-A-batch positions 16 169.4189 169.4189 169.4189 1935.256
r20-post-A-batch gram 16 170.0566 170.0566 168.6111 1925.165
r20-post-A-batch homogeneous 32 341.7376 341.7376 341.7376 3425.784
r20-post-A-batch positions 32 333.1818 333.1818 333.1818 3746.864
r20-post-A-batch gram 32 334.3278 334.3278 331.5418 3724.255
r20-post-B-batch homogeneous 16 165.371 165.371 118.5168 2599.081
r20-post-B-batch positions 16 182.2747 182.2747 122.405 2856.525
r20-post-B-batch gram 16 206.7342 206.7342 121.7255 2838.632
r20-post-B-batch homogeneous 32 319.3546 319.3546 231.6263 5021.946
r20-post-B-batch positions 32 351.2299 351.2299 238.9052 5507.354
r20-post-B-batch gram 32 398.408 398.408 237.4823 5467.476
r20-post-B-batch homogeneous 64 627.322 627.322 457.8453 9867.675
r20-post-B-batch positions 64 689.1404 689.1404 471.9056 10809.01
r20-post-B-batch gram 64 781.756 781.756 468.9959 10725.16
r20-pre-B-batch homogeneous 16 17.3633 17.3633 14.83269 275.2821
r20-pre-B-batch positions 16 19.22028 19.22028 15.14573 303.4499
r20-pre-B-batch gram 16 22.40322 22.40322 14.99056 308.523
r20-pre-B-batch homogeneous 32 33.48847 33.48847 28.03461 530.3617
r20-pre-B-batch positions 32 37.03892 37.03892 28.6308 584.2146
r20-pre-B-batch gram 32 43.15007 43.15007 28.32307 593.3133
r20-pre-B-batch homogeneous 64 65.73882 65.73882 54.43844 1040.521
r20-pre-B-batch positions 64 72.67621 72.67621 55.60094 1145.744
r20-pre-B-batch gram 64 84.64379 84.64379 54.98809 1162.894
r20-pre-A-batch homogeneous 16 15.55851 15.55851 14.52653 247.9043
r20-pre-A-batch positions 16 16.71675 16.71675 14.66766 265.419
r20-pre-A-batch gram 16 19.46783 19.46783 14.55021 269.4573
r20-pre-A-batch homogeneous 32 30.18892 30.18892 27.47753 480.3113
r20-pre-A-batch positions 32 32.39042 32.39042 27.73907 513.5954
r20-pre-A-batch gram 32 37.70278 37.70278 27.50668 520.886
r20-post-A-frozen homogeneous 16 623.4648 623.4648 623.4648 2923.265
r20-post-A-frozen positions 16 630.4696 630.4696 630.4696 3247.29
r20-post-A-frozen gram 16 630.4774 630.4774 626.1727 3236.255
r20-post-A-frozen homogeneous 32 1232.869 1232.869 1232.869 5713.817
r20-post-A-frozen positions 32 1245.491 1245.491 1245.491 6337.69
r20-post-A-frozen gram 32 1244.884 1244.884 1236.398 6307.508
r8-post-A-batch-cifar homogeneous 16 39.89259 39.89259 39.89259 224.6345
r8-post-A-batch-cifar positions 16 39.11822 39.11822 39.11822 230.7172
r8-post-A-batch-cifar gram 16 41.60354 41.60354 38.17716 236.4703
r8-post-A-batch-cifar homogeneous 32 77.64829 77.64829 77.64829 433.4378
r8-post-A-batch-cifar positions 32 76.09135 76.09135 76.09135 444.7648
r8-post-A-batch-cifar gram 32 80.95891 80.95891 74.06738 452.6823
r8-pre-B-batch-cifar homogeneous 16 12.46337 12.46337 12.46337 79.9686
r8-pre-B-batch-cifar positions 16 12.47728 12.47728 12.47728 85.5972
r8-pre-B-batch-cifar gram 16 13.44353 13.44353 12.24718 93.6392
r8-pre-B-batch-cifar homogeneous 32 23.43731 23.43731 23.43731 151.6704
r8-pre-B-batch-cifar positions 32 23.46097 23.46097 23.46097 162.4784
r8-pre-B-batch-cifar gram 32 25.50113 25.50113 22.96822 176.2892
r8-pre-B-batch-cifar homogeneous 64 45.3852 45.3852 45.3852 295.0739
r8-pre-B-batch-cifar positions 64 45.42835 45.42835 45.42835 316.2409
r8-pre-B-batch-cifar gram 64 49.62722 49.62722 44.41031 341.5893
r8-post-A-frozen-cifar homogeneous 16 113.5371 113.5371 113.5371 353.0967
r8-post-A-frozen-cifar positions 16 112.7021 112.7021 112.7021 364.6897
r8-post-A-frozen-cifar gram 16 122.6749 122.6749 112.8087 382.5281
r8-post-A-frozen-cifar homogeneous 32 223.3705 223.3705 223.3705 687.118
r8-post-A-frozen-cifar positions 32 221.6306 221.6306 221.6306 708.9711
r8-post-A-frozen-cifar gram 32 239.8864 239.8864 220.5865 735.2324
r20-post-A-batch-cifar homogeneous 16 174.6249 174.6249 174.6249 1782.437
r20-post-A-batch-cifar positions 16 173.0105 173.0105 173.0105 1984.293
r20-post-A-batch-cifar gram 16 233.8349 233.8349 164.061 1909.315
r20-post-A-batch-cifar homogeneous 32 343.885 343.885 343.885 3457.896
r20-post-A-batch-cifar positions 32 340.1917 340.1917 340.1917 3837.838
r20-post-A-batch-cifar gram 32 453.982 453.982 321.8733 3670.702
r20-pre-B-batch-cifar homogeneous 16 17.67936 17.67936 14.88714 280.0776
r20-pre-B-batch-cifar positions 16 19.99131 19.99131 15.27574 315.1455
r20-pre-B-batch-cifar gram 16 41.98955 41.98955 15.52749 343.7289
r20-pre-B-batch-cifar homogeneous 32 34.08679 34.08679 28.13811 539.4399
r20-pre-B-batch-cifar positions 32 38.47957 38.47957 28.8742 606.0677
r20-pre-B-batch-cifar gram 32 80.58692 80.58692 29.26661 655.9247
r20-pre-B-batch-cifar homogeneous 64 66.90163 66.90163 54.64004 1058.165
r20-pre-B-batch-cifar positions 64 75.45607 75.45607 56.0711 1187.912
r20-pre-B-batch-cifar gram 64 157.784 157.784 56.74484 1280.316
r8-post-A-batch-C10 homogeneous 16 39.49753 43.58035 39.49753 2202.596
r8-post-A-batch-C10 positions 16 37.72208 41.82025 37.72208 2194.644
r8-post-A-batch-C10 gram 16 37.75522 41.91825 37.60929 2201.699
r8-post-A-batch-C10 homogeneous 32 76.88744 82.02593 76.88744 4251.158
r8-post-A-batch-C10 positions 32 73.33327 78.49153 73.33327 4233.148
r8-post-A-batch-C10 gram 32 73.41128 78.65931 73.11657 4242.86
r8-post-B-frozen-C10 homogeneous 16 82.60491 128.0869 82.60491 3394.59
r8-post-B-frozen-C10 positions 16 83.31545 129.4455 83.31545 3481.694
r8-post-B-frozen-C10 gram 16 83.92035 130.5242 83.47668 3513.426
r8-post-B-frozen-C10 homogeneous 32 161.2175 223.3399 161.2175 6554.413
r8-post-B-frozen-C10 positions 32 162.5484 225.5311 162.5484 6721.595
r8-post-B-frozen-C10 gram 32 163.5939 227.1507 162.7122 6769.057
mlp-pre-relu-batch-C10 homogeneous 100 17.93068 18.38913 17.93068 1333.982
mlp-pre-relu-batch-C10 gram 100 18.02911 18.50451 17.92815 1365.897
mlp-pre-relu-batch-C10 homogeneous 200 34.31946 34.73495 34.31946 2365.599
mlp-pre-relu-batch-C10 gram 200 34.51295 34.94773 34.30824 2415.812
r20-post-A-batch-T64 homogeneous 16 148.9366 148.9366 148.9366 1751.799
r20-post-A-batch-T64 positions 16 142.3114 142.3114 142.3114 1906.822
r8-post-B-batch-flatten homogeneous 16 175.9206 175.9206 175.9206 1069.426
r8-post-B-batch-flatten positions 16 175.7311 175.7311 175.7311 1086.787
r8-post-B-batch-flatten gram 16 176.6382 176.6382 175.4609 1091.569
r8-post-B-batch-flatten homogeneous 32 346.1886 346.1886 346.1886 2064.41
r8-post-B-batch-flatten positions 32 345.7432 345.7432 345.7432 2097.134
r8-post-B-batch-flatten gram 32 347.3548 347.3548 345.0483 2103.941
"""

# lambda_max of Theta averaged over outputs: name, width; mean, standard error, tolerance
OVER_OUTPUTS = """
r8-post-A-batch-C10 16 37.6212 0.778 4.4
r8-post-A-batch-C10 32 73.4023 1.22 6.88
r8-post-A-batch-C10 64 143.023 1.34 7.61
r8-post-B-frozen-C10 16 84.7581 1.51 8.56
r8-post-B-frozen-C10 32 164.468 2.23 12.6
r8-post-B-frozen-C10 64 321.144 3.85 21.8
mlp-pre-relu-batch-C10 100 18.5058 0.0534 0.555
mlp-pre-relu-batch-C10 200 35.1554 0.0951 1.05
mlp-pre-relu-batch-C10 400 68.1593 0.188 2.04
"""

# networks that were measured, by width
NETWORKS_MEASURED = """
mlp-pre-relu-batch 100:12 200:8 400:6 800:5
mlp-post-relu-batch 100:12 200:8 400:6 800:5
mlp-post-relu-frozen 100:12 200:8 400:6 800:5
mlp-pre-relu-none 100:12 200:38 400:26 800:5
mlp-pre-tanh-batch 100:12 200:8 400:6 800:5
mlp-post-relu-batch-zerogamma 100:12 200:8 400:6 800:5
r8-post-A-batch 16:16 32:26 64:22
r8-post-A-frozen 16:16 32:10 64:6
r8-post-A-none 16:16 32:34 64:30
r8-post-B-batch 16:16 32:10 64:6
r8-post-B-frozen 16:16 32:26 64:22
r8-post-B-none 16:16 32:10 64:6
r8-pre-A-batch 16:16 32:10 64:6
r8-pre-A-frozen 16:16 32:26 64:22
r8-pre-A-none 16:16 32:10 64:6
r8-pre-B-batch 16:16 32:26 64:22
r8-pre-B-frozen 16:16 32:10 64:6
r8-pre-B-none 16:16 32:34 64:30
r20-post-A-batch 16:10 32:6 64:5
r20-post-B-batch 16:10 32:6 64:5 128:4
r20-pre-B-batch 16:10 32:6 64:5 128:4
r20-pre-A-batch 16:10 32:6 64:5
r20-post-A-frozen 16:10 32:6 64:5
r8-post-A-batch-cifar 16:16 32:10 64:6
r8-pre-B-batch-cifar 16:16 32:10 64:6 128:5
r8-post-A-frozen-cifar 16:16 32:10 64:6
r20-post-A-batch-cifar 16:10 32:6 64:5
r20-pre-B-batch-cifar 16:10 32:6 64:5 128:4
r8-post-A-batch-C10 16:8 32:5 64:5
r8-post-B-frozen-C10 16:8 32:5 64:5
mlp-pre-relu-batch-C10 100:8 200:5 400:5
r20-post-A-batch-T64 16:6 32:5
r8-post-B-batch-flatten 16:16 32:10 64:6
"""

# mean of K of the Gaussian data: same sample, same position and others; other sample, likewise
INPUT_CLASSES = """
11 40x50 0.98675961 0.98675961 0.00117165 0.00117165
12 16x3x8x8 1.00754242 0.00083524 -0.00113359 0.00041855
13 64x3x8x8 1.02042492 0.00198088 -0.00153879 -3.169e-05
"""
