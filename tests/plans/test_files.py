"""The one file format: what was written comes back, and everything else is refused in one sentence."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bpa.errors import FileError
from bpa.plans import DensePlan, GraphPlan, load_plan
from bpa.solvers import Converged, Sweeps

Change = Callable[[dict[str, Any]], None]


def features(n: int = 30, d: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5).to(
        dtype
    )


DENSE = [
    {"reg": 0.2},
    {"reg": "auto"},
    {"reg": "auto", "cost": "sqeuclidean"},
    {"reg": 2.0, "cost": "sqeuclidean", "solver": Sweeps(5)},
    {"reg": 0.1, "cost": "centred-cosine", "scale": None, "diagonal": 0.0},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", DENSE, ids=str)
def test_a_dense_plan_comes_back_unchanged(
    tmp_path: Path, options: dict[str, Any], dtype: torch.dtype
) -> None:
    x = features(dtype=dtype)
    plan = DensePlan.fit(x, keep=False, **options)
    plan.save(tmp_path / "fitted.plan")
    back = load_plan(tmp_path / "fitted.plan")
    assert isinstance(back, DensePlan)
    assert torch.equal(back.affinities(), plan.affinities())
    assert torch.equal(back.transform(x[:4] + 1), plan.transform(x[:4] + 1))
    assert torch.equal(back.transform(x[:4]), plan.transform(x[:4]))
    assert (back.reg, back.cost, back.scale, back.diagonal) == (
        plan.reg,
        plan.cost,
        plan.scale,
        plan.diagonal,
    )
    assert back.is_symmetric == plan.is_symmetric
    assert repr(back) == repr(plan)
    assert vars(back.convergence) == vars(plan.convergence)
    assert [path.name for path in tmp_path.iterdir()] == ["fitted.plan"]  # nothing half-written is left
    with np.load(tmp_path / "fitted.plan", allow_pickle=False) as stored:  # nothing in it needs pickle
        assert all(stored[key].dtype != object for key in stored.files)


def test_a_plan_of_given_costs_comes_back_unchanged(tmp_path: Path) -> None:
    x = features(dtype=torch.float64)
    costs = torch.cdist(x, x).square()
    plan = DensePlan.fit(costs, reg=2.0, cost="precomputed", keep=False)
    plan.save(tmp_path / "a")
    back = load_plan(tmp_path / "a")
    assert torch.equal(back.affinities(), plan.affinities())
    assert torch.equal(back.transform(costs[:3] + 1), plan.transform(costs[:3] + 1))


@pytest.mark.parametrize("options", DENSE, ids=str)
def test_a_plan_on_a_graph_comes_back_unchanged(tmp_path: Path, options: dict[str, Any]) -> None:
    x = features()
    plan = GraphPlan.fit(x, k=4, **options)
    plan.save(tmp_path / "graph.plan")
    back = load_plan(tmp_path / "graph.plan")
    assert isinstance(back, GraphPlan)
    assert torch.equal(back.affinities().to_dense(), plan.affinities().to_dense())
    late = torch.cat([x[:4], x[:4] + 1])
    assert torch.equal(back.transform(late).to_dense(), plan.transform(late).to_dense())
    assert (back.k, back.n_repaired, back.repaired_mass) == (plan.k, plan.n_repaired, plan.repaired_mass)


@pytest.fixture(params=["dense", "graph"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of either kind, with a mean and two different potentials."""
    options: dict[str, Any] = {"reg": 0.3, "cost": "centred-cosine", "solver": Sweeps(3)}
    plan = (
        DensePlan.fit(features(), **options)
        if request.param == "dense"
        else GraphPlan.fit(features(), k=4, **options)
    )
    plan.save(tmp_path / "a.plan")
    return tmp_path / "a.plan"


def changed(path: Path, change: Change) -> Path:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    with (path.parent / "changed.plan").open("wb") as file:
        np.savez(file, **arrays)
    return path.parent / "changed.plan"


def put(name: str, value: object) -> Change:
    return lambda arrays: arrays.__setitem__(name, np.asarray(value))


def spoil(name: str, value: float) -> Change:
    """Replace the first number of an array."""
    return lambda arrays: arrays[name].__setitem__((0,) * arrays[name].ndim, value)


