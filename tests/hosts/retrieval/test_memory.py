"""What a ranking holds stays below what was announced."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
from bpa.hosts.retrieval import rank, estimate_rank, k_reciprocal
from bpa.hosts.retrieval.kreciprocal import estimate_k_reciprocal_bytes
from bpa.plans import RowComparison

PAPER, RETRIEVAL = RowComparison.paper(), RowComparison.retrieval()

def resident(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))

n, q, d = 5000, 800, 64
x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
rank(x[:50], x[50:400], reg=0.3, diagnostics=False)  # the libraries load what they need
k_reciprocal(x[:400], 50).distances()
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the highest mark
case = sys.argv[1]
if case == "k-reciprocal":
    k_reciprocal(x, q).top(10)
    announced = estimate_k_reciprocal_bytes(n, q)
else:
    settings = {"dense": {"rows": PAPER}, "top": {"rows": RETRIEVAL},
                "half": {"rows": PAPER, "storage": torch.bfloat16}, "blocked": {"rows": PAPER, "budget": "300MB"}}[case]
    estimate = rank(x[:q], x[q:], reg=0.1, diagnostics=False, **settings).estimate
    assert ("W" in dict(estimate.parts)) == (case != "blocked"), estimate.text()
    announced = estimate.total
print(resident("VmHWM") - before, announced)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", ["dense", "top", "half", "blocked", "k-reciprocal"])
def test_the_measured_peak_is_below_the_estimate(case):
    done = subprocess.run([sys.executable, "-c", SCRIPT, case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, announced = (int(word) for word in done.stdout.split())
    assert 0 < peak <= announced, f"{peak / 1e6:.0f} MB held, {announced / 1e6:.0f} MB announced"
