"""Gram spectra and outliers against dense autodiff on small networks."""

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError, MeasurementError
from normscope.measure import gram
from normscope.measure.gram import gram_matrix, gram_spectrum
from normscope.measure.outliers import (
    leading_directions,
    mean_gradients,
    residual_term,
    spectral_bounds,
)


class Twice(nn.Module):
    """One layer used twice: its per-sample gradients are sums over uses."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """A weight that is used by a layer and by a function of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return torch.tanh(self.inner(x)) @ self.inner.weight


class Scaled(Tied):
    """A weight that is used by a layer, and entry by entry."""

    def forward(self, x):
        return self.inner(x) * self.inner.weight.diagonal()


class Products(nn.Module):
    """Linear layers in other words: weights stored as (in, out), functions, no modules."""

    def __init__(self):
        super().__init__()
        shapes = {"first": (6, 5), "second": (4, 5), "third": (4, 3), "bias": (5,)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x):
        h = torch.tanh(torch.addmm(self.bias, x.flatten(0, 1), self.first))
        h = torch.tanh(torch.einsum("nf,of->no", h, self.second)) @ self.third
        return h.reshape(len(x), -1, 3).mean(1)


def shared_weight():
    """Two layers with one weight and a bias each: weight and bias cannot be taken together."""
    net = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    net[2].weight = net[0].weight
    return net


def conv_net():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.LayerNorm(12),
        nn.Linear(12, 3),
    )


def bn_net():
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(True), nn.Linear(7, 3))


def zero_gamma():
    net = bn_net()
    nn.init.zeros_(net[1].weight)
    return net


LAYERWISE, EXACT = "layer by layer", "exact products"
CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)), (5, 6), "batch",
            LAYERWISE),
    "wide first layer": (lambda: nn.Sequential(nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 2)),
                         (6, 60), "batch", LAYERWISE),
    "bn coupled": (bn_net, (5, 6), "batch", EXACT),
    "bn frozen": (bn_net, (5, 6), "frozen", LAYERWISE),
    "bn running": (bn_net, (5, 6), "running", LAYERWISE),
    "gamma zero": (zero_gamma, (5, 6), "frozen", LAYERWISE),
    "conv": (conv_net, (4, 2, 8, 8), "batch", LAYERWISE),
    "conv, few positions": (lambda: nn.Sequential(nn.Conv2d(20, 6, 3, stride=2), nn.Tanh(),
                                                  nn.Flatten(), nn.Linear(24, 2)),
                            (3, 20, 5, 5), "batch", LAYERWISE),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(),
                                     nn.Linear(21, 2)), (4, 2, 7), "batch", LAYERWISE),
    "grouped conv": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), nn.Flatten(),
                                           nn.Linear(36, 2)), (3, 4, 5, 5), "batch", LAYERWISE),
    "used twice": (Twice, (4, 5), "batch", LAYERWISE),
    "shared weight": (shared_weight, (4, 5), "batch", LAYERWISE),
    "tied to a function": (Tied, (4, 4), "batch", LAYERWISE),
    "tied to its entries": (Scaled, (4, 4), "batch", EXACT),
    "products": (Products, (4, 3, 6), "batch", LAYERWISE),
    "reflected": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
                                        nn.Tanh(), nn.Conv2d(3, 2, 3, padding="same"),
                                        nn.Flatten(), nn.Linear(32, 2)),
                  (3, 2, 4, 4), "batch", LAYERWISE),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
                  (3, 4, 8), "batch", LAYERWISE),
}  # fmt: skip


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("name", CASES)
def test_spectrum_equals_dense_fisher(name, loss):
    make, shape, statistics, route = CASES[name]
    if name == "attention" and loss == "cross_entropy":
        loss = nn.BCEWithLogitsLoss()
    torch.manual_seed(1)
    risk = ns.Risk(make(), torch.randn(shape), loss=loss, statistics=statistics)
    found = gram_spectrum(risk)
    dense = torch.linalg.eigvalsh(ns.fisher(risk).to_dense()).flip(0).numpy()
    rank = len(found.values)
    assert found.route.endswith(route)
    np.testing.assert_allclose(found.values, dense[:rank], atol=1e-11 * dense[0])
    assert np.all(np.abs(dense[rank:]) <= 1e-11 * dense[0])
    assert found.trace == pytest.approx(dense.sum(), rel=1e-10)
    lower, upper = found.bounds
    assert lower <= found.largest * (1 + 1e-12)
    assert found.largest <= upper * (1 + 1e-12)


def test_several_batches_and_layer_restriction():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    risk = ns.Risk.from_batches(
        model, [(torch.randn(n, 4), None) for n in (3, 5)], loss="mse", statistics="batch"
    )
    for layers in (None, "2", ["0.weight"]):
        dense = torch.linalg.eigvalsh(ns.fisher(risk, layers=layers).to_dense()).flip(0).numpy()
        found = gram_spectrum(risk, layers=layers).values
        np.testing.assert_allclose(found, dense[: len(found)], atol=1e-12 * dense[0])


