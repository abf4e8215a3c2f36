"""Batch norm's regularization: two oracles for each part, on networks small enough for them."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian

from normscope.measure.regularization import bn_regularization, decay_strengths
from normscope.nn import BatchNorm
from normscope.theory import regularization as theory

SIZE = 40  # samples of the population


def dense_net(seed=0, classes=3):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Softplus(), nn.Linear(4, 6), nn.BatchNorm1d(6),
        nn.Softplus(), nn.Linear(6, classes),
    )  # fmt: skip
    return randomized(net)


def conv_net(seed=0, norm=nn.BatchNorm2d):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 2), norm(3), nn.Softplus(), nn.Conv2d(3, 2, 2), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    return randomized(net)


def randomized(net):
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | BatchNorm):
            for parameter in (module.weight, module.bias):
                if parameter is not None:
                    nn.init.normal_(parameter, 1.0, 0.4)
    return net


def data(shape=(5,), size=SIZE, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.empty(size, *shape).exponential_(generator=generator) - 1  # skewed
    return x, torch.randint(0, classes, (size,), generator=generator)


def with_population_statistics(net, x):
    """A copy in evaluation mode with the running statistics of ``x``, by torch's own pass."""
    import copy

    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | BatchNorm):
            module.momentum = 1.0
    net.train()(x)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | BatchNorm):
            count = len(x) * (9 if isinstance(module, nn.BatchNorm2d) else 1)
            centred = getattr(module, "centred", True)
            if isinstance(module, BatchNorm):
                count = len(x) * 9
            if centred:
                module.running_var.mul_((count - 1) / count)
    return net.eval()


def losses(net, x, y):
    return nn.functional.cross_entropy(net(x), y, reduction="none")


def naive_gaps(net, index, x, y, size, count, seed=3):
    """Loss with layer ``index`` in train mode minus loss in evaluation mode, batch by batch."""
    net = with_population_statistics(net, x)
    generator = torch.Generator().manual_seed(seed)
    found = []
    with torch.no_grad():
        base = losses(net, x, y)
        for layer in index if isinstance(index, tuple) else (index,):
            net[layer].train()
        for _ in range(count):
            rows = torch.randint(0, len(x), (size,), generator=generator)
            if len(rows.unique()) > 1:
                found.append(float((losses(net, x[rows], y[rows]) - base[rows]).mean()))
    return np.array(found)


def layer_derivatives(net, index, x, y):
    """n, slopes and Hessians of each sample's loss in the output of layer ``index``, flat."""
    net = with_population_statistics(net, x)
    below, norm, above = net[:index], net[index], net[index + 1 :]
    with torch.no_grad():
        h = below(x)
        out = norm(h)
    shape = (1, -1, *[1] * (h.ndim - 2))
    n = (h - norm.running_mean.view(shape)) / (norm.running_var + norm.eps).sqrt().view(shape)
    slopes, seconds = [], []
    for a in range(len(x)):

        def loss(values, a=a):
            return losses(above, values.reshape(1, *out.shape[1:]), y[a : a + 1])[0]

        slopes.append(jacobian(loss, out[a].flatten()))
        seconds.append(hessian(loss, out[a].flatten()))
    return n.numpy(), torch.stack(slopes).numpy(), torch.stack(seconds).numpy()


@pytest.mark.parametrize("index", [1, 4])
def test_the_formula_of_a_dense_layer_against_dense_derivatives(index):
    net, (x, y) = dense_net(), data()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 1e-12  # so that n has variance 1, as the formulas say
    n, slope, second = layer_derivatives(net, index, x, y)
    gamma = net[index].weight.detach().numpy()
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=[8, 32], layers=str(index), num_batches=4
    ).layers[0]
    for i, m in enumerate((8, 32)):
        first = theory.deep_first_order(n, slope, gamma, m)
        assert found.first_order[i] == pytest.approx(first, rel=1e-9)
        assert found.second_order[i] == pytest.approx(
            theory.deep_second_order(n, second, gamma, m), rel=1e-9
        )
    assert found.excess_kurtosis == pytest.approx(np.mean(n**4, 0) - 3, rel=1e-8)
    assert found.skewness == pytest.approx(np.mean(n**3, 0), rel=1e-8)
    strengths = decay_strengths(net, (x, y), "cross_entropy", batch_size=16)
    diagonal = np.diagonal(second, axis1=1, axis2=2)
    expected = np.maximum(theory.deep_decay(n, diagonal, 16), 0)
    assert strengths[str(index)] == pytest.approx(expected, rel=1e-9)


