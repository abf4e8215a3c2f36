"""Graph theory acts on kernels, not numbers: where each part is checked."""

from roster import NOT_FORMULAS

CHANNELS = "acts on kernels: test_graph_channels compares it with sampled channels"
PASS = "part of the pass: test_graph_forward"

NOT_FORMULAS |= dict.fromkeys(
    [
        "averages.direction_slope",
        "averages.frozen_slope",
        "averages.piecewise_moments",
        "averages.piecewise_value",
        "averages.projected",
        "averages.slope_overlaps",
        "averages.smooth_moments",
        "averages.theta_of",
        "layers.activate",
        "norms.batch_norm",
        "pairs.sphere_pair_means",
        "sphere.sphere_of",
        "streams.added",
    ],
    CHANNELS,
)
NOT_FORMULAS |= dict.fromkeys(
    [
        "algebra.algebra",
        "algebra.input_kernel",
        "algebra.white_kernel",
        "forward.propagate",
        "layers.linear",
        "nodes.window_of",
        "norms.layer_norm",
        "pairs.channel_mean",
        "pairs.correlation",
        "pairs.pair_means",
        "pairs.piecewise",
        "pairs.pulled_means",
        "particles.hermite_rows",
        "particles.normal_ranks",
        "pooling.flattened",
        "pooling.pooled",
        "pooling.refused",
        "registry.merged",
        "registry.register_node",
        "registry.rule",
        "registry.rule_of",
        "specs.graph_of",
        "streams.concatenated",
        "streams.data",
        "streams.identity",
        "streams.scaled",
        "streams.shortcut",
    ],
    PASS,
)
NOT_FORMULAS |= dict.fromkeys(
    [
        "answer.affordable_level",
        "answer.checked_data",
        "answer.planned_cost",
        "answer.predict_graph",
        "answer.predict_spec",
        "assemble.kappas_of",
        "changes.batch_in_place",
        "changes.deeper",
        "changes.layer_in_place",
        "changes.scaled_gain",
        "changes.with_norms",
        "changes.without",
        "cost.check_cost",
        "cost.cost_of",
        "cost.fits",
    ],
    "puts the answer together: test_graph_answer",
)
