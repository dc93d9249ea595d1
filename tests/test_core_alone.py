"""What must work with torch and numpy and nothing else; continuous integration runs this file in such a place."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from bpa import BPA, BPAAttention, balance, balanced_affinities
from bpa.cost import cosine_cost
from bpa.solvers import Converged, Sweeps

ALONE = os.environ.get("BPA_CORE_ONLY") == "1"
EXTRAS = (
    "sklearn",
    "scipy",
    "matplotlib",
    "h5py",
    "cyclopts",
    "rich",
    "pyarrow",
    "safetensors",
    "PIL",
    "faiss",
)


@pytest.mark.skipif(not ALONE, reason="checked where BPA_CORE_ONLY=1 says that no extra is installed")
def test_no_extra_is_installed_here() -> None:
    assert [name for name in EXTRAS if importlib.util.find_spec(name)] == []


def test_the_transform_runs_and_trains() -> None:
    x = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    w = BPA(reg=0.1, solver=Sweeps(5))(x)
    assert w.shape == (2, 12, 12)
    torch.testing.assert_close(w, balanced_affinities(x, reg=0.1, solver=Sweeps(5)))
    torch.testing.assert_close(torch.diagonal(w, dim1=-2, dim2=-1), torch.ones(2, 12))
    BPAAttention()(x).square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert bool(x.grad.abs().sum() > 0)


def test_the_symmetric_plan_converges_and_reports() -> None:
    x = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = balance(cosine_cost(x), reg=0.1, solver=Converged(1e-8))
    assert bool(torch.as_tensor(found.convergence.converged).all())
    torch.testing.assert_close(found.plan.sum(-1), torch.ones(20, dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(found.plan, found.plan.mT, atol=1e-12, rtol=0)


def test_few_shot_runs_on_the_embedded_data() -> None:
    from bpa.data import embedded_sketches
    from bpa.runs import run, transforms_asked
    from bpa.runs.fields.fewshot import FewShot, FewShotTask, fewshot_ways

    ways = fewshot_ways(("protonet",), transforms_asked(["bpa"], reg=(0.1,)))
    task = FewShotTask(n_tasks=20, protocol="balanced")
    records = run("alone", FewShot(embedded_sketches()), [(task, ways)])
    assert len(records) == 4
    assert min(record.summary["accuracy"] for record in records) > 1.5 * 100 / task.n_way


@pytest.mark.parametrize(
    ("module", "extra", "blocked"),
    [("bpa.estimators", "sklearn", "sklearn"), ("bpa.cli.main", "app", "cyclopts")],
)
def test_a_missing_extra_is_named_with_its_pip_line(module: str, extra: str, blocked: str) -> None:
    script = f"""
import sys
sys.modules[{blocked!r}] = None
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
del sys.modules[{blocked!r}]
import {module} as room
getattr(room, "run", lambda: None)()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"pip install 'bpa-transform[{extra}]'" in done.stderr
    if module == "bpa.cli.main":
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