def test_the_formula_of_a_convolution_against_dense_derivatives():
    # every position's slope and Hessian, every pair of samples: no kappa, no mu
    net, (x, y) = conv_net(), data((2, 4, 4), size=12)
    n, slope, second = layer_derivatives(net, 1, x, y)
    channels, positions = n.shape[1], n[0, 0].size
    n = n.reshape(12, channels, positions)
    gamma = np.repeat(net[1].weight.detach().numpy(), positions)
    m, q = n.mean(2), (n**2).mean(2)
    q = q - q.mean(0)
    spread = (m**2).mean(0) / 2 + 3 / 8 * (q**2).mean(0)
    first = second_order = 0.0
    for a in range(12):
        own = -n[a] * q[a][:, None] / 2 - m[a][:, None] + n[a] * spread[:, None]
        shift = own + (m * q).mean(0)[:, None] / 2
        first += (slope[a] * gamma) @ shift.ravel() / 12
        for b in range(12):
            v = gamma * (n[a] * q[b][:, None] / 2 + m[b][:, None]).ravel()
            second_order += v @ second[a] @ v / 12**2 / 2
    for curvature in ("exact", "probes"):
        found = bn_regularization(
            net, (x, y), "cross_entropy", batch_size=4, num_batches=2, curvature=curvature,
            probes=200,
        ).layers[0]  # fmt: skip
        assert found.positions == positions
        assert found.first_order[0] == pytest.approx(first / 4, rel=1e-8)
        error = found.second_order_error[0]
        assert (error == 0) == (curvature == "exact")
        assert abs(found.second_order[0] - second_order / 4) < 5 * error + 1e-8 * second_order


CASES = {
    "dense, first": (dense_net, (5,), 1, "1"),
    "dense, second": (dense_net, (5,), 4, "4"),
    "dense, both": (dense_net, (5,), (1, 4), ["1", "4"]),
    "convolution": (conv_net, (2, 4, 4), 1, "1"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_measured_gap_is_that_of_torch_in_train_mode(case):
    make, shape, index, names = CASES[case]
    net, (x, y) = make(), data(shape)
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=8, layers=names, num_batches=1000
    )
    naive = naive_gaps(net, index, x, y, 8, 2000)
    value, error = found.together[0], found.together_error[0]
    spread = np.hypot(error, naive.std(ddof=1) / np.sqrt(len(naive)))
    assert abs(value - naive.mean()) < 5 * spread
    assert error < naive.std(ddof=1) / np.sqrt(1000)  # the expansion takes noise away


PARTS = {
    "all": {},
    "mean": {"parts": ["mean", "scale", "shift"]},
    "variance": {"parts": ["variance", "scale", "shift"]},
    "rms": {"parts": ["variance", "scale"], "deviation": "rms"},
    "no scale": {"parts": ["mean", "variance"], "gamma": 0.7},
}


@pytest.mark.parametrize("name", PARTS)
def test_our_own_norm_and_its_parts(name):
    """Gap of the layer itself in train mode against the formula: M to infinity in two steps."""
    net = conv_net(norm=lambda c: BatchNorm(c, **PARTS[name]))
    x, y = data((2, 4, 4), size=30)
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=[15, 30], num_batches=1500, curvature="exact"
    ).layers[0]
    # M gap(M) = a + b/M: extrapolated to a
    leading = 2 * 30 * found.measured[1] - 15 * found.measured[0]
    error = np.hypot(2 * 30 * found.measured_error[1], 15 * found.measured_error[0])
    assert abs(leading - 30 * found.formula[1]) < 5 * error + 0.02 * abs(leading)
    naive = naive_gaps(net, 1, x, y, 15, 1500)
    spread = np.hypot(found.measured_error[0], naive.std(ddof=1) / np.sqrt(len(naive)))
    assert abs(found.measured[0] - naive.mean()) < 5 * spread
    assert (found.zeta_mean == 0).all() == ("mean" not in PARTS[name].get("parts", ["mean"]))
    deviates = "variance" in PARTS[name].get("parts", ["variance"])
    assert (found.zeta_deviation != 0).any() == deviates


def test_curvature_by_probes_against_the_exact_one():
    # Gauss-Newton is the Hessian where labels' slopes vanish: mse at its own outputs
    net, (x, _) = dense_net(), data(size=200)
    targets = with_population_statistics(net, x)(x).detach()
    exact = decay_strengths(net, (x, targets), "mse", batch_size=16, curvature="exact")
    values = []
    for seed in range(20):
        drawn = decay_strengths(
            net, (x, targets), "mse", batch_size=16, curvature="probes", probes=10, seed=seed
        )
        values.append(np.concatenate(list(drawn.values())))
    mean, error = np.mean(values, 0), np.std(values, 0, ddof=1) / np.sqrt(20)
    assert (np.abs(mean - np.concatenate(list(exact.values()))) < 5 * error).all()


