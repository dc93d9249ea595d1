"""Several processes give what one process gives: values, potentials and gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bpa import balance, balanced_affinities
from bpa.cost import cosine_cost
from bpa.errors import ArgumentError, BPAError, ConvergenceWarning, UnknownArgumentError
from bpa.plans import sharded_affinities
from bpa.solvers import Converged, Sweeps

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {2: (9, 14), 4: (9, 1, 8, 5)}
CASES: list[dict[str, object]] = [
    {"reg": 0.1, "solver": Sweeps(5)},
    {"reg": 0.01, "solver": Sweeps(3), "diagonal": 0.0},  # float32 must leave the exponential domain here
    {"reg": 0.3, "solver": Sweeps(2), "scale": None},
    {"reg": 0.1, "solver": Converged()},
]


def the_set(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(23, 6, generator=generator, dtype=torch.float64) + 1
    return x.to(dtype), torch.randn(23, 23, generator=generator, dtype=torch.float64).to(dtype)


def work(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    start = sum(COUNTS[world][:rank])
    mine = slice(start, start + COUNTS[world][rank])
    out = []
    for dtype in (torch.float64, torch.float32):
        x, grad = the_set(dtype)
        for options in CASES:
            local = x[mine].clone().requires_grad_(isinstance(options["solver"], Sweeps))
            result = sharded_affinities(local, **options)
            if local.requires_grad:
                (result.affinity * grad[mine]).sum().backward()
            out.append(
                (
                    result.affinity.detach(),
                    result.rows,
                    result.log_u,
                    float(result.convergence.marginal_error),
                    local.grad,
                )
            )
    torch.save(out, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_are_one_process(world: int, tmp_path: Path) -> None:
    mp.spawn(work, args=(world, str(tmp_path)), nprocs=world)
    parts = [
        torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(world)
    ]  # written above
    number = 0
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 3e-6)):
        x, grad = the_set(dtype)
        for options in CASES:
            results = [part[number] for part in parts]
            number += 1
            whole = x.clone().requires_grad_()
            expected = balanced_affinities(whole, **options)
            found = torch.cat([affinity for affinity, *_ in results])
            hard = options["reg"] == 0.01 and dtype == torch.float32
            bound = 2e-5 if hard else max(tolerance, 0.0 if isinstance(options["solver"], Sweeps) else 3e-6)
            torch.testing.assert_close(found, expected.detach(), atol=bound, rtol=0)
            for _, _, log_u, error, _ in results:
                assert torch.equal(log_u, results[0][2])  # the same on every rank, to the last bit
                assert error == results[0][3]
            assert [rows.stop - rows.start for _, rows, *_ in results] == list(COUNTS[world])
            if isinstance(options["solver"], Converged):
                plan = balance(cosine_cost(x), reg=0.1, solver=Converged())
                torch.testing.assert_close(results[0][2], plan.log_u.double(), atol=1e-4, rtol=0)
                continue
            (expected * grad).sum().backward()
            gradient = torch.cat([local for *_, local in results])
            size = whole.grad.abs().max()
            torch.testing.assert_close(gradient / size, whole.grad / size, atol=20 * bound, rtol=0)


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(BPAError, match="init_process_group"):
        sharded_affinities(torch.randn(4, 3))


def test_what_cannot_be_done_is_said_and_one_rank_is_one_process(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(UnknownArgumentError, match=r"write solver=Sweeps\(n\)"):
            sharded_affinities(torch.randn(4, 3), n_iter=3)
        with pytest.raises(ArgumentError, match="'auto'"):
            sharded_affinities(torch.randn(4, 3), reg="auto")
        with pytest.raises(BPAError, match="alternating sweeps only"):
            sharded_affinities(torch.randn(4, 3, requires_grad=True), solver=Converged())
        alone = sharded_affinities(torch.eye(4, 3))
        torch.testing.assert_close(alone.affinity, balanced_affinities(torch.eye(4, 3)))
        assert (alone.n, alone.reg, alone.cost, alone.diagonal) == (4, 0.1, "cosine", 1.0)
        x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
        assert not bool(sharded_affinities(x, reg=0.01, solver=Sweeps(1)).convergence.converged)
        with pytest.warns(ConvergenceWarning, match="sharded_affinities reached"):
            sharded_affinities(x, reg=0.05, solver=Converged(1e-9, max_iter=2))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_the_example_runs_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "train_over_ranks.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks agree with one process" in done.stdout
