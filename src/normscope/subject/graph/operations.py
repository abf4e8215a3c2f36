"""What aten operations do to a signal, by name."""

from __future__ import annotations

# positions of the two factors
PRODUCTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_grouped_mm", "_scaled_mm"), (0, 1)),
    **dict.fromkeys(("_int_mm", "linear", "matmul", "convolution", "_convolution"), (0, 1)),
    **dict.fromkeys(("mkldnn_convolution", "cudnn_convolution", "_trilinear"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "addr", "_addmm_activation"), (1, 2)),
}  # fmt: skip
CONVOLUTIONS = {name for name in PRODUCTS if name.endswith("convolution")}
LOOKUPS = {"embedding", "_embedding_bag", "_embedding_bag_forward_only", "index_select", "gather",
           "index", "take"}  # fmt: skip
FUSED_RECURRENT = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_lstm_mps"}
FUSED_ATTENTION = {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "_fused_sdp")
FRESH = {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
         "new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"}  # fmt: skip
POOLS = {"avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
         "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "mean",
         "amax"}  # fmt: skip
_AVERAGES = POOLS - {"mean", "amax"}
# Views, copies, casts, indexing, padding, dropout: the same numbers in another place.
MOVES = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze",
         "slice", "select", "alias", "detach", "clone", "_to_copy", "contiguous", "split",
         "split_with_sizes", "chunk", "unbind", "reshape", "_reshape_alias", "_reshape_copy",
         "as_strided", "constant_pad_nd", "reflection_pad2d", "native_dropout", "_fused_dropout",
         "dropout", "narrow", "flatten", "diagonal", "unfold", "roll", "flip", "repeat", "copy",
         "to", "pixel_shuffle", "unflatten", "index_select", "index", "gather", "lift_fresh",
         "upsample_nearest2d", "upsample_bilinear2d", "im2col", "bernoulli", "movedim",
         "view_as_real", "view_as_complex", "index_put", "masked_fill", "fill",
         "zero"}  # fmt: skip
CARRIES = MOVES | _AVERAGES  # what a walk back to the source of a signal goes through
POINTWISE = {"relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh",
             "hardswish", "hardsigmoid", "softplus", "mish", "_prelu_kernel", "clamp", "clamp_min",
             "exp", "log_sigmoid_forward", "threshold", "erf", "pow", "abs", "selu", "celu",
             "rrelu_with_noise", "logit", "sin", "cos"}  # fmt: skip
SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}
SQUASH = {"sigmoid", "hardsigmoid", "tanh"} | SOFTMAX
REDUCTIONS = {"mean", "sum", "amax", "logsumexp"}
SPREADS = {"var", "var_mean", "std", "std_mean"}
EVEN = SPREADS | {"linalg_vector_norm", "norm", "pow", "abs", "square"}
NORMS = {
    "native_layer_norm": "layer", "native_group_norm": "group", "native_batch_norm": "batch",
    "_native_batch_norm_legit": "batch", "_native_batch_norm_legit_no_training": "batch",
    "cudnn_batch_norm": "batch", "_batch_norm_with_update": "batch",
    "_batch_norm_no_update": "batch", "miopen_batch_norm": "batch", "_fused_rms_norm": "rms",
}  # fmt: skip