def test_label_draws_give_the_gauss_newton_diagonal_of_cross_entropy():
    net, (x, y) = dense_net(), data(size=30)
    population = with_population_statistics(net, x)
    n, _, _ = layer_derivatives(net, 4, x, y)
    with torch.no_grad():
        out = population[:5](x)
    expected = np.zeros((2, 6))
    for a in range(30):
        jac = jacobian(lambda h: population[5:](h[None])[0], out[a])
        p = population[5:](out[a][None])[0].softmax(0).detach()
        diagonal = torch.diagonal(jac.T @ (torch.diag(p) - torch.outer(p, p)) @ jac).numpy()
        expected += np.stack([n[a] ** 2 * diagonal, diagonal]) / 30
    variances = np.stack([(n**2).var(0) / 4, n.var(0)]) / 16
    wanted = 0.5 * (expected * variances).sum(0)
    values = [
        decay_strengths(
            net, (x, y), "cross_entropy", batch_size=16, curvature="probes", probes=50, seed=s
        )["4"]
        for s in range(20)
    ]
    error = np.std(values, 0, ddof=1) / np.sqrt(20)
    assert (np.abs(np.mean(values, 0) - wanted) < 5 * error).all()


def test_a_loss_without_distribution_is_probed_by_the_hessian():
    net, (x, y) = dense_net(), data(size=60)

    def smoothed(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    exact = bn_regularization(net, (x, y), smoothed, batch_size=8, num_batches=2).layers[0]
    values = [
        bn_regularization(
            net, (x, y), smoothed, batch_size=8, num_batches=2, curvature="probes", probes=20,
            seed=s, layers="1",
        ).layers[0]
        for s in range(12)
    ]  # fmt: skip
    assert values[0].curvature == "Hessian, 20 probes"
    # curvature alone: the variances are drawn anew with every seed
    found = [v.zeta_mean[0] / v.mean_variance[0] for v in values]
    error = np.std(found, 0, ddof=1) / np.sqrt(12)
    wanted = exact.zeta_mean[0] / exact.mean_variance[0]
    assert (np.abs(np.mean(found, 0) - wanted) < 5 * error).all()


def test_variances_of_the_statistics_over_batches():
    net, (x, y) = conv_net(), data((2, 4, 4), size=50)
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=[5, 25], num_batches=2
    ).layers[0]
    with torch.no_grad():
        h = net[0](x).double()
    rng = np.random.default_rng(0)
    for i, size in enumerate((5, 25)):
        drawn = h[torch.from_numpy(rng.integers(50, size=(4000, size)))]
        scale = h.var((0, 2, 3), unbiased=False)
        means = (drawn.mean((1, 3, 4)).var(0) / scale).numpy()
        deviations = (drawn.std((1, 3, 4), unbiased=False).var(0) / scale).numpy()
        for ours, theirs in (
            (found.mean_variance[i], means),
            (found.deviation_variance[i], deviations),
        ):
            relative = np.sqrt(2 / 1000 + 2 / 4000)  # of two variances
            assert np.abs(ours / theirs - 1).max() < 5 * relative
    # positions of one image share much of their variance: neither M nor M K
    assert 25 < found.effective_batch_size[1] < 25 * 9


def test_symmetric_differences_tend_to_the_hessian():
    net, (x, y) = dense_net(), data(size=2000)
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=[20, 2000], num_batches=2, probes=30,
        max_samples=None,
    )  # fmt: skip
    for layer in found.layers:
        off = layer.wide_second_order - layer.second_order
        assert abs(off[1]) < 5 * layer.wide_second_order_error[1]


def test_the_kinks_of_relu_are_seen():
    # one ReLU with h spread evenly over its kink: E gap = slope x density x variance / 2
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(1), nn.ReLU(), nn.Flatten(0))
    x = torch.linspace(-1, 1, 6_001)[:, None]
    found = bn_regularization(
        net, (x, torch.zeros(6_001)), lambda out, _: out.mean(), batch_size=400, num_batches=2,
        max_samples=None, chunk_size=2048,
    ).layers[0]  # fmt: skip
    assert found.second_order[0] == 0
    # mu_B has variance 1/M; at the kink n = 0, so that sigma_B does nothing there
    density = 1 / (2 * np.sqrt(3))
    expected = 0.5 * density / 400
    assert found.wide_second_order[0] == pytest.approx(
        expected, abs=5 * found.wide_second_order_error[0] + 1e-2 * expected
    )


def test_without_replacement_the_whole_is_no_noise():
    net, (x, y) = dense_net(), data()
    found = bn_regularization(
        net, (x, y), "cross_entropy", batch_size=[20, SIZE], num_batches=400, sampling="epoch"
    )
    for layer in found.layers:
        for gap in (layer.measured, layer.predicted, layer.formula, layer.paper):
            assert abs(gap[1]) < 1e-12
        assert (layer.mean_variance[1] < 1e-20).all()
        with_replacement = (SIZE - 20) / (SIZE - 1) / 20
        assert layer.mean_variance[0] == pytest.approx(with_replacement, rel=5 * np.sqrt(2 / 1000))
        # half the data at a time: the order 1/M^2 is a tenth of the gap
        assert layer.ratio[0] == pytest.approx(1, abs=5 * layer.ratio_error[0] + 0.15)


