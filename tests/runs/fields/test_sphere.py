"""Clusters on the sphere: the grid, its cells, and what is known of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="k-means is scikit-learn's")

from bpa.errors import ArgumentError
from bpa.runs import RunStore, Way, labels, run
from bpa.runs.fields.sphere import Sphere, SphereTask
from bpa.runs.studies.sphere import QUICK, RAW, WAYS, grid_of
from bpa.transforms.names import NamedTransform


def test_the_grid_is_logarithmic_between_the_published_ends() -> None:
    dims, noises = grid_of(6)
    assert dims == (10, 26, 69, 180, 471, 1234)
    assert [round(s, 2) for s in noises] == [0.1, 0.15, 0.22, 0.34, 0.5, 0.75]


@pytest.mark.slow
def test_acceptance_cells_of_the_sphere() -> None:
    """The soft kernel gains over raw rows, the stretch is needed, and the default reg does not gain."""
    ways = [
        RAW,
        Way("k-means", NamedTransform("bpa", reg=0.1)),
        Way("k-means", NamedTransform("bpa", reg=0.5)),
        Way("k-means", NamedTransform("bpa", reg=0.5, unscaled=True)),
    ]
    cells = [(SphereTask(dim, noise), ways) for dim in (69, 180, 1234) for noise in (0.15, 0.22)]
    records = run("sphere", Sphere(), cells)
    raw, narrow, soft, unscaled = (
        np.mean([np.mean(r.values["nmi"]) for r in records[k::4]]) for k in range(4)
    )
    assert soft - raw > 0.05
    assert unscaled < soft
    assert narrow < raw
    assert raw == pytest.approx(0.735, abs=0.04)  # 1.00 .95 / 1.00 .71 / .53 .17 were measured elsewhere


def test_every_way_of_the_study_runs_and_has_its_own_label() -> None:
    assert len(set(labels(WAYS))) == len(WAYS) == 30
    assert set(QUICK) < set(WAYS)
    task = SphereTask(60, 0.3, runs=1, n_clusters=3, n_per_cluster=6, n_init=1)
    for way, record in zip(WAYS, run("sphere", Sphere(), [(task, WAYS)]), strict=True):
        assert 0 <= record.values["nmi"][0] <= 1, way
        assert record.data["n"] == 18


def test_cells_are_kept_and_read_back(tmp_path: Path) -> None:
    grid = [(SphereTask(dim, 0.2, runs=2, n_init=1), QUICK[:2]) for dim in (10, 60)]
    with RunStore(tmp_path) as store:
        first = run("sphere", Sphere(), grid, store=store)
        second = run("sphere", Sphere(), grid, store=store)
    assert second == first  # read back, wall times among them, not run again


def test_a_cell_that_is_none_is_refused() -> None:
    for wrong, says in (({"dim": 0}, "'dim'"), ({"noise": -1.0}, "'noise'"), ({"runs": 0}, "'runs'")):
        with pytest.raises(ArgumentError, match=says):
            SphereTask(**{"dim": 3, "noise": 0.1, **wrong})
