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