def test_chunks_change_nothing():
    net, (x, y) = conv_net(), data((2, 4, 4))
    runs = [
        bn_regularization(
            net, (x, y), "cross_entropy", batch_size=8, num_batches=5, chunk_size=chunk,
            curvature="exact",
        )
        for chunk in (7, 64)
    ]  # fmt: skip
    for name in ("first_order", "second_order", "measured", "zeta_mean", "excess_kurtosis"):
        a, b = (getattr(run.layers[0], name) for run in runs)
        assert a == pytest.approx(b, rel=1e-9), name


def test_population_statistics_in_chunks(monkeypatch):
    from normscope.measure.regularization import _view

    net, (x, y) = dense_net(), data()

    def gap():
        return bn_regularization(
            net, (x, y), "cross_entropy", batch_size=8, num_batches=5, chunk_size=7
        )

    at_once = gap()
    monkeypatch.setattr(_view, "budget_bytes", lambda *a: 0)
    assert gap().layers[1].measured == pytest.approx(at_once.layers[1].measured, rel=1e-9)


def test_one_over_m_at_every_layer():
    """T2: slopes -1 and, without positions, the constants 1 and (rho+2)/4."""
    net, (x, y) = dense_net(), data(size=800)
    sizes = [8, 32, 128, 512]
    found = bn_regularization(net, (x, y), "cross_entropy", batch_size=sizes, num_batches=2)
    logs = np.log(sizes)
    for layer in found.layers:
        for table in (layer.mean_variance, layer.deviation_variance):
            slope = np.polyfit(logs, np.log(table.mean(1)), 1)[0]
            assert slope == pytest.approx(-1, abs=0.1)
        relative = 5 * np.sqrt(2 / 1000)
        assert layer.mean_variance[3] * 512 == pytest.approx(1, rel=relative)
        constant = layer.deviation_variance[3] * 512 / ((layer.excess_kurtosis + 2) / 4)
        # a tail of the law makes a variance of variances wider than a Gaussian's
        assert constant.mean() == pytest.approx(1, rel=relative)


def test_conventions_are_told():
    sizes = {"batch_size": [8, 4], "num_batches": 20}
    found = bn_regularization(dense_net(), data(), "cross_entropy", **sizes, seed=3)
    told = found.convention
    assert (told["loss"], told["sampling"], told["seed"]) == (found.loss, found.sampling, 3)
    assert told["statistics"].startswith("batch against population: evaluation mode")
    assert (told["samples"], told["batch_sizes"]) == (f"{SIZE} as the population", (4, 8))
    assert told["batches"] == "20 behind each measured gap"
    assert told["precision"] in ("float32", "float64")
    assert type(found).from_json(found.to_json()) == found


class TestVariancesOfBatchStatistics:
    def test_hardly_depend_on_the_seed(self):
        net, (x, y) = dense_net(), data()
        found = [
            bn_regularization(net, (x, y), "cross_entropy", batch_size=16, num_batches=2,
                              max_samples=None, seed=seed).layers[0]
            for seed in range(5)
        ]  # fmt: skip
        means = np.array([layer.mean_variance[0] for layer in found])
        assert np.allclose(means, means[0], rtol=1e-9)
        zeta = np.array([layer.zeta.mean() for layer in found])
        assert zeta.std(ddof=1) < 0.02 * abs(zeta.mean())

    @pytest.mark.parametrize("sampling", ["independent", "epoch"])
    def test_are_those_of_all_batches(self, sampling):
        net, (x, y) = dense_net(), data(size=8)
        layer = bn_regularization(
            net, (x, y), "cross_entropy", batch_size=3, num_batches=2, sampling=sampling
        ).layers[0]
        with torch.no_grad():
            z = net[0](x)
        mean, var = z.mean(0), z.var(0, correction=0)
        choose = itertools.product if sampling == "independent" else None
        rows = list(choose(range(8), repeat=3) if choose else itertools.combinations(range(8), 3))
        batches = z[torch.tensor(rows)]
        scale = (var + 1e-5).sqrt()
        means = (batches.mean(1) - mean) / scale
        deviations = (batches.var(1, correction=0) + 1e-5).sqrt() / scale
        exact = means.var(0, correction=0).numpy(), deviations.var(0, correction=0).numpy()
        assert np.allclose(layer.mean_variance[0], exact[0], rtol=1e-6)
        assert np.allclose(layer.deviation_variance[0], exact[1], rtol=0.15)
