"""The speed suite's schema refuses broken files, its naive methods compute W, and its table says what was measured."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bpa import balanced_affinities
from bpa.solvers import Sweeps

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "benchmarks" / "speed"


@pytest.fixture
def suite(monkeypatch):
    """Import a module of the suite, which is a folder of scripts and no package."""
    monkeypatch.syspath_prepend(str(SUITE))
    names = ("schema", "methods", "show")
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def row(case: str, method: str, seconds: list[float], over: float) -> dict[str, object]:
    return {
        "case": case,
        "pass": "forward",
        "method": method,
        "seconds": seconds,
        "wall_seconds": seconds,
        "median": sorted(seconds)[len(seconds) // 2],
        "over_floor": over,
        "relative_difference": None,
        "peak_bytes": None,
    }


def result() -> dict[str, object]:
    machine = {
        "processor": "abacus", "cores": 2, "avx512": False, "system": "Linux", "python": "3.11", "torch": "2.13",
        "threads": 1, "memory_bytes": 1, "huge_pages": "never", "load_before": 0.0,
    }  # fmt: skip
    rows = [
        row("200x512", "Gram product (floor)", [1.0, 1.1, 0.9], 1.0),
        row("200x512", "bpa", [1.5, 1.6, 1.4], 1.5),
    ]
    return {
        "format": "bpa-speed/1", "machine": machine, "allocator": "glibc", "clock": "seconds", "missing": {},
        "failed": {}, "rows": rows,
    }  # fmt: skip


def test_a_whole_file_passes(suite) -> None:
    suite("schema").validate(result())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("format",), "bpa-speed/0"),
        (("machine", "cores"), "2"),
        (("machine", "cores"), True),
        (("rows", 1, "seconds"), [1.0, "2", 3.0]),
        (("rows", 1, "seconds"), [1.0, -2.0, 3.0]),
        (("rows", 1, "seconds"), [1.0]),
        (("rows", 1, "median"), None),
        (("rows", 1, "pass"), "sideways"),
        (("rows", 1, "method"), "Gram product (floor)"),
        (("rows", 1, "odd"), 1),
    ],
)
def test_a_broken_file_is_refused(suite, where: tuple[str | int, ...], value: object) -> None:
    broken = copy.deepcopy(result())
    part = broken
    for step in where[:-1]:
        part = part[step]
    part[where[-1]] = value
    with pytest.raises(ValueError, match=r"file|machine|rows"):
        suite("schema").validate(broken)


@pytest.mark.parametrize("shape", [(30, 8), (3, 12, 8)])
def test_the_naive_implementations_compute_the_same_w(suite, shape: tuple[int, ...]) -> None:
    methods = suite("methods")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = balanced_affinities(x, reg=methods.REG, solver=Sweeps(methods.N_ITER)).numpy()
    for method in (methods.naive_log, methods.naive_exp):
        np.testing.assert_allclose(method(x).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(methods.numpy_exp(x.numpy()), expected, atol=1e-5)


def test_the_table_shows_what_was_measured_and_parts_are_merged(suite, tmp_path: Path) -> None:
    show = suite("show")
    first, second = result(), copy.deepcopy(result())
    second["rows"] = [
        row("1000x512", "Gram product (floor)", [2.0] * 3, 1.0),
        row("1000x512", "bpa", [2.2] * 3, 1.1),
    ]
    second["failed"] = {"1000x512 TorchDR": "too slow"}
    merged = show.merge([first, second])
    text = show.table(merged)
    assert "| **bpa** | 1.50" in text
    assert "1.10" in text
    assert "Failed: 1000x512 TorchDR: too slow" in text
    assert "abacus, 2 cores" in text
    show.figure(merged, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    second["machine"]["threads"] = 2
    with pytest.raises(SystemExit, match="threads"):
        show.merge([first, second])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results" / "speed").glob("cpu*.json")), ids=lambda p: p.name
)
def test_the_published_result_passes_the_schema_and_makes_the_published_table(suite, path: Path) -> None:
    stored = json.loads(path.read_text())
    suite("schema").validate(stored)
    stem = "" if path.stem == "cpu" else f"-{path.stem}"
    assert (path.parent / f"table{stem}.md").read_text() == suite("show").table(stored)