class Normed(nn.Module):
    def __init__(self, model, norm):
        super().__init__()
        self.model, self.norm = model, norm

    def forward(self, x):
        return self.norm(self.model(x))


OUTPUT_NORMS = {
    "mean": lambda f: f - f.mean(0),
    "variance": lambda f: f / f.var(0, unbiased=False).sqrt(),
    "batch": lambda f: (f - f.mean(0)) / f.var(0, unbiased=False).sqrt(),
    "layer": lambda f: nn.functional.layer_norm(f, f.shape[1:], eps=0.0),
}


@pytest.mark.parametrize("name", OUTPUT_NORMS)
def test_norm_on_outputs_equals_network_with_that_norm(name):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    x = torch.randn(6, 4)
    risk = ns.Risk(model, x, loss="mse", statistics="batch")
    normed = ns.Risk(Normed(model, OUTPUT_NORMS[name]), x, loss="mse", statistics="batch")
    dense = torch.linalg.eigvalsh(ns.fisher(normed).to_dense()).flip(0).numpy()
    found = gram_spectrum(risk, last_norm=name).values
    np.testing.assert_allclose(found, dense[: len(found)], atol=1e-11 * dense[0])


@pytest.mark.parametrize("batches", [(7,), (3, 5)])
def test_several_norms_share_one_gram_matrix(batches, monkeypatch):
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    data = [(torch.randn(n, 4), None) for n in batches]
    risk = ns.Risk.from_batches(model, data, loss="mse", statistics="batch")
    names = (None, "mean", "variance", "batch", "layer")
    alone = [gram_spectrum(risk, last_norm=name) for name in names]
    made = []
    make = gram._scaled_gram
    monkeypatch.setattr(gram, "_scaled_gram", lambda *a: made.append(1) or make(*a))
    together = gram_spectrum(risk, last_norm=names)
    assert len(made) == 1
    assert isinstance(together, tuple)
    assert [found.last_norm for found in together] == list(names)
    assert list(together) == alone
    assert gram_spectrum(risk, last_norm=["mean"]) == (alone[1],)


def test_variance_norm_keeps_the_mean_direction():
    """d(f / sigma) along a common shift is 1 / sigma: the outlier is only rescaled."""
    torch.manual_seed(9)
    model = nn.Linear(3, 1).double()
    x = torch.randn(6, 3).double()
    plain, varied = (
        gram_matrix(ns.Risk(model, x, loss="mse", statistics="batch"), last_norm=name)
        for name in (None, "variance")
    )
    f = model(x).detach()[:, 0]
    sigma2 = f.var(unbiased=False)
    u = f - f.mean()
    slope = (torch.eye(6).double() - torch.outer(f, u) / (6 * sigma2)) / sigma2.sqrt()
    torch.testing.assert_close(slope @ torch.ones(6).double(), torch.ones(6) / sigma2.sqrt())
    torch.testing.assert_close(varied, slope @ plain @ slope.T)


def test_gram_matrix_rows_are_samples_then_outputs():
    torch.manual_seed(4)
    risk = ns.Risk(nn.Linear(3, 2), torch.randn(4, 3), loss="mse", statistics="batch")
    rows = ns.jacobian(risk).to_dense()
    torch.testing.assert_close(gram_matrix(risk), rows @ rows.T / 4)


def test_mean_gradients_are_gradients_of_the_mean():
    torch.manual_seed(5)
    model = bn_net()
    x = torch.randn(8, 6)
    risk = ns.Risk(model, x, loss="mse", statistics="batch")
    found = mean_gradients(risk)
    for k in range(3):
        grads = torch.autograd.grad(model(x)[:, k].mean(), list(model.parameters()))
        torch.testing.assert_close(found[k], torch.cat([g.flatten() for g in grads]))


def test_leading_directions_shares_against_dense_eigenvectors():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 2))
    risk = ns.Risk(model, torch.randn(30, 10), loss="mse", statistics="batch")
    found = leading_directions(risk, tol=1e-10)
    values, vectors = torch.linalg.eigh(ns.fisher(risk).to_dense())
    basis = torch.linalg.qr(mean_gradients(risk).T)[0]
    shares = (vectors.flip(1)[:, :2].T @ basis).square().sum(1)
    np.testing.assert_allclose(found.values, values.flip(0)[:2].numpy(), rtol=1e-9)
    np.testing.assert_allclose(found.shares, shares.numpy(), atol=1e-6)
    assert found.outliers.max() <= found.rayleigh.max() * (1 + 1e-9)
    inside = torch.linalg.eigvalsh(basis.T @ ns.fisher(risk).to_dense() @ basis)[-1]
    np.testing.assert_allclose(found.span, float(inside), rtol=1e-9)
    assert found.rayleigh.max() <= found.span <= found.values[0] * (1 + 1e-9)
    assert found.explained == pytest.approx(found.span / found.values[0])
    assert found.shares[0] > 0.8  # ReLU networks are not centred