ANY_PLAN: dict[str, tuple[Change, str]] = {
    "format": (put("format", "bpa.plans.dense.DensePlan/1"), "something else"),
    "version": (put("version", 2), "version 2 of the format"),
    "version as text": (put("version", "1"), "'version'"),
    "kind": (put("kind", "tree"), "holds a 'tree'"),
    "cost": (put("cost", "manhattan"), "'cost'"),
    "a cost without its mean": (put("mean", np.zeros(0)), "needs a mean"),
    "a mean without its cost": (put("cost", "cosine"), "has no mean"),
    "mean of another width": (put("mean", np.zeros(4, np.float32)), "'mean'"),
    "mean of another type": (put("mean", np.zeros(5)), "'mean'"),
    "of_units": (put("of_units", 1), "'of_units'"),
    "features, one dimension": (put("features", np.zeros(30, np.float32)), "'features' has shape"),
    "features, no items": (put("features", np.zeros((0, 5), np.float32)), "'features' has shape"),
    "features, whole numbers": (put("features", np.zeros((30, 5), np.int64)), "'features'"),
    "features, other byte order": (put("features", np.ones((30, 5), ">f4")), "'features'"),
    "features, NaN": (spoil("features", np.nan), "'features'"),
    "potentials, too few": (put("log_u", np.zeros(29)), "'log_u'"),
    "potentials, infinite": (spoil("log_v", np.inf), "'log_v'"),
    "reg of zero": (put("reg", 0.0), "'reg' is 0"),
    "reg as text": (put("reg", "0.1"), "'reg'"),
    "scale": (put("scale", -1.0), "'scale' is -1"),
    "diagonal": (put("diagonal", np.nan), "'diagonal' is nan"),
    "n_iter": (put("n_iter", -1), "'n_iter' is -1"),
    "marginal_error": (put("marginal_error", np.inf), "'marginal_error'"),
    "tol": (put("tol", 0.0), "'tol'"),
    "something missing": (lambda arrays: arrays.pop("reg"), "'reg' is missing"),
    "something more": (put("colour", 3), "'colour', which this version does not know"),
}


@pytest.mark.parametrize("case", ANY_PLAN)
def test_a_file_that_no_plan_wrote_is_refused_with_the_reason(stored: Path, case: str) -> None:
    change, reason = ANY_PLAN[case]
    with pytest.raises(FileError, match=r"changed\.plan' cannot be read as a plan: ") as said:
        load_plan(changed(stored, change))
    assert reason in str(said.value)
    assert "\n" not in str(said.value)


def given_costs(arrays: dict[str, Any]) -> None:
    arrays |= {
        "cost": np.asarray("precomputed"),
        "features": np.ones((30, 30), np.float32),
        "mean": np.zeros(0),
    }


ANY_GRAPH: dict[str, tuple[Change, str]] = {
    "a column outside": (spoil("column", 30), "positions outside 0..29"),
    "a column that does not exist": (spoil("column", -1), "positions outside"),
    "columns out of order": (lambda a: a["column"].__setitem__([0, 1], a["column"][[1, 0]]), "not in order"),
    "an item beside itself": (spoil("column", 0), "not in order"),
    "rows that do not start": (spoil("start", 1), "do not follow"),
    "rows that go back": (lambda a: a["start"].__setitem__(3, a["start"][2] - 1), "do not follow"),
    "too few values": (lambda a: a.update(values=a["values"][:-1]), "'column' has shape"),
    "values of another type": (lambda a: a.update(values=a["values"].astype(np.float64)), "'values'"),
    "no neighbours": (put("k", 0), "'k' is 0"),
    "too many neighbours": (put("k", 30), "'k' is 30"),
    "repaired": (put("n_repaired", 10**9), "'n_repaired'"),
    "repaired mass": (put("repaired_mass", -0.5), "'repaired_mass'"),
    "costs": (given_costs, "has features"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANY_GRAPH)
def test_a_graph_that_is_none_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    GraphPlan.fit(features(), reg=0.3, k=4).save(tmp_path / "a.plan")
    change, reason = ANY_GRAPH[case]
    with pytest.raises(FileError) as said:
        load_plan(changed(tmp_path / "a.plan", change))
    assert reason in str(said.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "pickle.npz", format=np.array([{"a": 1}], dtype=object))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "empty.npz").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "header.npz", "w") as archive:
        archive.writestr("format.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((\n     ")
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        header = (
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976,), }".ljust(117) + b"\n"
        )
        archive.writestr("format.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    names = [
        "other.npz",
        "pickle.npz",
        "array.npy",
        "text.npz",
        "empty.npz",
        "header.npz",
        "huge.npz",
        "absent.npz",
        ".",
    ]
    for name in names:
        with pytest.raises(FileError, match="cannot be read as a plan"):
            load_plan(tmp_path / name)


def test_a_damaged_file_is_refused_or_read_as_it_was_wherever_it_was_damaged(stored: Path) -> None:
    whole = stored.read_bytes()
    plan = load_plan(stored)
    rng = np.random.default_rng(0)
    places = {*rng.integers(0, len(whole), 250).tolist(), *range(60), *range(len(whole) - 60, len(whole))}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        stored.write_bytes(bytes(damaged))
        try:
            back = load_plan(stored)
        except FileError:
            continue
        assert torch.equal(
            back.transform(features()[:2]).to_dense(), plan.transform(features()[:2]).to_dense()
        )
    for length in rng.integers(0, len(whole), 40).tolist():
        stored.write_bytes(whole[:length])
        with pytest.raises(FileError, match="cannot be read"):
            load_plan(stored)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = DensePlan.fit(features(), reg=0.3, solver=Converged(1e-3))
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        plan.save(tmp_path / "nowhere" / "a.plan")
    plan.save(tmp_path / "a.plan")
    before = (tmp_path / "a.plan").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(FileError, match="disk full"):
        plan.save(tmp_path / "a.plan")
    assert (tmp_path / "a.plan").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.plan"]
