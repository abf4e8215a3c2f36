"""Every result has a chart; log axes hold positive values only; pictures have their marks."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from chart_reading import log_values, marks, rows, views

import normscope as ns
from normscope import report
from normscope.errors import InputError
from normscope.results import PredictionSet, SpectralDensity, Spectrum

THEORIES = ("corrected", "frozen", "wei2019")
GAMMAS = [0.1, 0.5, 1.0, 2.0]


def net(**options):
    return ns.mlp([20, 30, 30, 5], bias_variance=0.5, **options)


def predictions(*specs, theory=THEORIES, samples=50):
    return ns.predict(list(specs), samples=samples, theory=theory)


def picture(chart, tmp_path) -> str:
    svg = report.save(chart, tmp_path / "chart.svg").read_text()
    assert "NaN" not in svg
    assert "Infinity" not in svg
    return svg


def subtitle(chart) -> str:
    found = chart.to_dict()["title"]["subtitle"]
    return " ".join(found) if isinstance(found, list) else found


def spectrum(values, **fields):
    values = np.asarray(values, dtype=float)
    given = {"residuals": np.full(len(values), 0.01), "bounds": np.full(len(values), 0.02)}
    given |= {"converged": True, "verified": True, "matvecs": 30, "dimension": 963, "seed": 0}
    given |= {"which": "largest", "tol": 1e-3, "confidence": 0.95, "side": "primal"}
    return Spectrum(values=values, **(given | fields))


def density(nodes, *, zero_mass=0.0, exact=False, width=0.05):
    nodes = np.asarray(nodes, dtype=float)
    weights = np.full(nodes.shape, (1 - zero_mass) / nodes.shape[1])
    grid = np.linspace(nodes.min() - 1, nodes.max() + 1, 300)
    blank = np.zeros(300)
    raw = SpectralDensity(
        nodes=nodes, weights=weights, zero_mass=zero_mass, grid=grid, density=blank,
        density_error=blank, cumulative=blank, cumulative_error=blank, width=width, exact=exact,
        matvecs=99, dimension=1000, seed=0, side="primal",
    )  # fmt: skip
    return raw.smoothed(width)


RESULTS = {
    "prediction": lambda: ns.predict(net()),
    "over gamma": lambda: predictions(net(), *(net(norm="batch", gamma=g) for g in GAMMAS)),
    "side by side": lambda: predictions(net(), net(last_norm="mean"), theory=("corrected",)),
    "phases": lambda: ns.phase_diagram("tanh", np.linspace(0.5, 4, 8), [0.0, 0.1, 0.5]),
    "spectrum": lambda: spectrum([100.0, 10.0, 0.5]),
    "density": lambda: density([[-1.0, 0.1, 5.0], [-1.1, 0.2, 4.0]]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_chart_has_titles_tooltips_and_a_theme(name, tmp_path):
    chart = report.chart(RESULTS[name](), title="A title")
    spec = chart.to_dict()
    assert spec["title"]["text"] == "A title"
    assert spec["config"]["background"] == "white"
    assert any("tooltip" in view["encoding"] for view in views(spec))
    for view in views(spec):
        for channel in ("x", "y"):
            encoding = view["encoding"].get(channel, {})
            if "title" in encoding or encoding.get("type") == "quantitative":
                assert encoding.get("title") or name == "phases", encoding
    assert all(value is not None and value > 0 for value in log_values(chart))
    picture(chart, tmp_path)


def test_results_reach_their_chart():
    result = RESULTS["prediction"]()
    assert result.chart(title="x").to_dict() == report.chart(result, title="x").to_dict()


def test_unknown_results_and_options_are_named():
    with pytest.raises(InputError, match=r"Unknown kind of chart 'dict'.*PredictionSet"):
        report.chart({})
    with pytest.raises(
        InputError, match=r"Prediction has no option 'tilte'\. Did you mean 'title'"
    ):
        report.chart(RESULTS["prediction"](), tilte="x")


def test_without_altair_the_installation_is_named():
    code = (
        "import sys; sys.modules['altair'] = None\nimport normscope as ns\n"
        "try:\n    ns.predict(ns.mlp([4, 4, 2])).chart()\n"
        "except ns.NormscopeError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "needs the package 'altair'" in done.stdout
    assert "pip install 'normscope[report]'" in done.stdout


def test_over_gamma_draws_the_predictions(tmp_path):
    result = predictions(net(), *(net(norm="batch", gamma=g) for g in GAMMAS))
    chart = result.chart(momentum=0.9)
    found = {
        (row["theory"], row["gamma"]): (row["lambda_max"], row["critical_lr"])
        for row in rows(chart)
        if row["network"] == "batch norm"
    }
    expected = {
        (p.theory, p.spec.norm.gamma): (p.lambda_max, p.critical_lr(0.9))
        for p in result
        if p.spec.norm
    }
    assert found == expected
    svg = picture(chart, tmp_path)
    plain = {row["theory"] for row in rows(chart) if row["network"] == "no norm"}
    assert len(marks(svg, "line")) == 2 * (3 + len(plain))
    assert "2 (1 + 0.9) / λ_max" in svg


def test_theories_that_agree_are_one_line():
    """Without norm, corrected and frozen are one theory; the printed one is not, for a cnn."""
    conv = ns.cnn((3, 16, 16), channels=[10, 20], bias_variance=0.5)
    normed = [
        ns.cnn((3, 16, 16), channels=[10, 20], bias_variance=0.5, norm="batch", gamma=g)
        for g in (0.5, 1.0)
    ]
    both = {
        r["theory"] for r in rows(predictions(conv, *normed).chart()) if r["network"] == "no norm"
    }
    assert both == {"corrected = frozen", "wei2019"}
    dense = ns.mlp([20, 30, 3], norm="batch")
    four = predictions(dense, theory=(*THEORIES, "wei2019-as-plotted")).chart()
    assert {r["theory"] for r in rows(four)} >= {"wei2019 = wei2019-as-plotted"}
    two = predictions(conv, *normed, theory=("corrected", "frozen")).chart()
    assert {r["theory"] for r in rows(two) if r["network"] == "no norm"} == {"all, within 1 %"}
    assert {r["theory"] for r in rows(two) if r["network"] == "batch norm"} == {
        "corrected",
        "frozen",
    }


def test_zero_is_left_out_of_the_log_axis_and_said(tmp_path):
    result = predictions(
        *(net(norm="batch", gamma=g) for g in (0.0, 0.5, 1.0)), theory=("corrected",)
    )
    chart = result.chart()
    assert "1 of 3 values are zero" in subtitle(chart)
    assert min(log_values(chart)) > 0
    assert len(marks(picture(chart, tmp_path), "line")) == 2


def test_bounds_are_shaded_where_there_is_no_value(tmp_path):
    nets = [net(norm="batch", gamma=g, last_norm="batch") for g in GAMMAS]
    result = predictions(*nets, theory=("corrected",))
    chart = result.chart(momentum=0.5)
    for row in rows(chart):
        at = GAMMAS.index(row["gamma"])
        assert row["lr_lower"] == pytest.approx(2 * 1.5 / result[at].upper)
        assert row["lr_upper"] == pytest.approx(2 * 1.5 / result[at].lower)
    assert "4 of 4 have bounds only" in subtitle(chart)
    assert len(marks(picture(chart, tmp_path), "area")) == 2


def test_side_by_side_has_a_dot_and_a_range_each(tmp_path):
    nets = [net(), net(last_norm="mean"), net(last_norm="batch"), net(norm="batch", gamma=1.0)]
    result = predictions(*nets, theory=("corrected",))
    chart = result.chart()
    svg = picture(chart, tmp_path)
    assert len(marks(svg, "symbol")) == 2 * 3
    assert len(marks(svg, "rule")) == 2 * 4
    assert "no norm, mean subtraction on outputs" in svg
    assert "batch norm, γ = 1" in svg


def test_an_empty_set_is_an_error():
    with pytest.raises(InputError, match="nothing to draw"):
        PredictionSet(()).chart()


def test_layers_add_up(tmp_path):
    result = ns.predict(net(norm="batch", gamma=0.5), samples=50)
    chart = result.chart()
    found = rows(chart)
    assert [row["value"] for row in found] == list(result.per_layer)
    assert sum(row["share"] for row in found) == pytest.approx(1)
    assert found[0]["sizes"] == "20 → 30"
    assert len(marks(picture(chart, tmp_path), "rect")) == 3


def test_layers_of_a_blocked_network_have_no_share():
    chart = ns.predict(net(norm="batch", gamma=0.0, last_norm="layer"), samples=50).chart()
    assert "before the layer norm on the outputs" in str(chart.to_dict())
    still = dataclasses.replace(ns.predict(net()), per_layer=np.zeros(3))
    assert {row["share"] for row in rows(still.chart())} == {None}


def test_phases_are_cells_with_the_edge(tmp_path):
    weight, bias = np.linspace(0.5, 4, 15), np.linspace(0, 1, 12)
    diagram = ns.phase_diagram("tanh", weight, bias)
    chart = diagram.chart()
    cells = [row for row in rows(chart) if "phase" in row]
    assert len(cells) == 180
    assert len(marks(picture(chart, tmp_path), "rect")) == 180
    # cells tile the grid: from the first point to the last, without gaps
    assert min(c["x"] for c in cells) == 0.5
    assert max(c["x2"] for c in cells) == 4.0
    pieces = [row for row in rows(chart) if "w2" in row]
    exact = {b: _critical("tanh", b) for b in bias}
    step, met = weight[1] - weight[0], set()
    for w, b in [(p["w"], p["b"]) for p in pieces] + [(p["w2"], p["b2"]) for p in pieces]:
        if b in exact:
            assert abs(w - exact[b]) < step
            met.add(b)
    assert met == set(bias)


def _critical(activation, bias):
    from normscope.theory.meanfield.fixed_points import critical_weight_variance

    return critical_weight_variance(activation, float(bias))


def test_phases_with_blank_cells_one_row_and_any_order(tmp_path):
    diagram = ns.phase_diagram("relu", [3.0, 0.0, 1.0], [0.1])
    chart = diagram.chart()
    assert "1 of 3 cells are blank" in subtitle(chart)
    assert [row["w"] for row in rows(chart) if "phase" not in row] == [
        pytest.approx(1 + 2 * np.log(2) / np.log(3))  # chi_1 = w / 2, straight in its log
    ]
    assert len(marks(picture(chart, tmp_path), "symbol")) == 1


def test_phases_without_edge_and_of_one_point(tmp_path):
    picture(ns.phase_diagram("tanh", [0.5, 0.6], [0.1, 0.2]).chart(), tmp_path)
    picture(ns.phase_diagram("tanh", [0.5], [0.1]).chart(), tmp_path)


@pytest.mark.parametrize("quantity", ["correlation_depth", "length_depth", "length"])
def test_phase_quantities(quantity):
    diagram = ns.phase_diagram("tanh", [0.5, 1.5, 3.0], [0.0, 0.2])
    shown = {
        (r["w"], r["b"]): r["value"] for r in rows(diagram.chart(quantity=quantity)) if "phase" in r
    }
    values = getattr(diagram, quantity)
    for (w, b), value in shown.items():
        i, j = list(diagram.bias_variances).index(b), list(diagram.weight_variances).index(w)
        assert value == pytest.approx(np.log10(values[i, j]), rel=1e-3)
    assert len(shown) == (np.isfinite(values) & (values > 0)).sum()


def test_phase_quantity_must_exist():
    with pytest.raises(InputError, match="Unknown quantity 'xi'"):
        ns.phase_diagram("tanh", [1.0, 2.0], [0.1]).chart(quantity="xi")


def test_spectrum_scales_and_errors(tmp_path):
    wide = report.chart(spectrum([100.0, 1.0, 0.005]))
    assert min(log_values(wide)) > 0  # 0.005 - 0.01 is below zero
    assert len(marks(picture(wide, tmp_path), "symbol")) == 3
    for values in ([3.0, 2.0, 1.5], [5.0, -4.0, 3.0], [1.0, 0.0]):
        narrow = report.chart(spectrum(values))
        assert log_values(narrow) == []
        lows = [row["low"] for row in rows(narrow)]
        assert lows == pytest.approx([v - 0.01 for v in values])
        picture(narrow, tmp_path)


def test_a_spectrum_that_did_not_converge_says_so():
    chart = report.chart(spectrum([2.0, 1.0], converged=False, reason="Out of products."))
    assert "NOT converged" in subtitle(chart)
    assert "Out of products." in subtitle(chart)
    assert any(view["mark"].get("filled") is False for view in views(chart.to_dict()))


def test_density_band_gap_and_atom(tmp_path):
    result = density([[0.0, 0.1, 50.0], [0.0, 0.2, 50.0]], zero_mass=0.25)
    chart = report.chart(result)
    found = rows(chart)
    peak = result.density.max()
    assert min(row["density"] for row in found) >= peak * 1e-8
    assert all(row["low"] <= row["density"] <= row["high"] for row in found)
    assert len({row["piece"] for row in found}) == 2  # the gap before the outlier is not bridged
    assert "25.0% of the eigenvalues are exactly 0" in subtitle(chart)
    svg = picture(chart, tmp_path)
    assert len(marks(svg, "line")) == 2
    assert len(marks(svg, "area")) == 2
    assert len(rows(report.chart(result, decades=2))) < len(found)


def test_the_density_of_a_positive_semi_definite_matrix_begins_at_zero():
    positive = density([[0.0, 0.1, 50.0], [0.0, 0.2, 50.0]])
    assert positive.grid.min() < 0  # by smoothing
    chart = report.chart(positive)
    assert min(row["t"] for row in rows(chart)) >= 0
    assert next(views(chart.to_dict()))["encoding"]["x"]["scale"]["domainMin"] == 0
    assert "resolution: 3 Lanczos steps" in subtitle(chart)
    signed = report.chart(density([[-3.0, 0.1, 50.0], [-3.0, 0.2, 50.0]]))
    assert min(row["t"] for row in rows(signed)) < 0


def test_density_ticks_lie_on_the_axis():
    spec = report.chart(density([[-3.0, 0.1, 500.0]], exact=True)).to_dict()
    ticks = next(views(spec))["encoding"]["x"]["axis"]["values"]
    assert 0 in ticks
    assert 100 in ticks
    assert ticks == sorted(ticks)
    assert min(ticks) >= -4
    assert max(ticks) <= 501


def test_density_bad_input():
    with pytest.raises(InputError, match="decades"):
        report.chart(density([[1.0, 2.0]]), decades=0)
    far = density([[1.0, 2.0]]).smoothed(0.01, grid=np.linspace(50, 60, 10))
    with pytest.raises(InputError, match="nothing to draw"):
        report.chart(far)
