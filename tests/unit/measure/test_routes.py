"""Randomness, precision, wrappers, memory: the same matrix whichever way it is computed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import normscope as ns
from cases import BY_NAME, mlp, scrambled_dropout
from normscope.measure import _linearization
from normscope.measure._tape import Tape, UntapedError
from normscope.measure.operators import base
from normscope.subject import memory
from normscope.subject.memory import Piece, budget_bytes, readable_bytes


def close(a, b, tolerance=1e-10):
    return float((a - b).norm() / b.norm()) < tolerance


def risk_of(case, model=None, **options):
    settings = {"loss": case.loss, "statistics": case.statistics, "parameters": case.parameters}
    return ns.Risk(model or case.build(), case.inputs, case.targets, **{**settings, **options})


class OwnCheckpoints(nn.Module):
    """A model that saves memory by itself, as large language models do."""

    def __init__(self, reentrant):
        super().__init__()
        self.block = nn.Sequential(
            nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 4)
        )
        self.head = nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant is None:
            return self.head(self.block(x))
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))


class TestCheckpointedModels:
    @pytest.mark.parametrize("reentrant", [True, False])
    @pytest.mark.parametrize("statistics", ["batch", "running", "frozen"])
    def test_the_same_matrices_as_without(self, reentrant, statistics):
        x, y = torch.randn(8, 3), torch.randint(2, (8,))
        plain, checkpointed = OwnCheckpoints(None), OwnCheckpoints(reentrant)
        checkpointed.load_state_dict(plain.state_dict())
        for model in (plain, checkpointed):
            model.eval()  # not the mode that is measured: a second run would show it
        options = {"loss": "cross_entropy", "statistics": statistics}
        a, b = (ns.Risk(m, x, y, **options) for m in (checkpointed, plain))
        for operator in (ns.jacobian, ns.fisher, ns.hessian):
            assert close(operator(a).to_dense(), operator(b).to_dense())
        assert close(a.gradient(), b.gradient())

    def test_inside_blocks_that_the_measurement_recomputes(self, monkeypatch):
        monkeypatch.setattr(memory, "_fitted", lambda f, b, *_: [Piece(b, 1.0, checkpointed=True)])
        monkeypatch.setattr(memory, "KEPT", 1e30)
        x, y = torch.randn(8, 3), torch.randint(2, (8,))
        model = nn.Sequential(OwnCheckpoints(False), nn.Tanh(), nn.Linear(2, 2))
        risk = ns.Risk(model, x, y, loss="cross_entropy", statistics="batch")
        calls = []
        model[0].block.register_forward_hook(lambda *_: calls.append(1))
        vector = torch.ones(risk.num_parameters)
        product, count = ns.hessian(risk) @ vector, len(calls)
        model[0].reentrant = None
        assert torch.equal(product, ns.hessian(risk) @ vector)
        assert len(calls) == 2 * count  # the block is recomputed by the measurement alone
        assert count > 1
        monkeypatch.undo()
        assert close(product, ns.hessian(risk) @ vector)


class Slopes(nn.Module):
    """A model that differentiates inside, as physics-informed networks do."""

    def __init__(self, norm):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 6), norm, nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        x = x.requires_grad_()
        return torch.autograd.grad(self.body(x).sum(), x, create_graph=True)[0]


def flat_or_zero(gradient, like):
    return (torch.zeros_like(like) if gradient is None else gradient).reshape(-1)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_model_that_differentiates_inside(norm):
    model, x = Slopes(norm(6)), torch.randn(5, 2)
    parameters, outputs = list(model.parameters()), model(x).reshape(-1)
    rows = [torch.autograd.grad(f, parameters, retain_graph=True, allow_unused=True)
            for f in outputs]  # fmt: skip
    J = torch.stack([torch.cat([flat_or_zero(g, p) for g, p in zip(row, parameters, strict=True)])
                     for row in rows])  # fmt: skip
    risk = ns.Risk(model, x, loss="mse", statistics="batch")
    kept = ns.fisher(risk)
    assert close(kept.to_dense(), J.T @ J / 5)
    kept.close()  # now every product runs the model afresh
    assert close(kept.to_dense(), J.T @ J / 5)
    loss = ns.Risk.from_loss_fn(model, [x], lambda m, b: m(b).square().mean(), statistics="batch")
    assert loss.value() == pytest.approx(model(x).square().mean().item())


class TestRandomness:
    def test_rare_dropout_is_not_cut(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(1e-6), nn.Linear(4, 2))
        x = torch.randn(64, 3)
        risk = ns.Risk(model, x, loss="mse", statistics="batch")
        function = risk.function()
        assert function.draws(risk.batches[0])
        assert not memory._separable(function, risk.batches[0], risk.loss, 16)
        quiet = ns.Risk(model, x, loss="mse", statistics="running")
        assert not quiet.function().draws(quiet.batches[0])
        assert memory._separable(quiet.function(), quiet.batches[0], quiet.loss, 16)

    def test_dropout_has_one_mask_per_seed(self):
        model, x = scrambled_dropout(), torch.randn(5, 3)
        make = lambda seed: ns.Risk(model, x, loss="mse", statistics="batch", seed=seed)  # noqa: E731
        first = ns.fisher(make(0)).to_dense()
        assert torch.equal(first, ns.fisher(make(0)).to_dense())
        assert not torch.allclose(first, ns.fisher(make(1)).to_dense())
        J = ns.jacobian(make(0)).to_dense()
        assert close(J.T @ J / 5, first)

    def test_dropout_mask_is_that_of_the_seed(self):
        model, x = scrambled_dropout(), torch.randn(5, 3)
        operator = ns.jacobian(ns.Risk(model, x, loss="mse", statistics="batch", seed=4))
        torch.manual_seed(4)
        out = model.train()(x).reshape(-1)
        row = torch.autograd.grad(out[3], list(model.parameters()))
        assert torch.allclose(operator.to_dense()[3], torch.cat([g.reshape(-1) for g in row]))

    def test_no_dropout_in_evaluation_mode(self):
        model, x = scrambled_dropout(), torch.randn(5, 3)
        a, b = (
            ns.fisher(ns.Risk(model, x, loss="mse", statistics="running", seed=s)).to_dense()
            for s in (0, 1)
        )
        assert torch.equal(a, b)

    @pytest.mark.parametrize("name", ["mlp-tanh", "mlp-relu-ce", "loss-module-bce"])
    def test_sampled_fisher_is_unbiased(self, name):
        case = BY_NAME[name]
        risk = risk_of(case)
        draws = torch.stack(
            [ns.fisher(risk, kind="sampled", seed=s).to_dense().diagonal() for s in range(200)]
        )
        error = draws.std(0) / len(draws) ** 0.5
        gap = (draws.mean(0) - ns.fisher(risk).to_dense().diagonal()).abs()
        assert bool((gap <= 5 * error + 1e-12).all())


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        model = mlp(nn.BatchNorm1d(4)).to(dtype)
        x, y = torch.randn(6, 3).to(dtype), torch.randn(6, 2).to(dtype)
        half = ns.Risk(model, x, y, loss="mse", statistics="batch")
        full = ns.Risk(model.float(), x.float(), y.float(), loss="mse", statistics="batch")
        assert half.dtype == torch.float32
        for make in (ns.fisher, ns.hessian):
            assert torch.equal(make(half).to_dense(), make(full).to_dense())

    def test_half_precision_is_said(self):
        model = mlp().half()
        risk = ns.Risk(model, torch.randn(4, 3).half(), loss="mse", statistics="batch")
        assert risk.convention["precision"] == "float32 (the model is in float16)"
        ns.fisher(risk) @ torch.ones(risk.num_parameters, dtype=torch.float32)
        assert next(model.parameters()).dtype == torch.float16

    @pytest.mark.parametrize(
        "name",
        [
            "lstm",
            "gru",
            "attention",
            "attention-functional",
            "transformer-layer",
            "bn2d-batch",
            "layer-norm",
        ],
    )
    def test_float32_kernels(self, name):
        case = BY_NAME[name]
        exact = risk_of(case)
        to_float = lambda t: t.float() if torch.is_floating_point(t) else t  # noqa: E731
        single = ns.Risk(
            case.build().float(),
            to_float(case.inputs),
            to_float(case.targets),
            loss=case.loss,
            statistics=case.statistics,
        )
        for make in (ns.jacobian, ns.fisher, ns.hessian):
            assert close(make(single).to_dense().double(), make(exact).to_dense(), 1e-4)

    def test_vectors_of_the_wrong_type_are_refused(self):
        operator = ns.fisher(risk_of(BY_NAME["mlp-tanh"]))
        with pytest.raises(ns.NormscopeError, match=r"takes torch\.float64"):
            operator @ torch.ones(operator.shape[1], dtype=torch.float32)


class TestWrappers:
    def test_compiled_and_parallel_models_are_measured_without_their_wrapper(self):
        case = BY_NAME["bn1d-batch"]
        plain = case.build()
        expected = ns.hessian(risk_of(case, plain)).to_dense()
        for wrap in (lambda m: torch.compile(m, backend="eager"), nn.DataParallel):
            risk = risk_of(case, wrap(plain))
            assert risk.parameters.names[0] == "0.weight"
            assert torch.equal(ns.hessian(risk).to_dense(), expected)

    def test_compiled_inside(self):
        case = BY_NAME["mlp-tanh"]
        model = case.build()
        expected = ns.fisher(risk_of(case, model)).to_dense()
        model[2].compile(backend="eager")
        assert torch.equal(ns.fisher(risk_of(case, model)).to_dense(), expected)

    def test_inside_no_grad_inference_and_autocast(self):
        case = BY_NAME["bn1d-batch-ce"]
        model = case.build()
        expected = [make(risk_of(case, model)).to_dense() for make in (ns.fisher, ns.hessian)]
        for span in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
            with span:
                found = [make(risk_of(case, model)).to_dense() for make in (ns.fisher, ns.hessian)]
            assert all(map(torch.equal, found, expected))

    @pytest.mark.parametrize("memory", [None, 5000])
    def test_autocast_inside_the_model(self, memory):
        class Mixed(nn.Module):
            def __init__(self, end):
                super().__init__()
                self.body, self.end = mlp(nn.LayerNorm(4)).float(), end

            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return self.end(self.body(x))

        x, y = torch.randn(64, 3).float(), torch.randint(2, (64,))
        for end in (nn.Identity(), lambda out: out.bfloat16(), lambda out: out.double()):
            model = Mixed(end)
            options = {"loss": "cross_entropy", "statistics": "batch", "memory": memory}
            mixed, plain = (ns.Risk(m, x, y, **options) for m in (model, model.body))
            tolerance = 1e-2 if end(torch.zeros(1)).dtype == torch.bfloat16 else 1e-5
            for make in (ns.jacobian, ns.fisher, ns.hessian):
                assert close(make(mixed).to_dense(), make(plain).to_dense(), tolerance)
            assert mixed.value() == pytest.approx(plain.value(), rel=tolerance)

    def test_old_weight_norm_and_sparse_embedding(self):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))
        x, y = torch.randn(5, 3), torch.randn(5, 2)
        H = ns.hessian(ns.Risk(model, x, y, loss="mse", statistics="batch")).to_dense()
        assert close(H, H.T)
        sparse = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Flatten(), nn.Linear(6, 2))
        tokens = torch.randint(5, (4, 3))
        risk = ns.Risk(sparse, tokens, torch.randn(4, 2), loss="mse", statistics="batch")
        H, J = ns.hessian(risk).to_dense(), ns.jacobian(risk).to_dense()
        assert close(H, H.T)
        assert close(ns.fisher(risk).to_dense(), J.T @ J / 4)
        assert sparse[0].sparse

    def test_backward_hooks_of_the_user_do_no_harm(self):
        case = BY_NAME["bn2d-residual-batch"]
        expected = [make(risk_of(case)).to_dense() for make in (ns.fisher, ns.hessian)]
        model, seen = case.build(), []
        model.conv2.register_full_backward_hook(lambda *_: seen.append(1))
        found = [make(risk_of(case, model)).to_dense() for make in (ns.fisher, ns.hessian)]
        assert all(map(close, found, expected))
        assert seen

    def test_another_librarys_batch_norm_takes_part(self):
        class MeanOnly(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.shift = nn.Parameter(torch.randn(width))

            def batch_statistics(self, x):
                return (x.mean(0),)

            def normalize(self, x, mean):
                return x - mean + self.shift

            def forward(self, x):
                return self.normalize(x, *self.batch_statistics(x))

        model, x = mlp(MeanOnly(4)), torch.randn(6, 3)
        make = lambda s: ns.jacobian(ns.Risk(model, x, loss="mse", statistics=s))  # noqa: E731
        coupled, frozen = make("batch").to_dense(), make("frozen").to_dense()
        assert coupled[:, :12].norm() < frozen[:, :12].norm()
        # A constant shift cannot pass mean subtraction: biases before it have no influence.
        assert coupled[:, 12:16].norm() < 1e-12 < frozen[:, 12:16].norm()


class TestRoutes:
    def jacobian(self, case):
        operator = ns.jacobian(risk_of(case))
        dense = operator.to_dense()
        return operator._terms[0], dense

    def test_replay_is_the_usual_route(self):
        part, _ = self.jacobian(BY_NAME["bn2d-residual-batch"])
        assert part._tape is not None

    def test_without_forward_mode_the_transpose_is_differentiated(self):
        part, dense = self.jacobian(BY_NAME["custom-derivative"])
        assert part._tape is None
        assert part._transposed is not None
        assert dense.abs().sum() > 0

    def test_what_cannot_be_replayed_is_run_again(self):
        part, _ = self.jacobian(BY_NAME["overwriting"])
        assert part._tape is None
        assert part._forward_mode

    @pytest.mark.parametrize("name", ["mlp-tanh", "bn2d-residual-batch", "attention", "lstm"])
    def test_all_routes_agree(self, name, monkeypatch):
        case = BY_NAME[name]
        expected = ns.fisher(risk_of(case)).to_dense()

        def no_forward_mode(*_):
            raise NotImplementedError("forward mode")

        def no_tape(*_):
            raise UntapedError("tape")

        with monkeypatch.context() as patch:
            patch.setattr(_linearization, "record", no_tape)
            assert close(ns.fisher(risk_of(case)).to_dense(), expected)
            patch.setattr(_linearization, "record", no_forward_mode)
            patch.setattr(_linearization, "directional", no_forward_mode)
            assert close(ns.fisher(risk_of(case)).to_dense(), expected)
        with monkeypatch.context() as patch:
            patch.setattr(base, "VECTORIZED_BYTES", 0)
            assert close(ns.fisher(risk_of(case)).to_dense(), expected)

    def test_a_replay_that_is_wrong_is_noticed(self, monkeypatch):
        v = torch.randn(ns.fisher(risk_of(BY_NAME["bn1d-batch"])).shape[1])
        expected = ns.fisher(risk_of(BY_NAME["bn1d-batch"])).to_dense() @ v
        monkeypatch.setattr(Tape, "replay", lambda self, pieces: torch.randn(self._shape))
        operator = ns.fisher(risk_of(BY_NAME["bn1d-batch"]))
        assert close(operator @ v, expected)
        part = operator._terms[0].jacobian
        assert part._tape is None
        assert part._forward_mode


class TestMemory:
    def test_budgets(self):
        cpu = torch.device("cpu")
        assert budget_bytes("2GB", cpu) == 2 * 10**9
        assert budget_bytes("1.5 MiB", cpu) == 1.5 * 1024**2
        assert budget_bytes(4096, cpu) == 4096
        assert budget_bytes(None, cpu) > 10**6
        assert readable_bytes(1.5e9) == "1.5 GB"

    def coupled(self):
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(6)]
        return nn.Sequential(*blocks, nn.Linear(8, 2))

    def test_a_coupled_batch_is_checkpointed_and_exact(self):
        torch.manual_seed(0)
        model, x, y = self.coupled(), torch.randn(64, 8), torch.randn(64, 2)
        make = lambda memory: ns.Risk(  # noqa: E731
            model, x, y, loss="mse", statistics="batch", memory=memory
        )
        whole = make(None)
        function = whole.function()
        full = memory.forward_bytes(function, whole.batches[0])
        lean = memory.forward_bytes(function, whole.batches[0], checkpointed=True)
        # between the blocks (64, 8) each, inside one of them a few of these
        assert 6 * 64 * 8 * 8 < lean < 0.7 * full
        V = torch.randn(whole.num_parameters, 2)
        for operator, factor in (
            (ns.fisher, memory.PASSING),
            (ns.hessian, memory.PASSING_TWICE),
        ):
            small = make(int(factor * (full + lean) / 2))
            (piece,) = small.pieces(function, second_order=operator is ns.hessian)
            assert piece.checkpointed
            assert not piece.keep
            assert close(operator(small) @ V, operator(whole) @ V, 1e-12)
            if operator is ns.fisher:
                assert close(small.gradient(), whole.gradient(), 1e-12)

    def test_what_does_not_fit_says_how_much_it_needs(self):
        risk = ns.Risk(
            self.coupled(), torch.randn(64, 8), loss="mse", statistics="batch", memory=1000
        )
        with pytest.raises(
            ns.NormscopeError, match=r"64 samples saves about [\d.]+ kB .*400 bytes"
        ):
            ns.fisher(risk)

    @pytest.mark.parametrize("name", ["bn-functional", "loss-module-ce-smooth"])
    def test_hidden_coupling_is_found_before_cutting(self, name):
        case = BY_NAME[name]
        risk = risk_of(case)
        needed = memory.forward_bytes(risk.function(), risk.batches[0])
        small = risk_of(case, memory=int(0.9 * memory.PASSING * needed))
        with pytest.raises(ns.NormscopeError, match="cannot be cut"):
            ns.fisher(small)

    def test_only_what_fits_is_kept(self):
        model = mlp()
        batches = [(torch.randn(50, 3), torch.randn(50, 2)) for _ in range(4)]
        make = lambda memory: ns.Risk.from_batches(  # noqa: E731
            model, batches, loss="mse", statistics="batch", memory=memory
        )
        needed = memory.forward_bytes(make(None).function(), make(None).batches[0])
        small = make(int((memory.PASSING + 2.5 * memory.KEPT) * needed))
        assert [p.keep for p in small.pieces(small.function())] == [True, True, False, False]
        assert close(ns.fisher(small).to_dense(), ns.fisher(make(None)).to_dense(), 1e-12)

    def test_close_releases_the_graphs_and_the_operator_still_works(self):
        risk = risk_of(BY_NAME["bn2d-batch"])
        for make in (ns.fisher, ns.jacobian, ns.hessian):
            operator = make(risk)
            v = torch.randn(operator.shape[1])
            before = operator @ v
            operator.close()
            assert close(operator @ v, before, 1e-12)

    def test_no_cycle_keeps_an_operator_alive(self):
        risk = risk_of(BY_NAME["bn2d-batch"])
        gc.collect()
        gc.disable()
        try:
            for make in (ns.fisher, ns.jacobian, ns.hessian):
                operator = make(risk)
                operator @ torch.ones(operator.shape[1])
                watch = weakref.ref(operator)
                del operator
                assert watch() is None
        finally:
            gc.enable()
