"""Batches sharded over two gloo processes give what one process gives."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError

WORKER = textwrap.dedent(
    """
    import json, sys
    import torch
    from torch import distributed as dist, nn
    import normscope as ns

    rank, meeting, case = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    if case == "different model" and rank == 1:
        model[0].weight.data += 1e-3
    generator = torch.Generator().manual_seed(5)
    batches = [
        (torch.randn(n, 8, generator=generator), torch.randint(3, (n,), generator=generator))
        for n in (6, 9, 7)
    ]
    mine = batches[:1] if rank == 0 else batches[1:]
    answer = {}
    try:
        for statistics in ("batch", "frozen", "running"):
            risk = ns.Risk.from_batches(
                model, mine, loss="cross_entropy", statistics=statistics
            ).shared()
            answer[statistics] = [
                risk.value(),
                float(risk.gradient().norm()),
                *ns.top_eigenvalues(ns.fisher(risk), 3, tol=1e-9).values,
                *ns.top_eigenvalues(ns.hessian(risk), 1, tol=1e-9).values,
                *ns.top_eigenvalues(ns.fisher(risk, kind="empirical"), 1, tol=1e-9).values,
                ns.trace(ns.fisher(risk), num_matvecs=1000).value,
            ]
            answer["convention"] = risk.convention["samples"]
    except ns.NormscopeError as error:
        answer["error"] = str(error)
    print(json.dumps(answer))
    dist.destroy_process_group()
    """
)


def run_two(tmp_path, case):
    meeting = f"file://{tmp_path}/meeting"  # a port might be taken by another process meanwhile
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), meeting, case],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    answers = []
    for worker in workers:
        out, err = worker.communicate(timeout=1800)  # a guard against hanging only
        assert worker.returncode == 0, err
        answers.append(json.loads(out.splitlines()[-1]))
    return answers


@pytest.mark.distributed
def test_two_processes_equal_one(tmp_path):
    first, second = run_two(tmp_path, "equal")
    assert first == second  # bit for bit
    assert first["convention"] == "22 in 3 batches, mean over batches, 2 processes"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(5)
    batches = [
        (torch.randn(n, 8, generator=generator), torch.randint(3, (n,), generator=generator))
        for n in (6, 9, 7)
    ]
    for statistics in ("batch", "frozen", "running"):
        risk = ns.Risk.from_batches(model, batches, loss="cross_entropy", statistics=statistics)
        alone = [
            risk.value(),
            float(risk.gradient().norm()),
            *ns.top_eigenvalues(ns.fisher(risk), 3, tol=1e-9).values,
            *ns.top_eigenvalues(ns.hessian(risk), 1, tol=1e-9).values,
            *ns.top_eigenvalues(ns.fisher(risk, kind="empirical"), 1, tol=1e-9).values,
            ns.trace(ns.fisher(risk), num_matvecs=1000).value,
        ]
        assert first[statistics] == pytest.approx(alone, rel=1e-6)


@pytest.mark.distributed
def test_processes_with_different_models_are_refused(tmp_path):
    for answer in run_two(tmp_path, "different model"):
        assert "differ in the values of the model" in answer["error"]


def test_sharing_without_a_process_group_is_explained():
    risk = ns.Risk(nn.Linear(2, 1), torch.ones(3, 2), loss="mse", statistics="batch")
    with pytest.raises(InputError, match="init_process_group"):
        risk.shared()
