"""The planner: what it reads and writes, what it refuses, and that measured peaks stay below what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bpa import memory
from bpa.errors import ArgumentError, MemoryBudgetError

PEAK = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from bpa import balanced_affinities, memory
from bpa.plans import DensePlan, GraphPlan
from bpa.solvers import Converged

def resident(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) * 1024

def peak(work, x):
    work(x[..., :40, :].clone())                     # the libraries' first use is not the computation's
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")    # forget the peak so far
    kept = work(x)
    return resident("VmHWM") - before

def train(x):
    x = x.requires_grad_()
    w = balanced_affinities(x)
    w.backward(torch.ones(1, dtype=w.dtype).expand(w.shape).contiguous())
    return x.grad

g = torch.Generator().manual_seed(0)
case = sys.argv[1]
if case == "forward":
    x, work, plan = torch.randn(3000, 64, generator=g), balanced_affinities, memory.estimate_affinities(3000, 64)
elif case == "half":
    x, work = torch.randn(2500, 64, generator=g).half(), balanced_affinities
    plan = memory.estimate_affinities(2500, 64, dtype=torch.float16)
elif case == "batch":
    x, work = torch.randn(500, 100, 64, generator=g), balanced_affinities
    plan = memory.estimate_affinities(100, 64, batch=500)
elif case == "backward":
    x, work, plan = torch.randn(3000, 64, generator=g), train, memory.estimate_affinities(3000, 64, backward=True)
elif case == "batch backward":
    x, work = torch.randn(500, 100, 64, generator=g), train
    plan = memory.estimate_affinities(100, 64, batch=500, backward=True)
elif case == "kept":
    x, work = torch.randn(3000, 64, generator=g), lambda x: DensePlan.fit(x, reg=0.1, keep=True, solver=Converged(1e-3))
    plan = memory.estimate_dense_plan(3000, 64, block=1024, keep=True)
elif case == "streamed":
    x = torch.randn(6000, 32, generator=g)
    work = lambda x: DensePlan.fit(x, reg=0.3, keep=False, solver=Converged(1e-3))
    plan = memory.estimate_dense_plan(6000, 32, block=1024)
elif case == "sparse":
    x, work = torch.randn(20000, 16, generator=g), lambda x: GraphPlan.fit(x, reg=0.1, k=30)
    plan = memory.estimate_graph_plan(20000, 16, k=30)
print(peak(work, x), plan.total, x.numel() * x.element_size())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    "case", ["forward", "half", "batch", "backward", "batch backward", "kept", "streamed", "sparse"]
)
def test_the_measured_peak_stays_below_the_estimate(case: str) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK, case], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    peak, estimate, _ = (int(number) for number in done.stdout.split())
    assert peak <= estimate, f"{peak:,} > {estimate:,}"
    assert estimate <= 2.5 * peak + 2 * memory.WORKSPACE, (
        f"an estimate of {estimate:,} says little about {peak:,}"
    )


def test_one_buffer_is_all_that_a_large_set_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "forward"], capture_output=True, text=True, timeout=120
    )
    peak = int(done.stdout.split()[0])
    assert peak <= 1.05 * 3000 * 3000 * 4 + 16 * 2**20  # and the n × d copy and panels of the product


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9),
        ("1.5 gib", 3 * 2**29),
        ("800mb", 8 * 10**8),
        ("4096", 4096),
        (7, 7),
        ("1_000 B", 1000),
        ("2K", 2000),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1XB", "nan", "inf", None, True, -3, [1]])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ArgumentError, match="positive number of bytes"):
        memory.parse_bytes(text)


def test_sizes_are_written_with_three_digits() -> None:
    sizes = [1, 999, 1000, 999_400, 999_600, 1_487_000_000, 3 * 10**15]
    assert [memory.format_bytes(size) for size in sizes] == [
        "1 B",
        "999 B",
        "1 kB",
        "999 kB",
        "1 MB",
        "1.49 GB",
        "3,000 TB",
    ]


def test_a_budget_refuses_before_allocating_and_names_the_way_out() -> None:
    estimate = memory.estimate_affinities(10**6, 128)
    assert estimate.total > 4 * 10**12
    with pytest.raises(
        MemoryBudgetError, match=r"4 TB beyond the input .* exceeds the budget of 2 GB\. Buy less\."
    ):
        memory.check(estimate, "2GB", way_out="Buy less.")
    assert memory.check(estimate, None, way_out="") is estimate
    assert memory.check(estimate, estimate.total, way_out="") is estimate


def test_estimates_grow_with_what_they_count() -> None:
    plain = memory.estimate_affinities(1000, 64).total
    assert memory.estimate_affinities(1000, 64, backward=True).total > plain + 4 * 10**6
    assert memory.estimate_affinities(1000, 64, dtype=torch.float64).total > plain + 4 * 10**6
    assert memory.estimate_affinities(1000, 64, batch=3).total > plain + 8 * 10**6
    assert memory.estimate_dense_plan(10**5, 128, block=1024).total < 4 * 10**8
    assert memory.estimate_graph_plan(10**5, 128, k=64).total < 4 * 10**9