def test_shares_in_a_span_that_is_smaller_than_the_outputs():
    torch.manual_seed(9)
    x = torch.randn(10, 3)
    centred = nn.Linear(3, 2, bias=False)  # its mean gradients are zero: nothing lies in them
    risk = ns.Risk(centred, x - x.mean(0), loss="mse", statistics="batch")
    assert leading_directions(risk).shares.tolist() == [0.0, 0.0]
    doubled = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Upsample(scale_factor=2.0))
    model = nn.Sequential(nn.Unflatten(1, (1, 3)), doubled, nn.Flatten())  # two equal outputs
    found = leading_directions(ns.Risk(model, x, loss="mse", statistics="batch"), tol=1e-10)
    mean = x.mean(0) / x.mean(0).norm()
    vectors = torch.linalg.eigh(x.T @ x)[1].flip(1)[:, :2]
    np.testing.assert_allclose(found.shares, (vectors.T @ mean).square().numpy(), atol=1e-6)


def test_leading_directions_need_the_scale_of_the_papers():
    risk = ns.Risk(nn.Linear(3, 5), torch.randn(6, 3), loss=nn.MSELoss(), statistics="batch")
    with pytest.raises(InputError, match=r"needs loss='mse'.*2/C times"):
        leading_directions(risk)


def test_spectral_bounds_hold_and_are_exact_on_small_operators():
    torch.manual_seed(7)
    risk = ns.Risk(nn.Linear(3, 2), torch.randn(9, 3), loss="mse", statistics="batch")
    bounds = spectral_bounds(ns.fisher(risk), num_matvecs=200)
    lower, upper = gram_spectrum(risk).bounds
    assert bounds.lower.value == pytest.approx(lower, rel=1e-9)
    assert bounds.upper.value == pytest.approx(upper, rel=1e-9)
    with pytest.raises(InputError, match="positive semidefinite"):
        spectral_bounds(residual_term_of_linear())


def residual_term_of_linear():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(6, 3)
    return residual_term(ns.Risk(model, x, torch.randn(6, 2), loss="mse", statistics="batch"))


def test_residual_term_is_fisher_minus_hessian():
    torch.manual_seed(8)
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), None, None
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    risk = ns.Risk(model, x, y, loss="mse", statistics="batch")
    difference = ns.fisher(risk).to_dense() - ns.hessian(risk).to_dense()
    torch.testing.assert_close(residual_term(risk).to_dense(), difference)
    second = 0
    names = [n for n, _ in model.named_parameters()]
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])

    def output(flat, t, k):
        pieces = flat.split([p.numel() for p in model.parameters()])
        values = {
            n: v.view(p.shape) for n, v, p in zip(names, pieces, model.parameters(), strict=True)
        }
        return torch.func.functional_call(model, values, x[t : t + 1])[0, k]

    for t in range(6):
        for k in range(2):
            bend = torch.autograd.functional.hessian(lambda v, t=t, k=k: output(v, t, k), theta)
            second = second + (y[t, k] - output(theta, t, k)) * bend / 6
    torch.testing.assert_close(difference, second.detach())


def test_bad_input_is_explained():
    model = nn.Linear(3, 2)
    risk = ns.Risk(model, torch.randn(5, 3), loss="mse", statistics="batch")
    with pytest.raises(InputError, match=r"10 rows .* above the limit of 5"):
        gram_spectrum(risk, limit=5)
    with pytest.raises(InputError, match="Did you mean 'mean'"):
        gram_spectrum(risk, last_norm="means")
    with pytest.raises(InputError, match="Did you mean 'mean'"):
        gram_spectrum(risk, last_norm=(None, "means"))
    with pytest.raises(InputError, match="empty"):
        gram_spectrum(risk, last_norm=())
    entropy = ns.Risk(model, torch.randn(5, 3), loss="cross_entropy", statistics="batch")
    with pytest.raises(InputError, match="squared loss"):
        gram_spectrum(entropy, last_norm="mean")
    with pytest.raises(InputError, match="loss='mse'"):
        leading_directions(entropy)
    constant = ns.Risk(nn.Linear(3, 2), torch.ones(5, 3), loss="mse", statistics="batch")
    with pytest.raises(MeasurementError, match="same for every sample"):
        gram_spectrum(constant, last_norm="batch")
    small = ns.Risk(nn.Linear(300, 200), torch.randn(50, 300), loss="mse", statistics="batch",
                    memory="1MB")  # fmt: skip
    with pytest.raises((MeasurementError, InputError), match=r"budget|memory"):
        gram_spectrum(small)
